//! Policies: which page lies in which tier, when.
//!
//! Each hears of the touches of an interval one after the other, in the order of addresses, and of each page that is given back.
//! What they know of pages is what the mechanism that they stand for could know: accessed bits, faults, the past. What they do to the
//! tiers goes through [`Frames`], which counts it.

mod demand;
mod hints;
mod placed;
mod regions;

pub use demand::{Clock, Generations, Lru};
pub use hints::{HintSettings, Hints};
pub use placed::{FirstTouch, Interleave, Placed, Placement, Spill};
pub use regions::{RegionSettings, Regions};

#[cfg(test)]
mod tests;

use varve_model::{Bytes, Duration, PAGE_BYTES, Time};

use crate::frames::Frames;
use crate::stream::Slot;

/// The interval that a policy is in.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// Its position.
    pub interval: u32,
    /// When it began.
    pub start: Time,
    /// How long it is.
    pub length: Duration,
}

/// Where a touch found its page, and where the page's accesses in the interval go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The tier in which the touch found it; for a new page that in which it was made.
    pub at: u8,
    /// The tier that serves the rest of the interval's accesses.
    pub serves: u8,
}

impl Found {
    /// In one tier, which it stays in.
    #[inline]
    pub const fn staying(tier: u8) -> Found {
        Found {
            at: tier,
            serves: tier,
        }
    }
}

/// A policy.
pub trait Policy {
    /// An interval begins.
    fn begin(&mut self, _now: Now) {}

    /// A page is touched: once in an interval at most. `group` is the group of objects to which it belongs now.
    fn touch(&mut self, slot: Slot, group: u32) -> Found;

    /// An interval ends.
    fn end(&mut self) {}

    /// A page is given back.
    fn free(&mut self, slot: Slot) {
        self.frames().drop(slot);
    }

    /// Where the pages are.
    fn frames(&mut self) -> &mut Frames;
}

/// Pages that may be moved, after so many seconds more at so many bytes a second. What was not used in the last second is not made up for.
fn refilled(left: f64, rate: Bytes, seconds: f64) -> f64 {
    let rate = rate.0 as f64 / PAGE_BYTES as f64;
    (left + rate * seconds).min(rate.max(rate * seconds))
}
