//! From a trace to the report: one pass over its touches and faults.

use std::collections::HashMap;
use std::iter::Peekable;

use varve_analyse::{Analysis, ObjectUse, Writes, format};
use varve_attribute::Layer;
use varve_model::{Interval, ObjectId, Page, PageRange, Pages, Pid, Tid, Time};
use varve_trace::tables::{FaultRow, IntervalRow, ObjectRow, SiteRow, TouchRow};
use varve_trace::{Batches, Row, Trace, TraceError};

use super::{
    Finding, Footprint, Frame, GridPass, HtmlReport, Loss, Object, Omitted, Overhead, Placement,
    Thread, TraceSummary,
};

/// Rows of the table of objects; what is beyond is counted.
const TABLE_ROWS: usize = 3000;

/// Reads a trace and its analysis into a report. `progress` hears the share of intervals done, 0 to 1.
pub fn from_trace(
    trace: &Trace,
    analysis: &Analysis,
    mut progress: impl FnMut(f64),
) -> Result<HtmlReport, TraceError> {
    let intervals: Vec<IntervalRow> = trace.rows()?;
    let start = intervals
        .first()
        .map_or(analysis.trace.start_ns, |i| i.start_ns);
    let since = |t: Time| Time((t - start).0);
    let threads = Threads::of(analysis);
    let placements = placements(trace, analysis, since)?;
    let spans: Vec<_> = placements.iter().map(Placement::span).collect();
    let mut pass = GridPass::new(&placements, &spans, intervals.len());

    let mut touches = Flat::new(trace.batches::<TouchRow>()?).peekable();
    let mut faults = Flat::new(trace.batches::<FaultRow>()?).peekable();
    let mut working_set = Vec::with_capacity(intervals.len());
    let mut runs = Vec::new();
    for (i, row) in intervals.iter().enumerate() {
        let number = Interval(u32::try_from(i).unwrap_or(u32::MAX));
        pass.begin(number, since(row.start_ns), since(row.end_ns));
        runs.clear();
        while let Some(touch) = next_if(&mut touches, |t: &TouchRow| t.interval <= row.interval)? {
            runs.push((
                touch.pid,
                touch.page.0,
                touch.page.0 + u64::from(touch.pages),
            ));
        }
        let pages = merge(&mut runs, |pid, run| pass.touch(pid, run));
        working_set.push(analysis.working_set.get(i).map_or(pages, |w| w.pages));
        while let Some(fault) = next_if(&mut faults, |f: &FaultRow| f.time_ns <= row.end_ns)? {
            if let Some(&thread) = threads.index.get(&(fault.pid, fault.tid)) {
                pass.first_touch(fault.pid, fault.address.page(), thread);
            }
        }
        progress((i + 1) as f64 / intervals.len() as f64);
    }

    let mut map = pass.finish();
    map.unowned = analysis.unowned.page_touches;
    let resident: Vec<Pages> = intervals.iter().map(|i| Pages(i.resident_pages)).collect();
    let resident = resident.iter().any(|p| p.0 > 0).then_some(resident);
    let mut edges: Vec<Time> = intervals.iter().map(|i| since(i.start_ns)).collect();
    edges.push(intervals.last().map_or(Time(0), |i| since(i.end_ns)));
    Ok(HtmlReport {
        trace: summary(analysis),
        overhead: Overhead {
            held_ns: analysis.overhead.held_ns,
            recorder_cpu_ns: Some(analysis.overhead.recorder_cpu_ns),
        },
        footprint: Footprint {
            touched_pages: analysis.footprint.touched_pages,
            peak_resident_pages: resident
                .is_some()
                .then_some(analysis.footprint.peak_resident_pages),
        },
        unknown: analysis.unknown.clone(),
        interval_edges: edges,
        working_set,
        resident,
        objects: table(trace, analysis, &threads, since)?,
        threads: threads.list,
        omitted: omitted(analysis),
        findings: findings(analysis),
        map,
    })
}

/// The rows of all batches.
struct Flat<R> {
    batches: Batches<R>,
    rows: std::vec::IntoIter<R>,
}

impl<R: Row> Flat<R> {
    fn new(batches: Batches<R>) -> Self {
        Flat {
            batches,
            rows: Vec::new().into_iter(),
        }
    }
}

impl<R: Row> Iterator for Flat<R> {
    type Item = Result<R, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(row) = self.rows.next() {
                return Some(Ok(row));
            }
            match self.batches.next()? {
                Ok(rows) => self.rows = rows.into_iter(),
                Err(e) => return Some(Err(e)),
            }
        }
    }
}

fn next_if<R: Row>(
    rows: &mut Peekable<Flat<R>>,
    due: impl Fn(&R) -> bool,
) -> Result<Option<R>, TraceError> {
    rows.next_if(|row| row.as_ref().map_or(true, &due))
        .transpose()
}

/// Calls `each` with every page once, however many sources named it; returns how many pages that is.
fn merge(runs: &mut [(Pid, u64, u64)], mut each: impl FnMut(Pid, PageRange)) -> Pages {
    runs.sort_unstable();
    let mut total = 0;
    let mut open: Option<(Pid, u64, u64)> = None;
    let mut close = |(pid, first, end): (Pid, u64, u64)| {
        total += end - first;
        each(
            pid,
            PageRange {
                first: Page(first),
                count: Pages(end - first),
            },
        );
    };
    for &(pid, first, end) in runs.iter() {
        match &mut open {
            Some((p, _, last)) if *p == pid && first <= *last => *last = end.max(*last),
            _ => {
                if let Some(done) = open.replace((pid, first, end)) {
                    close(done);
                }
            }
        }
    }
    if let Some(done) = open {
        close(done);
    }
    Pages(total)
}

struct Threads {
    list: Vec<Thread>,
    index: HashMap<(Pid, Tid), u16>,
}

impl Threads {
    fn of(analysis: &Analysis) -> Threads {
        let mut threads = Threads {
            list: Vec::new(),
            index: HashMap::new(),
        };
        // The last number says that a thread is not known; threads beyond count as that.
        for (row, next) in analysis.threads.iter().zip(0..u16::MAX) {
            threads.index.insert((row.pid, row.tid), next);
            threads.list.push(Thread {
                pid: row.pid,
                tid: row.tid,
                name: row.name.clone(),
            });
        }
        threads
    }
}

/// Where all objects lived. Those that the analysis sets apart, the recorder's own memory, have no place.
fn placements(
    trace: &Trace,
    analysis: &Analysis,
    since: impl Fn(Time) -> Time,
) -> Result<Vec<Placement>, TraceError> {
    let listed: HashMap<ObjectId, usize> =
        analysis.objects.iter().map(|o| o.object).zip(0..).collect();
    let all_listed = analysis.omitted.objects == 0;
    let mut placements = Vec::new();
    for row in Flat::new(trace.batches::<ObjectRow>()?) {
        let row = row?;
        let at = listed.get(&row.object).copied();
        if at.is_none() && all_listed {
            continue;
        }
        placements.push(Placement {
            object: at
                .filter(|&i| i < TABLE_ROWS)
                .and_then(|i| u32::try_from(i).ok()),
            weight: at.map_or(0, |i| analysis.objects[i].usage.page_touches),
            layer: Layer::from_number(row.layer),
            name: row.name,
            kind: row.kind,
            pid: row.pid,
            address: row.address,
            bytes: row.bytes,
            born: since(row.born_ns),
            died: row.died_ns.map(&since),
        });
    }
    Ok(placements)
}

/// The table: the first objects of the analysis, with their call stacks.
fn table(
    trace: &Trace,
    analysis: &Analysis,
    threads: &Threads,
    since: impl Fn(Time) -> Time,
) -> Result<Vec<Object>, TraceError> {
    let shown = &analysis.objects[..analysis.objects.len().min(TABLE_ROWS)];
    let mut stacks: HashMap<ObjectId, Option<varve_model::SiteId>> =
        shown.iter().map(|o| (o.object, None)).collect();
    for row in Flat::new(trace.batches::<ObjectRow>()?) {
        let row = row?;
        if let Some(site) = stacks.get_mut(&row.object) {
            *site = row.site;
        }
    }
    let sites: HashMap<_, SiteRow> = trace
        .rows::<SiteRow>()?
        .into_iter()
        .map(|s| (s.site, s))
        .collect();
    let stack = |o: &ObjectUse| {
        let site = stacks.get(&o.object).copied().flatten();
        site.and_then(|s| sites.get(&s))
            .map(frames)
            .unwrap_or_default()
    };
    Ok(shown
        .iter()
        .map(|o| object(o, stack(o), threads, &since))
        .collect())
}

fn object(
    o: &ObjectUse,
    stack: Vec<Frame>,
    threads: &Threads,
    since: impl Fn(Time) -> Time,
) -> Object {
    let pages = PageRange::of_bytes(o.address, o.bytes).count;
    let reuse = o.usage.reuse;
    let shares = o.threads.iter();
    let first_touches: Vec<(u16, Pages)> = shares
        .filter_map(|s| Some((*threads.index.get(&(o.pid, s.tid))?, s.pages)))
        .collect();
    let born = since(o.born_ns);
    Object {
        name: o.name.clone(),
        kind: o.kind,
        site: o.site.clone(),
        stack,
        pid: o.pid,
        address: o.address,
        bytes: o.bytes,
        pages,
        touched_pages: o.usage.touched_pages,
        page_touches: o.usage.page_touches,
        written_pages: o.usage.written_pages,
        born_ns: (born.0 > 0).then_some(born),
        died_ns: o.died_ns.map(since),
        first_touch_thread: first_touches.first().map(|(t, _)| *t),
        first_touches,
        reuse: Some([
            Pages(pages.0.saturating_sub(reuse.pages().0)),
            reuse.once,
            reuse.twice,
            reuse.more,
        ]),
    }
}

fn omitted(analysis: &Analysis) -> Omitted {
    let mut omitted = Omitted {
        objects: analysis.omitted.objects,
        bytes: analysis.omitted.bytes,
        touched_pages: analysis.omitted.touched_pages,
        page_touches: analysis.omitted.page_touches,
    };
    for o in analysis.objects.iter().skip(TABLE_ROWS) {
        omitted.objects += 1;
        omitted.bytes.0 += o.bytes.0;
        omitted.touched_pages.0 += o.usage.touched_pages.0;
        omitted.page_touches += o.usage.page_touches;
    }
    omitted
}

fn findings(analysis: &Analysis) -> Vec<Finding> {
    let index: HashMap<ObjectId, u32> = analysis
        .objects
        .iter()
        .take(TABLE_ROWS)
        .map(|o| o.object)
        .zip(0..)
        .collect();
    let finding = |f: &varve_analyse::Finding| Finding {
        id: f.id.word().to_owned(),
        title: f.title.clone(),
        evidence: f.evidence.clone(),
        advice: f.advice.clone(),
        objects: f
            .objects
            .iter()
            .filter_map(|id| index.get(id).copied())
            .collect(),
    };
    analysis.findings.iter().map(finding).collect()
}

fn frames(site: &SiteRow) -> Vec<Frame> {
    let frame = |f: &varve_trace::tables::Frame| Frame {
        function: f.function.clone(),
        file: f.file.clone(),
        line: f.line,
        module: f.module.clone(),
        address: f.address,
    };
    site.frames.iter().map(frame).collect()
}

fn summary(analysis: &Analysis) -> TraceSummary {
    let trace = &analysis.trace;
    let machine = &trace.machine;
    let losses = trace.losses.iter().map(|(kind, &count)| Loss {
        kind: kind.clone(),
        count,
        meaning: None,
    });
    TraceSummary {
        command: trace.command.join(" "),
        machine: format!(
            "{}, {} CPUs, {} GiB",
            machine.cpu,
            machine.cpus,
            machine.memory_bytes.0.div_ceil(1 << 30)
        ),
        kernel: Some(format!("Linux {} {}", machine.kernel, machine.architecture)),
        started: (trace.start_unix_ns > 0).then(|| format::utc(trace.start_unix_ns)),
        duration_ns: trace.duration_ns,
        interval_ns: trace.interval_ns.unwrap_or(trace.median_interval_ns),
        interval_auto: trace.interval_ns.is_none(),
        intervals: u32::try_from(trace.intervals).unwrap_or(u32::MAX),
        backend: trace.backend.clone(),
        complete: trace.complete,
        statement: trace.statement.clone(),
        losses: losses.collect(),
        processes: u32::try_from(analysis.processes.len()).unwrap_or(u32::MAX),
        written_known: analysis.writes != Writes::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_with_two_sources_counts_once() {
        let mut runs = [
            (Pid(1), 10, 20),
            (Pid(1), 15, 16),
            (Pid(1), 20, 22),
            (Pid(2), 10, 11),
        ];
        let mut got = Vec::new();
        let total = merge(&mut runs, |pid, run| {
            got.push((pid.0, run.first.0, run.count.0))
        });
        assert_eq!(total, Pages(13));
        assert_eq!(got, [(1, 10, 12), (2, 10, 1)]);
    }
}
