//! The functions with which a program limits itself.

use std::ffi::c_int;

use crate::{executions, real, sys};

/// # Safety
/// As for the C library's function of this name; so for all below.
#[unsafe(no_mangle)]
unsafe extern "C" fn setrlimit(resource: u32, new: *const libc::rlimit64) -> c_int {
    // SAFETY: the caller's arguments, passed on; so in all functions below.
    unsafe {
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
