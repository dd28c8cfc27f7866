//! How long intervals are.

use varve_model::Duration;
use varve_trace::IntervalChoice;

use super::budget::{self, Budget, Cost};
use crate::{RecordError, RecordOptions};

/// How long intervals are.
#[derive(Debug)]
pub(super) enum IntervalPolicy {
    /// As long as asked for.
    Fixed(Duration),
    /// As short as the permitted overhead allows.
    Budget(Box<Budget>, Duration),
    /// Others make them: nothing is held for them.
    Counted,
}

impl IntervalPolicy {
    /// As asked for.
    ///
    /// # Errors
    /// Where the cost of an access cannot be measured on this machine.
    pub(super) fn of(options: &RecordOptions, cpus: u32) -> Result<IntervalPolicy, RecordError> {
        if options.counts.is_some() {
            return Ok(IntervalPolicy::Counted);
        }
        Ok(match options.interval {
            IntervalChoice::Fixed(length) => IntervalPolicy::Fixed(length),
            IntervalChoice::Auto { overhead } => {
                let first_access = budget::measure_first_access()
                    .map_err(RecordError::system("measure the cost of a first access"))?;
                let budget = Budget::new(overhead, first_access, cpus);
                IntervalPolicy::Budget(Box::new(budget), budget::MIN_INTERVAL)
            }
            IntervalChoice::Accesses(_) | IntervalChoice::None => {
                IntervalPolicy::Fixed(budget::MIN_INTERVAL)
            }
        })
    }

    /// The length of the interval that runs; none where nobody waits for its end.
    pub(super) fn length(&self) -> Option<Duration> {
        match self {
            IntervalPolicy::Fixed(length) | IntervalPolicy::Budget(_, length) => Some(*length),
            IntervalPolicy::Counted => None,
        }
    }

    /// An interval is over, and cost this much.
    pub(super) fn ended(&mut self, cost: Cost) {
        if let IntervalPolicy::Budget(budget, length) = self {
            *length = budget.next(cost);
        }
    }
}
