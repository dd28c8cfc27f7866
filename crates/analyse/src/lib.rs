//! From tables to findings, maps and curves; pure
//!
//! [`analyse`] reads a trace once, in the order of time, and says what it found as an [`Analysis`].

mod analysis;
mod assemble;
mod chunks;
mod cut;
mod findings;
mod fold;
pub mod format;
mod invariants;
mod known;
mod memory;
mod page_set;
mod page_states;
mod sections;
mod stats;
mod stream;
mod sweep;

pub use analysis::{
    Analysis, Faulted, Finding, FindingId, Footprint, Group, GroupProcess, HoldWork, MachineFacts,
    ObjectProcess, ObjectSource, ObjectUse, Omitted, Overhead, ProcessTouched, ProcessUse,
    Remainder, Reuse, Slowdown, SourceUse, TOO_SHORT, Tail, ThreadShare, ThreadUse, Touched,
    TraceFacts, Usage, WorkingSet, Writes, recorded_processes, recorded_programs,
    why_not_preloaded,
};

pub use assemble::Recorded;
pub use cut::object_names;
pub use findings::{FEW_INTERVALS, MIN_FOR_TAIL};
pub use known::{Known, Together};
pub use memory::{Memory, Objects};
pub use sections::Section;
pub use sections::counts::{
    Accesses, CountUse, ExactUse, ObjectAccesses, ObjectCounts, Sharing, ThreadAccesses,
    ThreadCounts,
};
pub use sections::overview::{Headline, HotBy, HotLine, HotObject, Overview, is_note};
pub use sections::phases::{PhaseUse, join_ranges, overlapping};
pub use sections::samples::{
    ChainTime, EventPlace, EventSamples, Latency, LevelShare, LineTime, ObjectSamples,
    OmittedSamples, PlaceSamples, SampleUse, Sampled, SourceShare, Steps, ThreadPart,
    ThreadSamples, WEIGHT,
};
pub use sections::sharing::{
    Axis, BlockKind, BlockThread, FlowCell, ObjectPhase, ObjectSharing, RangeCell, Ranges,
    SharedBlock, SharingClass, SharingPart, SharingSource, SharingThread, SharingUse, ThreadPhase,
    WeightUnit,
};
pub use sections::unknown::MARKS_UNHEARD;
pub use sections::unknown_files::{MAX_PACKAGES, Needed, UnknownFiles};
pub use sweep::{Moment, RowFacts, Run, Sweep, intervals, sweep};

use varve_model::Bytes;
use varve_trace::{Trace, TraceError};

/// How an analysis is to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnalyseOptions {
    /// Objects that are listed by themselves; what is beyond is summed in [`Analysis::omitted`] and counted in
    /// [`Analysis::groups`].
    pub max_objects: usize,
    /// Advice for machines with several memory nodes, also where the machine of the trace has one.
    pub for_numa: bool,
    /// Memory that the pages of the trace may take meanwhile, and that its objects may.
    pub room: Bytes,
}

impl Default for AnalyseOptions {
    fn default() -> Self {
        AnalyseOptions {
            max_objects: 20_000,
            for_numa: false,
            room: Bytes(u64::MAX),
        }
    }
}

/// Analyses a trace. `progress` hears the share of the work that is done, 0 to 1.
///
/// # Errors
/// A table that cannot be read, or more pages or objects than there is room for. Rows that contradict each other are no error: they are counted, see
/// [`TraceFacts::stray_rows`].
pub fn analyse(
    trace: &Trace,
    options: &AnalyseOptions,
    progress: &mut dyn FnMut(f64),
) -> Result<Analysis, TraceError> {
    assemble::analyse(trace, options, progress)
}
