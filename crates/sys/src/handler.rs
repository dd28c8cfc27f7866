//! The recorder's end of the conversation with a process's fault handler (`varve-preload-abi`, `traps`), who that is, and
//! whether the kernel can trap accesses at all.
//!
//! ABI: `linux/userfaultfd.h`. Moving pages (`UFFDIO_MOVE`) came with 6.8 (adef440691ba), the device that lets a
//! process without rights trap system calls too with 6.1 (2d5de004e009); both are found out by trying.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration as Wait, Instant};

use varve_model::Pid;

use crate::PidFd;

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

/// Only root may open it, as a rule.
fn open_device() -> io::Result<File> {
    crate::rights::with_any_file(|| File::options().read(true).write(true).open(DEVICE))
}

fn create() -> io::Result<OwnedFd> {
    let device = open_device()?;
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

/// The connection to one handler.
#[derive(Debug)]
pub struct HandlerSocket {
    socket: OwnedFd,
}

/// What a handler said.
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

impl HandlerSocket {
    /// Takes the descriptor that a process sent: one end of a pair of datagram sockets.
    ///
    /// # Errors
    /// Where it is something else.
    pub fn adopt(socket: OwnedFd) -> io::Result<HandlerSocket> {
        let kind = rustix::net::sockopt::socket_type(&socket)?;
        if kind != rustix::net::SocketType::SEQPACKET {
            return Err(io::ErrorKind::InvalidData.into());
        }
        rustix::net::sockopt::set_socket_passcred(&socket, true)?;
        Ok(HandlerSocket { socket })
    }

    /// Sends words. Where there is no room for them, waits for a time that the handler may take to make some.
    ///
    /// # Errors
    /// Where the handler is gone or does not listen.
    pub fn send(&self, words: &[u64], limit: Wait) -> io::Result<()> {
        match self.send_with(words, None) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock && !limit.is_zero() => {
                self.wait(limit, rustix::event::PollFlags::OUT);
                self.send_with(words, None)
            }
            other => other,
        }
    }

    /// Sends words, and the device from which userfaultfds are made.
    ///
    /// # Errors
    /// Where the device cannot be opened, or the handler is gone.
    pub fn send_device(&self, words: &[u64]) -> io::Result<()> {
        let device = open_device()?;
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
    /// `UnexpectedEof` where the handler has ended.
    pub fn receive(&self, words: &mut [u64], limit: Wait) -> io::Result<Option<Said>> {
        let until = Instant::now() + limit;
        loop {
            match self.receive_now(words) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // It has ended with words unread (unix(7)): the kernel says so once, and then gives what it had sent before.
                Err(e) if e.kind() == io::ErrorKind::ConnectionReset => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Ok(None);
                    }
                    self.wait(left, rustix::event::PollFlags::IN);
                }
                other => return other.map(Some),
            }
        }
    }

    fn wait(&self, limit: Wait, flags: rustix::event::PollFlags) {
        use rustix::event::{PollFd, poll};
        let mut one = [PollFd::new(&self.socket, flags)];
        let limit = rustix::time::Timespec {
            tv_sec: limit.as_secs().cast_signed(),
            tv_nsec: limit.subsec_nanos().into(),
        };
        // Whatever it says, the next look shows.
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

/// Begins the userfaultfd that a handler made, and keeps it: the memory stays watched when the handler ends.
///
/// # Errors
/// Where it is something else, or the kernel refuses.
pub fn begin_traps(descriptor: OwnedFd) -> io::Result<OwnedFd> {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", descriptor.as_raw_fd()))?;
    if link != std::path::Path::new("anon_inode:[userfaultfd]") {
        return Err(io::ErrorKind::InvalidData.into());
    }
    begin(&descriptor)?;
    Ok(descriptor)
}

/// Makes sure that a process is the fault handler of another: that it is a process of its own, shares the other's
/// memory, and has given up all rights. The numbers may be those of other processes by the time that somebody uses them: the
/// descriptor that is returned shows whether the handler still lives.
///
/// # Errors
/// `PermissionDenied` where it is something else, `Unsupported` where it has a user that others may have too.
pub fn verify_handler(handler: Pid, process: Pid) -> io::Result<PidFd> {
    let alive = PidFd::open(handler)?;
    let status = std::fs::read_to_string(format!("/proc/{handler}/status"))?;
    let shares = || -> io::Result<bool> {
        // A first thread that has ended has no memory, though the others go on.
        Ok(shares_memory(handler, process)?
            || crate::threads(process)?
                .iter()
                .any(|t| shares_memory(handler, Pid(t.tid.0)).unwrap_or(false)))
    };
    if handler == process || !has_no_rights(&status, handler) || !shares()? {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    // Whoever has the same user can take its descriptors from it, and so the device.
    if !has_own_user(&status) {
        return Err(io::ErrorKind::Unsupported.into());
    }
    Ok(alive)
}

/// `KCMP_VM` of `linux/kcmp.h`.
const KCMP_VM: libc::c_int = 1;

/// Whether two processes share their memory.
///
/// # Errors
/// Where one is gone, or this process may not look at them.
pub fn shares_memory(one: Pid, other: Pid) -> io::Result<bool> {
    // SAFETY: takes integers, changes nothing.
    let order = unsafe { libc::syscall(libc::SYS_kcmp, one.0, other.0, KCMP_VM, 0, 0) };
    match order {
        0 => Ok(true),
        1..=3 => Ok(false),
        _ => Err(io::Error::last_os_error()),
    }
}

/// User ids that handlers take, which no account has: this, and the number of their process above it.
const OWN_USERS: std::ops::Range<u32> = 0x7f00_0000..0x7f00_0000 + (1 << 22);

/// Whether the text of `/proc/PID/status` is that of a process with one of those user ids, and no other.
fn has_own_user(status: &str) -> bool {
    let users = crate::proc::status_field(status, "Uid");
    let users = users.map(|u| u.split_whitespace().map(str::parse::<u32>));
    let users: Vec<_> = users.into_iter().flatten().collect();
    let is_own = |user: &Result<u32, _>| user.as_ref().is_ok_and(|u| OWN_USERS.contains(u));
    users.len() == 4 && users.iter().all(|u| is_own(u) && *u == users[0])
}

/// Whether the text of `/proc/PID/status` is that of a process that can gain nothing: no capabilities, no new ones, and
/// a filter on its system calls.
fn has_no_rights(status: &str, pid: Pid) -> bool {
    let field = |name: &str| crate::proc::status_field(status, name);
    let is_empty =
        |name| field(name).and_then(|sets| u64::from_str_radix(sets, 16).ok()) == Some(0);
    field("Tgid") == Some(&pid.0.to_string())
        && ["CapInh", "CapPrm", "CapEff", "CapAmb"]
            .iter()
            .all(|name| is_empty(name))
        && field("NoNewPrivs") == Some("1")
        && field("Seccomp") == Some("2")
}

/// Whether a process has a limit on its address space or its data.
pub fn has_limited_memory(pid: Pid) -> bool {
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap_or_default();
    is_limited(&limits)
}

/// The same, of the text of `/proc/PID/limits`. Where that cannot be read, there may be one.
fn is_limited(limits: &str) -> bool {
    ["Max address space", "Max data size"].iter().any(|name| {
        let soft = limits
            .lines()
            .find_map(|line| line.strip_prefix(name)?.split_ascii_whitespace().next());
        soft != Some("unlimited")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handler_has_a_user_of_its_own() {
        let of = |users: &str| has_own_user(&format!("Name:\tx\nUid:\t{users}\nGid:\t0\n"));
        assert!(of("2130706439\t2130706439\t2130706439\t2130706439"));
        for users in [
            "0\t0\t0\t0",
            "1000\t1000\t1000\t1000",
            "2130706439\t0\t0\t0",
            "",
        ] {
            assert!(!of(users), "{users}");
        }
        assert!(!of("2130706439\t2130706439\t2130706439\t2130706440"));
    }

    #[test]
    fn what_is_no_handler_is_refused() {
        let null = File::open("/dev/null").unwrap();
        assert!(begin_traps(null.try_clone().unwrap().into()).is_err());
        assert!(HandlerSocket::adopt(null.into()).is_err());
    }

    #[test]
    fn a_handler_that_ends_is_noticed_and_silence_is_not_an_end() {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
        let (ours, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        let ours = HandlerSocket::adopt(ours).unwrap();
        let theirs = HandlerSocket::adopt(theirs).unwrap();
        let mut words = [0u64; 4];
        let mut receive = |limit| {
            ours.receive(&mut words, limit)
                .map(|s| s.map(|s| (s.words, s.pid)))
        };
        assert!(receive(Wait::ZERO).unwrap().is_none());
        theirs.send(&[1, 2, 3], Wait::ZERO).unwrap();
        let own = Some(Pid(std::process::id()));
        assert_eq!(receive(Wait::ZERO).unwrap(), Some((3, own)));
        drop(theirs);
        // A process that another test has just forked may have the other end for a moment longer.
        let end = receive(Wait::from_secs(60)).unwrap_err();
        assert_eq!(end.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_process_shares_its_own_memory_and_no_others() {
        let own = Pid(std::process::id());
        assert!(shares_memory(own, own).unwrap());
        let mut other = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let shares = shares_memory(own, Pid(other.id()));
        other.kill().unwrap();
        other.wait().unwrap();
        assert!(!shares.unwrap());
    }

    #[test]
    fn who_has_rights_is_no_handler() {
        let own = Pid(std::process::id());
        let error = verify_handler(own, own).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        let status = "Tgid:\t7\nCapInh:\t0000000000000000\nCapPrm:\t0000000000000000\nCapEff:\t0000000000000000\n\
                      CapBnd:\t000001ffffffffff\nCapAmb:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\n";
        assert!(has_no_rights(status, Pid(7)));
        assert!(!has_no_rights(status, Pid(8)));
        for (has, had) in [
            ("CapPrm:\t0", "CapPrm:\t8"),
            ("Privs:\t1", "Privs:\t0"),
            ("comp:\t2", "comp:\t0"),
        ] {
            assert!(!has_no_rights(&status.replace(has, had), Pid(7)), "{had}");
        }
        assert!(!has_no_rights("", Pid(7)));
    }

    #[test]
    fn limits_on_memory_are_seen() {
        let none = "Limit                     Soft Limit           Hard Limit           Units     \n\
                    Max data size             unlimited            unlimited            bytes     \n\
                    Max address space         unlimited            unlimited            bytes     \n";
        assert!(!is_limited(none));
        assert!(is_limited(&none.replacen(
            "space         unlimited",
            "space         8000000  ",
            1
        )));
        assert!(is_limited(""));
    }
}
