//! From an analysis and its map to what the page shows.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use varve_analyse::{
    Analysis, CountUse, Group, ObjectUse, PhaseUse, SampleUse, SharingUse, Writes, format,
};
use varve_model::{
    Backend, Capability, ObjectId, ObjectKind, PageRange, Pages, Pid, SiteId, Tid, Time,
};
use varve_trace::tables::{ObjectRow, SiteRow};
use varve_trace::{Trace, TraceError};

use super::{
    AllocPage, Finding, Footprint, Frame, GroupRow, HtmlReport, Object, Overhead, PhaseBand, Stack,
    TraceSummary, View,
};
use crate::map::Map;
use crate::text::{command_line, lengths};

/// Groups of objects; what is beyond is counted.
const GROUPS: usize = 3000;
/// Objects, all together and of one group; what is beyond is known by its group.
const OBJECTS: usize = 3000;
const OF_GROUP: u32 = 100;
/// Ways to a site that are listed.
const STACKS: usize = 4;
/// Rows of the lists about samples and counts, call chains of the flame graph, and objects with lanes of threads.
const LIST_ROWS: usize = 200;
const CHAINS: usize = 3000;
const SHARED_ROWS: usize = 60;
/// Phases and events with a band above the map.
const PHASES: usize = 24;
const EVENTS: usize = 24;

/// Threads by process and id, and where each stands in the list of the page.
type Threads = HashMap<(Pid, Tid), u16>;

/// Files that a sentence about them lists.
const MAX_UNKNOWN_FILES: usize = 12;

/// Makes what the page shows of a trace, its analysis and its map.
///
/// # Errors
/// A table that cannot be read.
pub fn from_trace(trace: &Trace, analysis: &Analysis, map: Map) -> Result<HtmlReport, TraceError> {
    let f = &analysis.footprint;
    let listed = Listed::of(analysis);
    let (groups, objects) = tables(trace, analysis, &map, &listed)?;
    let files = analysis.unknown_files.iter();
    let mut unknown: Vec<String> = files.map(|of| of.sentence(MAX_UNKNOWN_FILES)).collect();
    unknown.extend(analysis.unknown.iter().cloned());
    let alloc = match analysis.trace.selected {
        None => AllocPage::from_trace(trace, analysis)?,
        // Its rows are sums of all, and have no objects.
        Some(_) => None,
    };
    if alloc.is_none() && trace.has_operations() {
        unknown.push("What the allocator did in the chosen part: its figures are of whole runs, which a report without filters shows.".into());
    }
    let (phases, omitted_phases) = phases(analysis, &map);
    Ok(HtmlReport {
        samples: analysis.samples.as_ref().map(shown_samples),
        counts: analysis.counts.as_ref().map(shown_counts),
        sharing: analysis.sharing.as_ref().map(shown_sharing),
        trace: summary(analysis, &map),
        overhead: Overhead {
            held_share: analysis
                .overhead
                .map(|o| o.held_ns.0 as f64 / o.held_of_ns.0.max(1) as f64),
            recorder_cpu_ns: analysis.overhead.map(|o| o.recorder_cpu_ns),
            slowdown: analysis.overhead.value().and_then(|o| o.slowdown),
        },
        footprint: Footprint {
            touched_pages: f.touched_pages.clone(),
            touched_pages_per_process: f.touched_pages_per_process.clone(),
            page_touches: f.page_touches.clone(),
            peak_working_set_pages: f.peak_working_set_pages.clone(),
            peak_resident_pages: f.peak_resident_pages.clone(),
            peak_process_bytes: f.peak_process_bytes.clone(),
            possibly_others_pages: f.possibly_others_pages.clone(),
            possibly_others_page_touches: f.possibly_others_page_touches.clone(),
        },
        alloc,
        opens: View::default(),
        unknown,
        phases,
        omitted_phases,
        processes: analysis.processes.clone(),
        findings: findings(analysis, &listed),
        groups,
        objects,
        omitted_groups: analysis.groups.len().saturating_sub(GROUPS) as u64,
        map,
    })
}

/// The phases that take longest, and the events that come first, in the order of the analysis; how many more there are in what the page shows.
fn phases(analysis: &Analysis, map: &Map) -> (Vec<PhaseBand>, u64) {
    let until = map.edges.last().map_or(0, |t| t.0);
    let band = |phase: &PhaseUse| PhaseBand {
        name: phase.name.clone(),
        is_event: phase.kind == "event",
        times: phase.times,
        open: phase.open,
        total_ns: phase.total_ns,
        touched_pages: phase.touched_pages.clone(),
        spans: phase
            .spans
            .iter()
            .filter(|span| span.end >= map.start)
            .map(|span| [span.start, span.end].map(|t| t.0.saturating_sub(map.start.0)))
            .filter(|[from, _]| *from <= until)
            .map(|span| span.map(|t| t.min(until) / 1000))
            .collect(),
    };
    let all = analysis.phases.iter().map(band).enumerate();
    let (mut events, mut phases): (Vec<_>, Vec<_>) = all
        .filter(|(_, band)| !band.spans.is_empty())
        .partition(|(_, band)| band.is_event);
    phases.sort_by_key(|(_, band)| Reverse(band.total_ns));
    let omitted = cut(&mut phases, PHASES) + cut(&mut events, EVENTS);
    phases.append(&mut events);
    phases.sort_by_key(|(at, _)| *at);
    (phases.into_iter().map(|(_, band)| band).collect(), omitted)
}

/// The samples, as much as a page can show.
fn shown_samples(all: &SampleUse) -> SampleUse {
    let mut shown = all.clone();
    let omitted = &mut shown.omitted;
    omitted.objects += cut(&mut shown.objects, LIST_ROWS);
    omitted.places += cut(&mut shown.places, LIST_ROWS);
    omitted.lines += cut(&mut shown.lines, LIST_ROWS);
    omitted.threads += cut(&mut shown.threads, LIST_ROWS);
    for event in &mut shown.events {
        event.omitted_places += cut(&mut event.places, LIST_ROWS);
    }
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

/// A group's name, kind and site.
type Key<'a> = (&'a str, ObjectKind, Option<&'a str>);

/// Which objects belong to which listed group.
struct Listed<'a> {
    groups: HashMap<Key<'a>, u32>,
}

impl<'a> Listed<'a> {
    fn of(analysis: &'a Analysis) -> Listed<'a> {
        let groups = analysis.groups.iter().take(GROUPS);
        let key = |g: &'a Group| (g.name.as_str(), g.kind, g.site.as_deref());
        Listed {
            groups: groups.map(key).zip(0..).collect(),
        }
    }

    fn group(&self, o: &ObjectUse) -> Option<u32> {
        let key = (o.name.as_str(), o.kind, o.site.as_deref());
        self.groups.get(&key).copied()
    }
}

/// The groups, and the hottest objects of each.
fn tables(
    trace: &Trace,
    analysis: &Analysis,
    map: &Map,
    listed: &Listed<'_>,
) -> Result<(Vec<GroupRow>, Vec<Object>), TraceError> {
    let threads: Threads = map
        .threads
        .iter()
        .map(|t| (t.pid, t.tid))
        .zip(0..)
        .collect();
    let mut members: HashMap<u32, u32> = HashMap::new();
    let mut shown: Vec<(u32, &ObjectUse)> = Vec::new();
    for object in &analysis.objects {
        let Some(group) = listed.group(object) else {
            continue;
        };
        let members = members.entry(group).or_default();
        *members += 1;
        if *members <= OF_GROUP {
            shown.push((group, object));
        }
        if shown.len() == OBJECTS {
            break;
        }
    }
    let stacks = stacks(trace, &shown)?;
    let groups = analysis.groups.iter().take(GROUPS).enumerate();
    let groups = groups.map(|(at, group)| GroupRow {
        lane: map.lane_of(at),
        stacks: stacks.get(&(at as u32)).cloned().unwrap_or_default(),
        group: group.clone(),
    });
    let objects = shown
        .iter()
        .map(|&(group, o)| object(group, o, first_touches(o, analysis, &threads), map));
    Ok((groups.collect(), objects.collect()))
}

/// On which ways the listed objects of each group were allocated.
fn stacks(
    trace: &Trace,
    shown: &[(u32, &ObjectUse)],
) -> Result<HashMap<u32, Vec<Stack>>, TraceError> {
    let group_of: HashMap<ObjectId, u32> = shown.iter().map(|(g, o)| (o.object, *g)).collect();
    let mut counts: HashMap<u32, BTreeMap<SiteId, u64>> = HashMap::new();
    // There may be millions of objects, of which few are shown.
    for batch in trace.batches::<ObjectRow>()? {
        for row in batch? {
            if let (Some(&group), Some(site)) = (group_of.get(&row.object), row.site) {
                *counts.entry(group).or_default().entry(site).or_default() += 1;
            }
        }
    }
    let rows = trace.rows::<SiteRow>()?.into_iter();
    let sites: HashMap<SiteId, SiteRow> = rows.map(|s| (s.site, s)).collect();
    let of = |counts: BTreeMap<SiteId, u64>| {
        let mut most: Vec<(SiteId, u64)> = counts.into_iter().collect();
        most.sort_by_key(|&(site, objects)| (Reverse(objects), site));
        let stack = |(site, objects): (SiteId, u64)| {
            let frames = frames(sites.get(&site)?);
            Some(Stack { objects, frames })
        };
        most.into_iter().take(STACKS).filter_map(stack).collect()
    };
    Ok(counts
        .into_iter()
        .map(|(g, counts)| (g, of(counts)))
        .collect())
}

/// Pages touched first, by thread: by page faults, or where every access was counted by these. Counts of objects of one name
/// are one, so of several nothing is said.
fn first_touches(o: &ObjectUse, analysis: &Analysis, threads: &Threads) -> Vec<(u16, Pages)> {
    let place = |tid| threads.get(&(o.pid, tid)).copied();
    if let Some(shares) = o.threads.as_ref().filter(|shares| !shares.is_empty()) {
        return shares
            .iter()
            .filter_map(|s| Some((*threads.get(&(s.pid, s.tid))?, s.pages)))
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

fn object(group: u32, o: &ObjectUse, first_touches: Vec<(u16, Pages)>, map: &Map) -> Object {
    let place = o.address.zip(o.bytes);
    let pages = place.map(|(address, bytes)| PageRange::of_bytes(address, bytes).count);
    let touched = o.usage.touched.get();
    let reuse = pages.zip(touched).map(|(pages, touched)| {
        let reuse = touched.reuse;
        let never = Pages(pages.0.saturating_sub(reuse.pages().0));
        [never, reuse.once, reuse.twice, reuse.more]
    });
    let since = |t: Time| Time((t - map.start).0);
    let seat = map.seats.get(&o.object);
    Object {
        group,
        pid: o.pid,
        processes: o
            .processes
            .iter()
            .map(|p| (p.pid, p.touched_pages, p.written_pages))
            .collect(),
        address: o.address,
        bytes: o.bytes,
        pages,
        touched_pages: touched.map(|t| t.touched_pages),
        page_touches: touched.map(|t| t.page_touches),
        possibly_others_page_touches: touched.map(|t| t.possibly_others_page_touches),
        written_pages: touched.and_then(|t| t.written_pages),
        born_ns: o.born_ns.map(since).filter(|born| born.0 > 0),
        died_ns: o.died_ns.map(since),
        first_touches,
        reuse,
        lane: seat.map(|s| s.lane),
        lane_page: seat.map_or(0, |s| s.lane_page),
    }
}

fn findings(analysis: &Analysis, listed: &Listed<'_>) -> Vec<Finding> {
    let about: HashMap<ObjectId, u32> = analysis
        .objects
        .iter()
        .filter_map(|o| Some((o.object, listed.group(o)?)))
        .collect();
    let finding = |f: &varve_analyse::Finding| {
        let mut groups: Vec<u32> = Vec::new();
        for group in f.objects.iter().filter_map(|id| about.get(id).copied()) {
            if !groups.contains(&group) {
                groups.push(group);
            }
        }
        Finding {
            id: f.id.as_str().to_owned(),
            title: f.title.clone(),
            evidence: f.evidence.clone(),
            advice: f.advice.clone(),
            is_note: varve_analyse::is_note(analysis, f.id),
            groups,
        }
    };
    let mut all: Vec<Finding> = analysis.findings.iter().map(finding).collect();
    all.sort_by_key(|f| f.is_note);
    all
}

fn frames(site: &SiteRow) -> Vec<Frame> {
    let frame = |f: &varve_trace::tables::Frame| Frame {
        function: f.function.clone(),
        file: f.file.clone(),
        line: f.line,
        module: f.module.clone(),
        offset: f.offset,
        address: f.address,
    };
    site.frames.iter().map(frame).collect()
}

fn summary(analysis: &Analysis, map: &Map) -> TraceSummary {
    let trace = &analysis.trace;
    TraceSummary {
        command: command_line(&trace.command),
        machine: trace.machine.map(|m| {
            format!(
                "{}, {}, {}",
                m.cpu,
                format::counted(u64::from(m.cpus), "CPU"),
                format::bytes(m.memory_bytes)
            )
        }),
        kernel: trace
            .machine
            .map(|m| format!("Linux {} {}", m.kernel, m.architecture)),
        started: trace.start_unix_ns.value().map(|start| format::utc(*start)),
        start_ns: trace.start_ns,
        duration_ns: trace.duration_ns,
        lengths: lengths(trace),
        selected: trace.selected.clone(),
        clock_unit: trace.clock_unit,
        intervals: u32::try_from(map.edges.len().saturating_sub(1)).unwrap_or(u32::MAX),
        backend: trace.backend.to_string(),
        imported_from: match trace.backend {
            Backend::Import(from) => Some(from.to_string()),
            _ => None,
        },
        is_emulated: trace.has(Capability::Emulated),
        complete: trace.complete,
        pages_complete: trace.has_all_pages(),
        statement: trace.statement.clone(),
        losses: trace.losses.clone(),
        written_known: analysis
            .writes
            .value()
            .is_some_and(|w| *w != Writes::Unknown),
    }
}
