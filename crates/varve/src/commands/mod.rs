//! One module per command; each resolves its arguments and calls one function of a library.

pub(crate) mod alloc;
pub(crate) mod check;
mod closing;
pub(crate) mod diff;
pub(crate) mod doctor;
pub(crate) mod export;
mod filter;
pub(crate) mod fit;
pub(crate) mod fleet;
pub(crate) mod import;
mod live;
mod new_file;
pub(crate) mod open;
pub(crate) mod push;
pub(crate) mod record;
pub(crate) mod recover;
pub(crate) mod report;
mod scratch;
pub(crate) mod tier;
pub(crate) mod watchdog;

use std::fmt::Display;

use varve_sys::Signals;

/// Why a command failed, for the person who typed it.
#[derive(Debug)]
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

    /// Somebody wanted the end: the exit code is that of a program which the signal ended.
    pub(crate) fn interrupted(signal: i32, what: &str) -> Failure {
        Failure {
            what: format!("interrupted: {what}"),
            hint: None,
            code: 128u8.wrapping_add(signal as u8),
        }
    }
}

/// Has signals as data, for a command that runs others. Call before any thread is made.
pub(crate) fn catch_signals() -> Result<Signals, Failure> {
    Signals::catch().map_err(|e| Failure::new(format!("cannot catch signals: {e}"), None::<String>))
}

impl From<varve_trace::TraceError> for Failure {
    fn from(error: varve_trace::TraceError) -> Failure {
        Failure::new(&error, error.hint())
    }
}
