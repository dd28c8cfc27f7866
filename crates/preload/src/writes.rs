//! A userfaultfd for the recorder, through which it protects this process's pages and so sees writes.
//!
//! It is made when the process asks for its ring, handed over with that and closed: the program never sees the
//! descriptor. Nothing that fails matters; the recorder then knows of no writes.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::sys;

static WANTED: AtomicBool = AtomicBool::new(false);

/// `UFFD_USER_MODE_ONLY`: the kind that every process may have. In the mode that the recorder asks
/// for, nothing is ever left to user space to resolve.
const USER_MODE_ONLY: i32 = 1;

/// The recorder asks for userfaultfds.
pub(crate) fn want() {
    WANTED.store(true, Ordering::Relaxed);
}

/// Makes one, if the recorder asks for them.
pub(crate) fn make() -> Option<i32> {
    if !WANTED.load(Ordering::Relaxed) {
        return None;
    }
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | USER_MODE_ONLY;
    // SAFETY: takes an integer, makes a descriptor.
    let fault = unsafe { sys::call(libc::SYS_userfaultfd, [flags as usize, 0, 0, 0, 0, 0]) };
    i32::try_from(fault).ok().filter(|fault| *fault >= 0)
}
