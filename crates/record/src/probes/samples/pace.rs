//! What a sample costs, and how many are taken.
//!
//! A sample costs its interrupt, which the thread that it is taken of waits for, and the recorder's work on it, which
//! keeps the target from its own where it needs all CPUs. Both differ from machine to machine, so both are measured while it runs.

use std::io;

use varve_bpf::{SamplesTaken, interrupt_time};
use varve_model::Duration;

/// Of fewer nothing could be said.
const MIN_RATE: u32 = 10;
/// A rate that differs by less from the best one stays.
const TOLERANCE: f64 = 0.2;

/// What samples cost, and how many are taken.
#[derive(Debug)]
pub(super) struct Pace {
    /// How many were asked for, per second of each CPU.
    asked: u32,
    /// How many are taken.
    rate: u32,
    /// What an interrupt takes besides the program that it runs, nanoseconds.
    interrupt: f64,
    /// CPU time of the recorder for samples since the last boundary.
    work: Duration,
    before: SamplesTaken,
    /// Of one sample, smoothed, nanoseconds: what its thread waits, and the recorder's work.
    each: Option<(f64, f64)>,
}

impl Pace {
    /// Measures what an interrupt costs here.
    pub(super) fn measure(asked: u32) -> io::Result<Pace> {
        Ok(Pace {
            asked,
            rate: asked,
            interrupt: interrupt_time()?.0 as f64,
            work: Duration(0),
            before: SamplesTaken::default(),
            each: None,
        })
    }

    /// The recorder has worked on samples for so long.
    pub(super) fn worked(&mut self, time: Duration) {
        self.work = self.work + time;
    }

    /// What samples have taken of the target's CPU time since the last call; `taken` is all since the beginning.
    pub(super) fn took(&mut self, taken: SamplesTaken) -> Duration {
        let count = taken.taken.saturating_sub(self.before.taken) as f64;
        let time = taken.time.0.saturating_sub(self.before.time.0) as f64;
        self.before = taken;
        let work = std::mem::take(&mut self.work).0 as f64;
        let waited = count * self.interrupt + time;
        if count > 0.0 {
            let now = (waited / count, work / count);
            let smooth = |before: f64, now: f64| before * 0.8 + now * 0.2;
            self.each = Some(match self.each {
                Some(before) => (smooth(before.0, now.0), smooth(before.1, now.1)),
                None => now,
            });
        }
        Duration(waited as u64)
    }

    /// The rate from here on, where it changes: at most `share` of the time in which the target runs. `contention` is the share of
    /// the recorder's work that keeps the target from its own.
    pub(super) fn rate_within(&self, share: f64, contention: f64) -> Option<u32> {
        let (waited, work) = self.each?;
        let price = (waited + work * contention).max(1.0) / 1e9;
        let rate = (share / price).clamp(0.0, f64::from(self.asked)).round() as u32;
        let rate = rate.max(MIN_RATE.min(self.asked));
        let change = (f64::from(rate) / f64::from(self.rate) - 1.0).abs();
        let is_last = rate == self.asked && rate != self.rate;
        (change > TOLERANCE || is_last).then_some(rate)
    }

    /// So many are taken now.
    pub(super) fn now(&mut self, rate: u32) {
        self.rate = rate;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(each: (f64, f64)) -> Pace {
        Pace {
            asked: 1000,
            rate: 1000,
            interrupt: 5_000.0,
            work: Duration(0),
            before: SamplesTaken::default(),
            each: Some(each),
        }
    }

    #[test]
    fn as_many_are_taken_as_the_share_allows() {
        // 20 us in the thread and 80 of the recorder's: 100 a second are 1 % where it is in the way, 0.2 % where it is not.
        let pace = pace((20_000.0, 80_000.0));
        assert_eq!(pace.rate_within(0.01, 1.0), Some(100));
        assert_eq!(pace.rate_within(0.01, 0.0), Some(500));
        assert_eq!(pace.rate_within(0.5, 0.0), None);
        assert_eq!(pace.rate_within(0.0, 1.0), Some(MIN_RATE));
    }

    #[test]
    fn a_rate_changes_only_where_it_matters() {
        let mut pace = pace((20_000.0, 0.0));
        assert_eq!(pace.rate_within(0.018, 1.0), None);
        pace.now(900);
        assert_eq!(pace.rate_within(1.0, 1.0), Some(1000));
    }

    #[test]
    fn the_price_is_what_was_measured() {
        let mut pace = pace((0.0, 0.0));
        pace.each = None;
        pace.worked(Duration(300_000));
        let taken = SamplesTaken {
            taken: 10,
            time: Duration(50_000),
        };
        assert_eq!(pace.took(taken), Duration(100_000));
        assert_eq!(pace.each, Some((10_000.0, 30_000.0)));
        assert_eq!(pace.took(taken), Duration(0));
    }
}
