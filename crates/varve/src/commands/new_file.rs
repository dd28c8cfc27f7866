//! Files that commands write: as closed as the trace that they are made of, never through a link, and in their place
//! only when they are whole.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use varve_sys::{Directory, Kind};
use varve_trace::Trace;

use super::Failure;

/// Writes a file of what a trace holds, which replaces a regular file alone. `write` says itself what fails in it, but for
/// what the system says.
pub(super) fn write_file(
    trace: &Trace,
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    write_with_mode(trace.access()?.of_files(), path, write)
}

/// The same of what several traces hold.
pub(super) fn write_with_mode(
    mode: u32,
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let cannot = |e: io::Error| {
        Failure::new(
            format!("cannot write {}: {e}", path.display()),
            Some(
                "name a file in a folder that you may write to; it may be new, or a regular file that is to be replaced",
            ),
        )
    };
    let place = Place::of(path).map_err(cannot)?;
    let mut file = BufWriter::new(
        place
            .folder
            .create(&place.temporary, mode)
            .map_err(cannot)?,
    );
    write(&mut file)?;
    file.flush().map_err(cannot)?;
    place.commit().map_err(cannot)?;
    varve_ui::note(format!("wrote {}", path.display()));
    Ok(())
}

/// Where a file is to be. Until then it has another name, under which it is removed when this is dropped.
struct Place {
    folder: Directory,
    name: OsString,
    temporary: String,
}

impl Place {
    fn of(path: &Path) -> io::Result<Place> {
        let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
        let folder = Directory::passage(parent.unwrap_or(Path::new(".")))?;
        let name = path.file_name().ok_or(io::ErrorKind::IsADirectory)?;
        match folder.kind(name)? {
            None | Some(Kind::File) => {}
            Some(kind) => {
                let what = format!("it is {}, not a regular file", kind.as_str());
                return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
            }
        }
        Ok(Place {
            folder,
            name: name.to_owned(),
            temporary: format!(
                ".varve-{}-{:x}.new",
                std::process::id(),
                varve_sys::monotonic_now().0
            ),
        })
    }

    fn commit(self) -> io::Result<()> {
        self.folder.rename(&self.temporary, &self.name)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // Half of a file is of use to nobody; after a rename there is none of this name.
        let _ = self.folder.remove_file(&self.temporary);
    }
}
