//! `operator new` and `operator delete`.
//!
//! The next library's do the work, exceptions included: they pass through frames that have nothing to drop. A library that was loaded for itself
//! alone has its operators out of this library's sight; those are looked up from where the caller sees them.

use std::ffi::{CStr, c_void};
use std::mem::transmute;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use varve_preload_abi::AllocKind;
use varve_preload_abi::operations::Operation;

use super::is_off;
use crate::heap::{allocate, entry, release};
use crate::real;

type Pointer = *mut c_void;

/// The next library's operator, or the one that the caller would call.
#[cold]
fn find(place: &AtomicPtr<c_void>, name: &CStr, site: u64) -> *mut c_void {
    real::keeping_errno(|| {
        // SAFETY: a C string; null is a valid answer.
        let next = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
        if !next.is_null() {
            place.store(next, Ordering::Relaxed);
            return next;
        }
        // SAFETY: zeroes are a valid struct of pointers.
        let mut caller: libc::Dl_info = unsafe { std::mem::zeroed() };
        // SAFETY: an address of code, and a struct that lives here.
        if unsafe { libc::dladdr(site as *const c_void, &raw mut caller) } == 0 {
            return null_mut();
        }
        // SAFETY: the loader's own name of a file that is loaded; the handle is given back, and the file stays as its code called this.
        unsafe {
            let flags = libc::RTLD_NOLOAD | libc::RTLD_LAZY;
            let handle = libc::dlopen(caller.dli_fname, flags);
            if handle.is_null() {
                return null_mut();
            }
            let found = libc::dlsym(handle, name.as_ptr());
            libc::dlclose(handle);
            found
        }
    })
}

macro_rules! news {
    ($($name:ident $counted:ident $operation:ident ($($argument:ident),*), $site:literal, $stack:literal;)*) => {
        $(
            /// # Safety
            /// As for the operator of this name.
            unsafe extern "C-unwind" fn $counted(bytes: usize, $($argument: usize,)* site: u64, stack: u64) -> Pointer {
                static PLACE: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
                let name = const { c_name(concat!(stringify!($name), "\0")) };
                let mut next = PLACE.load(Ordering::Relaxed);
                if next.is_null() {
                    next = find(&PLACE, name, site);
                }
                let real = move || {
                    if next.is_null() {
                        // SAFETY: an ordinary allocation; nobody is there to throw.
                        return unsafe { real::get().malloc(bytes) };
                    }
                    // SAFETY: an operator of this name has this type; the caller's arguments.
                    unsafe {
                        let next: unsafe extern "C-unwind" fn(usize $(, $argument: usize)*) -> Pointer = transmute(next);
                        next(bytes $(, $argument)*)
                    }
                };
                // It calls malloc, which reports the object.
                if is_off() && !next.is_null() {
                    return real();
                }
                let call = (Operation::$operation, site, stack);
                allocate(call, bytes, AllocKind::Malloc, real)
            }
            entry! { $name => $counted, $site, $stack; }
        )*
    };
}

macro_rules! deletes {
    ($($name:ident $counted:ident $operation:ident ($($argument:ident),*), $site:literal, $stack:literal;)*) => {
        $(
            /// # Safety
            /// As for the operator of this name.
            unsafe extern "C-unwind" fn $counted(object: Pointer, $($argument: usize,)* site: u64, stack: u64) {
                static PLACE: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
                let name = const { c_name(concat!(stringify!($name), "\0")) };
                let mut next = PLACE.load(Ordering::Relaxed);
                if next.is_null() {
                    next = find(&PLACE, name, site);
                }
                let call = (Operation::$operation, site, stack);
                release(call, object, move || {
                    if next.is_null() {
                        // SAFETY: the caller's block.
                        return unsafe { real::get().free(object) };
                    }
                    // SAFETY: an operator of this name has this type; the caller's arguments.
                    unsafe {
                        let next: unsafe extern "C-unwind" fn(Pointer $(, $argument: usize)*) = transmute(next);
                        next(object $(, $argument)*);
                    }
                });
            }
            entry! { $name => $counted, $site, $stack; }
        )*
    };
}

/// A name as a C string.
const fn c_name(name: &str) -> &CStr {
    match CStr::from_bytes_with_nul(name.as_bytes()) {
        Ok(name) => name,
        Err(_) => c"",
    }
}

news! {
    _Znwm new_plain New (), "rsi", "rdx";
    _ZnwmRKSt9nothrow_t new_nothrow New (tag), "rdx", "rcx";
    _ZnwmSt11align_val_t new_aligned NewAligned (alignment), "rdx", "rcx";
    _ZnwmSt11align_val_tRKSt9nothrow_t new_aligned_nothrow NewAligned (alignment, tag), "rcx", "r8";
    _Znam new_array NewArray (), "rsi", "rdx";
    _ZnamRKSt9nothrow_t new_array_nothrow NewArray (tag), "rdx", "rcx";
    _ZnamSt11align_val_t new_array_aligned NewAligned (alignment), "rdx", "rcx";
    _ZnamSt11align_val_tRKSt9nothrow_t new_array_aligned_nothrow NewAligned (alignment, tag), "rcx", "r8";
}

deletes! {
    _ZdlPv delete Delete (), "rsi", "rdx";
    _ZdlPvm delete_sized Delete (bytes), "rdx", "rcx";
    _ZdlPvRKSt9nothrow_t delete_nothrow Delete (tag), "rdx", "rcx";
    _ZdlPvSt11align_val_t delete_aligned Delete (alignment), "rdx", "rcx";
    _ZdlPvmSt11align_val_t delete_sized_aligned Delete (bytes, alignment), "rcx", "r8";
    _ZdlPvSt11align_val_tRKSt9nothrow_t delete_aligned_nothrow Delete (alignment, tag), "rcx", "r8";
    _ZdaPv delete_array DeleteArray (), "rsi", "rdx";
    _ZdaPvm delete_array_sized DeleteArray (bytes), "rdx", "rcx";
    _ZdaPvRKSt9nothrow_t delete_array_nothrow DeleteArray (tag), "rdx", "rcx";
    _ZdaPvSt11align_val_t delete_array_aligned DeleteArray (alignment), "rdx", "rcx";
    _ZdaPvmSt11align_val_t delete_array_sized_aligned DeleteArray (bytes, alignment), "rcx", "r8";
    _ZdaPvSt11align_val_tRKSt9nothrow_t delete_array_aligned_nothrow DeleteArray (alignment, tag), "rcx", "r8";
}
