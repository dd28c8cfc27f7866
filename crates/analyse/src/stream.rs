//! The tables of touches and faults, decoded on threads of their own and handed to the fold interval by interval.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use varve_model::{PAGE_BYTES, Time, TouchSource};
use varve_trace::tables::{FaultRow, IntervalRow};
use varve_trace::{Batches, TouchColumns, TouchUnit, Trace, TraceError, WrittenColumn};

use crate::analysis::Writes;
use crate::fold::{Fold, Marks, Run};

/// Threads that decode. The fold has the caller's; on two CPUs the three share the work evenly.
const DECODERS: usize = 2;
/// Batches that a decoder may be ahead, about 2 MB each.
const AHEAD: usize = 4;

type Batch = Result<Option<TouchColumns>, TraceError>;

/// What the pass found out besides the fold.
pub(crate) struct Pass {
    /// Distinct pages touched, for each interval.
    pub(crate) working_set: Vec<u64>,
    /// Sum over intervals of the pages named, and the most in one interval, by source.
    pub(crate) sources: [(u64, u64); TouchSource::ALL.len()],
    /// Sum over intervals of pages touched, by process; all the program's own.
    pub(crate) by_process: HashMap<u32, u64>,
    pub(crate) huge_touches: u64,
    pub(crate) writes: Writes,
    pub(crate) rows: u64,
    pub(crate) stray_rows: u64,
    pub(crate) faults: u64,
}

/// Folds all touches and faults. `tail` is the first interval of the tail.
pub(crate) fn run(
    trace: &Trace,
    intervals: &[IntervalRow],
    tail: usize,
    fold: &mut Fold<'_>,
    progress: &mut dyn FnMut(f64),
) -> Result<Pass, TraceError> {
    let units = trace.touch_units()?;
    let total: u64 = units.iter().map(|u| u.rows).sum();
    let faults = Faults::new(trace.batches::<FaultRow>()?);
    let mut assembly = Assembly::new(intervals, tail, faults);
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
                assembly.add(&batch, fold)?;
                progress(assembly.pass.rows as f64 / total.max(1) as f64);
            }
        }
        drop(channels);
        assembly.finish(fold)
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
    intervals: &'a [IntervalRow],
    tail: usize,
    faults: Faults,
    /// The interval that is open, by its position.
    open: usize,
    /// Its number in the table of touches.
    number: Option<u32>,
    runs: Vec<Run>,
    sorted: bool,
    marked: Vec<(Run, Marks)>,
    sources: [u64; TouchSource::ALL.len()],
    written: (bool, bool),
    pass: Pass,
}

impl<'a> Assembly<'a> {
    fn new(intervals: &'a [IntervalRow], tail: usize, faults: Faults) -> Assembly<'a> {
        Assembly {
            intervals,
            tail,
            faults,
            open: 0,
            number: None,
            runs: Vec::new(),
            sorted: true,
            marked: Vec::new(),
            sources: Default::default(),
            written: (false, false),
            pass: Pass {
                working_set: vec![0; intervals.len()],
                sources: Default::default(),
                by_process: HashMap::new(),
                huge_touches: 0,
                writes: Writes::Unknown,
                rows: 0,
                stray_rows: 0,
                faults: 0,
            },
        }
    }

    fn add(&mut self, batch: &TouchColumns, fold: &mut Fold<'_>) -> Result<(), TraceError> {
        let rows = batch.len();
        let (interval, pid) = (&batch.interval[..rows], &batch.pid[..rows]);
        let (page, pages) = (&batch.page[..rows], &batch.pages[..rows]);
        let (bytes, source) = (&batch.page_bytes[..rows], &batch.source[..rows]);
        for row in 0..rows {
            if self.number != Some(interval[row]) {
                self.close(fold)?;
                self.go_to(interval[row], fold)?;
            }
            let run = Run {
                pid: pid[row],
                first: page[row],
                end: page[row].saturating_add(u64::from(pages[row])),
            };
            let written = match &batch.written {
                WrittenColumn::Unknown => None,
                WrittenColumn::Rows(written) => written[row],
            };
            self.push(run, bytes[row], source[row], written);
        }
        self.pass.rows += rows as u64;
        Ok(())
    }

    #[inline]
    fn push(&mut self, run: Run, bytes: u32, source: TouchSource, written: Option<bool>) {
        self.sources[source as usize] += run.end - run.first;
        self.written.0 |= written.is_some();
        self.written.1 |= written.is_none();
        let marks = Marks {
            written: written == Some(true),
            huge: u64::from(bytes) > PAGE_BYTES,
            standing: matches!(source, TouchSource::Sticky | TouchSource::Pinned),
        };
        if marks != Marks::default() {
            self.marked.push((run, marks));
            if marks.huge {
                self.pass.huge_touches += run.end - run.first;
            }
        }
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
    fn go_to(&mut self, number: u32, fold: &mut Fold<'_>) -> Result<(), TraceError> {
        self.number = Some(number);
        let found = self.intervals[self.open.min(self.intervals.len())..]
            .binary_search_by_key(&number, |i| i.interval.0);
        if let Ok(ahead) = found {
            let target = self.open + ahead;
            while self.open < target {
                self.step(fold)?;
            }
            self.begin(fold);
        }
        Ok(())
    }

    /// Whether the rows that are gathered belong to the open interval.
    fn in_order(&self) -> bool {
        let open = self.intervals.get(self.open).map(|i| i.interval.0);
        open.is_some() && self.number == open
    }

    fn begin(&self, fold: &mut Fold<'_>) {
        let from = match self.open {
            0 => Time(0),
            open => self.intervals[open - 1].end_ns,
        };
        let to = self.intervals[self.open].end_ns;
        let number = u32::try_from(self.open).unwrap_or(u32::MAX);
        fold.begin(number, from, to, self.open >= self.tail);
    }

    /// Ends the open interval: its faults are due.
    fn step(&mut self, fold: &mut Fold<'_>) -> Result<(), TraceError> {
        let Some(row) = self.intervals.get(self.open) else {
            return Ok(());
        };
        self.begin(fold);
        while let Some(fault) = self.faults.before(row.end_ns)? {
            self.pass.faults += 1;
            fold.fault(fault.pid.0, fault.tid.0, fault.address, fault.time_ns);
        }
        self.open += 1;
        Ok(())
    }

    /// Gives what was gathered to the fold.
    fn close(&mut self, fold: &mut Fold<'_>) -> Result<(), TraceError> {
        let rows = self.runs.len() as u64;
        if rows == 0 {
            return Ok(());
        }
        if !self.sorted {
            self.runs.sort();
            merge(&mut self.runs);
        }
        let mut pages = 0;
        for runs in self.runs.chunk_by(|a, b| a.pid == b.pid) {
            let touched = fold.touch(runs);
            pages += touched;
            *self.pass.by_process.entry(runs[0].pid).or_default() += touched;
        }
        for (run, marks) in self.marked.drain(..) {
            fold.mark(run, marks);
        }
        if self.in_order() {
            self.pass.working_set[self.open] += pages;
        } else {
            self.pass.stray_rows += rows;
        }
        for (sum, pages) in self.pass.sources.iter_mut().zip(&mut self.sources) {
            sum.0 += *pages;
            sum.1 = sum.1.max(std::mem::take(pages));
        }
        self.runs.clear();
        self.sorted = true;
        Ok(())
    }

    fn finish(mut self, fold: &mut Fold<'_>) -> Result<Pass, TraceError> {
        self.close(fold)?;
        while self.open < self.intervals.len() {
            self.step(fold)?;
        }
        // Faults after the last interval are the last interval's.
        while let Some(fault) = self.faults.before(Time(u64::MAX))? {
            self.pass.faults += 1;
            fold.fault(fault.pid.0, fault.tid.0, fault.address, fault.time_ns);
        }
        self.pass.by_process.retain(|_, touches| *touches > 0);
        self.pass.writes = match self.written {
            (false, _) => Writes::Unknown,
            (true, false) => Writes::Known,
            (true, true) => Writes::Partly,
        };
        Ok(self.pass)
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
