//! The recorder's side of a meeting with a process.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::channel::{
    ANSWER_WORDS, Control, HELLO, HELLO_WORDS, Identity, Kind, SOCKET, identity_of,
};
use crate::layout::VERSION;

/// Connections that wait to be taken; more wait in `connect`.
const BACKLOG: i32 = 1024;
/// `SO_PEERPIDFD`, from Linux 6.5 on.
const SO_PEERPIDFD: i32 = 77;

/// The identity of a folder of the calling user's.
///
/// # Errors
/// Where there is none.
pub fn identity(folder: &Path) -> io::Result<Identity> {
    let path = c_string(folder)?;
    // SAFETY: zeroes are a valid struct of integers.
    let mut found: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: a C string and a struct that live here.
    check(unsafe {
        libc::statx(
            libc::AT_FDCWD,
            path.as_ptr(),
            libc::AT_SYMLINK_NOFOLLOW,
            libc::STATX_INO | libc::STATX_BTIME,
            &raw mut found,
        )
    })?;
    // SAFETY: takes nothing, cannot fail.
    let uid = unsafe { libc::geteuid() };
    Ok(identity_of(&found, uid))
}

/// The socket in the folder.
#[derive(Debug)]
pub struct Listener(OwnedFd);

impl Listener {
    /// Listens in a folder. Everybody may connect: who is answered is another question.
    ///
    /// # Errors
    /// Where the socket cannot be made there.
    pub fn bind(folder: &Path) -> io::Result<Listener> {
        let path = folder.join(SOCKET);
        let bytes = path.as_os_str().as_bytes();
        let mut at = libc::sockaddr_un {
            sun_family: libc::AF_UNIX as u16,
            sun_path: [0; 108],
        };
        if bytes.len() >= at.sun_path.len() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        for (to, byte) in at.sun_path.iter_mut().zip(bytes) {
            *to = byte.cast_signed();
        }
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: takes integers, makes a descriptor.
        let socket = unsafe { libc::socket(libc::AF_UNIX, kind, 0) };
        check(socket)?;
        // SAFETY: a fresh descriptor that nobody else has.
        let socket = unsafe { OwnedFd::from_raw_fd(socket) };
        let size = size_of::<libc::sockaddr_un>() as libc::socklen_t;
        // SAFETY: a struct that lives here, of the size that is stated.
        check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const at).cast(), size) })?;
        let name = c_string(&path)?;
        // SAFETY: a C string.
        check(unsafe { libc::chmod(name.as_ptr(), 0o666) })?;
        // SAFETY: takes integers.
        check(unsafe { libc::listen(socket.as_raw_fd(), BACKLOG) })?;
        Ok(Listener(socket))
    }

    /// The next process that has connected; none if there is none.
    ///
    /// # Errors
    /// Where the kernel has no descriptors left, and the like.
    pub fn accept(&self) -> io::Result<Option<Peer>> {
        let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: no address is asked for.
        let socket = unsafe {
            libc::accept4(
                self.0.as_raw_fd(),
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                flags,
            )
        };
        if socket < 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock
                | io::ErrorKind::Interrupted
                | io::ErrorKind::ConnectionAborted => Ok(None),
                _ => Err(error),
            };
        }
        // SAFETY: a fresh descriptor that nobody else has.
        let socket = unsafe { OwnedFd::from_raw_fd(socket) };
        let pid = peer_of(&socket)?;
        Ok(Some(Peer { socket, pid }))
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A process that has connected.
#[derive(Debug)]
pub struct Peer {
    socket: OwnedFd,
    pid: u32,
}

/// What a process has said.
#[derive(Debug)]
pub struct Hello {
    /// What it wants.
    pub kind: Kind,
    /// A number that depends on the kind.
    pub number: u64,
    /// What it hands over.
    pub descriptor: Option<OwnedFd>,
}

impl Peer {
    /// Who called `connect`, as the kernel says, in this process's pid namespace; 0 for a process that is not in it.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether the process is there still, so that its number is nobody else's. On kernels that do not know it is taken to be there.
    ///
    /// # Errors
    /// Where there is no descriptor or memory left to find out with.
    pub fn is_there(&self) -> io::Result<bool> {
        let mut pidfd = -1i32;
        let mut bytes = size_of::<i32>() as libc::socklen_t;
        // SAFETY: an integer that lives here, of the size that is stated.
        let result = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_SOCKET,
                SO_PEERPIDFD,
                (&raw mut pidfd).cast(),
                &raw mut bytes,
            )
        };
        if result < 0 {
            let error = io::Error::last_os_error();
            return match error.raw_os_error() {
                Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM) => Err(error),
                code => Ok(code == Some(libc::ENOPROTOOPT)),
            };
        }
        // SAFETY: a fresh descriptor that nobody else has.
        let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
        let mut one = libc::pollfd {
            fd: pidfd.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one struct that lives here; it does not wait.
        Ok(unsafe { libc::poll(&raw mut one, 1, 0) == 0 })
    }

    /// What it says; none if it has not said it yet.
    ///
    /// # Errors
    /// Where it is gone, or speaks another language.
    pub fn hello(&self) -> io::Result<Option<Hello>> {
        let mut words = [0u64; HELLO_WORDS];
        let mut data = libc::iovec {
            iov_base: words.as_mut_ptr().cast(),
            iov_len: size_of_val(&words),
        };
        let mut control = Control::with(&[]);
        // SAFETY: zeroes are a valid msghdr.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = &raw mut data;
        message.msg_iovlen = 1;
        message.msg_control = (&raw mut control).cast();
        // More descriptors than one do not fit, and the kernel closes them.
        message.msg_controllen = Control::bytes(1) as _;
        let flags = libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT;
        // SAFETY: the message points to what lives here, with the sizes that it states.
        let got = unsafe { libc::recvmsg(self.socket.as_raw_fd(), &raw mut message, flags) };
        if got < 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(error),
            };
        }
        let received = control.received(message.msg_controllen as usize).first();
        // SAFETY: the kernel has just put it into this process's table.
        let descriptor = received.map(|d| unsafe { OwnedFd::from_raw_fd(*d) });
        let kind = match words {
            [HELLO, version, kind, _]
                if got as usize == size_of_val(&words) && version == u64::from(VERSION) =>
            {
                Kind::of(kind)
            }
            _ => None,
        };
        let kind = kind.ok_or(io::ErrorKind::InvalidData)?;
        Ok(Some(Hello {
            kind,
            number: words[3],
            descriptor,
        }))
    }

    /// Gives it what it wanted.
    ///
    /// # Errors
    /// Where it is gone.
    pub fn give(&self, kind: Kind, number: u64, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let words: [u64; ANSWER_WORDS] = [kind.word(), number];
        let mut data = libc::iovec {
            iov_base: words.as_ptr().cast_mut().cast(),
            iov_len: size_of_val(&words),
        };
        let mut raw = [-1; crate::channel::MAX_DESCRIPTORS];
        let count = descriptors.len().min(raw.len());
        for (to, descriptor) in raw.iter_mut().zip(descriptors) {
            *to = descriptor.as_raw_fd();
        }
        let mut control = Control::with(&raw[..count]);
        // SAFETY: zeroes are a valid msghdr.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = &raw mut data;
        message.msg_iovlen = 1;
        if count > 0 {
            message.msg_control = (&raw mut control).cast();
            message.msg_controllen = Control::bytes(count) as _;
        }
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        // SAFETY: the message points to what lives here, with the sizes that it states.
        let sent = unsafe { libc::sendmsg(self.socket.as_raw_fd(), &raw const message, flags) };
        if sent < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}

impl AsFd for Peer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The process at the other end, as the kernel says.
fn peer_of(socket: &OwnedFd) -> io::Result<u32> {
    let mut peer = libc::ucred {
        pid: 0,
        uid: u32::MAX,
        gid: u32::MAX,
    };
    let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: a struct that lives here, of the size that is stated.
    check(unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut bytes,
        )
    })?;
    Ok(u32::try_from(peer.pid).unwrap_or(0))
}

fn c_string(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::ErrorKind::InvalidInput.into())
}

fn check(result: i32) -> io::Result<()> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
