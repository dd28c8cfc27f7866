//! From what the fold found to the [`Analysis`].

mod groups;
mod objects;
mod tables;

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use varve_model::{Bytes, Capability, Duration, Pages, Pid, Tid, Time, TouchSource};
use varve_trace::tables::{IntervalRow, ProcessRow, SampleRow};
use varve_trace::{IntervalChoice, State, Trace, TraceError};

use crate::analysis::*;
use crate::cut::chosen_names;
use crate::fold::{Fold, Folded, User};
use crate::memory::{Memory, Objects};
use crate::sections::phases::Phases;
use crate::sections::sharing::Sharers;
use crate::{Known, Together};

use crate::sections::unknown::{NOT_SAID, heap_left_out, unknown, unsaid, why_lacks};
use crate::sections::unknown_files::unknown_files;
use crate::sections::{counts, processes, samples};
use crate::stream::{self, Pass};
use crate::sweep::Moment;
use crate::{AnalyseOptions, findings, invariants};

pub use tables::Recorded;
pub(crate) use tables::Tables;

pub(crate) fn analyse(
    trace: &Trace,
    options: &AnalyseOptions,
    progress: &mut dyn FnMut(f64),
) -> Result<Analysis, TraceError> {
    let (mut memory, mut all) = Memory::read_within(trace, options.room)?;
    let tables = Tables::read(trace, std::mem::take(&mut all.rows))?;
    let own = |i: usize| tables.is_own(i);
    let (start, end) = (tables.start(&trace.manifest), tables.end(&trace.manifest));
    let tail_start = Time(start.0 + (end - start).0 / 4 * 3);
    let tail = tables
        .intervals
        .partition_point(|i| i.start_ns < tail_start);
    let mut fold = Fold::new(&all, own, tables.sites(), end, options.room);
    let mut sharing = Sharers::new(trace, &tables, start, end)?;
    let mut phases = Phases::read(trace, &tables.intervals, end)?;
    let homes = tables.homes(&all);
    let pass = stream::run(
        trace,
        &tables.intervals,
        tail,
        &mut fold,
        (&mut memory, &homes),
        (&mut sharing, &mut phases),
        progress,
    )?;
    let folded = fold.finish();
    let whole = Whole {
        trace,
        tables: &tables,
        all: &all,
        fold: &fold,
        folded: &folded,
        pass: &pass,
        shares: shares(&fold),
        users: users(&folded),
    };
    let tail_start = tables.intervals.get(tail).map_or(end, |i| i.start_ns);
    let mut analysis = whole.analysis(tail_start);
    let is_whole = analysis.trace.has_all_pages();
    analysis.phases = phases.finish(|pages| whole.made_of(Capability::Touches, is_whole, pages));
    let chosen = all.chosen(trace);
    let chosen = chosen.map(|chosen| chosen_names(&tables.objects, &chosen));
    let is_chosen = |name: &str, kind| chosen.as_ref().is_none_or(|c| c.contains(&(name, kind)));
    whole.list(&mut analysis, options.max_objects, is_chosen);
    let (counts, exact) = counts::read(trace, &tables, (&all, &mut memory), own, |row| {
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
    let at_home = |row: &mut SampleRow| {
        let Some(object) = row.object.and_then(|o| all.position(o)) else {
            return;
        };
        row.object = Some(tables.objects[object as usize].object);
        if let Some(address) = row.address
            && all.is_shared(object)
        {
            let now = Moment {
                position: 0,
                from: row.time_ns,
                to: row.time_ns,
            };
            let place = memory.place(row.pid, address, now);
            row.address = Some(homes.home(object, address, place));
        }
    };
    analysis.samples = samples::read(trace, &tables, own, at_home, |row| {
        sharing.samples.iter_mut().for_each(|s| s.sample(row));
    })?;
    analysis.sharing = sharing.finish(&whole.shares, analysis.samples.as_ref());
    if let Some(sharing) = &mut analysis.sharing {
        sharing.objects.retain(|o| is_chosen(&o.name, o.kind));
    }
    analysis.unknown.extend(unsaid(&analysis));
    analysis.unknown.extend(heap_left_out(trace, &analysis));
    analysis.findings = findings::find(&analysis, &tables, options.for_numa);
    analysis.contradictions = invariants::broken(&analysis);
    Ok(analysis)
}

/// Pages first touched, by object: thread and pages, most first.
fn shares(fold: &Fold<'_>) -> HashMap<u32, Vec<ThreadShare>> {
    let mut shares: HashMap<u32, Vec<ThreadShare>> = HashMap::new();
    for (&(object, thread), &pages) in &fold.by_thread {
        let thread = &fold.threads[thread as usize];
        shares.entry(object).or_default().push(ThreadShare {
            pid: Pid(thread.pid),
            tid: Tid(thread.tid),
            pages: Pages(pages),
        });
    }
    for list in shares.values_mut() {
        list.sort_by_key(|share| (Reverse(share.pages), share.tid));
    }
    shares
}

/// The processes that use memory which several may map, by object; most pages first.
fn users(folded: &Folded) -> HashMap<u32, Vec<(u32, User)>> {
    let mut users: HashMap<u32, Vec<(u32, User)>> = HashMap::new();
    for (&(object, process), &user) in &folded.users {
        users.entry(object).or_default().push((process, user));
    }
    for list in users.values_mut() {
        list.sort_by_key(|(process, user)| (Reverse(user.touched), *process));
    }
    users
}

struct Whole<'a> {
    trace: &'a Trace,
    tables: &'a Tables,
    all: &'a Objects,
    fold: &'a Fold<'a>,
    folded: &'a Folded,
    pass: &'a Pass,
    shares: HashMap<u32, Vec<ThreadShare>>,
    users: HashMap<u32, Vec<(u32, User)>>,
}

impl Whole<'_> {
    fn analysis(&self, tail_start: Time) -> Analysis {
        let (manifest, tables, pass) = (&self.trace.manifest, self.tables, self.pass);
        let (folded, reuse) = (self.folded, self.folded.reuse);
        let sum: u64 = pass.working_set.iter().map(|w| w.0).sum();
        let own = self.fold.objects.iter().filter(|s| s.own);
        let nobody = self.fold.nobody();
        let intervals = tables.intervals.iter();
        let of_intervals = Recorded::of(&tables.intervals);
        let of_processes = folded.processes.values();
        let trace = self.facts();
        let (is_whole, recorded) = (trace.has_all_pages(), trace.recorded_ns());
        let began = recorded_programs(&tables.processes, trace.start_ns);
        let of_touches = |pages: Pages| self.made_of(Capability::Touches, is_whole, pages);
        let count = |touches: u64| self.made_of(Capability::Touches, is_whole, touches);
        Analysis {
            exact: None,
            sharing: None,
            trace,
            overhead: self.known(Capability::Overhead, || Overhead {
                held_ns: of_intervals.held,
                held_of_ns: of_intervals.held_of,
                stood_ns: tables.between_intervals(),
                longest_hold_ns: of_intervals.longest_hold,
                longest_hold_work: of_intervals.longest_hold_work,
                max_hold_ns: manifest.options.max_hold_ns,
                long_hold_intervals: intervals
                    .clone()
                    .filter(|i| {
                        let most = manifest.options.max_hold_ns;
                        most.is_some_and(|most| i.longest_hold_ns > most)
                    })
                    .count() as u64,
                // Backends that count report it of the whole run.
                recorder_cpu_ns: Duration(
                    intervals
                        .clone()
                        .map(|i| i.recorder_cpu_ns.0)
                        .fold(0, u64::saturating_add),
                )
                .max(match self.trace.selection() {
                    Some(_) => Duration(0),
                    None => manifest.overhead.recorder_cpu_ns,
                }),
                recorder_peak_bytes: manifest.overhead.recorder_peak_bytes,
                slowdown: match self.trace.selection() {
                    Some(_) => None,
                    None => Slowdown::of(manifest, recorded, began),
                },
            }),
            footprint: Footprint {
                touched_pages: of_touches(reuse.pages()),
                touched_pages_per_process: of_touches(Pages(of_processes.map(|p| p.touched).sum())),
                peak_resident_pages: self
                    .resident(intervals.clone().map(|i| i.resident_pages).max()),
                peak_process_bytes: self.peak(self.programs()),
                peak_working_set_pages: of_touches(Pages(
                    pass.working_set.iter().map(|w| w.0).max().unwrap_or(0),
                )),
                mean_working_set_pages: of_touches(Pages(
                    sum / (pass.working_set.len() as u64).max(1),
                )),
                page_touches: count(pass.page_touches),
                page_touches_per_process: count(pass.by_process.values().sum()),
                huge_page_touches: count(pass.huge_touches),
                possibly_others_pages: of_touches(Pages(self.fold.possibly.pages())),
                possibly_others_page_touches: count(pass.possibly),
                faults: self.made_of(Capability::Faults, is_whole, pass.faults),
            },
            reuse: self.made_of(Capability::Touches, is_whole, reuse),
            working_set: self.made_of(
                Capability::Touches,
                is_whole,
                intervals
                    .zip(&pass.working_set)
                    .map(|(row, &(pages, sum))| WorkingSet {
                        start_ns: row.start_ns,
                        end_ns: row.end_ns,
                        pages: Pages(pages),
                        pages_per_process: Pages(sum),
                        resident_pages: self.resident_at_end(row),
                    })
                    .collect(),
            ),
            sources: self.made_of(
                Capability::Touches,
                is_whole,
                TouchSource::ALL
                    .iter()
                    .zip(pass.sources)
                    .filter(|(_, (touches, _))| *touches > 0)
                    .map(|(&source, (page_touches, peak))| SourceUse {
                        source,
                        page_touches,
                        peak_pages: Pages(peak),
                    })
                    .collect(),
            ),
            writes: self.made_of(Capability::Touches, is_whole, pass.writes),
            processes: self.processes(),
            object_sources: object_sources(&self.tables.processes),
            threads: self.made_of(Capability::Faults, is_whole, self.threads()),
            objects: Vec::new(),
            omitted: Omitted::default(),
            groups: Vec::new(),
            phases: Vec::new(),
            unowned: self.made_of(
                Capability::Touches,
                is_whole,
                Remainder {
                    touched_pages: Pages(nobody.touched),
                    page_touches: nobody.touches,
                },
            ),
            shared: self.made_of(
                Capability::Touches,
                is_whole,
                Remainder {
                    touched_pages: Pages(folded.shared_pages),
                    page_touches: self.fold.shared_touches,
                },
            ),
            own_memory: self.made_of(
                Capability::Touches,
                is_whole,
                own.fold(Remainder::default(), |mut sum, stats| {
                    sum.touched_pages.0 += stats.touched;
                    sum.page_touches += stats.touches;
                    sum
                }),
            ),
            samples: None,
            counts: None,
            tail: self.made_of(
                Capability::Touches,
                is_whole,
                Tail {
                    start_ns: tail_start,
                    duration_ns: tables.end(manifest) - tail_start,
                    cold_pages: Pages(folded.cold_pages),
                },
            ),
            findings: Vec::new(),
            unknown: unknown(self.trace, tables, pass, self.fold.refused),
            unknown_files: unknown_files(&self.trace.manifest.modules),
            contradictions: Vec::new(),
        }
    }

    /// A figure that traces with a capability have.
    fn known<T>(&self, capability: Capability, make: impl FnOnce() -> T) -> Known<T> {
        match self.trace.manifest.has(capability) {
            true => Known::Exact(make()),
            false => Known::Absent(why_lacks(self.trace, capability)),
        }
    }

    /// A figure that is made of what traces with a capability have: a bound where not all of it is there.
    fn made_of<T>(&self, capability: Capability, is_whole: bool, figure: T) -> Known<T> {
        match self.trace.manifest.has(capability) {
            true => Known::of(figure, is_whole),
            false => Known::Absent(why_lacks(self.trace, capability)),
        }
    }

    /// Whether the trace has this.
    fn has(&self, capability: Capability) -> bool {
        self.trace.manifest.has(capability)
    }

    /// Figures that are made of what traces with a capability have.
    fn together<T>(&self, capability: Capability, figures: T) -> Together<T> {
        Together(self.has(capability).then_some(figures))
    }

    /// Resident pages, where any interval has some.
    fn resident(&self, pages: Option<u64>) -> Known<Pages> {
        let intervals = &self.tables.intervals;
        match intervals.iter().any(|i| i.resident_pages > 0) {
            true => self.known(Capability::Resident, || Pages(pages.unwrap_or(0))),
            false => Known::Absent(why_lacks(self.trace, Capability::Resident)),
        }
    }

    /// Those at the end of an interval.
    fn resident_at_end(&self, row: &IntervalRow) -> Known<Pages> {
        match self.resident(Some(row.resident_pages)) {
            Known::Absent(why) => Known::Absent(why),
            _ if row.processes == 0 => {
                Known::Absent("all processes had ended when the memory was looked at".to_owned())
            }
            known => known,
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
        let of_touches = |count: u64| self.known(Capability::Touches, || count);
        // Of no intervals the length is 0.
        let length = |length: Option<Duration>| {
            self.known(Capability::Touches, || length.unwrap_or_default())
        };
        TraceFacts {
            complete: manifest.completeness.complete
                && losses.is_empty()
                && manifest.state != State::Recording,
            incomplete: manifest.incomplete(&losses),
            statement: manifest.completeness.statement.clone(),
            state: manifest.state,
            losses,
            backend: manifest.backend,
            intervals: of_touches(tables.intervals.len() as u64),
            duration_ns: end - start,
            paused_ns: tables.paused(),
            offset_ns: tables.is_window.then(|| start - manifest.clock.start_ns),
            whole_ns: manifest.clock.end_ns - manifest.clock.start_ns,
            delay_ns: manifest.options.delay_ns,
            start_ns: start,
            start_unix_ns: match manifest.clock.start_unix_ns {
                0 => Known::Absent(NOT_SAID.to_owned()),
                start => Known::Exact(start),
            },
            interval_ns: match self.has(Capability::Touches) {
                true => manifest.options.interval.length(),
                false => None,
            },
            interval_asked: matches!(
                manifest.options.interval,
                IntervalChoice::Fixed(_) | IntervalChoice::Accesses(1..)
            ),
            interval_accesses: match manifest.options.interval {
                IntervalChoice::Accesses(accesses) => Some(accesses),
                _ => None,
            },
            median_interval_ns: length(lengths.get(lengths.len() / 2).copied()),
            shortest_interval_ns: length(Some(tables.shortest_interval())),
            longest_interval_ns: length(lengths.last().copied()),
            command: manifest.target.command.clone(),
            attached: manifest.target.attached,
            hold: manifest.features.hold.clone(),
            exit_code: manifest.target.exit_code,
            varve: manifest.varve.clone(),
            machine: self.known(Capability::Machine, || MachineFacts {
                kernel: machine.kernel.clone(),
                architecture: machine.architecture.clone(),
                cpu: machine.cpu.clone(),
                cpus: machine.cpus,
                memory_bytes: machine.memory_bytes,
                nodes: machine.nodes,
            }),
            traps: manifest.traps,
            capabilities: manifest.capabilities.clone(),
            selected: self.trace.selection().map(|s| s.description.clone()),
            clock_unit: manifest.clock.unit,
            touch_rows: of_touches(self.pass.rows),
            stray_rows: of_touches(self.pass.stray_rows.saturating_add(self.fold.refused)),
        }
    }

    fn processes(&self) -> Vec<ProcessUse> {
        let mut all: BTreeMap<u32, ProcessUse> = BTreeMap::new();
        let empty = |pid: u32| ProcessUse {
            pid: Pid(pid),
            command: String::new(),
            touched: self.together(Capability::Touches, ProcessTouched::default()),
            threads: 0,
            born_ns: None,
            died_ns: None,
            exit_code: None,
            peak_resident: Known::default(),
        };
        for row in self.programs() {
            let process = all.entry(row.pid.0).or_insert_with(|| empty(row.pid.0));
            // Who has ended does not run another program: this is another process to which the kernel gave the pid anew.
            let is_another = process.exit_code.is_some() && process.died_ns <= Some(row.born_ns);
            process.command = match is_another {
                true => format!("{}; then {}", process.command, row.command),
                false => row.command.clone(),
            };
            process.born_ns = Some(process.born_ns.map_or(row.born_ns, |b| b.min(row.born_ns)));
            process.died_ns = row.died_ns;
            process.exit_code = row.exit_code;
        }
        for (&pid, pages) in &self.folded.processes {
            let process = all.entry(pid).or_insert_with(|| empty(pid));
            let touched = ProcessTouched {
                touched_pages: Pages(pages.touched),
                shared_pages: Pages(pages.shared),
                page_touches: self.pass.by_process.get(&pid).copied().unwrap_or(0),
            };
            process.touched = self.together(Capability::Touches, touched);
        }
        let threads = self.tables.threads.iter();
        for row in threads.filter(|row| self.is_shown(row.born_ns, row.died_ns)) {
            if let Some(process) = all.get_mut(&row.pid.0) {
                process.threads += 1;
            }
        }
        let mut programs: HashMap<Pid, Vec<&ProcessRow>> = HashMap::new();
        for row in self.programs() {
            programs.entry(row.pid).or_default().push(row);
        }
        for process in all.values_mut() {
            let programs = programs.get(&process.pid).into_iter().flatten();
            process.peak_resident = self.peak(programs.copied());
        }
        all.into_values().collect()
    }

    /// The largest peak of resident memory of these programs, as the kernel counts it: of their whole lives.
    fn peak<'r>(&self, rows: impl Iterator<Item = &'r ProcessRow>) -> Known<Bytes> {
        match self.trace.selection() {
            Some(_) => Known::Absent(
                "the kernel counts it from the beginning of a program to its end, and this is a part of the recording".to_owned(),
            ),
            // What has a delay before it leaves the beginning out; without one a program may begin before the first interval does.
            None if self.trace.manifest.options.delay_ns > Duration(0) => {
                processes::peak(rows, self.tables.start(&self.trace.manifest))
            }
            None => processes::peak(rows, Time(0)),
        }
    }

    /// Whether what lived so long did so in the part of the trace that is shown.
    fn is_shown(&self, born: Time, died: Option<Time>) -> bool {
        let (tables, manifest) = (self.tables, &self.trace.manifest);
        let shown = (tables.start(manifest), tables.end(manifest));
        died.is_none_or(|died| died >= shown.0) && born <= shown.1
    }

    /// The programs that ran in it.
    fn programs(&self) -> impl Iterator<Item = &ProcessRow> {
        let all = self.tables.processes.iter();
        all.filter(|row| self.is_shown(row.born_ns, row.died_ns))
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
}

/// Counts who reported the objects of which programs.
fn object_sources(rows: &[ProcessRow]) -> Vec<ObjectSource> {
    let mut sources: Vec<ObjectSource> = Vec::new();
    for row in rows {
        let Some(from) = &row.objects else { continue };
        let same = |s: &&mut ObjectSource| s.from == *from && s.why == row.objects_why;
        if let Some(known) = sources.iter_mut().find(same) {
            known.programs += 1;
        } else {
            sources.push(ObjectSource {
                from: from.clone(),
                why: row.objects_why.clone(),
                programs: 1,
                example: row.exe.rsplit('/').next().unwrap_or_default().to_owned(),
            });
        }
    }
    sources.sort_by_key(|s| std::cmp::Reverse(s.programs));
    sources
}
