//! The watched program's side of a meeting with the recorder.
//!
//! It runs within a program that must not notice: no allocation, no `errno`, no descriptor left behind, and no longer
//! wait than [`crate::channel`] allows.
//!
//! Whoever listens gets nothing before two things are sure. The kernel says that the listener's user is the recorder's; and
//! the folder at the path is, after the connection was made, the one that the recorder made: nobody else can make a
//! socket in that, nor bring one like it about. In a user namespace that does not know the recorder's user, the kernel
//! says "nobody" for it as for every such user; there the folder alone decides.

use std::cell::Cell;

use crate::channel::{
    ANSWER_WORDS, Control, HELLO, HELLO_WORDS, Identity, Kind, MAX_PATIENCE_MS, PATIENCE_MS,
    SOCKET, identity_of,
};
use crate::layout::VERSION;
use crate::raw::system_call;

/// The longest path of a folder, so that the socket's fits into an address.
const MAX_PATH: usize = 100;
/// What the kernel says for a user that a user namespace does not know.
const OVERFLOW_USER: u32 = 65_534;

/// Where the recorder listens.
#[derive(Clone, Copy, Debug)]
pub struct Address {
    folder: [u8; MAX_PATH + 1],
    length: usize,
    identity: Identity,
}

impl Address {
    /// Nowhere.
    pub const NONE: Address = Address {
        folder: [0; MAX_PATH + 1],
        length: 0,
        identity: Identity {
            uid: u32::MAX,
            device: 0,
            inode: 0,
            made_ns: 0,
        },
    };

    /// A folder, by its absolute path, and what is known of it as text.
    #[must_use]
    pub fn new(folder: &[u8], identity: &[u8]) -> Option<Address> {
        if folder.first() != Some(&b'/') || folder.len() > MAX_PATH || folder.contains(&0) {
            return None;
        }
        let mut address = Address {
            identity: Identity::parse(identity)?,
            length: folder.len(),
            ..Address::NONE
        };
        address.folder[..folder.len()].copy_from_slice(folder);
        Some(address)
    }

    /// Whether the folder at the path is the recorder's.
    fn is_the_folder(&self) -> bool {
        // SAFETY: zeroes are a valid struct of integers.
        let mut found: libc::statx = unsafe { std::mem::zeroed() };
        let wanted = libc::STATX_INO | libc::STATX_BTIME;
        // SAFETY: a C string and a struct that live here.
        let result = unsafe {
            system_call(
                libc::SYS_statx,
                [
                    libc::AT_FDCWD as usize,
                    self.folder.as_ptr() as usize,
                    libc::AT_SYMLINK_NOFOLLOW as usize,
                    wanted as usize,
                    &raw mut found as usize,
                    0,
                ],
            )
        };
        result == 0 && identity_of(&found, self.identity.uid) == self.identity
    }
}

/// What the recorder answered; whoever has it closes the descriptors.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// The number: bytes of a ring, or the time at which a program began.
    pub number: u64,
    /// As many as the kind of answer has; the others are negative.
    pub descriptors: [i32; 2],
}

/// Why there is no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absent {
    /// Nobody listens any more.
    Gone,
    /// Somebody else listens, the recorder does not answer, or the kernel refuses.
    Refused,
}

/// A connection to the recorder, closed on drop.
#[derive(Debug)]
pub struct Connection {
    socket: i32,
    /// Until when what is waited for is waited for.
    until_ns: Cell<u64>,
    /// Until when at most.
    last_ns: u64,
    /// The recorder's process, where this pid namespace knows it.
    recorder: Cell<i32>,
}

impl Connection {
    /// Connects, and makes sure that it is the recorder who listens.
    ///
    /// # Errors
    /// Where it is not, where it is gone, and where it does not answer in time.
    pub fn open(address: &Address) -> Result<Connection, Absent> {
        if address.length == 0 {
            return Err(Absent::Gone);
        }
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        // SAFETY: takes integers, makes a descriptor.
        let socket = unsafe {
            system_call(
                libc::SYS_socket,
                [libc::AF_UNIX as usize, kind as usize, 0, 0, 0, 0],
            )
        };
        if socket < 0 {
            return Err(Absent::Refused);
        }
        let now = now_ns();
        let connection = Connection {
            socket: socket as i32,
            until_ns: Cell::new(now + PATIENCE_MS * 1_000_000),
            last_ns: now + MAX_PATIENCE_MS * 1_000_000,
            recorder: Cell::new(0),
        };
        if !connection.limit(libc::SO_SNDTIMEO) {
            return Err(Absent::Refused);
        }
        match connection.connect(address) {
            0 if connection.is_of(&address.identity) && address.is_the_folder() => Ok(connection),
            error if [libc::ENOENT, libc::ENOTDIR, libc::ECONNREFUSED].contains(&-error) => {
                Err(Absent::Gone)
            }
            _ => Err(Absent::Refused),
        }
    }

    /// Limits a wait to what is left of the patience: all waits of a connection share it.
    fn limit(&self, which: i32) -> bool {
        let left_us = self.until_ns.get().saturating_sub(now_ns()) / 1000;
        let limit = libc::timeval {
            tv_sec: 0,
            // Zero would be without end.
            tv_usec: left_us.clamp(1, 999_999) as libc::suseconds_t,
        };
        // SAFETY: a struct that lives here, of the size that is stated.
        let result = unsafe {
            system_call(
                libc::SYS_setsockopt,
                [
                    self.socket as usize,
                    libc::SOL_SOCKET as usize,
                    which as usize,
                    &raw const limit as usize,
                    size_of::<libc::timeval>(),
                    0,
                ],
            )
        };
        result == 0
    }

    fn connect(&self, address: &Address) -> i32 {
        let mut to = libc::sockaddr_un {
            sun_family: libc::AF_UNIX as u16,
            sun_path: [0; 108],
        };
        let folder = address.folder.iter().take(address.length);
        let path = folder.chain(b"/").chain(SOCKET.as_bytes());
        // The last bytes stay zero.
        for (to, byte) in to.sun_path.iter_mut().zip(path) {
            *to = byte.cast_signed();
        }
        self.again(libc::SO_SNDTIMEO, || {
            // SAFETY: a struct that lives here, of the size that is stated.
            unsafe {
                system_call(
                    libc::SYS_connect,
                    [
                        self.socket as usize,
                        &raw const to as usize,
                        size_of::<libc::sockaddr_un>(),
                        0,
                        0,
                        0,
                    ],
                )
            }
        }) as i32
    }

    /// Whether the listener's user is the recorder's, as far as this user namespace knows.
    fn is_of(&self, identity: &Identity) -> bool {
        let mut peer = libc::ucred {
            pid: 0,
            uid: u32::MAX,
            gid: u32::MAX,
        };
        let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
        // SAFETY: a struct that lives here, of the size that is stated.
        let result = unsafe {
            system_call(
                libc::SYS_getsockopt,
                [
                    self.socket as usize,
                    libc::SOL_SOCKET as usize,
                    libc::SO_PEERCRED as usize,
                    &raw mut peer as usize,
                    &raw mut bytes as usize,
                    0,
                ],
            )
        };
        self.recorder.set(peer.pid);
        // Without the time at which it was made, a folder may come back.
        let unknown = peer.uid == OVERFLOW_USER && identity.made_ns != 0;
        result == 0 && (peer.uid == identity.uid || unknown)
    }

    /// Says what is wanted, and hands a descriptor over; whether that was heard.
    #[must_use]
    pub fn say(&self, kind: Kind, descriptor: Option<i32>) -> bool {
        self.say_with(kind, 0, descriptor)
    }

    /// The same with a number that depends on the kind.
    #[must_use]
    pub fn say_with(&self, kind: Kind, number: u64, descriptor: Option<i32>) -> bool {
        if !self.limit(libc::SO_SNDTIMEO) {
            return false;
        }
        let words: [u64; HELLO_WORDS] = [HELLO, u64::from(VERSION), kind.word(), number];
        let mut data = libc::iovec {
            iov_base: words.as_ptr().cast_mut().cast(),
            iov_len: size_of_val(&words),
        };
        let descriptors = [descriptor.unwrap_or(-1)];
        let count = usize::from(descriptor.is_some());
        let mut control = Control::with(&descriptors[..count]);
        // SAFETY: zeroes are a valid msghdr.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = &raw mut data;
        message.msg_iovlen = 1;
        if count > 0 {
            message.msg_control = (&raw mut control).cast();
            message.msg_controllen = Control::bytes(count);
        }
        let sent = self.again(libc::SO_SNDTIMEO, || {
            // SAFETY: the message points to what lives here, with the sizes that it states.
            unsafe {
                system_call(
                    libc::SYS_sendmsg,
                    [
                        self.socket as usize,
                        &raw const message as usize,
                        libc::MSG_NOSIGNAL as usize,
                        0,
                        0,
                        0,
                    ],
                )
            }
        });
        sent == size_of_val(&words) as isize
    }

    /// The recorder's answer; `None` where it refuses or does not answer in time.
    #[must_use]
    pub fn answer(&self, kind: Kind) -> Option<Answer> {
        if !self.limit(libc::SO_RCVTIMEO) {
            return None;
        }
        let mut words = [0u64; ANSWER_WORDS];
        let mut data = libc::iovec {
            iov_base: words.as_mut_ptr().cast(),
            iov_len: size_of_val(&words),
        };
        let mut control = Control::with(&[]);
        // SAFETY: zeroes are a valid msghdr.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = &raw mut data;
        message.msg_iovlen = 1;
        let got = self.again(libc::SO_RCVTIMEO, || {
            message.msg_control = (&raw mut control).cast();
            message.msg_controllen = size_of::<Control>();
            // SAFETY: the message points to what lives here, with the sizes that it states.
            unsafe {
                system_call(
                    libc::SYS_recvmsg,
                    [
                        self.socket as usize,
                        &raw mut message as usize,
                        libc::MSG_CMSG_CLOEXEC as usize,
                        0,
                        0,
                        0,
                    ],
                )
            }
        });
        let mut answer = Answer {
            number: words[1],
            descriptors: [-1; 2],
        };
        let received = if got > 0 { message.msg_controllen } else { 0 };
        for (to, descriptor) in answer
            .descriptors
            .iter_mut()
            .zip(control.received(received))
        {
            *to = *descriptor;
        }
        let wanted = match kind {
            Kind::Counts => 2,
            Kind::Site => 0,
            _ => 1,
        };
        let whole = got == size_of_val(&words) as isize && words[0] == kind.word();
        if whole && answer.descriptors[..wanted].iter().all(|d| *d >= 0) {
            return Some(answer);
        }
        answer.descriptors.into_iter().for_each(close);
        None
    }

    /// The descriptor, which is the caller's from now on. Its waits have a limit ([`crate::channel`]).
    #[must_use]
    pub fn into_descriptor(self) -> i32 {
        let socket = self.socket;
        std::mem::forget(self);
        socket
    }

    /// Makes a call again that a signal, or a hold, interrupted, for as long as there is patience; and one whose limit
    /// (`which`) is over, for as long as the recorder is busy and not stopped.
    fn again(&self, which: i32, mut call: impl FnMut() -> isize) -> isize {
        loop {
            let result = call();
            let is_interrupted = result == -libc::EINTR as isize;
            if !is_interrupted && result != -libc::EAGAIN as isize {
                return result;
            }
            if is_interrupted && now_ns() < self.until_ns.get() {
                continue;
            }
            if !self.has_more_patience() || !self.limit(which) {
                return result;
            }
        }
    }

    fn has_more_patience(&self) -> bool {
        let now = now_ns();
        let until = (now + PATIENCE_MS * 1_000_000).min(self.last_ns);
        self.until_ns.set(until);
        now < until && is_at_work(self.recorder.get())
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        close(self.socket);
    }
}

/// Whether a process is neither stopped nor at its end, as its `/proc/PID/stat` says.
fn is_at_work(pid: i32) -> bool {
    if pid <= 0 {
        return false;
    }
    let mut path = [0u8; 32];
    let mut digits = [0u8; 10];
    let mut rest = pid.unsigned_abs();
    let mut count = 0;
    while rest > 0 {
        digits[count] = b'0' + (rest % 10) as u8;
        rest /= 10;
        count += 1;
    }
    let number = digits[..count].iter().rev();
    for (to, byte) in path
        .iter_mut()
        .zip(b"/proc/".iter().chain(number).chain(b"/stat"))
    {
        *to = *byte;
    }
    let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as usize;
    let at = libc::AT_FDCWD as usize;
    // SAFETY: a C string that lives here: the last bytes stay zero.
    let file = unsafe {
        system_call(
            libc::SYS_openat,
            [at, path.as_ptr() as usize, flags, 0, 0, 0],
        )
    };
    if file < 0 {
        return false;
    }
    let mut text = [0u8; 128];
    // SAFETY: a buffer that lives here, of the size that is stated.
    let length = unsafe {
        let buffer = [
            file as usize,
            text.as_mut_ptr() as usize,
            text.len(),
            0,
            0,
            0,
        ];
        system_call(libc::SYS_read, buffer)
    };
    close(file as i32);
    let text = &text[..usize::try_from(length).unwrap_or(0).min(text.len())];
    // The name before it, in brackets, may have any bytes.
    let Some(end) = text.iter().rposition(|byte| *byte == b')') else {
        return false;
    };
    matches!(text.get(end + 2), Some(b'R' | b'S' | b'D'))
}

/// Closes a descriptor of the library's own; a negative one is none.
pub fn close(descriptor: i32) {
    if descriptor >= 0 {
        // SAFETY: the caller's own, and not used again.
        unsafe { system_call(libc::SYS_close, [descriptor as usize, 0, 0, 0, 0, 0]) };
    }
}

fn now_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: fills a local; with this clock and a valid pointer it neither fails nor sets errno.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}
