//! How much memory was touched, how often, and when.

use serde::Serialize;
use ts_rs::TS;
use varve_model::{Bytes, Pages, Time, TouchSource};

use crate::Known;

/// How much memory was used at all; figures of touches are null where the trace has none.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Footprint {
    /// Distinct pages of memory touched.
    #[serde(serialize_with = "Known::plain")]
    pub touched_pages: Known<Pages>,
    /// The sum over processes of the distinct pages that each touched: a page that several touched counts in each.
    #[serde(serialize_with = "Known::plain")]
    pub touched_pages_per_process: Known<Pages>,
    /// The most pages resident at the end of any interval. A page of shared memory (`MAP_SHARED`) counts once, wherever it is mapped;
    /// any other that several processes map, as code and what a fork copies are, counts in each.
    /// Null where unknown.
    #[serde(serialize_with = "Known::plain")]
    pub peak_resident_pages: Known<Pages>,
    /// The most memory of one process that was resident at any time, as the kernel counts it (`ru_maxrss` of `getrusage`): of the
    /// process with the most of it, and from the beginning to the end of its programs. It is without pages of hugetlbfs.
    pub peak_process_bytes: Known<Bytes>,
    /// The most pages touched in one interval.
    #[serde(serialize_with = "Known::plain")]
    pub peak_working_set_pages: Known<Pages>,
    /// Pages touched in an interval, on average over the intervals.
    #[serde(serialize_with = "Known::plain")]
    pub mean_working_set_pages: Known<Pages>,
    /// Sum over intervals of the pages touched.
    #[serde(serialize_with = "Known::plain")]
    pub page_touches: Known<u64>,
    /// The sum of that over processes.
    #[serde(serialize_with = "Known::plain")]
    pub page_touches_per_process: Known<u64>,
    /// The part of `page_touches` that huge pages made, at their own size.
    #[serde(serialize_with = "Known::plain")]
    pub huge_page_touches: Known<u64>,
    /// Distinct pages that in some interval only a flag shows which other processes may have set; in no other figure.
    #[serde(serialize_with = "Known::plain")]
    pub possibly_others_pages: Known<Pages>,
    /// Sum over intervals of these pages; in no other figure.
    #[serde(serialize_with = "Known::plain")]
    pub possibly_others_page_touches: Known<u64>,
    /// Page faults in the trace; null where it has none by its kind.
    #[serde(serialize_with = "Known::plain")]
    pub faults: Known<u64>,
}

/// Pages by the number of intervals in which they were touched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, TS)]
pub struct Reuse {
    /// In one.
    pub once: Pages,
    /// In two.
    pub twice: Pages,
    /// In three or more.
    pub more: Pages,
}

impl Reuse {
    /// All of them.
    pub const fn pages(self) -> Pages {
        Pages(self.once.0 + self.twice.0 + self.more.0)
    }
}

/// The working set of an interval.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WorkingSet {
    /// When the interval began.
    pub start_ns: Time,
    /// When it ended.
    pub end_ns: Time,
    /// Distinct pages of memory touched in it.
    pub pages: Pages,
    /// The sum over processes of the pages that each touched in it.
    pub pages_per_process: Pages,
    /// Pages resident at its end, counted as in [`Footprint::peak_resident_pages`]. Null where unknown.
    #[serde(serialize_with = "Known::plain")]
    pub resident_pages: Known<Pages>,
}

/// What one source contributed. What others may have touched stands in [`Footprint`] only.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SourceUse {
    /// The source.
    pub source: TouchSource,
    /// Pages that it named, summed over the intervals; pages named by two sources count in both.
    pub page_touches: u64,
    /// The most pages that it named in one interval.
    pub peak_pages: Pages,
}

/// What the kernel reports of writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Writes {
    /// Of no touch.
    #[default]
    Unknown,
    /// Of some touches: written pages are at least so many.
    Partly,
    /// Of every touch.
    Known,
}

/// Pages and page touches that have no object of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Remainder {
    /// Distinct pages touched.
    pub touched_pages: Pages,
    /// Sum over intervals of pages touched.
    pub page_touches: u64,
}
