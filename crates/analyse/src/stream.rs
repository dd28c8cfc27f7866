//! What the analysis hears of a sweep: it goes to the fold, and is summed.

use std::collections::HashMap;

use varve_model::{PAGE_BYTES, TouchSource};
use varve_trace::tables::{FaultRow, IntervalRow};
use varve_trace::{Trace, TraceError};

use crate::analysis::Writes;
use crate::fold::Fold;
use crate::sharing::Sharers;
use crate::stats::Marks;
use crate::sweep::{Moment, RowFacts, Run, Sweep, sweep};

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

/// Folds all touches and faults. `tail` is the first interval of the tail; `sharing` hears of the faults.
pub(crate) fn run(
    trace: &Trace,
    intervals: &[IntervalRow],
    tail: usize,
    fold: &mut Fold<'_>,
    sharing: &mut Sharers<'_>,
    progress: &mut dyn FnMut(f64),
) -> Result<Pass, TraceError> {
    let mut analyst = Analyst {
        fold,
        sharing,
        tail,
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
    sharing: &'a mut Sharers<'c>,
    tail: usize,
    marked: Vec<(Run, Marks)>,
    /// Pages named in this interval, by source.
    sources: [u64; TouchSource::ALL.len()],
    /// Whether some rows say whether they were written, and some do not.
    written: (bool, bool),
    pass: Pass,
}

impl Sweep for Analyst<'_, '_, '_> {
    #[inline]
    fn row(&mut self, run: Run, facts: RowFacts) {
        let pages = run.end.0 - run.first.0;
        self.sources[facts.source as usize] += pages;
        self.written.0 |= facts.written.is_some();
        self.written.1 |= facts.written.is_none();
        let marks = Marks {
            written: facts.written == Some(true),
            huge: facts.page_bytes.0 > PAGE_BYTES,
            standing: matches!(facts.source, TouchSource::Sticky | TouchSource::Pinned),
        };
        if marks != Marks::default() {
            self.marked.push((run, marks));
            if marks.huge {
                self.pass.huge_touches += pages;
            }
        }
    }

    fn begin(&mut self, now: Moment) {
        self.fold.begin(now, now.position >= self.tail);
    }

    fn touched(&mut self, position: Option<usize>, runs: &[Run]) {
        let mut pages = 0;
        for runs in runs.chunk_by(|a, b| a.pid == b.pid) {
            let touched = self.fold.touch(runs);
            pages += touched;
            *self.pass.by_process.entry(runs[0].pid.0).or_default() += touched;
        }
        for (run, marks) in self.marked.drain(..) {
            self.fold.mark(run, marks);
        }
        match position {
            Some(position) => self.pass.working_set[position] += pages,
            None => self.pass.stray_rows += runs.len() as u64,
        }
        for (sum, pages) in self.pass.sources.iter_mut().zip(&mut self.sources) {
            sum.0 += *pages;
            sum.1 = sum.1.max(std::mem::take(pages));
        }
    }

    fn fault(&mut self, fault: &FaultRow) {
        self.pass.faults += 1;
        self.sharing.fault(fault, self.fold.fault(fault));
    }
}
