//! Taking pages off the lists of single processors, on which they cannot be made to look untouched.

use super::mover::PAGE;
use super::place::range_of;
use super::protect::advise;
use super::ranges::Range;
use crate::sys;

/// Processors that are asked at most: moving to one takes some 50 µs.
const MAX_PROCESSORS: usize = 64;
/// Words of a set of processors: as many as any kernel has (`CONFIG_NR_CPUS` up to 8,192).
const WORDS: usize = 128;

/// Has each processor put the pages that it has handed out last on the list of all. It keeps some 30 of them for itself, and `MADV_COLD` passes over
/// what is on no list of all (`mm/madvise.c`, `madvise_cold_or_pageout_pte_range`), but for those of the processor on which it is called
/// (`lru_add_drain` in `madvise_cold`). `own` is memory of the handler's.
pub(super) fn drain(own: Range) {
    let mut before = [0u64; WORDS];
    let set = before.as_mut_ptr() as usize;
    // SAFETY: the kernel writes at most as many bytes as the set has; it is of the calling thread.
    let bytes = unsafe {
        let arguments = [0, size_of_val(&before), set, 0, 0, 0];
        sys::call(libc::SYS_sched_getaffinity, arguments)
    };
    let Ok(bytes) = usize::try_from(bytes) else {
        return;
    };
    let mut has_moved = false;
    for processor in 0..(bytes * 8).min(MAX_PROCESSORS) {
        let mut one = [0u64; WORDS];
        if let Some(word) = one.get_mut(processor / 64) {
            *word = 1 << (processor % 64);
        }
        if stay_on(&one, bytes) {
            advise(range_of(own.start, PAGE), libc::MADV_COLD);
            has_moved = true;
        }
    }
    if has_moved {
        stay_on(&before, bytes);
    }
}

/// Has the calling thread run on these processors alone; whether it may.
fn stay_on(processors: &[u64; WORDS], bytes: usize) -> bool {
    let set = processors.as_ptr() as usize;
    // SAFETY: the kernel reads so many bytes of the set, which has as many; it is of the calling thread.
    let done = unsafe { sys::call(libc::SYS_sched_setaffinity, [0, bytes, set, 0, 0, 0]) };
    done == 0
}
