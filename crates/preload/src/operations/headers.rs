//! How much of a block can be used.
//!
//! The allocator knows, and `malloc_usable_size` says it. glibc's keeps the size in the word before the block, with three flags in its low bits, and
//! has to look at the next block's as well before it says it, which costs as much as the whole allocation where that is in no cache. Here the
//! word is read at once, but only where the allocator is the C library's and the word and the function have agreed on
//! the first [`TRIALS`] blocks of the process; blocks with a mapping of their own are asked for always.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::real;

/// So many blocks must agree.
const TRIALS: u32 = 256;
/// In [`AGREED`]: the function is to be asked.
const ASK: u32 = u32::MAX;
/// In [`AGREED`]: whose the allocator is is not known; ask.
const UNKNOWN: u32 = u32::MAX - 1;
/// How many have agreed so far; [`TRIALS`]: enough.
static AGREED: AtomicU32 = AtomicU32::new(UNKNOWN);

/// The flag of a block with a mapping of its own.
const MAPPED: usize = 2;
const FLAGS: usize = 7;
const WORD: usize = size_of::<usize>();

/// The allocator is the C library's own.
pub(super) fn may_have() {
    let order = Ordering::Relaxed;
    let _ = AGREED.compare_exchange(UNKNOWN, 0, order, order);
}

/// Bytes of a block that is alive.
#[inline(always)]
pub(super) fn usable(object: *mut c_void) -> usize {
    if AGREED.load(Ordering::Relaxed) == TRIALS {
        let header = header(object);
        if header & MAPPED == 0 {
            return (header & !FLAGS).wrapping_sub(WORD);
        }
    }
    asked(object)
}

/// The word before a block.
#[inline(always)]
fn header(object: *mut c_void) -> usize {
    // SAFETY: the block is alive, and one of glibc's: it has a word before it.
    unsafe { object.cast::<usize>().sub(1).read() }
}

#[inline(never)]
fn asked(object: *mut c_void) -> usize {
    // SAFETY: the program's block, which is alive.
    let usable = unsafe { real::get().malloc_usable_size(object) };
    let agreed = AGREED.load(Ordering::Relaxed);
    if agreed < TRIALS {
        let header = header(object);
        let next = match header & MAPPED != 0 {
            true => agreed,
            false if (header & !FLAGS).checked_sub(WORD) == Some(usable) => agreed + 1,
            false => ASK,
        };
        let order = Ordering::Relaxed;
        let _ = AGREED.compare_exchange(agreed, next, order, order);
    }
    usable
}
