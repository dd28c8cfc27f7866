//! The library's private heap: power-of-two classes over chunks of its own mappings.
//!
//! What it has mapped it keeps: the recorder and the handler know that memory as the library's, and must not take for it what
//! the program maps there afterwards.
//!
//! It serves few, long-lived objects (unwinder tables, start routines of threads), so simplicity
//! wins over density. No signal reaches a thread that holds the spin lock, so that it is not waited for by
//! that thread, nor kept by a handler that jumps away.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::ptr::{self, null_mut};
use std::sync::atomic::{AtomicBool, Ordering};

use varve_preload_abi::OwnMemory;

use crate::{process, sys};

const CHUNK: usize = 1 << 20;
const MIN_BYTES: usize = 16;
/// The largest blocks that are cut from chunks; larger ones are mappings of their own.
const MAX_CUT: usize = CHUNK / 2;
/// Up to 2^47 bytes, more than a program can have.
const CLASSES: usize = 44;

struct Inner {
    /// Freed blocks per class, linked through their first word.
    free: [*mut u8; CLASSES],
    next: *mut u8,
    left: usize,
}

/// The private heap.
pub(crate) struct Arena {
    locked: AtomicBool,
    inner: UnsafeCell<Inner>,
}

// SAFETY: `inner` is only reached with the lock held.
unsafe impl Sync for Arena {}

impl Arena {
    pub(crate) const fn new() -> Self {
        Arena {
            locked: AtomicBool::new(false),
            inner: UnsafeCell::new(Inner {
                free: [null_mut(); CLASSES],
                next: null_mut(),
                left: 0,
            }),
        }
    }

    /// In a forked child, before anything else uses the arena: a thread that does not exist here
    /// may have held the lock, with the lists half changed. Forgets them; the memory stays.
    pub(crate) fn recover_after_fork(&self) {
        if self.locked.load(Ordering::Acquire) {
            // SAFETY: the child has one thread, and it is not within the arena (see the module).
            unsafe {
                *self.inner.get() = Inner {
                    free: [null_mut(); CLASSES],
                    next: null_mut(),
                    left: 0,
                };
            }
            self.locked.store(false, Ordering::Release);
        }
    }

    fn with<T>(&self, work: impl FnOnce(&mut Inner) -> T) -> T {
        sys::without_signals(|| {
            while self
                .locked
                .compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed)
                .is_err()
            {
                sys::yield_now();
            }
            // SAFETY: the lock is held.
            let result = work(unsafe { &mut *self.inner.get() });
            self.locked.store(false, Ordering::Release);
            result
        })
    }
}

/// The class of a layout and its block size; `None` for what is too large.
fn class_of(layout: Layout) -> Option<(usize, usize)> {
    let bytes = layout
        .size()
        .max(layout.align())
        .max(MIN_BYTES)
        .checked_next_power_of_two()?;
    let class = (bytes / MIN_BYTES).trailing_zeros() as usize;
    (class < CLASSES).then_some((class, bytes))
}

// SAFETY: blocks are disjoint, at least as large as asked for, and aligned to their power-of-two
// size as far as a page, because chunks are cut at multiples of the block's size.
unsafe impl GlobalAlloc for Arena {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some((class, bytes)) = class_of(layout) else {
            return null_mut();
        };
        let mut fresh = None;
        let block = self.with(|inner| {
            let head = inner.free[class];
            if !head.is_null() {
                // SAFETY: a freed block holds the next one's address in its first word.
                inner.free[class] = unsafe { head.cast::<*mut u8>().read() };
                return head;
            }
            if bytes > MAX_CUT {
                fresh = sys::map_anonymous(bytes).map(|block| (block, bytes));
                return fresh.map_or(null_mut(), |(block, _)| block.as_ptr());
            }
            let mut skip = inner.next.align_offset(bytes);
            if inner.next.is_null() || skip.saturating_add(bytes) > inner.left {
                // Where a limit of the program's leaves no more, as little as is needed.
                let least = (2 * bytes).max(4096);
                let Some((chunk, size)) = [CHUNK, least]
                    .into_iter()
                    .find_map(|size| Some((sys::map_anonymous(size)?, size)))
                else {
                    return null_mut();
                };
                fresh = Some((chunk, size));
                inner.next = chunk.as_ptr();
                inner.left = size;
                skip = inner.next.align_offset(bytes);
                if skip.saturating_add(bytes) > size {
                    return null_mut();
                }
            }
            // SAFETY: `skip + bytes` was checked to lie within the chunk.
            let block = unsafe { inner.next.add(skip) };
            // SAFETY: as above.
            inner.next = unsafe { block.add(bytes) };
            inner.left -= skip + bytes;
            block
        });
        if let Some((chunk, size)) = fresh {
            process::note_own_memory(chunk, size, OwnMemory::Heap);
        }
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let Some((class, bytes)) = class_of(layout) else {
            return;
        };
        if bytes > MAX_CUT {
            // SAFETY: nobody needs its content any more; the first word comes afterwards.
            unsafe { sys::discard(block, bytes) };
        }
        self.with(|inner| {
            // SAFETY: the block is free and at least a word long.
            unsafe { ptr::write(block.cast::<*mut u8>(), inner.free[class]) };
            inner.free[class] = block;
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_blocks_stay_mapped_and_come_again() {
        let arena = Arena::new();
        for bytes in [MAX_CUT, MAX_CUT + 1, 3 << 20] {
            let layout = Layout::from_size_align(bytes, 16).unwrap();
            // SAFETY: a layout of some size; the block is written within it, and read while it is free: the list is in its
            // first word alone.
            unsafe {
                let block = arena.alloc(layout);
                assert!(!block.is_null());
                block.write_bytes(7, bytes);
                arena.dealloc(block, layout);
                let is_large = bytes > MAX_CUT;
                assert_eq!(block.add(bytes - 1).read(), if is_large { 0 } else { 7 });
                assert_eq!(arena.alloc(layout), block);
            }
        }
    }
}
