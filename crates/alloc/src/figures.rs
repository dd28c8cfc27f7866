//! Figures: sums and distributions of the tables.

mod blocks;
mod memory;
mod operations;
mod time;

use serde::Serialize;
use varve_model::{Bytes, Duration, Loss, Pid, SiteId, Tid, Time};
use varve_trace::{Manifest, Trace, TraceError};

pub use self::blocks::{BlockSite, Blocks, Estimate, Idle};
use crate::read::Tables;
use crate::verdict::Verdict;
use crate::{About, Judgement, SCHEMA, allocator_name};

/// Operations of one name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct OperationFigures {
    /// How many.
    pub count: u64,
    /// Bytes that were asked for, or given back.
    pub requested_bytes: Bytes,
    /// Usable bytes of those blocks.
    pub usable_bytes: Bytes,
    /// Blocks that began where none had begun before.
    pub fresh: u64,
    /// While several threads allocated.
    pub parallel: u64,
    /// There was nothing to be had.
    pub failed: u64,
    /// How many were timed.
    pub timed: u64,
    /// How long all took, made of those.
    pub time_ns: Duration,
    /// How long one took on average.
    pub mean_ns: f64,
}

/// A share that was measured on a part of the whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Share {
    /// 0 to 1.
    pub share: f64,
    /// With 95 % confidence it is no further off than this.
    pub error: f64,
}

/// The allocator's share of the run's time, found in two ways.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Times {
    /// CPU time of the processes' own work, as the clocks of CPUs saw it.
    pub cpu_ns: Duration,
    /// How long operations took, made of those that were timed; waits for locks and for a CPU are part of it.
    pub operations_ns: Duration,
    /// Of that, in system calls that wait: futex, nanosleep, sched_yield.
    pub waited_ns: Duration,
    /// Of that, in system calls, ready to run and without a CPU: other programs' time.
    pub queued_ns: Duration,
    /// The share of CPU time, by timed operations without these waits; null where CPU time is not known.
    pub timed: Option<Share>,
    /// The same by clocks that found threads within operations.
    pub sampled: Option<Share>,
    /// What counting took, which is left out of `cpu_ns`: the clocks found threads at work on their tables.
    pub counting_ns: Duration,
    /// Clocks that found a thread at work of the program's.
    pub samples: u64,
    /// Whether the two differ by more than their errors and a tenth.
    pub differ: bool,
}

impl Times {
    /// The share that is believed: the clocks' where there are enough of them, as nothing is added to the operations then.
    #[must_use]
    pub fn share(&self) -> Option<f64> {
        let enough = self.samples >= 200;
        let sampled = self.sampled.filter(|_| enough).or(self.timed);
        sampled.or(self.sampled).map(|s| s.share)
    }
}

/// The distribution of the times of one kind of operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct TimeFigures {
    /// How many were timed.
    pub timed: u64,
    /// Half of them took no longer.
    pub p50_ns: Duration,
    /// 99 % of them took no longer.
    pub p99_ns: Duration,
    /// The longest of those that were timed took no longer.
    pub max_ns: Duration,
    /// On average.
    pub mean_ns: f64,
}

/// System calls of one name within operations.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CallFigures {
    /// Its name.
    pub name: String,
    /// How often.
    pub count: u64,
    /// Of these, within operations that free.
    pub by_frees: u64,
    /// How long in all its threads ran or slept in them.
    pub time_ns: Duration,
    /// How long they were ready to run meanwhile and had no CPU.
    pub queued_ns: Duration,
    /// Bytes of memory that they were about.
    pub bytes: Bytes,
    /// For each operation.
    pub per_operation: f64,
    /// The callers whose operations made most of them, and how many.
    pub sites: Vec<(String, u64)>,
}

/// Page faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Faults {
    /// Within operations.
    pub inside: u64,
    /// Elsewhere: most are first touches of what was allocated.
    pub outside: u64,
    /// Within operations, for each.
    pub per_operation: f64,
}

/// Memory at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Moment {
    /// When, from the beginning of the recording.
    pub time_ns: Duration,
    /// Bytes that the program asked for and had not freed.
    pub requested_bytes: Bytes,
    /// Bytes that it could use in those blocks.
    pub usable_bytes: Bytes,
    /// Resident anonymous memory, without Varve's.
    pub resident_bytes: Option<Bytes>,
    /// Resident memory of that which the allocator has mapped.
    pub heap_resident_bytes: Option<Bytes>,
}

/// Memory of a process.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Memory {
    /// The most that the program had asked for and not freed.
    pub peak_requested_bytes: Bytes,
    /// Usable bytes of the blocks at that moment.
    pub peak_usable_bytes: Bytes,
    /// When that was, from the beginning of the recording.
    pub peak_ns: Duration,
    /// The most resident anonymous memory that was seen; null where none was.
    pub peak_resident_bytes: Option<Bytes>,
    /// The most resident memory of that which the allocator has mapped; null where that is not known, as all that follows from it.
    pub peak_heap_resident_bytes: Option<Bytes>,
    /// At the end of the recording, or of the process.
    pub end_requested_bytes: Bytes,
    /// Blocks then.
    pub end_blocks: u64,
    /// The share of usable bytes that nobody asked for, at the peak.
    pub internal_fragmentation: f64,
    /// Resident bytes of the allocator's at the most, for each byte asked for at the most.
    pub blowup: Option<f64>,
    /// Resident bytes of the allocator's that lie in no block, at the most.
    pub kept_bytes: Option<Bytes>,
    /// The share of the time in which these were more than half of its resident memory.
    pub mostly_kept: Option<f64>,
    /// How long that was.
    pub mostly_kept_ns: Option<Duration>,
    /// Why it is not known what is resident of the allocator's memory; null where it is.
    pub unknown: Option<String>,
    /// Memory that counting took in the process.
    pub own_bytes: Bytes,
    /// Over time; at most 512 moments.
    pub over_time: Vec<Moment>,
}

/// A caller.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SiteFigures {
    /// The site, in the trace.
    pub site: Option<SiteId>,
    /// Its name.
    pub label: String,
    /// What it calls, the most frequent first.
    pub operations: Vec<String>,
    /// Operations.
    pub count: u64,
    /// Bytes that were asked for.
    pub requested_bytes: Bytes,
    /// Bytes that were given back.
    pub freed_bytes: Bytes,
    /// How long its operations took, made of those that were timed.
    pub time_ns: Duration,
    /// System calls within them.
    pub syscalls: u64,
    /// How long these took.
    pub syscall_ns: Duration,
    /// Page faults within them.
    pub faults: u64,
}

/// A size class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ClassFigures {
    /// Its largest usable size.
    pub bytes: Bytes,
    /// Allocations.
    pub count: u64,
    /// Bytes that were asked for.
    pub requested_bytes: Bytes,
    /// Usable bytes of those blocks.
    pub usable_bytes: Bytes,
    /// Blocks that were freed.
    pub freed: u64,
}

/// A thread.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ThreadFigures {
    /// The process.
    pub pid: Pid,
    /// The thread.
    pub tid: Tid,
    /// Its name.
    pub name: String,
    /// Operations.
    pub count: u64,
    /// Bytes that it asked for.
    pub requested_bytes: Bytes,
    /// Bytes that it gave back, its own or others'.
    pub freed_bytes: Bytes,
    /// How long its operations took, made of those that were timed.
    pub time_ns: Duration,
}

/// A process.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProcessFigures {
    /// The process.
    pub pid: Pid,
    /// Its program.
    pub exe: String,
    /// The name of its allocator.
    pub allocator: String,
    /// Operations.
    pub count: u64,
    /// The most that it had asked for and not freed.
    pub peak_requested_bytes: Bytes,
}

/// When the recording ended: of one whose recorder was killed, when it was written last.
fn end_of(manifest: &Manifest, tables: &Tables) -> Time {
    let written = tables.memory.iter().map(|row| row.time_ns).max();
    let read = tables.operations.iter().map(|row| row.time_ns).max();
    manifest
        .clock
        .end_ns
        .max(written.max(read).unwrap_or_default())
}

/// Why only a part of the run is in the trace, if so.
fn cut(manifest: &Manifest) -> Option<String> {
    let has = |loss: Loss| manifest.losses.contains_key(loss.as_str());
    if has(Loss::EndedEarly) {
        return Some("The recording ended early, as by a full disk: what is said here is of the part that was written.".into());
    }
    has(Loss::RecorderKilled).then(|| {
        "The recorder was killed: what is said here is of the part that was written before.".into()
    })
}

/// All figures; what follows from them is still to be said.
pub(crate) fn figures(trace: &Trace, tables: &Tables) -> Result<Judgement, TraceError> {
    let manifest = &trace.manifest;
    let note = manifest.operations.unwrap_or_default();
    let start: Time = manifest.clock.start_ns;
    let (processes, largest) = memory::processes(tables);
    let file = memory::allocator_file(tables, largest);
    let operations = operations::by_name(tables);
    let count = operations.values().map(|o| o.count).sum::<u64>();
    let syscalls = operations::calls(tables, count);
    let faults = operations::faults(tables, count);
    let about = About {
        command: manifest.target.command.clone(),
        duration_ns: end_of(manifest, tables) - start,
        cut: cut(manifest),
        allocator: allocator_name(&file).to_owned(),
        allocator_file: file,
        time_every: note.every,
        lost: manifest.losses.get("operations").copied().unwrap_or(0),
        plain_call_ns: note.plain_call_ns,
        call_ns: note.call_ns,
    };
    let times = time::distributions(tables);
    Ok(Judgement {
        schema: SCHEMA,
        trace: about,
        verdict: Verdict::default(),
        diagnoses: Vec::new(),
        time: time::shares(tables, &operations, &syscalls),
        operations,
        times,
        syscalls,
        faults,
        memory: memory::memory(tables, largest, start),
        sites: operations::sites(tables),
        blocks: blocks::blocks(trace, tables)?,
        classes: operations::classes(tables),
        threads: operations::threads(tables),
        processes,
    })
}
