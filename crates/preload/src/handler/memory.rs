//! The fault handler's own memory.
//!
//! It is mapped before the handler begins, and known as the library's from then on: were it mapped later, a program that locks its memory
//! meanwhile (`mlockall`) would lock it too, and be refused memory of its own.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use varve_preload_abi::OwnMemory;

use super::launch::STACK_BYTES;
use super::mover::PAGE;
use super::{backlog, ranges, resolve, steady};
use crate::{process, sys};

/// What a handler has as long as it lives: its stack, and the rest above it.
const BYTES: usize = STACK_BYTES + backlog::BYTES + steady::BYTES + resolve::SETS * ranges::BYTES;

/// Where it is, and in which process.
static START: AtomicUsize = AtomicUsize::new(0);
static OWNER: AtomicU32 = AtomicU32::new(0);
/// What is left of it, of which the handler takes its parts.
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// Has it ready for a handler that is about to begin: the bottom of its stack.
pub(super) fn prepare() -> Option<NonNull<u8>> {
    let memory = inherited().or_else(map)?;
    let at = memory.as_ptr() as usize;
    NEXT.store(at + STACK_BYTES, Ordering::Relaxed);
    OWNER.store(sys::process_id(), Ordering::Relaxed);
    START.store(at, Ordering::Release);
    Some(memory)
}

/// The copy that a forked child has of what its parent's handler has, and that nobody uses: else each generation would have one more.
fn inherited() -> Option<NonNull<u8>> {
    let memory = NonNull::new(START.load(Ordering::Acquire) as *mut u8)?;
    let is_copy = OWNER.load(Ordering::Relaxed) != sys::process_id();
    // SAFETY: a mapping of the library's own, whose only user is a handler of another process.
    (is_copy && unsafe { sys::discard(memory.as_ptr(), BYTES) }).then_some(memory)
}

fn map() -> Option<NonNull<u8>> {
    let memory = sys::map_anonymous(BYTES)?;
    process::note_own_memory(memory, BYTES, OwnMemory::Table);
    Some(memory)
}

/// Takes zeroed memory of so many bytes, at the beginning of a page, which stays. In the handler alone.
pub(super) fn take(bytes: usize) -> Option<NonNull<u8>> {
    let bytes = bytes.next_multiple_of(PAGE as usize);
    let at = NEXT.load(Ordering::Relaxed);
    if at + bytes > START.load(Ordering::Acquire) + BYTES {
        return None;
    }
    NEXT.store(at + bytes, Ordering::Relaxed);
    NonNull::new(at as *mut u8)
}
