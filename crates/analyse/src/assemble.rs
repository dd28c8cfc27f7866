//! From what the fold found to the [`Analysis`].

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use varve_attribute::Span;
use varve_model::{Bytes, Duration, ObjectKind, Pages, Pid, SiteId, Tid, Time, TouchSource};
use varve_trace::tables::{IntervalRow, LossRow, ObjectRow, ProcessRow, SiteRow, ThreadRow};
use varve_trace::{Absent, EXACT, IntervalChoice, Manifest, State, Trace, TraceError};

use crate::absent::{lacking, unsaid};
use crate::analysis::*;
use crate::fold::Fold;
use crate::sharing::Sharers;
use crate::stats::NEVER;
use crate::stream::{self, Pass};
use crate::sweep::intervals;
use crate::{AnalyseOptions, counts, findings, samples};

/// The names of the preload library's own memory begin so.
const OWN_MEMORY: &str = "varve agent";

/// The small tables of a trace.
pub(crate) struct Tables {
    pub(crate) intervals: Vec<IntervalRow>,
    pub(crate) objects: Vec<ObjectRow>,
    pub(crate) sites: HashMap<SiteId, String>,
    pub(crate) threads: Vec<ThreadRow>,
    processes: Vec<ProcessRow>,
    losses: Vec<LossRow>,
}

impl Tables {
    fn read(trace: &Trace) -> Result<Tables, TraceError> {
        let mut sites = HashMap::new();
        for batch in trace.batches::<SiteRow>()? {
            sites.extend(batch?.into_iter().map(|row| (row.site, row.label)));
        }
        Ok(Tables {
            intervals: intervals(trace)?,
            objects: trace.rows()?,
            sites,
            threads: trace.rows()?,
            processes: trace.rows()?,
            losses: trace.rows()?,
        })
    }

    /// Whether an object, by position, is the recorder's.
    pub(crate) fn is_own(&self, position: usize) -> bool {
        self.objects[position].name.starts_with(OWN_MEMORY)
    }

    fn start(&self, manifest: &Manifest) -> Time {
        self.intervals
            .first()
            .map_or(manifest.clock.start_ns, |i| i.start_ns)
    }

    fn end(&self, manifest: &Manifest) -> Time {
        self.intervals
            .last()
            .map_or(manifest.clock.end_ns, |i| i.end_ns)
    }
}

pub(crate) fn analyse(
    trace: &Trace,
    options: &AnalyseOptions,
    progress: &mut dyn FnMut(f64),
) -> Result<Analysis, TraceError> {
    let tables = Tables::read(trace)?;
    let spans: Vec<Span> = tables.objects.iter().map(Span::of).collect();
    let own = |i: usize| tables.is_own(i);
    let (start, end) = (tables.start(&trace.manifest), tables.end(&trace.manifest));
    let tail_start = Time(start.0 + (end - start).0 / 4 * 3);
    let tail = tables
        .intervals
        .partition_point(|i| i.start_ns < tail_start);
    let mut fold = Fold::new(&spans, own, end);
    let mut sharing = Sharers::new(trace, &tables, start, end)?;
    let pass = stream::run(
        trace,
        &tables.intervals,
        tail,
        &mut fold,
        &mut sharing,
        progress,
    )?;
    let (processes, shared_pages) = fold.finish();
    let whole = Whole {
        trace,
        tables: &tables,
        fold: &fold,
        pass: &pass,
        shares: shares(&fold),
    };
    let tail_start = tables.intervals.get(tail).map_or(end, |i| i.start_ns);
    let mut analysis = whole.analysis(processes, shared_pages, tail_start);
    whole.list(&mut analysis, options.most_objects);
    let (counts, exact) = counts::read(trace, &tables, &spans, own, |row| {
        sharing.counts.iter_mut().for_each(|s| s.count(row));
    })?;
    if let Some(exact) = &exact {
        let positions = tables.objects.iter().zip(0..);
        let positions: HashMap<_, u32> = positions.map(|(o, i)| (o.object, i)).collect();
        for object in &mut analysis.objects {
            let of = positions.get(&object.object);
            let of = of.and_then(|i| exact.by_object.get(i)).copied();
            let of = of.unwrap_or_default();
            (object.reads, object.writes) = (Some(of.reads), Some(of.writes));
        }
    }
    (analysis.counts, analysis.exact) = (counts, exact);
    analysis.samples = samples::read(trace, &tables, own, |row| {
        sharing.samples.iter_mut().for_each(|s| s.sample(row));
    })?;
    analysis.sharing = sharing.finish(&whole.shares, analysis.samples.as_ref());
    analysis.unknown.extend(unsaid(&analysis));
    analysis.findings = findings::find(&analysis, &tables);
    Ok(analysis)
}

/// Pages first touched, by object: thread and pages, most first.
fn shares(fold: &Fold<'_>) -> HashMap<u32, Vec<ThreadShare>> {
    let mut shares: HashMap<u32, Vec<ThreadShare>> = HashMap::new();
    for (&(object, thread), &pages) in &fold.by_thread {
        let tid = Tid(fold.threads[thread as usize].tid);
        shares.entry(object).or_default().push(ThreadShare {
            tid,
            pages: Pages(pages),
        });
    }
    for list in shares.values_mut() {
        list.sort_by_key(|share| (Reverse(share.pages), share.tid));
    }
    shares
}

struct Whole<'a> {
    trace: &'a Trace,
    tables: &'a Tables,
    fold: &'a Fold<'a>,
    pass: &'a Pass,
    shares: HashMap<u32, Vec<ThreadShare>>,
}

impl Whole<'_> {
    fn analysis(
        &self,
        processes: HashMap<u32, Reuse>,
        shared_pages: u64,
        tail_start: Time,
    ) -> Analysis {
        let (manifest, tables, pass) = (&self.trace.manifest, self.tables, self.pass);
        let mut reuse = Reuse::default();
        for process in processes.values() {
            add_reuse(&mut reuse, *process);
        }
        let sum: u64 = pass.working_set.iter().sum();
        let own = self.fold.objects.iter().filter(|s| s.own);
        let touches: u64 = pass.by_process.values().sum();
        let nobody = self.fold.nobody();
        let intervals = tables.intervals.iter();
        let cold = self
            .fold
            .objects
            .iter()
            .filter(|s| !s.own)
            .map(|s| s.cold)
            .sum();
        Analysis {
            exact: None,
            sharing: None,
            trace: self.facts(),
            overhead: Overhead {
                held_ns: Duration(
                    intervals
                        .clone()
                        .map(|i| i.held_ns.0)
                        .fold(0, u64::saturating_add),
                ),
                longest_hold_ns: intervals
                    .clone()
                    .map(|i| i.held_ns)
                    .max()
                    .unwrap_or_default(),
                // Backends that count tell it of the whole run.
                recorder_cpu_ns: Duration(
                    intervals
                        .clone()
                        .map(|i| i.recorder_cpu_ns.0)
                        .fold(0, u64::saturating_add),
                )
                .max(manifest.overhead.recorder_cpu_ns),
                recorder_peak_bytes: manifest.overhead.recorder_peak_bytes,
            },
            footprint: Footprint {
                touched_pages: reuse.pages(),
                peak_resident_pages: Pages(
                    intervals
                        .clone()
                        .map(|i| i.resident_pages)
                        .max()
                        .unwrap_or(0),
                ),
                peak_working_set_pages: Pages(pass.working_set.iter().copied().max().unwrap_or(0)),
                mean_working_set_pages: Pages(sum / (pass.working_set.len() as u64).max(1)),
                page_touches: touches,
                huge_page_touches: pass.huge_touches,
                faults: pass.faults,
            },
            reuse,
            working_set: intervals
                .zip(&pass.working_set)
                .map(|(row, &pages)| WorkingSet {
                    start_ns: row.start_ns,
                    end_ns: row.end_ns,
                    pages: Pages(pages),
                    resident_pages: Pages(row.resident_pages),
                })
                .collect(),
            sources: TouchSource::ALL
                .iter()
                .zip(pass.sources)
                .filter(|(_, (touches, _))| *touches > 0)
                .map(|(&source, (page_touches, peak))| SourceUse {
                    source,
                    page_touches,
                    peak_pages: Pages(peak),
                })
                .collect(),
            writes: pass.writes,
            processes: self.processes(&processes),
            threads: self.threads(),
            objects: Vec::new(),
            omitted: Omitted::default(),
            groups: Vec::new(),
            unowned: Remainder {
                touched_pages: Pages(nobody.touched),
                page_touches: nobody.touches,
            },
            shared: Remainder {
                touched_pages: Pages(shared_pages),
                page_touches: self.fold.shared_touches,
            },
            own_memory: own.fold(Remainder::default(), |mut sum, stats| {
                sum.touched_pages.0 += stats.touched;
                sum.page_touches += stats.touches;
                sum
            }),
            samples: None,
            counts: None,
            tail: Tail {
                start_ns: tail_start,
                duration_ns: tables.end(manifest) - tail_start,
                cold_pages: Pages(cold),
            },
            findings: Vec::new(),
            unknown: self.unknown(),
        }
    }

    fn facts(&self) -> TraceFacts {
        let (manifest, tables) = (&self.trace.manifest, self.tables);
        let mut losses: BTreeMap<String, u64> = BTreeMap::new();
        for row in &tables.losses {
            let sum = losses.entry(row.kind.clone()).or_default();
            *sum = sum.saturating_add(row.count);
        }
        // The two agree, but the one that was flushed last after a kill.
        for (kind, &count) in &manifest.losses {
            let sum = losses.entry(kind.clone()).or_default();
            *sum = count.max(*sum);
        }
        losses.retain(|_, count| *count > 0);
        let mut lengths: Vec<Duration> = tables
            .intervals
            .iter()
            .map(|i| i.end_ns - i.start_ns)
            .collect();
        lengths.sort_unstable();
        let (start, end) = (tables.start(manifest), tables.end(manifest));
        let machine = &manifest.machine;
        TraceFacts {
            complete: manifest.completeness.complete
                && losses.is_empty()
                && manifest.state != State::Recording,
            statement: manifest.completeness.statement.clone(),
            state: manifest.state,
            losses,
            backend: manifest.backend.clone(),
            intervals: tables.intervals.len() as u64,
            duration_ns: end - start,
            start_ns: start,
            start_unix_ns: manifest.clock.start_unix_ns,
            interval_ns: match manifest.options.interval {
                IntervalChoice::Fixed(length) => Some(length),
                _ => None,
            },
            interval_accesses: match manifest.options.interval {
                IntervalChoice::Accesses(accesses) => Some(accesses),
                _ => None,
            },
            median_interval_ns: lengths.get(lengths.len() / 2).copied().unwrap_or_default(),
            command: manifest.target.command.clone(),
            attached: manifest.target.attached,
            exit_code: manifest.target.exit_code,
            varve: manifest.varve.clone(),
            machine: MachineFacts {
                kernel: machine.kernel.clone(),
                architecture: machine.architecture.clone(),
                cpu: machine.cpu.clone(),
                cpus: machine.cpus,
                memory_bytes: machine.memory_bytes,
            },
            traps: manifest.traps,
            absent: manifest.absent.clone(),
            clock_unit: manifest.clock.unit,
            touch_rows: self.pass.rows,
            stray_rows: self.pass.stray_rows.saturating_add(self.fold.refused),
        }
    }

    fn processes(&self, touched: &HashMap<u32, Reuse>) -> Vec<ProcessUse> {
        let mut all: BTreeMap<u32, ProcessUse> = BTreeMap::new();
        let empty = |pid: u32| ProcessUse {
            pid: Pid(pid),
            command: String::new(),
            touched_pages: Pages(0),
            page_touches: 0,
            threads: 0,
            born_ns: None,
            died_ns: None,
            exit_code: None,
        };
        for row in &self.tables.processes {
            let process = all.entry(row.pid.0).or_insert_with(|| empty(row.pid.0));
            process.command.clone_from(&row.command);
            process.born_ns = Some(process.born_ns.map_or(row.born_ns, |b| b.min(row.born_ns)));
            process.died_ns = row.died_ns;
            process.exit_code = row.exit_code;
        }
        for (&pid, reuse) in touched {
            let process = all.entry(pid).or_insert_with(|| empty(pid));
            process.touched_pages = reuse.pages();
            process.page_touches = self.pass.by_process.get(&pid).copied().unwrap_or(0);
        }
        for row in &self.tables.threads {
            if let Some(process) = all.get_mut(&row.pid.0) {
                process.threads += 1;
            }
        }
        all.into_values().collect()
    }

    fn threads(&self) -> Vec<ThreadUse> {
        let names: HashMap<(u32, u32), &str> = self
            .tables
            .threads
            .iter()
            .map(|row| ((row.pid.0, row.tid.0), row.name.as_str()))
            .collect();
        let mut threads: Vec<ThreadUse> = self
            .fold
            .threads
            .iter()
            .map(|t| ThreadUse {
                pid: Pid(t.pid),
                tid: Tid(t.tid),
                name: names
                    .get(&(t.pid, t.tid))
                    .copied()
                    .unwrap_or_default()
                    .to_owned(),
                faults: t.faults,
                first_touches: Pages(t.first_touches),
            })
            .collect();
        threads.sort_by_key(|t| (Reverse(t.first_touches), Reverse(t.faults), t.pid, t.tid));
        threads
    }

    fn moment(&self, interval: u32) -> Option<Time> {
        (interval != NEVER)
            .then(|| {
                self.tables
                    .intervals
                    .get(interval as usize)
                    .map(|i| i.end_ns)
            })
            .flatten()
    }

    fn usage(&self, i: usize) -> Usage {
        let (stats, seen) = (&self.fold.objects[i], &self.fold.seen[i]);
        Usage {
            touched_pages: Pages(stats.touched),
            page_touches: stats.touches,
            intervals_touched: u64::from(seen.intervals),
            first_touch_ns: self.moment(seen.first),
            last_touch_ns: self.moment(seen.last),
            reuse: stats.reuse,
            written_pages: (self.pass.writes != Writes::Unknown).then_some(Pages(stats.written)),
            shared_page_touches: stats.shared,
            huge_page_touches: stats.huge,
            standing_page_touches: stats.standing,
            cold_pages: Pages(stats.cold),
            first_touches: Pages(stats.first_touches),
        }
    }

    /// Fills in the objects and their groups.
    fn list(&self, analysis: &mut Analysis, most: usize) {
        let mut order: Vec<usize> = (0..self.tables.objects.len())
            .filter(|&i| !self.fold.objects[i].own)
            .collect();
        let stats = |i: usize| &self.fold.objects[i];
        let rows = &self.tables.objects;
        order.sort_by_key(|&i| {
            (
                Reverse(stats(i).touches),
                Reverse(rows[i].bytes),
                rows[i].object,
            )
        });
        analysis.groups = self.groups(&order);
        for &i in order.iter().skip(most) {
            analysis.omitted.objects += 1;
            analysis.omitted.bytes.0 = analysis.omitted.bytes.0.saturating_add(rows[i].bytes.0);
            analysis.omitted.touched_pages.0 += stats(i).touched;
            analysis.omitted.page_touches += stats(i).touches;
        }
        order.truncate(most);
        analysis.objects = order.into_iter().map(|i| self.object(i)).collect();
    }

    fn object(&self, i: usize) -> ObjectUse {
        let (row, stats) = (&self.tables.objects[i], &self.fold.objects[i]);
        let first = self.fold.threads.get(stats.first_thread as usize);
        let position = u32::try_from(i).unwrap_or(u32::MAX);
        ObjectUse {
            object: row.object,
            name: row.name.clone(),
            kind: row.kind,
            site: self.site(row).map(str::to_owned),
            pid: row.pid,
            address: row.address,
            bytes: row.bytes,
            pool: row.pool,
            born_ns: row.born_ns,
            died_ns: row.died_ns,
            born_tid: row.tid,
            usage: self.usage(i),
            reads: None,
            writes: None,
            first_touch_tid: first.map(|t| Tid(t.tid)),
            threads: self.shares.get(&position).cloned().unwrap_or_default(),
        }
    }

    fn site(&self, row: &ObjectRow) -> Option<&str> {
        self.tables.sites.get(&row.site?).map(String::as_str)
    }

    fn groups(&self, order: &[usize]) -> Vec<Group> {
        let rows = &self.tables.objects;
        let mut members: HashMap<(&str, ObjectKind, Option<SiteId>), Vec<usize>> = HashMap::new();
        for &i in order {
            let key = (rows[i].name.as_str(), rows[i].kind, rows[i].site);
            members.entry(key).or_default().push(i);
        }
        let mut groups: Vec<Group> = members.into_values().map(|m| self.group(&m)).collect();
        groups.sort_by(|a, b| {
            let key = |g: &Group| (Reverse(g.usage.page_touches), Reverse(g.bytes));
            key(a)
                .cmp(&key(b))
                .then_with(|| a.name.cmp(&b.name))
                .then_with(|| a.site.cmp(&b.site))
        });
        groups
    }

    fn group(&self, members: &[usize]) -> Group {
        let rows = &self.tables.objects;
        let first = &rows[members[0]];
        let mut usage = Usage::default();
        let mut untouched = 0;
        let mut lives: Vec<Duration> = Vec::new();
        let mut changes: Vec<(Time, bool, u64)> = Vec::new();
        let mut bytes = 0_u64;
        for &i in members {
            let (row, stats) = (&rows[i], &self.fold.objects[i]);
            add_usage(&mut usage, self.usage(i));
            untouched += u64::from(stats.touched == 0);
            bytes = bytes.saturating_add(row.bytes.0);
            changes.push((row.born_ns, true, row.bytes.0));
            if let Some(died) = row.died_ns {
                lives.push(died - row.born_ns);
                changes.push((died.max(row.born_ns), false, row.bytes.0));
            }
        }
        // Deaths come before births of the same moment.
        changes.sort_unstable();
        let (mut now, mut peak) = (0_u64, 0_u64);
        for (_, born, bytes) in changes {
            now = if born {
                now.saturating_add(bytes)
            } else {
                now.saturating_sub(bytes)
            };
            peak = peak.max(now);
        }
        lives.sort_unstable();
        Group {
            name: first.name.clone(),
            kind: first.kind,
            site: self.site(first).map(str::to_owned),
            objects: members.len() as u64,
            bytes: Bytes(bytes),
            peak_bytes: Bytes(peak),
            died: lives.len() as u64,
            median_life_ns: lives.get(lives.len() / 2).copied(),
            untouched_objects: untouched,
            usage,
        }
    }

    fn unknown(&self) -> Vec<String> {
        let (manifest, pass) = (&self.trace.manifest, self.pass);
        let mut unknown = Vec::new();
        match pass.writes {
            Writes::Unknown if pass.rows > 0 && manifest.absent.is_empty() => unknown.push(
                "Whether a touch was a write: the kernel does not tell, so it is left open.".to_owned(),
            ),
            Writes::Partly => unknown.push(
                "Whether a touch was a write is known for some touches only: written pages are at least so many.".to_owned(),
            ),
            _ => (),
        }
        let absent = &manifest.absent;
        unknown.extend(absent.iter().map(|a| lacking(*a).to_owned()));
        // Counts say which thread was first.
        let told = manifest.backend == EXACT || absent.contains(&Absent::Faults);
        if pass.faults == 0 && pass.rows > 0 && !told {
            unknown.push(
                "Which thread touched a page first: the trace has no page faults.".to_owned(),
            );
        } else if manifest.target.attached {
            unknown.push(
                "Which thread first touched the pages that were there before the recording began."
                    .to_owned(),
            );
        }
        if self.tables.objects.is_empty() && pass.rows > 0 {
            unknown.push("Whose the pages are: the trace has no objects.".to_owned());
        } else if manifest.features.objects.is_none() && pass.rows > 0 && absent.is_empty() {
            unknown
                .push("Objects within the heap: the recording had no source for them.".to_owned());
        }
        let stray = pass.stray_rows.saturating_add(self.fold.refused);
        if stray > 0 {
            unknown.push(format!(
                "{} of touches have no place in the order of the intervals; their pages count, but in no working set.",
                crate::format::counted(stray, "row")
            ));
        }
        let notes = manifest.modules.iter();
        unknown.extend(notes.map(|m| format!("{}: {}", m.path, m.note)));
        unknown.extend(manifest.notes.iter().cloned());
        unknown
    }
}

fn add_reuse(sum: &mut Reuse, more: Reuse) {
    sum.once.0 += more.once.0;
    sum.twice.0 += more.twice.0;
    sum.more.0 += more.more.0;
}

fn add_usage(sum: &mut Usage, more: Usage) {
    sum.touched_pages.0 += more.touched_pages.0;
    sum.page_touches += more.page_touches;
    sum.intervals_touched += more.intervals_touched;
    sum.first_touch_ns = match (sum.first_touch_ns, more.first_touch_ns) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    };
    sum.last_touch_ns = sum.last_touch_ns.max(more.last_touch_ns);
    add_reuse(&mut sum.reuse, more.reuse);
    if let Some(written) = more.written_pages {
        sum.written_pages.get_or_insert_default().0 += written.0;
    }
    sum.shared_page_touches += more.shared_page_touches;
    sum.huge_page_touches += more.huge_page_touches;
    sum.standing_page_touches += more.standing_page_touches;
    sum.cold_pages.0 += more.cold_pages.0;
    sum.first_touches.0 += more.first_touches.0;
}
