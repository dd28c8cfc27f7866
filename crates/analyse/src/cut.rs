//! The part of touches and faults that belongs to chosen objects.

use std::collections::HashSet;

use varve_model::{Address, ObjectId, ObjectKind, Page, PageRange, Pages, Pid, Time};
use varve_objects::Owners;
use varve_trace::tables::ObjectRow;
use varve_trace::{Trace, TraceError};

use crate::memory::{Memory, Objects};
use crate::sweep::{Moment, Run};

/// The program's objects as reports call them: each row of the table with the name and kind of the object that it is. Rows
/// that are one object (it grew, it moved, several processes map it) have one name, so that a choice by name has all of it.
///
/// # Errors
/// A table that cannot be read.
pub fn object_names(trace: &Trace) -> Result<Vec<(ObjectId, ObjectKind, String)>, TraceError> {
    let (_, all) = Memory::read(trace)?;
    let rows = all.positions().into_iter();
    let rows = rows.filter_map(|(object, at)| Some((object, all.rows.get(at as usize)?)));
    let rows = rows.filter(|(_, o)| o.kind != ObjectKind::Recorder);
    Ok(rows.map(|(id, o)| (id, o.kind, o.name.clone())).collect())
}

/// Where all objects of a trace lie, and which of them are chosen. Pages are looked up as the fold does it, so that each
/// page that is let through has a chosen object there too.
pub(crate) struct Chosen {
    memory: Memory,
    all: Objects,
    chosen: Vec<bool>,
}

impl Chosen {
    /// None where all are.
    pub(crate) fn of(trace: &Trace) -> Result<Option<Chosen>, TraceError> {
        if trace.selection().is_none_or(|s| s.objects.is_none()) {
            return Ok(None);
        }
        let (memory, all) = Memory::read(trace)?;
        let chosen = all.chosen(trace);
        Ok(chosen.map(|chosen| Chosen {
            memory,
            all,
            chosen,
        }))
    }

    pub(crate) fn cut(&mut self) -> Cut<'_> {
        Cut {
            owners: Owners::new(&self.all.spans),
            of_span: &self.all.of_span,
            chosen: &self.chosen,
            memory: &mut self.memory,
            now: Moment {
                position: 0,
                from: Time(0),
                to: Time(1),
            },
        }
    }
}

/// Tells in the order of time which pages are of chosen objects.
pub(crate) struct Cut<'a> {
    owners: Owners<'a>,
    of_span: &'a [u32],
    chosen: &'a [bool],
    memory: &'a mut Memory,
    now: Moment,
}

impl Cut<'_> {
    /// Goes on to an interval.
    pub(crate) fn advance(&mut self, now: Moment) {
        self.now = now;
        self.owners.advance(now.from, now.to);
    }

    /// The parts of a run on which a chosen object lies.
    pub(crate) fn parts(&mut self, run: Run, mut each: impl FnMut(Run)) {
        let (chosen, of_span) = (self.chosen, self.of_span);
        let owners = &mut self.owners;
        self.memory.places(run, self.now, |part, place| {
            let pages = PageRange {
                first: place.first,
                count: Pages(place.end.0.saturating_sub(place.first.0)),
            };
            owners.owners(place.pid, pages, |found, shares| {
                let mut objects = shares
                    .iter()
                    .filter_map(|s| of_span.get(s.object.0 as usize));
                if objects.any(|&o| chosen.get(o as usize) == Some(&true)) {
                    // Back to the addresses of the process.
                    let here = |page: u64| Page(page - place.first.0 + part.first.0);
                    each(Run {
                        pid: part.pid,
                        first: here(found.first.0),
                        end: here(found.end().0),
                    });
                }
            });
        });
    }

    /// Whether an address lies on a page of a chosen object.
    pub(crate) fn holds(&mut self, pid: Pid, address: Address) -> bool {
        let first = address.page();
        let end = Page(first.0.saturating_add(1));
        let mut found = false;
        self.parts(Run { pid, first, end }, |_| found = true);
        found
    }
}

/// The names of chosen objects and their kinds. `rows` are the objects, each once.
pub(crate) fn chosen_names<'a>(
    rows: &'a [ObjectRow],
    chosen: &[bool],
) -> HashSet<(&'a str, ObjectKind)> {
    let rows = rows.iter().zip(chosen).filter(|(_, is)| **is);
    rows.map(|(o, _)| (o.name.as_str(), o.kind)).collect()
}
