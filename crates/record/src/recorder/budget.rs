//! `--overhead`: intervals as short, and samples as many, as the permitted overhead allows.

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
/// Intervals become so many times longer at most to make up for what was spent too much before.
const MAX_DEBT: f64 = 3.0;

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

/// Chooses the next interval.
#[derive(Debug)]
pub(super) struct Budget {
    /// Of the target's time, recording included.
    share: f64,
    /// Smoothed cost of the end of an interval, nanoseconds.
    boundary: Option<f64>,
    /// Smoothed share of the time that everything else costs.
    running: Option<f64>,
    spent: f64,
    wall: f64,
}

impl Budget {
    /// So much longer, 0 to 1, may the target take.
    pub(super) fn new(overhead: f64) -> Budget {
        Budget {
            share: share_of(overhead),
            boundary: None,
            running: None,
            spent: 0.0,
            wall: 0.0,
        }
    }

    /// The share of the time that samples may take, and the recording of objects.
    pub(super) fn of_probe(overhead: f64) -> f64 {
        share_of(overhead) * PROBE
    }

    /// The interval after one that cost this much.
    pub(super) fn next(&mut self, cost: &Cost) -> Duration {
        let wall = (cost.wall.0 as f64).max(1.0);
        let (boundary, running) = (
            cost.boundary.total().0 as f64,
            cost.running.total().0 as f64,
        );
        self.spent += boundary + running;
        self.wall += wall;
        // A rise counts at once, a fall is believed slowly: the budget is a limit, not a mean.
        let boundary = match self.boundary {
            Some(before) if boundary < before => before * 0.8 + boundary * 0.2,
            _ => boundary,
        };
        self.boundary = Some(boundary);
        let running = match self.running {
            Some(before) => before * 0.8 + running / wall * 0.2,
            None => running / wall,
        };
        self.running = Some(running);
        let left = (self.share - running).max(self.share * BOUNDARIES);
        let debt = (self.spent / (self.share * self.wall)).clamp(1.0, MAX_DEBT);
        let wanted = boundary / left * debt;
        Duration(wanted.clamp(MIN_INTERVAL.0 as f64, MAX_INTERVAL.0 as f64) as u64)
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

    /// A target whose boundaries cost this much, run until the interval stands still: its length, and the growth of its time.
    fn settled(boundary_us: u64, running_share: f64) -> (Duration, f64) {
        let mut budget = Budget::new(0.05);
        let mut length = MIN_INTERVAL;
        let (mut spent, mut wall) = (0.0, 0.0);
        for _ in 0..200 {
            let running = (length.0 as f64 * running_share / 1000.0) as u64;
            length = budget.next(&cost(length.0 / 1_000_000, boundary_us, running));
            spent += boundary_us as f64 * 1000.0 + length.0 as f64 * running_share;
            wall += length.0 as f64;
        }
        (length, spent / (wall - spent))
    }

    #[test]
    fn a_target_takes_no_longer_than_permitted() {
        for (boundary, running) in [(100, 0.001), (3_000, 0.0), (3_000, 0.02), (200_000, 0.02)] {
            let (length, growth) = settled(boundary, running);
            assert!(growth <= 0.051, "{boundary} {running}: {length:?} {growth}");
        }
    }

    #[test]
    fn what_costs_little_is_looked_at_often() {
        assert_eq!(settled(100, 0.001).0, MIN_INTERVAL);
    }

    #[test]
    fn what_was_spent_too_much_is_made_up_for() {
        let mut budget = Budget::new(0.05);
        let dear = budget.next(&cost(50, 40_000, 0));
        assert!(dear > Duration(2_000_000_000), "{dear:?}");
        let after = budget.next(&cost(50, 40_000, 0));
        assert_eq!(after, dear, "not beyond the most");
    }

    #[test]
    fn a_boundary_comes_though_the_rest_costs_too_much() {
        let (length, _) = settled(1_000, 0.5);
        assert!(length < Duration(1_000_000_000), "{length:?}");
    }
}
