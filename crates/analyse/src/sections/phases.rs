//! The phases that a program names, and the memory that it uses meanwhile.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};
use std::ops::Range;

use serde::Serialize;
use varve_model::{Duration, Pages, Pid, Tid, Time};
use varve_trace::tables::{IntervalRow, MarkRow};
use varve_trace::{Trace, TraceError};

use crate::Known;
use crate::page_set::PageSet;

/// Phases whose pages are counted, those that take the longest: a bit each in a word.
const MAX_COUNTED: usize = 64;
/// Names that are listed.
const MAX_NAMES: usize = 4096;
/// Runs of a phase that are told apart in pictures.
const MAX_SPANS: u64 = 4096;

/// All phases, or events, of one name.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PhaseUse {
    /// What the program calls it.
    pub name: String,
    /// `phase` or `event`.
    pub kind: String,
    /// How often it ran, or happened.
    pub times: u64,
    /// How many of these the program did not end.
    pub open: u64,
    /// When the first began.
    pub first_ns: Time,
    /// The time of all of them, on all threads; of those that were not ended, up to the end of their thread, program or of the recording.
    pub total_ns: Duration,
    /// The processes in which it ran.
    pub processes: u64,
    /// The threads.
    pub threads: u64,
    /// Intervals that overlap with it.
    pub intervals: u64,
    /// Distinct pages touched in those intervals, by whatever thread; null for events and where they were not counted.
    #[serde(serialize_with = "Known::plain")]
    pub touched_pages: Known<Pages>,
    /// Pages touched in one of them, the most.
    #[serde(serialize_with = "Known::plain")]
    pub peak_working_set_pages: Known<Pages>,
    /// The mean over them.
    #[serde(serialize_with = "Known::plain")]
    pub mean_working_set_pages: Known<Pages>,
    /// When it ran, or happened, for pictures: in order, without overlap. Runs that lie closer together than a 4096th of the recording are one.
    #[serde(skip)]
    pub spans: Vec<Range<Time>>,
}

/// The intervals, by position, that overlap with a time.
pub fn overlapping(intervals: &[IntervalRow], start: Time, until: Option<Time>) -> Range<usize> {
    let first = intervals.partition_point(|i| i.end_ns <= start);
    let end = until.map_or(intervals.len(), |until| {
        intervals.partition_point(|i| i.start_ns < until)
    });
    first..end.max(first)
}

/// Brings ranges in order, and joins each with the one before where `is_near` says so of the end of that and its own start.
pub fn join_ranges<T: Copy + Ord>(ranges: &mut Vec<Range<T>>, is_near: impl Fn(T, T) -> bool) {
    ranges.sort_by_key(|range| range.start);
    ranges.dedup_by(|next, last| {
        let joined = is_near(last.end, next.start);
        if joined {
            last.end = last.end.max(next.end);
        }
        joined
    });
}

/// All phases of one name.
#[derive(Default)]
struct Named {
    use_of: Option<PhaseUse>,
    processes: HashSet<Pid>,
    threads: HashSet<(Pid, Tid)>,
    ranges: Vec<Range<usize>>,
    spans: Vec<Range<Time>>,
    pages: PageSet,
    sum: u64,
    peak: u64,
}

/// Counts pages of phases as the sweep goes over the intervals.
pub(crate) struct Phases {
    named: Vec<Named>,
    /// Those whose pages are counted come first.
    counted: usize,
    /// For each interval a bit for each of these.
    active: Vec<u64>,
}

impl Phases {
    pub(crate) fn read(
        trace: &Trace,
        intervals: &[IntervalRow],
        end: Time,
    ) -> Result<Phases, TraceError> {
        let mut by_name: BTreeMap<(bool, String), Named> = BTreeMap::new();
        for rows in trace.batches::<MarkRow>()? {
            for row in rows? {
                let is_event = row.kind.as_ref() != "phase";
                let key = (is_event, row.name.clone());
                if by_name.len() < MAX_NAMES || by_name.contains_key(&key) {
                    by_name.entry(key).or_default().add(&row, intervals, end);
                }
            }
        }
        let mut named: Vec<Named> = by_name.into_values().collect();
        named.sort_by_key(|n| {
            let of = n.use_of.as_ref();
            of.map(|u| (u.kind != "phase", Reverse(u.total_ns)))
        });
        let is_phase = |n: &&Named| n.use_of.as_ref().is_some_and(|u| u.kind == "phase");
        let counted = named.iter().take_while(is_phase).count().min(MAX_COUNTED);
        let mut active = vec![0; if counted > 0 { intervals.len() } else { 0 }];
        for (bit, named) in named.iter_mut().enumerate() {
            join_ranges(&mut named.ranges, |end, start| start <= end);
            named.join_spans(end);
            for range in named.ranges.iter().filter(|_| bit < counted) {
                for word in &mut active[range.clone()] {
                    *word |= 1 << bit;
                }
            }
        }
        Ok(Phases {
            named,
            counted,
            active,
        })
    }

    /// Whether the program was in a phase whose pages are counted.
    pub(crate) fn has(&self, position: usize) -> bool {
        self.active.get(position).is_some_and(|word| *word != 0)
    }

    /// Pages of the program's that were touched in an interval, each once.
    pub(crate) fn touched(&mut self, position: usize, runs: &[(u32, u64, u64)]) {
        let mut word = self.active.get(position).copied().unwrap_or(0);
        let pages: u64 = runs.iter().map(|(_, first, end)| end - first).sum();
        while word != 0 {
            let named = &mut self.named[word.trailing_zeros() as usize];
            word &= word - 1;
            named.sum += pages;
            named.peak = named.peak.max(pages);
            for &(pid, first, end) in runs {
                named.pages.add(pid, first, end);
            }
        }
    }

    /// What was found. `made` says what is known of figures about touched pages.
    pub(crate) fn finish(self, made: impl Fn(Pages) -> Known<Pages>) -> Vec<PhaseUse> {
        let counted = self.counted;
        let all = self.named.into_iter().enumerate();
        let mut all: Vec<PhaseUse> = all
            .filter_map(|(at, named)| {
                let mut phase = named.use_of?;
                phase.spans = named.spans;
                phase.processes = named.processes.len() as u64;
                phase.threads = named.threads.len() as u64;
                phase.intervals = named.ranges.iter().map(|r| r.len() as u64).sum();
                if at < counted {
                    phase.touched_pages = made(Pages(named.pages.pages()));
                    phase.peak_working_set_pages = made(Pages(named.peak));
                    let mean = named.sum / phase.intervals.max(1);
                    phase.mean_working_set_pages = made(Pages(mean));
                }
                Some(phase)
            })
            .collect();
        all.sort_by(|a, b| (a.first_ns, &a.name).cmp(&(b.first_ns, &b.name)));
        all
    }
}

impl Named {
    fn add(&mut self, row: &MarkRow, intervals: &[IntervalRow], end: Time) {
        let is_phase = row.kind.as_ref() == "phase";
        let phase = self.use_of.get_or_insert_with(|| {
            let why = match is_phase {
                true => format!("pages are counted of the {MAX_COUNTED} phases that take longest"),
                false => "an event has no pages".to_owned(),
            };
            let absent = || Known::Absent(why.clone());
            PhaseUse {
                name: row.name.clone(),
                kind: if is_phase { "phase" } else { "event" }.to_owned(),
                times: 0,
                open: 0,
                first_ns: row.start_ns,
                total_ns: Duration(0),
                processes: 0,
                threads: 0,
                intervals: 0,
                touched_pages: absent(),
                peak_working_set_pages: absent(),
                mean_working_set_pages: absent(),
                spans: Vec::new(),
            }
        });
        phase.times += 1;
        phase.first_ns = phase.first_ns.min(row.start_ns);
        self.processes.insert(row.pid);
        self.threads.insert((row.pid, row.tid));
        let until = match is_phase {
            true => row.until_ns.unwrap_or(end.max(row.start_ns)),
            false => row.start_ns,
        };
        phase.open += u64::from(is_phase && row.end_ns.is_none());
        let length = (until - row.start_ns).0;
        phase.total_ns = Duration(phase.total_ns.0.saturating_add(length));
        self.spans.push(row.start_ns..until);
        if self.spans.len() as u64 > 2 * MAX_SPANS {
            self.join_spans(end);
        }
        if !is_phase {
            return;
        }
        let range = overlapping(intervals, row.start_ns, Some(until));
        match self.ranges.last_mut() {
            // Most phases follow one another.
            Some(last) if last.start <= range.start && range.start <= last.end => {
                last.end = last.end.max(range.end);
            }
            _ if range.is_empty() => (),
            _ => self.ranges.push(range),
        }
    }

    /// Joins the spans that no picture shows apart.
    fn join_spans(&mut self, end: Time) {
        let first = self.spans.iter().map(|span| span.start).min();
        let near = end.0.saturating_sub(first.unwrap_or(end).0) / MAX_SPANS;
        join_ranges(&mut self.spans, |end, start| {
            start.0 <= end.0.saturating_add(near)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(marks: impl Iterator<Item = (&'static str, u64, u64)>, end: u64) -> Named {
        let mut named = Named::default();
        for (kind, start, until) in marks {
            let row = MarkRow {
                pid: Pid(1),
                tid: Tid(1),
                kind: kind.into(),
                name: "x".into(),
                start_ns: Time(start),
                end_ns: Some(Time(until)),
                until_ns: Some(Time(until)),
            };
            named.add(&row, &[], Time(end));
        }
        named.join_spans(Time(end));
        named
    }

    #[test]
    fn runs_far_apart_are_told_apart() {
        let of = |kind| {
            named(
                [(kind, 500_000, 700_000), (kind, 0, 100_000)].into_iter(),
                1 << 20,
            )
        };
        let runs = [Time(0)..Time(100_000), Time(500_000)..Time(700_000)];
        assert_eq!(of("phase").spans, runs);
        assert_eq!(of("event").spans, runs.map(|run| run.start..run.start));
    }

    #[test]
    fn many_runs_take_little_room_and_lose_no_time() {
        let end = 1_000_000_u64;
        let marks = (0..end / 2).map(|i| ("phase", 2 * i, 2 * i + 1));
        let named = named(marks, end);
        assert!(named.spans.len() as u64 <= MAX_SPANS + 1);
        assert_eq!(named.use_of.unwrap().total_ns, Duration(end / 2));
        assert_eq!(named.spans.first().map(|s| s.start), Some(Time(0)));
        assert_eq!(named.spans.last().map(|s| s.end), Some(Time(end - 1)));
    }
}
