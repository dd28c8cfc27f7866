//! Births and deaths of objects, from whoever reports them.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use varve_model::{Address, Bytes, ObjectId, ObjectKind, PAGE_BYTES, Page, Pid, SiteId, Tid, Time};
use varve_trace::tables::{BirthRow, DeathRow};

use crate::state::live_heap::LiveHeap;

/// A forked child is given copies of at most this many of its parent's objects.
const MAX_INHERITED: usize = 100_000;

/// What made the stack of a thread, as the preload library reports it.
pub(crate) const STACK: &str = "stack";
/// What made it in a forked child: a copy of the parent's.
pub(crate) const COPIED_STACK: &str = "copied stack";

/// An object that comes to be.
#[derive(Clone, Debug)]
pub(crate) struct Birth {
    pub(crate) kind: ObjectKind,
    pub(crate) made_by: &'static str,
    pub(crate) address: Address,
    pub(crate) bytes: Bytes,
    pub(crate) born: Time,
    pub(crate) tid: Option<Tid>,
    pub(crate) site: Option<SiteId>,
    /// Address space that cannot be accessed.
    pub(crate) reserved: bool,
    /// The object that it came of.
    pub(crate) continues: Option<ObjectId>,
}

/// An object that objects.
#[derive(Clone, Debug)]
pub(crate) struct Live {
    pub(crate) object: ObjectId,
    pub(crate) birth: Birth,
}

/// What lives in one process. Heap objects lie within areas, and large ones within pages that were pools:
/// so each has a place of its own.
#[derive(Debug, Default)]
struct Space {
    heap: LiveHeap,
    areas: BTreeMap<u64, Live>,
    pools: LiveHeap,
}

/// All live objects, and the rows of those that were born or died since the last flush.
#[derive(Debug, Default)]
pub(crate) struct LiveObjects {
    next: u64,
    spaces: HashMap<Pid, Space>,
    pub(crate) births: Vec<BirthRow>,
    pub(crate) deaths: Vec<DeathRow>,
    /// Objects of forked children that were not given to them.
    pub(crate) not_inherited: u64,
}

/// Rows that are gathered at most before they are written, whatever the time: memory stays bounded.
const MAX_ROWS: usize = 1 << 15;

impl LiveObjects {
    /// Whether so much has come that it should be written.
    pub(crate) fn is_large(&self) -> bool {
        self.births.len().max(self.deaths.len()) > MAX_ROWS
    }

    fn begin(&mut self, pid: Pid, birth: Birth, pool: bool) -> Live {
        let object = ObjectId(self.next);
        self.next += 1;
        self.births.push(BirthRow {
            object,
            pid,
            kind: birth.kind,
            made_by: Cow::Borrowed(birth.made_by),
            address: birth.address,
            bytes: birth.bytes,
            born_ns: birth.born,
            tid: birth.tid,
            site: birth.site,
            pool,
            reserved: birth.reserved,
            continues: birth.continues,
        });
        Live { object, birth }
    }

    /// A heap object; what was still there at its place must have died unseen.
    pub(crate) fn allocate(&mut self, pid: Pid, birth: Birth) {
        let (start, end) = (birth.address.0, (birth.address + birth.bytes).0);
        let born = birth.born;
        let live = self.begin(pid, birth, false);
        let space = self.spaces.entry(pid).or_default();
        let deaths = &mut self.deaths;
        let mut note_end = |object| deaths.push(death(object, born));
        // Two of no size have two addresses.
        let place = start..end.max(start + 1);
        if !space.heap.is_free(&place) {
            let over: Vec<Live> = space.heap.overlapping(place).collect();
            for old in over {
                space.heap.remove(old.birth.address.0);
                note_end(old.object);
            }
        }
        space.heap.insert(&live);
        // Pages that lie within it are no pools any more.
        if !space.pools.is_empty() {
            let pages = start.div_ceil(PAGE_BYTES) * PAGE_BYTES..end / PAGE_BYTES * PAGE_BYTES;
            space.pools.take(pages, born, note_end);
        }
    }

    /// The end of a heap object.
    pub(crate) fn free(&mut self, pid: Pid, address: Address, time: Time) {
        let space = self.spaces.entry(pid).or_default();
        if let Some(live) = space.heap.remove(address.0) {
            self.deaths.push(death(live.object, time));
        }
    }

    /// A page of small objects.
    pub(crate) fn pool(
        &mut self,
        pid: Pid,
        page: Page,
        born: Time,
        tid: Tid,
        site: Option<SiteId>,
    ) {
        let birth = Birth {
            kind: ObjectKind::Heap,
            made_by: "pool",
            address: page.address(),
            bytes: Bytes(PAGE_BYTES),
            born,
            tid: Some(tid),
            site,
            reserved: false,
            continues: None,
        };
        let live = self.begin(pid, birth, true);
        let space = self.spaces.entry(pid).or_default();
        if let Some(before) = space.pools.remove(page.address().0) {
            self.deaths.push(death(before.object, born));
        }
        space.pools.insert(&live);
    }

    /// An area: a mapping, a stack, a piece of the brk heap. It replaces what was there before it; what
    /// was heard of earlier and yet born later replaces it.
    pub(crate) fn map(&mut self, pid: Pid, birth: Birth) {
        self.unmap(pid, birth.address, birth.bytes, birth.born);
        let later = self.take_areas(pid, birth.address, birth.bytes, Time(u64::MAX));
        let live = self.begin(pid, birth, false);
        self.put_area(pid, live);
        for live in later {
            self.unmap(pid, live.birth.address, live.birth.bytes, live.birth.born);
            self.put_area(pid, live);
        }
    }

    fn put_area(&mut self, pid: Pid, live: Live) {
        let space = self.spaces.entry(pid).or_default();
        space.areas.insert(live.birth.address.0, live);
    }

    /// Takes out the areas that lie in a range, if only with a part of them, and were there at `time`;
    /// in the order of their births.
    fn take_areas(&mut self, pid: Pid, address: Address, bytes: Bytes, time: Time) -> Vec<Live> {
        let Some(space) = self.spaces.get_mut(&pid) else {
            return Vec::new();
        };
        let (start, end) = whole_pages(address, bytes);
        let before = space.areas.range(..start).next_back().map(|(a, _)| *a);
        let hit: Vec<u64> = space
            .areas
            .range(before.unwrap_or(start)..end.max(start))
            .filter(|(_, l)| (l.birth.address + l.birth.bytes).0 > start && l.birth.born <= time)
            .map(|(a, _)| *a)
            .collect();
        let taken = hit.iter().filter_map(|a| space.areas.remove(a));
        let mut taken: Vec<Live> = taken.collect();
        taken.sort_by_key(|l| l.birth.born);
        taken
    }

    /// The end of whatever areas lie in a range; an area that lies in it only in part lives on in what
    /// is left of it.
    pub(crate) fn unmap(&mut self, pid: Pid, address: Address, bytes: Bytes, time: Time) {
        let Some(space) = self.spaces.get_mut(&pid) else {
            return;
        };
        let (start, end) = whole_pages(address, bytes);
        let deaths = &mut self.deaths;
        let mut note_end = |object| deaths.push(death(object, time));
        space.pools.take(start..end, time, &mut note_end);
        space.heap.take(start..end, time, &mut note_end);
        // Another thread may have mapped the range anew before this was heard of.
        for old in self.take_areas(pid, address, bytes, time) {
            self.deaths.push(death(old.object, time));
            let (low, high) = (old.birth.address.0, (old.birth.address + old.birth.bytes).0);
            for (left, right) in [(low, start), (end, high)] {
                if left < right {
                    let rest = Birth {
                        address: Address(left),
                        bytes: Bytes(right - left),
                        born: time,
                        continues: Some(old.object),
                        ..old.birth.clone()
                    };
                    let rest = self.begin(pid, rest, false);
                    self.put_area(pid, rest);
                }
            }
        }
    }

    /// The area at exactly this address.
    pub(crate) fn area_at(&self, pid: Pid, address: Address) -> Option<&Live> {
        self.spaces.get(&pid)?.areas.get(&address.0)
    }

    /// The area that holds this address.
    pub(crate) fn area_of(&self, pid: Pid, address: Address) -> Option<&Live> {
        let space = self.spaces.get(&pid)?;
        let (_, live) = space.areas.range(..=address.0).next_back()?;
        (address.0 < (live.birth.address + live.birth.bytes).0).then_some(live)
    }

    /// The area that ends right at this address.
    pub(crate) fn area_before(&self, pid: Pid, address: u64) -> Option<&Live> {
        let before = Address(address.checked_sub(1)?);
        let live = self.area_of(pid, before)?;
        ((live.birth.address + live.birth.bytes).0 == address).then_some(live)
    }

    /// The end of everything in a process that was there at `time`: exec or exit. What was born
    /// later belongs to the next program and was only heard of earlier.
    pub(crate) fn end_all(&mut self, pid: Pid, time: Time) {
        let Some(space) = self.spaces.get_mut(&pid) else {
            return;
        };
        let deaths = &mut self.deaths;
        let mut note_end = |object| deaths.push(death(object, time));
        space.heap.take_all(time, &mut note_end);
        space.pools.take_all(time, &mut note_end);
        space.areas.retain(|_, live| {
            let stays = live.birth.born > time;
            if !stays {
                note_end(live.object);
            }
            stays
        });
        if space.heap.is_empty() && space.areas.is_empty() && space.pools.is_empty() {
            self.spaces.remove(&pid);
        }
    }

    /// A forked child has its parent's objects, as its own copies: all, or where `touched` says which memory it has used,
    /// those that lie there. Of a child that has ended nothing else is of interest.
    pub(crate) fn inherit(
        &mut self,
        parent: Pid,
        child: Pid,
        time: Time,
        touched: Option<&[Range<u64>]>,
    ) {
        let Some(space) = self.spaces.get(&parent) else {
            return;
        };
        let is_of_use = |birth: &Birth| {
            let Some(touched) = touched else {
                return true;
            };
            let (start, end) = (birth.address.0, (birth.address + birth.bytes).0);
            let at = touched.partition_point(|t| t.end <= start);
            touched.get(at).is_some_and(|t| t.start < end)
        };
        let heap = space.heap.iter().map(|l| (Place::Heap, l.birth));
        let areas = space.areas.values().map(|l| (Place::Area, l.birth.clone()));
        let pools = space.pools.iter().map(|l| (Place::Pool, l.birth));
        let mut copies: Vec<(Place, Birth)> = Vec::new();
        for (place, birth) in areas.chain(heap).chain(pools) {
            if birth.born > time || !is_of_use(&birth) {
                continue;
            }
            if copies.len() == MAX_INHERITED {
                self.not_inherited += 1;
            } else {
                copies.push((
                    place,
                    Birth {
                        born: time,
                        continues: None,
                        ..birth
                    },
                ));
            }
        }
        for (place, mut birth) in copies {
            if place == Place::Area {
                // The thread whose stack it is does not live here.
                if birth.made_by == STACK {
                    birth.made_by = COPIED_STACK;
                }
                self.map(child, birth);
                continue;
            }
            let start = birth.address.0;
            let whole = start..start.saturating_add(birth.bytes.0.max(1));
            let live = self.begin(child, birth, place == Place::Pool);
            let space = self.spaces.entry(child).or_default();
            let there = match place {
                Place::Pool => &mut space.pools,
                _ => &mut space.heap,
            };
            if there.is_free(&whole) {
                there.insert(&live);
            } else {
                // The child has put something of its own there since.
                let own = there.overlapping(whole).map(|l| l.birth.born).min();
                self.deaths.push(death(live.object, own.unwrap_or(time)));
            }
        }
    }
}

/// Where a process keeps an object.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Heap,
    Area,
    Pool,
}

fn death(object: ObjectId, died_ns: Time) -> DeathRow {
    DeathRow { object, died_ns }
}

/// The start and end of a range that the kernel unmaps: whole pages.
fn whole_pages(address: Address, bytes: Bytes) -> (u64, u64) {
    let start = address.0;
    let bytes = bytes.0.div_ceil(PAGE_BYTES).saturating_mul(PAGE_BYTES);
    (start, start.saturating_add(bytes))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn area(address: u64, bytes: u64, born: u64) -> Birth {
        Birth {
            kind: ObjectKind::Mapping,
            made_by: "mmap",
            address: Address(address),
            bytes: Bytes(bytes),
            born: Time(born),
            tid: None,
            site: None,
            reserved: false,
            continues: None,
        }
    }

    fn heap(address: u64, bytes: u64, born: u64) -> Birth {
        Birth {
            kind: ObjectKind::Heap,
            made_by: "malloc",
            ..area(address, bytes, born)
        }
    }

    fn living(objects: &LiveObjects) -> Vec<(u64, u64)> {
        let dead: Vec<ObjectId> = objects.deaths.iter().map(|d| d.object).collect();
        let alive = objects.births.iter().filter(|b| !dead.contains(&b.object));
        let mut list: Vec<_> = alive.map(|b| (b.address.0, b.bytes.0)).collect();
        list.sort_unstable();
        list
    }

    #[test]
    fn unmapping_the_middle_leaves_both_ends() {
        let mut objects = LiveObjects::default();
        objects.map(Pid(1), area(0x10000, 0x10000, 1));
        objects.unmap(Pid(1), Address(0x14000), Bytes(0x1001), Time(2));
        assert_eq!(living(&objects), [(0x10000, 0x4000), (0x16000, 0xa000)]);
    }

    #[test]
    fn mapping_over_replaces() {
        let mut objects = LiveObjects::default();
        objects.map(Pid(1), area(0x10000, 0x4000, 1));
        objects.map(Pid(1), area(0x12000, 0x4000, 2));
        assert_eq!(living(&objects), [(0x10000, 0x2000), (0x12000, 0x4000)]);
        assert_eq!(
            objects
                .area_of(Pid(1), Address(0x11fff))
                .map(|l| l.birth.bytes),
            Some(Bytes(0x2000))
        );
        assert!(objects.area_of(Pid(1), Address(0x16000)).is_none());
    }

    #[test]
    fn an_exec_spares_what_was_born_after_it() {
        let mut objects = LiveObjects::default();
        objects.map(Pid(1), area(0x10000, 0x1000, 1));
        objects.map(Pid(1), area(0x20000, 0x1000, 9));
        objects.end_all(Pid(1), Time(5));
        assert_eq!(living(&objects), [(0x20000, 0x1000)]);
    }

    #[test]
    fn a_large_object_ends_the_pools_within_it() {
        let mut objects = LiveObjects::default();
        for page in 16..20 {
            objects.pool(Pid(1), Page(page), Time(1), Tid(1), None);
        }
        objects.allocate(Pid(1), area(0x10800, 0x2800, 2));
        // Pages 17 and 18 lie within; 16 in part, 19 not at all.
        assert_eq!(
            living(&objects),
            [(0x10000, 0x1000), (0x10800, 0x2800), (0x13000, 0x1000)]
        );
    }

    #[test]
    fn a_mapping_that_is_heard_of_late_gives_way_to_the_later_one() {
        let mut objects = LiveObjects::default();
        objects.map(Pid(1), area(0x12000, 0x2000, 9));
        objects.map(Pid(1), area(0x10000, 0x8000, 5));
        let mut got: Vec<_> = objects
            .births
            .iter()
            .map(|b| (b.address.0, b.bytes.0, b.born_ns.0))
            .collect();
        got.sort_unstable();
        let expected = [
            (0x10000, 0x2000, 9),
            (0x10000, 0x8000, 5),
            (0x12000, 0x2000, 9),
            (0x14000, 0x4000, 9),
        ];
        assert_eq!(got, expected);
        assert_eq!(
            living(&objects),
            [(0x10000, 0x2000), (0x12000, 0x2000), (0x14000, 0x4000)]
        );
    }

    #[test]
    fn an_object_whose_end_was_lost_ends_when_another_takes_its_place() {
        let mut objects = LiveObjects::default();
        objects.allocate(Pid(1), area(0x10000, 0x100, 1));
        objects.allocate(Pid(1), area(0x10080, 0x100, 2));
        objects.allocate(Pid(1), area(0x10080, 0, 3));
        assert_eq!(living(&objects), [(0x10080, 0)]);
        let died: Vec<u64> = objects.deaths.iter().map(|d| d.died_ns.0).collect();
        assert_eq!(died, [2, 3]);
    }

    proptest! {
        #[test]
        fn no_two_of_a_layer_are_ever_in_one_place(
            steps in prop::collection::vec((0u8..7, 0u64..64, 1u64..32, 0u64..8), 0..80),
        ) {
            let mut objects = LiveObjects::default();
            for (now, (what, at, length, late)) in steps.into_iter().enumerate() {
                let (address, bytes) = (at * 1024, length * 512);
                let now = now as u64 + 8;
                // Ends may be heard of late.
                let time = Time(now - late);
                match what {
                    0..2 => objects.allocate(Pid(1), heap(address, bytes, now)),
                    2 => objects.free(Pid(1), Address(address), Time(now)),
                    3 => objects.pool(Pid(1), Page(at / 4), Time(now), Tid(1), None),
                    4 => objects.map(Pid(1), area(at / 4 * 4096, bytes, now)),
                    5 => objects.unmap(Pid(1), Address(at / 4 * 4096), Bytes(bytes), time),
                    _ if at == 0 => objects.end_all(Pid(1), time),
                    _ => {
                        objects.end_all(Pid(2), Time(now));
                        objects.inherit(Pid(1), Pid(2), Time(now), None);
                    }
                }
            }
            let died = |object| objects.deaths.iter().filter(|d| d.object == object).map(|d| d.died_ns).next();
            let twice: std::collections::HashSet<_> = objects.deaths.iter().map(|d| d.object).collect();
            prop_assert_eq!(twice.len(), objects.deaths.len());
            for (i, a) in objects.births.iter().enumerate() {
                for b in &objects.births[i + 1..] {
                    let alike = a.pid == b.pid && a.pool == b.pool && a.kind == b.kind;
                    let place = a.address < b.address + b.bytes && b.address < a.address + a.bytes;
                    let ends = [a, b].map(|r| died(r.object).unwrap_or(Time(u64::MAX)).max(r.born_ns));
                    let time = a.born_ns < ends[1] && b.born_ns < ends[0];
                    prop_assert!(!(alike && place && time), "{:?} {:?} {:?}", a, b, ends);
                }
            }
        }
    }

    #[test]
    fn a_child_has_copies() {
        let mut objects = LiveObjects::default();
        objects.map(Pid(1), area(0x10000, 0x1000, 1));
        objects.inherit(Pid(1), Pid(2), Time(3), None);
        objects.end_all(Pid(1), Time(4));
        assert_eq!(objects.births[1].pid, Pid(2));
        assert_eq!(living(&objects).len(), 1);
    }
    #[test]
    fn a_child_that_has_ended_has_copies_of_what_it_used() {
        let mut objects = LiveObjects::default();
        objects.map(Pid(1), area(0x10000, 0x4000, 1));
        objects.map(Pid(1), area(0x20000, 0x4000, 1));
        for at in [0x10000, 0x11000, 0x12ff0] {
            objects.allocate(Pid(1), heap(at, 0x100, 2));
        }
        let used = [0x12000..0x13000, 0x30000..0x31000];
        objects.inherit(Pid(1), Pid(2), Time(3), Some(&used));
        let of_child = objects.births.iter().filter(|b| b.pid == Pid(2));
        let mut list: Vec<u64> = of_child.map(|b| b.address.0).collect();
        list.sort_unstable();
        assert_eq!(list, [0x10000, 0x12ff0]);
    }
}
