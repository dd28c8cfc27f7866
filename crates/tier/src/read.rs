//! From a trace to a stream.

use std::collections::HashMap;

use varve_analyse::{Memory, Moment, Objects, RowFacts, Run, Sweep, intervals, sweep};
use varve_model::{Bytes, Capability, ObjectKind, Page, Pages, Pid, SiteId, Time};
use varve_objects::{ChunkIndex, Owners, RECORDERS};
use varve_trace::tables::{FaultRow, IntervalRow, ObjectRow, SampleRow, SiteRow};
use varve_trace::{Batches, Trace, TraceError};

use crate::error::TierError;
use crate::given_back::GivenBack;
use crate::stream::{Builder, Group, NO_GROUP, Sampled, Slot, SlotRun, Stream};

/// Pages of a chunk.
const CHUNK: u64 = 512;
/// Memory that a slot takes in all of a simulation: state of two policies at a time, and what is read of the trace.
const SLOT_BYTES: u64 = 128;
/// What an object takes at most: measured by `analyse` with 20 million of them.
const OBJECT_BYTES: u64 = 480;
/// Touches beyond this would take hours.
const MAX_TOUCHES: u64 = 10_000_000_000;
/// What the pages of varve's own library in the program belong to.
const OWN_GROUP: u32 = 1;

/// What a trace says for a simulation, besides the touches.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Read {
    /// The touches.
    pub touched: Touched,
    /// Samples with an address.
    pub samples: u64,
    /// Of them, those on pages without touches.
    pub samples_elsewhere: u64,
    /// Whether samples stand for time; else each is an access.
    pub samples_are_time: bool,
}

/// Touches that a simulation does not use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Touched {
    /// Runs that stand out of the order of intervals.
    pub stray: u64,
    /// Pages that others may have touched, summed over intervals.
    pub possibly_others: u64,
    /// Whether it is known when pages were given back.
    pub knows_given_back: bool,
}

/// Reads the touches of a trace, in at most so much memory.
///
/// # Errors
/// A table that cannot be read, no touches, or more of them than there is room for.
pub fn read(
    trace: &Trace,
    room: Bytes,
    progress: &mut dyn FnMut(f64),
) -> Result<(Stream, Read), TierError> {
    if !trace.manifest.capabilities.contains(&Capability::Touches) {
        return Err(TierError::NoTouches(trace.folder().to_owned()));
    }
    if trace.count::<ObjectRow>()?.saturating_mul(OBJECT_BYTES) > room.0 {
        return Err(too_large(trace, room));
    }
    let rows = intervals(trace)?;
    let (mut memory, all) = Memory::read(trace)?;
    let (groups, of_object) = groups(trace, &all)?;
    let given_back = GivenBack::new(&all.spans);
    let mut reader = Reader {
        memory: &mut memory,
        owners: Owners::new(&all.spans),
        of_span: &all.of_span,
        of_object: &of_object,
        given_back,
        builder: Builder::new(groups),
        index: ChunkIndex::default(),
        chunks: Vec::new(),
        rows: &rows,
        ended: 0,
        now: Moment {
            position: 0,
            from: Time(0),
            to: Time(1),
        },
        room,
        is_full: false,
        written: Vec::new(),
        unknown: false,
        distinct: Vec::new(),
        wrote: Vec::new(),
        samples: Samples::new(trace)?,
        found: Vec::new(),
        read: Read {
            samples_are_time: true,
            ..Read::default()
        },
    };
    sweep(trace, &rows, &mut reader, progress)?;
    reader.end_until(rows.len());
    if reader.is_full || reader.builder.touches_so_far() > MAX_TOUCHES {
        return Err(too_large(trace, room));
    }
    if let Some(error) = reader.samples.error {
        return Err(error.into());
    }
    let mut read = reader.read.clone();
    read.touched.knows_given_back = reader.given_back.is_known;
    read.samples = reader.found.len() as u64 + read.samples_elsewhere;
    let stream = reader
        .builder
        .finish(reader.found, trace.manifest.machine.cpus);
    if stream.touches == 0 {
        return Err(TierError::NoTouches(trace.folder().to_owned()));
    }
    Ok((stream, read))
}

fn too_large(trace: &Trace, room: Bytes) -> TierError {
    let path = trace.folder().to_owned();
    TraceError::TooLarge { path, room }.into()
}

/// The groups of objects, and the group of each object.
fn groups(trace: &Trace, all: &Objects) -> Result<(Vec<Group>, Vec<u32>), TraceError> {
    let mut labels: HashMap<SiteId, String> = HashMap::new();
    for batch in trace.batches::<SiteRow>()? {
        labels.extend(batch?.into_iter().map(|row| (row.site, row.label)));
    }
    let empty = |name: &str| Group {
        name: name.to_owned(),
        kind: None,
        site: None,
        objects: 0,
        peak_bytes: Bytes(0),
        first: None,
        touches: 0,
        peak_pages: Pages(0),
    };
    let mut groups = vec![empty("memory of no known object"), empty(RECORDERS)];
    let mut numbers: HashMap<(&str, ObjectKind, Option<&str>), u32> = HashMap::new();
    let mut members: Vec<Vec<(Time, bool, u64)>> = vec![Vec::new(), Vec::new()];
    let mut of_object = Vec::with_capacity(all.rows.len());
    for row in &all.rows {
        if row.kind == ObjectKind::Recorder {
            of_object.push(OWN_GROUP);
            continue;
        }
        let site = row.site.and_then(|s| labels.get(&s)).map(String::as_str);
        let next = groups.len() as u32;
        let number = *numbers
            .entry((row.name.as_str(), row.kind, site))
            .or_insert(next);
        if number == next {
            groups.push(Group {
                kind: Some(row.kind),
                site: site.map(str::to_owned),
                first: Some(row.object),
                ..empty(&row.name)
            });
            members.push(Vec::new());
        }
        groups[number as usize].objects += 1;
        lives(row, &mut members[number as usize]);
        of_object.push(number);
    }
    for (group, mut changes) in groups.iter_mut().zip(members) {
        // Ends come before beginnings of the same moment.
        changes.sort_unstable();
        let mut now = 0_u64;
        for (_, begins, bytes) in changes {
            now = match begins {
                true => now.saturating_add(bytes),
                false => now.saturating_sub(bytes),
            };
            group.peak_bytes.0 = group.peak_bytes.0.max(now);
        }
    }
    Ok((groups, of_object))
}

fn lives(row: &ObjectRow, to: &mut Vec<(Time, bool, u64)>) {
    to.push((row.born_ns, true, row.bytes.0));
    if let Some(died) = row.died_ns {
        to.push((died.max(row.born_ns), false, row.bytes.0));
    }
}

/// Two megabytes of memory of which a page was touched.
struct Chunk {
    /// Its address in units of 2 MiB.
    number: u64,
    /// The slot of its first page.
    base: Slot,
    /// What its owners were last known as.
    owners: Option<(usize, u32)>,
    /// The interval in which they were asked for last.
    asked: u32,
    /// Whether pages of varve's own lie there.
    has_own: bool,
}

struct Reader<'a> {
    memory: &'a mut Memory,
    owners: Owners<'a>,
    of_span: &'a [u32],
    of_object: &'a [u32],
    given_back: GivenBack,
    builder: Builder,
    index: ChunkIndex,
    chunks: Vec<Chunk>,
    rows: &'a [IntervalRow],
    /// Intervals that ended.
    ended: usize,
    now: Moment,
    room: Bytes,
    is_full: bool,
    /// Runs of the open interval that were written, and whether of some it is not known.
    written: Vec<Run>,
    unknown: bool,
    /// Buffers.
    distinct: Vec<Run>,
    wrote: Vec<Run>,
    samples: Samples,
    found: Vec<Sampled>,
    read: Read,
}

impl Sweep for Reader<'_> {
    #[inline]
    fn row(&mut self, run: Run, facts: RowFacts) {
        match facts.written {
            Some(true) => self.written.push(run),
            Some(false) => (),
            None => self.unknown = true,
        }
    }

    fn begin(&mut self, now: Moment) {
        self.end_until(now.position);
        self.now = now;
        self.owners.advance(now.from, now.to);
    }

    fn touched(&mut self, position: Option<usize>, runs: &[Run]) {
        let mut written = std::mem::take(&mut self.written);
        let else_written = (!std::mem::take(&mut self.unknown)).then_some(false);
        if position.is_none() {
            self.read.touched.stray += runs.len() as u64;
            return;
        }
        let mut distinct = std::mem::take(&mut self.distinct);
        let mut wrote = std::mem::take(&mut self.wrote);
        wrote.clear();
        if !written.is_empty() {
            join(&mut written);
            self.memory.distinct(&written, self.now, &mut wrote);
        }
        self.memory.distinct(runs, self.now, &mut distinct);
        split(&distinct, &wrote, |run, is| {
            self.enter(run, if is { Some(true) } else { else_written });
        });
        (self.distinct, self.wrote) = (distinct, wrote);
        written.clear();
        self.written = written;
    }

    fn possibly(&mut self, _position: Option<usize>, runs: &[Run]) {
        let pages = runs.iter().map(|r| r.end.0 - r.first.0);
        self.read.touched.possibly_others += pages.sum::<u64>();
    }

    fn fault(&mut self, _fault: &FaultRow) {}

    fn is_full(&self) -> Option<Bytes> {
        let slots = u64::from(self.builder.slots()) * SLOT_BYTES;
        let taken = self.builder.bytes().0 + slots;
        let is = self.is_full
            || taken > self.room.0
            || self.builder.touches_so_far() > MAX_TOUCHES
            || (self.found.len() * size_of::<Sampled>()) as u64 > self.room.0 / 2;
        is.then_some(self.room)
    }
}

impl Reader<'_> {
    /// Ends the intervals before that position.
    fn end_until(&mut self, position: usize) {
        while self.ended < position.min(self.rows.len()) {
            let row = &self.rows[self.ended];
            self.take_samples(row.end_ns);
            let length = row.end_ns - row.start_ns;
            self.builder.end_interval(row.start_ns, length, row.threads);
            self.ended += 1;
            self.give_back(row.end_ns);
        }
    }

    /// Pages that were given back until then.
    fn give_back(&mut self, until: Time) {
        let Reader {
            given_back,
            index,
            chunks,
            builder,
            ..
        } = self;
        given_back.until(until, |pid, first, end| {
            index.each(pid, first / CHUNK, (end - 1) / CHUNK, |at| {
                let chunk: &Chunk = &chunks[at];
                let page = chunk.number * CHUNK;
                let slot = |page: u64| chunk.base + page.min(CHUNK) as u32;
                builder.free(
                    slot(first.saturating_sub(page)),
                    slot(end.saturating_sub(page)),
                );
            });
        });
    }

    /// Samples of the interval that ends.
    fn take_samples(&mut self, until: Time) {
        while let Some(row) = self.samples.before(until) {
            let Some(address) = row.address else { continue };
            let (pid, address) = self.memory.place(row.pid, address, self.now);
            let page = address.page().0;
            let Some(at) = self.index.get(pid, page / CHUNK) else {
                self.read.samples_elsewhere += 1;
                continue;
            };
            self.read.samples_are_time &= row.weight_ns.is_some();
            self.found.push(Sampled {
                interval: self.ended as u32,
                slot: self.chunks[at].base + (page % CHUNK) as u32,
                weight_ns: row.weight_ns.map_or(1.0, |w| w.0 as f32),
            });
        }
    }

    fn enter(&mut self, run: Run, written: Option<bool>) {
        // A run that is longer than all slots together would be entered in vain.
        self.is_full |= run.end.0 - run.first.0 > self.room.0 / SLOT_BYTES;
        if self.is_full {
            return;
        }
        let mut at = run.first.0;
        while at < run.end.0 {
            let number = at / CHUNK;
            let end = run.end.0.min((number + 1).saturating_mul(CHUNK));
            let Some(position) = self.chunk(run.pid, number) else {
                self.is_full = true;
                return;
            };
            let chunk = &self.chunks[position];
            let slot = |page: u64| chunk.base + (page - number * CHUNK) as u32;
            let run = SlotRun {
                first: slot(at),
                end: slot(end),
                written,
            };
            match chunk.has_own {
                false => self.builder.touch(run),
                true => self.without_own(run),
            }
            at = end;
        }
    }

    /// Enters the parts of a run that are the program's own.
    fn without_own(&mut self, run: SlotRun) {
        let mut first = run.first;
        for slot in run.first..=run.end {
            if slot < run.end && self.builder.owner(slot) != OWN_GROUP {
                continue;
            }
            if first < slot {
                self.builder.touch(SlotRun {
                    first,
                    end: slot,
                    ..run
                });
            }
            first = slot + 1;
        }
    }

    /// The position of a chunk, whose owners are current; None where there is no room for it.
    #[inline]
    fn chunk(&mut self, pid: Pid, number: u64) -> Option<usize> {
        let interval = self.ended as u32;
        let position = match self.index.get(pid, number) {
            Some(position) if self.chunks[position].asked == interval => return Some(position),
            Some(position) => position,
            None => {
                let slots = u64::from(self.builder.slots()) + CHUNK;
                if slots.saturating_mul(SLOT_BYTES) > self.room.0 || slots > 1 << 31 {
                    return None;
                }
                self.chunks.push(Chunk {
                    number,
                    base: self.builder.grow(pid, number),
                    owners: None,
                    asked: u32::MAX,
                    has_own: false,
                });
                let position = self.chunks.len() - 1;
                self.index.set(pid, number, position);
                position
            }
        };
        let chunk = &mut self.chunks[position];
        chunk.asked = interval;
        let known = self.owners.chunk_at(pid, number);
        if known != chunk.owners
            && let Some((of, _)) = known
        {
            let (builder, of_span, of_object) = (&mut self.builder, self.of_span, self.of_object);
            let mut from = 0;
            chunk.has_own = false;
            self.owners.of_chunk(of, |end, shares| {
                let object = shares
                    .first()
                    .and_then(|s| of_span.get(s.object.0 as usize));
                let group = object.and_then(|&o| of_object.get(o as usize));
                let group = group.copied().unwrap_or(NO_GROUP);
                chunk.has_own |= group == OWN_GROUP;
                own(
                    builder,
                    chunk.base + from,
                    chunk.base + u32::from(end),
                    group,
                );
                from = end.into();
            });
        }
        chunk.owners = known;
        Some(position)
    }
}

/// Notes the group of slots, where it is another one.
fn own(builder: &mut Builder, first: Slot, end: Slot, group: u32) {
    let mut at = first;
    while at < end {
        let from = at;
        let is_new = builder.owner(at) != group;
        while at < end && (builder.owner(at) != group) == is_new {
            at += 1;
        }
        if is_new {
            builder.own(from, at, group);
        }
    }
}

/// Sorts runs and joins those that overlap or touch.
fn join(runs: &mut Vec<Run>) {
    runs.sort_unstable();
    runs.dedup_by(|next, last| {
        let joined = last.pid == next.pid && next.first <= last.end;
        if joined {
            last.end = last.end.max(next.end);
        }
        joined
    });
}

/// Calls `each` with the parts of runs, in order, and whether `marked` holds them; both are sorted and joined.
fn split(runs: &[Run], marked: &[Run], mut each: impl FnMut(Run, bool)) {
    let mut next = 0;
    for run in runs {
        let mut at = run.first;
        let mut part = |first: Page, end: Page, is| {
            if first < end {
                each(Run { first, end, ..*run }, is);
            }
        };
        while at < run.end {
            while let Some(mark) = marked.get(next)
                && (mark.pid, mark.end) <= (run.pid, at)
            {
                next += 1;
            }
            let mark = marked
                .get(next)
                .filter(|m| m.pid == run.pid && m.first < run.end);
            let Some(mark) = mark else {
                part(at, run.end, false);
                break;
            };
            let first = mark.first.max(at);
            part(at, first, false);
            let end = mark.end.min(run.end);
            part(first, end, true);
            at = end;
        }
    }
}

/// Samples in the order of the table, one ahead.
struct Samples {
    batches: Batches<SampleRow>,
    rows: std::iter::Peekable<std::vec::IntoIter<SampleRow>>,
    error: Option<TraceError>,
}

impl Samples {
    fn new(trace: &Trace) -> Result<Samples, TraceError> {
        Ok(Samples {
            batches: trace.batches::<SampleRow>()?,
            rows: Vec::new().into_iter().peekable(),
            error: None,
        })
    }

    fn before(&mut self, end: Time) -> Option<SampleRow> {
        while self.rows.peek().is_none() {
            match self.batches.next()? {
                Ok(rows) => self.rows = rows.into_iter().peekable(),
                Err(error) => {
                    self.error = Some(error);
                    return None;
                }
            }
        }
        self.rows.next_if(|row| row.time_ns <= end)
    }
}
