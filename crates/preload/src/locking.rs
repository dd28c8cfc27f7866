//! `mlockall(2)`: what a program locks is its own memory, and none of this library's.
//!
//! The kernel compares all of the address space with the limit of locked memory (RLIMIT_MEMLOCK), and brings every page of it into memory:
//! with this library's ring and heap a program would be refused what it is given alone, and with the tables of operations it would grow by
//! a gigabyte.

use crate::handler::maps;
use crate::operations::room;
use crate::{budget, own, process, real, sys};
use std::ffi::{c_int, c_long};

/// # Safety
/// As for the C library's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn mlockall(flags: c_int) -> c_int {
    // SAFETY: the caller's argument, passed on.
    let call = |flags| unsafe { real::get().mlockall(flags) };
    // A confined program may be ended for calls that it does not make itself.
    if process::is_confined() {
        return call(flags);
    }
    let brings_in = flags & libc::MCL_ONFAULT == 0;
    if brings_in {
        real::keeping_errno(room::will_be_locked);
    }
    let mut result = call(flags);
    // SAFETY: the C library's address of this thread's errno is always valid.
    let is_refused = || unsafe { *own::errno() } == libc::ENOMEM;
    if result != 0 && flags & libc::MCL_CURRENT != 0 && is_refused() {
        if real::keeping_errno(|| lock_all_but_own(flags)) {
            // This sets what is mapped later alone.
            result = match flags & !libc::MCL_CURRENT {
                later if later & libc::MCL_FUTURE != 0 => call(later),
                _ => 0,
            };
        }
    } else if result == 0 && flags & libc::MCL_CURRENT != 0 {
        real::keeping_errno(|| each_own(|start, end| unlock(start, end - start)));
    }
    if result == 0 {
        process::set_locking(match (flags & libc::MCL_FUTURE != 0, brings_in) {
            (false, _) => 0,
            (true, false) => process::LOCKS,
            (true, true) => process::LOCKS_AND_BRINGS_IN,
        });
    }
    result
}

/// The same by `syscall(2)`; its first argument is the number.
pub(crate) extern "C" fn by_number(_: c_long, flags: c_int) -> c_long {
    // SAFETY: the program's argument, passed on.
    c_long::from(unsafe { mlockall(flags) })
}

/// Whether what this library maps is brought into memory as a whole.
pub(crate) fn brings_in() -> bool {
    process::locking() == process::LOCKS_AND_BRINGS_IN
}

/// Whether it is locked, then or as it is touched.
pub(crate) fn locks_future() -> bool {
    process::locking() != 0
}

/// This library has mapped memory for itself.
pub(crate) fn mapped(address: u64, bytes: u64) {
    if locks_future() && !process::is_confined() {
        unlock(address, bytes);
    }
}

fn unlock(address: u64, bytes: u64) {
    let range = [address as usize, bytes as usize, 0, 0, 0, 0];
    // SAFETY: changes no content, of memory that is this library's.
    unsafe { sys::call(libc::SYS_munlock, range) };
}

/// Hands on where this library's own memory begins and ends, its code and variables included.
fn each_own(mut each: impl FnMut(u64, u64)) {
    let image = own::bounds();
    each(image.start & !0xfff, image.end.next_multiple_of(4096));
    let (at, bytes) = process::ring_memory();
    if bytes > 0 {
        each(at, at + bytes);
    }
    process::each_own_memory(|at, bytes| each(at, at + bytes));
}

/// The first of this library's ranges that has a part between two addresses.
fn next_own(from: u64, until: u64) -> Option<(u64, u64)> {
    let mut first: Option<(u64, u64)> = None;
    each_own(|start, end| {
        let lies_there = start < until && end > from && start < end;
        if lies_there && first.is_none_or(|(before, _)| start < before) {
            first = Some((start, end));
        }
    });
    first
}

/// Locks what is the program's of what is mapped, where the limit would have let it have that alone; whether it did.
fn lock_all_but_own(flags: c_int) -> bool {
    let Some((limit, used)) =
        sys::limit(libc::RLIMIT_MEMLOCK).zip(budget::used().map(|[space, _]| space))
    else {
        return false;
    };
    let mut own = 0;
    each_own(|start, end| own += end - start);
    if used.saturating_sub(own) > limit {
        return false;
    }
    let Some(file) = sys::ReadFile::open(c"/proc/self/maps") else {
        return false;
    };
    maps::each(&file, |entry| {
        let (mut at, end) = (entry.range.start, entry.range.end);
        while at < end {
            let (next, skipped) = next_own(at, end).unwrap_or((end, end));
            lock(at, next.clamp(at, end), flags);
            at = skipped.max(at);
        }
    });
    true
}

/// Locks a range. Of what cannot be brought into memory, as what may not be read, the kernel says so here and not to `mlockall`.
fn lock(start: u64, end: u64, flags: c_int) {
    const MLOCK_ONFAULT: usize = 1;
    let how = match flags & libc::MCL_ONFAULT {
        0 => 0,
        _ => MLOCK_ONFAULT,
    };
    if start < end {
        let range = [start as usize, (end - start) as usize, how, 0, 0, 0];
        // SAFETY: changes no content.
        unsafe { sys::call(libc::SYS_mlock2, range) };
    }
}
