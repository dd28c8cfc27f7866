//! Memory for what the C library allocates while it works for this library.
//!
//! glibc's `pthread_getattr_np` allocates. From the program's heap that would be the first allocation of each thread, for which glibc makes an arena:
//! the program never asked for it, and the system calls lie outside of the program's operations. The entry points of [`crate::heap`] take such
//! blocks from here instead.

use std::cell::{Cell, UnsafeCell};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{Ordering, compiler_fence};

use varve_preload_abi::operations::COUNTING;

use crate::{sys, thread};

type Pointer = *mut c_void;

/// Enough for the sets of 8,192 processors that glibc allocates, one after the other until one is large enough.
const BYTES: usize = 4096;
/// Bytes before each piece, with its size. Pieces are aligned to it.
const HEADER: usize = 16;

/// Memory of a stack frame. Pieces are given out from its beginning on, and never taken back.
#[repr(C, align(16))]
struct Scratch {
    memory: UnsafeCell<[u8; BYTES]>,
    used: Cell<usize>,
}

impl Scratch {
    fn at(&self) -> usize {
        self.memory.get() as usize
    }

    fn holds(&self, object: Pointer) -> bool {
        (object as usize).wrapping_sub(self.at()) < BYTES
    }

    /// A zeroed piece; none where there is no room.
    fn take(&self, bytes: usize) -> Option<Pointer> {
        let start = self.used.get() + HEADER;
        let end = start.checked_add(bytes)?.checked_next_multiple_of(HEADER)?;
        if end > BYTES {
            return None;
        }
        self.used.set(end);
        let memory = self.memory.get().cast::<u8>();
        // SAFETY: `start - HEADER..end` is within the memory, and was given to nobody before.
        unsafe {
            memory.add(start - HEADER).cast::<usize>().write(bytes);
            Some(memory.add(start).cast())
        }
    }

    /// A larger piece in place of one of these; null where there is no room.
    fn take_again(&self, old: Pointer, bytes: usize) -> Pointer {
        let Some(fresh) = self.take(bytes) else {
            return null_mut();
        };
        // SAFETY: `take` left the size in front of the old piece; the new one has `bytes`.
        unsafe {
            let size = old.cast::<u8>().sub(HEADER).cast::<usize>().read();
            std::ptr::copy_nonoverlapping(old.cast::<u8>(), fresh.cast::<u8>(), size.min(bytes));
        }
        fresh
    }
}

/// The calling thread's, while the C library works for this library.
#[inline]
fn current() -> Option<&'static Scratch> {
    let at = thread::current().scratch.get() as *const Scratch;
    // SAFETY: null, or in the frame of `within` that is active on this thread.
    unsafe { at.as_ref() }
}

/// Whether the calling thread's allocations are the C library's, for this library.
#[inline]
pub(crate) fn is_used() -> bool {
    current().is_some()
}

/// Memory for such an allocation; none where it is the program's, or there is no room.
#[inline]
pub(crate) fn allocated(bytes: usize) -> Option<Pointer> {
    current()?.take(bytes)
}

/// The same for a reallocation; null where there is no room for what cannot be another allocator's.
#[inline]
pub(crate) fn reallocated(old: Pointer, bytes: usize) -> Option<Pointer> {
    let scratch = current()?;
    match scratch.holds(old) {
        true => Some(scratch.take_again(old, bytes)),
        false if old.is_null() => scratch.take(bytes),
        false => None,
    }
}

/// Whether a block is such memory, which is not to be freed.
#[inline]
pub(crate) fn holds(object: Pointer) -> bool {
    current().is_some_and(|scratch| scratch.holds(object))
}

/// Runs a call of the C library's that may allocate, in a process that is not confined. No handler of the program's comes in between, whose allocations
/// would be taken for the C library's. What the kernel does meanwhile is this library's.
#[inline(never)]
pub(crate) fn within<T>(call: impl FnOnce() -> T) -> T {
    let scratch = Scratch {
        memory: UnsafeCell::new([0; BYTES]),
        used: Cell::new(0),
    };
    let place = &raw const scratch as usize;
    let result = sys::without_signals(|| {
        let thread = thread::current();
        let running = &thread.running;
        let (word, stack) = (running.word.get(), running.stack.get());
        running.stack.set(place as u64);
        compiler_fence(Ordering::SeqCst);
        running.word.set(COUNTING);
        thread.scratch.set(place);
        compiler_fence(Ordering::SeqCst);
        let result = call();
        compiler_fence(Ordering::SeqCst);
        thread.scratch.set(0);
        running.word.set(word);
        compiler_fence(Ordering::SeqCst);
        running.stack.set(stack);
        result
    });
    std::hint::black_box(&scratch);
    result
}
