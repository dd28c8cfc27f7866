//! Each process.

use serde::Serialize;
use ts_rs::TS;
use varve_model::{Pages, Pid, Time};

use crate::known::{Together, together};

together! {
    /// What touches say of a process.
    pub ProcessTouched as ProcessTouchedFields {
        /// Distinct pages touched.
        touched_pages: Pages,
        /// The part of them that other processes touched too.
        shared_pages: Pages,
        /// Sum over intervals of pages touched.
        page_touches: u64,
    }
    maybe {}
}

/// A process.
#[derive(Clone, Debug, PartialEq, Serialize, TS)]
pub struct ProcessUse {
    /// The process.
    pub pid: Pid,
    /// Its last command line; empty where unknown. Where several processes had the pid, those of all of them, each of them
    /// before `; then `: all figures are of all of them together.
    pub command: String,
    /// What touches say; nothing in a trace without.
    #[serde(flatten)]
    pub touched: Together<ProcessTouched>,
    /// Its threads, as far as known.
    pub threads: u32,
    /// When it began or was first seen.
    pub born_ns: Option<Time>,
    /// When it ended, where that was seen.
    pub died_ns: Option<Time>,
    /// Its exit code, where its end was seen.
    pub exit_code: Option<i32>,
}
