//! Build ids of the files that processes map.

use std::collections::HashMap;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use varve_model::Pid;
use varve_symbols::read_build_id;
use varve_sys::{FileIdentity, MapEntry};

use super::open_modules::OpenModules;

/// How long a file system may take: that of a target's user may never answer. The recorder does nothing else meanwhile.
const PATIENCE: Duration = Duration::from_millis(500);

/// How long what was found at one look holds for those after it.
const MOMENT: Duration = Duration::from_millis(20);

/// A file as it was at one time: a rebuild in place makes it another.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Edition {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
}

impl Edition {
    fn of(meta: &Metadata) -> Edition {
        Edition {
            device: meta.dev(),
            inode: meta.ino(),
            bytes: meta.len(),
            modified: (meta.mtime(), meta.mtime_nsec()),
        }
    }
}

/// What was read, so that each file is opened once.
#[derive(Debug, Default)]
pub(crate) struct BuildIds {
    known: HashMap<Edition, Option<String>>,
    /// Those of the files that were looked at a moment ago: processes map the same ones, several times each.
    looked_at: HashMap<FileIdentity, Option<String>>,
    /// When the first of them was.
    since: Option<Instant>,
    /// Those that stay open.
    pub(crate) open_modules: OpenModules,
}

impl BuildIds {
    /// Another look at a process's mappings begins: files may be others now.
    pub(crate) fn begin_look(&mut self) {
        if self.since.is_none_or(|since| since.elapsed() >= MOMENT) {
            self.looked_at.clear();
            self.since = Some(Instant::now());
        }
        // A file that one process does not show any more another may.
        self.looked_at.retain(|_, found| found.is_some());
    }

    /// The build id of the file behind a mapping, hexadecimal; none for what is no ELF file, has none, or
    /// cannot be read any more.
    pub(crate) fn of(&mut self, pid: Pid, entry: &MapEntry) -> Option<String> {
        if entry.inode == 0 || !entry.path.starts_with('/') {
            return None;
        }
        let identity = entry.identity()?;
        if let Some(known) = self.looked_at.get(&identity) {
            return known.clone();
        }
        let found = self.find(pid, entry, identity);
        self.looked_at.insert(identity, found.clone());
        found
    }

    fn find(&mut self, pid: Pid, entry: &MapEntry, identity: FileIdentity) -> Option<String> {
        let patient = varve_sys::is_local(identity.device);
        if patient
            && let Some(very) = very_file(pid, entry)
            && let Ok(meta) = fs::metadata(very)
            && let Some(known) = self.known.get(&Edition::of(&meta))
        {
            return known.clone();
        }
        let opened = match patient {
            true => open(pid, entry, identity),
            false => {
                let entry = entry.clone();
                varve_sys::within(PATIENCE, move || open(pid, &entry, identity))
            }
        };
        let (file, meta) = opened.ok()?;
        if patient {
            self.open_modules.offer(pid, entry, &file);
        }
        let known = self.known.entry(Edition::of(&meta));
        let read = || match patient {
            true => Some(read_build_id(file)?.to_string()),
            false => {
                let read = move || Ok(read_build_id(file).map(|id| id.to_string()));
                varve_sys::within(PATIENCE, read).ok()?
            }
        };
        known.or_insert_with(read).clone()
    }
}

/// Opens the file itself, whatever became of its name, while the process lives; else the file of that name, if it is still
/// the one that was mapped.
fn open(pid: Pid, entry: &MapEntry, identity: FileIdentity) -> io::Result<(File, Metadata)> {
    let very = very_file(pid, entry);
    let file = match very.and_then(|path| varve_sys::open_regular(&path).ok()) {
        Some(file) => file,
        None => varve_sys::open_mapped(Path::new(&entry.path), identity)?,
    };
    let meta = file.metadata()?;
    Ok((file, meta))
}

/// Where the kernel shows the file of a mapping.
fn very_file(pid: Pid, entry: &MapEntry) -> Option<PathBuf> {
    let (start, end) = (entry.address.0, (entry.address + entry.bytes).0);
    let path = PathBuf::from(format!("/proc/{pid}/map_files/{start:x}-{end:x}"));
    (fs::read_link(&path).ok()? == Path::new(&entry.path)).then_some(path)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// How this program maps its own file.
    pub(in crate::state) fn own_program() -> MapEntry {
        let exe = std::env::current_exe().unwrap();
        let maps = varve_sys::maps(Pid(std::process::id())).unwrap();
        maps.into_iter()
            .find(|m| Path::new(&m.path) == exe)
            .unwrap()
    }

    #[test]
    fn a_program_has_the_same_one_by_both_ways() {
        let entry = own_program();
        let id = BuildIds::default().of(Pid(std::process::id()), &entry);
        let exe = fs::File::open(&entry.path).unwrap();
        assert_eq!(id, read_build_id(exe).map(|id| id.to_string()));
        // Above the largest process id that Linux has.
        assert_eq!(BuildIds::default().of(Pid(1 << 23), &entry), id);
    }

    #[test]
    fn another_file_of_that_name_does_not_count() {
        let mut entry = own_program();
        entry.inode += 1;
        assert_eq!(BuildIds::default().of(Pid(1 << 23), &entry), None);
        entry.path = "[vdso]".into();
        assert_eq!(BuildIds::default().of(Pid(1 << 23), &entry), None);
    }
}
