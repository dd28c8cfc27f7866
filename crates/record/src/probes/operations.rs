//! Allocator operations: counted by the preload library in tables that are shared with the recorder, or by probes at the allocator's functions, and
//! charged by the kernel's part with what happens within them.

mod charges;
mod mapped;
mod memory;
mod pages;
mod probed;
mod tables;
mod touched;

use std::collections::HashSet;
use std::ffi::OsString;
use std::path::PathBuf;

use varve_bpf::{Event, Kernel, LOCK_WAIT_PROGRAMS, LoadOptions, OPERATION_PROGRAMS, TrackFlags};
use varve_model::{Bytes, Capability, Duration, Loss, Pid, Tid, Time};
use varve_preload_abi::operations::{
    ONLY_OPERATIONS_VARIABLE, OPERATIONS_VARIABLE, SAMPLE_BYTES_VARIABLE,
};
use varve_sys::monotonic_now;
use varve_trace::tables::{
    BlockChoiceRow, HeapMemoryRow, HeapPagesRow, OperationChargeRow, OperationRow,
    OperationTimeRow, SharedLineRow, SparsePagesRow,
};
use varve_trace::{Manifest, OperationsNote, ProbesNote, TraceError, TraceWriter};

use self::charges::Charges;
use self::mapped::Mapped;
pub(crate) use self::probed::allocator_within;
pub use self::probed::{OwnAllocator, own_allocator};
use self::tables::{Scale, Tables};
use super::{Ending, Kind, Launch, Lost, Probe, Setup, Started};
use crate::state::State;
use crate::state::tables::append;
use crate::target::channel::{Arrival, Channel, OperationsOffer};
use crate::{RecordError, RecordOptions, TargetChoice};

/// How often each CPU's clock looks whether a thread is within an operation, per second: in step with no timer of the program's.
const CLOCK_RATE: u32 = 997;
/// How often tables are read.
const READ_EVERY: Duration = Duration(500_000_000);
/// How often it is looked how much memory processes have.
const LOOK_EVERY: Duration = Duration(45_000_000);
/// Of more processes than this it is looked as often as tables are read.
const MAX_LOOKED_AT: usize = 64;

pub(crate) const KIND: Kind = Kind { load, start };

fn load(options: &RecordOptions, load: &mut LoadOptions) {
    load.operations |= options.operations.is_some();
    load.probes |= options
        .operations
        .as_ref()
        .is_some_and(|choice| choice.probes);
}

fn start(setup: &mut Setup<'_>) -> Result<Started, RecordError> {
    let Some(choice) = &setup.options.operations else {
        return Ok(None);
    };
    let places = setup.kernel.running_places().ok();
    let (charges, why) = match charges(setup.kernel) {
        Ok(charges) => (Some(Charges::new(charges)), None),
        Err(why) => (None, Some(why)),
    };
    let notes = why
        .map(|why| format!("What the kernel did within allocator operations is not known: {why}."));
    let no_waits = match &charges {
        Some(_) => lacks_lock_waits(setup.kernel),
        None => None,
    };
    let lock_waits = charges.is_some() && no_waits.is_none();
    let no_waits = no_waits
        .map(|why| format!("How long operations waited for mmap_lock, the lock of the process's mappings, is not known: {why}."));
    let counts_itself = !choice.probes;
    if counts_itself {
        setup.offers.operations = Some(OperationsOffer {
            every: choice.every,
            places,
        });
    }
    setup.manifest.operations = Some(OperationsNote {
        every: choice.every,
        clock_rate: charges.as_ref().map_or(0, |_| CLOCK_RATE),
        charges: charges.is_some(),
        lock_waits,
        sample_bytes: match counts_itself {
            true => choice.sample_bytes,
            false => Bytes(0),
        },
        probes: None,
        plain_call_ns: setup.system_call,
        call_ns: varve_sys::system_call_time(),
        notes: notes.into_iter().chain(no_waits).collect(),
    });
    let has = &mut setup.manifest.capabilities;
    has.insert(Capability::AllocatorOperations);
    if !setup.options.pages {
        let pages = [
            Capability::Touches,
            Capability::Resident,
            Capability::Faults,
            Capability::Superset,
            Capability::HeapObjects,
        ];
        pages.iter().for_each(|c| _ = has.remove(c));
        setup.manifest.features.objects = None;
        setup.flags = setup.flags.without(TrackFlags::FAULTS);
    }
    if choice.probes {
        return start_probes(setup, choice.every, charges);
    }
    Ok(Some(Box::new(Operations {
        allocator: choice.allocator.clone(),
        every: choice.every,
        sample_bytes: choice.sample_bytes,
        only: !setup.options.pages,
        scale: Scale::begin(),
        tables: Vec::new(),
        early: Vec::new(),
        ended: HashSet::new(),
        charges,
        mapped: Mapped::default(),
        pace: Pace::default(),
        uncounted: 0,
        limited: HashSet::new(),
        locked: HashSet::new(),
        rows: Rows::default(),
    })))
}

/// Has probes count, and says before what that costs.
fn start_probes(
    setup: &mut Setup<'_>,
    every: u32,
    charges: Option<Charges>,
) -> Result<Started, RecordError> {
    let prepared = probed::prepare(setup, every, charges)?;
    let attached = matches!(setup.options.target, TargetChoice::Attach(_));
    prepared.say(setup.options.tell, attached);
    if let Some(note) = &mut setup.manifest.operations {
        note.probes = Some(ProbesNote {
            operation_ns: prepared.operation,
            within_ns: prepared.cost.within,
            attached,
        });
        note.notes.extend(prepared.notes());
    }
    Ok(Some(Box::new(prepared.probe)))
}

/// Begins to charge operations; the sentence says why that is not possible.
fn charges(kernel: &Kernel) -> Result<varve_bpf::Operations, String> {
    let mut known = kernel.capabilities().iter();
    let refused = known.find(|c| c.name == OPERATION_PROGRAMS && !c.available);
    if let Some(programs) = refused {
        return Err(programs.detail.clone());
    }
    let begun = kernel.operations(CLOCK_RATE);
    begun.map_err(|error| RecordError::from(error).message().0)
}

/// Why waits for the lock of mappings are not seen, where they are not.
fn lacks_lock_waits(kernel: &Kernel) -> Option<String> {
    let mut known = kernel.capabilities().iter();
    let refused = known.find(|c| c.name == LOCK_WAIT_PROGRAMS && !c.available);
    refused.map(|programs| programs.detail.clone())
}

/// What waits to be written.
#[derive(Default)]
struct Rows {
    operations: Vec<OperationRow>,
    times: Vec<OperationTimeRow>,
    charges: Vec<OperationChargeRow>,
    memory: Vec<HeapMemoryRow>,
    pages: Vec<HeapPagesRow>,
    sparse: Vec<SparsePagesRow>,
    lines: Vec<SharedLineRow>,
    choices: Vec<BlockChoiceRow>,
}

impl Rows {
    fn write(&mut self, writer: &mut TraceWriter) -> Result<(), TraceError> {
        append(writer, &mut self.operations)?;
        append(writer, &mut self.times)?;
        append(writer, &mut self.charges)?;
        append(writer, &mut self.memory)?;
        append(writer, &mut self.pages)?;
        append(writer, &mut self.sparse)?;
        append(writer, &mut self.lines)?;
        append(writer, &mut self.choices)
    }
}

/// When everything was read last, and memory looked at.
#[derive(Default)]
struct Pace {
    read: Time,
    looked: Time,
}

/// What is due.
struct Due {
    read: bool,
    look: bool,
}

impl Pace {
    fn due(&self, processes: usize) -> Due {
        let now = monotonic_now();
        let read = now - self.read >= READ_EVERY;
        let look = processes <= MAX_LOOKED_AT && now - self.looked >= LOOK_EVERY;
        Due {
            read,
            look: read || look,
        }
    }
}

/// The probe.
struct Operations {
    allocator: Option<PathBuf>,
    every: u32,
    sample_bytes: Bytes,
    /// Nothing else is recorded of the target.
    only: bool,
    scale: Scale,
    tables: Vec<Tables>,
    /// Of processes that are not known yet.
    early: Vec<Tables>,
    /// Threads that have ended, and whose blocks may be another's then.
    ended: HashSet<(Pid, Tid)>,
    charges: Option<Charges>,
    mapped: Mapped,
    pace: Pace,
    /// Operations of processes that have ended that were not counted.
    uncounted: u64,
    /// Processes that have ended whose limit of the address space kept them from counting.
    limited: HashSet<Pid>,
    /// The same of those that locked their memory.
    locked: HashSet<Pid>,
    rows: Rows,
}

impl Operations {
    fn take_arrivals(&mut self, state: &mut State) {
        self.early
            .extend(state.arrivals.take(|arrival| match arrival {
                Arrival::Operations { pid, image, reader } => Ok(Tables::new(pid, image, reader)),
                other => Err(other),
            }));
        for mut tables in std::mem::take(&mut self.early) {
            if !state.processes.knows(tables.pid, tables.image) {
                self.early.push(tables);
                continue;
            }
            // Between vfork and exec the memory is the parent's.
            tables.pid = state.processes.owner_of_memory(tables.pid);
            self.tables.push(tables);
        }
    }

    /// Reads everything, and what the kernel's part has.
    fn read(&mut self, state: &mut State) {
        let now = monotonic_now();
        for tables in &mut self.tables {
            tables.read(now, &self.scale, state, &mut self.rows);
        }
        if let Some(charges) = &mut self.charges {
            charges.read(now, None, state, &mut self.rows.charges);
        }
        self.mapped.read(now, None, &mut self.rows.charges);
        self.pace.read = now;
    }

    /// Reads the blocks of threads that have ended, and lets others have them.
    fn release(&mut self, state: &mut State) {
        if self.ended.is_empty() {
            return;
        }
        let now = monotonic_now();
        let ended = std::mem::take(&mut self.ended);
        for tables in &mut self.tables {
            if ended.iter().any(|(pid, _)| *pid == tables.pid) {
                tables.release(&ended, now, &self.scale, state, &mut self.rows);
            }
        }
    }

    fn look(&mut self) {
        let now = monotonic_now();
        for tables in &mut self.tables {
            // What maps memory is known where the kernel's part sees which operation runs.
            let charges = self.charges.as_ref();
            let heap = charges.map(|_| self.mapped.heap(tables.pid));
            tables.look(now, heap.as_ref(), &mut self.rows);
        }
        self.pace.looked = now;
    }
}

impl Probe for Operations {
    fn launch(&self, launch: &mut Launch, _: Option<&Channel>) -> Result<(), RecordError> {
        let environment = &mut launch.environment;
        let every = OsString::from(self.every.to_string());
        environment.push((OPERATIONS_VARIABLE, every));
        let mean = OsString::from(self.sample_bytes.0.to_string());
        environment.push((SAMPLE_BYTES_VARIABLE, mean));
        if self.only {
            environment.push((ONLY_OPERATIONS_VARIABLE, "1".into()));
        }
        let Some(allocator) = &self.allocator else {
            return Ok(());
        };
        // Behind the library that counts, which calls it, and before what the caller preloads.
        let preloads = environment
            .iter_mut()
            .find(|(name, _)| *name == "LD_PRELOAD");
        if let Some((_, list)) = preloads {
            let text = list.to_string_lossy().into_owned();
            let (first, others) = text.split_once(':').unwrap_or((&text, ""));
            let mut whole = OsString::from(first);
            whole.push(":");
            whole.push(allocator);
            if !others.is_empty() {
                whole.push(":");
                whole.push(others);
            }
            *list = whole;
        }
        Ok(())
    }

    fn event(&mut self, event: &Event<'_>, state: &mut State) {
        self.mapped.event(event, state);
        if let Event::Exit(exit) = event
            && !exit.last
        {
            self.ended.insert((exit.pid, exit.tid));
        }
    }

    fn image_ends(&mut self, pid: Pid, time: Time, state: &mut State) {
        self.take_arrivals(state);
        let now = monotonic_now();
        // Rows of what ends are no later than that.
        let ended = now.min(time);
        let (gone, kept) = std::mem::take(&mut self.tables)
            .into_iter()
            .partition(|t| t.pid == pid && t.image < time);
        self.tables = kept;
        let gone: Vec<Tables> = gone;
        for mut tables in gone {
            tables.read(now, &self.scale, state, &mut self.rows);
            let charges = self.charges.as_ref();
            let heap = charges.map(|_| self.mapped.heap(pid));
            tables.last(ended, heap.as_ref(), &mut self.rows);
            self.uncounted += tables.uncounted();
            if tables.is_limited() {
                self.limited.insert(pid);
            }
            if tables.is_locked() {
                self.locked.insert(pid);
            }
            if let Some(charges) = &mut self.charges {
                charges.read(ended, Some(pid), state, &mut self.rows.charges);
                charges.forget(pid);
            }
            self.mapped.read(ended, Some(pid), &mut self.rows.charges);
        }
    }

    fn image_ended(&mut self, pid: Pid, _: Time) {
        self.mapped.forget(pid);
    }

    fn turn(&mut self, state: &mut State) {
        self.take_arrivals(state);
        self.release(state);
        let due = self.pace.due(self.tables.len());
        if due.read {
            self.read(state);
        }
        if due.look {
            self.look();
        }
    }

    fn losses(&self, lost: &mut Lost) {
        let uncounted: u64 = self.tables.iter().map(Tables::uncounted).sum();
        let dropped = self.charges.as_ref().map_or(0, Charges::dropped);
        lost.push((Loss::Operations, self.uncounted + uncounted + dropped));
        let with = |ended: &HashSet<Pid>, is: fn(&Tables) -> bool| {
            let now = self.tables.iter().filter(|tables| is(tables));
            let now: HashSet<Pid> = now.map(|tables| tables.pid).collect();
            ended.union(&now).count() as u64
        };
        lost.extend([
            (
                Loss::LimitedProcesses,
                with(&self.limited, Tables::is_limited),
            ),
            (Loss::LockedProcesses, with(&self.locked, Tables::is_locked)),
        ]);
    }

    fn write(&mut self, writer: &mut TraceWriter) -> Result<(), TraceError> {
        self.rows.write(writer)
    }

    fn end(&mut self, ending: &mut Ending<'_>) -> Result<(), RecordError> {
        self.take_arrivals(ending.state);
        self.read(ending.state);
        self.look();
        for tables in &mut self.tables {
            tables.end(&mut self.rows);
        }
        Ok(())
    }

    fn finish(&mut self, manifest: &mut Manifest, _: bool) {
        if self.only {
            manifest.features.objects = None;
        }
    }
}
