//! The live heap objects of a process in little memory: a program may well have millions.
//!
//! An object takes 24 bytes, in sorted chunks of neighbours. What many objects have in common stands
//! once in a chunk: the upper half of their addresses, and who made them.

use std::collections::BTreeMap;
use std::ops::Range;

use varve_model::{Address, Bytes, ObjectId, ObjectKind, SiteId, Tid, Time};

use crate::state::objects::{Birth, Live};

/// Objects of a chunk at most. A new one moves half of them, on average.
const MAX: usize = 128;
/// A chunk with fewer objects is joined with the next where both fit well.
const FEW: usize = MAX / 4;
/// Objects that a chunk makes room for at once.
const STEP: usize = 16;
/// Makers that a chunk can distinguish; those that nobody refers to are forgotten when it is full.
const MAX_MAKERS: usize = 256;

/// Bits of a size and of an object's number. No heap object has 16 TiB, and a recording of a million
/// births a second reaches that number after half a year.
const WIDE: u32 = 44;
const WIDE_MAX: u64 = (1 << WIDE) - 1;

/// What the objects of one call in one thread have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Maker {
    made_by: &'static str,
    tid: Option<Tid>,
    site: Option<SiteId>,
}

/// An object. The upper half of its address is its chunk's.
#[derive(Clone, Copy, Debug)]
struct Entry {
    born: u64,
    low: u32,
    bytes_low: u32,
    object_low: u32,
    /// From the top: 12 bits of the size, 12 of the number, 8 that index the maker.
    rest: u32,
}

const _: () = assert!(size_of::<Entry>() == 24);

impl Entry {
    fn new(live: &Live, maker: u8) -> Entry {
        let bytes = live.birth.bytes.0.min(WIDE_MAX);
        let object = live.object.0 & WIDE_MAX;
        Entry {
            born: live.birth.born.0,
            low: live.birth.address.0 as u32,
            bytes_low: bytes as u32,
            object_low: object as u32,
            rest: (((bytes >> 32) as u32) << 20)
                | (((object >> 32) as u32) << 8)
                | u32::from(maker),
        }
    }

    fn bytes(&self) -> u64 {
        (u64::from(self.rest >> 20) << 32) | u64::from(self.bytes_low)
    }

    fn object(&self) -> ObjectId {
        ObjectId((u64::from(self.rest >> 8 & 0xfff) << 32) | u64::from(self.object_low))
    }

    fn maker(&self) -> usize {
        (self.rest & 0xff) as usize
    }

    fn set_maker(&mut self, maker: u8) {
        self.rest = (self.rest & !0xff) | u32::from(maker);
    }

    fn start(&self, upper: u64) -> u64 {
        upper | u64::from(self.low)
    }

    fn end(&self, upper: u64) -> u64 {
        self.start(upper).saturating_add(self.bytes())
    }
}

/// The part of an address that the objects of a chunk have in common.
fn upper(address: u64) -> u64 {
    address >> 32 << 32
}

/// Neighbours, sorted by address; never empty, but for a moment.
#[derive(Debug, Default)]
struct Chunk {
    entries: Vec<Entry>,
    makers: Vec<Maker>,
}

impl Chunk {
    /// Where an address is, or belongs.
    fn find(&self, address: u64) -> Result<usize, usize> {
        self.entries
            .binary_search_by_key(&(address as u32), |e| e.low)
    }

    fn insert(&mut self, at: usize, live: &Live) {
        let maker = self.maker(Maker {
            made_by: live.birth.made_by,
            tid: live.birth.tid,
            site: live.birth.site,
        });
        if self.entries.len() == self.entries.capacity() {
            self.entries.reserve_exact(STEP);
        }
        self.entries.insert(at, Entry::new(live, maker));
    }

    /// The index of a maker. There is room for twice as many as there are objects.
    fn maker(&mut self, maker: Maker) -> u8 {
        if let Some(known) = self.makers.iter().rposition(|m| *m == maker) {
            return known as u8;
        }
        if self.makers.len() == MAX_MAKERS {
            self.forget_makers();
        }
        self.makers.push(maker);
        (self.makers.len() - 1) as u8
    }

    /// Forgets the makers that no object refers to.
    fn forget_makers(&mut self) {
        let before = std::mem::take(&mut self.makers);
        let mut moved: [Option<u8>; MAX_MAKERS] = [None; MAX_MAKERS];
        for entry in &mut self.entries {
            let old = entry.maker();
            let new = *moved[old].get_or_insert_with(|| {
                self.makers.push(before[old]);
                (self.makers.len() - 1) as u8
            });
            entry.set_maker(new);
        }
    }

    /// Takes the upper half of the objects out.
    fn split(&mut self) -> Chunk {
        let mut right = Chunk {
            entries: self.entries.split_off(self.entries.len() / 2),
            makers: self.makers.clone(),
        };
        right.forget_makers();
        self.forget_makers();
        self.entries.shrink_to(self.entries.len() + STEP);
        right
    }

    fn live(&self, upper: u64, entry: &Entry) -> Live {
        let maker = self.makers[entry.maker()];
        Live {
            object: entry.object(),
            birth: Birth {
                kind: ObjectKind::Heap,
                made_by: maker.made_by,
                address: Address(entry.start(upper)),
                bytes: Bytes(entry.bytes()),
                born: Time(entry.born),
                tid: maker.tid,
                site: maker.site,
                reserved: false,
                continues: None,
            },
        }
    }

    /// Takes out what starts in a range and was there at `time`.
    fn take(&mut self, upper: u64, range: &Range<u64>, time: Time, mut each: impl FnMut(ObjectId)) {
        self.entries.retain(|entry| {
            let goes = range.contains(&entry.start(upper)) && entry.born <= time.0;
            if goes {
                each(entry.object());
            }
            !goes
        });
    }
}

/// Live heap objects by address, no two at the same one.
#[derive(Debug, Default)]
pub(crate) struct LiveHeap {
    /// By a lower bound of their addresses, whose upper half is theirs.
    chunks: BTreeMap<u64, Chunk>,
}

impl LiveHeap {
    pub(crate) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Adds an object, where there must be none: see [`LiveHeap::is_free`].
    pub(crate) fn insert(&mut self, live: &Live) {
        let address = live.birth.address.0;
        let chunk = self.chunks.range_mut(..=address).next_back();
        let Some((_, chunk)) = chunk.filter(|(key, _)| upper(**key) == upper(address)) else {
            self.chunks
                .entry(upper(address))
                .or_default()
                .insert(0, live);
            return;
        };
        let at = chunk.find(address).unwrap_or_else(|at| at);
        if chunk.entries.len() < MAX {
            chunk.insert(at, live);
        } else if at < MAX {
            let mut right = chunk.split();
            let first = right.entries[0].start(upper(address));
            if address > first {
                right.insert(at - chunk.entries.len(), live);
            } else {
                chunk.insert(at, live);
            }
            self.chunks.insert(first, right);
        } else {
            self.insert_behind(address, live);
        }
    }

    /// Adds an object behind a full chunk: to the next one, or to a new one. Programs mostly go upwards,
    /// and leave full chunks behind.
    fn insert_behind(&mut self, address: u64, live: &Live) {
        let next = self.chunks.range(address..).next();
        let next = next.filter(|(k, c)| upper(**k) == upper(address) && c.entries.len() < MAX);
        let next = next.map(|(key, _)| *key);
        let mut chunk = next
            .and_then(|key| self.chunks.remove(&key))
            .unwrap_or_default();
        chunk.insert(0, live);
        self.chunks.insert(address, chunk);
    }

    /// Takes the object at an address out.
    pub(crate) fn remove(&mut self, address: u64) -> Option<Live> {
        let (&key, chunk) = self.chunks.range_mut(..=address).next_back()?;
        if upper(key) != upper(address) {
            return None;
        }
        let entry = chunk.entries.remove(chunk.find(address).ok()?);
        let live = chunk.live(upper(key), &entry);
        match chunk.entries.len() {
            0 => {
                self.chunks.remove(&key);
            }
            few if few <= FEW && few.is_multiple_of(FEW / 4) => self.join(key),
            _ => {}
        }
        Some(live)
    }

    /// Joins a chunk of few objects with the next, where there is room for more afterwards.
    fn join(&mut self, key: u64) {
        let next = self.chunks.range(key + 1..).next();
        let next =
            next.filter(|(k, c)| upper(**k) == upper(key) && c.entries.len() <= MAX - 2 * FEW);
        let Some(next) = next.map(|(k, _)| *k).and_then(|k| self.chunks.remove(&k)) else {
            return;
        };
        let Some(chunk) = self.chunks.get_mut(&key) else {
            return;
        };
        chunk.forget_makers();
        chunk.entries.reserve_exact(next.entries.len() + STEP);
        for entry in &next.entries {
            let mut entry = *entry;
            entry.set_maker(chunk.maker(next.makers[entry.maker()]));
            chunk.entries.push(entry);
        }
    }

    /// Whether no object lies in a range, not even with a part of it.
    pub(crate) fn is_free(&self, range: &Range<u64>) -> bool {
        let first = |(key, chunk): (&u64, &Chunk)| Some(chunk.entries.first()?.start(upper(*key)));
        let last = |(key, chunk): (&u64, &Chunk)| Some(chunk.entries.last()?.end(upper(*key)));
        let mut below = self.chunks.range(..=range.start).rev();
        let (mut before, mut next) = (None, None);
        if let Some((key, chunk)) = below.next() {
            let upper = upper(*key);
            let at = chunk
                .entries
                .partition_point(|e| e.start(upper) < range.start);
            before = match at.checked_sub(1) {
                Some(i) => Some(chunk.entries[i].end(upper)),
                None => below.next().and_then(last),
            };
            next = chunk.entries.get(at).map(|e| e.start(upper));
        }
        let next = next.or_else(|| self.chunks.range(range.start + 1..).next().and_then(first));
        before.is_none_or(|end| end <= range.start) && next.is_none_or(|start| start >= range.end)
    }

    /// What lies in a range, if only with a part of it.
    pub(crate) fn overlapping(&self, range: Range<u64>) -> impl Iterator<Item = Live> + '_ {
        // Of those below its start only the last can reach into it; it is in one of two chunks.
        let mut below = self.chunks.range(..range.start).rev();
        let first = below.nth(1).or_else(|| self.chunks.first_key_value());
        let first = first.map_or(0, |(key, _)| *key).min(range.start);
        self.chunks
            .range(first..range.end)
            .flat_map(|(key, chunk)| {
                let upper = upper(*key);
                chunk.entries.iter().map(move |e| (upper, chunk, e))
            })
            .filter(move |(upper, _, e)| {
                e.start(*upper) >= range.start && e.start(*upper) < range.end
                    || e.start(*upper) < range.start && e.end(*upper) > range.start
            })
            .map(|(upper, chunk, e)| chunk.live(upper, e))
    }

    /// Takes out what starts in a range and was there at `time`.
    pub(crate) fn take(&mut self, range: Range<u64>, time: Time, mut each: impl FnMut(ObjectId)) {
        if range.is_empty() {
            return;
        }
        let first = self.chunks.range(..=range.start).next_back();
        let first = first.map_or(range.start, |(key, _)| *key);
        let mut empty = Vec::new();
        for (key, chunk) in self.chunks.range_mut(first..range.end) {
            chunk.take(upper(*key), &range, time, &mut each);
            if chunk.entries.is_empty() {
                empty.push(*key);
            } else {
                chunk.entries.shrink_to(chunk.entries.len() + STEP);
            }
        }
        for key in empty {
            self.chunks.remove(&key);
        }
    }

    /// Takes out everything that was there at `time`, giving its memory back as it goes.
    pub(crate) fn take_all(&mut self, time: Time, mut each: impl FnMut(ObjectId)) {
        self.chunks.retain(|key, chunk| {
            chunk.take(upper(*key), &(0..u64::MAX), time, &mut each);
            !chunk.entries.is_empty()
        });
    }

    /// All of them, in the order of their addresses.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Live> + '_ {
        self.chunks.iter().flat_map(|(key, chunk)| {
            let upper = upper(*key);
            chunk.entries.iter().map(move |e| chunk.live(upper, e))
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn live(object: u64, address: u64, bytes: u64, born: u64, maker: u64) -> Live {
        Live {
            object: ObjectId(object),
            birth: Birth {
                kind: ObjectKind::Heap,
                made_by: ["malloc", "calloc"][(maker % 2) as usize],
                address: Address(address),
                bytes: Bytes(bytes),
                born: Time(born),
                tid: Some(Tid(maker as u32 % 1000)),
                site: (!maker.is_multiple_of(3)).then_some(SiteId(maker as u32 % 7)),
                reserved: false,
                continues: None,
            },
        }
    }

    fn same(a: &Live, b: &Live) -> bool {
        a.object == b.object && format!("{:?}", a.birth) == format!("{:?}", b.birth)
    }

    /// What a plain map makes of the same steps.
    #[derive(Default)]
    struct Model(BTreeMap<u64, Live>);

    impl Model {
        fn overlapping(&self, range: &Range<u64>) -> Vec<ObjectId> {
            let hit = self.0.values().filter(|l| {
                let (start, end) = (l.birth.address.0, (l.birth.address + l.birth.bytes).0);
                range.contains(&start) || start < range.start && end > range.start
            });
            hit.map(|l| l.object).collect()
        }
    }

    /// Numbers from a seed: xorshift.
    fn next(seed: &mut u64) -> u64 {
        *seed ^= *seed << 13;
        *seed ^= *seed >> 7;
        *seed ^= *seed << 17;
        *seed
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn it_holds_what_a_plain_map_holds(
            seed in 1u64.., steps in 1usize..4000, upwards in any::<bool>(), shrinks in any::<bool>(),
        ) {
            let mut seed = seed;
            let (mut heap, mut model) = (LiveHeap::default(), Model::default());
            // Around a border of the upper halves of addresses.
            let base = (7 << 32) - 0x10000;
            for step in 0..steps as u64 {
                let dice = next(&mut seed) % 100;
                let place = if upwards { step * 40 } else { next(&mut seed) % 0x20000 };
                let (address, bytes) = (base + place / 8 * 8, 1 + next(&mut seed) % 64);
                let frees = if shrinks && step > steps as u64 / 2 { 80 } else { 30 };
                if dice < frees {
                    let known = model.0.range(address..).next().map(|(a, _)| *a);
                    let address = known.unwrap_or(address);
                    let (got, expected) = (heap.remove(address), model.0.remove(&address));
                    prop_assert_eq!(got.is_some(), expected.is_some());
                    if let (Some(a), Some(b)) = (got, expected) {
                        prop_assert!(same(&a, &b));
                    }
                } else if dice == 99 {
                    let (range, time) = (address..address + 4096, Time(next(&mut seed) % (step + 1)));
                    let mut got = Vec::new();
                    heap.take(range.clone(), time, |object| got.push(object));
                    let goes = |l: &Live| range.contains(&l.birth.address.0) && l.birth.born <= time;
                    let expected: Vec<ObjectId> =
                        model.0.values().filter(|l| goes(l)).map(|l| l.object).collect();
                    model.0.retain(|_, l| !goes(l));
                    prop_assert_eq!(got, expected);
                } else {
                    let place = address..address + bytes;
                    let hit = model.overlapping(&place);
                    let found: Vec<ObjectId> =
                        heap.overlapping(place.clone()).map(|l| l.object).collect();
                    prop_assert_eq!(&found, &hit);
                    prop_assert_eq!(heap.is_free(&place), hit.is_empty());
                    if hit.is_empty() {
                        let live = live(step << 20, address, bytes, step, next(&mut seed));
                        heap.insert(&live);
                        model.0.insert(address, live);
                    }
                }
            }
            let all: Vec<Live> = heap.iter().collect();
            prop_assert_eq!(all.len(), model.0.len());
            prop_assert!(all.iter().zip(model.0.values()).all(|(a, b)| same(a, b)));
            prop_assert_eq!(heap.is_empty(), model.0.is_empty());
            let mut gone = 0;
            heap.take_all(Time(u64::MAX), |_| gone += 1);
            prop_assert_eq!(gone, model.0.len());
            prop_assert!(heap.is_empty());
        }
    }

    /// The largest numbers that an entry holds come back.
    #[test]
    fn sizes_and_numbers_are_wide() {
        let mut heap = LiveHeap::default();
        let most = live(WIDE_MAX, 0x7fff_ffff_f000, WIDE_MAX, u64::MAX - 1, 5);
        heap.insert(&most);
        assert!(
            heap.remove(0x7fff_ffff_f000)
                .is_some_and(|l| same(&l, &most))
        );
    }

    /// What a million objects in a row take, in the chunks alone.
    #[test]
    fn objects_in_a_row_fill_their_chunks() {
        let mut heap = LiveHeap::default();
        for i in 0..100_000 {
            heap.insert(&live(i, 0x5555_0000_0000 + i * 4112, 4096, i, 1));
        }
        let room: usize = heap.chunks.values().map(|c| c.entries.capacity()).sum();
        assert!(room < 101_000, "room for {room} objects");
    }
}
