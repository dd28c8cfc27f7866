//! What an analysis says. The types serialize to the fields of `varve report --json`.
//!
//! Three units run through all of it. A **page** is a 4 KiB page of memory: one that several processes map is one page,
//! and a huge page counts as the 4 KiB pages that it holds. Figures *per process* count such a page in each process that
//! touched it, and are sums over the processes. Copies that a fork leaves are pages of their own, also while the kernel
//! has not yet copied them. A **page touch** is one page touched in one interval, however often and by however many
//! processes and sources it is named there. A page belongs to the innermost object that lies on it; where several lie on
//! it, it counts in each of them and in [`Analysis::shared`].

use serde::Serialize;

use crate::Known;
pub use crate::findings::finding::{Finding, FindingId};
use crate::sections::counts::{CountUse, ExactUse};
pub use crate::sections::footprint::{Footprint, Remainder, Reuse, SourceUse, WorkingSet, Writes};
pub use crate::sections::objects::{
    Faulted, Group, GroupProcess, ObjectProcess, ObjectUse, Omitted, Tail, ThreadShare, Touched,
    Usage,
};
use crate::sections::phases::PhaseUse;
pub use crate::sections::processes::{ProcessTouched, ProcessUse};
pub use crate::sections::recording::{
    HoldWork, MachineFacts, ObjectSource, Overhead, Slowdown, TOO_SHORT, TraceFacts,
    recorded_processes, recorded_programs, why_not_preloaded,
};
use crate::sections::samples::SampleUse;
use crate::sections::sharing::SharingUse;
pub use crate::sections::threads::ThreadUse;
use crate::sections::unknown_files::UnknownFiles;

/// What a trace says about its program.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Analysis {
    /// What was recorded, and whether all of it.
    pub trace: TraceFacts,
    /// What recording cost; null where unknown.
    #[serde(serialize_with = "Known::plain")]
    pub overhead: Known<Overhead>,
    /// How much memory was used at all.
    pub footprint: Footprint,
    /// In how many intervals the pages were touched; null without touches.
    #[serde(serialize_with = "Known::plain")]
    pub reuse: Known<Reuse>,
    /// The working set of each interval, in the order of time; null without touches.
    #[serde(serialize_with = "Known::plain")]
    pub working_set: Known<Vec<WorkingSet>>,
    /// How the touches became known; only sources that occur. Null without touches.
    #[serde(serialize_with = "Known::plain")]
    pub sources: Known<Vec<SourceUse>>,
    /// Of which touches it is known whether they wrote; null without touches.
    #[serde(serialize_with = "Known::plain")]
    pub writes: Known<Writes>,
    /// Each process, in the order of pids.
    pub processes: Vec<ProcessUse>,
    /// Where the objects of programs come from, the most frequent first; empty where the trace does not say.
    pub object_sources: Vec<ObjectSource>,
    /// Each thread that touched a page first, most pages first; null without page faults.
    #[serde(serialize_with = "Known::plain")]
    pub threads: Known<Vec<ThreadUse>>,
    /// The objects, most page touches first, then largest first; the recorder's own memory is not among them.
    pub objects: Vec<ObjectUse>,
    /// What `objects` leaves out because there are too many.
    pub omitted: Omitted,
    /// The objects by name, kind and site, omitted ones included; most page touches first.
    pub groups: Vec<Group>,
    /// The phases that the program named, and events, by name, in the order in which they came first; empty where it named none.
    pub phases: Vec<PhaseUse>,
    /// Touched pages that no known object lies on; null without touches.
    #[serde(serialize_with = "Known::plain")]
    pub unowned: Known<Remainder>,
    /// Touched pages that several objects lie on; they are counted in each of these as well. Null without touches.
    #[serde(serialize_with = "Known::plain")]
    pub shared: Known<Remainder>,
    /// Memory of the preload library inside the target; it is in no other figure but `sources` and
    /// `trace.touch_rows`. Null without touches.
    #[serde(serialize_with = "Known::plain")]
    pub own_memory: Known<Remainder>,
    /// What samples of accesses say; null where the trace has none.
    pub samples: Option<SampleUse>,
    /// What exact counts of accesses say; null where the trace has none.
    pub counts: Option<CountUse>,
    /// The tail of the recording that [`ObjectUse::cold_pages`] speaks of; null without touches.
    #[serde(serialize_with = "Known::plain")]
    pub tail: Known<Tail>,
    /// Who shares which pages, where the recording counted every access; null elsewhere.
    pub exact: Option<ExactUse>,
    /// Which threads use which objects, which parts of them, and when; null where no thread of an access is known.
    pub sharing: Option<SharingUse>,
    /// What stands out, most important first.
    pub findings: Vec<Finding>,
    /// What this trace cannot show, or shows only in part: a sentence each.
    pub unknown: Vec<String>,
    /// Executables and libraries of which not all names and lines are known.
    pub unknown_files: Vec<UnknownFiles>,
    /// Figures here that cannot be true together, a sentence each. There are none, unless the trace is damaged or the
    /// analysis is wrong.
    pub contradictions: Vec<String>,
}
