//! What an analysis says. The types serialize to the fields of `varve report --json`.
//!
//! Three units run through all of it. A **page** is a 4 KiB page of memory: one that several processes map is one page,
//! and a huge page counts as the 4 KiB pages that it holds. Figures *per process* count such a page in each process that
//! touched it, and are sums over the processes. Copies that a fork leaves are pages of their own, also while the kernel
//! has not yet copied them. A **page touch** is one page touched in one interval, however often and by however many
//! processes and sources it is named there. A page belongs to the innermost object that lies on it; where several lie on
//! it, it counts in each of them and in [`Analysis::shared`].

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use ts_rs::TS;
use varve_model::{
    Address, Backend, Bytes, Capability, Duration, ObjectId, ObjectKind, Pages, Pid, Tid, Time,
    TouchSource,
};
use varve_trace::{ClockUnit, State, TrapsNote};

use crate::Known;
use crate::counts::CountUse;
use crate::samples::SampleUse;
use crate::sharing::SharingUse;

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
    /// In how many intervals the pages were touched.
    pub reuse: Reuse,
    /// The working set of each interval, in the order of time.
    pub working_set: Vec<WorkingSet>,
    /// How the touches became known; only sources that occur.
    pub sources: Vec<SourceUse>,
    /// What the kernel tells of writes.
    pub writes: Writes,
    /// Each process, in the order of pids.
    pub processes: Vec<ProcessUse>,
    /// Where the objects of programs come from, the most frequent first; empty where the trace does not say.
    pub object_sources: Vec<ObjectSource>,
    /// Each thread that touched a page first, most pages first.
    pub threads: Vec<ThreadUse>,
    /// The objects, most page touches first, then largest first; the recorder's own memory is not among them.
    pub objects: Vec<ObjectUse>,
    /// What `objects` leaves out because there are too many.
    pub omitted: Omitted,
    /// The objects by name, kind and site, omitted ones included; most page touches first.
    pub groups: Vec<Group>,
    /// Touched pages that no known object lies on.
    pub unowned: Remainder,
    /// Touched pages that several objects lie on; they are counted in each of these as well.
    pub shared: Remainder,
    /// Memory of the preload library inside the target; it is in no other figure but `sources` and
    /// `trace.touch_rows`.
    pub own_memory: Remainder,
    /// What samples of accesses say; null where the trace has none.
    pub samples: Option<SampleUse>,
    /// What exact counts of accesses say; null where the trace has none.
    pub counts: Option<CountUse>,
    /// The tail of the recording that [`ObjectUse::cold_pages`] speaks of.
    pub tail: Tail,
    /// Who shares which pages, where the recording counted every access; null elsewhere.
    pub exact: Option<crate::ExactUse>,
    /// Which threads use which objects, which parts of them, and when; null where no thread of an access is known.
    pub sharing: Option<SharingUse>,
    /// What stands out, most important first.
    pub findings: Vec<Finding>,
    /// What this trace cannot tell, or tells only in part: a sentence each.
    pub unknown: Vec<String>,
    /// Figures here that cannot be true together, a sentence each. There are none, unless the trace is damaged or the
    /// analysis is wrong.
    pub contradictions: Vec<String>,
}

/// What was recorded.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TraceFacts {
    /// Whether every loss counter is zero and the recording ended in order.
    pub complete: bool,
    /// The completeness statement, a sentence.
    pub statement: String,
    /// How far the recording got.
    pub state: State,
    /// Loss counters that are not zero.
    pub losses: BTreeMap<String, u64>,
    /// What made the trace.
    pub backend: Backend,
    /// How many intervals.
    pub intervals: u64,
    /// From the start of the first interval to the end of the last.
    pub duration_ns: Duration,
    /// The part of it in which the recording was paused.
    pub paused_ns: Duration,
    /// From the beginning of the recording to that of what is shown, where a time was selected; else null.
    pub offset_ns: Option<Duration>,
    /// The length of the whole recording.
    pub whole_ns: Duration,
    /// How long the program ran before the recording began, where that was asked for.
    pub delay_ns: Duration,
    /// The beginning of the recording, `CLOCK_MONOTONIC`; all times here are on this clock.
    pub start_ns: Time,
    /// The beginning, nanoseconds since 1970; null where unknown.
    #[serde(serialize_with = "Known::plain")]
    pub start_unix_ns: Known<u64>,
    /// The interval asked for; null where the recorder chose.
    pub interval_ns: Option<Duration>,
    /// The accesses of an interval where those were asked for, 0: the whole run is one; else null.
    pub interval_accesses: Option<u64>,
    /// The median length of the intervals.
    pub median_interval_ns: Duration,
    /// The shortest of them but the last, which ends with the recording.
    pub shortest_interval_ns: Duration,
    /// The longest of them.
    pub longest_interval_ns: Duration,
    /// The command line.
    pub command: Vec<String>,
    /// Whether the program ran already when the recording began.
    pub attached: bool,
    /// What held the target, such as `cgroup`; empty where nothing did or nobody knows.
    pub hold: String,
    /// The exit code as a shell would show it, where the end was seen.
    pub exit_code: Option<i32>,
    /// The varve that recorded.
    pub varve: String,
    /// The machine; null where unknown.
    #[serde(serialize_with = "Known::plain")]
    pub machine: Known<MachineFacts>,
    /// How many first accesses were trapped, with `--backend fault`.
    pub traps: Option<TrapsNote>,
    /// What the trace has: figures that would be made of what it lacks are null.
    pub capabilities: BTreeSet<Capability>,
    /// What of the trace is shown, as a person said it; null where all is.
    pub selected: Option<String>,
    /// What all times count.
    pub clock_unit: ClockUnit,
    /// Rows of the table of touches.
    pub touch_rows: u64,
    /// Rows of touches whose interval is not in the table of intervals, or comes after a later one. Their pages
    /// count in all but the working set.
    pub stray_rows: u64,
}

/// The machine of the recording.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MachineFacts {
    /// `uname -r`.
    pub kernel: String,
    /// `uname -m`.
    pub architecture: String,
    /// The CPU's name.
    pub cpu: String,
    /// Logical CPUs online.
    pub cpus: u32,
    /// Physical memory.
    pub memory_bytes: Bytes,
    /// Memory nodes (NUMA); null where nobody said.
    pub nodes: Option<u32>,
}

/// What recording cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Overhead {
    /// How long the target was held, all intervals together: from the order to stand still, which some threads follow before
    /// others, to its release. What runs until all stand still is in the interval too.
    pub held_ns: Duration,
    /// The part of it between the intervals, in which all threads stood still.
    pub stood_ns: Duration,
    /// The longest single hold.
    pub longest_hold_ns: Duration,
    /// CPU time of the recorder while the target ran.
    pub recorder_cpu_ns: Duration,
    /// The recorder's peak resident memory; 0 where unknown.
    pub recorder_peak_bytes: Bytes,
}

/// How much memory was used at all.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Footprint {
    /// Distinct pages of memory touched.
    pub touched_pages: Pages,
    /// The sum over processes of the distinct pages that each touched: a page that several touched counts in each.
    pub touched_pages_per_process: Pages,
    /// The most pages resident at the end of any interval. A page that several processes map counts in each, so that this
    /// compares with `touched_pages_per_process`, not with `touched_pages`.
    /// Null where unknown.
    #[serde(serialize_with = "Known::plain")]
    pub peak_resident_pages: Known<Pages>,
    /// The most pages touched in one interval.
    pub peak_working_set_pages: Pages,
    /// Pages touched in an interval, on average over the intervals.
    pub mean_working_set_pages: Pages,
    /// Sum over intervals of the pages touched.
    pub page_touches: u64,
    /// The sum of that over processes.
    pub page_touches_per_process: u64,
    /// The part of `page_touches` that huge pages made, at their own size.
    pub huge_page_touches: u64,
    /// Distinct pages that in some interval only a flag tells of which other processes may have set; in no other figure.
    pub possibly_others_pages: Pages,
    /// Sum over intervals of these pages; in no other figure.
    pub possibly_others_page_touches: u64,
    /// Page faults in the trace.
    pub faults: u64,
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
    /// Pages resident at its end; a page that several processes map counts in each. Null where unknown.
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

/// What the kernel tells of writes.
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

/// A process.
#[derive(Clone, Debug, PartialEq, Serialize, TS)]
pub struct ProcessUse {
    /// The process.
    pub pid: Pid,
    /// Its last command line; empty where unknown. Where several processes had the pid, those of all of them, each of them
    /// before `; then `: all figures are of all of them together.
    pub command: String,
    /// Distinct pages touched.
    pub touched_pages: Pages,
    /// The part of them that other processes touched too.
    pub shared_pages: Pages,
    /// Sum over intervals of pages touched.
    pub page_touches: u64,
    /// Its threads, as far as known.
    pub threads: u32,
    /// When it began or was first seen.
    pub born_ns: Option<Time>,
    /// When it ended, where that was seen.
    pub died_ns: Option<Time>,
    /// Its exit code, where its end was seen.
    pub exit_code: Option<i32>,
}

/// Programs of processes whose objects come from the same place for the same reason.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ObjectSource {
    /// `preload`, the library in them, or `kernel`, system calls alone.
    pub from: String,
    /// Why not the library, as `processes` of the trace says it.
    pub why: Option<String>,
    /// How many.
    pub programs: u64,
    /// The file name of one of them.
    pub example: String,
}

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

/// One life of one object.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ObjectUse {
    /// Its number in the trace.
    pub object: ObjectId,
    /// Its name, as a person would say it.
    pub name: String,
    /// What it is.
    pub kind: ObjectKind,
    /// Where it was allocated, in a line.
    pub site: Option<String>,
    /// Its process; of memory that several map, the first that had it.
    pub pid: Pid,
    /// Its first byte in that process.
    pub address: Address,
    /// Its size.
    pub bytes: Bytes,
    /// Whether it is a page of pooled small objects.
    pub pool: bool,
    /// When it came to be.
    pub born_ns: Time,
    /// When it ceased; null where it lived to the end.
    pub died_ns: Option<Time>,
    /// The thread that made it, where one did.
    pub born_tid: Option<Tid>,
    /// What was found out about its pages.
    #[serde(flatten)]
    pub usage: Usage,
    /// The part of the touched pages that it covers, at most: it may lie on the first and the last one in part.
    pub touched_bytes: Bytes,
    /// Whether it is a reservation: address space of which parts become memory later.
    pub reserved: bool,
    /// Where its memory is such that several processes may map it: those that touched it, most pages first. A page that
    /// several touched counts in each here, and once in `touched_pages`. Empty for memory of one process.
    pub processes: Vec<ObjectProcess>,
    /// Accesses that read its pages, where they were counted; a page that it shares counts in all its objects.
    pub reads: Option<u64>,
    /// The same of accesses that wrote.
    pub writes: Option<u64>,
    /// The thread of the first page fault in it; null where there was none.
    pub first_touch_tid: Option<Tid>,
    /// The threads that touched pages of it first, by page faults; most pages first.
    pub threads: Vec<ThreadShare>,
}

/// What a process did to an object of memory that several may map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ObjectProcess {
    /// The process.
    pub pid: Pid,
    /// Distinct pages touched.
    pub touched_pages: Pages,
    /// Sum over intervals of pages touched.
    pub page_touches: u64,
    /// Touched pages that it wrote; null where unknown, a lower bound where `writes` is `partly`.
    pub written_pages: Option<Pages>,
    /// The thread of its first page fault there; null where there was none.
    pub first_touch_tid: Option<Tid>,
}

/// What was found out about the pages of an object, or of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, TS)]
pub struct Usage {
    /// Distinct pages touched.
    pub touched_pages: Pages,
    /// Sum over intervals of pages touched.
    pub page_touches: u64,
    /// Intervals in which any page of it was touched.
    pub intervals_touched: u64,
    /// The end of the first interval that touched it.
    pub first_touch_ns: Option<Time>,
    /// The end of the last interval that touched it.
    pub last_touch_ns: Option<Time>,
    /// In how many intervals its pages were touched. Of several objects: each page in each life.
    pub reuse: Reuse,
    /// Touched pages that were written; null where unknown, a lower bound where `writes` is `partly`.
    pub written_pages: Option<Pages>,
    /// Page touches of pages that other objects lie on too: they may not be this object's.
    pub shared_page_touches: u64,
    /// Page touches that huge pages made.
    pub huge_page_touches: u64,
    /// Page touches whose bit could not be cleared or that are pinned: they repeat whether used or not.
    pub standing_page_touches: u64,
    /// Page touches that other processes may have made, and nothing shows that this program did; in no other figure.
    pub possibly_others_page_touches: u64,
    /// Touched pages, in use at the end of the recording, that the tail of the recording did not touch.
    pub cold_pages: Pages,
    /// Pages with a page fault: what `threads` accounts for. Of several objects: the sum over lives.
    pub first_touches: Pages,
    /// Page faults in it while it was there: a page may have several, as when it is given back to the kernel meanwhile.
    pub faults: u64,
}

impl Usage {
    /// In how many intervals a touched page was touched, on average.
    pub fn heat(&self) -> f64 {
        match self.touched_pages.0 {
            0 => 0.0,
            pages => self.page_touches as f64 / pages as f64,
        }
    }
}

/// Pages first touched by a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, TS)]
pub struct ThreadShare {
    /// Its process.
    pub pid: Pid,
    /// The thread.
    pub tid: Tid,
    /// How many pages.
    pub pages: Pages,
}

/// What a process has of the objects of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, TS)]
pub struct GroupProcess {
    /// The process.
    pub pid: Pid,
    /// How many of the objects it has, or touched where several may map them.
    pub objects: u64,
    /// The sum over these of the pages that it touched: memory used again for another life counts each time.
    pub touched_pages_over_lives: Pages,
    /// Sum over them and over intervals of the pages that it touched.
    pub page_touches: u64,
}

/// Objects with the same name, kind and site, as reports name it: whoever called the function that allocates.
#[derive(Clone, Debug, PartialEq, Serialize, TS)]
pub struct Group {
    /// Their name.
    pub name: String,
    /// What they are.
    pub kind: ObjectKind,
    /// Where they were allocated.
    pub site: Option<String>,
    /// How many.
    pub objects: u64,
    /// The processes that have them, or touched them where several map one; most page touches first.
    pub processes: Vec<GroupProcess>,
    /// The threads that touched pages of them first, by page faults, summed over the objects; most pages first.
    pub threads: Vec<ThreadShare>,
    /// Their sizes, summed over all lives.
    pub bytes: Bytes,
    /// The part of the touched pages that they cover, at most.
    pub touched_bytes: Bytes,
    /// The most bytes of them that lived at once.
    pub peak_bytes: Bytes,
    /// How many died in the recording.
    pub died: u64,
    /// The median life of those that died.
    pub median_life_ns: Option<Duration>,
    /// Objects of it that were never touched.
    pub untouched_objects: u64,
    /// The sum over the objects of the pages touched: memory that is used again and again for another life counts each
    /// time.
    pub touched_pages_over_lives: Pages,
    /// Their pages, each once however many of the objects lay on it.
    #[serde(flatten)]
    pub usage: Usage,
}

/// Pages and page touches that have no object of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Remainder {
    /// Distinct pages touched.
    pub touched_pages: Pages,
    /// Sum over intervals of pages touched.
    pub page_touches: u64,
}

/// Objects that the list leaves out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Omitted {
    /// How many.
    pub objects: u64,
    /// Their sizes, summed.
    pub bytes: Bytes,
    /// The sum over them of the pages touched; memory used again for another life counts each time.
    pub touched_pages_over_lives: Pages,
    /// Sum over them and over intervals of pages touched.
    pub page_touches: u64,
}

/// The last quarter of the recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tail {
    /// Its beginning.
    pub start_ns: Time,
    /// Its length.
    pub duration_ns: Duration,
    /// Touched pages of objects alive at the end that it did not touch.
    pub cold_pages: Pages,
}

/// Something that stands out.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// Which rule found it.
    pub id: FindingId,
    /// One line.
    pub title: String,
    /// The numbers and the names behind it.
    pub evidence: String,
    /// What a person can do about it.
    pub advice: String,
    /// The objects it is about, the most affected first.
    pub objects: Vec<ObjectId>,
}

macro_rules! finding_ids {
    ($($(#[$doc:meta])* $variant:ident = $word:literal, $action:literal;)*) => {
        /// The rules; each is documented with its thresholds where it is decided, in `findings`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        pub enum FindingId { $($(#[$doc])* #[serde(rename = $word)] $variant,)* }

        impl FindingId {
            /// The word that reports use.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word,)* }
            }

            /// What to do, in a few words.
            pub const fn action(self) -> &'static str {
                match self { $(Self::$variant => $action,)* }
            }
        }
    };
}

finding_ids! {
    /// Accesses may be missing.
    Incomplete = "incomplete", "record again with a longer --interval";
    /// Too few intervals to speak of time.
    ShortRecording = "short-recording", "record longer, or with a shorter --interval";
    /// Cache lines in which threads use different bytes.
    FalseSharing = "false-sharing", "give each thread cache lines of its own";
    /// Cache lines in which threads use the same bytes.
    TrueSharing = "true-sharing", "write the shared line less often";
    /// Pages in which threads use different lines.
    PageFalseSharing = "page-false-sharing", "give each thread pages of its own";
    /// Memory that one thread touched first and others use in parts of their own.
    ParallelFirstTouch = "parallel-first-touch", "initialise it with the threads that use it";
    /// Memory that several threads read and write all over.
    Interleave = "interleave", "interleave it over the memory nodes";
    /// Memory that several threads read all over and none writes.
    Replicate = "replicate", "give each memory node a copy";
    /// Memory with a hot part and a cold part.
    SplitHotCold = "split-hot-cold", "split the hot part from the cold";
    /// Memory that was allocated and never touched, or only when it was new.
    NeverTouched = "never-touched", "allocate less, or later";
    /// Memory that one thread touched first while others ran.
    SingleFirstTouch = "single-first-touch", "initialise it with the threads that use it";
    /// Memory that all threads faulted in.
    ScannedByAll = "scanned-by-all", "interleave it if all threads read all of it";
    /// Memory that the tail of the recording did not touch.
    ColdTail = "cold-tail", "release it, compress it or use slower memory";
    /// Memory whose pages were touched in one interval each.
    TouchedOnce = "touched-once", "work in pieces that are used again";
    /// Many short lives of one site.
    Churn = "churn", "keep one buffer and use it again";
    /// Pages that count as touched whether they were or not.
    Sticky = "sticky", "read the working set as an upper bound";
    /// Huge pages whose use cannot be told.
    HugePages = "huge-pages", "record with --thp=never to see 4 KiB pages";
}

impl std::fmt::Display for FindingId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}
