//! What a page holds: the types that `web/src/payload.gen.ts` declares in TypeScript.

use std::collections::BTreeMap;

use serde::Serialize;
use ts_rs::{Config, TS, TypeVisitor};
use varve_analyse::{CountUse, Group, Known, ProcessUse, SampleUse, SharingUse, Slowdown};
use varve_model::{Address, Bytes, Duration, ObjectKind, Pages, Pid, Tid, Time};
use varve_trace::ClockUnit;

use super::diff::DiffPage;
use super::{AllocPage, View};
use crate::map::Segment;

/// All of it. Moments are nanoseconds since the start of the trace.
#[derive(Serialize, TS)]
pub(super) struct Payload<'a> {
    /// Which varve wrote the page.
    pub(super) generator: String,
    pub(super) trace: &'a TraceSummary,
    pub(super) overhead: &'a Overhead,
    pub(super) footprint: &'a Footprint,
    /// What samples say; null where there are none.
    pub(super) samples: Option<&'a SampleUse>,
    /// What counts say; null where there are none.
    pub(super) counts: Option<&'a CountUse>,
    /// Who uses what; null where no thread of an access is known.
    pub(super) sharing: Option<&'a SharingUse>,
    /// What is said of the allocator; null where no operations were recorded, or a part of the trace is shown.
    pub(super) alloc: Option<&'a AllocPage>,
    /// What is shown first.
    pub(super) opens: View,
    /// What this trace cannot show, a sentence each.
    pub(super) unknown: Vec<String>,
    pub(super) bins: Bins,
    /// Microseconds from one edge of an interval to the next, 32 bits each; one edge more than there are intervals.
    pub(super) interval_edges: Column,
    /// Pages touched in each interval, as differences, 32 bits each.
    pub(super) working_set: Column,
    /// The same of resident pages; null where they were not recorded.
    pub(super) resident: Option<Column>,
    /// The phases and events that the program named, in the order in which they came first.
    pub(super) phases: &'a [PhaseBand],
    /// Those that the list leaves out.
    pub(super) omitted_phases: u64,
    pub(super) processes: &'a [ProcessUse],
    /// All threads that others refer to by position.
    pub(super) threads: Vec<Thread>,
    pub(super) lanes: Vec<Lane<'a>>,
    /// The objects by name, kind and site; most page touches first.
    pub(super) groups: &'a [GroupRow],
    /// The hottest objects of each group.
    pub(super) objects: &'a [Object],
    /// Groups that the list leaves out.
    pub(super) omitted_groups: u64,
    pub(super) findings: &'a [Finding],
}

/// Time bins of the map.
#[derive(Serialize, TS)]
pub(super) struct Bins {
    pub(super) count: usize,
    pub(super) intervals_per_bin: usize,
}

/// Where a column of numbers stands behind the JSON.
#[derive(Clone, Copy, Serialize, TS)]
pub(super) struct Column {
    /// Bytes behind the end of the JSON.
    pub(super) offset: usize,
    /// How many numbers.
    pub(super) count: usize,
}

/// A thread.
#[derive(Serialize, TS)]
pub(super) struct Thread {
    pub(super) pid: Pid,
    pub(super) tid: Tid,
    /// Empty where unknown.
    pub(super) name: String,
}

/// A lane of the map.
#[derive(Serialize, TS)]
pub(super) struct Lane<'a> {
    pub(super) title: &'a str,
    /// The group whose objects it holds; null where it holds what is left of several.
    pub(super) group: Option<u32>,
    /// The kind of the objects that are left; null else.
    pub(super) kind: Option<ObjectKind>,
    /// How many objects it holds.
    pub(super) objects: u64,
    pub(super) pages: u64,
    pub(super) pages_per_bin: u64,
    pub(super) address_bins: usize,
    pub(super) segments: &'a [Segment],
    /// The square root of the share of pages touched, 0 to 255: `[address bin][time bin]`.
    pub(super) heat: Column,
    /// Distinct pages touched; scaled to 255 where a bin has more.
    pub(super) coverage: Column,
    /// Like `heat`, of what others may have touched; null where there is nothing of that.
    pub(super) possibly: Option<Column>,
    /// The thread that touched most of a bin first, 16 bits each.
    pub(super) first_thread: Column,
    /// The time bin of the first touch, 16 bits each.
    pub(super) first_time: Column,
}

/// What was recorded.
#[derive(Clone, Debug, Default, Serialize, TS)]
pub struct TraceSummary {
    /// The command line.
    pub command: String,
    /// The processor, its number of CPUs and its memory, in words.
    pub machine: Known<String>,
    /// The kernel's release.
    pub kernel: Known<String>,
    /// When it began, in words; null where not recorded.
    pub started: Option<String>,
    /// Its start on the trace's clock, which figures of groups use.
    pub start_ns: Time,
    /// How long it ran.
    pub duration_ns: Duration,
    /// How long the intervals are, in words; null where unknown.
    pub lengths: Option<String>,
    /// What of the trace is shown; null where all is.
    pub selected: Option<String>,
    /// What all times count.
    pub clock_unit: ClockUnit,
    /// How many intervals the map has.
    pub intervals: u32,
    /// What made the trace.
    pub backend: String,
    /// The tool whose record it was made of; null where Varve recorded.
    pub imported_from: Option<String>,
    /// Whether the target ran in an emulator.
    pub is_emulated: bool,
    /// Whether every loss counter is zero.
    pub complete: bool,
    /// Whether no accessed page can be missing, whatever else may be.
    pub pages_complete: bool,
    /// The same in sentences.
    pub statement: String,
    /// Loss counters that are not zero.
    pub losses: BTreeMap<String, u64>,
    /// Whether the trace distinguishes writes.
    pub written_known: bool,
}

/// A phase that the program named, or all events of one name.
#[derive(Clone, Debug, Default, Serialize, TS)]
pub struct PhaseBand {
    /// What the program calls it.
    pub name: String,
    /// Whether it is an event, which takes no time.
    pub is_event: bool,
    /// How often it ran, or happened.
    pub times: u64,
    /// How many of these the program did not end.
    pub open: u64,
    /// The time of all of them, on all threads.
    pub total_ns: Duration,
    /// Distinct pages touched in the intervals that overlap with it.
    pub touched_pages: Known<Pages>,
    /// When it ran: first and last microsecond, on the clock of the map, in order, without overlap. Runs close together are one.
    pub spans: Vec<[u64; 2]>,
}

/// What recording cost.
#[derive(Clone, Debug, Default, Serialize, TS)]
pub struct Overhead {
    /// The share of the time in which the target was held, 0 to 1.
    pub held_share: Known<f64>,
    /// CPU time of the recorder.
    pub recorder_cpu_ns: Known<Duration>,
    /// How much longer the program took for being recorded, and of what that is made; null where nobody measured it.
    pub slowdown: Option<Slowdown>,
}

/// How much memory was touched.
#[derive(Clone, Debug, Default, Serialize, TS)]
pub struct Footprint {
    /// Distinct pages of memory touched.
    pub touched_pages: Known<Pages>,
    /// The sum over processes of the pages that each touched.
    pub touched_pages_per_process: Known<Pages>,
    /// Sum over intervals of pages touched.
    pub page_touches: Known<u64>,
    /// The most pages touched in one interval.
    pub peak_working_set_pages: Known<Pages>,
    /// The most pages resident at once; one that several processes map counts in each.
    pub peak_resident_pages: Known<Pages>,
    /// The most memory of one process that was resident at any time, as the kernel counts it.
    pub peak_process_bytes: Known<Bytes>,
    /// Pages that others may have touched, in no other figure.
    pub possibly_others_pages: Known<Pages>,
    /// Sum over intervals of these.
    pub possibly_others_page_touches: Known<u64>,
}

/// A stack frame.
#[derive(Clone, Debug, Default, Serialize, TS)]
pub struct Frame {
    /// The function.
    pub function: Option<String>,
    /// The source file.
    pub file: Option<String>,
    /// The line.
    pub line: Option<u32>,
    /// The executable or library.
    pub module: Option<String>,
    /// The address in that file, as its symbols count; null where the line is known, and where no file has the code.
    pub offset: Option<u64>,
    /// The address.
    pub address: Address,
}

/// A way on which objects of a group were allocated.
#[derive(Clone, Debug, Serialize, TS)]
pub struct Stack {
    /// How many of the listed objects.
    pub objects: u64,
    /// Innermost first.
    pub frames: Vec<Frame>,
}

/// Objects of one name, kind and site.
#[derive(Clone, Debug, Serialize, TS)]
pub struct GroupRow {
    /// What is known of them together.
    #[serde(flatten)]
    pub group: Group,
    /// Its lane; null where it has none of its own.
    pub lane: Option<u32>,
    /// On which ways the listed ones were allocated, the most frequent first.
    pub stacks: Vec<Stack>,
}

/// An object.
#[derive(Clone, Debug, Serialize, TS)]
pub struct Object {
    /// Its group, which has its name, kind and site.
    pub group: u32,
    /// Its process; of memory that several map, the first.
    pub pid: Pid,
    /// The processes that touched it where several may map it: how many pages, and how many they wrote; null where unknown.
    pub processes: Vec<(Pid, Option<Pages>, Option<Pages>)>,
    /// Its first byte; null where unknown.
    pub address: Option<Address>,
    /// Its size; null where unknown.
    pub bytes: Option<Bytes>,
    /// The pages it overlaps; null where unknown.
    pub pages: Option<Pages>,
    /// Pages touched at least once; null in a trace without touches, as are all figures of touches.
    pub touched_pages: Option<Pages>,
    /// Sum over intervals of pages touched.
    pub page_touches: Option<u64>,
    /// Sum over intervals of its pages that others may have touched.
    pub possibly_others_page_touches: Option<u64>,
    /// Pages written at least once; null where unknown.
    pub written_pages: Option<Pages>,
    /// When it came to be; null where before the recording, or where nobody knows.
    pub born_ns: Option<Time>,
    /// When it ceased; null where it lived to the end.
    pub died_ns: Option<Time>,
    /// Pages first touched, by thread, most pages first; empty where unknown.
    pub first_touches: Vec<(u16, Pages)>,
    /// Pages touched in no, one, two, and three or more intervals; null where unknown.
    pub reuse: Option<[Pages; 4]>,
    /// The lane that it stands in; null where it has no pages.
    pub lane: Option<u32>,
    /// Its first page, counted within the lane.
    pub lane_page: u64,
}

/// A finding.
#[derive(Clone, Debug, Default, Serialize, TS)]
pub struct Finding {
    /// A stable name.
    pub id: String,
    /// The finding in a line.
    pub title: String,
    /// The numbers behind it.
    pub evidence: String,
    /// What to do.
    pub advice: String,
    /// It is of less weight than a finding.
    pub is_note: bool,
    /// The groups of the objects it is about, the most affected first.
    pub groups: Vec<u32>,
}

/// The types of the page's data, as TypeScript: the content of `web/src/payload.gen.ts`.
pub fn types() -> String {
    let config = Config::new().with_large_int("number");
    let mut all = Declarations {
        config: &config,
        texts: BTreeMap::new(),
    };
    all.visit::<Payload<'static>>();
    all.visit::<DiffPage>();
    let head =
        "// Written by `make types` from the Rust types in crates/report/src/html/payload.rs.\n";
    std::iter::once(head.to_owned())
        .chain(all.texts.into_values())
        .collect::<Vec<_>>()
        .join("\n")
}

/// The declarations of types and of all that they are made of, by name: the order in which they are found is not always the
/// same.
struct Declarations<'a> {
    config: &'a Config,
    texts: BTreeMap<String, String>,
}

impl TypeVisitor for Declarations<'_> {
    fn visit<T: TS + 'static + ?Sized>(&mut self) {
        T::visit_generics(self);
        // Those without a file of their own have no name either: they are written where they are used.
        if T::output_path().is_some() {
            let name = T::ident(self.config);
            if self.texts.contains_key(&name) {
                return;
            }
            let docs = T::docs().unwrap_or_default();
            let text = format!("{docs}export {}\n", T::decl(self.config));
            self.texts.insert(name, text);
        }
        T::visit_dependencies(self);
    }
}
