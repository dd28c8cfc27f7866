//! What the caller asks for, and what the machine offers

use crate::abi;

/// How to load the programs
#[derive(Debug, Clone)]
pub struct LoadOptions {
    /// Bytes of the ring buffer, rounded up to a power of two pages. This memory is locked in the
    /// kernel and mapped (twice, the same pages) into the recorder.
    pub ring_bytes: u32,
    /// Processes that can be tracked at the same time (about 80 bytes of kernel memory each)
    pub max_processes: u32,
    /// Regions of the output of one walk call (408 bytes each, mapped into the recorder); a walk
    /// of more touched regions takes several calls
    pub walk_regions: u32,
    /// Bytes of user stack copied with each mapping event of a process tracked with stacks
    pub stack_bytes: u32,
    /// Bytes of the ring buffer of samples, as [`LoadOptions::ring_bytes`]
    pub sample_ring_bytes: u32,
    /// Bytes of user stack copied with each sample, 4 KiB at most
    pub sample_stack_bytes: u32,
    /// Whether pages with a clear accessed bit have their page flags checked
    pub page_flags: PageFlags,
    /// Whether pages can be read ([`crate::Kernel::walk`]), and those that go are reported ([`TrackFlags::VANISH`])
    pub pages: bool,
    /// Whether page faults are recorded
    pub faults: bool,
    /// Whether samples can be taken by the clock ([`crate::Kernel::sample`])
    pub samples: bool,
    /// Whether it is reported how long threads wait in faults ([`crate::Kernel::waited`]), which costs each switch
    /// between threads a little
    pub waits: bool,
    /// Whether what the kernel does within allocator operations is to be charged to them ([`crate::Kernel::operations`]), which makes
    /// all system calls of the machine a little slower
    pub operations: bool,
    /// Whether allocator operations can be counted by probes at the allocator's functions ([`crate::Kernel::probes`]); goes with
    /// [`LoadOptions::operations`]
    pub probes: bool,
    /// Whether the bits that `clear_refs` takes are to be kept ([`crate::Kernel::harvests`]): then nobody needs to be held
    pub harvest: bool,
    /// Which hooks read the memory of a process that ends or runs a new program
    pub hooks: Hooks,
    /// What shows that pages go, and that mappings change
    pub vanish: VanishHooks,
    /// Programs to leave out, as on a kernel that refuses them (to test what a recording is worth then)
    pub left_out: Vec<&'static str>,
}

/// What shows that pages go, and that mappings change
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VanishHooks {
    /// That somebody asks for the lock of a process's mappings. Nobody's system calls are slower for it. What takes pages and
    /// needs no lock is not seen: compare what is resident at two boundaries ([`crate::Kernel::walk_all`]). A kernel without
    /// those tracepoints gets the others.
    Locks,
    /// Every system call, of every process of the machine, which makes each slower
    Calls,
}

/// Which hooks to use where a kernel offers several
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hooks {
    /// The best that this kernel has
    Best,
    /// Those that all kernels have (to test on a new kernel what an old one runs)
    Portable,
}

impl Default for LoadOptions {
    fn default() -> Self {
        LoadOptions {
            ring_bytes: 4 << 20,
            max_processes: 16384,
            walk_regions: 4096,
            stack_bytes: 16 << 10,
            sample_ring_bytes: 4096,
            sample_stack_bytes: 2048,
            page_flags: PageFlags::Check,
            pages: true,
            faults: true,
            samples: true,
            waits: false,
            operations: false,
            probes: false,
            harvest: false,
            hooks: Hooks::Best,
            vanish: VanishHooks::Locks,
            left_out: Vec::new(),
        }
    }
}

/// Whether to look at page flags
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageFlags {
    /// Look: nothing that others aged or the kernel touched is missed
    Check,
    /// Do not look (for negative controls and measurements)
    Ignore,
}

/// What to record of a process; combine with `|`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TrackFlags(pub(crate) u32);

impl TrackFlags {
    /// Processes that it makes are tracked with the same flags
    pub const FOLLOW: TrackFlags = TrackFlags(abi::TRACK_FOLLOW);
    /// Mapping events (mmap, munmap, mremap, brk, shmat, shmdt)
    pub const MAPPINGS: TrackFlags = TrackFlags(abi::TRACK_MAPPINGS);
    /// User stacks with the mapping events
    pub const STACKS: TrackFlags = TrackFlags(abi::TRACK_STACKS);
    /// Page faults
    pub const FAULTS: TrackFlags = TrackFlags(abi::TRACK_FAULTS);
    /// Pages that vanish
    pub const VANISH: TrackFlags = TrackFlags(abi::TRACK_VANISH);
    /// Samples, where they are taken
    pub const SAMPLES: TrackFlags = TrackFlags(abi::TRACK_SAMPLES);
    /// The first process of each image that shares its memory and has no exit signal is not its child: by way of that the
    /// preload library makes the fault handler. Others of that kind are tracked, and so is what one of them makes or runs
    /// besides ([`crate::ExemptProcesses`])
    pub const HANDLERS: TrackFlags = TrackFlags(abi::TRACK_HANDLERS);
    /// FOLLOW, MAPPINGS, FAULTS and VANISH
    pub const DEFAULT: TrackFlags =
        TrackFlags(abi::TRACK_FOLLOW | abi::TRACK_MAPPINGS | abi::TRACK_FAULTS | abi::TRACK_VANISH);

    /// Whether all flags of `other` are set
    pub const fn contains(self, other: TrackFlags) -> bool {
        self.0 & other.0 == other.0
    }

    /// These flags without those of `other`
    pub const fn without(self, other: TrackFlags) -> TrackFlags {
        TrackFlags(self.0 & !other.0)
    }
}

impl std::ops::BitOr for TrackFlags {
    type Output = TrackFlags;
    fn bitor(self, other: TrackFlags) -> TrackFlags {
        TrackFlags(self.0 | other.0)
    }
}

/// A mechanism, and whether this machine has it
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capability {
    /// Short name
    pub name: &'static str,
    /// What it is for
    pub purpose: &'static str,
    /// Whether it works here
    pub available: bool,
    /// Whether nothing can be recorded without it
    pub required: bool,
    /// Whether no recording is complete without it
    pub promised: bool,
    /// Why not, or how it was found
    pub detail: String,
    /// Whether it is of use with others only, of which another mechanism says whether all of them work
    pub is_part: bool,
}

/// What could not be delivered since the programs were loaded, by kind
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Fault records that did not fit in the ring
    pub faults: u64,
    /// Touched hardware pages of vanish records that did not fit, or could not be walked; and times that records came too late for
    /// the interval that they belong to
    pub vanish_pages: u64,
    /// Times that a vanish hook could not walk at all or to the end
    pub vanish_walks: u64,
    /// Fork, exec, exit and comm records that did not fit
    pub life: u64,
    /// Mapping records that did not fit
    pub mappings: u64,
    /// Children that could not be tracked because the table is full
    pub tracking: u64,
    /// Times that the kernel skipped one of the programs (recursion)
    pub skipped: u64,
}

impl Dropped {
    /// Sum over all kinds: zero means that nothing was lost
    pub fn total(&self) -> u64 {
        self.faults
            + self.vanish_pages
            + self.vanish_walks
            + self.life
            + self.mappings
            + self.tracking
            + self.skipped
    }
}
