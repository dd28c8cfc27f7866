//! How long intervals are, and how many samples are taken.

use varve_model::Duration;
use varve_trace::IntervalChoice;

use super::budget::{self, Budget, Cost};
use crate::RecordOptions;

/// How long intervals are.
#[derive(Debug)]
pub(super) enum IntervalPolicy {
    /// As long as asked for.
    Fixed(Duration),
    /// As short as the permitted overhead allows.
    Budget(Budget, Duration),
    /// Others make them, or there are none: nothing is held for them.
    Counted,
}

impl IntervalPolicy {
    /// As asked for.
    pub(super) fn of(options: &RecordOptions) -> IntervalPolicy {
        if !options.scans() {
            return IntervalPolicy::Counted;
        }
        match options.interval {
            IntervalChoice::Fixed(length) => IntervalPolicy::Fixed(length),
            IntervalChoice::Auto { overhead } => {
                IntervalPolicy::Budget(Budget::new(overhead), budget::MIN_INTERVAL)
            }
            IntervalChoice::Accesses(_) | IntervalChoice::None => {
                IntervalPolicy::Fixed(budget::MIN_INTERVAL)
            }
        }
    }

    /// The length of the interval that runs; none where nobody waits for its end.
    pub(super) fn length(&self) -> Option<Duration> {
        match self {
            IntervalPolicy::Fixed(length) | IntervalPolicy::Budget(_, length) => Some(*length),
            IntervalPolicy::Counted => None,
        }
    }

    /// An interval is over, and cost this much.
    pub(super) fn ended(&mut self, cost: &Cost) {
        if let IntervalPolicy::Budget(budget, length) = self {
            *length = budget.next(cost);
        }
    }
}
