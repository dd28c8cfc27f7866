//! What the caller wants recorded, resolved.

use std::ffi::OsString;
use std::path::PathBuf;

use varve_model::{Bytes, Duration, Pid, SampleSource};
use varve_sys::ThpPolicy;
use varve_trace::{IntervalChoice, Output};

use crate::HoldChoice;
use crate::interrupts::Tell;

/// What to record.
#[derive(Clone, Debug)]
pub enum TargetChoice {
    /// A command to start.
    Command(Vec<OsString>),
    /// A process that runs already.
    Attach(Pid),
}

/// A mechanism to leave out, to show what it is for: the trace is wrong without it, and says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ablation {
    /// Do not flush the TLB after clearing.
    Flush,
    /// Do not hold the target between reading and clearing.
    Hold,
    /// Do not look at the flags of pages whose accessed bit is clear.
    PageFlags,
    /// Do not read pages that vanish within an interval.
    Vanish,
    /// Do not look at the instruction before that of a sample.
    Behind,
    /// Do not move pages to their shadow, so that nothing traps.
    Protect,
}

impl Ablation {
    /// Its name on the command line and in manifests.
    pub const fn as_str(self) -> &'static str {
        match self {
            Ablation::Flush => "flush",
            Ablation::Hold => "hold",
            Ablation::PageFlags => "page-flags",
            Ablation::Vanish => "vanish",
            Ablation::Behind => "behind",
            Ablation::Protect => "protect",
        }
    }

    /// The ablation of that name.
    pub fn from_name(name: &str) -> Option<Ablation> {
        [
            Ablation::Flush,
            Ablation::Hold,
            Ablation::PageFlags,
            Ablation::Vanish,
            Ablation::Behind,
            Ablation::Protect,
        ]
        .into_iter()
        .find(|a| a.as_str() == name)
    }
}

/// Whether writes are distinguished from reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WritesChoice {
    /// Where the kernel has soft-dirty bits, which cost nothing more.
    Auto,
    /// Also where each first write of a page in an interval costs a fault.
    On,
    /// Nowhere.
    Off,
}

/// How pages are seen that go within an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VanishChoice {
    /// By a look at every system call of the machine, which makes all of them slower.
    Exact,
    /// As the locks of mappings are asked for, and by comparing what is resident at two boundaries. Nobody's system calls are
    /// slower for it.
    Locks,
}

/// Whether samples are taken, and by what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SamplesChoice {
    /// None.
    Off,
    /// By the clock of each CPU, so many times a second.
    Clock {
        /// Per second of each CPU, 1 at least.
        rate: u32,
    },
    /// By the clock of each CPU, as often as the permitted overhead allows.
    Within {
        /// Per second of each CPU at most, 1 at least.
        rate: u32,
    },
    /// By the processor itself.
    Hardware {
        /// PEBS, IBS or SPE.
        source: SampleSource,
        /// Per second of each CPU, 1 at least: what the period is made from.
        rate: u32,
    },
    /// By the processor itself where it can, else by the clock.
    Auto {
        /// Per second of each CPU, 1 at least.
        rate: u32,
    },
}

/// Whether accesses are trapped.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TrapsChoice {
    /// No: the scan alone shows them.
    Off,
    /// The first access to every page in an interval.
    All,
    /// To as many pages, chosen at random, as cost this share of the run time, 0 to 1.
    Budget(f64),
}

/// Every access is to be counted, by running the target under an emulator.
#[derive(Clone, Debug)]
pub struct CountsChoice {
    /// The emulator's plugin.
    pub plugin: PathBuf,
    /// How many accesses an interval is long; 0: the whole run is one. Rounded up to a multiple of 64.
    pub interval_accesses: u64,
}

/// Allocator operations are to be counted.
#[derive(Clone, Debug)]
pub struct OperationsChoice {
    /// Of so many operations one is timed, 1 at least.
    pub every: u32,
    /// To so many bytes of allocations one block is sampled, on average; 0: none.
    pub sample_bytes: Bytes,
    /// The library whose allocator the target is to use; None: its own.
    pub allocator: Option<PathBuf>,
    /// Whether probes at the allocator's functions count, as nothing can be preloaded.
    pub probes: bool,
}

/// How a recording goes.
#[derive(Clone, Copy, Debug)]
pub struct Live {
    /// How long accesses have been recorded.
    pub recorded: Duration,
    /// 4 KiB pages that were touched in the last interval.
    pub touched_pages: u64,
    /// How long the target was held so far.
    pub held: Duration,
    /// CPU time of the recorder so far.
    pub recorder_cpu: Duration,
    /// Whether the recording is paused, or waits for its beginning.
    pub rests: bool,
}

/// Shows a person how a recording goes.
pub type Show = fn(&Live);

/// The options of a recording.
#[derive(Clone, Debug)]
pub struct RecordOptions {
    /// What to record.
    pub target: TargetChoice,
    /// Where the trace is to be written.
    pub output: Output,
    /// How long intervals are.
    pub interval: IntervalChoice,
    /// How much longer the target may take for being recorded, 0 to 1. Samples of [`SamplesChoice::Within`] keep to it, and
    /// intervals of [`IntervalChoice::Auto`], which names it again.
    pub overhead: f64,
    /// Whether the target's children are recorded too.
    pub follow: bool,
    /// Heap objects of at least this size have a life of their own.
    pub min_object: Bytes,
    /// Whether that becomes more where the permitted overhead would not allow as many.
    pub min_object_adapts: bool,
    /// Huge pages.
    pub thp: ThpPolicy,
    /// The preload library, where it is to be used.
    pub preload: Option<PathBuf>,
    /// Writes.
    pub writes: WritesChoice,
    /// Pages that go within an interval.
    pub vanish: VanishChoice,
    /// Samples.
    pub samples: SamplesChoice,
    /// What holds the target still.
    pub hold: HoldChoice,
    /// How long a single hold may be, as far as the target's memory can be read and cleared in parts.
    pub max_hold: Duration,
    /// Whether the first access to each page in an interval is to trap.
    pub traps: TrapsChoice,
    /// Whether every access is to be counted. Then nothing is scanned, trapped or sampled.
    pub counts: Option<CountsChoice>,
    /// Whether allocator operations are to be counted.
    pub operations: Option<OperationsChoice>,
    /// Whether pages are recorded, and objects, faults and samples; without them only what else is asked for.
    pub pages: bool,
    /// How long the target is to run before its accesses are recorded; its objects are known from the beginning.
    pub delay: Duration,
    /// How long to record at most; None: until the target ends or a signal arrives.
    pub duration: Option<Duration>,
    /// Mechanisms left out on purpose.
    pub without: Vec<Ablation>,
    /// Shows a person how the recording goes, a few times a second.
    pub show: Option<Show>,
    /// Says a sentence to the person who waits for the recording.
    pub tell: Tell,
}

impl RecordOptions {
    /// Whether the pages of the target itself are recorded as they are touched.
    pub(crate) fn scans(&self) -> bool {
        self.counts.is_none() && self.pages
    }

    pub(crate) fn lacks(&self, mechanism: Ablation) -> bool {
        self.without.contains(&mechanism)
    }
}
