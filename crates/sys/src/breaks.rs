//! Breaks in work that nobody waits for, so that a machine's other threads have their turn.
//!
//! A thread's nice value counts within its cgroup or session alone (sched(7), "The autogroup feature"), so that a busy
//! thread of a shell takes as much as all of a server's on the same CPU: they wait for tens of milliseconds.

use std::io;
use std::mem::MaybeUninit;
use std::time::Duration;

use rustix::thread::gettid;

/// The CPU time between two breaks, and their length.
const WORK: Duration = Duration::from_millis(3);
const BREAK: Duration = Duration::from_millis(1);

/// Breaks of the thread that made this, until it is dropped. A signal (SIGURG) takes it out of whatever it does.
#[derive(Debug)]
pub struct Breaks {
    timer: libc::timer_t,
}

impl Breaks {
    /// Begins.
    ///
    /// # Errors
    /// Where the kernel has no timer left.
    pub fn begin() -> io::Result<Breaks> {
        let mut timer = MaybeUninit::uninit();
        // SAFETY: the structs live here and are valid where they are zero; the handler calls nothing but a system call.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = rest as *const () as libc::sighandler_t;
            action.sa_flags = libc::SA_RESTART;
            check(libc::sigaction(
                libc::SIGURG,
                &raw const action,
                std::ptr::null_mut(),
            ))?;
            let mut event: libc::sigevent = std::mem::zeroed();
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_signo = libc::SIGURG;
            event.sigev_notify_thread_id = gettid().as_raw_nonzero().get();
            check(libc::timer_create(
                libc::CLOCK_THREAD_CPUTIME_ID,
                &raw mut event,
                timer.as_mut_ptr(),
            ))?;
            let breaks = Breaks {
                timer: timer.assume_init(),
            };
            let work = timespec(WORK);
            let every = libc::itimerspec {
                it_interval: work,
                it_value: work,
            };
            check(libc::timer_settime(
                breaks.timer,
                0,
                &raw const every,
                std::ptr::null_mut(),
            ))?;
            Ok(breaks)
        }
    }
}

impl Drop for Breaks {
    fn drop(&mut self) {
        // SAFETY: made by `begin`, and deleted once. A signal that is under way finds its handler still.
        unsafe { libc::timer_delete(self.timer) };
    }
}

/// How often a test's thread has rested.
#[cfg(test)]
static RESTS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

extern "C" fn rest(_: libc::c_int) {
    #[cfg(test)]
    RESTS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let length = timespec(BREAK);
    // SAFETY: clock_nanosleep is async-signal-safe, returns errors instead of setting errno, and writes nothing here.
    unsafe {
        libc::clock_nanosleep(
            libc::CLOCK_MONOTONIC,
            0,
            &raw const length,
            std::ptr::null_mut(),
        )
    };
}

fn timespec(length: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: length.as_secs().cast_signed(),
        tv_nsec: length.subsec_nanos().into(),
    }
}

fn check(result: libc::c_int) -> io::Result<()> {
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::thread_cpu_time;

    #[test]
    fn a_busy_thread_rests() {
        let sleeps = || RESTS.load(std::sync::atomic::Ordering::Relaxed);
        let busy = || {
            let (before, began) = (sleeps(), thread_cpu_time());
            // A guard against hanging: the machine may be busy.
            let until = Instant::now() + Duration::from_secs(300);
            while thread_cpu_time() - began < varve_model::Duration(100_000_000) {
                assert!(Instant::now() < until, "it rests for ever");
            }
            sleeps() - before
        };
        let breaks = Breaks::begin().unwrap();
        let rests = busy();
        // The kernel looks at such timers once in a tick, which is 10 ms at most.
        assert!(rests >= 5, "{rests}");
        drop(breaks);
        assert_eq!(busy(), 0, "they have ended");
    }
}
