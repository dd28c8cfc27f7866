//! Files that somebody else named: a target, a trace, a debug link. Only regular ones are opened.
//!
//! Opening a FIFO waits for a writer, and opening a device can do anything. So a file is looked up without being opened
//! (`O_PATH`), looked at, and opened through that very look-up, so that nobody can put another in its place meanwhile.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, FileType, MemfdFlags, Mode, OFlags, ResolveFlags, StatxFlags};
use varve_model::Pid;

use crate::mounts::namespace_in;

/// Which file a mapping is of, as `/proc/PID/maps` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileIdentity {
    /// The device: major and minor number.
    pub device: (u32, u32),
    /// The inode.
    pub inode: u64,
}

impl FileIdentity {
    /// From a device as `/proc/PID/maps` has it, `major:minor` in hexadecimal, and an inode; none where both are 0, as of memory without a file.
    ///
    /// The inode of a System V segment is its identifier (`newseg`, ipc/shm.c), which is 0 for the first one since the machine started.
    pub fn of_text(device: &str, inode: u64) -> Option<Self> {
        let (major, minor) = device.split_once(':')?;
        let number = |text| u32::from_str_radix(text, 16).ok();
        let device = (number(major)?, number(minor)?);
        (device != (0, 0) || inode != 0).then_some(Self { device, inode })
    }
}

/// Opens a regular file for reading, through symbolic links.
///
/// # Errors
/// Those of opening; what is no regular file is one.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let found = rustix::fs::openat(CWD, path, LOOK_UP, Mode::empty())?;
    reopen(&found, None)
}

/// The same for a path that the kernel reported and that leads through no symbolic link therefore; where it does now,
/// somebody has changed what it means.
///
/// # Errors
/// Those of opening; `ELOOP` where there is a symbolic link in the path.
pub fn open_regular_exactly(path: &Path) -> io::Result<File> {
    let found = rustix::fs::openat2(CWD, path, LOOK_UP, Mode::empty(), ResolveFlags::NO_SYMLINKS);
    reopen(&or_plainly(found, path)?, None)
}

/// Opens a regular file that is named as another process sees it, below the folder that is the root of its files. No link
/// leads out of that.
///
/// # Errors
/// Those of opening; what is no regular file is one.
pub fn open_regular_in(root: &Path, path: &Path) -> io::Result<File> {
    // The last part of `/proc/PID/root` is a link of the kernel's own.
    let folder = rustix::fs::openat(
        CWD,
        root,
        OFlags::PATH | OFlags::CLOEXEC | OFlags::DIRECTORY,
        Mode::empty(),
    )?;
    let found = rustix::fs::openat2(
        &folder,
        path,
        LOOK_UP,
        Mode::empty(),
        ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS,
    )?;
    reopen(&found, None)
}

/// Whether a path leads a process to the program that it runs. Nothing is opened.
///
/// # Errors
/// Those of looking the path up, and where the process is gone.
pub fn leads_to_program(pid: Pid, path: &Path) -> io::Result<bool> {
    let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::DIRECTORY;
    let (from, resolve) = match path.is_absolute() {
        true => ("root", ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS),
        false => ("cwd", ResolveFlags::NO_MAGICLINKS),
    };
    let process = crate::shared_folder(pid);
    let folder = rustix::fs::openat(CWD, process.join(from), flags, Mode::empty())?;
    let found = rustix::fs::openat2(&folder, path, LOOK_UP, Mode::empty(), resolve)?;
    let found = rustix::fs::fstat(&found)?;
    let program = rustix::fs::stat(process.join("exe"))?;
    Ok((found.st_dev, found.st_ino) == (program.st_dev, program.st_ino))
}

/// Whether two absolute paths lead to one file. Nothing is opened.
///
/// # Errors
/// Those of looking them up.
pub fn leads_to(path: &Path, file: &Path) -> io::Result<bool> {
    let [one, other] = [rustix::fs::stat(path)?, rustix::fs::stat(file)?];
    Ok((one.st_dev, one.st_ino) == (other.st_dev, other.st_ino))
}

/// Whether absolute paths are the same files to a process that runs as to this one.
#[must_use]
pub fn has_our_root(pid: Pid) -> bool {
    let (theirs, ours) = (crate::shared_folder(pid), Path::new("/proc/self"));
    let root = |of: &Path| rustix::fs::stat(of.join("root")).ok();
    let (Some(here), Some(there)) = (root(ours), root(&theirs)) else {
        return false;
    };
    (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)
        && namespace_in(ours) == namespace_in(&theirs)
}

/// Which regular file a path of a process's leads to: device and inode. Nothing is opened. Of a process that has ended nobody knows the root
/// folder, but where it was this program's own.
///
/// # Errors
/// Those of looking it up, and where it is no regular file.
pub fn file_of_path(pid: Pid, path: &Path, has_our_root: bool) -> io::Result<(u64, u64)> {
    let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::DIRECTORY;
    let root = crate::shared_folder(pid).join("root");
    let found = match rustix::fs::openat(CWD, root, flags, Mode::empty()) {
        Err(_) if has_our_root => rustix::fs::stat(path)?,
        folder => {
            let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
            let found = rustix::fs::openat2(folder?, path, LOOK_UP, Mode::empty(), resolve)?;
            rustix::fs::fstat(&found)?
        }
    };
    match FileType::from_raw_mode(found.st_mode) {
        FileType::RegularFile => Ok((found.st_dev, found.st_ino)),
        _ => Err(io::Error::other("no regular file")),
    }
}

/// Opens the file of a mapping, and no other: its path may name something else by now.
///
/// # Errors
/// Those of opening, and where it is another file.
pub fn open_mapped(path: &Path, identity: FileIdentity) -> io::Result<File> {
    let found = rustix::fs::openat(CWD, path, LOOK_UP, Mode::empty())?;
    reopen(&found, Some(identity))
}

/// Opens a regular file below a folder that is the root of its path, and no other where an identity is given. The last part
/// of the path is no link.
pub(crate) fn open_regular_at(
    folder: &OwnedFd,
    path: &Path,
    identity: Option<FileIdentity>,
) -> io::Result<File> {
    let found = rustix::fs::openat2(
        folder,
        path,
        LOOK_UP | OFlags::NOFOLLOW,
        Mode::empty(),
        ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS,
    )?;
    reopen(&found, identity)
}

const LOOK_UP: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// Kernels before 5.6, and some sandboxes, have no `openat2`.
fn or_plainly(found: rustix::io::Result<OwnedFd>, path: &Path) -> io::Result<OwnedFd> {
    match found {
        Err(rustix::io::Errno::NOSYS | rustix::io::Errno::PERM) => {
            Ok(rustix::fs::openat(CWD, path, LOOK_UP, Mode::empty())?)
        }
        found => Ok(found?),
    }
}

fn reopen(found: &OwnedFd, identity: Option<FileIdentity>) -> io::Result<File> {
    // What the kernel knows already is enough, so that no file system is asked for it.
    let about = rustix::fs::statx(
        found,
        "",
        AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC,
        StatxFlags::TYPE | StatxFlags::INO,
    )?;
    if FileType::from_raw_mode(about.stx_mode.into()) != FileType::RegularFile {
        return Err(io::Error::other("it is not a regular file"));
    }
    let is = FileIdentity {
        device: (about.stx_dev_major, about.stx_dev_minor),
        inode: about.stx_ino,
    };
    if identity.is_some_and(|wanted| wanted != is) {
        return Err(io::Error::other("another file has its name now"));
    }
    let link = format!("/proc/self/fd/{}", found.as_fd().as_raw_fd());
    // A lease on the file could hold the opening up: `O_NONBLOCK` makes that an error.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let file = File::from(rustix::fs::openat(CWD, link, flags, Mode::empty())?);
    match file.metadata()?.file_type().is_file() {
        true => Ok(file),
        false => Err(io::Error::other("it is not a regular file")),
    }
}

/// How many bytes of a file lie on its disk or in its memory. Holes, which cost its owner nothing, are not among them.
pub(crate) fn stored_bytes(file: &File) -> io::Result<u64> {
    Ok(file.metadata()?.blocks().saturating_mul(512))
}

/// File systems that ask nobody outside of this machine and outside of the kernel.
const LOCAL: [&str; 17] = [
    "btrfs",
    "erofs",
    "exfat",
    "ext2",
    "ext3",
    "ext4",
    "f2fs",
    "hugetlbfs",
    "iso9660",
    "overlay",
    "ramfs",
    "rootfs",
    "squashfs",
    "tmpfs",
    "vfat",
    "xfs",
    "zfs",
];

/// The device of memory files and shared anonymous memory: a file system of the kernel's own, which no table of mounts lists.
fn memory_device() -> Option<(u32, u32)> {
    static DEVICE: OnceLock<Option<(u32, u32)>> = OnceLock::new();
    *DEVICE.get_or_init(|| {
        let file = rustix::fs::memfd_create("varve-device", MemfdFlags::CLOEXEC).ok()?;
        let device = rustix::fs::fstat(&file).ok()?.st_dev;
        Some((rustix::fs::major(device), rustix::fs::minor(device)))
    })
}

/// Whether a device is one of a file system that answers by itself. Asked of the kernel's table of mounts, which
/// asks no file system; false where it is not known.
pub fn is_local(device: (u32, u32)) -> bool {
    static KNOWN: Mutex<Vec<((u32, u32), bool)>> = Mutex::new(Vec::new());
    if memory_device() == Some(device) {
        return true;
    }
    let Ok(mut known) = KNOWN.lock() else {
        return false;
    };
    if let Some((_, local)) = known.iter().find(|(other, _)| *other == device) {
        return *local;
    }
    let name = format!("{}:{}", device.0, device.1);
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let local = mounts.lines().any(|line| {
        // Number, parent, device, and, behind a dash, the type.
        let (front, back) = line.split_once(" - ").unwrap_or_default();
        front.split(' ').nth(2) == Some(&name)
            && back
                .split(' ')
                .next()
                .is_some_and(|kind| LOCAL.contains(&kind))
    });
    if known.len() >= MAX_DEVICES {
        known.clear();
    }
    known.push((device, local));
    local
}

/// Devices that are remembered.
const MAX_DEVICES: usize = 64;

/// File systems that did not answer in time: after a few of them nobody waits any more.
static UNANSWERED: AtomicU32 = AtomicU32::new(0);
const MAX_UNANSWERED: u32 = 3;

/// Does what may wait for a file system of the target's (FUSE, a network), for no longer than `limit`; an error where it
/// takes longer. Its thread is left behind then: it ends when the file system answers, or with this process.
///
/// # Errors
/// Those of `work`; `TimedOut`.
pub fn within<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let late = || io::Error::new(io::ErrorKind::TimedOut, "its file system does not answer");
    if UNANSWERED.load(Ordering::Relaxed) >= MAX_UNANSWERED {
        return Err(late());
    }
    let (sender, receiver) = sync_channel(1);
    std::thread::Builder::new()
        .name("file".into())
        .stack_size(128 << 10)
        .spawn(move || {
            let _ = sender.send(work());
        })?;
    receiver.recv_timeout(limit).unwrap_or_else(|_| {
        UNANSWERED.fetch_add(1, Ordering::Relaxed);
        Err(late())
    })
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::fs::symlink;

    use super::*;

    fn folder(name: &str) -> std::path::PathBuf {
        let folder = std::env::temp_dir().join(format!("regular-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn the_first_segment_since_the_machine_started_is_a_file() {
        let of = FileIdentity::of_text;
        assert_eq!(of("00:00", 0), None);
        let first = FileIdentity {
            device: (0, 1),
            inode: 0,
        };
        assert_eq!(of("00:01", 0), Some(first));
        assert_eq!(
            of("fe:10", 7).map(|f| (f.device, f.inode)),
            Some(((0xfe, 0x10), 7))
        );
        assert_eq!(of("", 7), None);
    }

    #[test]
    fn only_regular_files_are_opened() {
        let folder = folder("kinds");
        let fifo = folder.join("fifo");
        rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR, 0).unwrap();
        for path in [&fifo, Path::new("/dev/zero"), Path::new("/")] {
            assert!(open_regular(path).is_err(), "{}", path.display());
            assert!(open_regular_exactly(path).is_err(), "{}", path.display());
        }
        let file = folder.join("file");
        std::fs::write(&file, "text").unwrap();
        let link = folder.join("link");
        symlink(&file, &link).unwrap();
        for path in [&file, &link] {
            let mut text = String::new();
            let mut opened = open_regular(path).unwrap();
            opened.read_to_string(&mut text).unwrap();
            assert_eq!(text, "text");
        }
        assert!(open_regular_exactly(&link).is_err());
        assert!(open_regular_exactly(&file).is_ok());
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn no_link_leads_out_of_a_root() {
        let folder = folder("root");
        let root = folder.join("root");
        std::fs::create_dir_all(&root).unwrap();
        std::fs::write(folder.join("secret"), "secret").unwrap();
        std::fs::write(root.join("own"), "own").unwrap();
        symlink("../secret", root.join("up")).unwrap();
        symlink(folder.join("secret"), root.join("absolute")).unwrap();
        symlink("/own", root.join("inside")).unwrap();
        assert!(open_regular_in(&root, Path::new("/up")).is_err());
        assert!(open_regular_in(&root, Path::new("/absolute")).is_err());
        assert!(open_regular_in(&root, Path::new("/inside")).is_ok());
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn another_file_of_the_name_is_not_the_mapped_one() {
        let exe = std::env::current_exe().unwrap();
        let about = std::fs::metadata(&exe).unwrap();
        let device = rustix::fs::major(about.dev());
        let identity = FileIdentity {
            device: (device, rustix::fs::minor(about.dev())),
            inode: about.ino(),
        };
        assert!(open_mapped(&exe, identity).is_ok());
        let other = FileIdentity {
            inode: identity.inode + 1,
            ..identity
        };
        assert!(open_mapped(&exe, other).is_err());
    }

    #[test]
    fn nobody_waits_for_ever() {
        let late = within(Duration::from_millis(10), || {
            std::thread::sleep(Duration::MAX);
            Ok(())
        });
        assert_eq!(late.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(within(Duration::from_secs(300), || Ok(7)).unwrap(), 7);
    }
}
