//! The touches of a trace in memory, small enough to be replayed many times.
//!
//! Pages are numbered: 512 *slots* for each 2 MiB of memory of which any page was touched, in the order in which these were
//! touched first. What was touched in an interval is a list of runs of slots, each two small numbers of variable length; a run takes
//! 2 to 8 bytes. Beside it stands what changes in between: whose a page is, and that it was given back.

use varve_model::{Bytes, Duration, ObjectId, ObjectKind, Pages, Pid, Time};

/// A page, by its number in a stream.
pub type Slot = u32;

/// What an interval is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntervalFacts {
    /// When it began.
    pub start: Time,
    /// How long it is.
    pub length: Duration,
    /// Threads that lived at its end; 1 where it is not known.
    pub threads: u32,
    /// Pages that were touched in it.
    pub touches: u64,
    /// Those of them that were touched for the first time of their life.
    pub fresh: u64,
    /// Where its runs end.
    end: usize,
}

/// A run of slots that were touched in an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotRun {
    /// The first.
    pub first: Slot,
    /// One past the last.
    pub end: Slot,
    /// Whether they were written; None where it is not known.
    pub written: Option<bool>,
}

/// From an interval on, slots belong to a group of objects, or were given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The interval, by position.
    pub interval: u32,
    /// The first slot.
    pub first: Slot,
    /// One past the last.
    pub end: Slot,
    /// The group of objects.
    pub group: u32,
}

/// Sampled accesses to a page in an interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampled {
    /// The interval, by position.
    pub interval: u32,
    /// The page.
    pub slot: Slot,
    /// Time of a CPU for which they stand, nanoseconds.
    pub weight_ns: f32,
}

/// Objects of one name, kind and site: what a plan places together.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// As a person would call it.
    pub name: String,
    /// What the objects are; None for pages of which it is not known.
    pub kind: Option<ObjectKind>,
    /// Where they were allocated.
    pub site: Option<String>,
    /// How many objects.
    pub objects: u64,
    /// Bytes of objects that lived at one time, at most.
    pub peak_bytes: Bytes,
    /// The first of them, in the table of objects, for what else is asked.
    pub first: Option<ObjectId>,
    /// Sum over intervals of the pages touched.
    pub touches: u64,
    /// Touched pages that lived at one time, at most.
    pub peak_pages: Pages,
}

/// Slots of 2 MiB of memory.
pub const CHUNK_SLOTS: u32 = 512;

/// The touches of a trace.
#[derive(Clone, Debug, Default)]
pub struct Stream {
    slots: u32,
    /// The memory of each 512 slots: process and address in units of 2 MiB.
    pub(crate) chunks: Vec<(Pid, u64)>,
    intervals: Vec<IntervalFacts>,
    code: Vec<u8>,
    /// In the order of intervals.
    pub(crate) owners: Vec<Change>,
    pub(crate) freed: Vec<Change>,
    pub(crate) samples: Vec<Sampled>,
    /// Objects; the first is what belongs to none.
    pub groups: Vec<Group>,
    /// Distinct pages that were touched.
    pub pages: Pages,
    /// Touched pages that lived at one time, at most.
    pub peak_pages: Pages,
    /// Sum over intervals of the pages touched.
    pub touches: u64,
    /// Whether some touches say whether they wrote.
    pub knows_writes: bool,
    /// CPUs of the machine.
    pub cpus: u32,
}

impl Stream {
    /// How many slots there are.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// The intervals, in their order.
    pub fn intervals(&self) -> &[IntervalFacts] {
        &self.intervals
    }

    /// The runs of an interval, in the order of addresses of each process.
    pub fn runs(&self, interval: usize) -> Runs<'_> {
        let start = match interval {
            0 => 0,
            later => self.intervals[later - 1].end,
        };
        Runs {
            code: &self.code[start..self.intervals[interval].end],
            last: 0,
        }
    }

    /// From the beginning of the first interval to the end of the last.
    pub fn length(&self) -> Duration {
        match (self.intervals.first(), self.intervals.last()) {
            (Some(first), Some(last)) => last.start + last.length - first.start,
            _ => Duration(0),
        }
    }

    /// Time of CPUs for which the samples stand.
    pub fn sampled_ns(&self) -> f64 {
        self.samples.iter().map(|s| f64::from(s.weight_ns)).sum()
    }

    /// How many samples there are.
    pub fn sample_count(&self) -> usize {
        self.samples.len()
    }

    /// Memory that it takes.
    pub fn bytes(&self) -> Bytes {
        let changes = self.owners.capacity() + self.freed.capacity();
        let bytes = self.code.capacity()
            + changes * size_of::<Change>()
            + self.samples.capacity() * size_of::<Sampled>()
            + self.intervals.capacity() * size_of::<IntervalFacts>();
        Bytes(bytes as u64)
    }
}

/// Runs of an interval.
#[derive(Clone, Debug)]
pub struct Runs<'a> {
    code: &'a [u8],
    last: Slot,
}

impl Runs<'_> {
    #[inline]
    fn number(&mut self) -> u64 {
        let (mut value, mut shift) = (0_u64, 0);
        while let [byte, rest @ ..] = self.code {
            self.code = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
            shift += 7;
        }
        value
    }
}

impl Iterator for Runs<'_> {
    type Item = SlotRun;

    #[inline]
    fn next(&mut self) -> Option<SlotRun> {
        if self.code.is_empty() {
            return None;
        }
        let step = self.number();
        // Even: forward by half of it; odd: backward.
        let step = (step >> 1) as i64 ^ -((step & 1) as i64);
        let first = (i64::from(self.last) + step) as u32;
        let length = self.number();
        let end = first + (length >> 2) as u32;
        self.last = end;
        let written = match length & 3 {
            0 => None,
            1 => Some(false),
            _ => Some(true),
        };
        Some(SlotRun {
            first,
            end,
            written,
        })
    }
}

/// A slot that belongs to no object.
pub const NO_GROUP: u32 = 0;

/// Makes a stream, interval by interval.
pub struct Builder {
    stream: Stream,
    open: Option<SlotRun>,
    last: Slot,
    /// The group of each slot.
    owner: Vec<u32>,
    /// Whether each slot's page lives and was touched.
    lives: Vec<bool>,
    /// Whether it was touched in any life.
    seen: Vec<bool>,
    live: u64,
    live_of: Vec<u64>,
    touches: u64,
    fresh: u64,
}

impl Builder {
    /// Nothing yet. `groups` are the objects, the first of which is what belongs to none.
    pub fn new(groups: Vec<Group>) -> Builder {
        Builder {
            live_of: vec![0; groups.len()],
            stream: Stream {
                groups,
                cpus: 1,
                ..Stream::default()
            },
            open: None,
            last: 0,
            owner: Vec::new(),
            lives: Vec::new(),
            seen: Vec::new(),
            live: 0,
            touches: 0,
            fresh: 0,
        }
    }

    /// Makes the slots of 2 MiB of memory; `number` is its address in such units.
    pub fn grow(&mut self, pid: Pid, number: u64) -> Slot {
        let first = self.stream.slots;
        self.stream.slots += CHUNK_SLOTS;
        self.stream.chunks.push((pid, number));
        let slots = self.stream.slots as usize;
        self.owner.resize(slots, NO_GROUP);
        self.lives.resize(slots, false);
        self.seen.resize(slots, false);
        first
    }

    /// How many slots there are.
    pub fn slots(&self) -> u32 {
        self.stream.slots
    }

    /// Sum over intervals of the pages touched so far.
    pub fn touches_so_far(&self) -> u64 {
        self.stream.touches + self.touches
    }

    /// The group to which a slot belongs.
    pub fn owner(&self, slot: Slot) -> u32 {
        self.owner[slot as usize]
    }

    /// Memory that it takes by now.
    pub fn bytes(&self) -> Bytes {
        Bytes(self.stream.bytes().0 + 6 * u64::from(self.stream.slots))
    }

    /// Slots of a group, from the interval that is open on.
    pub fn own(&mut self, first: Slot, end: Slot, group: u32) {
        let interval = self.stream.intervals.len() as u32;
        let change = Change {
            interval,
            first,
            end,
            group,
        };
        join(&mut self.stream.owners, change);
        for slot in first as usize..end as usize {
            let before = std::mem::replace(&mut self.owner[slot], group);
            if self.lives[slot] {
                self.live_of[before as usize] -= 1;
                self.live_of[group as usize] += 1;
            }
        }
        self.note_peak(group);
    }

    /// Slots whose pages were given back before the interval that is open: the next touch is the first of another life.
    pub fn free(&mut self, first: Slot, end: Slot) {
        let interval = self.stream.intervals.len() as u32;
        let mut from = None;
        for slot in first..=end {
            let gone = slot < end && std::mem::take(&mut self.lives[slot as usize]);
            if gone {
                self.live -= 1;
                self.live_of[self.owner[slot as usize] as usize] -= 1;
                from.get_or_insert(slot);
            } else if let Some(first) = from.take() {
                let change = Change {
                    interval,
                    first,
                    end: slot,
                    group: NO_GROUP,
                };
                join(&mut self.stream.freed, change);
            }
        }
    }

    /// Slots that were touched in the interval that is open, each once.
    #[inline]
    pub fn touch(&mut self, run: SlotRun) {
        self.stream.knows_writes |= run.written.is_some();
        self.touches += u64::from(run.end - run.first);
        let (first, end) = (run.first as usize, run.end as usize);
        let mut at = first;
        while at < end {
            let group = self.owner[at];
            let from = at;
            let mut new = 0;
            while at < end && self.owner[at] == group {
                new += u64::from(!std::mem::replace(&mut self.lives[at], true));
                at += 1;
            }
            self.stream.groups[group as usize].touches += (at - from) as u64;
            if new > 0 {
                self.fresh += new;
                self.live += new;
                self.live_of[group as usize] += new;
                self.note_peak(group);
                for seen in &mut self.seen[from..at] {
                    self.stream.pages.0 += u64::from(!std::mem::replace(seen, true));
                }
            }
        }
        match &mut self.open {
            Some(open) if open.end == run.first && open.written == run.written => {
                open.end = run.end;
            }
            _ => {
                self.write();
                self.open = Some(run);
            }
        }
    }

    fn note_peak(&mut self, group: u32) {
        let live = self.live_of[group as usize];
        let peak = &mut self.stream.groups[group as usize].peak_pages;
        peak.0 = peak.0.max(live);
        self.stream.peak_pages.0 = self.stream.peak_pages.0.max(self.live);
    }

    /// Writes the run that is open.
    fn write(&mut self) {
        let Some(run) = self.open.take() else { return };
        let step = i64::from(run.first) - i64::from(self.last);
        self.number(((step << 1) ^ (step >> 63)) as u64);
        let written = match run.written {
            None => 0,
            Some(false) => 1,
            Some(true) => 2,
        };
        self.number(u64::from(run.end - run.first) << 2 | written);
        self.last = run.end;
    }

    fn number(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.stream.code.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.stream.code.push(value as u8);
    }

    /// Ends the interval that is open.
    pub fn end_interval(&mut self, start: Time, length: Duration, threads: u32) {
        self.write();
        self.last = 0;
        let touches = std::mem::take(&mut self.touches);
        self.stream.touches += touches;
        self.stream.intervals.push(IntervalFacts {
            start,
            length,
            threads: threads.max(1),
            touches,
            fresh: std::mem::take(&mut self.fresh),
            end: self.stream.code.len(),
        });
    }

    /// The stream. Samples of pages or intervals that it does not have are dropped.
    pub fn finish(mut self, mut samples: Vec<Sampled>, cpus: u32) -> Stream {
        let (slots, intervals) = (self.stream.slots, self.stream.intervals.len());
        samples.retain(|s| s.slot < slots && (s.interval as usize) < intervals);
        samples.sort_unstable_by_key(|s| (s.interval, s.slot));
        samples.dedup_by(|next, last| {
            let same = (next.interval, next.slot) == (last.interval, last.slot);
            if same {
                last.weight_ns += next.weight_ns;
            }
            same
        });
        self.stream.samples = samples;
        self.stream.cpus = cpus.max(1);
        self.stream.code.shrink_to_fit();
        self.stream
    }
}

/// Adds a change, to the one before where it goes on.
fn join(list: &mut Vec<Change>, next: Change) {
    match list.last_mut() {
        Some(last)
            if last.end == next.first
                && (last.interval, last.group) == (next.interval, next.group) =>
        {
            last.end = next.end;
        }
        _ => list.push(next),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::group;

    proptest! {
        #[test]
        fn what_is_written_is_read(
            intervals in prop::collection::vec(
                prop::collection::vec((0..5000_u32, 1..600_u32, prop::option::of(any::<bool>())), 0..20),
                1..10,
            ),
        ) {
            let mut builder = Builder::new(vec![group("none")]);
            for i in 0..12 {
                builder.grow(Pid(1), i);
            }
            let mut expected = Vec::new();
            for runs in &intervals {
                let mut known: Vec<SlotRun> = Vec::new();
                for &(first, length, written) in runs {
                    let run = SlotRun { first, end: first + length, written };
                    builder.touch(run);
                    match known.last_mut() {
                        Some(last) if last.end == run.first && last.written == run.written => last.end = run.end,
                        _ => known.push(run),
                    }
                }
                builder.end_interval(Time(0), Duration(1), 1);
                expected.push(known);
            }
            let stream = builder.finish(vec![], 1);
            for (i, known) in expected.iter().enumerate() {
                let read: Vec<SlotRun> = stream.runs(i).collect();
                prop_assert_eq!(&read, known);
            }
        }
    }

    #[test]
    fn pages_that_live_at_one_time_are_counted() {
        let mut builder = Builder::new(vec![group("none"), group("a"), group("b")]);
        builder.grow(Pid(1), 0);
        let run = |first, end| SlotRun {
            first,
            end,
            written: None,
        };
        builder.own(0, 10, 1);
        builder.touch(run(0, 8));
        builder.end_interval(Time(0), Duration(1), 1);
        builder.free(0, 10);
        builder.own(0, 4, 2);
        builder.touch(run(0, 6));
        builder.end_interval(Time(1), Duration(1), 1);
        let stream = builder.finish(vec![], 1);
        assert_eq!((stream.pages, stream.peak_pages), (Pages(8), Pages(8)));
        assert_eq!(stream.groups[1].peak_pages, Pages(8));
        assert_eq!(stream.groups[2].peak_pages, Pages(4));
        assert_eq!(
            (stream.groups[1].touches, stream.groups[2].touches),
            (10, 4)
        );
        let fresh: Vec<u64> = stream.intervals().iter().map(|i| i.fresh).collect();
        assert_eq!(fresh, [8, 6]);
        let freed: Vec<(u32, u32)> = stream.freed.iter().map(|c| (c.first, c.end)).collect();
        assert_eq!(freed, [(0, 8)]);
    }
}
