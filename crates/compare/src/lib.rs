//! Traces beside one another: what differs, and what of it is more than noise
//!
//! [`Run`] is one trace as it is compared, [`diff()`] puts two sides of them beside one another, [`check()`] judges them by
//! budgets. Nothing here prints.

mod budget;
mod diff;
mod measure;
mod notes;
mod pair;
pub mod pattern;
mod place;
mod run;
mod searched;
mod statistics;

pub use budget::{
    Budget, CHECK_SCHEMA, Check, FailedRun, Judged, Outcome, amount, check, finding, finding_words,
};
pub use diff::{
    DIFF_SCHEMA, Diff, Fate, Figure, FindingChange, MAX_FALSE, Noise, Omitted, Row, Side, Values,
    Verdict, diff,
};
pub use measure::{Measure, Unit};
pub use pair::Match;
pub use run::{MAX_ROWS, Recording, Run};
