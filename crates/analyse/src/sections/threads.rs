//! Each thread, and the pages that it touched first.

use serde::Serialize;
use varve_model::{Pages, Pid, Tid};

/// A thread and the pages that it touched first.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ThreadUse {
    /// Its process.
    pub pid: Pid,
    /// The thread.
    pub tid: Tid,
    /// Its name; empty where unknown.
    pub name: String,
    /// Page faults.
    pub faults: u64,
    /// Pages whose first fault in the life of their object was this thread's.
    pub first_touches: Pages,
}
