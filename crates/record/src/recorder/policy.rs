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
    /// As short as the permitted overhead allows; that long at least is the one that runs.
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
            IntervalChoice::Fixed(length) | IntervalChoice::Default(length) => {
                IntervalPolicy::Fixed(length)
            }
            IntervalChoice::Auto { overhead } => {
                IntervalPolicy::Budget(Budget::new(overhead), budget::MIN_INTERVAL)
            }
            IntervalChoice::Accesses(_) | IntervalChoice::None => {
                IntervalPolicy::Fixed(budget::MIN_INTERVAL)
            }
        }
    }

    /// The length of the interval that runs, or the least that it can be; none where nobody waits for its end.
    pub(super) fn length(&self) -> Option<Duration> {
        match self {
            IntervalPolicy::Fixed(length) | IntervalPolicy::Budget(_, length) => Some(*length),
            IntervalPolicy::Counted => None,
        }
    }

    /// An interval is over, and cost this much.
    pub(super) fn ended(&mut self, cost: &Cost) {
        if let IntervalPolicy::Budget(budget, length) = self {
            budget.ended(cost);
            *length = budget.left(Duration(0), Duration(0));
        }
    }

    /// Whether what the interval that runs costs meanwhile says how long it is to be.
    pub(super) fn is_by_budget(&self) -> bool {
        matches!(self, IntervalPolicy::Budget(..))
    }

    /// How much longer the interval is to be that has lasted for so long, and cost so much but for its end.
    pub(super) fn left(&self, lasted: Duration, running: Duration) -> Duration {
        match self {
            IntervalPolicy::Budget(budget, _) => budget.left(lasted, running),
            IntervalPolicy::Fixed(_) | IntervalPolicy::Counted => Duration(0),
        }
    }
}
