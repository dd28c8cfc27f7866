//! Clocks.

use rustix::time::{ClockId, clock_getres, clock_gettime};
use varve_model::{Duration, Pid, Time};
use varve_preload_abi::clock::of_machine;

fn read(clock: ClockId) -> u64 {
    let t = clock_gettime(clock);
    (t.tv_sec as u64) * 1_000_000_000 + t.tv_nsec as u64
}

/// `CLOCK_MONOTONIC` of the machine, which the kernel's events have, whatever time namespace this process is in.
pub fn monotonic_now() -> Time {
    Time(of_machine(read(ClockId::Monotonic)))
}

/// `CLOCK_REALTIME`, nanoseconds since 1970.
pub fn realtime_now() -> u64 {
    read(ClockId::Realtime)
}

/// CPU time that this process has used, all threads together.
pub fn cpu_time() -> Duration {
    Duration(read(ClockId::ProcessCPUTime))
}

/// CPU time that the calling thread has used.
pub fn thread_cpu_time() -> Duration {
    Duration(read(ClockId::ThreadCPUTime))
}

/// CPU time that a process has used, all its threads together, those too that have ended; none where it has ended itself.
/// By its clock (clock_getcpuclockid(3)), whose number is made of the process's.
pub fn cpu_time_of(pid: Pid) -> Option<Duration> {
    /// `CPUCLOCK_SCHED` (include/linux/posix-timers.h).
    const SCHEDULED: i32 = 2;
    let clock = (!(pid.0 as i32) << 3) | SCHEDULED;
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is to a local that the call fills; the kernel refuses numbers that are no clock.
    let result = unsafe { libc::clock_gettime(clock, &raw mut time) };
    (result == 0).then(|| Duration(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64))
}

/// How long all CPUs together had nothing to do since the machine began: `idle` and `iowait` of `/proc/stat` (proc(5)), which
/// count hundredths of a second.
pub fn idle_time() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/stat").ok()?;
    let mut fields = text.lines().next()?.split_ascii_whitespace().skip(4);
    let idle: u64 = fields.next()?.parse().ok()?;
    let waiting: u64 = fields.next()?.parse().ok()?;
    Some(Duration((idle + waiting).saturating_mul(10_000_000)))
}

/// How far `CLOCK_BOOTTIME`, in which `/proc/PID/stat` gives start times, is ahead of
/// `CLOCK_MONOTONIC`: the time the machine was suspended.
pub fn boot_offset() -> Duration {
    Duration(read(ClockId::Boottime).saturating_sub(monotonic_now().0))
}

/// How often the kernel looks whether another thread should run: its tick, which the coarse clocks count.
pub fn tick() -> Duration {
    let t = clock_getres(ClockId::MonotonicCoarse);
    Duration((t.tv_sec as u64) * 1_000_000_000 + t.tv_nsec as u64)
}

/// How long the shortest of system calls takes this thread: the best of some hundred. Half a millisecond of work.
pub fn system_call_time() -> Duration {
    const CALLS: u64 = 50;
    let once = || {
        let began = monotonic_now();
        for _ in 0..CALLS {
            // SAFETY: takes nothing and cannot fail. The C library does not remember its answer.
            unsafe { libc::syscall(libc::SYS_getppid) };
        }
        (monotonic_now() - began).0 / CALLS
    };
    Duration((0..40).map(|_| once()).min().unwrap_or(0))
}

/// Raises the calling thread's priority, so that a busy target does not keep the recorder from
/// letting it go. Where that is not allowed nothing changes.
pub fn thread_priority(nice: i32) {
    // SAFETY: setpriority takes three integers and touches no memory.
    unsafe {
        libc::setpriority(libc::PRIO_PROCESS, 0, nice);
    }
}

/// The priority of a thread that others do not wait for, as long as this lives; then that of [`thread_priority`] `-20` again.
#[derive(Debug)]
pub struct Patient(());

impl Patient {
    /// Begins.
    pub fn begin() -> Patient {
        thread_priority(0);
        Patient(())
    }
}

impl Drop for Patient {
    fn drop(&mut self) {
        thread_priority(-20);
    }
}

/// Keeps the calling thread, when it wakes, from taking the CPU from the thread that woke it; its share of a busy CPU stays
/// (`SCHED_BATCH`, sched(7)). Where that is not allowed nothing changes.
pub fn let_wakers_go_on() {
    set_scheduler(libc::SCHED_BATCH, 0);
}

/// Runs the calling thread before all ordinary threads for as long as this lives. Where that is not
/// allowed nothing changes.
#[derive(Debug)]
pub struct Urgent {
    begun: bool,
}

impl Urgent {
    /// Begins: the lowest real-time priority, which children do not inherit (sched(7)).
    pub fn begin() -> Urgent {
        Urgent {
            begun: set_scheduler(libc::SCHED_FIFO, 1),
        }
    }
}

impl Drop for Urgent {
    fn drop(&mut self) {
        if self.begun {
            set_scheduler(libc::SCHED_OTHER, 0);
        }
    }
}

fn set_scheduler(policy: i32, priority: i32) -> bool {
    let parameters = libc::sched_param {
        sched_priority: priority,
    };
    // SAFETY: the calling thread's own policy; the parameters live for the call.
    unsafe { libc::sched_setscheduler(0, policy | libc::SCHED_RESET_ON_FORK, &parameters) == 0 }
}
