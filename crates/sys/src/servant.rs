//! The recorder's end of the conversation with a process's servant (`varve-agent-ring`, `traps`), and whether the
//! kernel can trap accesses at all.
//!
//! ABI: `linux/userfaultfd.h`. Moving pages (`UFFDIO_MOVE`) came with 6.8 (adef440691ba), the device that lets a
//! process without rights trap system calls too with 6.1 (2d5de004e009); both are found out by trying.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration as Wait, Instant};

use varve_model::Pid;

const DEVICE: &str = "/dev/userfaultfd";
const USERFAULTFD_IOC_NEW: u64 = 0xaa00;
const UFFDIO_API: u64 = 0xc018_aa3f;
const API: u64 = 0xaa;
const FEATURE_EVENT_FORK: u64 = 1 << 1;
const FEATURE_EVENT_REMAP: u64 = 1 << 2;
const FEATURE_EVENT_REMOVE: u64 = 1 << 3;
const FEATURE_EVENT_UNMAP: u64 = 1 << 6;
const FEATURE_MOVE: u64 = 1 << 16;
const FEATURES: u64 = FEATURE_EVENT_FORK
    | FEATURE_EVENT_REMAP
    | FEATURE_EVENT_REMOVE
    | FEATURE_EVENT_UNMAP
    | FEATURE_MOVE;

/// Asks a fresh userfaultfd for all that trapping accesses needs.
fn begin(descriptor: &OwnedFd) -> io::Result<()> {
    let mut api = [API, FEATURES, 0u64];
    // SAFETY: the argument is as long as the struct that this request reads and writes.
    let result = unsafe { libc::ioctl(descriptor.as_raw_fd(), UFFDIO_API as _, api.as_mut_ptr()) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Whether this kernel lets this process trap accesses, system calls included, and move pages.
///
/// # Errors
/// What the kernel said to the first step that it refused.
pub fn try_traps() -> io::Result<()> {
    create().map(drop)
}

fn create() -> io::Result<OwnedFd> {
    let device = File::options().read(true).write(true).open(DEVICE)?;
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
    // SAFETY: takes an integer, makes a descriptor.
    let made = unsafe { libc::ioctl(device.as_raw_fd(), USERFAULTFD_IOC_NEW as _, flags) };
    if made < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a fresh descriptor that nobody else has.
    let descriptor = unsafe { OwnedFd::from_raw_fd(made) };
    begin(&descriptor)?;
    Ok(descriptor)
}

/// The connection to one servant.
#[derive(Debug)]
pub struct ServantSocket {
    socket: OwnedFd,
}

/// What a servant said.
#[derive(Debug)]
pub struct Said {
    /// Who said it, in this process's namespace.
    pub pid: Option<Pid>,
    /// The descriptor that came with it.
    pub descriptor: Option<OwnedFd>,
    /// How many words.
    pub words: usize,
}

#[repr(C, align(8))]
struct Control([u8; 64]);

impl ServantSocket {
    /// Takes the descriptor that a process sent: one end of a pair of datagram sockets.
    ///
    /// # Errors
    /// Where it is something else.
    pub fn adopt(socket: OwnedFd) -> io::Result<ServantSocket> {
        let kind = rustix::net::sockopt::socket_type(&socket)?;
        if kind != rustix::net::SocketType::SEQPACKET {
            return Err(io::ErrorKind::InvalidData.into());
        }
        rustix::net::sockopt::set_socket_passcred(&socket, true)?;
        Ok(ServantSocket { socket })
    }

    /// Sends words.
    ///
    /// # Errors
    /// Where the servant is gone or does not listen.
    pub fn send(&self, words: &[u64]) -> io::Result<()> {
        self.send_with(words, None)
    }

    /// Sends words, and the device from which userfaultfds are made.
    ///
    /// # Errors
    /// Where the device cannot be opened, or the servant is gone.
    pub fn send_device(&self, words: &[u64]) -> io::Result<()> {
        let device = File::options().read(true).write(true).open(DEVICE)?;
        self.send_with(words, Some(device.as_raw_fd()))
    }

    fn send_with(&self, words: &[u64], descriptor: Option<i32>) -> io::Result<()> {
        let mut data = libc::iovec {
            iov_base: words.as_ptr().cast_mut().cast(),
            iov_len: size_of_val(words),
        };
        let mut control = Control([0; 64]);
        // SAFETY: zeroes are a valid msghdr.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = &raw mut data;
        message.msg_iovlen = 1;
        if let Some(descriptor) = descriptor {
            message.msg_control = control.0.as_mut_ptr().cast();
            // SAFETY: computes with integers.
            message.msg_controllen = unsafe { libc::CMSG_SPACE(4) } as _;
            // SAFETY: the control buffer has room for one header with one descriptor.
            unsafe {
                let header = libc::CMSG_FIRSTHDR(&raw const message);
                (*header).cmsg_level = libc::SOL_SOCKET;
                (*header).cmsg_type = libc::SCM_RIGHTS;
                (*header).cmsg_len = libc::CMSG_LEN(4) as _;
                std::ptr::write_unaligned(libc::CMSG_DATA(header).cast(), descriptor);
            }
        }
        // SAFETY: the message points to what lives here, with the sizes that it states.
        let sent = unsafe {
            libc::sendmsg(
                self.socket.as_raw_fd(),
                &raw const message,
                libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT,
            )
        };
        if sent < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// The next message within a time, if there is one.
    ///
    /// # Errors
    /// `UnexpectedEof` where the servant has ended.
    pub fn receive(&self, words: &mut [u64], limit: Wait) -> io::Result<Option<Said>> {
        let until = Instant::now() + limit;
        loop {
            match self.receive_now(words) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Ok(None);
                    }
                    self.wait(left);
                }
                other => return other.map(Some),
            }
        }
    }

    fn wait(&self, limit: Wait) {
        use rustix::event::{PollFd, PollFlags, poll};
        let mut one = [PollFd::new(&self.socket, PollFlags::IN)];
        let limit = rustix::time::Timespec {
            tv_sec: limit.as_secs().cast_signed(),
            tv_nsec: limit.subsec_nanos().into(),
        };
        // Whatever it says, the next look tells.
        let _ = poll(&mut one, Some(&limit));
    }

    fn receive_now(&self, words: &mut [u64]) -> io::Result<Said> {
        let mut data = libc::iovec {
            iov_base: words.as_mut_ptr().cast(),
            iov_len: size_of_val(words),
        };
        let mut control = Control([0; 64]);
        // SAFETY: zeroes are a valid msghdr.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = &raw mut data;
        message.msg_iovlen = 1;
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = size_of::<Control>() as _;
        // SAFETY: the message points to what lives here, with the sizes that it states.
        let got = unsafe {
            libc::recvmsg(
                self.socket.as_raw_fd(),
                &raw mut message,
                libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT,
            )
        };
        if got < 0 {
            return Err(io::Error::last_os_error());
        }
        let (pid, descriptor) = crate::userfault::unpack(&message);
        if got == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(Said {
            pid,
            descriptor,
            words: got as usize / size_of::<u64>(),
        })
    }
}

/// Begins the userfaultfd that a servant made, which then belongs to it alone again.
///
/// # Errors
/// Where it is something else, or the kernel refuses.
pub fn begin_traps(descriptor: OwnedFd) -> io::Result<()> {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", descriptor.as_raw_fd()))?;
    if link != std::path::Path::new("anon_inode:[userfaultfd]") {
        return Err(io::ErrorKind::InvalidData.into());
    }
    begin(&descriptor)
}

/// Lets a process run before all others, as far as the scheduler does.
pub fn prefer(pid: Pid) {
    let Some(raw) = rustix::process::Pid::from_raw(pid.0.cast_signed()) else {
        return;
    };
    // Without the right to, it runs as all do.
    let _ = rustix::process::setpriority_process(Some(raw), -20);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_servant_is_refused() {
        let null = File::open("/dev/null").unwrap();
        assert!(begin_traps(null.try_clone().unwrap().into()).is_err());
        assert!(ServantSocket::adopt(null.into()).is_err());
    }

    #[test]
    fn a_servant_that_ends_is_noticed_and_silence_is_not_an_end() {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
        let (ours, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        let ours = ServantSocket::adopt(ours).unwrap();
        let theirs = ServantSocket::adopt(theirs).unwrap();
        let mut words = [0u64; 4];
        let mut receive = |limit| {
            ours.receive(&mut words, limit)
                .map(|s| s.map(|s| (s.words, s.pid)))
        };
        assert!(receive(Wait::ZERO).unwrap().is_none());
        theirs.send(&[1, 2, 3]).unwrap();
        let own = Some(Pid(std::process::id()));
        assert_eq!(receive(Wait::ZERO).unwrap(), Some((3, own)));
        drop(theirs);
        // A process that another test has just forked may have the other end for a moment longer.
        let end = receive(Wait::from_secs(60)).unwrap_err();
        assert_eq!(end.kind(), io::ErrorKind::UnexpectedEof);
    }
}
