//! What a trace says of its program's allocator.
//!
//! [`judge`] reads the tables of allocator operations and makes one [`Judgement`]: figures ([`figures`]), the diagnoses that follow from
//! them ([`diagnoses`]) and the verdict ([`verdict`]); or says that nothing was counted ([`Uncounted`]). It asks nothing of the machine.

mod allocators;
mod bounds;
pub mod compare;
mod diagnoses;
mod exchange;
mod figures;
mod flames;
mod judged;
#[cfg(test)]
mod made;
pub mod range;
mod read;
mod student;
mod verdict;

use serde::Serialize;
use ts_rs::TS;
use varve_analyse::Analysis;
use varve_model::Duration;
use varve_trace::{Trace, TraceError};

pub use allocators::allocator_name;
pub use diagnoses::Diagnosis;
pub use exchange::{Exchange, exchange};
pub use figures::{
    BlockSite, Blocks, CallFigures, Choice, ClassFigures, Confirmed, Estimate, Faults, Fill,
    GivenBack, HeapPages, Idle, LastTouch, LockWaits, Memory, Moment, OperationFigures, Pinning,
    ProcessFigures, Share, SharedLines, SiteFigures, ThreadFigures, TimeFigures, Times,
    UnknownTouches,
};
pub use flames::{FlameGraph, FlameStack, Measure, flame_graph};
pub use judged::{Judged, Uncounted};
pub use verdict::{Answer, Verdict};

/// The version of the fields of a judgement as JSON. Fields may be added under the same version.
pub const SCHEMA: &str = "varve-alloc/1";

/// What was recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, TS)]
pub struct About {
    /// The command line.
    pub command: Vec<String>,
    /// How long it was recorded.
    pub duration_ns: Duration,
    /// Why only a part of the run is in the trace; null where all of it is.
    pub cut: Option<String>,
    /// Of how many processes operations were not counted, or not to the end, as their address space or data are limited (RLIMIT_AS, RLIMIT_DATA): what counting
    /// takes would be missing there.
    pub limited_processes: u64,
    /// Of how many processes operations were not counted to the end, as they locked their memory (`mlockall`).
    pub locked_processes: u64,
    /// Both as a sentence; null where there are none.
    pub limited: Option<String>,
    /// Of how many processes no operation was counted, as what counts did not come into them.
    pub uncounted_processes: u64,
    /// Which these are and why, as a sentence; null where there are none.
    pub uncounted: Option<String>,
    /// Whether the program that the command ran at last is one of them.
    pub uncounted_command: bool,
    /// The name of the allocator of the process with the most memory.
    pub allocator: String,
    /// The file that has it.
    pub allocator_file: String,
    /// Of so many operations one was timed.
    pub time_every: u32,
    /// What else is to be known of the recording, as sentences.
    pub notes: Vec<String>,
    /// Operations that were not counted, and charges that found no room.
    pub lost: u64,
    /// How much longer each operation took, where probes at the allocator's functions counted it; null where the preload library did.
    pub probe_ns: Option<Duration>,
    /// Whether the program ran before it was recorded: of what it had allocated then nothing is known.
    pub attached: bool,
    /// What a system call of any program took before the recording.
    pub plain_call_ns: Duration,
    /// And while it ran.
    pub call_ns: Duration,
}

impl About {
    /// Whether operations of some processes were not counted, or not to the end.
    pub(crate) fn lacks_processes(&self) -> bool {
        self.why_uncounted().next().is_some()
    }

    /// Why operations were not counted, or not to the end, where that is so: sentences.
    pub fn why_uncounted(&self) -> impl Iterator<Item = &str> {
        let why = [&self.limited, &self.uncounted].into_iter().flatten();
        why.map(String::as_str)
    }
}

/// What a trace says of its program's allocator.
#[derive(Clone, Debug, PartialEq, Serialize, TS)]
pub struct Judgement {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// What was recorded.
    pub trace: About,
    /// Whether it is the allocator, in words.
    pub verdict: Verdict,
    /// What is wrong, the costliest first.
    pub diagnoses: Vec<Diagnosis>,
    /// What seems to be wrong, and is not known: by its error it may be less than its bound. A longer run says it.
    pub undecided: Vec<Diagnosis>,
    /// Operations by what was called.
    pub operations: std::collections::BTreeMap<String, OperationFigures>,
    /// The share of the run's time.
    pub time: Times,
    /// The distribution of times, by kind.
    pub times: std::collections::BTreeMap<String, TimeFigures>,
    /// System calls within operations, those that took longest first.
    pub syscalls: Vec<CallFigures>,
    /// Waits for the lock of the process's mappings; null where they were not seen.
    pub mmap_lock: Option<LockWaits>,
    /// Page faults.
    pub faults: Faults,
    /// Memory that operations gave back to the kernel, and that came again.
    pub given_back: GivenBack,
    /// Memory of the process with the most.
    pub memory: Memory,
    /// How full its pages are; null where nobody looked, its memory is less than 1 MiB, or it is not known which is its.
    pub pages: Option<HeapPages>,
    /// Cache lines with blocks of several threads.
    pub lines: SharedLines,
    /// Which free blocks the allocator gives out, where it has a choice.
    pub choice: Choice,
    /// Callers, those that cost the most time first.
    pub sites: Vec<SiteFigures>,
    /// Sampled blocks: what lives, for how long, and who allocated it.
    pub blocks: Blocks,
    /// Size classes, small ones first.
    pub classes: Vec<ClassFigures>,
    /// Threads, those with the most operations first.
    pub threads: Vec<ThreadFigures>,
    /// Processes, those with the most memory first.
    pub processes: Vec<ProcessFigures>,
}

impl Judgement {
    /// The costliest diagnosis of the allocator itself.
    #[must_use]
    pub fn allocators_diagnosis(&self) -> Option<&Diagnosis> {
        self.diagnoses.iter().find(|d| !d.by_program)
    }

    /// The costliest that is not known, likewise.
    #[must_use]
    pub fn undecided_of_allocator(&self) -> Option<&Diagnosis> {
        self.undecided.iter().find(|d| !d.by_program)
    }
}

/// Whether [`judge`] can say more with an analysis of the trace: its samples show whether threads meet on the cache lines that their blocks share.
///
/// # Errors
/// Tables that cannot be read.
pub fn needs_analysis(trace: &Trace) -> Result<bool, TraceError> {
    Ok(trace.has_operations() && figures::asks_samples(trace)?)
}

/// Reads the tables and judges. None where allocator operations were not recorded. Without an analysis nothing is confirmed by samples.
///
/// # Errors
/// Tables that cannot be read.
pub fn judge(trace: &Trace, analysis: Option<&Analysis>) -> Result<Option<Judged>, TraceError> {
    if !trace.has_operations() {
        return Ok(None);
    }
    let tables = read::Tables::read(trace)?;
    let about = figures::about(trace, &tables);
    // What called no operation has figures, which are zeros.
    if tables.operations.is_empty() && about.lacks_processes() {
        return Ok(Some(Judged::Uncounted(Box::new(Uncounted::of(about)))));
    }
    let mut judgement = figures::figures(trace, &tables, about, analysis)?;
    (judgement.diagnoses, judgement.undecided) = diagnoses::diagnose(&judgement);
    judgement.verdict = verdict::of(&judgement);
    Ok(Some(Judged::Counted(Box::new(judgement))))
}
