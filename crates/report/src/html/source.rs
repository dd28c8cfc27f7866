//! From a trace to the report: one pass over its touches and faults.

use std::collections::HashMap;
use std::thread;

use varve_analyse::{
    Analysis, CountUse, Memory, Moment, ObjectUse, Objects, Run, SampleUse, SharingUse, Sweep,
    Writes, format, intervals, sweep,
};
use varve_model::{Capability, Interval, ObjectId, PageRange, Pages, Pid, Tid, Time};
use varve_objects::{Layer, Span};
use varve_trace::tables::{FaultRow, ObjectRow, SiteRow};
use varve_trace::{Trace, TraceError};

use super::crew::Crew;
use super::{
    Finding, Footprint, Frame, GridPass, HtmlReport, Loss, Object, Omitted, Overhead, Placement,
    Thread, TraceSummary,
};

/// Rows of the table of objects; what is beyond is counted.
const TABLE_ROWS: usize = 3000;
/// Rows of the lists about samples and counts, call chains of the flame graph, and objects with lanes of threads.
const LIST_ROWS: usize = 200;
const CHAINS: usize = 3000;
const SHARED_ROWS: usize = 60;

/// Reads a trace and its analysis into a report. `progress` hears the share of rows done, 0 to 1.
pub fn from_trace(
    trace: &Trace,
    analysis: &Analysis,
    mut progress: impl FnMut(f64),
) -> Result<HtmlReport, TraceError> {
    let intervals = intervals(trace)?;
    let start = intervals
        .first()
        .map_or(analysis.trace.start_ns, |i| i.start_ns);
    let since = |t: Time| Time((t - start).0);
    let since = &since;
    let threads = Threads::of(analysis);
    let (mut memory, all) = Memory::read(trace)?;
    let placements = placements(&all, analysis, since);
    let (spans, of) = parts(&all, &placements, since);
    let drawn: Vec<Placement> = placements.into_iter().map(|(_, p)| p).collect();
    let mut pass = GridPass::with_parts(&drawn, &spans, &of, intervals.len());
    let pages = thread::scope(|scope| {
        let mut drawing = Drawing {
            crew: Crew::start(scope, &pass, &spans),
            pass: &mut pass,
            start,
            threads: &threads,
            memory: &mut memory,
            now: Moment {
                position: 0,
                from: Time(0),
                to: Time(1),
            },
            distinct: Vec::new(),
            pages: vec![Pages(0); intervals.len()],
        };
        // An error ends the crew as well: nobody tells it anything any more.
        sweep(trace, &intervals, &mut drawing, &mut progress)?;
        drawing.crew.finish(drawing.pass);
        Ok::<_, TraceError>(drawing.pages)
    })?;
    let shown = analysis.working_set.iter().map(|w| w.pages);
    let working_set = shown.chain(pages.into_iter().skip(analysis.working_set.len()));
    let working_set = working_set.take(intervals.len()).collect();
    let mut map = pass.finish();
    map.unowned = analysis.unowned.page_touches;
    let resident: Vec<Pages> = intervals.iter().map(|i| Pages(i.resident_pages)).collect();
    let resident = resident.iter().any(|p| p.0 > 0).then_some(resident);
    let mut edges: Vec<Time> = intervals.iter().map(|i| since(i.start_ns)).collect();
    edges.push(intervals.last().map_or(Time(0), |i| since(i.end_ns)));
    let costs = analysis.trace.has(Capability::Overhead);
    let touches = analysis.trace.has(Capability::Touches);
    Ok(HtmlReport {
        samples: analysis.samples.as_ref().map(shown_samples),
        counts: analysis.counts.as_ref().map(shown_counts),
        sharing: analysis.sharing.as_ref().map(shown_sharing),
        trace: summary(analysis),
        overhead: Overhead {
            held_ns: costs.then_some(analysis.overhead.held_ns),
            recorder_cpu_ns: costs.then_some(analysis.overhead.recorder_cpu_ns),
        },
        footprint: Footprint {
            touched_pages: touches.then_some(analysis.footprint.touched_pages),
            touched_pages_per_process: touches
                .then_some(analysis.footprint.touched_pages_per_process),
            possibly_others_pages: analysis.footprint.possibly_others_pages,
            possibly_others_page_touches: analysis.footprint.possibly_others_page_touches,
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

/// The samples, as much as a page can show.
fn shown_samples(all: &SampleUse) -> SampleUse {
    let mut shown = all.clone();
    let omitted = &mut shown.omitted;
    omitted.objects += cut(&mut shown.objects, LIST_ROWS);
    omitted.places += cut(&mut shown.places, LIST_ROWS);
    omitted.lines += cut(&mut shown.lines, LIST_ROWS);
    omitted.threads += cut(&mut shown.threads, LIST_ROWS);
    omitted.chains += cut(&mut shown.flame, CHAINS);
    for object in &mut shown.objects {
        object.threads.truncate(LIST_ROWS);
    }
    shown
}

fn shown_counts(all: &CountUse) -> CountUse {
    let mut shown = all.clone();
    shown.objects.truncate(LIST_ROWS);
    shown.threads.truncate(LIST_ROWS);
    shown
}

/// The objects that lanes and tables have room for.
fn shown_sharing(all: &SharingUse) -> SharingUse {
    let mut shown = all.clone();
    shown.omitted_objects += cut(&mut shown.objects, SHARED_ROWS);
    shown.lines.truncate(SHARED_ROWS);
    shown.pages.truncate(SHARED_ROWS);
    shown
}

fn cut<T>(list: &mut Vec<T>, most: usize) -> u64 {
    let beyond = list.len().saturating_sub(most);
    list.truncate(most);
    beyond as u64
}

/// What the map hears of a sweep.
struct Drawing<'a, 'b> {
    crew: Crew,
    pass: &'a mut GridPass<'b>,
    start: Time,
    threads: &'a Threads,
    memory: &'a mut Memory,
    now: Moment,
    /// What was touched, each page of memory once.
    distinct: Vec<Run>,
    /// Touched in each interval.
    pages: Vec<Pages>,
}

impl Sweep for Drawing<'_, '_> {
    fn begin(&mut self, now: Moment) {
        self.now = now;
        let number = Interval(u32::try_from(now.position).unwrap_or(u32::MAX));
        let since = |t: Time| Time((t - self.start).0);
        let (start, end) = (since(now.from), since(now.to));
        let bin = self.pass.bin_of(number);
        self.pass.advance(start, end);
        self.crew.begin(bin, start, end, self.pass);
    }

    fn touched(&mut self, position: Option<usize>, runs: &[Run]) {
        self.memory.distinct(runs, self.now, &mut self.distinct);
        let runs = &self.distinct[..];
        self.crew.touch(runs);
        if let Some(position) = position {
            self.pages[position].0 += runs.iter().map(|r| r.end.0 - r.first.0).sum::<u64>();
        }
    }

    fn possibly(&mut self, _: Option<usize>, runs: &[Run]) {
        self.memory.distinct(runs, self.now, &mut self.distinct);
        self.crew.possibly(&self.distinct);
    }

    fn fault(&mut self, fault: &FaultRow) {
        if let Some(&thread) = self.threads.index.get(&(fault.pid, fault.tid)) {
            let (space, address) = self.memory.place(fault.pid, fault.address, self.now);
            self.pass.first_touch(space, address.page(), thread);
        }
    }
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
        for row in &analysis.threads {
            threads.add(row.pid, row.tid, &row.name);
        }
        // Those that were counted need not have had a page fault.
        let counted = analysis.sharing.iter().filter(|_| analysis.exact.is_some());
        for row in counted.flat_map(|s| &s.threads) {
            threads.add(row.pid, row.tid, &row.name);
        }
        threads
    }

    /// Adds a thread that is new. The last number says that a thread is not known; threads beyond count as that.
    fn add(&mut self, pid: Pid, tid: Tid, name: &str) {
        let next = self.list.len() as u16;
        if self.list.len() >= usize::from(u16::MAX) || self.index.contains_key(&(pid, tid)) {
            return;
        }
        self.index.insert((pid, tid), next);
        self.list.push(Thread {
            pid,
            tid,
            name: name.to_owned(),
        });
    }
}

/// Where all objects lived, with their positions. Those that the analysis sets apart, the recorder's own memory, have no
/// place.
fn placements(
    all: &Objects,
    analysis: &Analysis,
    since: impl Fn(Time) -> Time,
) -> Vec<(usize, Placement)> {
    let listed: HashMap<ObjectId, usize> =
        analysis.objects.iter().map(|o| o.object).zip(0..).collect();
    let all_listed = analysis.omitted.objects == 0;
    let mut placements = Vec::new();
    for (position, (row, place)) in all.rows.iter().zip(&all.places).enumerate() {
        let at = listed.get(&row.object).copied();
        if at.is_none() && all_listed {
            continue;
        }
        let users = at.map_or(0, |i| analysis.objects[i].processes.len());
        let placement = Placement {
            object: at
                .filter(|&i| i < TABLE_ROWS)
                .and_then(|i| u32::try_from(i).ok()),
            weight: at.map_or(0, |i| analysis.objects[i].usage.page_touches),
            layer: Layer::from_number(row.layer),
            name: match users {
                0 | 1 => row.name.clone(),
                users => format!("{}, {users} processes", row.name),
            },
            kind: row.kind,
            pid: row.pid,
            address: row.address,
            bytes: place.bytes,
            place: (place.pid, place.address),
            born: since(row.born_ns),
            died: row.died_ns.map(&since),
        };
        placements.push((position, placement));
    }
    placements
}

/// The parts of the objects that have places, in the space of each, and the placement of each part.
fn parts(
    all: &Objects,
    placements: &[(usize, Placement)],
    since: impl Fn(Time) -> Time,
) -> (Vec<Span>, Vec<u32>) {
    let mut place_of = vec![None; all.rows.len()];
    for (at, (position, _)) in (0..).zip(placements) {
        place_of[*position] = Some(at);
    }
    let (mut spans, mut of) = (Vec::new(), Vec::new());
    for (span, &object) in all.spans.iter().zip(&all.of_span) {
        let Some(at) = place_of[object as usize] else {
            continue;
        };
        // What lies in another space than the rest has no place in the lane.
        if span.pid != all.places[object as usize].pid {
            continue;
        }
        spans.push(Span {
            born: since(span.born),
            died: match span.died {
                Span::FOREVER => Span::FOREVER,
                died => since(died),
            },
            ..*span
        });
        of.push(at);
    }
    (spans, of)
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
    for row in trace.rows::<ObjectRow>()? {
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
        .map(|o| object(o, stack(o), first_touches(o, analysis, threads), &since))
        .collect())
}

/// Pages touched first, by thread: by page faults, or where every access was counted by these. Counts of objects of one name
/// are one, so of several nothing is said.
fn first_touches(o: &ObjectUse, analysis: &Analysis, threads: &Threads) -> Vec<(u16, Pages)> {
    let place = |tid| threads.index.get(&(o.pid, tid)).copied();
    if !o.threads.is_empty() {
        let shares = o.threads.iter();
        return shares
            .filter_map(|s| Some((place(s.tid)?, s.pages)))
            .collect();
    }
    let all = analysis.exact.iter().flat_map(|e| &e.objects);
    let mut same = all.filter(|e| (e.name.as_str(), e.kind) == (o.name.as_str(), o.kind));
    let Some(counted) = same.next().filter(|e| e.objects == 1) else {
        return Vec::new();
    };
    let own = counted.threads.iter().filter(|t| t.pid == o.pid);
    let mut first: Vec<(u16, Pages)> = own
        .filter(|t| t.first_pages.0 > 0)
        .filter_map(|t| Some((place(t.tid)?, t.first_pages)))
        .collect();
    // The thread of most pages is the one that is named, and of several the one that the counts name.
    first.sort_by_key(|(thread, pages)| {
        (
            std::cmp::Reverse(pages.0),
            Some(*thread) != counted.first_tid.and_then(place),
        )
    });
    first
}

fn object(
    o: &ObjectUse,
    stack: Vec<Frame>,
    first_touches: Vec<(u16, Pages)>,
    since: impl Fn(Time) -> Time,
) -> Object {
    let pages = PageRange::of_bytes(o.address, o.bytes).count;
    let reuse = o.usage.reuse;
    let born = since(o.born_ns);
    Object {
        name: o.name.clone(),
        kind: o.kind,
        site: o.site.clone(),
        stack,
        pid: o.pid,
        processes: o
            .processes
            .iter()
            .map(|p| (p.pid, p.touched_pages, p.written_pages))
            .collect(),
        address: o.address,
        bytes: o.bytes,
        pages,
        touched_pages: o.usage.touched_pages,
        page_touches: o.usage.page_touches,
        possibly_others_page_touches: o.usage.possibly_others_page_touches,
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
        page_touches: analysis.omitted.page_touches,
    };
    for o in analysis.objects.iter().skip(TABLE_ROWS) {
        omitted.objects += 1;
        omitted.bytes.0 += o.bytes.0;
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
        id: f.id.as_str().to_owned(),
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
    let is_known = trace.has(Capability::Machine);
    TraceSummary {
        command: trace.command.join(" "),
        machine: is_known.then(|| {
            format!(
                "{}, {}, {} GiB",
                machine.cpu,
                format::counted(u64::from(machine.cpus), "CPU"),
                machine.memory_bytes.0.div_ceil(1 << 30)
            )
        }),
        kernel: is_known.then(|| format!("Linux {} {}", machine.kernel, machine.architecture)),
        started: (trace.start_unix_ns > 0).then(|| format::utc(trace.start_unix_ns)),
        duration_ns: trace.duration_ns,
        interval_ns: trace.interval_ns.unwrap_or(trace.median_interval_ns),
        interval_auto: trace.interval_ns.is_none(),
        interval_accesses: trace.interval_accesses,
        clock_unit: trace.clock_unit,
        intervals: u32::try_from(trace.intervals).unwrap_or(u32::MAX),
        backend: trace.backend,
        complete: trace.complete,
        statement: trace.statement.clone(),
        losses: losses.collect(),
        processes: u32::try_from(analysis.processes.len()).unwrap_or(u32::MAX),
        written_known: analysis.writes != Writes::Unknown,
    }
}
