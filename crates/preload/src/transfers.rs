//! Transfers that a hold cuts short.
//!
//! Whoever writes to a pipe or a socket and waits for room gets back how much was written when the recorder holds the
//! program, and so does whoever asks for all of a message (`MSG_WAITALL`); who waits at a socket with a time limit gets
//! `EINTR` (signal(7), socket(7)). SIGSTOP does the same. A program that handles no signal has no reason to expect that:
//! for it the rest is transferred, and the wait goes on, as [`waits`](crate::waits) do.

mod connecting;
mod receiving;
mod sending;

use std::ffi::{c_int, c_short};

use crate::waits::{has_no_reason_to_expect, was_held};
use crate::{own, process, real, sys};

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

    /// Waits so long at most, without a limit for ever; what there is to do, as `poll` says it: nothing where the time is over.
    fn await_ready(self, fd: c_int, limit_ns: Option<u64>) -> c_short {
        let mut one = libc::pollfd {
            fd,
            events: match self {
                Direction::In => libc::POLLIN | libc::POLLPRI,
                Direction::Out => libc::POLLOUT,
            },
            revents: 0,
        };
        let ms = limit_ns.map_or(-1, |ns| {
            ns.div_ceil(1_000_000).min(c_int::MAX as u64) as c_int
        });
        // The C library's, as the thread may be cancelled in it.
        // SAFETY: one struct, which lives here.
        let ready = unsafe { real::get().poll(&raw mut one, 1, ms) };
        match ready {
            0 => 0,
            1 => one.revents,
            // Whoever asks finds out.
            _ => libc::POLLERR,
        }
    }
}

/// How long a wait may go on after its first hold. When it began is not known, as that would cost every call: what passed
/// before, an interval at most, does not count.
#[derive(Default)]
struct Left {
    first_hold: Option<u64>,
}

impl Left {
    /// What is left of a limit; none where it is over.
    fn of(&mut self, limit_ns: u64) -> Option<u64> {
        let now = sys::now_ns();
        let passed = now.saturating_sub(*self.first_hold.get_or_insert(now));
        limit_ns.checked_sub(passed).filter(|left| *left > 0)
    }
}

fn over() -> isize {
    real::set_errno(libc::EAGAIN);
    -1
}

/// Goes on with a wait that a hold has interrupted.
fn waited(fd: c_int, direction: Direction, call: impl Fn() -> isize) -> isize {
    waited_for(fd, direction, &mut Left::default(), call)
}

fn waited_for(fd: c_int, direction: Direction, left: &mut Left, call: impl Fn() -> isize) -> isize {
    let mut result = call();
    while result < 0 && was_held() {
        if let Some(limit) = direction.limit_ns(fd) {
            // The kernel would wait for the whole limit again.
            let is_ready = left
                .of(limit)
                .is_some_and(|left| direction.await_ready(fd, Some(left)) != 0);
            if !is_ready {
                return over();
            }
        }
        result = call();
    }
    result
}

/// What a transfer waits at until all of it is done.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Stream,
    /// A pipe or a terminal.
    Other,
}

/// An option of a socket that is an integer.
fn option(fd: c_int, option: c_int) -> Option<c_int> {
    let mut value: c_int = 0;
    let mut bytes = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: the kernel fills the integer, whose size is stated.
    let failed = unsafe {
        sys::call(
            libc::SYS_getsockopt,
            [
                fd as usize,
                libc::SOL_SOCKET as usize,
                option as usize,
                &raw mut value as usize,
                &raw mut bytes as usize,
                0,
            ],
        )
    };
    (failed == 0).then_some(value)
}

fn status_of(fd: c_int) -> Option<libc::stat> {
    // SAFETY: zeroes are a valid `stat`; the kernel fills it.
    unsafe {
        let mut file: libc::stat = std::mem::zeroed();
        let failed = sys::call(
            libc::SYS_fstat,
            [fd as usize, &raw mut file as usize, 0, 0, 0, 0],
        );
        (failed == 0).then_some(file)
    }
}

/// Where a transfer waits until all is done, if it does: not one that takes what there is.
fn place_of(fd: c_int, flags: c_int) -> Option<Place> {
    // SAFETY: takes integers.
    let state = unsafe {
        sys::call(
            libc::SYS_fcntl,
            [fd as usize, libc::F_GETFL as usize, 0, 0, 0, 0],
        )
    };
    let takes_what_there_is = flags & (libc::MSG_DONTWAIT | libc::MSG_OOB | libc::MSG_PEEK) != 0;
    if takes_what_there_is || state < 0 || state as c_int & libc::O_NONBLOCK != 0 {
        return None;
    }
    match status_of(fd)?.st_mode & libc::S_IFMT {
        libc::S_IFIFO | libc::S_IFCHR => Some(Place::Other),
        libc::S_IFSOCK => {
            (option(fd, libc::SO_TYPE) == Some(libc::SOCK_STREAM)).then_some(Place::Stream)
        }
        _ => None,
    }
}

/// A transfer of so many bytes. `part` makes what is left of it after so many, with so many more flags.
#[inline]
fn whole(
    fd: c_int,
    direction: Direction,
    flags: c_int,
    bytes: usize,
    part: impl Fn(usize, c_int) -> isize,
) -> isize {
    let mut left = Left::default();
    let done = waited_for(fd, direction, &mut left, || part(0, 0));
    if done <= 0 || done as usize >= bytes {
        return done;
    }
    let waiting = Waiting {
        fd,
        direction,
        flags,
        left,
    };
    waiting.rest(bytes, done as usize, part)
}

/// A transfer that waits, what is left of it.
struct Waiting {
    fd: c_int,
    direction: Direction,
    flags: c_int,
    left: Left,
}

impl Waiting {
    /// Transfers what is left after so many bytes; how many are done then. `part` as for [`whole`].
    #[cold]
    fn rest(
        mut self,
        bytes: usize,
        mut done: usize,
        part: impl Fn(usize, c_int) -> isize,
    ) -> isize {
        real::keeping_errno(|| {
            // The cheap questions first, and none below a filter that may not allow them.
            let place = match process::is_confined() {
                true => None,
                false => place_of(self.fd, self.flags),
            };
            let Some(place) = place.filter(|_| has_no_reason_to_expect()) else {
                return;
            };
            let more = match place {
                // Who got a part sent gets no signal that the other end has gone.
                Place::Stream => libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
                Place::Other => 0,
            };
            let limit = self.direction.limit_ns(self.fd);
            while done < bytes {
                let rest = limit.map(|limit| self.left.of(limit));
                if rest == Some(None) {
                    break;
                }
                // An error is the program's, whose next call gets it; and what is urgent ends a transfer.
                let ready = self.direction.await_ready(self.fd, rest.flatten());
                if ready == 0
                    || ready & (libc::POLLERR | libc::POLLNVAL | libc::POLLPRI) != 0
                    || matches!(self.direction, Direction::Out) && ready & libc::POLLHUP != 0
                {
                    break;
                }
                match usize::try_from(part(done, more)) {
                    Ok(0) => break,
                    Ok(some) => done += some,
                    // SAFETY: the calling thread's own errno.
                    Err(_) => match unsafe { *own::errno() } {
                        libc::EAGAIN | libc::EINTR => {}
                        _ => break,
                    },
                }
            }
        });
        done as isize
    }
}
