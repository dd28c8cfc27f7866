//! The offline HTML page: a template, built from `web/`, with the data of one trace inside.
//!
//! The data is `zlib(u32 length of the JSON, JSON, columns)` as base64. The JSON is [`HtmlReport`];
//! its large arrays stand in the columns, little-endian, and the JSON holds their offsets. The
//! reader's half of this contract is `web/src/payload.ts`.

mod column;
mod crew;
mod encode;
mod grid;
mod lanes;
mod page_set;
mod source;

pub use encode::{HtmlSize, MAX_PAGE_BYTES, write_html};
pub use grid::{GridPass, Grids, Lane, Segment};
pub use lanes::Placement;
pub use source::from_trace;

use serde::Serialize;
use varve_model::{Address, Backend, Bytes, Duration, ObjectKind, Pages, Pid, Tid, Time};
use varve_trace::ClockUnit;

/// The version of the contract between this module and the page.
pub const SCHEMA: u32 = 1;

/// Why a page could not be written.
#[derive(Debug, thiserror::Error)]
pub enum HtmlError {
    /// Writing failed.
    #[error("cannot write the HTML report")]
    Io(#[from] std::io::Error),
    /// The data does not become JSON.
    #[error("cannot encode the data of the HTML report")]
    Json(#[from] serde_json::Error),
    /// The template is not the one that this version expects.
    #[error("the built page has no place for the data; rebuild it with `make -C web`")]
    Template,
}

/// Everything the page shows. Moments are nanoseconds since the start of the trace.
#[derive(Clone, Debug, Default)]
pub struct HtmlReport {
    /// What samples say, where there are any.
    pub samples: Option<varve_analyse::SampleUse>,
    /// What exact counts say, where there are any.
    pub counts: Option<varve_analyse::CountUse>,
    /// Who shares what, where threads are known.
    pub sharing: Option<varve_analyse::SharingUse>,
    /// What was recorded, and how well.
    pub trace: TraceSummary,
    /// What recording cost.
    pub overhead: Overhead,
    /// How much memory was touched.
    pub footprint: Footprint,
    /// What this trace does not tell, a sentence each.
    pub unknown: Vec<String>,
    /// The start of every interval, and the end of the last.
    pub interval_edges: Vec<Time>,
    /// Pages touched in each interval.
    pub working_set: Vec<Pages>,
    /// Pages resident at the end of each interval, where recorded.
    pub resident: Option<Vec<Pages>>,
    /// All threads that others refer to by index.
    pub threads: Vec<Thread>,
    /// The objects of the table, by index.
    pub objects: Vec<Object>,
    /// What the table leaves out.
    pub omitted: Omitted,
    /// The findings.
    pub findings: Vec<Finding>,
    /// The map.
    pub map: Grids,
}

/// What was recorded.
#[derive(Clone, Debug, Default, Serialize)]
pub struct TraceSummary {
    /// The command line.
    pub command: String,
    /// The processor and its number of CPUs, in words, where recorded.
    pub machine: Option<String>,
    /// The kernel's release.
    pub kernel: Option<String>,
    /// When it began, in words.
    pub started: Option<String>,
    /// How long it ran.
    pub duration_ns: Duration,
    /// The interval asked for, or the usual one where it was chosen by the recorder.
    pub interval_ns: Duration,
    /// Whether the recorder chose the interval.
    pub interval_auto: bool,
    /// The accesses of an interval where those were asked for, 0: the whole run is one.
    pub interval_accesses: Option<u64>,
    /// What all times count.
    pub clock_unit: ClockUnit,
    /// How many intervals.
    pub intervals: u32,
    /// What made the trace.
    pub backend: Backend,
    /// Whether every loss counter is zero.
    pub complete: bool,
    /// The same in a sentence.
    pub statement: String,
    /// What was lost.
    pub losses: Vec<Loss>,
    /// How many processes.
    pub processes: u32,
    /// Whether the trace tells writes.
    pub written_known: bool,
}

/// A loss counter.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Loss {
    /// Its name.
    pub kind: String,
    /// Its value.
    pub count: u64,
    /// What it means for the reader.
    pub meaning: Option<String>,
}

/// What recording cost.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Overhead {
    /// How long the target was held, where known.
    pub held_ns: Option<Duration>,
    /// CPU time of the recorder, where known.
    pub recorder_cpu_ns: Option<Duration>,
}

/// How much memory was touched.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Footprint {
    /// Distinct pages of memory touched.
    pub touched_pages: Option<Pages>,
    /// The sum over processes of the pages that each touched.
    pub touched_pages_per_process: Option<Pages>,
    /// The most pages resident at once, where recorded; one that several processes map counts in each.
    pub peak_resident_pages: Option<Pages>,
    /// Pages that others may have touched, in no other figure.
    pub possibly_others_pages: Pages,
    /// Sum over intervals of these.
    pub possibly_others_page_touches: u64,
}

/// A thread.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Thread {
    /// Its process.
    pub pid: Pid,
    /// Its id.
    pub tid: Tid,
    /// Its name; empty where unknown.
    pub name: String,
}

/// A stack frame.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Frame {
    /// The function.
    pub function: Option<String>,
    /// The source file.
    pub file: Option<String>,
    /// The line.
    pub line: Option<u32>,
    /// The executable or library.
    pub module: Option<String>,
    /// The address.
    pub address: Address,
}

/// An object of the table.
#[derive(Clone, Debug, Serialize)]
pub struct Object {
    /// Its name.
    pub name: String,
    /// What it is.
    pub kind: ObjectKind,
    /// Where it was allocated.
    pub site: Option<String>,
    /// The call stack there, innermost first.
    pub stack: Vec<Frame>,
    /// Its process; of memory that several map, the first.
    pub pid: Pid,
    /// The processes that touched it where several may map it: how many pages, and how many they wrote.
    pub processes: Vec<(Pid, Pages, Option<Pages>)>,
    /// Its first byte.
    pub address: Address,
    /// Its size.
    pub bytes: Bytes,
    /// The pages it overlaps.
    pub pages: Pages,
    /// Pages touched at least once.
    pub touched_pages: Pages,
    /// Sum over intervals of pages touched.
    pub page_touches: u64,
    /// Sum over intervals of its pages that others may have touched.
    pub possibly_others_page_touches: u64,
    /// Pages written at least once; None where unknown.
    pub written_pages: Option<Pages>,
    /// When it came to be; None where before the recording.
    pub born_ns: Option<Time>,
    /// When it ceased; None where it lived to the end.
    pub died_ns: Option<Time>,
    /// The thread that touched most of its pages first, an index into `threads`.
    pub first_touch_thread: Option<u16>,
    /// Pages first touched, by thread.
    pub first_touches: Vec<(u16, Pages)>,
    /// Pages touched in no, one, two, and three or more intervals; None where unknown.
    pub reuse: Option<[Pages; 4]>,
}

/// What the table leaves out.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Omitted {
    /// How many objects.
    pub objects: u64,
    /// Their size.
    pub bytes: Bytes,
    /// Sum over intervals of their pages touched.
    pub page_touches: u64,
}

/// A finding.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Finding {
    /// A stable name.
    pub id: String,
    /// The finding in a line.
    pub title: String,
    /// The numbers behind it.
    pub evidence: String,
    /// What to do.
    pub advice: String,
    /// The objects it is about, indices into `objects`.
    pub objects: Vec<u32>,
}
