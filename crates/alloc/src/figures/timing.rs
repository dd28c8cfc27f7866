//! How long all operations of a group took, made of the few of them that were timed.
//!
//! Each operation is timed with the same chance, and how many there were is known. A total is their number times the mean of those that were timed;
//! its error follows from how much these vary (Cochran, Sampling Techniques, ch. 2), with Student's quantile, as they may be few. Of one that
//! was timed alone that says nothing: its error is that of Horvitz and Thompson's estimator, to which one counts as often as its chance
//! says. A group is one operation (`malloc`, say) of one caller, class or thread; errors of groups add up as their squares do.

use varve_model::Duration;
use varve_trace::tables::OperationRow;

use super::{CONFIDENCE, OperationFigures};
use crate::student::student;

/// Why a time is not known.
pub(super) const UNTIMED: &str = "none of its operations was timed";
/// Likewise.
pub(super) const UNLIKE: &str = "none of the operations of one kind was timed";
/// Likewise.
pub(super) const UNSURE: &str = "so few of its operations were timed, or so unlike each other, that the error is as large as the time";

/// Operations of a group, and those of them that were timed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Timing {
    pub(super) count: u64,
    pub(crate) timed: u64,
    /// How long these took, nanoseconds.
    pub(super) ns: f64,
    /// The sum of the squares of that; none where it was not recorded.
    squares: Option<f64>,
}

impl Default for Timing {
    fn default() -> Timing {
        Timing {
            count: 0,
            timed: 0,
            ns: 0.0,
            squares: Some(0.0),
        }
    }
}

impl Timing {
    pub(super) fn add(&mut self, row: &OperationRow) {
        self.count += row.count;
        self.timed += row.timed;
        self.ns += row.timed_ns.0 as f64;
        if row.timed > 0 {
            let norm = row.timed_norm_ns.map(|norm| norm.0 as f64);
            self.squares = self.squares.zip(norm).map(|(all, norm)| all + norm * norm);
        }
    }

    /// Adds another group, of which it is one with this then.
    pub(crate) fn merge(&mut self, other: &Timing) {
        self.count += other.count;
        self.timed += other.timed;
        self.ns += other.ns;
        self.squares = self.squares.zip(other.squares).map(|(a, b)| a + b);
    }

    /// The variance of one operation; none where fewer than two were timed, or squares were not recorded.
    fn variance(&self) -> Option<f64> {
        let timed = self.timed as f64;
        let around = self.squares? - self.ns * self.ns / timed;
        (self.timed > 1).then(|| around.max(0.0) / (timed - 1.0))
    }

    /// What all took. Where none was timed they are taken to be like `others`.
    pub(crate) fn total(&self, others: &Timing) -> Total {
        let count = self.count as f64;
        let of = if self.timed > 0 { self } else { others };
        if self.count == 0 || of.timed == 0 {
            return Total {
                count: self.count,
                unlike: self.count,
                ..Total::default()
            };
        }
        let timed = of.timed as f64;
        let mean = of.ns / timed;
        let quantile = match of.timed {
            1 => CONFIDENCE,
            timed => student(usize::try_from(timed - 1).unwrap_or(usize::MAX)),
        };
        let variance = match self.timed {
            // The mean of the others is known that well, and each of these is off by itself.
            0 => of
                .variance()
                .map(|each| each * count * (count / timed + 1.0)),
            all if all >= self.count => Some(0.0),
            1 => of.squares.map(|square| square * count * (count - 1.0)),
            _ => of
                .variance()
                .map(|each| each * count * (count - timed) / timed),
        };
        Total {
            ns: mean * count,
            timed: self.timed,
            count: self.count,
            unlike: 0,
            square: variance.map(|variance| quantile * quantile * variance),
        }
    }
}

/// How long all operations of some groups took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Total {
    /// Nanoseconds.
    pub(crate) ns: f64,
    /// Operations that were timed.
    timed: u64,
    /// All of them.
    count: u64,
    /// Those of a kind of which none was timed anywhere: no part of the time.
    unlike: u64,
    /// The square of how far off that is at most, with 95 % confidence; none where it is not known.
    square: Option<f64>,
}

impl Default for Total {
    fn default() -> Total {
        Total {
            ns: 0.0,
            timed: 0,
            count: 0,
            unlike: 0,
            square: Some(0.0),
        }
    }
}

impl Total {
    pub(super) fn add(&mut self, other: Total) {
        self.ns += other.ns;
        self.timed += other.timed;
        self.count += other.count;
        self.unlike += other.unlike;
        self.square = self.square.zip(other.square).map(|(a, b)| a + b);
    }

    /// How far off it is at most, with 95 % confidence, nanoseconds; none where it is not known.
    pub(crate) fn error(&self) -> Option<f64> {
        self.square.map(f64::sqrt)
    }

    /// As a share of it.
    pub(super) fn share_of_error(&self) -> Option<f64> {
        self.error().map(|error| error / self.ns.max(1.0))
    }

    /// What is said of it: the time and its error as a share of it, or why it is not known. The error alone is unknown where probes
    /// counted.
    pub(super) fn figure(&self) -> (Option<Duration>, Option<f64>, Option<&'static str>) {
        if self.timed == 0 {
            return (None, None, Some(UNTIMED));
        }
        let Some(like) = like_others(self.ns, self.count, self.unlike) else {
            return (None, None, Some(UNLIKE));
        };
        let ns = self.ns + like;
        let error = self.square.map(|square| (square + like * like).sqrt());
        match error.map(|error| error / ns.max(1.0)) {
            Some(error) if error >= 1.0 => (None, None, Some(UNSURE)),
            error => (Some(Duration(ns as u64)), error, None),
        }
    }
}

/// Operations of kinds that were never timed may be one in so many of all: each that was timed stands for as many.
const RARE: u64 = 64;

/// What operations of kinds that were never timed took, where the others took `ns`: as much as those on average, which may be wrong by as much. None
/// where that is no small part of all.
fn like_others(ns: f64, all: u64, untimed: u64) -> Option<f64> {
    match untimed.saturating_mul(RARE) <= all {
        true => Some(ns * untimed as f64 / (all - untimed).max(1) as f64),
        false => None,
    }
}

/// How long all operations took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Whole {
    /// None where it is not known.
    pub(super) ns: Option<Duration>,
    /// With 95 % confidence that is no further off than this share of it.
    pub(super) error: Option<f64>,
    /// It is no less, as far as is known: what the kinds that were timed took at least, or what all waited.
    pub(super) least: Duration,
}

impl Whole {
    /// Of all kinds of operations; `without_cpu` is how long they waited, which is known of all of them and not only of those that were timed.
    pub(super) fn of<'a>(
        kinds: impl Iterator<Item = &'a OperationFigures>,
        without_cpu: Duration,
    ) -> Whole {
        let (mut ns, mut square, mut all, mut untimed) = (0.0, 0.0_f64, 0, 0);
        for kind in kinds {
            all += kind.count;
            if kind.timed == 0 {
                untimed += kind.count;
            }
            ns += kind.time_ns.0 as f64;
            square += (kind.time_ns.0 as f64 * kind.time_error).powi(2);
        }
        let like = like_others(ns, all, untimed);
        let (whole, whole_error) = (
            ns + like.unwrap_or(0.0),
            square.sqrt() + like.unwrap_or(0.0),
        );
        let is_known =
            like.is_some() && whole > 0.0 && whole_error < whole && whole as u64 >= without_cpu.0;
        Whole {
            ns: is_known.then_some(Duration(whole as u64)),
            error: is_known.then_some(whole_error / whole),
            least: without_cpu.max(Duration((ns - square.sqrt()).max(0.0) as u64)),
        }
    }
}

/// CPU time that so many samples of clocks stand for, and its error as a share of it. Samples come as by chance, so that their number varies by its root; of
/// fewer than four that is as much as the time.
pub(super) fn by_clocks((samples, ns): (u64, u64)) -> (Option<Duration>, Option<f64>) {
    let error = CONFIDENCE / (samples as f64).sqrt();
    match error < 1.0 {
        true => (Some(Duration(ns)), Some(error)),
        false => (None, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many operations, of which these were timed.
    fn timing(count: u64, timed: &[f64]) -> Timing {
        Timing {
            count,
            timed: timed.len() as u64,
            ns: timed.iter().sum(),
            squares: Some(timed.iter().map(|t| t * t).sum()),
        }
    }

    fn alone(count: u64, timed: &[f64]) -> Total {
        timing(count, timed).total(&Timing::default())
    }

    #[test]
    fn an_error_follows_from_how_much_times_vary() {
        // A mean of 20 and a variance of 200: 100² * (1 - 2/100) * 200 / 2, by Student's quantile of one degree.
        let of = alone(100, &[10.0, 30.0]);
        let expected = student(1) * (100.0f64.powi(2) * 0.98 * 200.0 / 2.0).sqrt();
        assert!((of.ns - 2000.0).abs() < 1e-6);
        assert!((of.error().unwrap() - expected).abs() < 1e-6);
        assert_eq!(of.figure(), (None, None, Some(UNSURE)));
        // Equal times leave no doubt, and what was timed as a whole has none.
        let equal = alone(640, &[50.0; 10]).figure();
        assert_eq!(equal, (Some(Duration(32_000)), Some(0.0), None));
        let whole = alone(2, &[10.0, 1e9]).figure();
        assert_eq!(whole, (Some(Duration(1_000_000_010)), Some(0.0), None));
    }

    #[test]
    fn one_that_waited_does_not_stand_for_all() {
        assert_eq!(alone(64, &[1e7]).figure().2, Some(UNSURE));
        let mut times = [100.0; 50];
        assert!(alone(3200, &times).figure().0.is_some());
        times[7] = 1e7;
        assert_eq!(alone(3200, &times).figure().2, Some(UNSURE));
    }

    #[test]
    fn what_was_not_timed_is_like_others() {
        let others = timing(6400, &[10.0, 30.0, 10.0, 30.0]);
        let of = timing(5, &[]).total(&others);
        assert!((of.ns - 100.0).abs() < 1e-6);
        // A variance of 400 / 3, of four that were timed.
        let expected = student(3) * (400.0 / 3.0 * (25.0 / 4.0 + 5.0f64)).sqrt();
        assert!((of.error().unwrap() - expected).abs() < 1e-6);
        // By itself it says nothing; beside what was timed it is a part of the sum and of its error.
        assert_eq!(of.figure().2, Some(UNTIMED));
        let mut sum = alone(640, &[50.0; 10]);
        sum.add(of);
        let (time, error, _) = sum.figure();
        assert_eq!(time, Some(Duration(32_100)));
        assert!((error.unwrap() - expected / 32_100.0).abs() < 1e-9);
    }

    #[test]
    fn a_kind_that_was_never_timed_makes_the_sum_unknown() {
        let nothing = Timing::default();
        let mut sum = alone(640, &[50.0; 10]);
        sum.add(timing(11, &[]).total(&nothing));
        assert_eq!(sum.figure(), (None, None, Some(UNLIKE)));
        // Where they are one in 64 at most they are taken to be like the others, and may be off by all of it.
        let mut sum = alone(640, &[50.0; 10]);
        sum.add(timing(10, &[]).total(&nothing));
        let (ns, error, why) = sum.figure();
        assert_eq!((ns, why), (Some(Duration(32_500)), None));
        assert!((error.unwrap() - 500.0 / 32_500.0).abs() < 1e-9);
        // Where nothing of the kind ran the rest is as well known as before.
        let mut sum = alone(640, &[50.0; 10]);
        sum.add(nothing.total(&nothing));
        assert_eq!(sum.figure().0, Some(Duration(32_000)));
    }

    #[test]
    fn the_whole_is_known_where_all_kinds_are() {
        let malloc = kind(640, 10, 32_000, 0.25);
        let whole = Whole::of([&malloc].into_iter(), Duration(0));
        assert_eq!(whole.ns, Some(Duration(32_000)));
        assert_eq!(whole.error, Some(0.25));
        let few = Whole::of([&malloc, &kind(10, 0, 0, 0.0)].into_iter(), Duration(0));
        assert_eq!(few.ns, Some(Duration(32_500)));
        assert_eq!(few.least, Duration(24_000));
        let calloc = kind(11, 0, 0, 0.0);
        let at_least = |kinds: &[&OperationFigures], waits| {
            let whole = Whole::of(kinds.iter().copied(), Duration(waits));
            assert_eq!((whole.ns, whole.error), (None, None));
            whole.least
        };
        assert_eq!(at_least(&[&malloc, &calloc], 0), Duration(24_000));
        assert_eq!(at_least(&[&malloc, &calloc], 70_000), Duration(70_000));
        // Waits are known of all operations: those that were timed are no sample of what waited.
        assert_eq!(at_least(&[&malloc], 70_000), Duration(70_000));
        assert_eq!(at_least(&[&kind(640, 1, 32_000, 1.5)], 0), Duration(0));
    }

    fn kind(count: u64, timed: u64, ns: u64, error: f64) -> OperationFigures {
        OperationFigures {
            count,
            timed,
            time_ns: Duration(ns),
            time_error: error,
            ..OperationFigures::default()
        }
    }

    #[test]
    fn without_squares_the_error_alone_is_unknown() {
        let mut of = timing(640, &[50.0; 10]);
        of.squares = None;
        let figure = of.total(&Timing::default()).figure();
        assert_eq!(figure, (Some(Duration(32_000)), None, None));
    }

    #[test]
    fn few_samples_of_clocks_say_nothing() {
        assert_eq!(by_clocks((0, 0)), (None, None));
        assert_eq!(by_clocks((3, 3_000_000)), (None, None));
        let (time, error) = by_clocks((100, 100_000_000));
        assert_eq!(time, Some(Duration(100_000_000)));
        assert!((error.unwrap() - 0.196).abs() < 1e-9);
    }
}
