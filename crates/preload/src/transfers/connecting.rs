//! Waits until somebody connects, or until somebody is connected to.

use std::ffi::c_int;

use super::{Direction, Left, option, over, waited};
use crate::real;
use crate::waits::was_held;

/// As the C library's.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn accept(
    fd: c_int,
    from: *mut libc::sockaddr,
    bytes: *mut libc::socklen_t,
) -> c_int {
    // SAFETY: the caller's arguments.
    let result = waited(fd, Direction::In, || unsafe {
        real::get().accept(fd, from, bytes) as isize
    });
    result as c_int
}

/// As the C library's.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn accept4(
    fd: c_int,
    from: *mut libc::sockaddr,
    bytes: *mut libc::socklen_t,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller's arguments.
    let result = waited(fd, Direction::In, || unsafe {
        real::get().accept4(fd, from, bytes, flags) as isize
    });
    result as c_int
}

/// As the C library's.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn connect(
    fd: c_int,
    to: *const libc::sockaddr,
    bytes: libc::socklen_t,
) -> c_int {
    // SAFETY: the caller's arguments.
    let once = || unsafe { real::get().connect(fd, to, bytes) };
    let mut result = once();
    let mut left = Left::default();
    while result != 0 && was_held() {
        let limit = Direction::Out.limit_ns(fd);
        let rest = limit.map(|limit| left.of(limit));
        if rest == Some(None) {
            return over() as c_int;
        }
        if option(fd, libc::SO_DOMAIN) == Some(libc::AF_UNIX) {
            result = once();
            continue;
        }
        // An attempt of the others goes on by itself, and another would be refused (connect(2)).
        if Direction::Out.await_ready(fd, rest.flatten()) == 0 {
            real::set_errno(libc::EINPROGRESS);
            return -1;
        }
        return match option(fd, libc::SO_ERROR) {
            None | Some(0) => 0,
            Some(error) => {
                real::set_errno(error);
                -1
            }
        };
    }
    result
}
