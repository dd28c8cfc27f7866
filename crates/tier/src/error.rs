//! Why a simulation or a plan cannot be made.

use std::path::PathBuf;

use varve_analyse::format;
use varve_model::Pages;
use varve_trace::TraceError;

use crate::spec::SpecError;

/// Why a simulation or a plan cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum TierError {
    /// The trace cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// What was given for tiers is none.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// There is nothing to replay.
    #[error("{0} has no touched pages: there is nothing to replay")]
    NoTouches(PathBuf),
    /// The tiers do not hold the program.
    #[error(
        "the tiers hold {} and the program has {} in use at once",
        format::pages_size(*.holds),
        format::pages_size(*.needs)
    )]
    TooSmall {
        /// What all tiers hold.
        holds: Pages,
        /// What is to be held.
        needs: Pages,
    },
}

impl TierError {
    /// What to do about it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            TierError::Trace(error) => error.hint(),
            TierError::Spec(error) => Some(error.hint()),
            TierError::NoTouches(_) => {
                Some("`varve record -- COMMAND` records every page that a program touches")
            }
            TierError::TooSmall { .. } => {
                Some("give the last tier more, or `inf`, as in `--tier slow=inf,250ns`")
            }
        }
    }
}
