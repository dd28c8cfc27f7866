//! The functions with which a program limits itself: what this library has of its address space must not be missing then.

use std::ffi::c_int;

use crate::operations::room;
use crate::{executions, real, sys};

/// Makes a call that sets a limit of a process. Where that is this one, address space is given back before, and what
/// the limit has changed is looked at afterwards.
///
/// # Safety
/// `new` is null, or a limit.
unsafe fn limited(
    pid: libc::pid_t,
    resource: u32,
    new: *const libc::rlimit64,
    call: impl FnOnce() -> c_int,
) -> c_int {
    if pid != 0 && pid.cast_unsigned() != sys::process_id() {
        return call();
    }
    // SAFETY: as the caller promises. The struct of 32 bits is the same one on this architecture.
    if let (libc::RLIMIT_AS, Some(new)) = (resource, unsafe { new.as_ref() }) {
        real::keeping_errno(|| room::will_be_limited(new.rlim_cur));
    }
    let result = call();
    executions::after_limit(result, resource);
    result
}

/// # Safety
/// As for the C library's function of this name; so for all below.
#[unsafe(no_mangle)]
unsafe extern "C" fn setrlimit(resource: u32, new: *const libc::rlimit64) -> c_int {
    // SAFETY: the caller's arguments, passed on; so in all functions below.
    unsafe { limited(0, resource, new, || real::get().setrlimit(resource, new)) }
}

/// # Safety
/// See [`setrlimit`].
#[unsafe(no_mangle)]
unsafe extern "C" fn setrlimit64(resource: u32, new: *const libc::rlimit64) -> c_int {
    // SAFETY: see `setrlimit`.
    unsafe { limited(0, resource, new, || real::get().setrlimit64(resource, new)) }
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
        limited(pid, resource, new, || {
            real::get().prlimit(pid, resource, new, old)
        })
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
        limited(pid, resource, new, || {
            real::get().prlimit64(pid, resource, new, old)
        })
    }
}
