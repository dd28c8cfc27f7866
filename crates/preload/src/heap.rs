//! The allocation functions.
//!
//! An end is reported before the real function takes the memory, a beginning after it gave it: another
//! thread cannot get the same address in between, so each address's records are in order.
//!
//! Each entry point is a few instructions ([`entry`]) that note the caller and the stack pointer for [`crate::operations`].

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use varve_preload_abi::AllocKind;
use varve_preload_abi::operations::Operation;

use crate::events::{born, dying, dying_in_place};
use crate::operations::{self, Allocated, Ongoing, room, sampling};
use crate::{placing, process, real, scratch, thread};

type Pointer = *mut c_void;

/// The entry point of a function whose Rust side takes, behind its arguments, the caller's address and the stack pointer there in the two
/// registers that are named.
macro_rules! entry {
    ($($name:ident => $counted:path, $site:literal, $stack:literal;)*) => {$(
        /// # Safety
        /// As for the function of this name.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name() {
            std::arch::naked_asm!(
                concat!("mov ", $site, ", qword ptr [rsp]"),
                concat!("mov ", $stack, ", rsp"),
                "jmp {counted}",
                counted = sym $counted,
            )
        }
    )*};
}
pub(crate) use entry;

entry! {
    malloc => counted_malloc, "rsi", "rdx";
    calloc => counted_calloc, "rdx", "rcx";
    realloc => counted_realloc, "rdx", "rcx";
    reallocarray => counted_reallocarray, "rcx", "r8";
    memalign => counted_memalign, "rdx", "rcx";
    aligned_alloc => counted_aligned_alloc, "rdx", "rcx";
    posix_memalign => counted_posix_memalign, "rcx", "r8";
    valloc => counted_valloc, "rsi", "rdx";
    pvalloc => counted_pvalloc, "rsi", "rdx";
    free => counted_free, "rsi", "rdx";
    free_sized => counted_free_sized, "rdx", "rcx";
    free_aligned_sized => counted_free_aligned_sized, "rcx", "r8";
    malloc_usable_size => counted_usable_size, "rsi", "rdx";
    malloc_trim => counted_trim, "rsi", "rdx";
}

#[inline]
fn reported(object: Pointer, bytes: usize, kind: AllocKind) -> Pointer {
    if !object.is_null() {
        born(object as u64, bytes, kind);
    }
    object
}

/// The same where operations are counted, and objects perhaps not wanted.
#[inline]
fn reported_if_wanted(object: Pointer, bytes: usize, kind: AllocKind) -> Pointer {
    match process::reports_no_objects() {
        true => object,
        false => reported(object, bytes, kind),
    }
}

/// An allocation: the real one, counted and reported.
#[inline(always)]
pub(crate) fn allocate(
    (operation, site, stack): (Operation, u64, u64),
    bytes: usize,
    kind: AllocKind,
    mut real: impl FnMut() -> Pointer,
) -> Pointer {
    if operations::is_off() {
        return match of_scratch(bytes, kind) {
            Some(object) => object,
            None => reported_if_wanted(real(), bytes, kind),
        };
    }
    allocate_counted(operation, site, stack, bytes, kind, real)
}

/// Memory for an allocation of the C library's for this library; none where it is the program's.
#[inline]
fn of_scratch(bytes: usize, kind: AllocKind) -> Option<Pointer> {
    match kind {
        AllocKind::Malloc | AllocKind::Calloc => scratch::allocated(bytes),
        _ => None,
    }
}

/// Apart, for who counts nothing shall not save registers for it.
#[inline(never)]
fn allocate_counted(
    operation: Operation,
    site: u64,
    stack: u64,
    bytes: usize,
    kind: AllocKind,
    mut real: impl FnMut() -> Pointer,
) -> Pointer {
    let Some(mut ongoing) = Ongoing::begin(operation, site, stack) else {
        return uncounted(bytes, kind, real);
    };
    ongoing.start();
    let object = real();
    if has_room_again(object, bytes) {
        ongoing.abandon();
        return reported_if_wanted(real(), bytes, kind);
    }
    let had_inner = ongoing.had_inner();
    match real::is_early(object) {
        true => ongoing.abandon(),
        false => counted(ongoing.allocated(object, bytes, None), object),
    }
    match had_inner {
        true => object,
        false => reported_if_wanted(object, bytes, kind),
    }
}

/// Whether a call that gave nothing is to be made again: the program has got back what this library had of a limited address space. What was refused
/// for its arguments would be refused again.
#[inline]
fn has_room_again(object: Pointer, bytes: usize) -> bool {
    object.is_null() && real::errno() != libc::EINVAL && room::give_back_for(bytes)
}

/// Reports what an allocation that was counted has shown, before it is reported itself: what is an object is not sampled any more.
#[inline(always)]
fn counted(allocated: Allocated, object: Pointer) {
    if allocated.had_other {
        // It was freed by another way.
        dying(object as u64);
    }
    if let Some(sampled) = allocated.sampled {
        sampled.report();
    }
}

/// One that is not counted, or is part of one that is: sampled and reported, unless an entry point within it has done so.
fn uncounted(bytes: usize, kind: AllocKind, mut real: impl FnMut() -> Pointer) -> Pointer {
    if let Some(object) = of_scratch(bytes, kind) {
        return object;
    }
    let inner = &thread::current().inner;
    inner.set(false);
    let mut object = real();
    if has_room_again(object, bytes) {
        object = real();
    }
    match inner.replace(true) {
        true => object,
        false => {
            if let Some(sampled) = sampling::allocated(object, bytes) {
                sampled.report();
            }
            reported_if_wanted(object, bytes, kind)
        }
    }
}

/// A free: reported, then the real one, counted.
#[inline(always)]
pub(crate) fn release(
    (operation, site, stack): (Operation, u64, u64),
    object: Pointer,
    real: impl FnOnce(),
) {
    if real::is_early(object) {
        return;
    }
    if operations::is_off() {
        if scratch::holds(object) {
            return;
        }
        dying(object as u64);
        return real();
    }
    release_counted(operation, site, stack, object, real);
}

/// See [`allocate_counted`].
#[inline(never)]
fn release_counted(
    operation: Operation,
    site: u64,
    stack: u64,
    object: Pointer,
    real: impl FnOnce(),
) {
    let ended = dying(object as u64);
    let Some(mut ongoing) = Ongoing::begin(operation, site, stack) else {
        if !scratch::holds(object) {
            real();
        }
        return;
    };
    let taken = operations::take(object, ended);
    ongoing.start();
    real();
    ongoing.freed(taken);
}

/// # Safety
/// As for the C library's function of this name; so for all below.
unsafe extern "C" fn counted_malloc(bytes: usize, site: u64, stack: u64) -> Pointer {
    // SAFETY: the caller's arguments, passed on; so in all functions below.
    let real = move || unsafe { real::get().malloc(bytes) };
    allocate(
        (Operation::Malloc, site, stack),
        bytes,
        AllocKind::Malloc,
        real,
    )
}

/// # Safety
/// See [`counted_malloc`].
unsafe extern "C" fn counted_calloc(count: usize, bytes: usize, site: u64, stack: u64) -> Pointer {
    // SAFETY: see `counted_malloc`.
    let real = move || unsafe { real::get().calloc(count, bytes) };
    // A product that is too large is refused.
    let total = count.saturating_mul(bytes);
    allocate(
        (Operation::Calloc, site, stack),
        total,
        AllocKind::Calloc,
        real,
    )
}

/// # Safety
/// See [`counted_malloc`].
unsafe extern "C" fn counted_free(object: Pointer, site: u64, stack: u64) {
    // SAFETY: see `counted_malloc`.
    release((Operation::Free, site, stack), object, move || unsafe {
        real::get().free(object);
    });
}

/// # Safety
/// See [`counted_malloc`].
unsafe extern "C" fn counted_free_sized(object: Pointer, bytes: usize, site: u64, stack: u64) {
    // SAFETY: see `counted_malloc`.
    release(
        (Operation::FreeSized, site, stack),
        object,
        move || unsafe {
            real::get().free_sized(object, bytes);
        },
    );
}

/// # Safety
/// See [`counted_malloc`].
unsafe extern "C" fn counted_free_aligned_sized(
    object: Pointer,
    alignment: usize,
    bytes: usize,
    site: u64,
    stack: u64,
) {
    // SAFETY: see `counted_malloc`.
    release(
        (Operation::FreeSized, site, stack),
        object,
        move || unsafe {
            real::get().free_aligned_sized(object, alignment, bytes);
        },
    );
}

/// # Safety
/// See [`counted_malloc`].
unsafe extern "C" fn counted_usable_size(object: Pointer, site: u64, stack: u64) -> usize {
    // SAFETY: see `counted_malloc`.
    let real = || unsafe { real::get().malloc_usable_size(object) };
    match operations::is_off() {
        true => real(),
        false => operations::asked((Operation::UsableSize, site, stack), real),
    }
}

/// # Safety
/// See [`counted_malloc`].
unsafe extern "C" fn counted_trim(pad: usize, site: u64, stack: u64) -> c_int {
    // SAFETY: see `counted_malloc`.
    let real = || unsafe { real::get().malloc_trim(pad) };
    match operations::is_off() {
        true => real(),
        false => operations::asked((Operation::Trim, site, stack), real),
    }
}

/// # Safety
/// See [`counted_malloc`].
unsafe extern "C" fn counted_realloc(old: Pointer, bytes: usize, site: u64, stack: u64) -> Pointer {
    // SAFETY: see `counted_malloc`.
    unsafe {
        again(
            old,
            bytes,
            AllocKind::Realloc,
            (Operation::Realloc, site, stack),
        )
    }
}

/// # Safety
/// See [`counted_malloc`].
unsafe extern "C" fn counted_reallocarray(
    old: Pointer,
    count: usize,
    bytes: usize,
    site: u64,
    stack: u64,
) -> Pointer {
    let call = (Operation::ReallocArray, site, stack);
    let Some(total) = count.checked_mul(bytes) else {
        // SAFETY: see `counted_malloc`. The real function refuses, and the old object lives on.
        let real = move || unsafe { real::get().reallocarray(old, count, bytes) };
        return allocate(call, usize::MAX, AllocKind::ReallocArray, real);
    };
    // The C library's own would call `realloc` through this library, and the object would be reported
    // twice.
    // SAFETY: see `counted_malloc`.
    unsafe { again(old, total, AllocKind::ReallocArray, call) }
}

/// A reallocation to `bytes`.
unsafe fn again(
    old: Pointer,
    bytes: usize,
    kind: AllocKind,
    (operation, site, stack): (Operation, u64, u64),
) -> Pointer {
    if real::is_early(old) {
        // SAFETY: an ordinary allocation.
        let fresh = unsafe { counted_malloc(bytes, site, stack) };
        if !fresh.is_null() {
            real::move_early(old, fresh, bytes);
        }
        return fresh;
    }
    let (ended, place) = match old.is_null() {
        true => (None, None),
        false => dying_in_place(old as u64),
    };
    let mut ongoing = match operations::is_off() {
        true => None,
        false => Ongoing::begin(operation, site, stack),
    };
    if ongoing.is_none()
        && let Some(object) = scratch::reallocated(old, bytes)
    {
        return object;
    }
    let taken = ongoing.as_ref().and_then(|_| operations::take(old, ended));
    if let Some(ongoing) = &mut ongoing {
        ongoing.start();
    }
    // SAFETY: see `counted_malloc`.
    let mut object = unsafe { real::get().realloc(old, bytes) };
    if bytes != 0 && has_room_again(object, bytes) {
        // SAFETY: as above: it has failed, and the old object is alive.
        object = unsafe { real::get().realloc(old, bytes) };
    }
    if let Some(ongoing) = ongoing {
        match real::is_early(object) {
            true => ongoing.abandon(),
            false => counted(ongoing.allocated(object, bytes, taken), object),
        }
    }
    if let Some(number) = place {
        // Another size of what it was, wherever that is now; where it failed the old one lives on.
        let (at, bytes) = match object.is_null() {
            true if bytes == 0 => return object,
            // SAFETY: the old object is alive.
            true => (old, unsafe { real::get().malloc_usable_size(old) }),
            false => (object, bytes),
        };
        placing::moved(at as u64, bytes as u64, number);
        return object;
    }
    if object.is_null() && bytes != 0 && ended.is_some() {
        // It failed, and the old object lives on, under a size that is known only roughly.
        // SAFETY: the object is alive.
        let usable = unsafe { real::get().malloc_usable_size(old) };
        reported_if_wanted(old, usable, kind);
        return object;
    }
    reported_if_wanted(object, bytes, kind)
}

/// # Safety
/// See [`counted_malloc`].
unsafe extern "C" fn counted_memalign(
    alignment: usize,
    bytes: usize,
    site: u64,
    stack: u64,
) -> Pointer {
    // SAFETY: see `counted_malloc`.
    let real = move || unsafe { real::get().memalign(alignment, bytes) };
    let call = (Operation::Memalign, site, stack);
    allocate(call, bytes, AllocKind::Memalign, real)
}

/// # Safety
/// See [`counted_malloc`].
unsafe extern "C" fn counted_aligned_alloc(
    alignment: usize,
    bytes: usize,
    site: u64,
    stack: u64,
) -> Pointer {
    // SAFETY: see `counted_malloc`.
    let real = move || unsafe { real::get().aligned_alloc(alignment, bytes) };
    let call = (Operation::AlignedAlloc, site, stack);
    allocate(call, bytes, AllocKind::AlignedAlloc, real)
}

/// # Safety
/// See [`counted_malloc`].
unsafe extern "C" fn counted_posix_memalign(
    result: *mut Pointer,
    alignment: usize,
    bytes: usize,
    site: u64,
    stack: u64,
) -> c_int {
    let (mut status, mut errno) = (0, 0);
    let call = (Operation::PosixMemalign, site, stack);
    let object = allocate(call, bytes, AllocKind::PosixMemalign, || {
        let mut object = null_mut();
        // SAFETY: see `counted_malloc`; the real function writes to a local of the right type.
        status = unsafe { real::get().posix_memalign(&raw mut object, alignment, bytes) };
        if status == 0 {
            return object;
        }
        // Other functions say there why they refuse.
        errno = real::errno();
        real::set_errno(status);
        null_mut()
    });
    if status == 0 {
        // SAFETY: the caller's pointer; on failure it stays untouched, as the manual promises.
        unsafe { *result = object };
    } else {
        real::set_errno(errno);
    }
    status
}

/// # Safety
/// See [`counted_malloc`].
unsafe extern "C" fn counted_valloc(bytes: usize, site: u64, stack: u64) -> Pointer {
    // SAFETY: see `counted_malloc`.
    let real = move || unsafe { real::get().valloc(bytes) };
    allocate(
        (Operation::Valloc, site, stack),
        bytes,
        AllocKind::Valloc,
        real,
    )
}

/// # Safety
/// See [`counted_malloc`].
unsafe extern "C" fn counted_pvalloc(bytes: usize, site: u64, stack: u64) -> Pointer {
    // SAFETY: see `counted_malloc`.
    let real = move || unsafe { real::get().pvalloc(bytes) };
    allocate(
        (Operation::Pvalloc, site, stack),
        bytes,
        AllocKind::Pvalloc,
        real,
    )
}
