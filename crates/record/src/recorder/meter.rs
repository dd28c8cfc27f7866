//! What recording costs the target, measured while it runs.
//!
//! Six things cost: the target is held; the first access to each page after its bit was cleared walks the page tables and sets
//! the bit again; samples interrupt its threads; the preload library in it reports objects; programs in the kernel report its
//! faults, mappings, threads and processes; and the recorder works on CPUs that the target could use. Each is counted as the
//! time by which the target ends later. What each of several threads has its part of is divided by how many ran. The recorder's work
//! is not: it takes the CPU of one of them, and others may wait for that one, as they do at every barrier.

use std::io;

use varve_model::{Duration, Pid};
use varve_sys::{cpu_time_of, first_access_time, idle_time};

use crate::probes::Took;

/// Of more processes the CPU time is not read at each boundary: that of the machine stands for it.
const MAX_PROCESSES: usize = 64;
/// How much a new reading counts beside those before it: the kernel counts idle time in hundredths of a second.
const WEIGHT: f64 = 0.2;

/// By how much the target ends later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Spent {
    /// It was held.
    pub(super) held: Duration,
    /// First accesses to cleared pages.
    pub(super) first_accesses: Duration,
    /// Interrupts of samples.
    pub(super) samples: Duration,
    /// Reports of the preload library.
    pub(super) objects: Duration,
    /// Reports of the kernel's part.
    pub(super) reports: Duration,
    /// The recorder's work on CPUs that the target could use.
    pub(super) contention: Duration,
}

impl Spent {
    /// All together.
    pub(super) fn total(&self) -> Duration {
        self.held
            + self.first_accesses
            + self.samples
            + self.objects
            + self.reports
            + self.contention
    }

    /// Both together.
    pub(super) fn plus(self, other: Spent) -> Spent {
        Spent {
            held: self.held + other.held,
            first_accesses: self.first_accesses + other.first_accesses,
            samples: self.samples + other.samples,
            objects: self.objects + other.objects,
            reports: self.reports + other.reports,
            contention: self.contention + other.contention,
        }
    }
}

/// What was done in an interval, its end included.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Done {
    /// From the end of the hold before to the end of this one.
    pub(super) wall: Duration,
    /// How long the target was held.
    pub(super) held: Duration,
    /// Pages, or huge pages, whose bits were set again.
    pub(super) touched: u64,
    /// What probes have taken of the threads' time.
    pub(super) took: Took,
    /// CPU time of the recorder, the hold's apart.
    pub(super) recorder_cpu: Duration,
}

/// How busy the target and the machine are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    /// How many threads of the target run at a time, 1 at least.
    pub(super) threads: f64,
    /// The share of the recorder's work that keeps the target from its own, 0 to 1.
    pub(super) contention: f64,
}

/// Measures it.
#[derive(Debug)]
pub(super) struct Meter {
    /// What the first access to a page after a clear costs more at most, nanoseconds.
    first_access: f64,
    cpus: f64,
    idle: Option<Duration>,
    target_cpu: Option<(usize, Duration)>,
    /// Smoothed: the share of the CPUs' time that is not idle, the recorder's own left out.
    busy: Option<f64>,
    /// Smoothed: threads of the target that run at a time.
    threads: Option<f64>,
    /// Since the beginning.
    pub(super) total: Spent,
}

impl Meter {
    /// A meter for a machine of so many CPUs.
    ///
    /// # Errors
    /// Where the cost of an access cannot be measured.
    pub(super) fn new(cpus: u32) -> io::Result<Meter> {
        Ok(Meter::of(first_access_time()?.0 as f64, cpus))
    }

    fn of(first_access: f64, cpus: u32) -> Meter {
        Meter {
            first_access,
            cpus: f64::from(cpus.max(1)),
            idle: idle_time(),
            target_cpu: None,
            busy: None,
            threads: None,
            total: Spent::default(),
        }
    }

    /// Looks how busy the target and the machine were since the last look, which was `done.wall` ago.
    pub(super) fn look(&mut self, processes: &[Pid], done: &Done) -> Load {
        let wall = (done.wall.0 as f64).max(1.0);
        let idle = idle_time();
        let was_idle = match (self.idle, idle) {
            (Some(before), Some(now)) => now.0.saturating_sub(before.0) as f64,
            _ => 0.0,
        };
        self.idle = idle;
        let own = done.recorder_cpu.0 as f64;
        let room = (self.cpus * wall - own).max(1.0);
        let busy = ((room - was_idle) / room).clamp(0.0, 1.0);
        let threads = self
            .threads_of(processes, wall)
            .unwrap_or(busy * room / wall);
        self.smooth(busy, threads);
        self.load()
    }

    /// How many threads of these processes ran at a time, where the same were there at the last look.
    fn threads_of(&mut self, processes: &[Pid], wall: f64) -> Option<f64> {
        if processes.len() > MAX_PROCESSES {
            self.target_cpu = None;
            return None;
        }
        let used: Duration = processes
            .iter()
            .filter_map(|pid| cpu_time_of(*pid))
            .fold(Duration(0), |sum, used| sum + used);
        let before = self.target_cpu.replace((processes.len(), used));
        let (count, before) = before?;
        let is_same = count == processes.len() && used >= before;
        is_same.then(|| (used - before).0 as f64 / wall)
    }

    fn smooth(&mut self, busy: f64, threads: f64) {
        let smooth = |before: Option<f64>, now: f64| match before {
            Some(before) => before * (1.0 - WEIGHT) + now * WEIGHT,
            None => now,
        };
        self.busy = Some(smooth(self.busy, busy));
        self.threads = Some(smooth(self.threads, threads));
    }

    /// As it was smoothed. Before the first look all CPUs count as busy with one thread of the target.
    pub(super) fn load(&self) -> Load {
        Load {
            threads: self.threads.unwrap_or(1.0).clamp(1.0, self.cpus),
            // Where the recorder wakes, a CPU is free unless all are busy.
            contention: self.busy.unwrap_or(1.0).powf(self.cpus),
        }
    }

    /// What was done cost so much.
    pub(super) fn price(&self, done: &Done) -> Spent {
        let Load {
            threads,
            contention,
        } = self.load();
        let shared = |ns: f64| Duration((ns / threads) as u64);
        Spent {
            held: done.held,
            first_accesses: shared(done.touched as f64 * self.first_access),
            samples: shared(done.took.samples.0 as f64),
            objects: shared(done.took.objects.0 as f64),
            reports: shared(done.took.reports.0 as f64),
            contention: Duration((done.recorder_cpu.0 as f64 * contention) as u64),
        }
    }

    /// Adds it to what was spent since the beginning.
    pub(super) fn add(&mut self, spent: Spent) {
        self.total = self.total.plus(spent);
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::Instant;

    use super::*;

    const WALL: Duration = Duration(50_000_000);

    fn loaded(busy: f64, threads: f64) -> Meter {
        let mut meter = Meter::of(200.0, 2);
        meter.smooth(busy, threads);
        meter
    }

    const DONE: Done = Done {
        wall: WALL,
        held: Duration(1_000_000),
        touched: 10_000,
        took: Took {
            samples: Duration(500_000),
            objects: Duration(100_000),
            reports: Duration(60_000),
        },
        recorder_cpu: Duration(800_000),
    };

    #[test]
    fn what_threads_share_is_divided_and_what_one_waits_for_is_not() {
        let spent = loaded(1.0, 2.0).price(&DONE);
        let expected = Spent {
            held: Duration(1_000_000),
            first_accesses: Duration(1_000_000),
            samples: Duration(250_000),
            objects: Duration(50_000),
            reports: Duration(30_000),
            contention: Duration(800_000),
        };
        assert_eq!(spent, expected);
        assert_eq!(spent.total(), Duration(3_130_000));
    }

    #[test]
    fn a_free_cpu_costs_the_target_nothing() {
        let one = loaded(0.5, 1.0).price(&DONE);
        assert_eq!(one.contention, Duration(200_000));
        assert_eq!(loaded(0.0, 0.01).price(&DONE).contention, Duration(0));
        // A target that mostly sleeps has one thread's time to lose, not less.
        assert_eq!(one.samples, loaded(0.5, 0.01).price(&DONE).samples);
    }

    #[test]
    fn this_process_is_seen_to_run() {
        let own = [Pid(std::process::id())];
        let mut meter = Meter::of(0.0, 1024);
        let began = Instant::now();
        let done = |began: Instant| Done {
            wall: Duration(began.elapsed().as_nanos() as u64),
            ..Done::default()
        };
        meter.look(&own, &done(began));
        let before = cpu_time_of(own[0]).expect("this process's clock");
        let began = Instant::now();
        while cpu_time_of(own[0]).expect("this process's clock") - before < Duration(30_000_000) {}
        // It has used that much since the look at least, however long it took.
        let wall = began.elapsed().as_nanos() as f64;
        let load = meter.threads_of(&own, wall);
        let least = 30e6 / wall;
        assert!(load.is_some_and(|load| load >= least), "{load:?} {least}");
        let mut ended = Command::new("true").spawn().expect("a child");
        ended.wait().expect("its end");
        assert_eq!(cpu_time_of(Pid(ended.id())), None);
    }
}
