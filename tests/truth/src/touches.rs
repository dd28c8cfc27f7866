//! The touches of a trace, by interval and process.

use std::collections::BTreeMap;

use varve_model::{Duration, PAGE_BYTES, Page, Pid, Time, TouchSource};
use varve_trace::tables::{IntervalRow, TouchRow};
use varve_trace::{Trace, TraceError};

use crate::{PageSet, Span};

/// A run of touched pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touch {
    /// The first page.
    pub first: Page,
    /// How many.
    pub pages: u64,
    /// Base pages per hardware page.
    pub granule: u64,
    /// Whether it was written, where known.
    pub written: Option<bool>,
    /// How it became known.
    pub source: TouchSource,
}

/// One process in one interval.
#[derive(Clone, Debug, Default)]
pub struct Layer {
    /// The rows.
    pub touches: Vec<Touch>,
    /// All their pages.
    pub pages: PageSet,
    /// The pages of which the trace says that they were not written.
    pub unwritten: PageSet,
    /// The pages of which it says that they were.
    pub written: PageSet,
    /// The pages of which it says that it does not know.
    pub unknown: PageSet,
}

/// All touches of a trace.
#[derive(Clone, Debug, Default)]
pub struct Touches {
    /// The intervals, ascending in time: each with how long the program was held at its end, or ran on while it was read.
    pub intervals: Vec<(Span, Duration, Duration)>,
    /// By position in `intervals` and process.
    pub layers: BTreeMap<(usize, Pid), Layer>,
}

impl Touches {
    /// Reads a trace's intervals and touches.
    pub fn load(trace: &Trace) -> Result<Touches, TraceError> {
        let mut rows = trace.rows::<IntervalRow>()?;
        rows.sort_by_key(|r| r.start_ns);
        let numbers: BTreeMap<_, _> = rows
            .iter()
            .enumerate()
            .map(|(i, r)| (r.interval, i))
            .collect();
        let spans = rows
            .iter()
            .map(|r| {
                (
                    Span {
                        from: r.start_ns,
                        to: r.end_ns,
                    },
                    r.held_ns,
                    r.overlap_ns,
                )
            })
            .collect();
        let mut touches = Touches {
            intervals: spans,
            layers: BTreeMap::new(),
        };
        for batch in trace.batches::<TouchRow>()? {
            for row in batch? {
                // Rows of an interval that was never closed belong to the time after the last one.
                let at = numbers.get(&row.interval).copied().unwrap_or(rows.len());
                touches
                    .layers
                    .entry((at, row.pid))
                    .or_default()
                    .touches
                    .push(Touch {
                        first: row.page,
                        pages: u64::from(row.pages),
                        granule: (u64::from(row.page_bytes) / PAGE_BYTES).max(1),
                        written: row.written,
                        source: row.source,
                    });
            }
        }
        for layer in touches.layers.values_mut() {
            layer.index();
        }
        Ok(touches)
    }

    /// The positions of the intervals that the span lies in or within reach of: between two intervals
    /// the program is held, and the border may be stamped anywhere in that time.
    pub fn around(&self, span: Span) -> std::ops::Range<usize> {
        self.within(span, |_| Duration(0))
    }

    /// The same, and where the program ran on while it was read, those in which its pages may stand besides.
    pub fn perhaps(&self, span: Span) -> std::ops::Range<usize> {
        self.within(span, |overlap| overlap)
    }

    fn within(&self, span: Span, more: impl Fn(Duration) -> Duration) -> std::ops::Range<usize> {
        // How far from its stamp the border at the end of an interval may lie.
        let reach = |i: usize| {
            let known = self.intervals.get(i);
            known.map_or(0, |(_, held, overlap)| held.0 + more(*overlap).0 + 20_000)
        };
        let near = |i: &usize| {
            let (interval, _, _) = self.intervals[*i];
            let wide = Span {
                from: Time(interval.from.0.saturating_sub(reach(i.wrapping_sub(1)))),
                to: Time(interval.to.0.saturating_add(reach(*i))),
            };
            wide.overlaps(span)
        };
        let mut hits = (0..self.intervals.len()).filter(near);
        match hits.next() {
            Some(first) => first..hits.next_back().unwrap_or(first) + 1,
            None => 0..0,
        }
    }

    /// What is known of a process over some intervals.
    pub fn union(&self, intervals: std::ops::Range<usize>, pid: Pid) -> Layer {
        let mut union = Layer::default();
        for i in intervals {
            if let Some(layer) = self.layers.get(&(i, pid)) {
                union.touches.extend(&layer.touches);
            }
        }
        union.index();
        union
    }

    /// Every page that the process ever touched, as the trace knows.
    pub fn ever(&self, pid: Pid) -> PageSet {
        let layers = self.layers.iter().filter(|((_, p), _)| *p == pid);
        PageSet::from_runs(layers.flat_map(|(_, l)| l.touches.iter().map(|t| (t.first, t.pages))))
    }
}

impl Layer {
    /// Whether the trace says that a page was accessed and never written. A page may have several rows: read before the end
    /// of an interval, for example, and gone after it, when nobody saw whether it was written meanwhile.
    pub fn denies_write(&self, page: Page) -> bool {
        self.unwritten.contains(page)
            && !self.written.contains(page)
            && !self.unknown.contains(page)
    }

    fn index(&mut self) {
        let pages_of = |wanted: fn(&Touch) -> bool| {
            PageSet::from_runs(
                self.touches
                    .iter()
                    .filter(|t| wanted(t))
                    .map(|t| (t.first, t.pages)),
            )
        };
        self.pages = pages_of(|_| true);
        self.unwritten = pages_of(|t| t.written == Some(false));
        self.written = pages_of(|t| t.written == Some(true));
        self.unknown = pages_of(|t| t.written.is_none());
    }
}
