//! `--overhead`: intervals as short, and samples as many, as the permitted overhead allows.
//!
//! The budget is an account. Time earns the permitted share of itself, less what costs all the time; the end of an interval
//! takes from it what it cost, and the next one comes when that has been paid. Nothing is foretold of what an end will cost,
//! so that one that was dear delays the next by its own price and by nothing else.

use varve_model::Duration;

use super::meter::Spent;

/// The shortest interval that is chosen.
pub(crate) const MIN_INTERVAL: Duration = Duration(50_000_000);
/// The longest.
const MAX_INTERVAL: Duration = Duration(60_000_000_000);
/// What samples may take of the permitted overhead, and objects as much.
const PROBE: f64 = 0.35;
/// What ends of intervals may take of it at least, whatever the rest takes.
const BOUNDARIES: f64 = 0.3;
/// What was not spent, and what all but the ends of intervals spent too much, is remembered up to what so much time earns: the
/// budget is a limit, not a mean over hours, and what it takes to begin is not paid for long.
const MEMORY: Duration = Duration(1_000_000_000);

/// What an interval cost.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cost {
    /// Its length, its end included.
    pub(super) wall: Duration,
    /// What its end cost, however long the interval was.
    pub(super) boundary: Spent,
    /// What cost all the time.
    pub(super) running: Spent,
}

/// Chooses when intervals end.
#[derive(Debug)]
pub(super) struct Budget {
    /// Of the target's time, recording included.
    share: f64,
    /// What ends of intervals may spend, nanoseconds; below zero they have spent it already.
    balance: f64,
    /// What all else has spent too much, nanoseconds.
    excess: f64,
}

impl Budget {
    /// So much longer, 0 to 1, may the target take.
    pub(super) fn new(overhead: f64) -> Budget {
        Budget {
            share: share_of(overhead),
            balance: 0.0,
            excess: 0.0,
        }
    }

    /// The share of the time that samples may take, and the recording of objects.
    pub(super) fn of_probe(overhead: f64) -> f64 {
        share_of(overhead) * PROBE
    }

    /// An interval is over, and cost this much.
    pub(super) fn ended(&mut self, cost: &Cost) {
        let running = cost.running.total();
        let balance =
            self.balance + self.earned(cost.wall, running) - cost.boundary.total().0 as f64;
        self.balance = balance.clamp(-self.of(MAX_INTERVAL), self.of(MEMORY));
        let excess = self.excess + running.0 as f64 - self.of(cost.wall) * (1.0 - BOUNDARIES);
        self.excess = excess.clamp(0.0, self.of(MEMORY));
    }

    /// How much longer an interval is to be that has lasted for so long, in which all but its end has cost so much; 0 where its
    /// time has come.
    pub(super) fn left(&self, lasted: Duration, running: Duration) -> Duration {
        let earned = self.earned(lasted, running);
        let owed = -(self.balance + earned);
        let rate = match lasted.0 {
            0 => self.share,
            ns => earned / ns as f64,
        };
        let until = |length: Duration| length.0.saturating_sub(lasted.0);
        let paid = (owed.max(0.0) / rate) as u64;
        Duration(paid.clamp(until(MIN_INTERVAL), until(MAX_INTERVAL)))
    }

    /// What a time earns for ends of intervals.
    fn earned(&self, wall: Duration, running: Duration) -> f64 {
        let all = self.of(wall);
        (all - running.0 as f64 - self.excess).max(all * BOUNDARIES)
    }

    /// What may be spent in a time.
    fn of(&self, wall: Duration) -> f64 {
        self.share * wall.0 as f64
    }
}

/// A target that takes 5 % longer spends 5 of 105 parts of its time on it.
fn share_of(overhead: f64) -> f64 {
    let overhead = overhead.clamp(0.001, 1.0);
    overhead / (1.0 + overhead)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(wall_ms: u64, boundary_us: u64, running_us: u64) -> Cost {
        let held = |us: u64| Spent {
            held: Duration(us * 1000),
            ..Spent::default()
        };
        Cost {
            wall: Duration(wall_ms * 1_000_000),
            boundary: held(boundary_us),
            running: held(running_us),
        }
    }

    /// A target whose boundaries cost this much, run for 200 intervals: the length of the last, and the growth of its time.
    fn settled(boundary_us: u64, running_share: f64) -> (Duration, f64) {
        let mut budget = Budget::new(0.05);
        let mut length = MIN_INTERVAL;
        let (mut spent, mut wall) = (0.0, 0.0);
        for _ in 0..200 {
            length = next(&budget, running_share);
            let running = (length.0 as f64 * running_share / 1000.0) as u64;
            budget.ended(&cost(length.0 / 1_000_000, boundary_us, running));
            spent += boundary_us as f64 * 1000.0 + length.0 as f64 * running_share;
            wall += length.0 as f64;
        }
        (length, spent / (wall - spent))
    }

    /// The length of the next interval, where this share of the time is spent all the while.
    fn next(budget: &Budget, running_share: f64) -> Duration {
        let mut lasted = Duration(0);
        loop {
            let running = Duration((lasted.0 as f64 * running_share) as u64);
            match budget.left(lasted, running) {
                Duration(0) => return lasted,
                left => lasted = lasted + left.min(Duration(100_000_000)),
            }
        }
    }

    #[test]
    fn a_target_takes_no_longer_than_permitted() {
        for (boundary, running) in [(100, 0.001), (3_000, 0.0), (3_000, 0.02), (200_000, 0.02)] {
            let (length, growth) = settled(boundary, running);
            assert!(growth <= 0.051, "{boundary} {running}: {length:?} {growth}");
        }
    }

    #[test]
    fn what_may_be_spent_is_spent() {
        for (boundary, running) in [(3_000, 0.0), (3_000, 0.02), (200_000, 0.02)] {
            let (length, growth) = settled(boundary, running);
            assert!(growth >= 0.047, "{boundary} {running}: {length:?} {growth}");
        }
    }

    #[test]
    fn what_costs_little_is_looked_at_often() {
        assert_eq!(settled(100, 0.001).0, MIN_INTERVAL);
    }

    #[test]
    fn a_dear_end_delays_the_next_by_its_own_price() {
        let mut budget = Budget::new(0.05);
        // What it takes to begin comes with it: 20 ms of work in the first 50.
        budget.ended(&cost(50, 33_700, 20_000));
        let length = next(&budget, 0.0);
        let expected = 700_000_000..1_200_000_000;
        assert!(expected.contains(&length.0), "{length:?}");
        // Once it is paid it is forgotten.
        budget.ended(&cost(length.0 / 1_000_000, 1_000, 0));
        assert_eq!(next(&budget, 0.0), MIN_INTERVAL);
        let mut alone = Budget::new(0.05);
        alone.ended(&cost(50, 33_700, 0));
        let length = next(&alone, 0.0);
        assert!(length < Duration(700_000_000), "{length:?}");
    }

    #[test]
    fn what_costs_in_the_interval_itself_makes_it_longer() {
        let mut budget = Budget::new(0.05);
        budget.ended(&cost(50, 10_000, 0));
        let calm = next(&budget, 0.0);
        let busy = next(&budget, 0.025);
        assert!(
            busy > Duration(calm.0 * 2 - 100_000_000),
            "{calm:?} {busy:?}"
        );
        assert!(busy.0 < calm.0 * 3, "{calm:?} {busy:?}");
    }

    #[test]
    fn an_hour_in_which_little_was_spent_is_no_licence() {
        let mut budget = Budget::new(0.05);
        budget.ended(&cost(3_600_000, 0, 0));
        budget.ended(&cost(50, 100_000, 0));
        let length = next(&budget, 0.0);
        assert!(length > Duration(900_000_000), "{length:?}");
    }

    /// What recordings of programs are looked at for, whatever a machine's prices are.
    #[test]
    fn an_interval_ends_when_the_ends_before_it_are_paid_for() {
        let mut budget = Budget::new(0.05);
        let (mut wall, mut boundaries) = (Duration(0), Duration(0));
        let mut price = 1;
        for _ in 0..1000 {
            let length = next(&budget, 0.001);
            wall = wall + length;
            let paid = budget.of(wall);
            assert!(boundaries.0 as f64 <= paid, "{boundaries:?} of {paid}");
            // Up to 0.2 s, in no order: these numbers repeat after a thousand.
            price = price * 13 % 1009;
            let ended = Cost {
                wall: length,
                ..cost(0, price * 200, length.0 / 1_000_000)
            };
            boundaries = boundaries + ended.boundary.total();
            budget.ended(&ended);
        }
    }

    #[test]
    fn a_boundary_comes_though_the_rest_costs_too_much() {
        let (length, _) = settled(1_000, 0.5);
        assert!(length < Duration(200_000_000), "{length:?}");
        let mut budget = Budget::new(0.05);
        budget.ended(&cost(50, 100_000_000, 0));
        assert_eq!(budget.left(Duration(0), Duration(0)), MAX_INTERVAL);
    }
}
