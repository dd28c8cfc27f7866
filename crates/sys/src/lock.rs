//! Locks that tell that somebody lives.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};

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

/// Whether somebody has locked it. A file that is not there is not locked.
pub fn is_locked(path: &Path) -> bool {
    File::open(path).is_ok_and(|file| {
        matches!(
            flock(&file, FlockOperation::NonBlockingLockExclusive),
            Err(rustix::io::Errno::WOULDBLOCK)
        )
    })
}
