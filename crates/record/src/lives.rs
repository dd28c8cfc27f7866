//! Births and deaths of objects, from whoever tells of them.

use std::collections::{BTreeMap, HashMap};

use varve_model::{Address, Bytes, ObjectId, ObjectKind, PAGE_BYTES, Page, Pid, SiteId, Tid, Time};
use varve_trace::tables::{BirthRow, DeathRow};

/// A forked child is given copies of at most this many of its parent's objects.
const MOST_INHERITED: usize = 100_000;

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
}

#[derive(Clone, Debug)]
struct Live {
    object: ObjectId,
    birth: Birth,
}

/// What lives in one process. Heap objects lie within areas, so the two are kept apart.
#[derive(Debug, Default)]
struct Space {
    heap: BTreeMap<u64, Live>,
    areas: BTreeMap<u64, Live>,
    pools: BTreeMap<u64, Live>,
}

/// All live objects, and the rows of those that were born or died since the last flush.
#[derive(Debug, Default)]
pub(crate) struct Lives {
    next: u64,
    spaces: HashMap<Pid, Space>,
    pub(crate) births: Vec<BirthRow>,
    pub(crate) deaths: Vec<DeathRow>,
    /// Objects of forked children that were not given to them.
    pub(crate) not_inherited: u64,
}

impl Lives {
    fn bear(&mut self, pid: Pid, birth: Birth, pool: bool) -> Live {
        let object = ObjectId(self.next);
        self.next += 1;
        self.births.push(BirthRow {
            object,
            pid,
            kind: birth.kind,
            made_by: birth.made_by.to_owned(),
            address: birth.address,
            bytes: birth.bytes,
            born_ns: birth.born,
            tid: birth.tid,
            site: birth.site,
            pool,
        });
        Live { object, birth }
    }

    fn bury(&mut self, object: ObjectId, died: Time) {
        self.deaths.push(DeathRow {
            object,
            died_ns: died,
        });
    }

    /// A heap object; one that was still there at its address must have died unseen.
    pub(crate) fn allocate(&mut self, pid: Pid, birth: Birth) {
        let (start, end) = (birth.address.0, (birth.address + birth.bytes).0);
        let born = birth.born;
        let live = self.bear(pid, birth, false);
        let space = self.spaces.entry(pid).or_default();
        let mut gone: Vec<ObjectId> = space
            .heap
            .insert(start, live)
            .map(|l| l.object)
            .into_iter()
            .collect();
        // Pages that lie within it are no pools any more.
        let pages = start.div_ceil(PAGE_BYTES)..end / PAGE_BYTES;
        if !pages.is_empty() {
            gone.extend(take_range(&mut space.pools, pages, born).map(|l| l.object));
        }
        for object in gone {
            self.bury(object, born);
        }
    }

    /// The end of a heap object.
    pub(crate) fn free(&mut self, pid: Pid, address: Address, time: Time) {
        let space = self.spaces.entry(pid).or_default();
        if let Some(live) = space.heap.remove(&address.0) {
            self.bury(live.object, time);
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
        };
        let live = self.bear(pid, birth, true);
        let space = self.spaces.entry(pid).or_default();
        if let Some(before) = space.pools.insert(page.0, live) {
            self.bury(before.object, born);
        }
    }

    /// An area: a mapping, a stack, a piece of the brk heap. It replaces what was there.
    pub(crate) fn map(&mut self, pid: Pid, birth: Birth) {
        self.unmap(pid, birth.address, birth.bytes, birth.born);
        let start = birth.address.0;
        let live = self.bear(pid, birth, false);
        self.spaces
            .entry(pid)
            .or_default()
            .areas
            .insert(start, live);
    }

    /// The end of whatever areas lie in a range; an area that lies in it only in part lives on in what
    /// is left of it.
    pub(crate) fn unmap(&mut self, pid: Pid, address: Address, bytes: Bytes, time: Time) {
        let Some(space) = self.spaces.get_mut(&pid) else {
            return;
        };
        // The kernel unmaps whole pages.
        let start = address.0;
        let end = start.saturating_add(bytes.0.div_ceil(PAGE_BYTES) * PAGE_BYTES);
        let before = space.areas.range(..start).next_back().map(|(a, _)| *a);
        let from = before.unwrap_or(start);
        let mut hit: Vec<Live> = Vec::new();
        for (_, live) in space.areas.range(from..end) {
            let reaches = live.birth.address.0 + live.birth.bytes.0 > start;
            // Another thread may have mapped the range anew before this was heard of.
            if reaches && live.birth.born <= time {
                hit.push(live.clone());
            }
        }
        let mut gone: Vec<ObjectId> =
            take_range(&mut space.pools, start / PAGE_BYTES..end / PAGE_BYTES, time)
                .map(|l| l.object)
                .collect();
        gone.extend(take_range(&mut space.heap, start..end, time).map(|l| l.object));
        for live in &hit {
            space.areas.remove(&live.birth.address.0);
            gone.push(live.object);
        }
        for object in gone {
            self.bury(object, time);
        }
        for live in hit {
            let (low, high) = (
                live.birth.address.0,
                (live.birth.address + live.birth.bytes).0,
            );
            for (left, right) in [(low, start), (end, high)] {
                if left < right {
                    let rest = Birth {
                        address: Address(left),
                        bytes: Bytes(right - left),
                        born: time,
                        ..live.birth.clone()
                    };
                    let rest = self.bear(pid, rest, false);
                    let space = self.spaces.entry(pid).or_default();
                    space.areas.insert(left, rest);
                }
            }
        }
    }

    /// The area at exactly this address.
    pub(crate) fn area_at(&self, pid: Pid, address: Address) -> Option<&Birth> {
        Some(&self.spaces.get(&pid)?.areas.get(&address.0)?.birth)
    }

    /// The area that holds this address.
    pub(crate) fn area_of(&self, pid: Pid, address: Address) -> Option<&Birth> {
        let space = self.spaces.get(&pid)?;
        let (_, live) = space.areas.range(..=address.0).next_back()?;
        (address.0 < (live.birth.address + live.birth.bytes).0).then_some(&live.birth)
    }

    /// The end of everything in a process that was there at `time`: exec or exit. What was born
    /// later belongs to the next program and was only heard of earlier.
    pub(crate) fn end_all(&mut self, pid: Pid, time: Time) {
        let Some(space) = self.spaces.remove(&pid) else {
            return;
        };
        let mut next = Space::default();
        let mut sort = |map: BTreeMap<u64, Live>, keep: &mut BTreeMap<u64, Live>| {
            for (key, live) in map {
                if live.birth.born > time {
                    keep.insert(key, live);
                } else {
                    self.deaths.push(DeathRow {
                        object: live.object,
                        died_ns: time,
                    });
                }
            }
        };
        sort(space.heap, &mut next.heap);
        sort(space.areas, &mut next.areas);
        sort(space.pools, &mut next.pools);
        if !(next.heap.is_empty() && next.areas.is_empty() && next.pools.is_empty()) {
            self.spaces.insert(pid, next);
        }
    }

    /// A forked child has its parent's objects, as its own copies.
    pub(crate) fn inherit(&mut self, parent: Pid, child: Pid, time: Time) {
        let Some(space) = self.spaces.get(&parent) else {
            return;
        };
        let all = space.heap.values().map(|l| (0, l));
        let all = all.chain(space.areas.values().map(|l| (1, l)));
        let all = all.chain(space.pools.values().map(|l| (2, l)));
        let mut copies: Vec<(u8, Birth)> = all
            .filter(|(_, l)| l.birth.born <= time)
            .map(|(kind, l)| {
                let birth = Birth {
                    born: time,
                    ..l.birth.clone()
                };
                (kind, birth)
            })
            .collect();
        self.not_inherited += copies.len().saturating_sub(MOST_INHERITED) as u64;
        copies.truncate(MOST_INHERITED);
        for (kind, birth) in copies {
            let key = birth.address.0;
            let live = self.bear(child, birth, kind == 2);
            let space = self.spaces.entry(child).or_default();
            match kind {
                0 => space.heap.entry(key).or_insert(live),
                1 => space.areas.entry(key).or_insert(live),
                _ => space.pools.entry(key / PAGE_BYTES).or_insert(live),
            };
        }
    }
}

/// Takes what starts in a range and was there at `time`.
fn take_range(
    map: &mut BTreeMap<u64, Live>,
    range: std::ops::Range<u64>,
    time: Time,
) -> impl Iterator<Item = Live> {
    let there = map.range(range).filter(|(_, l)| l.birth.born <= time);
    let keys: Vec<u64> = there.map(|(k, _)| *k).collect();
    let taken: Vec<Live> = keys.into_iter().filter_map(|k| map.remove(&k)).collect();
    taken.into_iter()
}

#[cfg(test)]
mod tests {
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
        }
    }

    fn living(lives: &Lives) -> Vec<(u64, u64)> {
        let dead: Vec<ObjectId> = lives.deaths.iter().map(|d| d.object).collect();
        let alive = lives.births.iter().filter(|b| !dead.contains(&b.object));
        let mut list: Vec<_> = alive.map(|b| (b.address.0, b.bytes.0)).collect();
        list.sort_unstable();
        list
    }

    #[test]
    fn unmapping_the_middle_leaves_both_ends() {
        let mut lives = Lives::default();
        lives.map(Pid(1), area(0x10000, 0x10000, 1));
        lives.unmap(Pid(1), Address(0x14000), Bytes(0x1001), Time(2));
        assert_eq!(living(&lives), [(0x10000, 0x4000), (0x16000, 0xa000)]);
    }

    #[test]
    fn mapping_over_replaces() {
        let mut lives = Lives::default();
        lives.map(Pid(1), area(0x10000, 0x4000, 1));
        lives.map(Pid(1), area(0x12000, 0x4000, 2));
        assert_eq!(living(&lives), [(0x10000, 0x2000), (0x12000, 0x4000)]);
        assert_eq!(
            lives.area_of(Pid(1), Address(0x11fff)).map(|b| b.bytes),
            Some(Bytes(0x2000))
        );
        assert!(lives.area_of(Pid(1), Address(0x16000)).is_none());
    }

    #[test]
    fn an_exec_spares_what_was_born_after_it() {
        let mut lives = Lives::default();
        lives.map(Pid(1), area(0x10000, 0x1000, 1));
        lives.map(Pid(1), area(0x20000, 0x1000, 9));
        lives.end_all(Pid(1), Time(5));
        assert_eq!(living(&lives), [(0x20000, 0x1000)]);
    }

    #[test]
    fn a_large_object_ends_the_pools_within_it() {
        let mut lives = Lives::default();
        for page in 16..20 {
            lives.pool(Pid(1), Page(page), Time(1), Tid(1), None);
        }
        lives.allocate(Pid(1), area(0x10800, 0x2800, 2));
        // Pages 17 and 18 lie within; 16 in part, 19 not at all.
        assert_eq!(
            living(&lives),
            [(0x10000, 0x1000), (0x10800, 0x2800), (0x13000, 0x1000)]
        );
    }

    #[test]
    fn a_child_has_copies() {
        let mut lives = Lives::default();
        lives.map(Pid(1), area(0x10000, 0x1000, 1));
        lives.inherit(Pid(1), Pid(2), Time(3));
        lives.end_all(Pid(1), Time(4));
        assert_eq!(lives.births[1].pid, Pid(2));
        assert_eq!(living(&lives).len(), 1);
    }
}
