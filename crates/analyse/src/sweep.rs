//! One pass over touches and faults in the order of time, interval by interval. Every reader of the whole table goes this
//! way, and says as a [`Sweep`] what it wants to hear.

use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use varve_model::{Bytes, Page, Pid, Time, TouchSource};
use varve_trace::tables::{FaultRow, IntervalRow};
use varve_trace::{Batches, Row, TouchColumns, TouchUnit, Trace, TraceError, WrittenColumn};

use crate::cut::{Chosen, Cut};

/// Threads that decode; the sweep itself has the caller's.
const DECODERS: usize = 2;
/// Batches that a decoder may be ahead, about 2 MB each.
const AHEAD: usize = 4;

type Batch = Result<Option<TouchColumns>, TraceError>;

/// A run of pages of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Run {
    /// The process.
    pub pid: Pid,
    /// The first page.
    pub first: Page,
    /// The page after the last.
    pub end: Page,
}

/// What a row says of its run.
#[derive(Clone, Copy, Debug)]
pub struct RowFacts {
    /// The size of the hardware page.
    pub page_bytes: Bytes,
    /// Where it comes from.
    pub source: TouchSource,
    /// Whether it was written; None where unknown.
    pub written: Option<bool>,
}

/// An interval, by its position in the table of intervals, and its time: from the end of the one before it, so that no
/// moment lies between two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// The position.
    pub position: usize,
    /// The end of the interval before; zero for the first.
    pub from: Time,
    /// Its end.
    pub to: Time,
}

/// What hears of every touch and fault.
pub trait Sweep {
    /// A row of touches, as it stands in the table, before the runs of its interval; not of those that others may have
    /// touched.
    #[inline]
    fn row(&mut self, _run: Run, _facts: RowFacts) {}

    /// The sweep goes on to an interval. Called again before its faults.
    fn begin(&mut self, now: Moment);

    /// All that was touched in an interval: runs in the order of process and page that share no page. `position` is None
    /// where the rows stand out of the order of intervals; they come while another interval is open.
    fn touched(&mut self, position: Option<usize>, runs: &[Run]);

    /// What others may have touched in an interval and nothing else shows ([`TouchSource::PossiblyOthers`]), after what
    /// was touched in it: runs in the order of process and page.
    fn possibly(&mut self, _position: Option<usize>, _runs: &[Run]) {}

    /// A page fault of the interval, after its touches. Those after the last interval count as its own.
    fn fault(&mut self, fault: &FaultRow);

    /// The memory that it may take, once there is more than that holds: the sweep ends then.
    fn is_full(&self) -> Option<Bytes> {
        None
    }
}

/// The intervals of a trace in the order of their numbers, each once.
///
/// # Errors
/// A table that cannot be read, or in which the target was held for longer than there was time.
pub fn intervals(trace: &Trace) -> Result<Vec<IntervalRow>, TraceError> {
    let mut intervals: Vec<IntervalRow> = trace.rows()?;
    intervals.sort_by_key(|row| row.interval);
    intervals.dedup_by_key(|row| row.interval);
    // Its hold begins in an interval, and ends before the next one does.
    let is_impossible =
        |pair: &&[IntervalRow]| pair[0].held_ns > pair[1].start_ns - pair[0].start_ns;
    match intervals.windows(2).find(is_impossible) {
        Some(pair) => Err(TraceError::BadTable {
            path: trace
                .folder()
                .join(format!("{}.parquet", IntervalRow::TABLE.name)),
            message: format!(
                "interval {} was held for longer than until the next began",
                pair[0].interval.0
            ),
        }),
        None => Ok(intervals),
    }
}

/// Sweeps over a trace. `intervals` are [its own](intervals); `progress` hears the share of rows done.
/// Returns how many rows of touches there were.
///
/// # Errors
/// A table that cannot be read.
pub fn sweep(
    trace: &Trace,
    intervals: &[IntervalRow],
    to: &mut impl Sweep,
    progress: &mut dyn FnMut(f64),
) -> Result<u64, TraceError> {
    let units = trace.touch_units()?;
    let total: u64 = units.iter().map(|u| u.rows).sum();
    let mut chosen = Chosen::of(trace)?;
    let mut assembly = Assembly {
        path: trace.folder(),
        cut: chosen.as_mut().map(Chosen::cut),
        intervals,
        faults: Faults::new(trace.batches::<FaultRow>()?),
        open: 0,
        number: None,
        greatest: None,
        is_closed: false,
        runs: Vec::new(),
        sorted: true,
        possible: Vec::new(),
        rows: 0,
    };
    thread::scope(|scope| {
        let mut channels = Vec::new();
        for number in 0..DECODERS {
            let (sender, receiver) = sync_channel(AHEAD);
            channels.push(receiver);
            let units = &units;
            scope.spawn(move || decode(units.iter().skip(number).step_by(DECODERS), &sender));
        }
        // Each unit ends with `None`, so that the units of both decoders come in order. The receivers are dropped
        // on an error, which ends the decoders.
        for number in 0..units.len() {
            while let Some(batch) = next(&channels[number % DECODERS])? {
                assembly.add(&batch, to)?;
                progress(assembly.rows as f64 / total.max(1) as f64);
            }
        }
        drop(channels);
        assembly.finish(to)
    })
}

fn next(channel: &Receiver<Batch>) -> Batch {
    // A decoder that is gone has said all that it had to.
    channel.recv().unwrap_or(Ok(None))
}

fn decode<'a>(units: impl Iterator<Item = &'a TouchUnit>, sender: &SyncSender<Batch>) {
    for unit in units {
        let mut open = true;
        let read = unit.read(|batch| {
            open = sender.send(Ok(Some(batch))).is_ok();
            open
        });
        let end = read.map(|()| None);
        let failed = end.is_err();
        if !open || sender.send(end).is_err() || failed {
            return;
        }
    }
}

/// Faults in the order of the table, one ahead.
struct Faults {
    batches: Batches<FaultRow>,
    rows: std::iter::Peekable<std::vec::IntoIter<FaultRow>>,
}

impl Faults {
    fn new(batches: Batches<FaultRow>) -> Faults {
        Faults {
            batches,
            rows: Vec::new().into_iter().peekable(),
        }
    }

    /// The next fault, if it was before `end`.
    fn before(&mut self, end: Time) -> Result<Option<FaultRow>, TraceError> {
        while self.rows.peek().is_none() {
            match self.batches.next() {
                Some(rows) => self.rows = rows?.into_iter().peekable(),
                None => return Ok(None),
            }
        }
        Ok(self.rows.next_if(|f| f.time_ns <= end))
    }
}

/// Gathers the runs of an interval until it is whole.
struct Assembly<'a> {
    /// The trace.
    path: &'a Path,
    intervals: &'a [IntervalRow],
    /// Tells what is seen, where only some objects are.
    cut: Option<Cut<'a>>,
    faults: Faults,
    /// The interval that is open, by its position.
    open: usize,
    /// Its number in the table of touches.
    number: Option<u32>,
    /// The greatest number so far: rows of a lesser one stand out of order.
    greatest: Option<u32>,
    /// Whether its rows were handed on: what comes of it behind rows out of order is out of order too.
    is_closed: bool,
    runs: Vec<Run>,
    sorted: bool,
    /// What others may have touched, as it came.
    possible: Vec<Run>,
    rows: u64,
}

impl Assembly<'_> {
    fn add(&mut self, batch: &TouchColumns, to: &mut impl Sweep) -> Result<(), TraceError> {
        let rows = batch.len();
        let (interval, pid) = (&batch.interval[..rows], &batch.pid[..rows]);
        let (page, pages) = (&batch.page[..rows], &batch.pages[..rows]);
        let (bytes, source) = (&batch.page_bytes[..rows], &batch.source[..rows]);
        for row in 0..rows {
            if self.number != Some(interval[row]) {
                self.close(to);
                self.require_room(to)?;
                self.go_to(interval[row], to)?;
            }
            let run = Run {
                pid: Pid(pid[row]),
                first: Page(page[row]),
                end: Page(page[row].saturating_add(u64::from(pages[row]))),
            };
            let is_possible = source[row] == TouchSource::PossiblyOthers;
            if is_possible && self.cut.is_none() {
                self.possible.push(run);
                continue;
            }
            let written = match &batch.written {
                WrittenColumn::Unknown => None,
                WrittenColumn::Rows(written) => written[row],
            };
            let facts = RowFacts {
                page_bytes: Bytes(bytes[row].into()),
                source: source[row],
                written,
            };
            let Some(cut) = &mut self.cut else {
                to.row(run, facts);
                self.push(run);
                continue;
            };
            let mut parts = Vec::new();
            cut.parts(run, |part| parts.push(part));
            for part in parts {
                if is_possible {
                    self.possible.push(part);
                } else {
                    to.row(part, facts);
                    self.push(part);
                }
            }
        }
        self.rows += rows as u64;
        Ok(())
    }

    #[inline]
    fn push(&mut self, run: Run) {
        match self.runs.last_mut() {
            Some(last)
                if last.pid == run.pid && last.first <= run.first && run.first <= last.end =>
            {
                last.end = last.end.max(run.end);
            }
            last => {
                self.sorted &= last.is_none_or(|last| *last <= run);
                self.runs.push(run);
            }
        }
    }

    /// Opens the interval of that number, and those before it, whose faults come first.
    fn go_to(&mut self, number: u32, to: &mut impl Sweep) -> Result<(), TraceError> {
        self.number = Some(number);
        if self.greatest.is_some_and(|greatest| number <= greatest) {
            return Ok(());
        }
        self.greatest = Some(number);
        self.is_closed = false;
        let found = self.intervals[self.open.min(self.intervals.len())..]
            .binary_search_by_key(&number, |i| i.interval.0);
        if let Ok(ahead) = found {
            let target = self.open + ahead;
            while self.open < target {
                self.step(to)?;
            }
            self.begin(to);
        }
        Ok(())
    }

    fn begin(&mut self, to: &mut impl Sweep) {
        let now = Moment {
            position: self.open,
            from: match self.open {
                0 => Time(0),
                open => self.intervals[open - 1].end_ns,
            },
            to: self.intervals[self.open].end_ns,
        };
        if let Some(cut) = &mut self.cut {
            cut.advance(now);
        }
        to.begin(now);
    }

    /// Whether a fault is seen.
    fn sees(&mut self, fault: &FaultRow) -> bool {
        let cut = self.cut.as_mut();
        cut.is_none_or(|cut| cut.holds(fault.pid, fault.address))
    }

    /// Ends the open interval: its faults are due.
    fn step(&mut self, to: &mut impl Sweep) -> Result<(), TraceError> {
        let Some(row) = self.intervals.get(self.open) else {
            return Ok(());
        };
        self.begin(to);
        while let Some(fault) = self.faults.before(row.end_ns)? {
            if self.sees(&fault) {
                to.fault(&fault);
            }
        }
        self.open += 1;
        Ok(())
    }

    /// Hands on what was gathered.
    fn close(&mut self, to: &mut impl Sweep) {
        if self.runs.is_empty() && self.possible.is_empty() {
            return;
        }
        if !self.sorted {
            self.runs.sort();
            merge(&mut self.runs);
        }
        let open = self.intervals.get(self.open).map(|i| i.interval.0);
        let is_open = open.is_some() && self.number == open && self.greatest == open;
        let in_order = is_open && !std::mem::replace(&mut self.is_closed, true);
        let position = in_order.then_some(self.open);
        if !self.runs.is_empty() {
            to.touched(position, &self.runs);
        }
        if !self.possible.is_empty() {
            self.possible.sort();
            merge(&mut self.possible);
            let rest = without(&self.possible, &self.runs);
            if !rest.is_empty() {
                to.possibly(position, &rest);
            }
            self.possible.clear();
        }
        self.runs.clear();
        self.sorted = true;
    }

    fn require_room(&self, to: &impl Sweep) -> Result<(), TraceError> {
        match to.is_full() {
            Some(room) => Err(TraceError::TooLarge {
                path: self.path.to_owned(),
                room,
            }),
            None => Ok(()),
        }
    }

    fn finish(mut self, to: &mut impl Sweep) -> Result<u64, TraceError> {
        self.close(to);
        self.require_room(to)?;
        while self.open < self.intervals.len() {
            self.step(to)?;
        }
        while let Some(fault) = self.faults.before(Time(u64::MAX))? {
            if self.sees(&fault) {
                to.fault(&fault);
            }
        }
        Ok(self.rows)
    }
}

/// Joins runs that overlap or touch; they are sorted.
fn merge(runs: &mut Vec<Run>) {
    runs.dedup_by(|next, last| {
        let joined = last.pid == next.pid && next.first <= last.end;
        if joined {
            last.end = last.end.max(next.end);
        }
        joined
    });
}

/// The parts of runs that no run of `known` holds; both are sorted and merged.
fn without(runs: &[Run], known: &[Run]) -> Vec<Run> {
    let mut rest = Vec::with_capacity(runs.len());
    let mut known = known.iter().peekable();
    for run in runs {
        let mut first = run.first;
        while let Some(next) = known.peek() {
            if (next.pid, next.end) <= (run.pid, first) {
                known.next();
                continue;
            }
            if next.pid != run.pid || next.first >= run.end {
                break;
            }
            if first < next.first {
                rest.push(Run {
                    first,
                    end: next.first,
                    ..*run
                });
            }
            first = next.end;
            if first >= run.end {
                // It may reach into the next run too.
                break;
            }
        }
        if first < run.end {
            rest.push(Run { first, ..*run });
        }
    }
    rest
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    use super::*;

    fn runs(pages: &BTreeSet<(u32, u64)>) -> Vec<Run> {
        let mut runs: Vec<Run> = pages
            .iter()
            .map(|&(pid, page)| Run {
                pid: Pid(pid),
                first: Page(page),
                end: Page(page + 1),
            })
            .collect();
        merge(&mut runs);
        runs
    }

    proptest! {
        #[test]
        fn what_is_left_is_the_difference(
            some in prop::collection::btree_set((0..3_u32, 0..40_u64), 0..60),
            known in prop::collection::btree_set((0..3_u32, 0..40_u64), 0..60),
        ) {
            let left: BTreeSet<_> = some.difference(&known).copied().collect();
            let mut rest = without(&runs(&some), &runs(&known));
            merge(&mut rest);
            prop_assert_eq!(rest, runs(&left));
        }
    }
}
