//! Every thread has its turn between two holds.
//!
//! Letting the target go wakes all of its threads, and the scheduler places them anew: by how much each lags behind
//! the others, save the first, whose lag is forgotten (`place_entity`, kernel/sched/fair.c). Where many more threads want
//! to run than there are CPUs, the next hold comes before the others have caught up with that one, and it never
//! runs: 256 busy threads on 2 CPUs kept the thread that was to end them waiting for minutes. So such a target
//! runs on until everyone may have caught up, and the interval is longer than asked for.

use varve_model::{Duration, Pid, Time};
use varve_sys::{allowed_cpus, runnable_threads, runnable_threads_of, tick};

/// What the kernel gives a thread before it looks for another, at most: 2.8 or 3 ms on machines of many CPUs, less
/// on small ones (`sysctl_sched_base_slice`, before Linux 6.6 `sysctl_sched_min_granularity`,
/// kernel/sched/fair.c). It looks at its ticks only.
const SLICE: Duration = Duration(3_000_000);

/// Watches that nobody starves.
#[derive(Debug)]
pub(crate) struct StarvationGuard {
    target: Pid,
    /// CPUs on which the target may run, as it last said.
    cpus: u64,
    /// A slice, rounded up to ticks.
    slice: Duration,
    released: Time,
    late: bool,
    /// Intervals that were made longer.
    pub(crate) stretched: u64,
    /// The most threads of the target that wanted to run when that was so.
    pub(crate) most: u64,
}

impl StarvationGuard {
    pub(crate) fn new(target: Pid, now: Time) -> StarvationGuard {
        let tick = tick().0.max(1);
        StarvationGuard {
            target,
            cpus: 1,
            slice: Duration(SLICE.0.div_ceil(tick) * tick),
            released: now,
            late: false,
            stretched: 0,
            most: 0,
        }
    }

    /// The target runs on from here, whether or not it was held.
    pub(crate) fn released(&mut self, at: Time) {
        self.released = at;
        self.late = false;
    }

    /// How long the target should run on at least, if it should. `processes` are its own.
    pub(crate) fn wanting(
        &mut self,
        now: Time,
        processes: impl FnOnce() -> Vec<Pid>,
    ) -> Option<Duration> {
        // It may bind itself to fewer at any time.
        if let Ok(cpus) = allowed_cpus(self.target) {
            self.cpus = cpus.max(1);
        }
        // One number of the whole machine says mostly that nobody needs to look at each thread.
        let all = runnable_threads().unwrap_or(0);
        if now - self.released >= self.needed(all) {
            return None;
        }
        let own = processes().into_iter().map(runnable_threads_of).sum();
        self.wanting_with(now, own, all)
    }

    /// Notes what became of the intervals.
    pub(crate) fn describe(&self, notes: &mut Vec<String>) {
        if self.stretched > 0 {
            notes.push(format!(
                "{} made longer, so that each of up to {} threads of the target that wanted to run had its turn on {} CPUs.",
                match self.stretched {
                    1 => "1 interval was".to_owned(),
                    more => format!("{more} intervals were"),
                },
                self.most,
                self.cpus
            ));
        }
    }

    /// How long so many threads take until each has had its turn.
    fn needed(&self, threads: u64) -> Duration {
        // Measured with 8 to 256 busy threads on 2 CPUs: from 1.25 slices for each on, the first one's share falls
        // noticeably, and with 2.5 it is that of the others. A thread may lag by two slices (`entity_lag`).
        let quarters = if self.late { 10 } else { 5 };
        let each = self.slice.0 / 4 * quarters;
        Duration(each.saturating_mul(threads.div_ceil(self.cpus)))
    }

    /// Where `own` threads of the target and `all` of the machine want to run.
    fn wanting_with(&mut self, now: Time, own: u64, all: u64) -> Option<Duration> {
        // Nobody waits for another one of the target where each may have a CPU.
        if own <= self.cpus {
            return None;
        }
        // Threads of others do not starve it, but take time: as much as its own, where the target is a group of its own.
        let others = all.saturating_sub(own).min(own);
        let needed = self.needed(own + others);
        let ran = now - self.released;
        if ran >= needed {
            return None;
        }
        if !self.late {
            self.late = true;
            self.stretched += 1;
        }
        self.most = self.most.max(own);
        Some(needed - ran)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard() -> StarvationGuard {
        StarvationGuard {
            target: Pid(1),
            cpus: 2,
            slice: Duration(4_000_000),
            released: Time(0),
            late: false,
            stretched: 0,
            most: 0,
        }
    }

    #[test]
    fn few_threads_change_nothing() {
        let mut guard = guard();
        assert_eq!(guard.wanting_with(Time(50_000_000), 20, 20), None);
        assert_eq!(guard.stretched, 0);
    }

    #[test]
    fn threads_of_others_are_not_waited_for() {
        let mut guard = guard();
        assert_eq!(guard.wanting_with(Time(50_000_000), 9, 4640), None);
        assert_eq!(guard.wanting_with(Time(1), 2, 4640), None);
        assert_eq!(guard.stretched, 0);
        // They take time, though.
        assert!(guard.wanting_with(Time(50_000_000), 20, 30).is_some());
        assert_eq!(guard.most, 20);
    }

    #[test]
    fn many_threads_get_their_guard() {
        let mut guard = guard();
        let rest = guard.wanting_with(Time(50_000_000), 256, 256);
        assert_eq!(rest, Some(Duration(590_000_000)));
        let rest = guard.wanting_with(Time(640_000_000), 256, 256);
        assert_eq!(rest, Some(Duration(640_000_000)));
        assert_eq!(guard.wanting_with(Time(1_280_000_000), 256, 256), None);
        assert_eq!((guard.stretched, guard.most), (1, 256));
        guard.released(Time(1_280_000_000));
        // Threads that are gone are not waited for.
        assert!(
            guard
                .wanting_with(Time(1_330_000_000), 10_000, 10_000)
                .is_some()
        );
        assert_eq!(guard.wanting_with(Time(1_380_000_000), 2, 2), None);
        assert_eq!(guard.stretched, 2);
    }
}
