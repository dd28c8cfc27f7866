//! One module per command; each resolves its arguments and calls one function of a library.

pub(crate) mod alloc;
mod closing;
pub(crate) mod doctor;
pub(crate) mod export;
mod filter;
pub(crate) mod import;
mod live;
mod new_file;
pub(crate) mod open;
pub(crate) mod record;
pub(crate) mod recover;
pub(crate) mod report;
pub(crate) mod watchdog;

use std::fmt::Display;

/// Why a command failed, for the person who typed it.
pub(crate) struct Failure {
    pub(crate) what: String,
    pub(crate) hint: Option<String>,
    pub(crate) code: u8,
}

impl Failure {
    pub(crate) fn new(what: impl Display, hint: Option<impl Into<String>>) -> Failure {
        Failure {
            what: what.to_string(),
            hint: hint.map(Into::into),
            code: 1,
        }
    }
}

impl From<varve_trace::TraceError> for Failure {
    fn from(error: varve_trace::TraceError) -> Failure {
        Failure::new(&error, error.hint())
    }
}
