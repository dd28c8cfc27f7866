//! From a trace to its map: one pass over its touches and faults.

use std::collections::HashMap;
use std::thread;

use varve_analyse::{Analysis, Memory, Moment, Objects, Run, Sweep, intervals, sweep};
use varve_model::{Interval, ObjectId, ObjectKind, Pages, Pid, SiteId, Tid, Time};
use varve_objects::{Layer, Span};
use varve_trace::tables::{FaultRow, SiteRow};
use varve_trace::{Trace, TraceError};

use super::workers::Workers;
use super::{GridPass, Map, Placement, Seat, Site, Thread};

impl Map {
    /// Draws the map of a trace and its analysis. `progress` hears the share of rows done, 0 to 1.
    ///
    /// # Errors
    /// A table that cannot be read.
    pub fn of(
        trace: &Trace,
        analysis: &Analysis,
        mut progress: impl FnMut(f64),
    ) -> Result<Map, TraceError> {
        let intervals = intervals(trace)?;
        let start = intervals
            .first()
            .map_or(analysis.trace.start_ns, |i| i.start_ns);
        let since = |t: Time| Time((t - start).0);
        let since = &since;
        let threads = Threads::of(analysis);
        let (mut memory, all) = Memory::read(trace)?;
        let placements = placements(trace, &all, analysis, since)?;
        let (spans, of) = parts(&all, &placements, since);
        let drawn: Vec<Placement> = placements.iter().map(|(_, p)| p.clone()).collect();
        let sites = sites(analysis);
        let mut pass = GridPass::new(&drawn, &sites, (&spans, &of), intervals.len());
        let seats = seats(&pass, &placements, &all, analysis);
        let pages = thread::scope(|scope| {
            let mut drawing = Drawing {
                workers: Workers::start(scope, &pass, &spans),
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
            // An error ends the workers as well: nobody sends them anything any more.
            sweep(trace, &intervals, &mut drawing, &mut progress)?;
            drawing.workers.finish(drawing.pass);
            Ok::<_, TraceError>(drawing.pages)
        })?;
        let shown = analysis.working_set.items().iter().map(|w| w.pages);
        let working_set = shown.chain(pages.into_iter().skip(analysis.working_set.items().len()));
        let working_set = working_set.take(intervals.len()).collect();
        let mut grids = pass.finish();
        grids.unowned = analysis.unowned.or_zero().page_touches;
        // Where nobody was left at the end, what was there at the beginning.
        let mut before = Pages(0);
        let resident: Vec<Pages> = intervals
            .iter()
            .map(|i| {
                if i.processes > 0 {
                    before = Pages(i.resident_pages);
                }
                before
            })
            .collect();
        let mut edges: Vec<Time> = intervals.iter().map(|i| since(i.start_ns)).collect();
        edges.extend(intervals.last().map(|i| since(i.end_ns)));
        Ok(Map {
            start,
            grids,
            edges,
            working_set,
            resident: resident.iter().any(|p| p.0 > 0).then_some(resident),
            threads: threads.list,
            seats,
        })
    }
}

/// What the map hears of a sweep.
struct Drawing<'a, 'b> {
    workers: Workers,
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
        self.workers.begin(bin, start, end, self.pass);
    }

    fn touched(&mut self, position: Option<usize>, runs: &[Run]) {
        self.memory.distinct(runs, self.now, &mut self.distinct);
        let runs = &self.distinct[..];
        self.workers.touch(runs);
        if let Some(position) = position {
            self.pages[position].0 += runs.iter().map(|r| r.end.0 - r.first.0).sum::<u64>();
        }
    }

    fn possibly(&mut self, _: Option<usize>, runs: &[Run]) {
        self.memory.distinct(runs, self.now, &mut self.distinct);
        self.workers.possibly(&self.distinct);
    }

    fn fault(&mut self, fault: &FaultRow) {
        if let Some(&thread) = self.threads.index.get(&(fault.pid, fault.tid)) {
            let (space, address) = self.memory.place(fault.pid, fault.address, self.now);
            self.pass.first_touch(space, address.page(), thread);
        }
    }
}

/// The threads, and where each stands.
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
        for row in analysis.threads.items() {
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

/// The groups of the analysis, as the map needs them.
fn sites(analysis: &Analysis) -> Vec<Site> {
    let groups = analysis.groups.iter();
    let site = groups.map(|g| Site {
        name: g.name.clone(),
        kind: g.kind,
        objects: g.objects,
        touches: g.usage.touched.get().map(|t| t.page_touches),
        possibly: g
            .usage
            .touched
            .get()
            .map(|t| t.possibly_others_page_touches),
    });
    site.collect()
}

/// Where all objects of the groups lived, with their positions. Those that the analysis sets apart, the recorder's own memory,
/// have no group.
fn placements(
    trace: &Trace,
    all: &Objects,
    analysis: &Analysis,
    since: impl Fn(Time) -> Time,
) -> Result<Vec<(usize, Placement)>, TraceError> {
    let labels: HashMap<SiteId, String> = trace
        .rows::<SiteRow>()?
        .into_iter()
        .map(|row| (row.site, row.label))
        .collect();
    type Key<'a> = (&'a str, ObjectKind, Option<&'a str>);
    let groups = analysis.groups.iter();
    let groups: HashMap<Key<'_>, u32> = groups
        .map(|g| (g.name.as_str(), g.kind, g.site.as_deref()))
        .zip(0..)
        .collect();
    let mut placements = Vec::new();
    for (position, (row, place)) in all.rows.iter().zip(&all.places).enumerate() {
        let label = row.site.and_then(|s| labels.get(&s)).map(String::as_str);
        let Some(&site) = groups.get(&(row.name.as_str(), row.kind, label)) else {
            continue;
        };
        let placement = Placement {
            site,
            layer: Layer::from_number(row.layer),
            pid: row.pid,
            address: row.address,
            bytes: place.bytes,
            place: (place.pid, place.address),
            born: since(row.born_ns),
            died: row.died_ns.map(&since),
        };
        placements.push((position, placement));
    }
    Ok(placements)
}

/// Where the objects that the analysis lists stand.
fn seats(
    pass: &GridPass<'_>,
    placements: &[(usize, Placement)],
    all: &Objects,
    analysis: &Analysis,
) -> HashMap<ObjectId, Seat> {
    let listed = analysis.objects.iter();
    let mut at: HashMap<ObjectId, Option<Seat>> = listed.map(|o| (o.object, None)).collect();
    for (i, (position, _)) in placements.iter().enumerate() {
        if let Some(seat) = at.get_mut(&all.rows[*position].object) {
            *seat = pass
                .place(i)
                .map(|(lane, lane_page)| Seat { lane, lane_page });
        }
    }
    at.into_iter()
        .filter_map(|(object, seat)| Some((object, seat?)))
        .collect()
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
