//! From counts, samples, trapped accesses or faults, one after the other, to [`SharingUse`].

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use varve_model::{Address, Bytes, ObjectId, ObjectKind, Page, Pages, Pid, Tid, Time};
use varve_trace::tables::{FaultRow, ObjectRow, SampleRow};

use super::blocks::{Access, Blocks};
use super::flow::{axis, phases, suffices};
use super::parts::{class_of, first_pages, own_share, range_of, ranges};
use super::{
    Axis, ENOUGH, FlowCell, ObjectPhase, ObjectSharing, Ranges, SharingPart, SharingSource,
    SharingThread, SharingUse, ThreadPhase, WeightUnit,
};
use crate::analysis::ThreadShare;
use crate::assemble::Tables;
use crate::sections::counts::{Counted, Gathered};

/// Objects that are listed.
const MAX_OBJECTS: usize = 100;
/// No event was in that object yet.
const UNSEEN: u32 = u32::MAX;
/// Objects below this size that have one name are one: pools of small objects, and what is allocated again and again.
const SMALL: Bytes = Bytes(64 << 10);

/// What all sources need.
#[derive(Clone, Copy)]
pub(crate) struct Setting<'a> {
    pub(crate) tables: &'a Tables,
    /// Whether the trace knows where objects lie.
    pub(crate) has_places: bool,
    /// The recording.
    pub(crate) start: Time,
    /// Likewise.
    pub(crate) end: Time,
}

/// One use of memory by a thread.
struct Event {
    pid: Pid,
    tid: Tid,
    object: Option<u32>,
    page: Option<Page>,
    time: Option<Time>,
    events: u64,
    weight: u64,
    /// The part of the weight that writes, and whether that is known.
    writes: u64,
    known: bool,
}

#[derive(Clone, Copy, Default)]
pub(super) struct Sums {
    pub(super) events: u64,
    pub(super) weight: u64,
    pub(super) writes: u64,
}

impl Sums {
    fn add(&mut self, e: &Event) {
        self.events += e.events;
        self.weight = self.weight.saturating_add(e.weight);
        self.writes = self.writes.saturating_add(e.writes);
    }
}

#[derive(Default)]
pub(super) struct ObjectSums {
    pub(super) all: Sums,
    /// Events that do not distinguish reads from writes.
    unknown: bool,
    threads: BTreeMap<u32, (Sums, Option<(Time, Time)>)>,
    /// By part and thread.
    pub(super) ranges: BTreeMap<(u32, u32), Sums>,
    /// By bin and thread.
    times: BTreeMap<(u32, u32), Sums>,
    pub(super) gathered: Gathered,
    /// The objects that it stands for, by position; more than one only of small ones of one name.
    members: BTreeSet<u32>,
}

/// Gathers events.
pub(crate) struct Builder<'a> {
    setting: Setting<'a>,
    source: SharingSource,
    unit: WeightUnit,
    axis: Option<Axis>,
    index: HashMap<ObjectId, u32>,
    threads: Vec<(Pid, Tid, Sums)>,
    thread_index: HashMap<(Pid, Tid), u32>,
    /// The thread of the event before: the next is often its own.
    last: Option<((Pid, Tid), u32)>,
    /// Objects, or small ones of one name; with the position of the first of them.
    objects: Vec<(u32, ObjectSums)>,
    /// The place of each object in `objects`; [`UNSEEN`] of those without events. One look-up for each event, of which there
    /// are millions.
    places: Vec<u32>,
    by_name: HashMap<(&'a str, ObjectKind, Pid), u32>,
    lines: Blocks,
    pages: Blocks,
    all: Sums,
    /// The last interval in which a page was trapped.
    trapped: HashMap<(Pid, Page), usize>,
}

impl<'a> Builder<'a> {
    /// `events` are expected; what `unit` says is what their weights count.
    pub(crate) fn new(
        setting: Setting<'a>,
        source: SharingSource,
        unit: WeightUnit,
        events: u64,
    ) -> Builder<'a> {
        let steps =
            (source == SharingSource::Counts).then_some(setting.tables.intervals.len() as u64);
        let objects = setting.tables.objects.iter().zip(0..);
        Builder {
            source,
            unit,
            axis: axis(setting.start, setting.end, events, steps),
            index: objects.map(|(o, i)| (o.object, i)).collect(),
            threads: Vec::new(),
            thread_index: HashMap::new(),
            last: None,
            objects: Vec::new(),
            places: vec![UNSEEN; setting.tables.objects.len()],
            by_name: HashMap::new(),
            lines: Blocks::lines(source != SharingSource::Traps),
            pages: Blocks::pages(source != SharingSource::Traps),
            all: Sums::default(),
            trapped: HashMap::new(),
            setting,
        }
    }

    /// Whether its events are the first accesses to pages in intervals.
    pub(crate) fn is_of_traps(&self) -> bool {
        self.source == SharingSource::Traps
    }

    /// A row of counts; a page counts in the object that has most of it.
    pub(crate) fn count(&mut self, counted: &Counted<'_>) {
        let row = counted.row;
        let accesses = row.reads.saturating_add(row.writes);
        let object = counted.objects.first().copied();
        let middle = |(start, end): (Time, Time)| Time(start.0 + (end - start).0 / 2);
        self.enter(&Event {
            pid: row.pid,
            tid: counted.tid,
            object,
            page: Some(row.page),
            time: counted.time.map(middle),
            events: accesses,
            weight: accesses,
            writes: row.writes,
            known: true,
        });
        let place = object.map(|o| self.place(o));
        if let Some((_, of)) = place.and_then(|p| self.objects.get_mut(p)) {
            of.gathered.add(row, counted.tid);
        }
    }

    /// A sample; those without an access or a thread say nothing.
    pub(crate) fn sample(&mut self, row: &SampleRow) {
        let Some(tid) = row.tid else { return };
        let object = row.object.and_then(|o| self.index.get(&o)).copied();
        if row.address.is_none() && object.is_none() {
            return;
        }
        let weight = match self.unit {
            WeightUnit::Nanoseconds => row.weight_ns.map_or(0, |w| w.0),
            _ => 1,
        };
        let thread = self.enter(&Event {
            pid: row.pid,
            tid,
            object,
            page: row.address.map(Address::page),
            time: Some(row.time_ns),
            events: 1,
            weight,
            writes: if row.write == Some(true) { weight } else { 0 },
            known: row.write.is_some(),
        });
        if let (Some(thread), Some(address)) = (thread, row.address) {
            self.block(
                row.pid, thread, object, address, row.bytes, row.write, weight,
            );
        }
    }

    /// The first touch of a page of an object, by its page fault. A page has one: it says nothing of lines and pages that
    /// threads meet in.
    pub(crate) fn fault(&mut self, row: &FaultRow, first: u32) {
        self.enter(&Event {
            pid: row.pid,
            tid: row.tid,
            object: Some(first),
            page: Some(row.address.page()),
            time: Some(row.time_ns),
            events: 1,
            weight: 1,
            writes: 0,
            known: false,
        });
    }

    /// A trapped access to an object, or to none that is known. Of several to a page in an interval (threads that met there,
    /// or a page that was copied after it was read) the first in the table counts.
    pub(crate) fn trap(&mut self, row: &FaultRow, object: Option<u32>) {
        let intervals = &self.setting.tables.intervals;
        let interval = intervals.partition_point(|i| i.end_ns < row.time_ns);
        let before = self.trapped.insert((row.pid, row.address.page()), interval);
        if before == Some(interval) {
            return;
        }
        let thread = self.enter(&Event {
            pid: row.pid,
            tid: row.tid,
            object,
            page: Some(row.address.page()),
            time: Some(row.time_ns),
            events: 1,
            weight: 1,
            writes: u64::from(row.write == Some(true)),
            known: row.write.is_some(),
        });
        if let Some(thread) = thread {
            self.block(row.pid, thread, object, row.address, None, row.write, 1);
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn block(
        &mut self,
        pid: Pid,
        thread: u32,
        object: Option<u32>,
        address: Address,
        bytes: Option<Bytes>,
        write: Option<bool>,
        weight: u64,
    ) {
        // Memory that several processes map is in one place.
        let row = object.and_then(|o| self.setting.tables.objects.get(o as usize));
        let access = Access {
            pid: row.map_or(pid, |o| o.pid),
            thread,
            object,
            address,
            bytes,
            write: write == Some(true),
            weight,
        };
        self.lines.add(&access);
        self.pages.add(&access);
    }

    fn thread(&mut self, key: (Pid, Tid)) -> u32 {
        if let Some((last, thread)) = self.last
            && last == key
        {
            return thread;
        }
        let next = self.threads.len() as u32;
        let thread = *self.thread_index.entry(key).or_insert(next);
        if thread == next {
            self.threads.push((key.0, key.1, Sums::default()));
        }
        self.last = Some((key, thread));
        thread
    }

    /// Where an object is counted.
    fn place(&mut self, object: u32) -> usize {
        let known = self.places[object as usize];
        if known != UNSEEN {
            return known as usize;
        }
        let row = &self.setting.tables.objects[object as usize];
        let next = self.objects.len() as u32;
        let place = match row.bytes < SMALL {
            true => *self
                .by_name
                .entry((row.name.as_str(), row.kind, row.pid))
                .or_insert(next),
            false => next,
        };
        if place == next {
            self.objects.push((object, ObjectSums::default()));
        }
        self.objects[place as usize].1.members.insert(object);
        self.places[object as usize] = place;
        place as usize
    }

    /// The position of the thread; None for what is the recorder's.
    fn enter(&mut self, e: &Event) -> Option<u32> {
        if e.object
            .is_some_and(|o| self.setting.tables.is_own(o as usize))
        {
            return None;
        }
        let thread = self.thread((e.pid, e.tid));
        self.threads[thread as usize].2.add(e);
        self.all.add(e);
        let Some(object) = e.object else {
            return Some(thread);
        };
        let row = &self.setting.tables.objects[object as usize];
        let place = self.place(object);
        let of = &mut self.objects[place].1;
        of.all.add(e);
        of.unknown |= !e.known;
        let part = of.threads.entry(thread).or_default();
        part.0.add(e);
        if let Some(time) = e.time {
            let (first, last) = part.1.unwrap_or((time, time));
            part.1 = Some((first.min(time), last.max(time)));
            if let Some(axis) = &self.axis {
                let bin = axis.bin(time);
                of.times.entry((bin, thread)).or_default().add(e);
            }
        }
        if self.setting.has_places
            && let Some(range) = e.page.and_then(|page| range_of(row, page))
        {
            of.ranges.entry((range, thread)).or_default().add(e);
        }
        Some(thread)
    }

    /// The whole, None where nothing was heard. `firsts` are the pages that threads touched first, by page faults, for
    /// each object by position; `weight` is a sentence.
    pub(crate) fn finish(
        self,
        firsts: &HashMap<u32, Vec<ThreadShare>>,
        weight: &str,
    ) -> Option<SharingUse> {
        if self.all.events == 0 {
            return None;
        }
        let rows = &self.setting.tables.objects;
        let mut order: Vec<&(u32, ObjectSums)> = self.objects.iter().collect();
        order.retain(|(_, sums)| sums.all.events > 0);
        order.sort_by_key(|(o, sums)| (Reverse(sums.all.weight), rows[*o as usize].object));
        // Threads in the order of their weight.
        let mut by_weight: Vec<u32> = (0..self.threads.len() as u32).collect();
        by_weight.sort_by_key(|&t| {
            let (pid, tid, sums) = &self.threads[t as usize];
            (Reverse(sums.weight), *pid, *tid)
        });
        let mut place = vec![0_u32; by_weight.len()];
        for (at, &thread) in (0..).zip(&by_weight) {
            place[thread as usize] = at;
        }
        let tids: Vec<Tid> = self.threads.iter().map(|(_, tid, _)| *tid).collect();
        let finish = |blocks: &Blocks| {
            let (mut found, tested) = blocks.found(rows, &tids, self.all.weight);
            for block in found.iter_mut().flat_map(|b| &mut b.threads) {
                block.thread = place[block.thread as usize];
            }
            (found, tested)
        };
        let ((lines, of_lines), (pages, of_pages)) = (finish(&self.lines), finish(&self.pages));
        let omitted = order.len().saturating_sub(MAX_OBJECTS) as u64;
        let listed = order.iter().take(MAX_OBJECTS);
        Some(SharingUse {
            source: self.source,
            unit: self.unit,
            weight: weight.to_owned(),
            events: self.all.events,
            enough: self.source != SharingSource::Samples || self.all.events >= ENOUGH,
            total: self.all.weight,
            axis: self.axis,
            threads: self.list_threads(&by_weight),
            objects: listed
                .map(|(o, sums)| self.object(*o, sums, &place, firsts))
                .collect(),
            omitted_objects: omitted,
            lines,
            pages,
            tested: of_lines + of_pages,
            missed_below: self.lines.floor().max(self.pages.floor()),
        })
    }

    fn list_threads(&self, by_weight: &[u32]) -> Vec<SharingThread> {
        let rows = &self.setting.tables.threads;
        let names: HashMap<(Pid, Tid), &str> = rows
            .iter()
            .map(|t| ((t.pid, t.tid), t.name.as_str()))
            .collect();
        let mut flows: Vec<BTreeMap<(u32, u32), u64>> = vec![BTreeMap::new(); self.threads.len()];
        for (object, sums) in &self.objects {
            for (&(bin, thread), of) in &sums.times {
                *flows[thread as usize].entry((bin, *object)).or_default() += of.weight;
            }
        }
        let objects = &self.setting.tables.objects;
        by_weight
            .iter()
            .map(|&thread| {
                let (pid, tid, sums) = self.threads[thread as usize];
                let flow = flows[thread as usize].iter().map(|(&k, &w)| (k, w));
                let heaviest = |all: &[(u32, u64)], _: u64| all[0];
                let found = self
                    .axis
                    .filter(|_| suffices(self.source, sums.events))
                    .map(|axis| phases(&axis, flow, sums.events, heaviest))
                    .unwrap_or_default();
                SharingThread {
                    pid,
                    tid,
                    name: names
                        .get(&(pid, tid))
                        .copied()
                        .unwrap_or_default()
                        .to_owned(),
                    events: sums.events,
                    weight: sums.weight,
                    writes: sums.writes,
                    phases: found
                        .into_iter()
                        .map(|p| ThreadPhase {
                            from_ns: p.from,
                            to_ns: p.to,
                            object: objects[p.what as usize].object,
                            weight: p.weight,
                            of: p.of,
                        })
                        .collect(),
                }
            })
            .collect()
    }

    fn object(
        &self,
        position: u32,
        sums: &ObjectSums,
        place: &[u32],
        firsts: &HashMap<u32, Vec<ThreadShare>>,
    ) -> ObjectSharing {
        let row = &self.setting.tables.objects[position as usize];
        let at = |thread: u32| place[thread as usize];
        let of_members = sums.members.iter().filter_map(|m| firsts.get(m)).flatten();
        let firsts = first_pages(sums, of_members);
        let mut threads: Vec<SharingPart> = sums
            .threads
            .iter()
            .filter(|(_, (part, _))| part.events > 0)
            .map(|(&thread, (part, times))| {
                let tid = self.threads[thread as usize].1;
                let seen = sums.ranges.iter();
                let seen = seen.filter(|((_, t), of)| *t == thread && of.events > 0);
                SharingPart {
                    thread: at(thread),
                    tid,
                    events: part.events,
                    weight: part.weight,
                    writes: part.writes,
                    ranges: seen.count() as u32,
                    first_pages: firsts
                        .as_ref()
                        .map(|f| Pages(f.get(&tid).copied().unwrap_or(0))),
                    first_ns: times.filter(|_| self.axis.is_some()).map(|t| t.0),
                    last_ns: times.filter(|_| self.axis.is_some()).map(|t| t.1),
                }
            })
            .collect();
        threads.sort_by_key(|t| (Reverse(t.weight), t.tid));
        let known = !sums.unknown;
        let traps = self.source == SharingSource::Traps;
        let seen_later = !traps && self.source != SharingSource::Faults;
        let most = firsts.iter().flatten().filter(|(_, pages)| **pages > 0);
        let most = most.max_by_key(|(tid, pages)| (**pages, Reverse(**tid)));
        let counted = self.source == SharingSource::Counts;
        ObjectSharing {
            object: row.object,
            name: row.name.clone(),
            objects: sums.members.len() as u64,
            kind: row.kind,
            pid: row.pid,
            bytes: self.bytes(sums),
            events: sums.all.events,
            weight: sums.all.weight,
            reads: known.then(|| sums.all.weight - sums.all.writes),
            writes: known.then_some(sums.all.writes),
            class: class_of(self.source, &threads, known, sums.all.events),
            pages: counted.then(|| sums.gathered.sharing()),
            first_tid: most.map(|(tid, _)| *tid),
            never_touched_by: seen_later.then(|| self.strangers(row, sums, firsts.as_ref())),
            never_written_by: (seen_later && known).then(|| {
                let readers = threads.iter().filter(|t| t.writes == 0);
                let sure = readers.filter(|t| counted || t.events >= ENOUGH);
                sure.map(|t| t.tid).collect()
            }),
            own_share: match sums.members.len() {
                1 if !traps => own_share(sums),
                _ => None,
            },
            ranges: match sums.members.len() {
                1 => ranges(row, sums, at),
                _ => Ranges::default(),
            },
            phases: self.object_phases(sums, at),
            flow: sums
                .times
                .iter()
                .map(|(&(bin, thread), of)| FlowCell {
                    bin,
                    thread: at(thread),
                    weight: of.weight,
                    writes: of.writes,
                })
                .collect(),
            threads,
        }
    }

    fn members<'b>(&'b self, sums: &'b ObjectSums) -> impl Iterator<Item = &'a ObjectRow> + 'b {
        let rows = &self.setting.tables.objects;
        sums.members.iter().map(|m| &rows[*m as usize])
    }

    fn bytes(&self, sums: &ObjectSums) -> Bytes {
        let sizes = self.members(sums).map(|o| o.bytes.0);
        Bytes(sizes.fold(0, u64::saturating_add))
    }

    /// Threads of the process that lived beside an object and did not use it.
    fn strangers(
        &self,
        row: &ObjectRow,
        sums: &ObjectSums,
        firsts: Option<&BTreeMap<Tid, u64>>,
    ) -> Vec<Tid> {
        let was_first = |tid: &Tid| firsts.is_some_and(|f| f.get(tid).is_some_and(|n| *n > 0));
        let mut apart: BTreeSet<(Pid, Tid)> = BTreeSet::new();
        let born = self.members(sums).map(|o| o.born_ns).min();
        let died = self
            .members(sums)
            .map(|o| o.died_ns.unwrap_or(Time(u64::MAX)));
        let (born, gone) = (born.unwrap_or_default(), died.max().unwrap_or_default());
        for t in &self.setting.tables.threads {
            let began = t.born_ns >= gone;
            let ended = t.died_ns.is_some_and(|died| died <= born);
            if began || ended {
                apart.insert((t.pid, t.tid));
            }
        }
        let counted = self.source == SharingSource::Counts;
        let mut tids: Vec<Tid> = (0..)
            .zip(&self.threads)
            .filter(|(thread, (pid, tid, all))| {
                *pid == row.pid
                    && !sums.threads.contains_key(thread)
                    && (counted || all.events >= ENOUGH)
                    && !apart.contains(&(*pid, *tid))
                    && !was_first(tid)
            })
            .map(|(_, (_, tid, _))| *tid)
            .collect();
        tids.sort_unstable();
        tids
    }

    fn object_phases(&self, sums: &ObjectSums, at: impl Fn(u32) -> u32) -> Vec<ObjectPhase> {
        let axis = self.axis.as_ref();
        let Some(axis) = axis.filter(|_| suffices(self.source, sums.all.events)) else {
            return Vec::new();
        };
        let cells = sums.times.iter();
        let cells = cells.map(|(&(bin, thread), of)| ((bin, at(thread)), of.weight));
        let tenth = |all: &[(u32, u64)], sum: u64| {
            let of = all.iter().filter(|(_, w)| w.saturating_mul(10) >= sum);
            let mut threads: Vec<u32> = of.map(|(thread, _)| *thread).collect();
            threads.sort_unstable();
            (threads, sum)
        };
        phases(axis, cells, sums.all.events, tenth)
            .into_iter()
            .map(|p| ObjectPhase {
                from_ns: p.from,
                to_ns: p.to,
                threads: p.what,
                weight: p.weight,
            })
            .collect()
    }
}
