//! Files of code that stay open from the first look at a mapping to the end: what is deleted or replaced meanwhile has its names.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

use varve_model::Pid;
use varve_symbols::OpenFiles;
use varve_sys::{FileIdentity, MapEntry};

/// Of the descriptors that the recorder does not need, one in so many at most is one of these files.
const SHARE: u64 = 4;
/// Such files at most, whatever the limit of descriptors.
const MAX_OPEN: u64 = 512;
/// How an ELF file begins.
const ELF: [u8; 4] = *b"\x7fELF";

/// The files that stay open. An open file makes its mount busy: none stays open of a mount that a program of the target could unmount where
/// it could have done so alone.
#[derive(Debug)]
pub(crate) struct OpenModules {
    files: HashMap<FileIdentity, File>,
    most: u64,
}

impl Default for OpenModules {
    fn default() -> Self {
        let spare = crate::target::preflight::spare_files() as u64;
        Self {
            files: HashMap::new(),
            most: (spare / SHARE).min(MAX_OPEN),
        }
    }
}

impl OpenModules {
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
            // Those in memory are on a mount of the kernel's own, which nobody unmounts.
            || !(entry.path.starts_with("/memfd:") || varve_sys::may_stay_open(pid, file))
        {
            return;
        }
        if let Ok(file) = file.try_clone() {
            self.files.insert(identity, file);
        }
    }

    /// All of them; none is here any more.
    pub(crate) fn take(&mut self) -> OpenFiles {
        OpenFiles::new(std::mem::take(&mut self.files))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;
    use crate::state::build_ids::tests::own_program;

    #[test]
    fn only_files_of_code_stay_open_and_no_more_than_there_is_room_for() {
        let entry = own_program();
        let pid = Pid(std::process::id());
        let code = File::open(&entry.path).unwrap();
        let text = File::open("Cargo.toml").unwrap();
        let mut modules = OpenModules::default();
        modules.offer(pid, &entry, &text);
        assert!(modules.files.is_empty());
        modules.most = 0;
        modules.offer(pid, &entry, &code);
        assert!(modules.files.is_empty());
        modules.most = 1;
        modules.offer(pid, &entry, &code);
        let found = modules.files.get(&entry.identity().unwrap()).unwrap();
        assert_eq!(found.metadata().unwrap().ino(), entry.inode);
    }
}
