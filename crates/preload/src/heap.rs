//! The allocation functions.
//!
//! An end is reported before the real function takes the memory, a beginning after it gave it: another
//! thread cannot get the same address in between, so each address's records are in order.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use varve_preload_abi::AllocKind;

use crate::events::{born, dying};
use crate::real;

type Pointer = *mut c_void;

#[inline]
fn reported(object: Pointer, bytes: usize, kind: AllocKind) -> Pointer {
    if !object.is_null() {
        born(object as u64, bytes, kind);
    }
    object
}

/// # Safety
/// As for the C library's function of this name; so for all below.
#[unsafe(no_mangle)]
unsafe extern "C" fn malloc(bytes: usize) -> Pointer {
    // SAFETY: the caller's arguments, passed on; so in all functions below.
    reported(
        unsafe { real::get().malloc(bytes) },
        bytes,
        AllocKind::Malloc,
    )
}

/// # Safety
/// See [`malloc`].
#[unsafe(no_mangle)]
unsafe extern "C" fn calloc(count: usize, bytes: usize) -> Pointer {
    // SAFETY: see `malloc`.
    let object = unsafe { real::get().calloc(count, bytes) };
    reported(object, count.wrapping_mul(bytes), AllocKind::Calloc)
}

/// # Safety
/// See [`malloc`].
#[unsafe(no_mangle)]
unsafe extern "C" fn free(object: Pointer) {
    if real::is_early(object) {
        return;
    }
    dying(object as u64);
    // SAFETY: see `malloc`.
    unsafe { real::get().free(object) };
}

/// # Safety
/// See [`malloc`].
#[unsafe(no_mangle)]
unsafe extern "C" fn realloc(old: Pointer, bytes: usize) -> Pointer {
    // SAFETY: see `malloc`.
    unsafe { again(old, bytes, AllocKind::Realloc) }
}

/// # Safety
/// See [`malloc`].
#[unsafe(no_mangle)]
unsafe extern "C" fn reallocarray(old: Pointer, count: usize, bytes: usize) -> Pointer {
    let Some(total) = count.checked_mul(bytes) else {
        // SAFETY: see `malloc`. The real function refuses.
        return unsafe { real::get().reallocarray(old, count, bytes) };
    };
    // The C library's own would call `realloc` through this library, and the object would be reported
    // twice.
    // SAFETY: see `malloc`.
    unsafe { again(old, total, AllocKind::ReallocArray) }
}

/// A reallocation to `bytes`.
unsafe fn again(old: Pointer, bytes: usize, kind: AllocKind) -> Pointer {
    if real::is_early(old) {
        // SAFETY: an ordinary allocation.
        let fresh = unsafe { malloc(bytes) };
        if !fresh.is_null() {
            real::move_early(old, fresh, bytes);
        }
        return fresh;
    }
    let was_recorded = !old.is_null() && dying(old as u64);
    // SAFETY: see `malloc`.
    let object = unsafe { real::get().realloc(old, bytes) };
    if object.is_null() && bytes != 0 && was_recorded {
        // It failed, and the old object lives on, under a size that is known only roughly.
        // SAFETY: the object is alive.
        let usable = unsafe { real::get().malloc_usable_size(old) };
        reported(old, usable, kind);
        return object;
    }
    reported(object, bytes, kind)
}

/// # Safety
/// See [`malloc`].
#[unsafe(no_mangle)]
unsafe extern "C" fn memalign(alignment: usize, bytes: usize) -> Pointer {
    // SAFETY: see `malloc`.
    reported(
        unsafe { real::get().memalign(alignment, bytes) },
        bytes,
        AllocKind::Memalign,
    )
}

/// # Safety
/// See [`malloc`].
#[unsafe(no_mangle)]
unsafe extern "C" fn aligned_alloc(alignment: usize, bytes: usize) -> Pointer {
    // SAFETY: see `malloc`.
    reported(
        unsafe { real::get().aligned_alloc(alignment, bytes) },
        bytes,
        AllocKind::AlignedAlloc,
    )
}

/// # Safety
/// See [`malloc`].
#[unsafe(no_mangle)]
unsafe extern "C" fn posix_memalign(result: *mut Pointer, alignment: usize, bytes: usize) -> c_int {
    let mut object = null_mut();
    // SAFETY: see `malloc`; the real function writes to a local of the right type.
    let status = unsafe { real::get().posix_memalign(&raw mut object, alignment, bytes) };
    if status == 0 {
        // SAFETY: the caller's pointer; on failure it stays untouched, as the manual promises.
        unsafe { *result = reported(object, bytes, AllocKind::PosixMemalign) };
    }
    status
}

/// # Safety
/// See [`malloc`].
#[unsafe(no_mangle)]
unsafe extern "C" fn valloc(bytes: usize) -> Pointer {
    // SAFETY: see `malloc`.
    reported(
        unsafe { real::get().valloc(bytes) },
        bytes,
        AllocKind::Valloc,
    )
}

/// # Safety
/// See [`malloc`].
#[unsafe(no_mangle)]
unsafe extern "C" fn pvalloc(bytes: usize) -> Pointer {
    // SAFETY: see `malloc`.
    reported(
        unsafe { real::get().pvalloc(bytes) },
        bytes,
        AllocKind::Pvalloc,
    )
}
