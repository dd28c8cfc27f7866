//! The folder of a recording: the socket at which its processes meet the recorder, and files that must outlive it.
//!
//! Everybody may pass through it, and nobody but the recorder's user may change or list what is in it. The socket lies in a
//! folder below it with a name that nobody can guess: who is not told it cannot flood the socket with connections.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::RecordError;

/// A folder of the recorder's, removed on drop.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    secret: PathBuf,
    /// Tells that the folder is in use.
    _lock: Option<fs::File>,
}

impl RunFolder {
    /// Makes it. `tell` hears of each place before something is made there.
    ///
    /// # Errors
    /// Where there is no place for it.
    pub fn create(
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
            let secret = path.join(unguessable_name()?);
            let made = make_folder(&path)
                .and_then(|()| crate::marker::mark_folder(&path))
                .and_then(|()| open_to_pass(&path))
                .and_then(|()| make_folder(&secret))
                .and_then(|()| open_to_pass(&secret));
            match made {
                Ok(()) => {
                    return Ok(RunFolder {
                        _lock: varve_sys::lock(&path).ok(),
                        path,
                        secret,
                    });
                }
                Err(e) => last = Some(e),
            }
        }
        let source = last.unwrap_or_else(|| io::ErrorKind::NotFound.into());
        Err(RecordError::System {
            action: "make a folder for the preload library's socket in /dev/shm or /tmp",
            source,
        })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The folder whose name only the target is told.
    pub fn secret(&self) -> &Path {
        &self.secret
    }
}

fn make_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(path)
}

/// The mode is set by itself, as the mask of the process takes some of what it asks for when it makes a folder.
fn open_to_pass(path: &Path) -> io::Result<()> {
    fs::set_permissions(path, Permissions::from_mode(0o711))
}

/// 128 random bits, as `leftovers` knows them again.
fn unguessable_name() -> Result<String, RecordError> {
    let mut bits = [0; 16];
    rustix::rand::getrandom(&mut bits, rustix::rand::GetRandomFlags::empty())
        .map_err(|e| RecordError::system("get random bits")(e.into()))?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bits)))
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}
