use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use ts_rs::TS;

/// A name in a trace that this version does not know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownKind {
    /// What the name was read as, for the message.
    pub what: &'static str,
    /// The name itself.
    pub name: String,
}

impl fmt::Display for UnknownKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown {} `{}`", self.what, self.name)
    }
}

impl std::error::Error for UnknownKind {}

macro_rules! named {
    ($(#[$doc:meta])* $name:ident ($what:literal) { $($(#[$vdoc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, TS)]
        pub enum $name { $($(#[$vdoc])* #[serde(rename = $text)] $variant,)* }

        impl $name {
            /// Every value, in the order of their codes.
            pub const ALL: &[$name] = &[$($name::$variant),*];

            /// The name that traces and reports use.
            pub const fn as_str(self) -> &'static str {
                match self { $($name::$variant => $text,)* }
            }
        }

        impl FromStr for $name {
            type Err = UnknownKind;

            fn from_str(name: &str) -> Result<Self, UnknownKind> {
                match name {
                    $($text => Ok($name::$variant),)*
                    _ => Err(UnknownKind { what: $what, name: name.to_owned() }),
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
}
pub(crate) use named;

named! {
    /// What an object is.
    ObjectKind ("kind of object") {
        /// Static data of an executable or a library.
        Static = "static",
        /// A piece of heap, from an allocator.
        Heap = "heap",
        /// A thread's stack.
        Stack = "stack",
        /// Anonymous or shared memory that the program mapped itself.
        Mapping = "mapping",
        /// A mapped file, text of executables and libraries included.
        File = "file",
        /// Memory that the recorder has in the target: its rings and tables, the stacks of its fault handlers, its preload
        /// library. It is not the program's.
        Recorder = "recorder",
    }
}

named! {
    /// How a touch became known.
    TouchSource ("source of a touch") {
        /// The accessed bit, read by the scan at the end of the interval.
        Scan = "scan",
        /// The accessed bit, read before the page vanished within the interval.
        Vanish = "vanish",
        /// The page was resident at the beginning of the interval and is gone at its end, and nobody saw it go: it may
        /// not have been touched. That happens to a page once at most.
        Gone = "gone",
        /// The `PG_young` or `PG_referenced` flag of an anonymous page that only this process has mapped: somebody else
        /// took the accessed bit (DAMON, idle page tracking), or the kernel reached the page without using the mapping. Also
        /// `PG_young` of another page that has one mapping in the machine: only those set it that take an accessed bit.
        PageFlag = "page_flag",
        /// One of these flags of a page of a file or of shared memory, or of one that others have mapped too: they may
        /// have set it, so it bounds what was touched and is no observation.
        PossiblyOthers = "possibly_others",
        /// The page is pinned for direct access by a device or the kernel: it may be accessed at
        /// any time with no trace, so it counts in every interval while pinned.
        Pinned = "pinned",
        /// The accessed bit is set but the kernel cannot clear it (hugetlb, zero page, mapped
        /// device memory): it counts in every interval since it was first touched.
        Sticky = "sticky",
        /// Imported from DAMON: a region in which some sampled page was accessed. Neither complete nor exact.
        Damon = "damon",
        /// Imported, with exact addresses: each page that an access of the source touched.
        Imported = "imported",
        /// Every access was counted while the program ran under an emulator.
        Exact = "exact",
        /// The first access in the interval trapped: the fault shows exactly who and where.
        Fault = "fault",
    }
}

named! {
    /// How a sample of a memory access became known.
    SampleSource ("source of a sample") {
        /// The timer of a CPU: the weight of a sample is time.
        CpuClock = "cpu-clock",
        /// A hardware sample of Intel's PEBS.
        Pebs = "pebs",
        /// A hardware sample of AMD's IBS.
        Ibs = "ibs",
        /// A hardware sample of Arm's SPE.
        Spe = "spe",
        /// Imported from a recording of `perf mem`, or its text.
        PerfMem = "perf_mem",
        /// Imported from Mitos or MemAxes.
        Mitos = "mitos",
        /// Imported from the tables of the IISWC 2022 artifact.
        Iiswc22 = "iiswc22",
        /// Imported from Valgrind's lackey: every access, not a sample.
        Lackey = "lackey",
        /// Imported from Moca: the first access to a page in an interval.
        Moca = "moca",
        /// The first access to a protected page, trapped.
        Fault = "fault",
    }
}

named! {
    /// Which code a sample found at work.
    SampleMode ("mode of a sample") {
        /// The program's own.
        User = "user",
        /// The kernel's, in a system call.
        Call = "call",
        /// The kernel's, for a fault or an interrupt.
        Trap = "trap",
    }
}

named! {
    /// Which instruction's access a sample names, seen from where the thread was stopped.
    Resolved ("place of an access") {
        /// The one before, for which the thread had waited.
        Behind = "behind",
        /// The one at which it stood.
        At = "at",
        /// The next one to access memory.
        Ahead = "ahead",
        /// The hardware said which.
        Hardware = "hardware",
        /// That of the one before, whose address is not known: it replaced the register that the address came from.
        Overwritten = "overwritten",
    }
}

named! {
    /// Where the data of an access came from.
    MemoryLevel ("level of memory") {
        /// First-level cache.
        L1 = "l1",
        /// Second-level cache.
        L2 = "l2",
        /// Third-level cache.
        L3 = "l3",
        /// Fourth-level cache.
        L4 = "l4",
        /// Line fill buffer: the line was on its way already.
        FillBuffer = "fill_buffer",
        /// Memory of the same node.
        LocalDram = "local_dram",
        /// Memory of another node.
        RemoteDram = "remote_dram",
        /// A cache of another node, or of another core where that is all that is reported.
        RemoteCache = "remote_cache",
        /// Memory, the node not reported.
        Dram = "dram",
        /// Persistent memory.
        Pmem = "pmem",
        /// Memory on a CXL device.
        Cxl = "cxl",
        /// I/O memory.
        Io = "io",
        /// Memory that is not cached.
        Uncached = "uncached",
    }
}

named! {
    /// A format of another tool's records, which can be imported.
    ImportFormat ("format") {
        /// `perf.data`, of `perf mem record` or of any event with addresses; also of DAMON's tracepoint.
        PerfData = "perf-data",
        /// The text of `perf script`.
        PerfScript = "perf-script",
        /// Samples of Mitos and MemAxes.
        Mitos = "mitos",
        /// The tables of the IISWC 2022 artifact.
        Iiswc22 = "iiswc22",
        /// damo's records.
        Damon = "damon",
        /// Valgrind's lackey.
        Lackey = "lackey",
        /// Moca's traces.
        Moca = "moca",
        /// TABARNAC's tables.
        Tabarnac = "tabarnac",
    }
}

named! {
    /// Something that a trace has, or that is true of it. Readers ask for these, never for who made the trace.
    Capability ("capability") {
        /// Touched pages, and with them intervals and whatever is made of the two.
        Touches = "touches",
        /// Resident pages.
        Resident = "resident",
        /// Page faults, and with them first touches by thread.
        Faults = "faults",
        /// What recording cost: holds, CPU time and memory of the recorder.
        Overhead = "overhead",
        /// The machine.
        Machine = "machine",
        /// Where objects lie and how large they are.
        Places = "places",
        /// When objects began and ended.
        Lives = "lives",
        /// Touched pages are recorded so that none is missing that was accessed, unless a loss counter says so.
        Superset = "superset",
        /// Whether a touch was a write.
        Writes = "writes",
        /// Objects within the heap.
        HeapObjects = "heap_objects",
        /// Samples of memory accesses.
        Samples = "samples",
        /// How often threads accessed pages.
        Counts = "counts",
        /// Each access of the program's own instructions is counted, with its thread.
        ExactCounts = "exact_counts",
        /// The first access to each page in an interval was trapped. It is a page fault; where the trace has none, a sample.
        Traps = "traps",
        /// The program ran in an emulator: times are the emulator's.
        Emulated = "emulated",
        /// Allocator operations, what the kernel did within them, and the memory that allocators manage.
        AllocatorOperations = "allocator_operations",
        /// Marks of the program, where it makes any: it could know that somebody records.
        Marks = "marks",
    }
}

impl Capability {
    /// What recordings of Varve's own have; a probe takes away what it could not find out.
    pub const RECORDED: [Capability; 9] = [
        Capability::Touches,
        Capability::Resident,
        Capability::Faults,
        Capability::Overhead,
        Capability::Machine,
        Capability::Places,
        Capability::Lives,
        Capability::Superset,
        Capability::Marks,
    ];
}

/// What made a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Backend {
    /// Accessed bits were read.
    #[default]
    Scan,
    /// Besides, the first access to each page in an interval trapped.
    Fault,
    /// Every access was counted, in an emulator.
    Exact,
    /// Another tool recorded.
    Import(ImportFormat),
}

impl Backend {
    /// What Varve records with.
    pub const RECORDERS: [Backend; 3] = [Backend::Scan, Backend::Fault, Backend::Exact];

    /// The name that traces and reports use.
    pub const fn as_str(self) -> &'static str {
        match self {
            Backend::Scan => "scan",
            Backend::Fault => "fault",
            Backend::Exact => "exact",
            Backend::Import(ImportFormat::PerfData) => "import/perf-data",
            Backend::Import(ImportFormat::PerfScript) => "import/perf-script",
            Backend::Import(ImportFormat::Mitos) => "import/mitos",
            Backend::Import(ImportFormat::Iiswc22) => "import/iiswc22",
            Backend::Import(ImportFormat::Damon) => "import/damon",
            Backend::Import(ImportFormat::Lackey) => "import/lackey",
            Backend::Import(ImportFormat::Moca) => "import/moca",
            Backend::Import(ImportFormat::Tabarnac) => "import/tabarnac",
        }
    }

    /// All of them.
    pub fn all() -> impl Iterator<Item = Backend> {
        let imported = ImportFormat::ALL.iter().copied().map(Backend::Import);
        Backend::RECORDERS.into_iter().chain(imported)
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Backend {
    type Err = UnknownKind;

    fn from_str(name: &str) -> Result<Self, UnknownKind> {
        let found = Backend::all().find(|backend| backend.as_str() == name);
        found.ok_or_else(|| UnknownKind {
            what: "backend",
            name: name.to_owned(),
        })
    }
}

impl Serialize for Backend {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Backend {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let name = std::borrow::Cow::<'de, str>::deserialize(from)?;
        name.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_round_trip() {
        for backend in Backend::all() {
            assert_eq!(backend.as_str().parse::<Backend>().as_ref(), Ok(&backend));
            let json = format!("\"{backend}\"");
            assert_eq!(serde_json::to_string(&backend).unwrap(), json);
            assert_eq!(serde_json::from_str::<Backend>(&json).unwrap(), backend);
        }
        for format in ImportFormat::ALL {
            let text = format!("import/{format}");
            assert_eq!(text.parse::<Backend>(), Ok(Backend::Import(*format)));
        }
        for capability in Capability::ALL {
            let name = capability.as_str();
            assert_eq!(name.parse::<Capability>().as_ref(), Ok(capability));
        }
        for kind in ObjectKind::ALL {
            assert_eq!(kind.as_str().parse::<ObjectKind>().as_ref(), Ok(kind));
        }
        for source in TouchSource::ALL {
            assert_eq!(source.as_str().parse::<TouchSource>().as_ref(), Ok(source));
        }
        for source in SampleSource::ALL {
            assert_eq!(source.as_str().parse::<SampleSource>().as_ref(), Ok(source));
        }
        for mode in SampleMode::ALL {
            assert_eq!(mode.as_str().parse::<SampleMode>().as_ref(), Ok(mode));
        }
        for resolved in Resolved::ALL {
            assert_eq!(resolved.as_str().parse::<Resolved>().as_ref(), Ok(resolved));
        }
        for level in MemoryLevel::ALL {
            assert_eq!(level.as_str().parse::<MemoryLevel>().as_ref(), Ok(level));
        }
        assert!("steak".parse::<ObjectKind>().is_err());
    }
}
