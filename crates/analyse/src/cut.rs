//! The part of touches and faults that belongs to chosen objects.

use std::collections::HashSet;

use varve_model::{Address, ObjectId, ObjectKind, PageRange, Pages, Pid, Time};
use varve_objects::{Owners, Span};
use varve_trace::tables::{ObjectRow, ProcessRow, ThreadRow};
use varve_trace::{Trace, TraceError};

use crate::assemble::OWN_MEMORY;
use crate::memory::say_whose;
use crate::sweep::Run;

/// The program's objects as reports call them, each life by itself.
///
/// # Errors
/// A table that cannot be read.
pub fn object_names(trace: &Trace) -> Result<Vec<(ObjectId, ObjectKind, String)>, TraceError> {
    let mut rows: Vec<ObjectRow> = trace.rows()?;
    let processes: Vec<ProcessRow> = trace.rows()?;
    let threads: Vec<ThreadRow> = trace.rows()?;
    say_whose(&mut rows, &processes, threads.into_iter());
    let names = rows.into_iter().filter(|o| !o.name.starts_with(OWN_MEMORY));
    Ok(names.map(|o| (o.object, o.kind, o.name)).collect())
}

/// Where all objects of a trace lie, and which of them are chosen.
pub(crate) struct Chosen {
    spans: Vec<Span>,
    objects: Vec<bool>,
}

impl Chosen {
    /// None where all are.
    pub(crate) fn of(trace: &Trace) -> Result<Option<Chosen>, TraceError> {
        let Some(chosen) = trace.selection().and_then(|s| s.objects.as_ref()) else {
            return Ok(None);
        };
        let rows: Vec<ObjectRow> = trace.rows()?;
        Ok(Some(Chosen {
            spans: rows.iter().map(Span::of).collect(),
            objects: rows.iter().map(|o| chosen.contains(&o.object)).collect(),
        }))
    }

    pub(crate) fn cut(&self) -> Cut<'_> {
        Cut {
            owners: Owners::new(&self.spans),
            chosen: &self.objects,
        }
    }
}

/// Tells in the order of time which pages are of chosen objects.
pub(crate) struct Cut<'a> {
    owners: Owners<'a>,
    chosen: &'a [bool],
}

impl Cut<'_> {
    /// Goes on to an interval.
    pub(crate) fn advance(&mut self, from: Time, to: Time) {
        self.owners.advance(from, to);
    }

    /// The parts of a run on which a chosen object lies.
    pub(crate) fn parts(&mut self, run: Run, mut each: impl FnMut(Run)) {
        let pages = PageRange {
            first: run.first,
            count: Pages(run.end.0.saturating_sub(run.first.0)),
        };
        let chosen = self.chosen;
        self.owners.owners(run.pid, pages, |part, shares| {
            let mut objects = shares.iter().map(|s| s.object.0 as usize);
            if objects.any(|o| chosen.get(o) == Some(&true)) {
                each(Run {
                    pid: run.pid,
                    first: part.first,
                    end: part.end(),
                });
            }
        });
    }

    /// Whether an address lies on a page of a chosen object.
    pub(crate) fn holds(&mut self, pid: Pid, address: Address) -> bool {
        let first = address.page();
        let end = varve_model::Page(first.0.saturating_add(1));
        let mut found = false;
        self.parts(Run { pid, first, end }, |_| found = true);
        found
    }
}

/// The names of chosen objects and their kinds, where not all are chosen.
pub(crate) fn chosen_names(
    trace: &Trace,
) -> Result<Option<HashSet<(String, ObjectKind)>>, TraceError> {
    let Some(selection) = trace.selection().filter(|s| s.objects.is_some()) else {
        return Ok(None);
    };
    let names = object_names(trace)?.into_iter();
    let names = names.filter(|(object, ..)| selection.object(Some(*object)));
    Ok(Some(names.map(|(_, kind, name)| (name, kind)).collect()))
}
