//! What the analysis hears of a sweep: it goes to the fold, and is summed.

use std::collections::HashMap;

use varve_model::{Bytes, PAGE_BYTES, Time, TouchSource};
use varve_trace::tables::{FaultRow, IntervalRow};
use varve_trace::{Trace, TraceError};

use crate::analysis::Writes;
use crate::fold::{Fold, Mark};
use crate::memory::{Homes, Memory, join};
use crate::sections::phases::Phases;
use crate::sections::sharing::Sharers;
use crate::sweep::{Moment, RowFacts, Run, Sweep, sweep};

/// What the pass found out besides the fold.
pub(crate) struct Pass {
    /// Distinct pages touched, for each interval; and the sum over processes.
    pub(crate) working_set: Vec<(u64, u64)>,
    /// Sum over intervals of pages touched; all the program's own.
    pub(crate) page_touches: u64,
    /// Sum over intervals of the pages named, and the most in one interval, by source; nothing of what others may have
    /// touched.
    pub(crate) sources: [(u64, u64); TouchSource::ALL.len()],
    /// Sum over intervals of pages touched, by process; all the program's own.
    pub(crate) by_process: HashMap<u32, u64>,
    pub(crate) huge_touches: u64,
    /// Sum over intervals of the pages that others may have touched.
    pub(crate) possibly: u64,
    pub(crate) writes: Writes,
    pub(crate) rows: u64,
    pub(crate) stray_rows: u64,
    pub(crate) faults: u64,
}

/// Folds all touches and faults. `tail` is the first interval of the tail; `sharing` hears of the faults, `phases` of the pages.
pub(crate) fn run(
    trace: &Trace,
    intervals: &[IntervalRow],
    tail: usize,
    fold: &mut Fold<'_>,
    (memory, homes): (&mut Memory, &Homes<'_>),
    (sharing, phases): (&mut Sharers<'_>, &mut Phases),
    progress: &mut dyn FnMut(f64),
) -> Result<Pass, TraceError> {
    let mut analyst = Analyst {
        fold,
        memory,
        homes,
        sharing,
        phases,
        of_program: Vec::new(),
        tail,
        now: Moment {
            position: 0,
            from: Time(0),
            to: Time(1),
        },
        marked: Default::default(),
        own: Vec::new(),
        theirs: Vec::new(),
        others: Vec::new(),
        sources: Default::default(),
        written: (false, false),
        pass: Pass {
            working_set: vec![(0, 0); intervals.len()],
            page_touches: 0,
            sources: Default::default(),
            by_process: HashMap::new(),
            huge_touches: 0,
            possibly: 0,
            writes: Writes::Unknown,
            rows: 0,
            stray_rows: 0,
            faults: 0,
        },
    };
    let rows = sweep(trace, intervals, &mut analyst, progress)?;
    let (written, mut pass) = (analyst.written, analyst.pass);
    pass.rows = rows;
    pass.by_process.retain(|_, touches| *touches > 0);
    pass.writes = match written {
        (false, _) => Writes::Unknown,
        (true, false) => Writes::Known,
        (true, true) => Writes::Partly,
    };
    Ok(pass)
}

struct Analyst<'a, 'b, 'c> {
    fold: &'a mut Fold<'b>,
    memory: &'a mut Memory,
    homes: &'a Homes<'a>,
    sharing: &'a mut Sharers<'c>,
    phases: &'a mut Phases,
    /// Pages of the interval, where a phase runs.
    of_program: Vec<(u32, u64, u64)>,
    tail: usize,
    now: Moment,
    /// Runs of this interval that were written, are of huge pages, or count whether touched or not.
    marked: [Vec<Run>; MARKS.len()],
    /// Buffers: what is a process's own, what it shares, and that of all processes.
    own: Vec<Run>,
    theirs: Vec<Run>,
    others: Vec<Run>,
    /// Pages named in this interval, by source.
    sources: [u64; TouchSource::ALL.len()],
    /// Whether some rows say whether they were written, and some do not.
    written: (bool, bool),
    pass: Pass,
}

const MARKS: [Mark; 3] = [Mark::Written, Mark::Huge, Mark::Standing];

impl Sweep for Analyst<'_, '_, '_> {
    #[inline]
    fn row(&mut self, run: Run, facts: RowFacts) {
        let pages = run.end.0 - run.first.0;
        self.sources[facts.source as usize] += pages;
        self.written.0 |= facts.written.is_some();
        self.written.1 |= facts.written.is_none();
        let marks = [
            facts.written == Some(true),
            facts.page_bytes.0 > PAGE_BYTES,
            matches!(facts.source, TouchSource::Sticky | TouchSource::Pinned),
        ];
        for (list, is) in self.marked.iter_mut().zip(marks) {
            if is {
                list.push(run);
            }
        }
    }

    fn begin(&mut self, now: Moment) {
        self.now = now;
        self.fold.begin(now, now.position >= self.tail);
    }

    fn touched(&mut self, position: Option<usize>, runs: &[Run]) {
        let (mut pages, mut sum) = (0, 0);
        let in_phase = position.filter(|position| self.phases.has(*position));
        self.of_program.clear();
        self.others.clear();
        for runs in runs.chunk_by(|a, b| a.pid == b.pid) {
            self.split(runs);
            let own = self.fold.touch(&self.own);
            if in_phase.is_some() {
                let list = &mut self.of_program;
                let each = |pid, first, end| list.push((pid, first, end));
                self.fold.of_program(&self.own, each);
            }
            let theirs = self.fold.used(runs[0].pid, &self.theirs, false);
            *self.pass.by_process.entry(runs[0].pid.0).or_default() += own + theirs;
            pages += own;
            sum += own + theirs;
            self.others.append(&mut self.theirs);
        }
        join(&mut self.others);
        pages += self.fold.touch(&self.others);
        if let Some(position) = in_phase {
            let list = &mut self.of_program;
            let each = |pid, first, end| list.push((pid, first, end));
            self.fold.of_program(&self.others, each);
            self.phases.touched(position, &self.of_program);
        }
        self.mark();
        self.pass.page_touches += pages;
        match position {
            Some(position) => {
                self.pass.working_set[position].0 += pages;
                self.pass.working_set[position].1 += sum;
            }
            None => self.pass.stray_rows += runs.len() as u64,
        }
        for (sum, pages) in self.pass.sources.iter_mut().zip(&mut self.sources) {
            sum.0 += *pages;
            sum.1 = sum.1.max(std::mem::take(pages));
        }
    }

    fn possibly(&mut self, position: Option<usize>, runs: &[Run]) {
        let mut distinct = std::mem::take(&mut self.others);
        self.memory.distinct(runs, self.now, &mut distinct);
        self.pass.possibly += self.fold.mark(&distinct, Mark::Possibly);
        self.others = distinct;
        if position.is_none() {
            self.pass.stray_rows += runs.len() as u64;
        }
    }

    fn fault(&mut self, fault: &FaultRow) {
        self.pass.faults += 1;
        let place = self.memory.place(fault.pid, fault.address, self.now);
        let faulted = self.fold.fault(fault, place);
        let mut fault = fault.clone();
        if let Some(object) = faulted.within.or(faulted.first) {
            fault.address = self.homes.home(object, fault.address, place);
        }
        self.sharing.fault(&fault, faulted);
    }

    fn is_full(&self) -> Option<Bytes> {
        self.fold.room_that_is_full()
    }
}

impl Analyst<'_, '_, '_> {
    /// Splits runs of one process into its own and those of memory that several may map, each page once.
    fn split(&mut self, runs: &[Run]) {
        self.own.clear();
        self.theirs.clear();
        self.memory
            .split(runs, self.now, &mut self.own, &mut self.theirs);
        join(&mut self.theirs);
    }

    /// Enters what more is known of the runs of the interval, each page once.
    fn mark(&mut self) {
        for (at, mark) in MARKS.into_iter().enumerate() {
            let mut runs = std::mem::take(&mut self.marked[at]);
            join(&mut runs);
            self.others.clear();
            let mut pages = 0;
            for runs in runs.chunk_by(|a, b| a.pid == b.pid) {
                self.split(runs);
                pages += self.fold.mark(&self.own, mark);
                if mark == Mark::Written {
                    self.fold.used(runs[0].pid, &self.theirs, true);
                }
                self.others.append(&mut self.theirs);
            }
            join(&mut self.others);
            pages += self.fold.mark(&self.others, mark);
            if mark == Mark::Huge {
                self.pass.huge_touches += pages;
            }
            runs.clear();
            self.marked[at] = runs;
        }
    }
}
