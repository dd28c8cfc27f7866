//! Locks that show that somebody lives.

use std::fs::{self, File};
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use varve_model::Pid;

/// Locks a file or folder as long as the result lives, or this process.
///
/// # Errors
/// `EWOULDBLOCK` where somebody else has locked it.
pub fn lock(path: &Path) -> io::Result<File> {
    let file = File::open(path)?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    Ok(file)
}

/// The same, after whoever has locked it has let go.
///
/// # Errors
/// A file that cannot be opened, or that cannot be locked where it lies.
pub fn lock_patiently(path: &Path) -> io::Result<File> {
    let file = File::open(path)?;
    flock(&file, FlockOperation::LockExclusive)?;
    Ok(file)
}

/// Locks what is open already, as long as it stays open; false where somebody else has locked it.
pub fn try_lock(file: BorrowedFd<'_>) -> bool {
    flock(file, FlockOperation::NonBlockingLockExclusive).is_ok()
}

/// Who has locked a file or folder by [`lock`], as far as `/proc/locks` shows: processes of other PID namespaces are
/// not in it.
pub fn locker(path: &Path) -> Option<Pid> {
    let meta = fs::metadata(path).ok()?;
    let (major, minor) = (rustix::fs::major(meta.dev()), rustix::fs::minor(meta.dev()));
    let wanted = format!("{major:02x}:{minor:02x}:{}", meta.ino());
    let locks = fs::read_to_string("/proc/locks").ok()?;
    // Fields: number, kind, strictness, mode, process, file, range.
    locks.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is_it = fields.get(1) == Some(&"FLOCK") && fields.get(5) == Some(&wanted.as_str());
        is_it.then(|| fields[4].parse().ok().map(Pid))?
    })
}

/// Whether somebody has locked it. A file that is not there is not locked.
pub fn is_locked(path: &Path) -> bool {
    File::open(path).is_ok_and(|file| {
        // Shared, so that two who look at the same time do not see each other.
        matches!(
            flock(&file, FlockOperation::NonBlockingLockShared),
            Err(rustix::io::Errno::WOULDBLOCK)
        )
    })
}
