//! The fault handler's own memory.
//!
//! It is mapped before the handler begins, and known as the library's from then on: were it mapped later, a program that locks its memory
//! meanwhile (`mlockall`) would lock it too, and be refused memory of its own.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

use varve_preload_abi::OwnMemory;

use super::mover::PAGE;
use super::{backlog, ranges, resolve, steady};
use crate::{process, sys};

/// What a handler has as long as it lives.
const BYTES: usize = backlog::BYTES + steady::BYTES + resolve::SETS * ranges::BYTES;

/// What is left of it for the next handler.
static NEXT: AtomicUsize = AtomicUsize::new(0);
static END: AtomicUsize = AtomicUsize::new(0);

/// Maps it for a handler that is about to begin; whether it could be.
pub(super) fn prepare() -> bool {
    let Some(memory) = sys::map_anonymous(BYTES) else {
        return false;
    };
    process::note_own_memory(memory, BYTES, OwnMemory::Table);
    let at = memory.as_ptr() as usize;
    NEXT.store(at, Ordering::Relaxed);
    END.store(at + BYTES, Ordering::Release);
    true
}

/// Takes zeroed memory of so many bytes, at the beginning of a page, which stays. In the handler alone.
pub(super) fn take(bytes: usize) -> Option<NonNull<u8>> {
    let bytes = bytes.next_multiple_of(PAGE as usize);
    let at = NEXT.load(Ordering::Relaxed);
    if at + bytes > END.load(Ordering::Acquire) {
        return None;
    }
    NEXT.store(at + bytes, Ordering::Relaxed);
    NonNull::new(at as *mut u8)
}
