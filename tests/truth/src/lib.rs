//! Truth: runs programs that know which pages they touched under `varve record`, and compares.
//!
//! A suite (`tests/*.rs`) is a list of cases; [`run_suite`] runs them one after the other. A case
//! [`record`]s a workload, which gives its [`Oracle`] log and the trace's [`Touches`], and [`judge`]s
//! the one by the other: every demanded page must be there, every page beyond is counted and explained.

mod flushed;
mod judge;
mod lackey;
mod machine;
mod oracle;
mod pages;
mod problem;
mod run;
mod scratch;
mod suite;
mod touches;

pub use flushed::flushed;
pub use judge::{Extra, Verdict, judge};
pub use lackey::{FullTrace, Mapped, by_file, has_valgrind, run_lackey};
pub use machine::HugePages;
pub use oracle::{Access, Arena, Once, Oracle, Pattern, Phase, Span};
pub use pages::{PageSet, describe};
pub use problem::Problem;
pub use run::{
    Finished, Plan, Recorded, finish, is_emulated, make_workloads, only_reclaim_was_lost, record,
    temporary, varve_binary, workload,
};
pub use scratch::Scratch;
pub use suite::{Case, Outcome, run_suite};
pub use touches::{Layer, Touch, Touches};
