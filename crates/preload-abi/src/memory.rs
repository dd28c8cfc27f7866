//! Memory that the recorder makes, maps and hands over. Its size is sealed: no store of the program's can take it away.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::AtomicU64;

/// A file of memory, mapped and shared.
#[derive(Debug)]
pub(crate) struct Memory {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: all accesses to the mapping go through atomics.
unsafe impl Send for Memory {}
// SAFETY: see above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Makes it, with the descriptor through which a process is given it. Only what is written to takes room.
    pub(crate) fn create(name: &str, bytes: usize) -> io::Result<(Memory, OwnedFd)> {
        let name = CString::new(name)?;
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: a C string and flags; makes a descriptor.
        let made = unsafe { libc::memfd_create(name.as_ptr(), flags) };
        if made < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a fresh descriptor that nobody else has.
        let file = unsafe { OwnedFd::from_raw_fd(made) };
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: both take integers, and a descriptor of our own.
        let sized = unsafe {
            libc::ftruncate(made, bytes as libc::off_t) == 0
                && libc::fcntl(made, libc::F_ADD_SEALS, seals) == 0
        };
        if !sized {
            return Err(io::Error::last_os_error());
        }
        let memory = Memory::of(&file, bytes)?;
        Ok((memory, file))
    }

    /// Maps a file of memory that is, and stays, as long as this.
    pub(crate) fn of(file: &OwnedFd, bytes: usize) -> io::Result<Memory> {
        // SAFETY: a new mapping.
        let base = unsafe {
            libc::mmap(
                null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_NORESERVE,
                file.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Memory { base, bytes })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset < self.bytes);
        // SAFETY: within the mapping, aligned; whoever else writes there does so in shared memory, and any bits are
        // an integer.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped by `create`, and nobody else in this process knows of it.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}
