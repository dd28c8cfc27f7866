//! Reading and receiving until what is waited for is there.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;

use super::{Direction, status_of, waited, whole};
use crate::waits::has_no_reason_to_expect;
use crate::{process, real};

/// How many bytes a receiver waits for: what is asked for in full, else any.
fn awaited(bytes: usize, flags: c_int) -> usize {
    match flags & (libc::MSG_WAITALL | libc::MSG_PEEK) == libc::MSG_WAITALL {
        true => bytes,
        false => 1,
    }
}

/// As the C library's.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn recv(fd: c_int, to: *mut c_void, bytes: usize, flags: c_int) -> isize {
    whole(
        fd,
        Direction::In,
        flags,
        awaited(bytes, flags),
        |done, more| {
            // SAFETY: the caller's arguments, or their rest.
            unsafe { real::get().recv(fd, to.wrapping_byte_add(done), bytes - done, flags | more) }
        },
    )
}

/// As the C library's.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn recvfrom(
    fd: c_int,
    to: *mut c_void,
    bytes: usize,
    flags: c_int,
    from: *mut libc::sockaddr,
    from_bytes: *mut libc::socklen_t,
) -> isize {
    whole(
        fd,
        Direction::In,
        flags,
        awaited(bytes, flags),
        |done, more| {
            // Who sent it was told with its beginning.
            let (from, from_bytes) = match done {
                0 => (from, from_bytes),
                _ => (null_mut(), null_mut()),
            };
            let to = to.wrapping_byte_add(done);
            // SAFETY: the caller's arguments, or their rest.
            unsafe { real::get().recvfrom(fd, to, bytes - done, flags | more, from, from_bytes) }
        },
    )
}

/// What a program calls that was built with checks of its buffers (`_FORTIFY_SOURCE`): the same, where the buffer is large enough.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __recv_chk(
    fd: c_int,
    to: *mut c_void,
    bytes: usize,
    room: usize,
    flags: c_int,
) -> isize {
    // SAFETY: the caller's arguments.
    unsafe {
        match bytes <= room {
            true => recv(fd, to, bytes, flags),
            false => real::get().recv_chk(fd, to, bytes, room, flags),
        }
    }
}

/// As above.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __recvfrom_chk(
    fd: c_int,
    to: *mut c_void,
    bytes: usize,
    room: usize,
    flags: c_int,
    from: *mut libc::sockaddr,
    from_bytes: *mut libc::socklen_t,
) -> isize {
    // SAFETY: the caller's arguments.
    unsafe {
        match bytes <= room {
            true => recvfrom(fd, to, bytes, flags, from, from_bytes),
            false => real::get().recvfrom_chk(fd, to, bytes, room, flags, from, from_bytes),
        }
    }
}

/// As above.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __read_chk(
    fd: c_int,
    to: *mut c_void,
    bytes: usize,
    room: usize,
) -> isize {
    // SAFETY: the caller's arguments.
    unsafe {
        match bytes <= room {
            true => read(fd, to, bytes),
            false => real::get().read_chk(fd, to, bytes, room),
        }
    }
}

/// As the C library's.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn recvmsg(fd: c_int, message: *mut libc::msghdr, flags: c_int) -> isize {
    // SAFETY: the caller's arguments.
    waited(fd, Direction::In, || unsafe {
        real::get().recvmsg(fd, message, flags)
    })
}

/// The kernel looks for signals once it has filled so many bytes from `/dev/zero` or `/dev/urandom`.
const DEVICE_PIECE: usize = 4096;
/// The number of the devices that are made of memory alone (`Documentation/admin-guide/devices.txt`).
const MEMORY_DEVICES: c_uint = 1;

/// Whether a read was cut short by a hold: of a device that always has more.
#[cold]
fn is_cut(fd: c_int) -> bool {
    let is_device = |file: libc::stat| {
        file.st_mode & libc::S_IFMT == libc::S_IFCHR && libc::major(file.st_rdev) == MEMORY_DEVICES
    };
    real::keeping_errno(|| {
        !process::is_confined() && status_of(fd).is_some_and(is_device) && has_no_reason_to_expect()
    })
}

/// As the C library's.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn read(fd: c_int, to: *mut c_void, bytes: usize) -> isize {
    let some = |done: usize| {
        // SAFETY: the caller's arguments, or their rest.
        waited(fd, Direction::In, || unsafe {
            real::get().read(fd, to.wrapping_byte_add(done), bytes - done)
        })
    };
    let result = some(0);
    let Ok(mut done @ 1..) = usize::try_from(result) else {
        return result;
    };
    let is_suspect = done < bytes && done.is_multiple_of(DEVICE_PIECE);
    if is_suspect && is_cut(fd) {
        while let Ok(more @ 1..) = usize::try_from(some(done)) {
            done += more;
            if done >= bytes {
                break;
            }
        }
    }
    done as isize
}

/// As the C library's.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn getrandom(to: *mut c_void, bytes: usize, flags: c_uint) -> isize {
    // SAFETY: the caller's arguments.
    let result = unsafe { real::get().getrandom(to, bytes, flags) };
    let Ok(mut done @ 1..) = usize::try_from(result) else {
        return result;
    };
    while done < bytes && real::keeping_errno(has_no_reason_to_expect) {
        let rest = to.wrapping_byte_add(done);
        // SAFETY: the rest of the caller's arguments.
        match usize::try_from(unsafe { real::get().getrandom(rest, bytes - done, flags) }) {
            Ok(more @ 1..) => done += more,
            _ => break,
        }
    }
    done as isize
}

/// As the C library's.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn readv(fd: c_int, pieces: *const libc::iovec, count: c_int) -> isize {
    // SAFETY: the caller's arguments.
    waited(fd, Direction::In, || unsafe {
        real::get().readv(fd, pieces, count)
    })
}
