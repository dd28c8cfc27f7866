//! Transfers that a hold cuts short.
//!
//! Whoever writes to a pipe or a socket and waits for room gets back how much was written when the recorder holds the
//! program, and so does whoever asks for all of a message (`MSG_WAITALL`); who waits at a socket with a time limit gets
//! `EINTR` (signal(7), socket(7)). SIGSTOP does the same. A program that handles no signal has no reason to expect that:
//! for it the rest is transferred, and the wait goes on, as [`waits`](crate::waits) do.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use crate::waits::{has_no_reason_to_expect, was_held};
use crate::{process, real, sys};

/// Makes a system call as the C library does: for those who come before its functions are known.
pub(crate) fn raw(number: libc::c_long, arguments: [usize; 6]) -> isize {
    // SAFETY: the arguments are those of the caller's call.
    let result = unsafe { sys::call(number, arguments) };
    if (-4095..0).contains(&result) {
        real::set_errno(-result as c_int);
        return -1;
    }
    result
}

/// What a wait at a socket waits for.
#[derive(Clone, Copy)]
enum Direction {
    In,
    Out,
}

impl Direction {
    /// The time limit of such waits at a socket, in nanoseconds; none: no limit, or no socket.
    fn limit_ns(self, fd: c_int) -> Option<u64> {
        let option = match self {
            Direction::In => libc::SO_RCVTIMEO,
            Direction::Out => libc::SO_SNDTIMEO,
        };
        let mut limit = libc::timeval {
            tv_sec: 0,
            tv_usec: 0,
        };
        let mut bytes = size_of::<libc::timeval>() as libc::socklen_t;
        // SAFETY: the kernel fills the struct, whose size is stated.
        let failed = unsafe {
            sys::call(
                libc::SYS_getsockopt,
                [
                    fd as usize,
                    libc::SOL_SOCKET as usize,
                    option as usize,
                    &raw mut limit as usize,
                    &raw mut bytes as usize,
                    0,
                ],
            )
        };
        let ns = (limit.tv_sec as u64)
            .checked_mul(1_000_000_000)?
            .checked_add(limit.tv_usec as u64 * 1000)?;
        (failed == 0 && ns > 0).then_some(ns)
    }

    /// Waits so long at most, without a limit for ever; whether there is something to do.
    fn await_ready(self, fd: c_int, limit_ns: Option<u64>) -> bool {
        let mut one = libc::pollfd {
            fd,
            events: match self {
                Direction::In => libc::POLLIN,
                Direction::Out => libc::POLLOUT,
            },
            revents: 0,
        };
        let ms = limit_ns.map_or(usize::MAX, |ns| {
            ns.div_ceil(1_000_000).min(c_int::MAX as u64) as usize
        });
        // SAFETY: one struct, which lives here.
        let ready = unsafe { sys::call(libc::SYS_poll, [&raw mut one as usize, 1, ms, 0, 0, 0]) };
        ready != 0
    }
}

/// Goes on with a wait that a hold has interrupted. When it began is not known, as that would cost every call: what passed
/// before the first hold, an interval at most, does not count for the limit.
fn waited(fd: c_int, direction: Direction, call: impl Fn() -> isize) -> isize {
    let mut result = call();
    let mut first_hold = None;
    while result < 0 && was_held() {
        if let Some(limit) = direction.limit_ns(fd) {
            let now = sys::now_ns();
            let passed = now - *first_hold.get_or_insert(now);
            if !direction.await_ready(fd, Some(limit.saturating_sub(passed))) {
                real::set_errno(libc::EAGAIN);
                return -1;
            }
        }
        result = call();
    }
    result
}

/// Whether a transfer is one that waits until all of it is done: a pipe's, a socket's or a terminal's, and not one that takes what
/// there is.
fn waits_for_all(fd: c_int, flags: c_int) -> bool {
    // SAFETY: takes integers.
    let state = unsafe {
        sys::call(
            libc::SYS_fcntl,
            [fd as usize, libc::F_GETFL as usize, 0, 0, 0, 0],
        )
    };
    if flags & libc::MSG_DONTWAIT != 0 || state < 0 || state as c_int & libc::O_NONBLOCK != 0 {
        return false;
    }
    // SAFETY: zeroes are a valid `stat`; the kernel fills it.
    let kind = unsafe {
        let mut file: libc::stat = std::mem::zeroed();
        let failed = sys::call(
            libc::SYS_fstat,
            [fd as usize, &raw mut file as usize, 0, 0, 0, 0],
        );
        (failed == 0).then_some(file.st_mode & libc::S_IFMT)
    };
    matches!(kind, Some(libc::S_IFIFO | libc::S_IFSOCK | libc::S_IFCHR))
}

/// A transfer of so many bytes. `part` makes what is left of it after so many.
#[inline]
fn whole(fd: c_int, flags: c_int, bytes: usize, part: impl Fn(usize) -> isize) -> isize {
    let done = part(0);
    if done <= 0 || done as usize >= bytes {
        return done;
    }
    rest(fd, flags, bytes, done as usize, part)
}

#[cold]
fn rest(
    fd: c_int,
    flags: c_int,
    bytes: usize,
    mut done: usize,
    part: impl Fn(usize) -> isize,
) -> isize {
    // The cheap questions first, and none below a filter that may not allow them.
    let goes_on =
        || !process::is_confined() && waits_for_all(fd, flags) && has_no_reason_to_expect();
    if real::keeping_errno(goes_on) {
        real::keeping_errno(|| {
            while done < bytes {
                match usize::try_from(part(done)) {
                    Ok(more @ 1..) => done += more,
                    // What was transferred counts; the next call says why no more was.
                    _ => break,
                }
            }
        });
    }
    done as isize
}

/// The flags of a transfer of which so much is done: who got a part sent gets no signal that the other end has gone.
fn quiet(flags: c_int, done: usize) -> c_int {
    match done {
        0 => flags,
        _ => flags | libc::MSG_NOSIGNAL,
    }
}

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
    whole(fd, 0, bytes, |done| {
        // SAFETY: the caller's arguments, or their rest.
        waited(fd, Direction::Out, || unsafe {
            match done {
                0 => real::get().write(fd, from, bytes),
                _ => write_rest(fd, from.wrapping_byte_add(done), bytes - done),
            }
        })
    })
}

/// Writes what is left. Who got a part written gets no signal that the other end has gone, but where it is a pipe, whose
/// kernel sends one anyway.
///
/// # Safety
/// As for the C library's `write`.
unsafe fn write_rest(fd: c_int, from: *const c_void, bytes: usize) -> isize {
    // SAFETY: the caller's arguments; the calling thread's own errno.
    unsafe {
        let sent = real::get().send(fd, from, bytes, libc::MSG_NOSIGNAL);
        match sent < 0 && *libc::__errno_location() == libc::ENOTSOCK {
            true => real::get().write(fd, from, bytes),
            false => sent,
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
    // SAFETY: the caller's arguments.
    let done = waited(fd, Direction::Out, || unsafe {
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
    rest(fd, 0, bytes, done as usize, |done| {
        // SAFETY: there are more bytes than are done; the rest of the caller's arguments.
        waited(fd, Direction::Out, || unsafe {
            match all.after(done) {
                (Some(begun), _) => write_rest(fd, begun.iov_base, begun.iov_len),
                // One after the other, so that none is begun where nobody listens any more.
                (None, left) => write_rest(fd, (*left.first).iov_base, (*left.first).iov_len),
            }
        })
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
    whole(fd, flags, bytes, |done| {
        // SAFETY: the caller's arguments, or their rest.
        waited(fd, Direction::Out, || unsafe {
            let flags = quiet(flags, done);
            real::get().send(fd, from.wrapping_byte_add(done), bytes - done, flags)
        })
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
    whole(fd, flags, bytes, |done| {
        // SAFETY: the caller's arguments, or their rest.
        waited(fd, Direction::Out, || unsafe {
            let (from, flags) = (from.wrapping_byte_add(done), quiet(flags, done));
            real::get().sendto(fd, from, bytes - done, flags, to, to_bytes)
        })
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
    // SAFETY: the caller's arguments.
    let done = waited(fd, Direction::Out, || unsafe {
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
    rest(fd, flags, bytes, done as usize, |done| {
        // SAFETY: there are more bytes than are done.
        let (mut begun, left) = unsafe { all.after(done) };
        // What comes with the data has been sent with its beginning.
        let mut more = libc::msghdr {
            msg_control: null_mut(),
            msg_controllen: 0,
            ..message
        };
        (more.msg_iov, more.msg_iovlen) = match &mut begun {
            Some(piece) => (std::ptr::from_mut(piece), 1),
            None => (left.first.cast_mut(), left.count),
        };
        // SAFETY: the rest of the caller's arguments.
        waited(fd, Direction::Out, || unsafe {
            real::get().sendmsg(fd, &raw const more, quiet(flags, done))
        })
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
    whole(to, 0, bytes, |done| {
        // SAFETY: the caller's arguments, or their rest.
        waited(to, Direction::Out, || unsafe {
            real::get().sendfile(to, from, offset, bytes - done)
        })
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
    whole(fd, flags, awaited(bytes, flags), |done| {
        // SAFETY: the caller's arguments, or their rest.
        waited(fd, Direction::In, || unsafe {
            real::get().recv(fd, to.wrapping_byte_add(done), bytes - done, flags)
        })
    })
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
    whole(fd, flags, awaited(bytes, flags), |done| {
        // Who sent it was told with its beginning.
        let (from, from_bytes) = match done {
            0 => (from, from_bytes),
            _ => (null_mut(), null_mut()),
        };
        // SAFETY: the caller's arguments, or their rest.
        waited(fd, Direction::In, || unsafe {
            let to = to.wrapping_byte_add(done);
            real::get().recvfrom(fd, to, bytes - done, flags, from, from_bytes)
        })
    })
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

/// As the C library's.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn read(fd: c_int, to: *mut c_void, bytes: usize) -> isize {
    // SAFETY: the caller's arguments.
    waited(fd, Direction::In, || unsafe {
        real::get().read(fd, to, bytes)
    })
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
    let result = unsafe { real::get().connect(fd, to, bytes) };
    if result == 0 || !was_held() {
        return result;
    }
    // An interrupted attempt goes on by itself, and another would be refused (connect(2)).
    if !Direction::Out.await_ready(fd, Direction::Out.limit_ns(fd)) {
        real::set_errno(libc::EINPROGRESS);
        return -1;
    }
    match outcome(fd) {
        0 => 0,
        error => {
            real::set_errno(error);
            -1
        }
    }
}

/// The error of an attempt to connect that has ended; 0: none.
fn outcome(fd: c_int) -> c_int {
    let mut error: c_int = 0;
    let mut bytes = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: the kernel fills the integer, whose size is stated.
    unsafe {
        sys::call(
            libc::SYS_getsockopt,
            [
                fd as usize,
                libc::SOL_SOCKET as usize,
                libc::SO_ERROR as usize,
                &raw mut error as usize,
                &raw mut bytes as usize,
                0,
            ],
        )
    };
    error
}
