//! A command that runs by itself, and what it used.

use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::process::Child;
use std::time::{Duration as Wait, Instant};

use varve_model::{Bytes, Duration, Pid};

use crate::{PidFd, Signals};

/// How often it is looked how much memory it has.
const LOOK_EVERY: Wait = Wait::from_millis(5);
const PAGE: u64 = 4096;

/// What a command used.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Used {
    /// From its start to its end.
    pub wall: Duration,
    /// CPU time, with that of the children that it waited for.
    pub cpu: Duration,
    /// The most resident memory of one of its processes (`ru_maxrss`).
    pub peak: Bytes,
    /// Resident memory of its first process, the mean of looks at it.
    pub mean: Bytes,
    /// Page faults, with those of the children that it waited for (`ru_minflt`, `ru_majflt`).
    pub faults: u64,
    /// Its exit code, or 128 and the signal.
    pub code: i32,
    /// A signal that this program got meanwhile, and passed on.
    pub interrupted: Option<i32>,
}

/// Waits for a child that was started at this moment. A signal is passed on to it, unless the terminal has sent it to both; the second one
/// kills it.
///
/// # Errors
/// Where it cannot be waited for.
pub fn wait_measured(child: &Child, began: Instant, signals: &mut Signals) -> io::Result<Used> {
    wait_measured_while(child, began, signals, &mut || true)
}

/// The same; `go_on` is asked every few milliseconds, and the child is killed once it says no.
///
/// # Errors
/// Where it cannot be waited for.
pub fn wait_measured_while(
    child: &Child,
    began: Instant,
    signals: &mut Signals,
    go_on: &mut dyn FnMut() -> bool,
) -> io::Result<Used> {
    let pid = Pid(child.id());
    let mut interrupted = None;
    let (mut looks, mut sum) = (0u64, 0u64);
    loop {
        let mut status = 0;
        let mut usage = MaybeUninit::<libc::rusage>::zeroed();
        let id = pid.0.cast_signed();
        // SAFETY: both point to what lives here and is as large as the kernel writes.
        let found = unsafe { libc::wait4(id, &raw mut status, libc::WNOHANG, usage.as_mut_ptr()) };
        if found < 0 {
            let error = io::Error::last_os_error();
            if error.kind() == io::ErrorKind::Interrupted {
                continue;
            }
            return Err(error);
        }
        if found == id {
            let wall = Duration(began.elapsed().as_nanos() as u64);
            // SAFETY: zeroes are a valid struct of integers, and the kernel has written it.
            let usage = unsafe { usage.assume_init() };
            let time = |t: libc::timeval| {
                t.tv_sec.unsigned_abs() * 1_000_000_000 + t.tv_usec.unsigned_abs() * 1000
            };
            return Ok(Used {
                wall,
                cpu: Duration(time(usage.ru_utime) + time(usage.ru_stime)),
                peak: Bytes(usage.ru_maxrss.unsigned_abs() * 1024),
                mean: Bytes(sum.checked_div(looks).unwrap_or(0)),
                faults: usage.ru_minflt.unsigned_abs() + usage.ru_majflt.unsigned_abs(),
                code: match libc::WIFSIGNALED(status) {
                    true => 128 + libc::WTERMSIG(status),
                    false => libc::WEXITSTATUS(status),
                },
                interrupted,
            });
        }
        if let Some(received) = signals.take()? {
            let to_child = match interrupted {
                Some(_) => Some(libc::SIGKILL),
                None if received.from_terminal => None,
                None => Some(received.number),
            };
            interrupted.get_or_insert(received.number);
            if let Some(number) = to_child {
                // It has not been waited for: the number is still its own. One that has ended needs no signal.
                let _ = PidFd::open(pid).and_then(|fd| fd.signal(number));
            }
        }
        if !go_on() {
            let _ = PidFd::open(pid).and_then(|fd| fd.signal(libc::SIGKILL));
        }
        if let Some(resident) = resident(pid) {
            sum += resident;
            looks += 1;
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// What the children of this process used that it has waited for, and theirs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChildrenUsed {
    /// CPU time.
    pub cpu: Duration,
    /// Page faults that had to wait for a device.
    pub major_faults: u64,
}

/// See [`ChildrenUsed`].
pub fn children_used() -> ChildrenUsed {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: a struct that lives here and is as large as the kernel writes; zeroes are a valid one.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr());
        usage.assume_init()
    };
    let time = |t: libc::timeval| {
        t.tv_sec.unsigned_abs() * 1_000_000_000 + t.tv_usec.unsigned_abs() * 1000
    };
    ChildrenUsed {
        cpu: Duration(time(usage.ru_utime) + time(usage.ru_stime)),
        major_faults: usage.ru_majflt.unsigned_abs(),
    }
}

/// Does something while what this process writes to its standard output goes nowhere: a child that is made then has that for its own.
///
/// # Errors
/// Where `/dev/null` cannot be opened.
pub fn without_output<T>(work: impl FnOnce() -> T) -> io::Result<T> {
    let nowhere = fs::OpenOptions::new().write(true).open("/dev/null")?;
    with_output(nowhere.as_fd(), work)
}

/// Does something while this process's standard output is another file: a program that is started then writes there.
///
/// # Errors
/// Where the descriptors cannot be exchanged.
pub fn with_output<T>(to: BorrowedFd<'_>, work: impl FnOnce() -> T) -> io::Result<T> {
    let kept = rustix::io::fcntl_dupfd_cloexec(std::io::stdout(), 3)?;
    let put = |file: BorrowedFd<'_>| {
        // SAFETY: takes integers; the descriptor of the standard output is replaced and not owned by anything.
        match unsafe { libc::dup2(file.as_raw_fd(), libc::STDOUT_FILENO) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    };
    put(to)?;
    let result = work();
    put(kept.as_fd())?;
    Ok(result)
}

fn resident(pid: Pid) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let pages: u64 = text.split_whitespace().nth(1)?.parse().ok()?;
    (pages > 0).then_some(pages * PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::zombie_processes, reason = "what is tested waits for it")]
    fn a_command_is_measured_to_its_end() {
        let mut command = std::process::Command::new("sh");
        command.args(["-c", "sleep 1; exit 7"]);
        let mut signals = Signals::catch().unwrap();
        let began = Instant::now();
        let child = signals.spawn(&mut command).unwrap();
        let used = wait_measured(&child, began, &mut signals).unwrap();
        assert_eq!((used.code, used.interrupted), (7, None));
        // A child that has its own signals is ended by them.
        let mut command = std::process::Command::new("sh");
        command.args(["-c", "kill -ALRM $$; kill -TERM $$; exit 7"]);
        let child = signals.spawn(&mut command).unwrap();
        let ended = wait_measured(&child, Instant::now(), &mut signals).unwrap();
        assert_eq!(ended.code, 128 + libc::SIGALRM);
        assert!(used.wall >= Duration(1_000_000_000), "{used:?}");
        assert!(
            used.faults > 0 && used.peak > Bytes(0) && used.mean > Bytes(0),
            "{used:?}"
        );
    }
}
