//! Waiting for the end of a process, for signals and for rings.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::process::{PidfdFlags, pidfd_open};
use varve_model::Pid;

/// A handle on a process that becomes readable when it ends.
#[derive(Debug)]
pub struct PidFd {
    fd: OwnedFd,
}

impl PidFd {
    /// Opens it.
    ///
    /// # Errors
    /// `ESRCH` where there is no such process.
    pub fn open(pid: Pid) -> io::Result<PidFd> {
        let raw = rustix::process::Pid::from_raw(pid.0 as i32)
            .ok_or_else(|| io::Error::from(rustix::io::Errno::SRCH))?;
        Ok(PidFd {
            fd: pidfd_open(raw, PidfdFlags::empty())?,
        })
    }

    /// The number of the process; none once it was reaped, or where it has none here (`proc_pid_fdinfo(5)`).
    pub fn pid(&self) -> Option<Pid> {
        let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", self.fd.as_raw_fd()));
        let text = text.ok()?;
        let number = crate::proc::status_field(&text, "Pid")?;
        // 0: of another PID namespace. -1: reaped.
        number.parse().ok().filter(|pid| *pid > 0).map(Pid)
    }

    /// Whether the process has ended (it may be a zombie).
    pub fn has_ended(&self) -> bool {
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        let zero = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        matches!(poll(&mut fds, Some(&zero)), Ok(n) if n > 0)
    }

    /// Sends the process a signal, and nobody who has its number by now.
    ///
    /// # Errors
    /// Where the process has ended, or this one may not.
    pub fn signal(&self, number: i32) -> io::Result<()> {
        let signal = rustix::process::Signal::from_named_raw(number);
        let signal = signal.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(rustix::process::pidfd_send_signal(&self.fd, signal)?)
    }
}

impl From<OwnedFd> for PidFd {
    /// Of a descriptor that somebody handed over.
    fn from(fd: OwnedFd) -> PidFd {
        PidFd { fd }
    }
}

impl AsFd for PidFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Something to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// Ready as long as there is something to read.
    Level,
    /// Ready only when it has been woken since the last wait. The kernel's ring buffers are readable
    /// whenever they are not empty; this shows when their writer asked for attention.
    Edge,
}

/// Waits for several descriptors.
#[derive(Debug)]
pub struct Waiter {
    epoll: OwnedFd,
}

impl Waiter {
    /// Waits for nothing yet.
    pub fn new() -> io::Result<Waiter> {
        Ok(Waiter {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
        })
    }

    /// Waits for this one too, under a number of the caller's. It must stay open.
    pub fn add(&self, fd: BorrowedFd<'_>, number: u64, trigger: Trigger) -> io::Result<()> {
        let mut flags = epoll::EventFlags::IN;
        if trigger == Trigger::Edge {
            flags |= epoll::EventFlags::ET;
        }
        Ok(epoll::add(
            &self.epoll,
            fd,
            epoll::EventData::new_u64(number),
            flags,
        )?)
    }

    /// The numbers of those that are ready, or none when the time is up.
    pub fn wait(&self, limit: Duration) -> io::Result<Vec<u64>> {
        let limit = Timespec {
            tv_sec: limit.as_secs() as _,
            tv_nsec: limit.subsec_nanos() as _,
        };
        let mut events = Vec::with_capacity(8);
        match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&limit)) {
            Ok(_) => Ok(events.iter().map(|e| e.data.u64()).collect()),
            Err(rustix::io::Errno::INTR) => Ok(Vec::new()),
            Err(e) => Err(e.into()),
        }
    }
}

/// Which of these can be read, or have ended; waits until one of them, for `limit` at most.
pub fn is_readable<const N: usize>(
    files: [BorrowedFd<'_>; N],
    limit: Option<Duration>,
) -> [bool; N] {
    let mut asked = files.map(|file| PollFd::from_borrowed_fd(file, PollFlags::IN));
    let limit = limit.map(|limit| Timespec {
        tv_sec: limit.as_secs() as _,
        tv_nsec: limit.subsec_nanos() as _,
    });
    match poll(&mut asked, limit.as_ref()) {
        Ok(_) => asked.map(|file| !file.revents().is_empty()),
        // Interrupted: nothing is known.
        Err(_) => [false; N],
    }
}
