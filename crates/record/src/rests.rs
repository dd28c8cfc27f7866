//! Rests of the recorder, so that its work does not stall others.
//!
//! The recorder has priority over the target. A thread that waits for the CPU on which it works is not moved to another for tens
//! of milliseconds: in a server that is a request which takes so long.

use std::cell::Cell;

use varve_model::{Duration, Time};
use varve_sys::monotonic_now;

/// How long it works at a time.
const WORK: Duration = Duration(3_000_000);
/// And rests after that.
const REST: std::time::Duration = std::time::Duration::from_millis(1);

/// The rests of one piece of work.
#[derive(Debug)]
pub(crate) struct Rests {
    since: Option<Cell<Time>>,
}

impl Rests {
    /// Work begins while the target runs.
    pub(crate) fn begin() -> Rests {
        Rests {
            since: Some(Cell::new(monotonic_now())),
        }
    }

    /// The target is held: nothing rests.
    pub(crate) fn none() -> Rests {
        Rests { since: None }
    }

    /// Rests where that is due.
    pub(crate) fn rest(&self) {
        if let Some(since) = &self.since
            && monotonic_now() - since.get() >= WORK
        {
            std::thread::sleep(REST);
            since.set(monotonic_now());
        }
    }
}
