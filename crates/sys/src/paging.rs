//! Where the pages of a process are, and moving them, from outside.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;

use varve_model::{Address, PAGE_BYTES, Pid};

use crate::PidFd;

/// Ranges that the kernel takes in one call (`UIO_MAXIOV`).
const MAX_RANGES: usize = 1024;
/// Pages that are asked about in one call.
const MAX_PAGES: usize = 4096;
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;

/// Where a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PageState {
    /// Nowhere: it has not been touched, or was given back.
    Absent,
    /// In memory.
    Resident,
    /// In swap.
    Swapped,
}

/// A process whose pages are looked at and moved.
#[derive(Debug)]
pub struct Paging {
    pid: Pid,
    process: PidFd,
    pagemap: File,
}

impl Paging {
    /// Opens it.
    ///
    /// # Errors
    /// `ESRCH` where there is no such process, `EACCES` where its memory may not be looked at.
    pub fn open(pid: Pid) -> io::Result<Paging> {
        Ok(Paging {
            pid,
            process: PidFd::open(pid)?,
            pagemap: File::open(crate::shared_folder(pid).join("pagemap"))?,
        })
    }

    /// The process.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        self.process.has_ended()
    }

    /// Where the pages from `from` to `to` are, as `/proc/PID/pagemap` says; fewer where the address space ends.
    ///
    /// # Errors
    /// Where the process is gone.
    pub fn states(&self, from: Address, to: Address) -> io::Result<Vec<PageState>> {
        let first = from.0 / PAGE_BYTES;
        let count = (to.0.div_ceil(PAGE_BYTES)).saturating_sub(first);
        let mut bytes = vec![0u8; (count as usize).saturating_mul(8)];
        let mut done = 0;
        while done < bytes.len() {
            match self
                .pagemap
                .read_at(&mut bytes[done..], first * 8 + done as u64)?
            {
                0 => break,
                n => done += n,
            }
        }
        bytes.truncate(done);
        let words = bytes.chunks_exact(8);
        Ok(words
            .map(|b| {
                let word = u64::from_ne_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]);
                match (word & PRESENT, word & SWAPPED) {
                    (0, 0) => PageState::Absent,
                    (0, _) => PageState::Swapped,
                    _ => PageState::Resident,
                }
            })
            .collect())
    }

    /// On which nodes pages are (`move_pages` without nodes): one number for each page, negative where it is not in memory.
    ///
    /// # Errors
    /// Where the process is gone, or may not be looked at.
    pub fn nodes(&self, pages: &[Address]) -> io::Result<Vec<i32>> {
        self.move_pages(pages, None)
    }

    /// Moves pages to a node; what they say afterwards, as [`Paging::nodes`].
    ///
    /// # Errors
    /// As for [`Paging::nodes`].
    pub fn move_to(&self, pages: &[Address], node: u32) -> io::Result<Vec<i32>> {
        self.move_pages(pages, Some(node))
    }

    fn move_pages(&self, pages: &[Address], node: Option<u32>) -> io::Result<Vec<i32>> {
        let mut found = Vec::with_capacity(pages.len());
        for piece in pages.chunks(MAX_PAGES) {
            let addresses: Vec<usize> = piece.iter().map(|a| a.0 as usize).collect();
            let nodes: Option<Vec<i32>> = node.map(|n| vec![n as i32; piece.len()]);
            let mut status = vec![-libc::ENOENT; piece.len()];
            // SAFETY: the arrays are as long as is said, and live for the call, which writes the last alone.
            let result = unsafe {
                libc::syscall(
                    libc::SYS_move_pages,
                    self.pid.0,
                    piece.len(),
                    addresses.as_ptr(),
                    nodes.as_ref().map_or(std::ptr::null(), Vec::as_ptr),
                    status.as_mut_ptr(),
                    // MPOL_MF_MOVE
                    if node.is_some() { 2 } else { 0 },
                )
            };
            // Above zero are pages that could not be moved.
            if result < 0 {
                return Err(io::Error::last_os_error());
            }
            found.extend(status);
        }
        Ok(found)
    }

    /// Pages ranges out (`process_madvise` with `MADV_PAGEOUT`): where there is swap, they go there. What is locked, shared with others or
    /// gone stays as it is.
    ///
    /// # Errors
    /// `EPERM` without `CAP_SYS_NICE`, `ENOSYS` before 5.10, `ESRCH` where the process has ended.
    pub fn page_out(&self, ranges: &[(Address, Address)]) -> io::Result<()> {
        for piece in ranges.chunks(MAX_RANGES) {
            match self.advise(piece, libc::MADV_PAGEOUT) {
                // It stops at the first range that it cannot take: one by one then.
                Err(e) if is_of_a_range(&e) && piece.len() > 1 => {
                    for one in piece {
                        match self.advise(std::slice::from_ref(one), libc::MADV_PAGEOUT) {
                            Err(e) if !is_of_a_range(&e) => return Err(e),
                            _ => {}
                        }
                    }
                }
                Err(e) if !is_of_a_range(&e) => return Err(e),
                _ => {}
            }
        }
        Ok(())
    }

    fn advise(&self, ranges: &[(Address, Address)], advice: i32) -> io::Result<()> {
        let parts: Vec<libc::iovec> = ranges
            .iter()
            .map(|(from, to)| libc::iovec {
                iov_base: std::ptr::without_provenance_mut(from.0 as usize),
                iov_len: to.0.saturating_sub(from.0) as usize,
            })
            .collect();
        // SAFETY: the vector is as long as is said and lives for the call; the memory that it names is another process's, of which the
        // advice changes no content.
        let done = unsafe {
            libc::syscall(
                libc::SYS_process_madvise,
                self.process.as_fd().as_raw_fd(),
                parts.as_ptr(),
                parts.len(),
                advice,
                0u32,
            )
        };
        match done {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }
}

/// Whether an error is that of one range, and not of the process.
fn is_of_a_range(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EINVAL | libc::ENOMEM | libc::EFAULT | libc::EBADF)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_where_the_kernel_says() {
        let bytes = 16 * 4096;
        // SAFETY: a fresh mapping, written within it, and unmapped at the end.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(at, libc::MAP_FAILED);
        // SAFETY: within the mapping.
        unsafe { at.cast::<u8>().add(3 * 4096).write(1) };
        let paging = Paging::open(Pid(std::process::id())).unwrap();
        let from = Address(at as u64);
        let states = paging
            .states(from, Address(at as u64 + bytes as u64))
            .unwrap();
        assert_eq!(states.len(), 16);
        let resident: Vec<usize> = (0..16)
            .filter(|&i| states[i] == PageState::Resident)
            .collect();
        assert_eq!(resident, [3]);
        // SAFETY: the test's own mapping.
        unsafe { libc::munmap(at, bytes) };
    }
}
