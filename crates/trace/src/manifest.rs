//! `manifest.json`: what was recorded, on what, how, and how complete it is.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::{Deserialize, Serialize};
use ts_rs::TS;
use varve_model::{Backend, Bytes, Capability, Duration, SampleSource, Time};

use crate::folder::Folder;
use crate::{Checksum, TraceError};

/// The newest trace format that this version reads and the one that it writes.
pub const FORMAT_VERSION: u32 = 1;

/// What the `format` of a manifest says.
const FORMAT_NAME: &str = "varve-trace";

/// The statement of completeness of a trace that is being made.
pub(crate) const NOT_ENDED: &str = "The recording has not ended.";

/// What a machine field says where the machine does not say.
pub const MACHINE_UNKNOWN: &str = "unknown";

/// The manifest of a trace.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Always `varve-trace`.
    pub format: String,
    /// The format's version.
    pub version: u32,
    /// The varve that wrote it.
    pub varve: String,
    /// How far the recording got.
    pub state: State,
    /// What made it.
    pub backend: Backend,
    /// What it has: what is not among these is shown as absent, never as zero.
    pub capabilities: BTreeSet<Capability>,
    /// The recorder's process, while the state is `recording`.
    pub recorder_pid: Option<u32>,
    /// What ran.
    pub target: Target,
    /// The recorder's options.
    pub options: Options,
    /// What the kernel offered.
    pub features: Features,
    /// The machine.
    pub machine: Machine,
    /// The clock.
    pub clock: Clock,
    /// Whether anything was lost.
    pub completeness: Completeness,
    /// What recording cost.
    pub overhead: Overhead,
    /// Loss counters; all zero or absent in a complete trace.
    pub losses: BTreeMap<String, u64>,
    /// The samples; null where none were asked for.
    pub samples: Option<SamplesNote>,
    /// The trapped accesses; null where none were asked for.
    pub traps: Option<TrapsNote>,
    /// How allocator operations were counted; null where they were not.
    pub operations: Option<OperationsNote>,
    /// What a reader should know and no counter says, such as stripped files.
    pub modules: Vec<ModuleNote>,
    /// Of each table's file, by the table's name, once the trace is in order: readers refuse others.
    pub checksums: BTreeMap<String, Checksum>,
    /// Remarks for the reader, one sentence each.
    pub notes: Vec<String>,
}

/// How the accesses of a trace were trapped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrapsNote {
    /// The share of pages that were to be trapped, on average over the intervals; 1 without a budget.
    pub sampling_rate: f64,
    /// The share of the run time that trapping may cost, 0 to 1; null without a budget.
    pub budget: Option<f64>,
    /// Boundaries at which pages were protected.
    pub boundaries: u64,
    /// Pages protected, at all boundaries together.
    pub moved_pages: u64,
    /// Accesses that were trapped there, to protected memory.
    pub resolved: u64,
    /// Of them, first accesses to pages without content.
    pub resolved_empty: u64,
    /// Pages of protected memory that could not be moved at a boundary: pinned, or shared with a forked process.
    pub immovable_pages: u64,
    /// Private anonymous memory that could not be protected at all, at worst.
    pub max_refused_bytes: Bytes,
    /// Processes whose faults could not be resolved any more.
    pub given_up: u64,
    /// What protecting took while the target was held, all processes together.
    pub moving_ns: Duration,
    /// How long one thread at least waited for a trapped access; intervals are longer by that.
    pub waited_ns: Duration,
    /// Touched pages, each once per interval, whose first access trapped.
    pub trapped_touches: u64,
    /// Touched pages that the scan alone reports: shared, file-backed, immovable, not chosen.
    pub scanned_touches: u64,
}

/// What the numbers of the trace's clock count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "lowercase")]
pub enum ClockUnit {
    /// Nanoseconds.
    #[default]
    Nanoseconds,
    /// Memory accesses: the source has no clock, and this is their order.
    Accesses,
    /// Something that grows with time at a rate that the source does not say.
    Ticks,
}

/// How far a recording got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// The recorder is at work, or was killed at it.
    Recording,
    /// The recorder ended in order and the tables are merged.
    Finished,
    /// The recorder was killed; the tables were merged afterwards.
    Recovered,
}

/// What was recorded.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Target {
    /// The command line, or that of the process that was attached to.
    pub command: Vec<String>,
    /// The first process.
    pub pid: u32,
    /// Whether the process ran already when the recording began.
    pub attached: bool,
    /// The exit code as a shell would show it (128 + signal), where the end was seen.
    pub exit_code: Option<i32>,
}

/// The length of an interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IntervalChoice {
    /// Always this long, in nanoseconds: somebody asked for it.
    Fixed(Duration),
    /// Always this long, in nanoseconds: the backend's own length, as nobody asked for another.
    Default(Duration),
    /// Nobody chose: there are none, or they are those of an imported record.
    None,
    /// As long as it takes for the target to take no longer than this because it is recorded.
    Auto {
        /// How much longer it may take, 0 to 1.
        overhead: f64,
    },
    /// As long as the program takes to make this many accesses; 0: the whole run is one interval.
    Accesses(u64),
}

impl IntervalChoice {
    /// How long intervals are to be, where that does not depend on the program.
    pub const fn length(self) -> Option<Duration> {
        match self {
            IntervalChoice::Fixed(length) | IntervalChoice::Default(length) => Some(length),
            IntervalChoice::None | IntervalChoice::Auto { .. } | IntervalChoice::Accesses(_) => {
                None
            }
        }
    }
}

/// The recorder's options, resolved.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Options {
    /// How long intervals are.
    pub interval: IntervalChoice,
    /// Whether children are recorded.
    pub follow: bool,
    /// How long the target ran before its recording began.
    pub delay_ns: Duration,
    /// How long a single hold was to be at most; null where nobody was to be held.
    pub max_hold_ns: Option<Duration>,
    /// Heap objects of at least this size have a life of their own.
    pub min_object_bytes: Bytes,
    /// Whether huge pages were forbidden.
    pub thp_never: bool,
    /// Mechanisms that were switched off on purpose, to show what they are for.
    pub without: Vec<String>,
}

/// What the kernel and the target offered, where traces differ by it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Features {
    /// Where write information comes from: `soft-dirty`, `userfaultfd` or null.
    pub writes: Option<String>,
    /// Whether the flags of pages whose accessed bit somebody else took were read.
    pub page_flags: bool,
    /// What held the target: `cgroup` (one that the recorder made), `own cgroup`, `ptrace`, or several of them; `fexit` where
    /// nothing did, as programs at the exit of kernel functions kept what was cleared.
    pub hold: String,
    /// Where heap objects come from: `preload`, `kernel` or null.
    pub objects: Option<String>,
    /// What shows that pages go within an interval: `locks` (that somebody asks for the lock of a process's mappings, and what
    /// two boundaries differ in), `calls` (every system call) or null.
    pub vanish: Option<String>,
}

/// The machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
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

/// How the trace's clock relates to the wall.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Clock {
    /// `CLOCK_MONOTONIC` at the beginning of the recording.
    pub start_ns: Time,
    /// `CLOCK_MONOTONIC` at its end, or at the last flush.
    pub end_ns: Time,
    /// `CLOCK_REALTIME` at its beginning, nanoseconds since 1970.
    pub start_unix_ns: u64,
    /// What all times of the trace count.
    pub unit: ClockUnit,
}

/// The completeness statement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Completeness {
    /// True only when every loss counter is zero.
    pub complete: bool,
    /// The same in a sentence.
    pub statement: String,
}

/// What recording cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Overhead {
    /// How long the target was held, all intervals together.
    pub held_ns: Duration,
    /// By how much the target ended later because the first access to each page after its bit was cleared takes longer: the pages
    /// touched, times the price that was measured.
    pub first_accesses_ns: Duration,
    /// By how much because samples interrupted it.
    pub samples_ns: Duration,
    /// By how much because the preload library in it reported objects.
    pub objects_ns: Duration,
    /// By how much because programs in the kernel reported its faults, mappings, threads and processes.
    pub reports_ns: Duration,
    /// By how much because the recorder worked where the target could have.
    pub contention_ns: Duration,
    /// CPU time of the recorder while the target ran.
    pub recorder_cpu_ns: Duration,
    /// The recorder's peak resident memory.
    pub recorder_peak_bytes: Bytes,
}

/// How allocator operations were counted, and what that costs beside.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationsNote {
    /// Of so many operations one was timed, on average.
    pub every: u32,
    /// How often the clock of each CPU looked whether a thread was within an operation, per second; 0: it did not.
    pub clock_rate: u32,
    /// Whether the kernel's part charged system calls and page faults to operations.
    pub charges: bool,
    /// Whether it charged them with waits for the lock of the process's mappings.
    pub lock_waits: bool,
    /// To so many bytes of allocations one block was sampled, on average; 0: none.
    pub sample_bytes: Bytes,
    /// Where probes at the allocator's functions counted, and not the preload library.
    pub probes: Option<ProbesNote>,
    /// What a system call of anybody took before the kernel's part was there, and with it.
    pub plain_call_ns: Duration,
    /// See above.
    pub call_ns: Duration,
    /// What was not counted and why, as sentences.
    pub notes: Vec<String>,
}

/// What it cost that probes counted allocator operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbesNote {
    /// How much longer each operation took, as it was measured before on the same machine: `malloc` and `free` on average.
    pub operation_ns: Duration,
    /// How much of that was left out of the times of operations, where the processor had to step over no instruction.
    pub within_ns: Duration,
    /// Whether the program ran before: what it had allocated is not known.
    pub attached: bool,
}

/// How samples were taken and what became of them. Lost ones do not make a trace incomplete: samples are samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct SamplesNote {
    /// What took them.
    pub source: SampleSource,
    /// How many were asked for, per second of each CPU; where the permitted overhead chooses, at most.
    pub rate: u32,
    /// Whether the permitted overhead chose how many were taken.
    pub by_overhead: bool,
    /// How many were taken on average, per second of CPU time of the target.
    pub mean_rate: u32,
    /// The lowest rate at which they were taken for a time, to keep within the permitted overhead.
    pub least_rate: u32,
    /// How many were taken of recorded threads.
    pub taken: u64,
    /// The CPU time that they stand for; 0 where they have no weight in time.
    pub time_ns: Duration,
    /// Of those: the kernel was at work, in a system call.
    pub in_calls: u64,
    /// The kernel was at work, for a fault or an interrupt.
    pub in_traps: u64,
    /// The access was that of the instruction before.
    pub behind: u64,
    /// That of the instruction itself.
    pub at: u64,
    /// That of the next instruction to access memory.
    pub ahead: u64,
    /// The hardware reported the access.
    pub hardware: u64,
    /// The program was at work, and the access could not be resolved for certain.
    pub undecoded: u64,
    /// Of those: the instruction that the thread waited for has replaced the register that its address came from, as each
    /// step of a walk over a linked list does.
    pub overwritten: u64,
    /// Of `undecoded`: gathers and scatters, whose addresses stand in vector registers that no sample carries.
    pub gathers: u64,
    /// Beyond all these: samples that did not fit the ring.
    pub dropped: u64,
}

impl SamplesNote {
    /// Nothing has been taken yet.
    pub const fn new(source: SampleSource, rate: u32) -> SamplesNote {
        SamplesNote {
            source,
            rate,
            by_overhead: false,
            mean_rate: rate,
            least_rate: rate,
            taken: 0,
            time_ns: Duration(0),
            in_calls: 0,
            in_traps: 0,
            behind: 0,
            at: 0,
            ahead: 0,
            hardware: 0,
            undecoded: 0,
            overwritten: 0,
            gathers: 0,
            dropped: 0,
        }
    }

    /// One more was taken, which stands for this much time.
    pub fn take(&mut self, time: Duration) {
        self.taken += 1;
        self.time_ns = self.time_ns + time;
        if self.time_ns.0 > 0 {
            let each_second = u128::from(self.taken) * 1_000_000_000 / u128::from(self.time_ns.0);
            self.mean_rate = u32::try_from(each_second).unwrap_or(u32::MAX);
        }
    }
}

/// What is to be said of one executable or library.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModuleNote {
    /// The file.
    pub path: String,
    /// What is not known of it.
    pub lacks: Lacks,
    /// Why.
    pub why: String,
    /// What to do about it.
    pub hint: String,
    /// The package that has installed the file, by its name in the database of the recording's machine; null where none has.
    pub package: Option<String>,
}

/// What is not known of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lacks {
    /// Lines of code; names are known.
    Lines,
    /// Lines, and all names but those that it exports.
    LocalNames,
    /// All names.
    Names,
}

impl Manifest {
    /// The manifest with which a trace begins: of which nothing else is known yet, and that has nothing yet.
    pub fn begun(backend: Backend) -> Manifest {
        Manifest {
            format: FORMAT_NAME.to_owned(),
            version: FORMAT_VERSION,
            varve: env!("CARGO_PKG_VERSION").to_owned(),
            state: State::Recording,
            backend,
            capabilities: BTreeSet::new(),
            recorder_pid: None,
            target: Target::default(),
            options: Options {
                interval: IntervalChoice::None,
                follow: false,
                delay_ns: Duration(0),
                min_object_bytes: Bytes(0),
                max_hold_ns: None,
                thp_never: false,
                without: Vec::new(),
            },
            features: Features::default(),
            machine: Machine {
                kernel: MACHINE_UNKNOWN.to_owned(),
                architecture: MACHINE_UNKNOWN.to_owned(),
                cpu: MACHINE_UNKNOWN.to_owned(),
                cpus: 0,
                memory_bytes: Bytes(0),
                nodes: None,
            },
            clock: Clock::default(),
            completeness: Completeness {
                complete: false,
                statement: NOT_ENDED.to_owned(),
            },
            overhead: Overhead::default(),
            losses: BTreeMap::new(),
            samples: None,
            traps: None,
            operations: None,
            modules: Vec::new(),
            checksums: BTreeMap::new(),
            notes: Vec::new(),
        }
    }

    /// Reads the manifest of a trace folder.
    ///
    /// # Errors
    /// A folder that is not there or is no trace, and a manifest that is damaged or too new.
    pub fn read(folder: &Path) -> Result<Manifest, TraceError> {
        Folder::open(folder)?.manifest()
    }

    /// Whether a text is the manifest of a trace, of whatever version, with all of its fields or not.
    pub(crate) fn is_one(text: &[u8]) -> bool {
        #[derive(Deserialize)]
        struct Head {
            format: String,
        }
        serde_json::from_slice(text).is_ok_and(|head: Head| head.format == FORMAT_NAME)
    }

    /// A manifest from its text. The folder and the file are for messages.
    pub(crate) fn parse(text: &[u8], folder: &Path, path: &Path) -> Result<Manifest, TraceError> {
        // The version is looked at first: a newer manifest may not fit the rest.
        #[derive(Deserialize)]
        struct Head {
            format: String,
            version: u32,
        }
        let bad = |source| TraceError::BadManifest {
            path: path.to_owned(),
            source,
        };
        let head: Head = serde_json::from_slice(text).map_err(bad)?;
        if head.format != FORMAT_NAME {
            let what = format!("its format is {:?}, not {FORMAT_NAME:?}", head.format);
            return Err(bad(serde::de::Error::custom(what)));
        }
        if head.version == 0 {
            return Err(bad(serde::de::Error::custom(
                "there is no format version 0",
            )));
        }
        if head.version > FORMAT_VERSION {
            return Err(TraceError::TooNew {
                path: folder.to_owned(),
                found: head.version,
                known: FORMAT_VERSION,
            });
        }
        serde_json::from_slice(text).map_err(bad)
    }

    /// Whether the trace has this.
    pub fn has(&self, capability: Capability) -> bool {
        self.capabilities.contains(&capability)
    }
}
