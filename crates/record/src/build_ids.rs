//! Build ids of the files that processes map.

use std::collections::HashMap;
use std::fs::{self, Metadata, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use varve_attribute::read_build_id;
use varve_model::Pid;
use varve_sys::MapEntry;

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
}

impl BuildIds {
    /// The build id of the file behind a mapping, hexadecimal; none for what is no ELF file, has none, or
    /// cannot be read any more.
    pub(crate) fn of(&mut self, pid: Pid, entry: &MapEntry) -> Option<String> {
        if entry.inode == 0 || !entry.path.starts_with('/') {
            return None;
        }
        let (path, meta) = very_file(pid, entry).or_else(|| named_file(entry))?;
        // Opening a device can do anything.
        if !meta.is_file() {
            return None;
        }
        let read = || {
            let mut options = OpenOptions::new();
            let file = options.read(true).custom_flags(libc::O_NONBLOCK);
            let id = read_build_id(file.open(path).ok()?)?;
            Some(id.to_string())
        };
        let known = self.known.entry(Edition::of(&meta));
        known.or_insert_with(read).clone()
    }
}

/// The file itself, whatever became of its name; only while the process lives.
fn very_file(pid: Pid, entry: &MapEntry) -> Option<(PathBuf, Metadata)> {
    let (start, end) = (entry.address.0, (entry.address + entry.bytes).0);
    let path = PathBuf::from(format!("/proc/{pid}/map_files/{start:x}-{end:x}"));
    if fs::read_link(&path).ok()? != Path::new(&entry.path) {
        return None;
    }
    let meta = fs::metadata(&path).ok()?;
    Some((path, meta))
}

/// The file of that name, if it is still the one that was mapped.
fn named_file(entry: &MapEntry) -> Option<(PathBuf, Metadata)> {
    let path = PathBuf::from(&entry.path);
    let meta = fs::metadata(&path).ok()?;
    let device = (libc::major(meta.dev()), libc::minor(meta.dev()));
    let same = meta.ino() == entry.inode && entry.device == device_name(device);
    same.then_some((path, meta))
}

/// As `/proc/PID/maps` writes it.
fn device_name((major, minor): (u32, u32)) -> String {
    format!("{major:02x}:{minor:02x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own_program() -> MapEntry {
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
