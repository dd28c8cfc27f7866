//! `MADV_COLD` on another process: clearing the accessed bits of a range.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};

use varve_model::{Bytes, Pid};

use crate::PidFd;

/// Ranges of one call (`UIO_MAXIOV`).
const MAX_RANGES: usize = 1024;
/// Addresses of the kernel's half: `[vsyscall]` is listed as a mapping.
const KERNEL: u64 = 1 << 63;
/// Bytes of one call at most; the kernel cuts what is more than `MAX_RW_COUNT`.
const MAX_BYTES: u64 = 1 << 30;

/// A process whose pages can be aged.
#[derive(Debug)]
pub struct Aging {
    process: PidFd,
}

impl Aging {
    /// Opens it.
    ///
    /// # Errors
    /// There is no such process.
    pub fn open(pid: Pid) -> io::Result<Aging> {
        let process = PidFd::open(pid)?;
        Ok(Aging { process })
    }

    /// Clears the accessed bits of the pages in these ranges of addresses and flushes their translations, where pages are on a
    /// list of the kernel's and no other process has them mapped; deactivates them, too. Mappings that the kernel does not age
    /// (locked, hugetlb, of devices) are left out. Semantics: process_madvise(2), and `madvise_cold_or_pageout_pte_range` in
    /// `mm/madvise.c`.
    ///
    /// # Errors
    /// The process has ended, or this one has not the right (`CAP_SYS_NICE`), or the kernel no such call (before 5.10).
    pub fn clear(&self, ranges: impl IntoIterator<Item = Range<u64>>) -> io::Result<()> {
        let mut wanted = Vec::new();
        for range in ranges.into_iter().filter(|range| range.end <= KERNEL) {
            let starts = (range.start..range.end).step_by(MAX_BYTES as usize);
            wanted.extend(starts.map(|start| libc::iovec {
                iov_base: start as *mut libc::c_void,
                iov_len: (range.end - start).min(MAX_BYTES) as usize,
            }));
        }
        let mut left = wanted.as_slice();
        while !left.is_empty() {
            let mut bytes = 0;
            let fits = |v: &&libc::iovec| {
                bytes += v.iov_len as u64;
                bytes <= MAX_BYTES
            };
            let count = left.iter().take(MAX_RANGES).take_while(fits).count();
            left = &left[self.advise(&left[..count])?..];
        }
        Ok(())
    }

    /// How many of the ranges are done, or cannot be: one at least.
    fn advise(&self, ranges: &[libc::iovec]) -> io::Result<usize> {
        let fd = self.process.as_fd().as_raw_fd();
        // SAFETY: the ranges are readable for the call; what they name is another process's.
        let done = unsafe {
            libc::syscall(
                libc::SYS_process_madvise,
                fd,
                ranges.as_ptr(),
                ranges.len(),
                libc::MADV_COLD,
                0,
            )
        };
        if done < 0 {
            let error = io::Error::last_os_error();
            return match error.raw_os_error() {
                // A mapping that is not aged, or one that went meanwhile.
                Some(libc::EINVAL | libc::ENOMEM) => Ok(1),
                _ => Err(error),
            };
        }
        let mut done = Bytes(done as u64);
        let whole = ranges.iter().take_while(|range| {
            let bytes = Bytes(range.iov_len as u64);
            let is_done = done >= bytes;
            if is_done {
                done = Bytes(done.0 - bytes.0);
            }
            is_done
        });
        // The one that it stopped at cannot be done.
        Ok((whole.count() + 1).min(ranges.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_with_holes_and_mappings_that_are_not_aged_are_no_error() {
        let own = Aging::open(Pid(std::process::id())).expect("this process");
        let maps = crate::maps(Pid(std::process::id())).expect("its mappings");
        let all = maps.iter().map(|e| e.address.0..(e.address + e.bytes).0);
        // [vvar] is of a device, [vsyscall] is no mapping of the process.
        own.clear(all.chain(std::iter::once(4096..8192)))
            .expect("advice for this process itself");
    }
}
