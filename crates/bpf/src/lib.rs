//! The BPF programs of the recorder and their loader
//!
//! One program of type `syscall` walks the page tables of a process on demand; raw tracepoint
//! programs report what happens between two walks: pages that vanish, faults, processes and threads
//! that come and go, mappings that change.

mod abi;
mod calibrate;
mod decode;
mod error;
mod event;
mod kernel;
mod operations;
mod options;
mod programs;
mod raw;
mod region;
mod ring;
mod samples;
mod types;
mod uprobes;

pub use error::BpfError;
pub use event::{
    Access, Comm, Doer, Emptied, Event, Exec, Exit, Fault, FirstTouch, Fork, ForkKind, Mapping,
    MappingCall, Mark, MarkKind, Mode, Peak, Preload, Refused, TouchSeen, TouchedBy, UserStack,
    Vanish, VanishCause,
};
pub use kernel::{
    ATOMIC_CLEARING, ExemptProcesses, Kernel, LoadedProgram, ReportsTook, TrackedProcesses,
};
pub use operations::{Charge, Charged, Operations, RunningPlaces};
pub use options::{Capability, Dropped, Hooks, LoadOptions, PageFlags, TrackFlags, VanishHooks};
pub use programs::{LOCK_WAIT_PROGRAMS, OPERATION_PROGRAMS, PROBE_PROGRAMS};
pub use region::{Bitmap, Harvest, HarvestStats, Leaf, Part, Region, Resident, WalkStats};
pub use samples::{ClockSample, RedZone, Samples, SamplesTaken, Whereabouts, interrupt_time};
pub use uprobes::{
    ProbeCost, ProbeLinks, ProbePlace, ProbedCall, ProbedPoint, ProbedProcess, ProbedRow,
    ProbedTimes, Probes, is_probes_own,
};

/// An address space: two processes with the same one share their pages (`vfork`). Numbers are
/// reused after the last process of it ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MmId(pub u64);
