//! The library's private heap: power-of-two classes over chunks of its own mappings.
//!
//! What it has mapped it keeps: the recorder and the handler know that memory as the library's, and must not take for it what
//! the program maps there afterwards.
//!
//! It serves few, long-lived objects (unwinder tables, start routines of threads), so simplicity
//! wins over density. No signal reaches a thread that holds the spin lock, so that it is not waited for by
//! that thread, nor kept by a handler that jumps away.
//!
//! Where the program has used up what it may have (RLIMIT_AS, RLIMIT_DATA), no chunk can be mapped, and Rust ends the process for an allocation
//! that fails. Work that needs much memory asks [`Arena::has_room`] first; what needs a little has a reserve in this library's variables.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::ptr::{self, NonNull, null_mut};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use varve_preload_abi::OwnMemory;

use crate::{budget, process, sys};

const CHUNK: usize = 1 << 20;
const MIN_BYTES: usize = 16;
/// The largest blocks that are cut from chunks; larger ones are mappings of their own.
const MAX_CUT: usize = CHUNK / 2;
/// Up to 2^47 bytes, more than a program can have.
const CLASSES: usize = 44;
/// What a walk of a call stack may need: a slot, and tables of modules that grow.
const ROOM: usize = 256 << 10;
const RESERVE_BYTES: usize = 512 << 10;

struct Inner {
    /// Freed blocks per class, linked through their first word.
    free: [*mut u8; CLASSES],
    next: *mut u8,
    left: usize,
    reserve_left: usize,
}

/// Memory for what must be had where nothing can be mapped.
#[repr(align(4096))]
struct Reserve(UnsafeCell<[u8; RESERVE_BYTES]>);

// SAFETY: each part is handed out once, with the arena's lock held.
unsafe impl Sync for Reserve {}

static RESERVE: Reserve = Reserve(UnsafeCell::new([0; RESERVE_BYTES]));

/// The private heap.
pub(crate) struct Arena {
    locked: AtomicBool,
    /// Bytes of the chunk that are left, readable without the lock.
    left: AtomicUsize,
    inner: UnsafeCell<Inner>,
}

// SAFETY: `inner` is only reached with the lock held.
unsafe impl Sync for Arena {}

impl Arena {
    pub(crate) const fn new() -> Self {
        Arena {
            locked: AtomicBool::new(false),
            left: AtomicUsize::new(0),
            inner: UnsafeCell::new(Inner {
                free: [null_mut(); CLASSES],
                next: null_mut(),
                left: 0,
                reserve_left: RESERVE_BYTES,
            }),
        }
    }

    /// In a forked child, before anything else uses the arena: a thread that does not exist here
    /// may have held the lock, with the lists half changed. Forgets them; the memory stays.
    pub(crate) fn recover_after_fork(&self) {
        if self.locked.load(Ordering::Acquire) {
            // SAFETY: the child has one thread, and it is not within the arena (see the module).
            let inner = unsafe { &mut *self.inner.get() };
            *inner = Inner {
                free: [null_mut(); CLASSES],
                next: null_mut(),
                left: 0,
                reserve_left: inner.reserve_left,
            };
            self.left.store(0, Ordering::Relaxed);
            self.locked.store(false, Ordering::Release);
        }
    }

    /// Whether there is memory for a walk of a call stack; maps a chunk where there is little left.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.left.load(Ordering::Relaxed) >= ROOM || self.make_room()
    }

    #[cold]
    fn make_room(&self) -> bool {
        let mut fresh = None;
        let has_room = self.with(|inner| {
            if inner.left < ROOM {
                fresh = inner.map_chunk([CHUNK, ROOM]);
            }
            inner.left >= ROOM
        });
        note(fresh);
        has_room
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
            let inner = unsafe { &mut *self.inner.get() };
            let result = work(inner);
            self.left.store(inner.left, Ordering::Relaxed);
            self.locked.store(false, Ordering::Release);
            result
        })
    }
}

impl Inner {
    /// A block of the chunk, aligned to its size; none where it does not fit.
    fn cut(&mut self, bytes: usize) -> Option<*mut u8> {
        let skip = self.next.align_offset(bytes);
        if self.next.is_null() || skip.saturating_add(bytes) > self.left {
            return None;
        }
        // SAFETY: `skip + bytes` was checked to lie within the chunk.
        let block = unsafe { self.next.add(skip) };
        // SAFETY: as above.
        self.next = unsafe { block.add(bytes) };
        self.left -= skip + bytes;
        Some(block)
    }

    /// Maps another chunk, of the first of these sizes that can be had. Only the second may be a large part of what a limit of the program's leaves.
    fn map_chunk(&mut self, sizes: [usize; 2]) -> Option<(NonNull<u8>, usize)> {
        let map = |bytes| Some((sys::map_anonymous(bytes)?, bytes));
        let first = usize::from(!budget::permits(sizes[0]));
        let fresh = sizes.into_iter().skip(first).find_map(map)?;
        (self.next, self.left) = (fresh.0.as_ptr(), fresh.1);
        Some(fresh)
    }

    /// A block of the reserve, from its end down, aligned to its size as far as a page; null where it is used up.
    fn of_reserve(&mut self, bytes: usize) -> *mut u8 {
        let Some(at) = self.reserve_left.checked_sub(bytes) else {
            return null_mut();
        };
        self.reserve_left = at & !(bytes.min(4096) - 1);
        // SAFETY: within the reserve.
        unsafe { RESERVE.0.get().cast::<u8>().add(self.reserve_left) }
    }
}

/// A chunk is the library's own memory from now on.
fn note(fresh: Option<(NonNull<u8>, usize)>) {
    if let Some((chunk, bytes)) = fresh {
        process::note_own_memory(chunk, bytes, OwnMemory::Heap);
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
// size as far as a page, because chunks and reserve are cut at multiples of the block's size.
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
            inner.cut(bytes).unwrap_or_else(|| {
                // Where a limit of the program's leaves no more, as little as is needed.
                fresh = inner.map_chunk([CHUNK, (2 * bytes).max(4096)]);
                match fresh {
                    Some(_) => inner.cut(bytes).unwrap_or(null_mut()),
                    None => inner.of_reserve(bytes),
                }
            })
        });
        note(fresh);
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
    fn blocks_of_the_reserve_are_aligned_and_disjoint_until_it_is_used_up() {
        let arena = Arena::new();
        let mut inner = arena.inner.into_inner();
        let start = RESERVE.0.get() as usize;
        let mut before = start + RESERVE_BYTES;
        for bytes in [16, 64 << 10, 32, 4096, 128 << 10, 16, 256 << 10] {
            let block = inner.of_reserve(bytes) as usize;
            assert!(block >= start && block + bytes <= before, "{bytes}");
            assert_eq!(block % bytes.min(4096), 0);
            before = block;
        }
        assert!(inner.of_reserve(256 << 10).is_null());
        assert!(!inner.of_reserve(16).is_null());
    }

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
