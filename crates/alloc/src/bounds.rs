//! Bounds, and what was measured with an error: where the error reaches across the bound nothing is decided.

use crate::figures::CONFIDENCE;
use crate::{Share, Times};

/// Where a figure lies to a bound. The least of several is where all of them lie at or above theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Side {
    /// It seems to be below.
    Below,
    /// It seems not to be below, and may be, by its error.
    Unsure,
    /// It is not, with the confidence of its error.
    Above,
}

impl Side {
    /// Of a figure that is counted.
    pub(crate) fn exact(is_above: bool) -> Side {
        match is_above {
            true => Side::Above,
            false => Side::Below,
        }
    }

    /// Of all of these.
    pub(crate) fn all<const N: usize>(of: [Side; N]) -> Side {
        of.into_iter().min().unwrap_or(Side::Above)
    }
}

impl Share {
    pub(crate) fn side(self, bound: f64) -> Side {
        match self.share {
            share if share - self.error >= bound => Side::Above,
            share if share >= bound => Side::Unsure,
            _ => Side::Below,
        }
    }
}

impl Times {
    /// How far off the CPU time may be, as a share of it: the clocks found so many samples.
    pub(crate) fn cpu_error(&self) -> f64 {
        CONFIDENCE / (self.samples as f64).sqrt()
    }

    /// A time that is known exactly as a share of the CPU time. Where no clock found the program at work that may be any.
    pub(crate) fn of_cpu(&self, ns: u64) -> Share {
        if self.samples == 0 {
            let share = if ns > 0 { 1.0 } else { 0.0 };
            return Share {
                share,
                error: share,
            };
        }
        let share = ns as f64 / self.cpu_ns.0.max(1) as f64;
        Share {
            share,
            error: share * self.cpu_error(),
        }
    }
}

#[cfg(test)]
mod tests {
    use varve_model::Duration;

    use super::*;

    #[test]
    fn an_error_that_reaches_across_the_bound_decides_nothing() {
        let at = |share, error| Share { share, error }.side(0.2);
        assert_eq!(at(0.19, 0.0), Side::Below);
        assert_eq!(at(0.25, 0.1), Side::Unsure);
        assert_eq!(at(0.25, 0.04), Side::Above);
        assert_eq!(Side::all([Side::Above, Side::Unsure]), Side::Unsure);
        assert_eq!(Side::all([Side::Below, Side::Unsure]), Side::Below);
    }

    #[test]
    fn what_is_a_share_of_few_samples_has_a_large_error() {
        let seen = |samples: u64| Times {
            samples,
            cpu_ns: Duration(samples * 1_000_000),
            ..Times::default()
        };
        // A tenth of the CPU time by four samples, and by a thousand.
        assert_eq!(seen(4).of_cpu(400_000).side(0.05), Side::Unsure);
        assert_eq!(seen(1000).of_cpu(100_000_000).side(0.05), Side::Above);
        assert_eq!(seen(0).of_cpu(1).side(0.05), Side::Unsure);
        assert_eq!(seen(0).of_cpu(0).side(0.05), Side::Below);
    }
}
