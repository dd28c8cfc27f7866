//! Writing and sending until all is done.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use super::{Direction, Left, Waiting, waited_for, whole};
use crate::real;

/// Pieces of memory as the kernel takes them.
#[derive(Clone, Copy)]
struct Pieces {
    first: *const libc::iovec,
    count: usize,
}

impl Pieces {
    /// # Safety
    /// There are so many pieces, as far as the kernel would read them.
    unsafe fn bytes(self) -> usize {
        // More are refused.
        let count = self.count.min(libc::UIO_MAXIOV as usize);
        // SAFETY: as the caller says.
        let all = (0..count).map(|i| unsafe { (*self.first.add(i)).iov_len });
        all.fold(0, usize::saturating_add)
    }

    /// What is left after so many bytes: the rest of a piece that is begun, else whole pieces.
    ///
    /// # Safety
    /// As for `bytes`, of which there are more than `done`.
    unsafe fn after(self, mut done: usize) -> (Option<libc::iovec>, Pieces) {
        let mut left = self;
        while left.count > 0 {
            // SAFETY: one of those that there are.
            let piece = unsafe { *left.first };
            if done < piece.iov_len {
                let begun = (done > 0).then(|| libc::iovec {
                    iov_base: piece.iov_base.wrapping_byte_add(done),
                    iov_len: piece.iov_len - done,
                });
                return (begun, left);
            }
            done -= piece.iov_len;
            left.count -= 1;
            left.first = left.first.wrapping_add(1);
        }
        (None, left)
    }
}

/// As the C library's.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn write(fd: c_int, from: *const c_void, bytes: usize) -> isize {
    whole(fd, Direction::Out, 0, bytes, |done, more| {
        // SAFETY: the caller's arguments, or their rest.
        unsafe { write_some(fd, from.wrapping_byte_add(done), bytes - done, more) }
    })
}

/// Writes, with flags where it is a stream.
///
/// # Safety
/// As for the C library's `write`.
unsafe fn write_some(fd: c_int, from: *const c_void, bytes: usize, flags: c_int) -> isize {
    // SAFETY: the caller's arguments.
    unsafe {
        match flags {
            0 => real::get().write(fd, from, bytes),
            _ => real::get().send(fd, from, bytes, flags),
        }
    }
}

/// As the C library's.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn writev(fd: c_int, pieces: *const libc::iovec, count: c_int) -> isize {
    let all = Pieces {
        first: pieces,
        count: usize::try_from(count).unwrap_or(0),
    };
    let mut left = Left::default();
    // SAFETY: the caller's arguments.
    let done = waited_for(fd, Direction::Out, &mut left, || unsafe {
        real::get().writev(fd, pieces, count)
    });
    if done <= 0 {
        return done;
    }
    // SAFETY: the kernel has just read them.
    let bytes = unsafe { all.bytes() };
    if done as usize >= bytes {
        return done;
    }
    let waiting = Waiting {
        fd,
        direction: Direction::Out,
        flags: 0,
        left,
    };
    waiting.rest(bytes, done as usize, |done, more| {
        // SAFETY: there are more bytes than are done; the rest of the caller's arguments, one piece after the other.
        unsafe {
            let piece = match all.after(done) {
                (Some(begun), _) => begun,
                (None, left) => *left.first,
            };
            write_some(fd, piece.iov_base, piece.iov_len, more)
        }
    })
}

/// As the C library's.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn send(
    fd: c_int,
    from: *const c_void,
    bytes: usize,
    flags: c_int,
) -> isize {
    whole(fd, Direction::Out, flags, bytes, |done, more| {
        // SAFETY: the caller's arguments, or their rest.
        unsafe { real::get().send(fd, from.wrapping_byte_add(done), bytes - done, flags | more) }
    })
}

/// As the C library's.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendto(
    fd: c_int,
    from: *const c_void,
    bytes: usize,
    flags: c_int,
    to: *const libc::sockaddr,
    to_bytes: libc::socklen_t,
) -> isize {
    whole(fd, Direction::Out, flags, bytes, |done, more| {
        let from = from.wrapping_byte_add(done);
        // SAFETY: the caller's arguments, or their rest.
        unsafe { real::get().sendto(fd, from, bytes - done, flags | more, to, to_bytes) }
    })
}

/// As the C library's.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendmsg(
    fd: c_int,
    message: *const libc::msghdr,
    flags: c_int,
) -> isize {
    let mut left = Left::default();
    // SAFETY: the caller's arguments.
    let done = waited_for(fd, Direction::Out, &mut left, || unsafe {
        real::get().sendmsg(fd, message, flags)
    });
    if done <= 0 {
        return done;
    }
    // SAFETY: the kernel has just read it, and its pieces.
    let (message, all, bytes) = unsafe {
        let message = *message;
        let all = Pieces {
            first: message.msg_iov,
            count: message.msg_iovlen,
        };
        (message, all, all.bytes())
    };
    if done as usize >= bytes {
        return done;
    }
    let waiting = Waiting {
        fd,
        direction: Direction::Out,
        flags,
        left,
    };
    waiting.rest(bytes, done as usize, |done, more| {
        // SAFETY: there are more bytes than are done.
        let (mut begun, left) = unsafe { all.after(done) };
        // What comes with the data has been sent with its beginning.
        let mut rest = libc::msghdr {
            msg_control: null_mut(),
            msg_controllen: 0,
            ..message
        };
        (rest.msg_iov, rest.msg_iovlen) = match &mut begun {
            Some(piece) => (std::ptr::from_mut(piece), 1),
            None => (left.first.cast_mut(), left.count),
        };
        // SAFETY: the rest of the caller's arguments.
        unsafe { real::get().sendmsg(fd, &raw const rest, flags | more) }
    })
}

/// As the C library's.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendfile(
    to: c_int,
    from: c_int,
    offset: *mut libc::off_t,
    bytes: usize,
) -> isize {
    // The kernel moves the offset, the caller's or the file's, with what is done.
    whole(to, Direction::Out, 0, bytes, |done, _| {
        // SAFETY: the caller's arguments, or their rest.
        unsafe { real::get().sendfile(to, from, offset, bytes - done) }
    })
}

/// As the C library's.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendfile64(
    to: c_int,
    from: c_int,
    offset: *mut libc::off_t,
    bytes: usize,
) -> isize {
    // SAFETY: the same types on 64-bit systems.
    unsafe { sendfile(to, from, offset, bytes) }
}
