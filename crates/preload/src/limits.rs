//! The functions with which a program limits itself: what this library has of its address space must not be missing then.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::budget::budgets;
use crate::operations::room;
use crate::{executions, process, real, sys};

/// Bytes of shadows that the fault handler may yet map. The handler is a process with limits of its own, which say nothing of what the program sets
/// later.
static SHADOW_LEFT: AtomicU64 = AtomicU64::new(u64::MAX);

/// Plans how much shadows may take under the limits that are set, one of which is about to be replaced.
pub(crate) fn plan_shadows(new: Option<(u32, u64)>) {
    let [space, data] = budgets(new, [0; 2]);
    SHADOW_LEFT.store(space.min(data), Ordering::Relaxed);
}

/// Whether so many bytes of shadow may be mapped, which are taken then.
pub(crate) fn take_shadow(bytes: u64) -> bool {
    let (done, other) = (Ordering::Relaxed, Ordering::Relaxed);
    SHADOW_LEFT
        .fetch_update(done, other, |left| match left {
            u64::MAX => Some(left),
            left => left.checked_sub(bytes),
        })
        .is_ok()
}

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
    match (resource, unsafe { new.as_ref() }) {
        (libc::RLIMIT_AS | libc::RLIMIT_DATA, Some(new)) if !process::is_confined() => {
            real::keeping_errno(|| {
                room::will_be_limited(resource, new.rlim_cur);
                if !room::is_parents() {
                    plan_shadows(Some((resource, new.rlim_cur)));
                }
            });
        }
        _ => {}
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
