//! Figures: sums and distributions of the tables.

mod blocks;
mod choice;
mod estimate;
mod given_back;
mod lines;
mod memory;
mod operations;
mod pages;
mod time;
mod timing;
mod uncounted;

use serde::Serialize;
use ts_rs::TS;
use varve_analyse::Analysis;
use varve_model::{Bytes, Duration, Loss, Pid, SiteId, Tid, Time};
use varve_trace::{Manifest, Trace, TraceError};

pub use self::blocks::idle::Idle;
pub use self::blocks::{BlockSite, Blocks};
pub use self::choice::Choice;
pub(crate) use self::estimate::CONFIDENCE;
pub use self::estimate::Estimate;
pub use self::given_back::{GivenBack, UnknownTouches};
pub(crate) use self::lines::asks_samples;
pub use self::lines::{Confirmed, SharedLines};
pub(crate) use self::operations::{TRIM, allocates};
pub use self::pages::{Fill, HeapPages, LastTouch, Pinning};
pub(crate) use self::timing::Timing;
use crate::read::Tables;
use crate::verdict::Verdict;
use crate::{About, Judgement, SCHEMA, allocator_name};

/// Operations of one name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, TS)]
pub struct OperationFigures {
    /// How many.
    pub count: u64,
    /// Bytes that were asked for, or given back.
    pub requested_bytes: Bytes,
    /// Usable bytes of those blocks; null where the allocator does not say it.
    pub usable_bytes: Option<Bytes>,
    /// Blocks that began where none had begun before; null where probes counted, and where operations were not counted.
    pub fresh: Option<u64>,
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
    /// With 95 % confidence both are no further off than this share of them, as the few that were timed stand for all.
    pub time_error: f64,
    /// System calls within them.
    pub syscalls: u64,
}

/// A share that was measured on a part of the whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, TS)]
pub struct Share {
    /// 0 to 1.
    pub share: f64,
    /// With 95 % confidence it is no further off than this.
    pub error: f64,
}

impl Share {
    /// The share of a whole of which so many were sampled, and of these so many belong to the part; None where none were.
    pub(crate) fn of(part: u64, sampled: u64) -> Option<Share> {
        let share = (sampled > 0).then(|| part as f64 / sampled as f64)?;
        let error = CONFIDENCE * (share * (1.0 - share) / sampled as f64).sqrt();
        Some(Share {
            share,
            // Of none, three could have been missed (the rule of three).
            error: error.max(3.0 / sampled as f64).min(1.0),
        })
    }
}

/// The allocator's share of the run's time, found in two ways.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, TS)]
pub struct Times {
    /// CPU time of the processes' own work, as the clocks of CPUs saw it.
    pub cpu_ns: Duration,
    /// How long operations took, made of those that were timed; waits for locks and for a CPU are part of it. Null where it is not known, as where none of
    /// a kind was timed, or those that were timed are no sample of the others.
    pub operations_ns: Option<Duration>,
    /// With 95 % confidence that is no further off than this share of it; null likewise.
    pub operations_error: Option<f64>,
    /// They took no less, as far as is known: system calls within them are part of it.
    pub operations_least_ns: Duration,
    /// In system calls that wait (futex, nanosleep, sched_yield) and asleep until `mmap_lock` was free.
    pub waited_ns: Duration,
    /// In system calls, ready to run and without a CPU: other programs' time.
    pub queued_ns: Duration,
    /// The share of CPU time, by timed operations without these waits; null where CPU time is not known, and where probes counted, which take longer than
    /// most operations.
    pub timed: Option<Share>,
    /// The same by clocks that found threads within operations.
    pub sampled: Option<Share>,
    /// The share of CPU time in loops within operations that wait for another thread, as far as they pause (the instruction `pause`); by the clocks.
    pub spinning: Option<Share>,
    /// CPU time of allocations that neither clear nor copy memory, in the allocator's own code and not in the kernel; null where clocks saw nothing.
    pub allocating_ns: Option<Duration>,
    /// What counting took, which is left out of `cpu_ns`: the clocks found threads at work on their tables.
    pub counting_ns: Duration,
    /// Clocks that found a thread at work of the program's.
    pub samples: u64,
    /// Whether the two differ by more than their errors and a tenth.
    pub differ: bool,
}

impl Times {
    /// The share that is believed, the clocks': nothing is added to operations then, and its error is known whatever the times are like. The mean of a
    /// few that were timed is not: one that waited for a CPU outweighs all others.
    #[must_use]
    pub fn share(&self) -> Option<Share> {
        self.sampled
    }
}

/// The distribution of the times of one kind of operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, TS)]
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
    /// With 95 % confidence it is no further off than this.
    pub mean_error_ns: f64,
}

/// System calls of one name within operations.
#[derive(Clone, Debug, PartialEq, Serialize, TS)]
pub struct CallFigures {
    /// Its name.
    pub name: String,
    /// How often.
    pub count: u64,
    /// Of these, within operations that free.
    pub by_frees: u64,
    /// Calls that failed: they gave an error, or (`brk`) did not move the end of the heap to where it was to be.
    pub failed: u64,
    /// How long in all its threads ran or slept in them.
    pub time_ns: Duration,
    /// How long they were ready to run meanwhile and had no CPU.
    pub queued_ns: Duration,
    /// Bytes of memory that those were about that did not fail.
    pub bytes: Bytes,
    /// For each operation.
    pub per_operation: f64,
    /// The callers whose operations made most of them, and how many.
    pub sites: Vec<(String, u64)>,
}

/// Page faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, TS)]
pub struct Faults {
    /// Within operations.
    pub inside: u64,
    /// Elsewhere.
    pub outside: u64,
    /// Of these, first touches of pages that the allocator had mapped: fresh memory whose price the program pays later. Null where it is not known which
    /// pages are the allocator's.
    pub behind: Option<u64>,
    /// Of these, those that the kernel made for the program, as in `read`: their time is not known. Null likewise.
    pub behind_by_kernel: Option<u64>,
    /// The share of CPU time in the others, which the program's own code made; by the clocks of CPUs. Null likewise, where no clock found the program at
    /// work, and where the kernel made most of them.
    pub behind_share: Option<Share>,
    /// Within operations, for each.
    pub per_operation: f64,
}

/// Waits for `mmap_lock`, the lock of a process's mappings: system calls that map and unmap hold it, and page faults may ask for it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, TS)]
pub struct LockWaits {
    /// How often an operation had to wait for it, because another thread of its process held it.
    pub waits: u64,
    /// How long in all, without the time in which the thread was ready to run and had no CPU.
    pub time_ns: Duration,
    /// Of that, in waits in which the thread kept its CPU until it had the lock.
    pub spun_ns: Duration,
    /// How long they were ready to run meanwhile and had no CPU.
    pub queued_ns: Duration,
    /// How long operations waited because another process held it, such as one that reads what is resident; this is not part of the others.
    pub others_ns: Duration,
    /// Waits outside of operations, most of them in page faults.
    pub outside: u64,
    /// How long those took.
    pub outside_ns: Duration,
    /// The callers whose operations waited most often, and how often.
    pub sites: Vec<(String, u64)>,
}

/// Memory at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, TS)]
pub struct Moment {
    /// When, from the beginning of the recording.
    pub time_ns: Duration,
    /// Bytes that the program asked for and had not freed; null where [`Memory::uncounted`] says why.
    pub requested_bytes: Option<Bytes>,
    /// Bytes that it could use in those blocks; null likewise, and where the allocator does not say it.
    pub usable_bytes: Option<Bytes>,
    /// Resident anonymous memory, without Varve's.
    pub resident_bytes: Option<Bytes>,
    /// Resident memory of that which the allocator has mapped; null where that is not known, or nobody looked.
    pub heap_resident_bytes: Option<Bytes>,
}

/// Memory of a process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, TS)]
pub struct Memory {
    /// The most that the program had asked for and not freed; null where `uncounted` says why, as all that follows from what lives.
    pub peak_requested_bytes: Option<Bytes>,
    /// Usable bytes of the blocks at that moment; null likewise, and where the allocator does not say it.
    pub peak_usable_bytes: Option<Bytes>,
    /// When that was, from the beginning of the recording; null likewise.
    pub peak_ns: Option<Duration>,
    /// The most resident anonymous memory that a look found; null where none was. Between looks it may have been more.
    pub peak_resident_bytes: Option<Bytes>,
    /// The most resident memory of that which the allocator has mapped that a look found; null where that is not known, as all that follows from it.
    /// Between looks, 50 ms and more, it may have been more.
    pub peak_heap_resident_bytes: Option<Bytes>,
    /// How long before the end of the process, or of the recording, that look was; null likewise.
    pub peak_heap_resident_before_end_ns: Option<Duration>,
    /// At the end of the recording, or of the process; null where `uncounted` says why.
    pub end_requested_bytes: Option<Bytes>,
    /// Blocks then; null likewise.
    pub end_blocks: Option<u64>,
    /// The share of usable bytes that nobody asked for, at the peak; null where they are.
    pub internal_fragmentation: Option<f64>,
    /// Resident bytes of the allocator's at the most, for each byte asked for at the most.
    pub blowup: Option<f64>,
    /// Resident bytes of the allocator's that lie in no block, at the most.
    pub kept_bytes: Option<Bytes>,
    /// The share of the time in which these were more than half of its resident memory.
    pub mostly_kept: Option<f64>,
    /// How long that was.
    pub mostly_kept_ns: Option<Duration>,
    /// Blocks that were handed out where one lived, which nobody saw freed. Such a block counts as living until then.
    pub unseen_frees: u64,
    /// Why it is not known what lives: operations were not counted; null where all were.
    pub uncounted: Option<String>,
    /// Why it is not known what is resident of the allocator's memory; null where it is.
    pub unknown: Option<String>,
    /// Memory that counting took in the process.
    pub own_bytes: Bytes,
    /// Over time; at most 512 moments.
    pub over_time: Vec<Moment>,
}

/// A caller.
#[derive(Clone, Debug, PartialEq, Serialize, TS)]
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
    /// Operations that were timed.
    pub timed: u64,
    /// How long its operations took, made of those that were timed; null where it is not known.
    pub time_ns: Option<Duration>,
    /// With 95 % confidence that is no further off than this share of it; null where it is not known.
    pub time_error: Option<f64>,
    /// Why that time is not known; null where it is.
    pub time_unknown: Option<&'static str>,
    /// CPU time of its operations, by the clocks of CPUs that found a thread within one; null where fewer than four did.
    pub cpu_ns: Option<Duration>,
    /// With 95 % confidence that is no further off than this share of it; null where it is not known.
    pub cpu_error: Option<f64>,
    /// System calls within them.
    pub syscalls: u64,
    /// How long these took.
    pub syscall_ns: Duration,
    /// Page faults within them.
    pub faults: u64,
}

/// A size class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, TS)]
pub struct ClassFigures {
    /// Its largest usable size.
    pub bytes: Bytes,
    /// Allocations, and blocks that a `realloc` made to be of this class. All of these were freed, were reallocated, or live.
    pub count: u64,
    /// Bytes that were asked for.
    pub requested_bytes: Bytes,
    /// Usable bytes of those blocks; null where the allocator does not say it.
    pub usable_bytes: Option<Bytes>,
    /// Blocks that were freed.
    pub freed: u64,
    /// Blocks that a `realloc` took: each is a block of the class of its new size then, the same one or another.
    pub reallocated: u64,
    /// Allocations that were timed, of those that neither clear nor copy memory: not calloc and realloc.
    pub timed: u64,
    /// How long all of those took, made of the timed ones; null where it is not known.
    pub time_ns: Option<Duration>,
    /// With 95 % confidence that is no further off than this share of it; null where it is not known.
    pub time_error: Option<f64>,
    /// Why that time is not known; null where it is.
    pub time_unknown: Option<&'static str>,
    /// What that is made of, to be added up.
    #[serde(skip)]
    #[ts(skip)]
    pub(crate) timing: Timing,
}

/// A thread.
#[derive(Clone, Debug, PartialEq, Serialize, TS)]
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
    /// Operations that were timed.
    pub timed: u64,
    /// How long its operations took, made of those that were timed; null where it is not known.
    pub time_ns: Option<Duration>,
    /// With 95 % confidence that is no further off than this share of it; null where it is not known.
    pub time_error: Option<f64>,
    /// Why that time is not known; null where it is.
    pub time_unknown: Option<&'static str>,
}

/// A process.
#[derive(Clone, Debug, PartialEq, Serialize, TS)]
pub struct ProcessFigures {
    /// The process.
    pub pid: Pid,
    /// Its program.
    pub exe: String,
    /// The name of its allocator.
    pub allocator: String,
    /// Operations.
    pub count: u64,
    /// The most that it had asked for and not freed; null where operations were not counted.
    pub peak_requested_bytes: Option<Bytes>,
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

/// Facts of the recording, and which processes were not counted.
pub(crate) fn about(trace: &Trace, tables: &Tables) -> About {
    let manifest = &trace.manifest;
    let note = manifest.operations.clone().unwrap_or_default();
    let (_, largest) = memory::processes(tables);
    let file = memory::allocator_file(tables, largest);
    let losses = &manifest.losses;
    let lost = |loss: Loss| losses.get(loss.as_str()).copied().unwrap_or(0);
    let (limited_processes, locked_processes) =
        (lost(Loss::LimitedProcesses), lost(Loss::LockedProcesses));
    let uncounted = uncounted::uncounted(tables, lost, note.probes.is_none());
    About {
        command: manifest.target.command.clone(),
        duration_ns: end_of(manifest, tables) - manifest.clock.start_ns,
        cut: cut(manifest),
        limited_processes,
        locked_processes,
        limited: uncounted::limited(limited_processes, locked_processes),
        uncounted_processes: uncounted.processes,
        uncounted: uncounted.sentence,
        uncounted_command: uncounted.command,
        allocator: allocator_name(&file).to_owned(),
        allocator_file: file,
        time_every: note.every,
        notes: note
            .notes
            .into_iter()
            .chain(memory::unseen(tables))
            .collect(),
        lost: manifest.losses.get("operations").copied().unwrap_or(0),
        probe_ns: note.probes.map(|probes| probes.operation_ns),
        attached: note.probes.is_some_and(|probes| probes.attached),
        plain_call_ns: note.plain_call_ns,
        call_ns: note.call_ns,
    }
}

/// All figures; what follows from them is still to be said.
pub(crate) fn figures(
    trace: &Trace,
    tables: &Tables,
    about: About,
    analysis: Option<&Analysis>,
) -> Result<Judgement, TraceError> {
    let manifest = &trace.manifest;
    let note = manifest.operations.clone().unwrap_or_default();
    let start: Time = manifest.clock.start_ns;
    let (processes, largest) = memory::processes(tables);
    let times = time::distributions(tables);
    let operations = operations::by_name(tables, &times);
    let count = operations.values().map(|o| o.count).sum::<u64>();
    let syscalls = operations::calls(tables, count);
    let lock_waits = note.lock_waits.then(|| operations::lock_waits(tables));
    let sampled = blocks::Sampled::read(trace, tables)?;
    let fills = pages::fills(tables, largest, start);
    let memory = memory::memory(tables, (largest, &fills), start, about.attached);
    let knows_heap = note.charges && memory::knows_mapped(tables, largest, about.attached);
    let time = time::shares(
        tables,
        &operations,
        (&syscalls, lock_waits.as_ref()),
        note.probes.is_some(),
    );
    let faults = operations::faults(tables, count, time.samples, knows_heap);
    let attached = about.attached;
    let given_back = given_back::given_back(tables, time.samples, |pid| {
        memory::why_unmapped(tables, pid, attached)
    });
    let blocks = blocks::blocks(trace, tables, &sampled, memory.uncounted.is_none())?;
    let pages = match memory.unknown {
        Some(_) => None,
        None => pages::pages(trace, tables, &sampled, (largest, fills))?,
    };
    Ok(Judgement {
        schema: SCHEMA,
        trace: about,
        verdict: Verdict::default(),
        diagnoses: Vec::new(),
        undecided: Vec::new(),
        time,
        operations,
        times,
        syscalls,
        mmap_lock: lock_waits,
        faults,
        given_back,
        memory,
        pages,
        sites: operations::sites(tables),
        lines: lines::lines(tables, analysis),
        choice: choice::choice(tables),
        blocks,
        classes: operations::classes(tables),
        threads: operations::threads(tables),
        processes,
    })
}
