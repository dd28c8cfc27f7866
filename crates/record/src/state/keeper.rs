//! Keeps files of code open from the first look at a mapping to the end, so that what is deleted or replaced meanwhile has its names.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::process::{Resource, getrlimit};
use varve_model::Pid;
use varve_symbols::KeptFiles;
use varve_sys::{FileIdentity, MapEntry, mount_at, mount_of};

/// Of the descriptors that the recorder may have, one in so many at most is a kept file.
const SHARE: u64 = 4;
/// Kept files at most, whatever the limit of descriptors.
const MAX_KEPT: u64 = 512;
/// How an ELF file begins.
const ELF: [u8; 4] = *b"\x7fELF";

/// The files that are kept. An open file keeps its mount busy: none is kept of a mount that a program of the target could unmount where
/// it could have done so alone.
#[derive(Debug)]
pub(crate) struct Keeper {
    files: HashMap<FileIdentity, File>,
    most: u64,
    /// The mounts that the recorder, and the shell that started it, use anyway.
    own_mounts: Vec<u64>,
}

impl Default for Keeper {
    fn default() -> Self {
        let limit = getrlimit(Resource::Nofile).current;
        let temporary = std::env::temp_dir();
        let own = [
            Path::new("/"),
            Path::new("."),
            Path::new("/proc/self/exe"),
            &temporary,
        ];
        Self {
            files: HashMap::new(),
            most: limit.map_or(MAX_KEPT, |limit| (limit / SHARE).min(MAX_KEPT)),
            own_mounts: own.into_iter().filter_map(mount_at).collect(),
        }
    }
}

impl Keeper {
    /// Takes a file that has just been opened for a mapping of a process, where it is worth it.
    pub(crate) fn offer(&mut self, pid: Pid, entry: &MapEntry, file: &File) {
        let Some(identity) = entry.identity() else {
            return;
        };
        if self.files.len() as u64 >= self.most || self.files.contains_key(&identity) {
            return;
        }
        let mut head = [0; ELF.len()];
        if file.read_exact_at(&mut head, 0).is_err()
            || head != ELF
            || !self.may_keep(pid, entry, file)
        {
            return;
        }
        if let Ok(file) = file.try_clone() {
            self.files.insert(identity, file);
        }
    }

    fn may_keep(&self, pid: Pid, entry: &MapEntry, file: &File) -> bool {
        // Of the kernel's own, which nobody unmounts.
        if entry.path.starts_with("/memfd:") {
            return true;
        }
        let Some(mount) = mount_of(file) else {
            return false;
        };
        self.own_mounts.contains(&mount)
            || mount_at(Path::new(&format!("/proc/{pid}/root"))) == Some(mount)
    }

    /// All of them; none is kept any more.
    pub(crate) fn take(&mut self) -> KeptFiles {
        KeptFiles::new(std::mem::take(&mut self.files))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn own_program() -> MapEntry {
        let exe = std::env::current_exe().unwrap();
        let maps = varve_sys::maps(Pid(std::process::id())).unwrap();
        maps.into_iter()
            .find(|m| Path::new(&m.path) == exe)
            .unwrap()
    }

    #[test]
    fn only_files_of_code_are_kept_and_no_more_than_there_is_room_for() {
        let entry = own_program();
        let pid = Pid(std::process::id());
        let code = File::open(&entry.path).unwrap();
        let text = File::open("Cargo.toml").unwrap();
        let mut keeper = Keeper::default();
        keeper.offer(pid, &entry, &text);
        assert!(keeper.files.is_empty());
        keeper.most = 0;
        keeper.offer(pid, &entry, &code);
        assert!(keeper.files.is_empty());
        keeper.most = 1;
        keeper.offer(pid, &entry, &code);
        let found = keeper.files.get(&entry.identity().unwrap()).unwrap();
        assert_eq!(found.metadata().unwrap().ino(), entry.inode);
    }

    #[test]
    fn nothing_is_kept_of_a_mount_that_may_be_unmounted() {
        let entry = own_program();
        let code = File::open(&entry.path).unwrap();
        let mut keeper = Keeper::default();
        keeper.own_mounts.clear();
        // A process that is not there has no root folder.
        keeper.offer(Pid(1 << 23), &entry, &code);
        assert!(keeper.files.is_empty());
    }
}
