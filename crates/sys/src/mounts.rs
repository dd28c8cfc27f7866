//! Mounts: which of them a file was opened through, and whether that keeps anybody from unmounting it.
//!
//! An open file makes its mount busy (umount(2), `EBUSY`): what a program of the target unmounts when it runs alone must not be
//! kept open, neither by a descriptor nor by a mapping.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::{AtFlags, CWD, Statx, StatxFlags};
use varve_model::Pid;

/// Ancestors of a process that are looked at.
const MAX_ANCESTORS: usize = 64;

/// The number of the mount through which a file was opened; none on kernels that do not say it (statx(2), Linux 5.8).
pub(crate) fn mount_of(file: impl AsFd) -> Option<u64> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    mount(rustix::fs::statx(file, "", flags, StatxFlags::MNT_ID))
}

/// The same for what a path leads to.
fn mount_at(path: &Path) -> Option<u64> {
    let flags = AtFlags::STATX_DONT_SYNC;
    mount(rustix::fs::statx(CWD, path, flags, StatxFlags::MNT_ID))
}

fn mount(about: rustix::io::Result<Statx>) -> Option<u64> {
    let about = about.ok()?;
    let is_said = StatxFlags::from_bits_retain(about.stx_mask).contains(StatxFlags::MNT_ID);
    is_said.then_some(about.stx_mnt_id)
}

/// Whether the mount of an open file is one that this program, or the shell that started it, uses for as long as it runs: its root, its
/// working folder, its own file, the folder of temporary files. Nobody can unmount it meanwhile; false where it is not known.
pub fn is_on_own_mount(file: impl AsFd) -> bool {
    static OWN: OnceLock<Vec<u64>> = OnceLock::new();
    let own = OWN.get_or_init(|| {
        let temporary = std::env::temp_dir();
        let paths = [
            Path::new("/"),
            Path::new("."),
            Path::new("/proc/self/exe"),
            &temporary,
        ];
        paths.into_iter().filter_map(mount_at).collect()
    });
    mount_of(file).is_some_and(|mount| own.contains(&mount))
}

/// Whether an open file of a process may stay open until the end of a recording: its mount is one of this program's own, or the root of a
/// container, which is unmounted with the last process in it. A process that shares its namespace of mounts with an ancestor of another root
/// may be in a folder that the ancestor unmounts behind it (`chroot`).
pub fn may_stay_open(pid: Pid, file: impl AsFd) -> bool {
    let file = file.as_fd();
    if is_on_own_mount(file) {
        return true;
    }
    let Some(mount) = mount_of(file) else {
        return false;
    };
    let (root, namespace) = (root_of(pid), namespace_of(pid));
    if root != Some(mount) || namespace.is_none() || namespace == namespace_of(own()) {
        return false;
    }
    let mut ancestor = pid;
    for _ in 0..MAX_ANCESTORS {
        match parent_of(ancestor) {
            Some(Pid(0)) => return true,
            Some(parent) => ancestor = parent,
            None => return false,
        }
        if namespace_of(ancestor) != namespace {
            return true;
        }
        if root_of(ancestor) != root {
            return false;
        }
    }
    false
}

fn own() -> Pid {
    Pid(std::process::id())
}

fn root_of(pid: Pid) -> Option<u64> {
    mount_at(&crate::shared_folder(pid).join("root"))
}

fn namespace_of(pid: Pid) -> Option<PathBuf> {
    namespace_in(&crate::shared_folder(pid))
}

/// The namespace of mounts of a process, by its folder in `/proc`.
pub(crate) fn namespace_in(folder: &Path) -> Option<PathBuf> {
    std::fs::read_link(folder.join("ns/mnt")).ok()
}

fn parent_of(pid: Pid) -> Option<Pid> {
    crate::status(pid).ok().map(|status| status.parent)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn own_mounts_are_those_that_this_program_uses() {
        assert!(is_on_own_mount(File::open("/").unwrap()));
        assert!(is_on_own_mount(File::open("/proc/self/exe").unwrap()));
        // Another mount of every machine.
        let other = File::open("/proc/self/status").unwrap();
        assert!(!is_on_own_mount(&other));
        assert!(!may_stay_open(own(), &other));
        // A process that is not there.
        assert!(!may_stay_open(Pid(1 << 23), &other));
    }
}
