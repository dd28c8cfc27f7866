//! What all processes of a recording share: the claims of intervals and the stamps of first accesses.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use varve_preload_abi::clock::of_machine;

use varve_qemu_counter_abi::layout as at;

static BASE: AtomicPtr<u8> = AtomicPtr::new(null_mut());
/// Copies of what never changes, so that the shared page is not read for them.
pub(crate) static LENGTH: AtomicU64 = AtomicU64::new(0);
static BLOCK: AtomicU64 = AtomicU64::new(1);

/// Maps the control file of the recording; later ones are the same.
pub(crate) fn open(file: &OwnedFd) -> io::Result<()> {
    if !BASE.load(Ordering::Relaxed).is_null() {
        return Ok(());
    }
    // SAFETY: a new mapping of a file that is as long as this.
    let base = unsafe {
        libc::mmap(
            null_mut(),
            at::CONTROL_BYTES as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    BASE.store(base.cast(), Ordering::Relaxed);
    LENGTH.store(
        word(at::CONTROL_LENGTH).load(Ordering::Relaxed),
        Ordering::Relaxed,
    );
    BLOCK.store(
        word(at::CONTROL_BLOCK).load(Ordering::Relaxed).max(1),
        Ordering::Relaxed,
    );
    Ok(())
}

/// A word of the control file; its first page is there from the beginning.
fn word(offset: u64) -> &'static AtomicU64 {
    // SAFETY: the mapping is never taken away, and is longer than any offset that is asked for.
    unsafe { &*BASE.load(Ordering::Relaxed).add(offset as usize).cast() }
}

pub(crate) fn now() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is writable.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    of_machine(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// A time that nobody else was given and that is later than all that were given before.
pub(crate) fn stamp() -> u64 {
    let now = now();
    let last = word(at::CONTROL_STAMP);
    let given = last.fetch_update(Ordering::AcqRel, Ordering::Acquire, |last| {
        Some(now.max(last + 1))
    });
    given.map_or(now, |last| now.max(last + 1))
}

/// The accesses that a thread may make next: how many, and in which interval.
pub(crate) fn claim() -> (u64, u64) {
    let length = LENGTH.load(Ordering::Relaxed);
    let block = BLOCK.load(Ordering::Relaxed);
    let from = word(at::CONTROL_CLAIMED).fetch_add(block, Ordering::AcqRel);
    let interval = (from / length).min(at::MAX_INTERVALS - 1);
    let start = at::CONTROL_STARTS + 8 * interval;
    if reserve_start(start) {
        let now = now();
        let _ = word(start).compare_exchange(0, now, Ordering::AcqRel, Ordering::Acquire);
    }
    (block, interval)
}

/// Whether the page of that start can be written: on a full disk it cannot, and writing would end the target.
fn reserve_start(offset: u64) -> bool {
    static RESERVED: AtomicU64 = AtomicU64::new(0);
    let page = offset >> 12;
    if RESERVED.load(Ordering::Relaxed) >= page {
        return true;
    }
    let reserved = crate::file::populate(BASE.load(Ordering::Relaxed), page << 12, 4096);
    if reserved {
        RESERVED.fetch_max(page, Ordering::Relaxed);
    }
    reserved
}

/// Counts a process that could not make a file of counts.
pub(crate) fn count_uncounted() {
    word(at::CONTROL_UNCOUNTED).fetch_add(1, Ordering::Relaxed);
}
