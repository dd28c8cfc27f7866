//! Transfers that a hold cuts short.
//!
//! Whoever writes to a pipe or a socket and waits for room gets back how much was written when the recorder holds the
//! program, and so does whoever asks for all of a message (`MSG_WAITALL`); who waits at a socket with a time limit gets
//! `EINTR` (signal(7), socket(7)). SIGSTOP does the same. A program that handles no signal has no reason to expect that:
//! for it the rest is transferred, and the wait goes on, as [`waits`](crate::waits) do.

use std::ffi::{c_int, c_short, c_uint, c_void};
use std::ptr::null_mut;

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
