//! The map of a trace: how much of each piece of memory was touched when, a lane for each group of objects. One pass over
//! the touches makes it for the page and the picture alike.

mod column;
mod grid;
mod lanes;
mod page_set;
mod source;
mod workers;

use std::collections::HashMap;

pub(crate) use grid::NONE;
pub use grid::{GridPass, Grids, Lane, Segment};
pub use lanes::{Holds, Placement, Site};
use varve_model::{ObjectId, Pages, Pid, Tid, Time};

/// The map of a trace. Moments are nanoseconds since its start.
#[derive(Clone, Debug, Default)]
pub struct Map {
    /// The start of the trace, on its clock.
    pub start: Time,
    /// The lanes and their cells.
    pub grids: Grids,
    /// The start of every interval, and the end of the last.
    pub edges: Vec<Time>,
    /// Pages touched in each interval.
    pub working_set: Vec<Pages>,
    /// Pages resident at the end of each interval; none where it was not recorded.
    pub resident: Option<Vec<Pages>>,
    /// The threads that first touches name by position.
    pub threads: Vec<Thread>,
    /// Where the objects that the analysis lists stand.
    pub seats: HashMap<ObjectId, Seat>,
}

/// A thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thread {
    /// Its process.
    pub pid: Pid,
    /// Its id.
    pub tid: Tid,
    /// Its name; empty where unknown.
    pub name: String,
}

/// Where an object stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat {
    /// Its lane.
    pub lane: u32,
    /// Its first page, counted within the lane.
    pub lane_page: u64,
}

impl Map {
    /// The lane of a group, by its position in the analysis.
    pub(crate) fn lane_of(&self, group: usize) -> Option<u32> {
        let is = |lane: &Lane| lane.holds == Holds::Group(group as u32);
        let own = self.grids.lanes.iter().position(is)?;
        u32::try_from(own).ok()
    }

    /// The time bins of the lanes: where each begins, and where the last ends.
    pub(crate) fn bin_edges(&self) -> Vec<Time> {
        let last = self.edges.len().saturating_sub(1);
        let bins = 0..=self.grids.time_bins;
        let at = |bin: usize| {
            self.edges
                .get((bin * self.grids.per_bin).min(last))
                .copied()
        };
        bins.map(|bin| at(bin).unwrap_or_default()).collect()
    }

    /// How many intervals a time bin has.
    pub(crate) fn intervals_of(&self, bin: usize) -> u64 {
        let all = self.edges.len().saturating_sub(1);
        let per = self.grids.per_bin;
        all.saturating_sub(bin * per).min(per).max(1) as u64
    }
}
