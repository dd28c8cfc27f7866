//! Programs that end without their libraries' ends: what is to happen then happens here.

use std::ffi::c_int;

use crate::{handler, real, sys};

/// As the C library's.
#[unsafe(no_mangle)]
extern "C" fn _exit(status: c_int) -> ! {
    handler::leave();
    // SAFETY: takes an integer. Where the C library's is not known, it does not return either.
    unsafe { real::get().end(status) };
    loop {
        // SAFETY: takes an integer, does not return.
        unsafe { sys::call(libc::SYS_exit_group, [status as usize, 0, 0, 0, 0, 0]) };
    }
}

/// As the C library's.
#[unsafe(no_mangle)]
extern "C" fn _Exit(status: c_int) -> ! {
    _exit(status)
}
