//! `process_madvise` with `MADV_COLD`: clearing the accessed bits of a part of a process's memory.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use varve_model::{Address, Bytes, Pid};

use crate::{MapEntry, PidFd, maps};

/// Clears accessed bits of parts of a process's memory, and flushes their translations.
///
/// The kernel takes the bit of a page, `PG_young` and `PG_referenced`, and puts the page at the end of the inactive list, so that
/// it is the first to go when memory is short. It leaves out what it cannot age for this process alone: pages that several
/// mappings share, pages that are on no list yet, locked, special and hugetlb mappings. A large folio of which a part is mapped it
/// splits. Semantics: `madvise_cold_or_pageout_pte_range` in `mm/madvise.c`.
#[derive(Debug)]
pub struct Cooling {
    process: PidFd,
}

impl Cooling {
    /// Of a process.
    ///
    /// # Errors
    /// `ESRCH` where there is no such process.
    pub fn open(pid: Pid) -> io::Result<Cooling> {
        Ok(Cooling {
            process: PidFd::open(pid)?,
        })
    }

    /// Clears the bits of all pages from `start` to `end` that it can.
    ///
    /// # Errors
    /// `ESRCH` where the process has ended; `EPERM` without `CAP_SYS_NICE`; `ENOSYS` before 5.10.
    pub fn clear(&self, pid: Pid, start: Address, end: Address) -> io::Result<()> {
        match self.advise(start, end) {
            // There are holes; the rest is done.
            Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => Ok(()),
            // It stops at the first mapping that it cannot age.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                self.clear_mappings(pid, start, end)
            }
            done => done,
        }
    }

    /// The same, a mapping at a time.
    fn clear_mappings(&self, pid: Pid, start: Address, end: Address) -> io::Result<()> {
        for entry in maps(pid)? {
            let (from, to) = overlap(&entry, start, end);
            if from >= to {
                continue;
            }
            match self.advise(from, to) {
                Err(error)
                    if !matches!(
                        error.raw_os_error(),
                        Some(libc::EINVAL | libc::ENOMEM | libc::EFAULT)
                    ) =>
                {
                    return Err(error);
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn advise(&self, start: Address, end: Address) -> io::Result<()> {
        let part = libc::iovec {
            iov_base: std::ptr::without_provenance_mut(start.0 as usize),
            iov_len: (end.0 - start.0) as usize,
        };
        // SAFETY: the vector has one element and lives until the call is over; the memory that it names is another process's,
        // of which the advice changes no content.
        let done = unsafe {
            libc::syscall(
                libc::SYS_process_madvise,
                self.process.as_fd().as_raw_fd(),
                &raw const part,
                1usize,
                libc::MADV_COLD,
                0u32,
            )
        };
        match done {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }
}

fn overlap(entry: &MapEntry, start: Address, end: Address) -> (Address, Address) {
    let past = entry.address + entry.bytes;
    (entry.address.max(start), past.min(end))
}

/// What is resident of a process, by a counter that the kernel keeps for each CPU and adds up late.
///
/// # Errors
/// Where the process has ended.
pub fn resident_bytes(pid: Pid) -> io::Result<Bytes> {
    let text = std::fs::read_to_string(crate::shared_folder(pid).join("statm"))?;
    let pages = text.split_whitespace().nth(1);
    let pages: u64 = pages.and_then(|n| n.parse().ok()).unwrap_or(0);
    Ok(Bytes(pages.saturating_mul(varve_model::PAGE_BYTES)))
}
