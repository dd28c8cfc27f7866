//! What memory is: which pages of which processes are the same page.
//!
//! A page is named by the process and its address. That is enough for private memory, and a fork's copies are memory of
//! their own. Memory that several processes map (shared mappings, and what nobody can write of private mappings of files)
//! is named by what is mapped: the device, the inode and the offset. Memory that a process moved is named by its place in
//! what was moved. Both get a *space* of their own, numbered like a process; a page of it is an offset in pages.
//!
//! The parts of a trace are asked in the order of time, so that an address means what was mapped there in that interval.

mod extent;
mod identity;
mod maps;
mod names;
mod objects;

use std::collections::HashMap;

use varve_model::{Address, Bytes, Page, Pid};
use varve_objects::Span;
use varve_trace::tables::{MappingRow, ObjectRow, ProcessRow, ThreadRow};
use varve_trace::{Trace, TraceError};

use crate::sweep::{Moment, Run};
use maps::{Maps, View};
pub(crate) use names::say_whose;
pub use objects::Objects;

/// Spaces of memory are numbered from here on; the kernel gives no process such a number.
const SPACES: u32 = 1 << 31;

/// What the analysis of an object takes at most in memory: measured with 20 million of them.
const OBJECT_BYTES: u64 = 480;

/// Whether a run is of memory that is named by what it is, not by a process and its addresses.
pub(crate) const fn is_space(pid: Pid) -> bool {
    pid.0 >= SPACES
}

/// The mappings of all processes, and what they map.
#[derive(Default)]
pub struct Memory {
    maps: HashMap<u32, Maps>,
    /// The process whose mappings a process without any of its own has: its parent, until somebody looked.
    parents: HashMap<u32, u32>,
    spaces: u32,
    scratch: Vec<Run>,
}

impl Memory {
    /// What the mappings and objects of a trace say, and the objects themselves: those that are one memory are one.
    ///
    /// # Errors
    /// A table that cannot be read.
    pub fn read(trace: &Trace) -> Result<(Memory, Objects), TraceError> {
        Memory::read_within(trace, Bytes(u64::MAX))
    }

    /// The same where the analysis of the objects may take so much memory.
    ///
    /// # Errors
    /// A table that cannot be read, or more objects than there is room for.
    pub(crate) fn read_within(trace: &Trace, room: Bytes) -> Result<(Memory, Objects), TraceError> {
        let rows: Vec<MappingRow> = trace.rows()?;
        let processes: Vec<ProcessRow> = trace.rows()?;
        let mut objects: Vec<ObjectRow> = Vec::new();
        for more in trace.batches::<ObjectRow>()? {
            objects.extend(more?);
            if (objects.len() as u64).saturating_mul(OBJECT_BYTES) > room.0 {
                return Err(TraceError::TooLarge {
                    path: trace.folder().to_owned(),
                    room,
                });
            }
        }
        let threads: Vec<ThreadRow> = trace.rows()?;
        say_whose(&mut objects, &processes, threads.into_iter());
        Ok(Memory::new(&rows, &processes, objects))
    }

    fn new(
        rows: &[MappingRow],
        processes: &[ProcessRow],
        objects: Vec<ObjectRow>,
    ) -> (Memory, Objects) {
        let mut memory = Memory::default();
        let mut objects = objects;
        extent::cut(&mut objects, rows);
        identity::enter(&mut memory, rows);
        let programs: HashMap<u32, &str> = processes
            .iter()
            .map(|p| (p.pid.0, p.exe.as_str()))
            .collect();
        for process in processes {
            let (pid, parent) = (process.pid.0, process.parent.0);
            // A process whose program is not known ended before anybody looked, and never ran another.
            let program = programs.get(&pid).filter(|p| !p.is_empty());
            let same = program.is_none_or(|p| programs.get(&parent) == Some(p));
            if !memory.maps.contains_key(&pid) && same && pid != parent {
                memory.parents.insert(pid, parent);
            }
        }
        let objects = Objects::new(objects, &mut memory);
        for maps in memory.maps.values_mut() {
            maps.sort();
        }
        (memory, objects)
    }

    /// A number for memory that several processes may map.
    fn new_space(&mut self) -> Pid {
        let space = Pid(SPACES | self.spaces);
        self.spaces = (self.spaces + 1) & (SPACES - 1);
        space
    }

    /// The process whose mappings a process has.
    fn mapped_as(&self, pid: Pid) -> u32 {
        let mut pid = pid.0;
        // Parents of parents without mappings are few; a damaged trace may have a circle of them.
        for _ in 0..8 {
            match self.parents.get(&pid) {
                Some(&parent) => pid = parent,
                None => break,
            }
        }
        pid
    }

    /// The mappings that hold for a process; None where nothing of it is anybody else's.
    fn maps_of(&mut self, pid: Pid) -> Option<&mut Maps> {
        let pid = self.mapped_as(pid);
        self.maps.get_mut(&pid).filter(|maps| maps.is_of_use)
    }

    /// Splits runs of one process, in order, at a time: what is its own goes to `own`, the rest as runs of other spaces to
    /// `others`, which may name a page twice and come in no order.
    pub fn split(&mut self, runs: &[Run], now: Moment, own: &mut Vec<Run>, others: &mut Vec<Run>) {
        let Some(pid) = runs.first().map(|r| r.pid) else {
            return;
        };
        let Some(maps) = self.maps_of(pid) else {
            own.extend_from_slice(runs);
            return;
        };
        let view = maps.view(now.from, now.to);
        let mut next = 0;
        for run in runs {
            pieces(view, &mut next, *run, |part, place| {
                if place.pid == pid {
                    own.push(part);
                } else {
                    others.push(place);
                }
            });
        }
    }

    /// Calls `each` with the parts of a run of one process at a time, and the memory that each is.
    pub(crate) fn places(&mut self, run: Run, now: Moment, mut each: impl FnMut(Run, Run)) {
        match self.maps_of(run.pid) {
            Some(maps) => pieces(maps.view(now.from, now.to), &mut 0, run, each),
            None => each(run, run),
        }
    }

    /// What is touched in an interval by all processes, by memory: each page once, in order. `runs` are as in
    /// [`crate::Sweep::touched`].
    pub fn distinct(&mut self, runs: &[Run], now: Moment, to: &mut Vec<Run>) {
        let mut others = std::mem::take(&mut self.scratch);
        others.clear();
        to.clear();
        for runs in runs.chunk_by(|a, b| a.pid == b.pid) {
            self.split(runs, now, to, &mut others);
        }
        join(&mut others);
        to.extend_from_slice(&others);
        self.scratch = others;
    }

    /// The memory at an address of a process in an interval.
    pub fn place(&mut self, pid: Pid, address: Address, now: Moment) -> (Pid, Address) {
        let page = address.page().0;
        let found = self.maps_of(pid).and_then(|maps| {
            let view = maps.view(now.from, now.to);
            let at = view.partition_point(|v| v.end <= page);
            view.get(at).filter(|v| v.first <= page).copied()
        });
        match found {
            None => (pid, address),
            Some(v) => {
                let page = page.wrapping_sub(v.first).wrapping_add(v.at);
                let within = address.0 % varve_model::PAGE_BYTES;
                (v.space, Address((page << 12).wrapping_add(within)))
            }
        }
    }
}

/// Calls `each` with the parts of a run, in order, and the memory that each is: the part itself where it is the process's
/// own. `next` is where to look in the view first; it stays where the run ended.
fn pieces(view: &[View], next: &mut usize, run: Run, mut each: impl FnMut(Run, Run)) {
    let mut at = run.first.0;
    while *next > 0 && view[*next - 1].end > at {
        *next -= 1;
    }
    while at < run.end.0 {
        while let Some(gone) = view.get(*next)
            && gone.end <= at
        {
            *next = match *next {
                // The first look: what ended before the run is passed over at once.
                0 => view.partition_point(|v| v.end <= at),
                passed => passed + 1,
            };
        }
        let found = view.get(*next).filter(|v| v.first < run.end.0);
        let until = found.map_or(run.end.0, |v| v.first.max(at));
        if at < until {
            let part = Run {
                pid: run.pid,
                first: Page(at),
                end: Page(until),
            };
            each(part, part);
            at = until;
        }
        if let Some(v) = found {
            let end = run.end.0.min(v.end);
            let place = |page: u64| Page(page.wrapping_sub(v.first).wrapping_add(v.at));
            let part = Run {
                pid: run.pid,
                first: Page(at),
                end: Page(end),
            };
            let of = Run {
                pid: v.space,
                first: place(at),
                end: place(end),
            };
            each(part, of);
            at = end;
        }
    }
}

/// Where the objects of a trace lie: as their rows say, and in memory.
pub(crate) struct Homes<'a> {
    pub(crate) rows: &'a [ObjectRow],
    pub(crate) places: &'a [Span],
}

impl Homes<'_> {
    /// An address in the process that its object's row is of, where another process has it elsewhere.
    pub(crate) fn home(&self, object: u32, address: Address, place: (Pid, Address)) -> Address {
        let at = self
            .rows
            .get(object as usize)
            .zip(self.places.get(object as usize));
        match at {
            Some((row, of)) if is_space(of.pid) && of.pid == place.0 => Address(
                row.address
                    .0
                    .wrapping_add(place.1.0)
                    .wrapping_sub(of.address.0),
            ),
            _ => address,
        }
    }
}

/// Sorts runs and joins those that overlap or touch.
pub(crate) fn join(runs: &mut Vec<Run>) {
    runs.sort_unstable();
    runs.dedup_by(|next, last| {
        let joined = last.pid == next.pid && next.first <= last.end;
        if joined {
            last.end = last.end.max(next.end);
        }
        joined
    });
}
