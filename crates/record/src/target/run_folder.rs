//! The folder of a recording: the socket at which its processes meet the recorder, and files that must outlive it.
//!
//! Everybody may pass through it, and nobody but the recorder's user may change what is in it.

use std::fs::{self, DirBuilder, Permissions};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::RecordError;

/// A folder of the recorder's, removed on drop.
#[derive(Debug)]
pub(crate) struct RunFolder {
    path: PathBuf,
    /// Tells that the folder is in use.
    _lock: Option<fs::File>,
}

impl RunFolder {
    /// Makes it. `tell` hears of each place before something is made there.
    ///
    /// # Errors
    /// Where there is no place for it.
    pub(crate) fn create(
        mut tell: impl FnMut(&Path) -> Result<(), RecordError>,
    ) -> Result<RunFolder, RecordError> {
        let mut last = None;
        for base in crate::leftovers::BASES {
            let path = Path::new(base).join(format!(
                "varve-{}-{:x}",
                std::process::id(),
                varve_sys::monotonic_now().0
            ));
            tell(&path)?;
            // The mode is asked for again, as the mask of the process may have taken some of it.
            let made = DirBuilder::new()
                .mode(0o700)
                .create(&path)
                .and_then(|()| crate::marker::mark_folder(&path))
                .and_then(|()| fs::set_permissions(&path, Permissions::from_mode(0o711)));
            match made {
                Ok(()) => {
                    return Ok(RunFolder {
                        _lock: varve_sys::lock(&path).ok(),
                        path,
                    });
                }
                Err(e) => last = Some(e),
            }
        }
        let source = last.unwrap_or_else(|| std::io::ErrorKind::NotFound.into());
        Err(RecordError::System {
            action: "make a folder for the preload library's socket in /dev/shm or /tmp",
            source,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}
