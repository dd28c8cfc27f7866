//! A command that runs by itself, and what it used.

use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::process::Child;
use std::time::{Duration as Wait, Instant};

use varve_model::{Bytes, Duration, Pid};

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
    /// Its exit code, or 128 and the signal.
    pub code: i32,
}

/// Waits for a child that was started at this moment.
///
/// # Errors
/// Where it cannot be waited for.
pub fn wait_measured(child: &Child, began: Instant) -> io::Result<Used> {
    let pid = Pid(child.id());
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
                code: match libc::WIFSIGNALED(status) {
                    true => 128 + libc::WTERMSIG(status),
                    false => libc::WEXITSTATUS(status),
                },
            });
        }
        if let Some(resident) = resident(pid) {
            sum += resident;
            looks += 1;
        }
        std::thread::sleep(LOOK_EVERY);
    }
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
        command.args(["-c", "sleep 0.05; exit 7"]);
        let began = Instant::now();
        let child = command.spawn().unwrap();
        let used = wait_measured(&child, began).unwrap();
        assert_eq!(used.code, 7);
        assert!(used.wall >= Duration(50_000_000), "{used:?}");
        assert!(used.peak > Bytes(0) && used.mean > Bytes(0), "{used:?}");
    }
}
