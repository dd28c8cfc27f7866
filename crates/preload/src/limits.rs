//! The functions with which a program limits itself: what this library has of its address space must not be missing then.

use std::ffi::c_int;

use crate::operations::room;
use crate::{executions, real, sys};

/// The limit that a call sets.
///
/// # Safety
/// Null, or a limit.
unsafe fn announce(resource: u32, new: *const libc::rlimit64) {
    // SAFETY: as the caller promises. The struct of 32 bits is the same one on this architecture.
    if let (libc::RLIMIT_AS, Some(new)) = (resource, unsafe { new.as_ref() }) {
        real::keeping_errno(|| room::will_be_limited(new.rlim_cur));
    }
}

/// # Safety
/// As for the C library's function of this name; so for all below.
#[unsafe(no_mangle)]
unsafe extern "C" fn setrlimit(resource: u32, new: *const libc::rlimit64) -> c_int {
    // SAFETY: the caller's arguments, passed on; so in all functions below.
    unsafe {
        announce(resource, new);
        let result = real::get().setrlimit(resource, new);
        executions::after_limit(result, resource);
        result
    }
}

/// # Safety
/// See [`setrlimit`].
#[unsafe(no_mangle)]
unsafe extern "C" fn setrlimit64(resource: u32, new: *const libc::rlimit64) -> c_int {
    // SAFETY: see `setrlimit`.
    unsafe {
        announce(resource, new);
        let result = real::get().setrlimit64(resource, new);
        executions::after_limit(result, resource);
        result
    }
}

/// # Safety
/// See [`setrlimit`].
#[unsafe(no_mangle)]
unsafe extern "C" fn prlimit(
    pid: libc::pid_t,
    resource: u32,
    new: *const libc::rlimit64,
    old: *mut libc::rlimit64,
) -> c_int {
    // SAFETY: see `setrlimit`.
    unsafe {
        if is_own(pid) {
            announce(resource, new);
        }
        let result = real::get().prlimit(pid, resource, new, old);
        if is_own(pid) {
            executions::after_limit(result, resource);
        }
        result
    }
}

/// # Safety
/// See [`setrlimit`].
#[unsafe(no_mangle)]
unsafe extern "C" fn prlimit64(
    pid: libc::pid_t,
    resource: u32,
    new: *const libc::rlimit64,
    old: *mut libc::rlimit64,
) -> c_int {
    // SAFETY: see `setrlimit`.
    unsafe {
        if is_own(pid) {
            announce(resource, new);
        }
        let result = real::get().prlimit64(pid, resource, new, old);
        if is_own(pid) {
            executions::after_limit(result, resource);
        }
        result
    }
}

fn is_own(pid: libc::pid_t) -> bool {
    pid == 0 || pid.cast_unsigned() == sys::process_id()
}
