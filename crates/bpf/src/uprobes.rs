//! Allocator operations counted by probes at the allocator's functions (uprobes)
//!
//! Probes are attached by one link for all of a file's functions where the kernel has those (`BPF_TRACE_UPROBE_MULTI`), else by a perf event for
//! each. Both are gone when this process is, and the functions are as they were.

mod measure;

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use libbpf_rs::{Link, Object, ProgramMut, UprobeMultiOpts, UprobeOpts};
use varve_model::{Address, Bytes, Pid, Tid, Time};

pub(crate) use self::measure::{Means, can_attach, counts_all_threads, measure};
pub use self::measure::{ProbeCost, is_probes_own};
use crate::abi::{
    self, ProbeArgs, ProbedProcess as RawProcess, ProbedRow as RawRow, ProbedRowKey, ProbedTimeKey,
};
use crate::kernel::system;
use crate::programs::{ENTERED, RETURNED};
use crate::{BpfError, raw};

/// The struct that a kernel has which attaches many probes by one link
pub(crate) const MANY_BY_ONE_LINK: &str = "bpf_uprobe_multi_link";

/// One of an allocator's functions, as far as counting its calls takes. Arguments are counted from 1, up to 4
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct ProbedCall {
    /// What it is, as the preload library numbers operations
    pub operation: u8,
    /// The argument that is the size
    pub size: Option<u8>,
    /// The argument by which the size is multiplied
    pub times: Option<u8>,
    /// The argument that is the block that goes
    pub old: Option<u8>,
    /// Whether it stores its result where its first argument points to
    pub stores: bool,
    /// Whether it only calls another function that is probed, which ends the operation
    pub announces: bool,
    /// Whether the word before a block is its size, as in glibc
    pub headers: bool,
}

impl ProbedCall {
    fn cookie(self, returns: bool, steps: bool) -> u64 {
        let shifted = |which: Option<u8>, shift: u32| {
            (u64::from(which.unwrap_or(0)) & u64::from(abi::PROBE_ARGUMENT)) << shift
        };
        let flag = |is: bool, flag: u32| if is { u64::from(flag) } else { 0 };
        u64::from(self.operation) & u64::from(abi::PROBE_OPERATION)
            | shifted(self.size, abi::PROBE_SIZE_SHIFT)
            | shifted(self.times, abi::PROBE_TIMES_SHIFT)
            | shifted(self.old, abi::PROBE_OLD_SHIFT)
            | flag(self.stores, abi::PROBE_STORES)
            | flag(self.announces, abi::PROBE_ANNOUNCES)
            | flag(self.headers, abi::PROBE_HEADERS)
            | flag(returns, abi::PROBE_AT_RETURN)
            | flag(steps, abi::PROBE_STEPS)
    }
}

/// Where in a function a program runs
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProbePlace {
    /// Before its first instruction
    Begin,
    /// Where it returns to: the return address is another one meanwhile, which exceptions cannot pass. The point is its first instruction
    End,
    /// Before an instruction of it that returns; the return address stays. `Begin` is to have a [`ProbedPoint::returns`]
    Return,
}

/// A place in a file where a program runs
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ProbedPoint {
    /// Bytes from the file's beginning
    pub offset: u64,
    /// The function
    pub call: ProbedCall,
    /// Where in it
    pub place: ProbePlace,
    /// Whether the function has probes of [`ProbePlace::Return`]
    pub returns: bool,
    /// Whether the kernel has the processor do the instruction there by itself, which takes longer; else it does it in the processor's place
    pub steps: bool,
}

/// Probes that are attached, until this is dropped
pub struct ProbeLinks(Vec<Link>);

impl Drop for ProbeLinks {
    fn drop(&mut self) {
        // Beginnings were attached last: what begins meanwhile would have no end.
        while self.0.pop().is_some() {}
    }
}

impl std::fmt::Debug for ProbeLinks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ProbeLinks").field(&self.0.len()).finish()
    }
}

/// Attaches probes to a file, for one process or for all that have it mapped and will have
pub(crate) fn attach(
    object: &Object,
    many: bool,
    path: &Path,
    points: &[ProbedPoint],
    whom: Option<Pid>,
) -> Result<ProbeLinks, BpfError> {
    // What it says is in its errors too.
    let before = libbpf_rs::set_print(None);
    let attached = attach_each(object, many, path, points, whom);
    libbpf_rs::set_print(before);
    attached
}

fn attach_each(
    object: &Object,
    many: bool,
    path: &Path,
    points: &[ProbedPoint],
    whom: Option<Pid>,
) -> Result<ProbeLinks, BpfError> {
    let mut links = ProbeLinks(Vec::new());
    for place in [ProbePlace::End, ProbePlace::Return, ProbePlace::Begin] {
        let of: Vec<&ProbedPoint> = points.iter().filter(|p| p.place == place).collect();
        if of.is_empty() {
            continue;
        }
        let name = match place {
            ProbePlace::Begin => ENTERED,
            ProbePlace::End | ProbePlace::Return => RETURNED,
        };
        let program = object
            .progs_mut()
            .find(|program| program.name() == name && program.autoload())
            .ok_or_else(|| BpfError::Load(format!("the kernel refused the program {name}")))?;
        attach_to(&program, many, path, &of, whom, &mut links.0)?;
    }
    Ok(links)
}

fn attach_to(
    program: &ProgramMut<'_>,
    many: bool,
    path: &Path,
    points: &[&ProbedPoint],
    whom: Option<Pid>,
    links: &mut Vec<Link>,
) -> Result<(), BpfError> {
    let failed = |error: libbpf_rs::Error| BpfError::Probe {
        path: path.to_owned(),
        why: format!("{error:#}"),
    };
    let retprobe = points.iter().all(|p| p.place == ProbePlace::End);
    let pid = whom.map_or(-1, |pid| pid.0 as i32);
    let cookie = |point: &ProbedPoint| {
        let returns = point.returns || point.place == ProbePlace::Return;
        point.call.cookie(returns, point.steps)
    };
    let offset = |point: &ProbedPoint| point.offset as usize;
    if many {
        let options = UprobeMultiOpts {
            offsets: points.iter().map(|p| offset(p)).collect(),
            cookies: points.iter().map(|p| cookie(p)).collect(),
            retprobe,
            ..UprobeMultiOpts::default()
        };
        let link = program.attach_uprobe_multi_with_opts(pid, path, "", options);
        links.push(link.map_err(failed)?);
        return Ok(());
    }
    for point in points {
        let options = UprobeOpts {
            cookie: cookie(point),
            retprobe,
            ..UprobeOpts::default()
        };
        let link = program.attach_uprobe_with_opts(pid, path, offset(point), options);
        links.push(link.map_err(failed)?);
    }
    Ok(())
}

/// A process whose operations are counted
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProbedProcess {
    /// The process
    pub pid: Pid,
    /// When what it runs began
    pub image: Time,
    /// Bytes that it asked for and has not freed, of blocks that were seen allocated
    pub requested: i64,
    /// Bytes of those that it could use, where the allocator says it
    pub usable: i64,
    /// Those blocks
    pub blocks: i64,
    /// The most of the first
    pub peak_requested: i64,
    /// The second then
    pub peak_usable: i64,
    /// When
    pub peak: Time,
    /// Operations that were not counted
    pub uncounted: u64,
    /// Those of the process that it was forked from, up to the fork
    pub uncounted_before: u64,
    /// Frees of what nobody saw allocated
    pub unknown_frees: u64,
    /// Blocks that were handed out where one lived, which nobody saw freed
    pub unseen_frees: u64,
    /// Operations
    pub operations: u64,
}

/// What a thread did that was called from one place with one size class: each figure only grows
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProbedRow {
    /// The process
    pub pid: Pid,
    /// When what it runs began
    pub image: Time,
    /// The thread
    pub tid: Tid,
    /// What was called and from where, in the preload library's words
    pub word: u64,
    /// The size class, likewise
    pub class: u8,
    /// Operations
    pub count: u64,
    /// Blocks of the class that were reallocated: they became others, of the same class or another one
    pub reallocated: u64,
    /// Bytes that were asked for, or given back
    pub requested: Bytes,
    /// Usable bytes, where the allocator says it
    pub usable: Bytes,
    /// Operations while there was more than one thread
    pub parallel: u64,
    /// Operations that were timed
    pub timed: u64,
    /// How long these took, in nanoseconds, without what probes take on average: of few short ones this may be less than nothing
    pub ns: i64,
}

/// Times of a kind of operations
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProbedTimes {
    /// The process
    pub pid: Pid,
    /// The kind, as the preload library numbers them
    pub kind: u8,
    /// The bucket, likewise, of nanoseconds
    pub bucket: usize,
    /// How many took so long, without what probes take
    pub count: u64,
}

fn process(pid: Pid, of: &RawProcess) -> ProbedProcess {
    ProbedProcess {
        pid,
        image: Time(of.image),
        requested: of.requested,
        usable: of.usable,
        blocks: of.blocks,
        peak_requested: of.peak_requested,
        peak_usable: of.peak_usable,
        peak: Time(of.peak_ns),
        uncounted: of.uncounted,
        uncounted_before: of.uncounted_before,
        unknown_frees: of.unknown_frees,
        unseen_frees: of.unseen_frees,
        operations: of.operations,
    }
}

/// What the programs have counted
#[derive(Debug)]
pub struct Probes {
    pub(crate) change: OwnedFd,
    pub(crate) processes: OwnedFd,
    pub(crate) rows: OwnedFd,
    pub(crate) times: OwnedFd,
}

impl Probes {
    fn change(&self, mut args: ProbeArgs) -> Result<bool, BpfError> {
        let ran = raw::run(self.change.as_fd(), &mut args);
        ran.map_err(system("changing whose operations are counted"))?;
        Ok(args.done != 0)
    }

    /// One operation in `every` is timed from now on, 1 at least; 0 where nothing is to be counted any more. What probes take of that time is
    /// left out
    ///
    /// # Errors
    /// [`BpfError::System`] where the kernel does not run the program.
    pub fn time_every(&self, every: u32, cost: &ProbeCost) -> Result<(), BpfError> {
        let args = ProbeArgs {
            what: abi::PROBE_EVERY,
            every,
            within: u32::try_from(cost.within.0).unwrap_or(u32::MAX),
            within_steps: u32::try_from(cost.within_steps.0).unwrap_or(u32::MAX),
            ..ProbeArgs::default()
        };
        self.change(args).map(drop)
    }

    /// Counts what a tracked process does from now on; whether there was room for it. What it makes and what it runs later is counted without
    /// this, where it is tracked
    ///
    /// # Errors
    /// [`BpfError::System`] where the kernel does not run the program.
    pub fn begin(&self, pid: Pid) -> Result<bool, BpfError> {
        self.change(ProbeArgs {
            pid: pid.0,
            what: abi::PROBE_BEGIN,
            ..ProbeArgs::default()
        })
    }

    /// Forgets what a process ran that began at that time, and its blocks
    pub fn forget(&self, pid: Pid, image: Time) {
        // Where this fails the room is taken until the end
        let _ = self.change(ProbeArgs {
            image: image.0,
            pid: pid.0,
            what: abi::PROBE_FORGET,
            ..ProbeArgs::default()
        });
    }

    /// All processes that are counted
    pub fn processes(&self) -> Vec<ProbedProcess> {
        let entries = raw::map_entries::<u32, RawProcess>(self.processes.as_fd());
        let entries = entries.into_iter();
        entries.map(|(pid, of)| process(Pid(pid), &of)).collect()
    }

    /// One of them
    pub fn process(&self, pid: Pid) -> Option<ProbedProcess> {
        let found: RawProcess = raw::map_lookup(self.processes.as_fd(), pid.0).ok()?;
        Some(process(pid, &found))
    }

    /// All rows
    pub fn rows(&self) -> Vec<ProbedRow> {
        let entries = raw::map_entries::<ProbedRowKey, RawRow>(self.rows.as_fd());
        let row = |(key, of): (ProbedRowKey, RawRow)| ProbedRow {
            pid: Pid(key.pid),
            image: Time(key.image),
            tid: Tid(key.tid),
            word: key.word,
            class: key.class as u8,
            count: of.count,
            reallocated: of.reallocated,
            requested: Bytes(of.requested),
            usable: Bytes(of.usable),
            parallel: of.parallel,
            timed: of.timed,
            ns: of.ns,
        };
        entries.into_iter().map(row).collect()
    }

    /// Makes room: the thread has ended, or what it ran
    pub fn remove(&self, row: &ProbedRow) {
        let key = ProbedRowKey {
            word: row.word,
            image: row.image.0,
            pid: row.pid.0,
            tid: row.tid.0,
            class: u32::from(row.class),
            pad: 0,
        };
        raw::map_remove(self.rows.as_fd(), &key);
    }

    /// All times
    pub fn times(&self) -> Vec<ProbedTimes> {
        let entries = raw::map_entries::<ProbedTimeKey, u64>(self.times.as_fd());
        let times = |(key, count): (ProbedTimeKey, u64)| ProbedTimes {
            pid: Pid(key.pid),
            kind: key.kind as u8,
            bucket: key.bucket as usize,
            count,
        };
        entries.into_iter().map(times).collect()
    }

    /// Makes room: the process has ended
    pub fn forget_times(&self, pid: Pid) {
        let entries = raw::map_entries::<ProbedTimeKey, u64>(self.times.as_fd());
        for (key, _) in entries.iter().filter(|(key, _)| key.pid == pid.0) {
            raw::map_remove(self.times.as_fd(), key);
        }
    }
}

/// The place in this program's own file of something that it runs
fn place_of(code: Address) -> Result<u64, BpfError> {
    let own = Pid(std::process::id());
    let maps = varve_sys::maps(own).map_err(system("reading the own mappings"))?;
    let around = maps.iter().find(|map| {
        let end = map.address.0 + map.bytes.0;
        (map.address.0..end).contains(&code.0) && map.perms.contains('x')
    });
    let around = around.ok_or_else(|| BpfError::Load("own code is in no mapping".into()))?;
    Ok(code.0 - around.address.0 + around.offset)
}
