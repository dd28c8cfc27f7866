//! A trace's folder in a store. The store, and any folder of it, may belong to somebody else: it is walked by descriptors, no
//! link in it is followed, and nothing is written to a file that was there before.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use varve_sys::Directory;
use varve_trace::tables::ALL;
use varve_trace::{Access, Checksum};

use super::{MANIFEST, cannot};
use crate::commands::Failure;

/// Between a file's name and what is the writer's own, of a file that is not whole yet.
const PARTIAL: &str = ".partial-";
/// Folders above a trace are for everybody whom the umask does not keep out.
const FOR_ALL: u32 = 0o777;
/// Another push of the same trace removes what a killed one left: it has the folder for so many times so long at most.
const TRIES: u32 = 50;
const PAUSE: Duration = Duration::from_millis(20);

/// The folder, open.
#[derive(Debug)]
pub(super) struct Place {
    folder: Directory,
    /// For messages.
    path: PathBuf,
}

impl Place {
    /// Opens it, and makes it with these permissions if need be.
    pub(super) fn open(store: &Path, below: &[String], mode: u32) -> Result<Place, Failure> {
        let mut path = store.to_owned();
        std::fs::create_dir_all(store).map_err(|e| cannot("make", store, &e))?;
        let mut folder = Directory::open(store).map_err(|e| cannot("open", store, &e))?;
        for (i, name) in below.iter().enumerate() {
            path.push(name);
            let mode = if i + 1 == below.len() { mode } else { FOR_ALL };
            folder = enter(&folder, name, mode).map_err(|e| cannot("make", &path, &e))?;
        }
        let place = Place { folder, path };
        place.settle_in();
        Ok(place)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes what killed pushes have left, unless one is at work, and shows others that this one is. The lock is that of the
    /// folder, and goes with it. Where there are no locks nothing is removed.
    fn settle_in(&self) {
        if self.folder.lock().is_ok() {
            self.remove_partial_files();
        }
        for _ in 0..TRIES {
            match self.folder.lock_shared() {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => thread::sleep(PAUSE),
                _ => break,
            }
        }
    }

    fn remove_partial_files(&self) {
        let names = self.folder.names().unwrap_or_default();
        for name in names {
            if name.to_str().is_some_and(is_partial) {
                // What cannot be removed is in nobody's way.
                let _ = self.folder.remove_file(&name);
            }
        }
    }

    /// Whether a file is there and is this one.
    pub(super) fn has(&self, name: &str, sum: Checksum) -> bool {
        let differs = self.folder.file(name).and_then(|file| sum.differs(file));
        matches!(differs, Ok(None))
    }

    /// Whether the manifest is there and says the same.
    pub(super) fn has_manifest(&self, manifest: &[u8]) -> bool {
        let there = self.folder.file(MANIFEST).and_then(|file| {
            // One byte more shows that it is longer.
            let limit = manifest.len() as u64 + 1;
            let mut there = Vec::new();
            io::Read::read_to_end(&mut io::Read::take(file, limit), &mut there)?;
            Ok(there)
        });
        there.is_ok_and(|there| there == manifest)
    }

    /// Writes a file beside its place and moves it there when it is on the disk. What has its name is replaced.
    pub(super) fn put(
        &self,
        name: &str,
        access: Access,
        write: impl FnOnce(&File) -> io::Result<()>,
    ) -> Result<(), Failure> {
        // Nobody else can know the name before: a file that has it already could only be in the way.
        let own = format!("{}-{:x}", std::process::id(), varve_sys::monotonic_now().0);
        let partial = format!("{name}{PARTIAL}{own}");
        let to = self.path.join(name);
        let file = self.folder.create(&partial, access.of_files());
        let file = file.map_err(|e| cannot("write", &to, &e))?;
        let written = write(&file)
            .and_then(|()| file.sync_all())
            .and_then(|()| self.folder.rename(&partial, name))
            .and_then(|()| self.folder.sync());
        if written.is_err() {
            // A later push removes what is left.
            let _ = self.folder.remove_file(&partial);
        }
        written.map_err(|e| cannot("write", &to, &e))
    }
}

/// Opens a folder in another one, which is made if there is none.
fn enter(above: &Directory, name: &str, mode: u32) -> io::Result<Directory> {
    match above.folder(name) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) if e.kind() == io::ErrorKind::NotADirectory => {
            let what = above.kind(name)?.map_or("something else", |k| k.as_str());
            return Err(io::Error::new(
                io::ErrorKind::NotADirectory,
                format!("there is {what} in its place"),
            ));
        }
        opened => return opened,
    }
    match above.make_folder_for(name, mode) {
        // Somebody was quicker.
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(e),
        _ => above.folder(name),
    }
}

fn is_partial(name: &str) -> bool {
    let Some((of, _)) = name.split_once(PARTIAL) else {
        return false;
    };
    let table = of.strip_suffix(".parquet");
    of == MANIFEST || table.is_some_and(|table| ALL.iter().any(|known| known.name == table))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_push_writes_is_removed() {
        assert!(is_partial("manifest.json.partial-17"));
        assert!(is_partial("touches.parquet.partial-17-ab"));
        for other in ["touches.parquet", "notes.partial-1", "x.parquet.partial-1"] {
            assert!(!is_partial(other), "{other}");
        }
    }

    #[test]
    fn a_push_at_work_keeps_its_files() {
        let store = tempfile::tempdir().unwrap();
        let below = ["service=a".to_owned(), "1.varve".to_owned()];
        let left = store
            .path()
            .join("service=a/1.varve/touches.parquet.partial-1");
        let first = Place::open(store.path(), &below, 0o700).unwrap();
        std::fs::write(&left, "PAR1").unwrap();
        let second = Place::open(store.path(), &below, 0o700).unwrap();
        assert!(left.exists());
        drop((first, second));
        Place::open(store.path(), &below, 0o700).unwrap();
        assert!(!left.exists());
    }
}
