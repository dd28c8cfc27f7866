//! What the programs in the kernel report to the recorder, as borrowed views of ring-buffer records
//!
//! All times are `CLOCK_MONOTONIC` nanoseconds. All process ids are thread-group ids.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use varve_model::{Address, Bytes, Cpu, Pages, Pid, Tid, Time};

use crate::{MmId, Region, Resident};

/// One record from the ring buffer
#[derive(Debug, Clone, Copy)]
pub enum Event<'a> {
    /// A page fault of a tracked process
    Fault(Fault),
    /// An access that faulted was refused
    Refused(Refused),
    /// A process whose allocator operations are counted touches a page that is not there
    FirstTouch(FirstTouch),
    /// Such a process had `madvise` take pages away
    Emptied(Emptied),
    /// Pages that were touched since the last clear, read just before they went
    Vanish(Vanish<'a>),
    /// A tracked process made a process or a thread
    Fork(Fork),
    /// A tracked process runs a new program; its address space is a new one
    Exec(Exec<'a>),
    /// A thread of a tracked process ended
    Exit(Exit),
    /// A thread of a tracked process changed its name
    Comm(Comm<'a>),
    /// A system call that changed the mappings of a tracked process returned
    Mapping(Mapping<'a>),
    /// A tracked process registered memory for missing pages with userfaultfd ([`crate::Kernel::watch_moves`])
    Registration,
    /// A thread of a tracked process said where in its work it is
    Mark(Mark<'a>),
}

/// A page fault, at the moment it happens (before the kernel handles it)
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// When
    pub time: Time,
    /// Process
    pub pid: Pid,
    /// Thread
    pub tid: Tid,
    /// CPU number
    pub cpu: Cpu,
    /// Address of the instruction that faulted (a kernel address if `mode` is [`Mode::Kernel`])
    pub ip: Address,
    /// Address that was accessed
    pub address: Address,
    /// Whether it was a write
    pub access: Access,
    /// Who accessed: the program itself, or the kernel on its behalf
    pub mode: Mode,
    /// Whether it is in the memory of a program that `execve` is about to begin, and not in what the process had
    pub is_next: bool,
}

/// SIGSEGV or SIGBUS in place of an access: its fault, the last one of the thread at that address, was no touch
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused {
    /// When the signal was delivered
    pub time: Time,
    /// Process
    pub pid: Pid,
    /// Thread
    pub tid: Tid,
    /// Address that was to be accessed
    pub address: Address,
}

/// A page fault at a page that was not there, as far as the kernel says: one that may not be accessed, or is in swap, looks the same
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FirstTouch {
    /// Process
    pub pid: Pid,
    /// Thread
    pub tid: Tid,
    /// Address that was accessed
    pub address: Address,
    /// Who touches it
    pub by: TouchedBy,
    /// How it was seen
    pub seen: TouchSeen,
}

/// Who makes a first touch
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TouchedBy {
    /// The program's own code, outside of allocator operations
    Program,
    /// The kernel on behalf of the program, as in `read`, likewise
    Kernel,
    /// An allocator operation
    Operation,
}

/// How a first touch was seen
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TouchSeen {
    /// As it began: once
    Begun,
    /// By the clock of a CPU, which found the thread at work in the page fault: any number of times, of touches by the program's own code
    Sampled,
}

/// `madvise` took pages of a range away
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Emptied {
    /// Process
    pub pid: Pid,
    /// Where the range begins
    pub address: Address,
    /// Its length
    pub bytes: Bytes,
    /// Whether they are gone by now; else the kernel takes them as it needs them (`MADV_FREE`)
    pub at_once: bool,
    /// Whether an allocator operation called it
    pub by_operation: bool,
}

/// Read or write
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// A load
    Read,
    /// A store
    Write,
    /// An instruction fetch
    Execute,
}

/// User or kernel mode
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The program's own instruction
    User,
    /// The kernel, on behalf of the program (for example in `read`)
    Kernel,
}

/// Touched pages that are about to go
#[derive(Debug, Clone, Copy)]
pub struct Vanish<'a> {
    /// When
    pub time: Time,
    /// Process whose memory it is
    pub pid: Pid,
    /// Thread in whose context it happens
    pub tid: Tid,
    /// Who makes them go
    pub doer: Doer,
    /// Address space; processes made by `vfork` share their parent's
    pub mm: MmId,
    /// Why the pages go
    pub cause: VanishCause,
    /// From where to where all pages that were there were looked at, and go; said by [`crate::VanishHooks::Locks`]. With
    /// [`VanishCause::Populate`] nothing goes.
    pub range: Option<(Address, Address)>,
    pub(crate) regions: &'a [u8],
}

/// Who makes pages go
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Doer {
    /// The process whose memory it is
    Itself,
    /// Another process, which holding the target still does not stop
    Another,
}

/// Why pages go, or why their accessed bits do
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum VanishCause {
    /// `munmap`
    Unmap,
    /// `mremap`
    Remap,
    /// `brk` to a lower address
    Brk,
    /// `madvise` or `process_madvise` that drops pages or their accessed bits
    Advise,
    /// `mmap` with `MAP_FIXED` over mappings
    Overmap,
    /// `shmdt`
    ShmDetach,
    /// `execve`, `execveat`
    Exec,
    /// The last thread ends, or is killed
    Exit,
    /// `truncate`, `ftruncate`, `MADV_REMOVE`, `fallocate` that punches, collapses, zeroes or cuts a
    /// mapped file
    Truncate,
    /// The kernel is about to access these pages on the way out of the process
    KernelTouch,
    /// The kernel is about to map a range without a fault for each page (`MADV_POPULATE_READ` and `MADV_POPULATE_WRITE`)
    Populate,
    /// A cause that this version of the loader does not know
    Unknown(u32),
}

/// A new process or thread
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fork {
    /// When
    pub time: Time,
    /// Process that called `clone`, `fork` or `vfork`
    pub parent: Pid,
    /// Thread that called it
    pub parent_tid: Tid,
    /// Process of the child; equal to `parent` for a thread
    pub pid: Pid,
    /// Thread id of the child
    pub tid: Tid,
    /// What was made
    pub kind: ForkKind,
    /// Address space of the child
    pub mm: MmId,
    /// Stack pointer with which a thread starts; none for a plain fork
    pub stack_pointer: Option<Address>,
    /// Base of the thread-local storage that the child was given
    pub tls: Option<Address>,
    /// Whether the child is tracked from its first instruction on
    pub tracked: bool,
    /// The thread id by which the child knows itself, in its own pid namespace
    pub own_tid: Option<Tid>,
}

/// What `clone` made
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForkKind {
    /// A thread of the same process
    Thread,
    /// A process with a copy of the address space
    Process,
    /// A process that shares the address space (`vfork`, `posix_spawn`)
    SharedMemory,
}

/// What the variable `LD_PRELOAD` of a program is
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preload<'a> {
    /// It has no variables at all
    NoVariables,
    /// It has none
    Absent,
    /// This, which may be cut at 255 bytes
    Is(&'a [u8]),
    /// It has more than 128 variables, and this is not among the first
    Unknown,
}

/// The most memory of a process that was resident at once, as the kernel counts it: without pages of hugetlbfs
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Peak {
    /// Of the program that ends here; none where its memory was not read as it ended
    pub program: Option<Pages>,
    /// Of all programs of the process that have ended, and of what made these (`ru_maxrss` of `getrusage`): a process that was
    /// made by fork begins with none. None where this kernel does not show it
    pub process: Option<Pages>,
}

/// A new program in a process
#[derive(Debug, Clone, Copy)]
pub struct Exec<'a> {
    /// When
    pub time: Time,
    /// Process
    pub pid: Pid,
    /// Thread that called `execve`; it has the id of the process now
    pub old_tid: Tid,
    /// The new address space
    pub mm: MmId,
    /// Path as given to the kernel; may be cut at 255 bytes
    pub path: &'a [u8],
    /// The names of the file that runs and of its folders, see [`Exec::file`]
    pub names: &'a [u8],
    /// Whether it begins in its own code, so that it loads no libraries, or is a 32-bit program
    pub is_static: bool,
    /// Whether it gained rights by its file's bits
    pub is_secure: bool,
    /// Whether its root folder is not the recorder's
    pub has_other_root: bool,
    /// Its arguments, a zero byte behind each, or the first 511 bytes of them
    pub arguments: &'a [u8],
    /// Whether those are all
    pub has_more: bool,
    /// What `LD_PRELOAD` is
    pub preload: Preload<'a>,
    /// How much was resident of the program before
    pub peak: Peak,
}

impl Exec<'_> {
    /// The file that runs, below the process's root: where links led, of a script the interpreter. None where the kernel's
    /// names do not say it: of files that were removed, and of very long paths
    #[must_use]
    pub fn file(&self) -> Option<PathBuf> {
        let names = self.names.strip_suffix(&[0])?;
        let mut path = vec![];
        for name in names.split(|byte| *byte == 0).rev() {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        Some(OsString::from_vec(path).into())
    }
}

/// The end of a thread
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exit {
    /// When
    pub time: Time,
    /// Process
    pub pid: Pid,
    /// Thread
    pub tid: Tid,
    /// As `wait` would report it: exit status << 8, or the number of the signal
    pub wait_status: i32,
    /// Whether the process ended with it
    pub last: bool,
    /// How much was resident; said where the process ended
    pub peak: Peak,
}

/// A new thread name
#[derive(Debug, Clone, Copy)]
pub struct Comm<'a> {
    /// When
    pub time: Time,
    /// Process
    pub pid: Pid,
    /// Thread
    pub tid: Tid,
    /// The name, without the final zero
    pub name: &'a [u8],
}

/// What a program says of its work (`varve/mark.h`)
#[derive(Debug, Clone, Copy)]
pub struct Mark<'a> {
    /// When
    pub time: Time,
    /// Process
    pub pid: Pid,
    /// Thread
    pub tid: Tid,
    /// What
    pub kind: MarkKind,
    /// The name, its first 128 bytes at most; empty where it could not be read
    pub name: &'a [u8],
    /// How long the program says that the name is
    pub bytes: u32,
}

/// What a mark is
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MarkKind {
    /// A phase begins
    Begin,
    /// A phase ends
    End,
    /// Something happened
    Event,
}

/// A finished system call that changed mappings
#[derive(Debug, Clone, Copy)]
pub struct Mapping<'a> {
    /// When the call was entered: what it removed was gone from some time after this
    pub entered: Time,
    /// When the call returned: what it made existed from some time before this
    pub time: Time,
    /// Process
    pub pid: Pid,
    /// Thread
    pub tid: Tid,
    /// Which call, and with what
    pub call: MappingCall,
    /// What it returned: an address, or a negative error number
    pub result: i64,
    /// Whether an allocator operation made the call; known with [`crate::LoadOptions::operations`] only
    pub by_operation: bool,
    /// User registers and stack at the call, for processes tracked with `STACKS`
    pub stack: Option<UserStack<'a>>,
}

/// A system call that changes mappings, with its arguments
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MappingCall {
    /// `mmap`; the result is where it went
    Map {
        /// Wanted address (zero: anywhere)
        hint: Address,
        /// Length in bytes as given
        bytes: Bytes,
        /// `PROT_*`
        protection: u32,
        /// `MAP_*`
        flags: u32,
        /// File descriptor, -1 for none
        fd: i32,
        /// Offset in the file
        offset: u64,
    },
    /// `munmap`
    Unmap {
        /// Start
        address: Address,
        /// Length in bytes as given
        bytes: Bytes,
    },
    /// `mremap`; the result is the new address
    Remap {
        /// Start of the old mapping
        old_address: Address,
        /// Its length in bytes as given
        old_bytes: Bytes,
        /// New length in bytes as given
        new_bytes: Bytes,
        /// `MREMAP_*`
        flags: u32,
    },
    /// `brk`; the result is the end of the heap afterwards
    Brk {
        /// Wanted end (zero: only asks)
        wanted: Address,
        /// End before the call
        before: Address,
    },
    /// `shmat`; the result is where it went
    ShmAttach {
        /// Segment id
        id: i32,
    },
    /// `shmdt`
    ShmDetach {
        /// Start
        address: Address,
    },
}

/// User registers and a copy of the stack above the stack pointer
#[derive(Debug, Clone, Copy)]
pub struct UserStack<'a> {
    /// Instruction pointer (just behind the system call)
    pub ip: Address,
    /// Stack pointer: the address of the first byte of `bytes`
    pub sp: Address,
    /// Frame pointer register
    pub bp: Address,
    /// Callee-saved registers rbx, r12, r13, r14, r15
    pub saved: [u64; 5],
    /// Stack contents; may end early where the stack ends
    pub bytes: &'a [u8],
}

impl Vanish<'_> {
    /// The pages, one region after the other
    pub fn regions(&self) -> impl Iterator<Item = Region> + '_ {
        crate::abi::vanish_regions(self.regions)
    }

    /// What was there of [`range`](Self::range), in order of addresses
    pub fn residents(&self) -> impl Iterator<Item = Resident> + '_ {
        crate::abi::vanish_residents(self.regions)
    }
}
