//! Cache lines and pages that several threads use, from exact addresses.

use std::cmp::Reverse;
use std::collections::HashMap;

use varve_model::{Address, Bytes, Pid, Tid};
use varve_trace::tables::ObjectRow;

use super::chance::apart;
use super::{BlockKind, BlockThread, SharedBlock};

/// Nothing is said of a thread in a block with fewer events.
pub(crate) const MIN_EVENTS: u64 = 5;
/// Nor of a block in which threads took turns less often: one after the other is no contention.
pub(crate) const MIN_TURNS: u64 = 4;
/// The chance that any of the blocks called false sharing is there by luck is at most this.
pub(crate) const SURE: f64 = 0.01;
/// Blocks in memory at once.
const MAX_BLOCKS: usize = 1 << 20;
/// Blocks that are listed.
const LISTED: usize = 100;
/// Blocks that one access is entered in, at most: a copy of megabytes is nobody's contention.
const MAX_CROSSED: u64 = 4;
/// An access whose size is not known counts as all of the aligned bytes around it.
const UNKNOWN_BYTES: u64 = 16;
/// No known object lies there.
const NOBODY: u32 = u32::MAX;

/// One access.
#[derive(Clone, Copy, Debug)]
pub(super) struct Access {
    pub(super) pid: Pid,
    pub(super) thread: u32,
    pub(super) object: Option<u32>,
    pub(super) address: Address,
    pub(super) bytes: Option<Bytes>,
    pub(super) write: bool,
    pub(super) weight: u64,
}

/// Blocks of equal size, 64 units each.
pub(super) struct Blocks {
    /// The size of a unit, as a power of two of bytes.
    unit: u32,
    /// Whether the events are a sample of all accesses; else each is the first to its page in an interval, of unknown size.
    is_sampled: bool,
    known: HashMap<(u32, Pid, u64), Block>,
    /// Blocks with no more events were dropped to make room; see Manku and Motwani, "Approximate frequency counts over
    /// data streams", 2002 (lossy counting).
    floor: u64,
    most: usize,
    /// The sum of the squares of all weights, for the errors of shares.
    square: f64,
}

#[derive(Default)]
struct Block {
    events: u64,
    turns: u64,
    last: u32,
    spots: Vec<Spot>,
}

/// A stretch of units that a thread accesses.
struct Spot {
    thread: u32,
    first: u8,
    end: u8,
    write: bool,
    events: u64,
    weight: u64,
    square: f64,
}

impl Spot {
    fn mask(&self) -> u64 {
        mask(self.first, self.end)
    }
}

fn mask(first: u8, end: u8) -> u64 {
    match end.saturating_sub(first) {
        0 => 0,
        length => (u64::MAX >> (64 - u32::from(length))) << first,
    }
}

impl Blocks {
    /// Cache lines, by bytes.
    pub(super) fn lines(is_sampled: bool) -> Blocks {
        Blocks::new(0, is_sampled)
    }

    /// Pages, by cache lines.
    pub(super) fn pages(is_sampled: bool) -> Blocks {
        Blocks::new(6, is_sampled)
    }

    fn new(unit: u32, is_sampled: bool) -> Blocks {
        Blocks {
            unit,
            is_sampled,
            known: HashMap::new(),
            floor: 0,
            most: MAX_BLOCKS,
            square: 0.0,
        }
    }

    pub(super) fn floor(&self) -> u64 {
        self.floor
    }

    pub(super) fn add(&mut self, access: &Access) {
        let (address, bytes) = match access.bytes {
            Some(bytes) => (access.address.0, bytes.0.max(1)),
            None => (access.address.0 & !(UNKNOWN_BYTES - 1), UNKNOWN_BYTES),
        };
        self.square += (access.weight as f64).powi(2);
        let shift = self.unit + 6;
        let last = address.saturating_add(bytes - 1);
        let (first_block, last_block) = (address >> shift, last >> shift);
        for number in first_block..=last_block.min(first_block + MAX_CROSSED - 1) {
            let base = number << shift;
            // At most 63.
            let first = (address.max(base) - base) >> self.unit;
            let end = ((last - base) >> self.unit).min(63);
            self.enter(number, first as u8, end as u8 + 1, access);
        }
    }

    fn enter(&mut self, number: u64, first: u8, end: u8, access: &Access) {
        if self.known.len() >= self.most {
            self.floor += 1;
            let floor = self.floor;
            self.known.retain(|_, block| block.events > floor);
        }
        let key = (access.object.unwrap_or(NOBODY), access.pid, number);
        let floor = self.floor;
        let block = self.known.entry(key).or_insert_with(|| Block {
            // What was dropped may have been this one.
            events: floor,
            last: access.thread,
            ..Block::default()
        });
        block.events += 1;
        block.turns += u64::from(block.last != access.thread);
        block.last = access.thread;
        let same = |s: &&mut Spot| {
            (s.thread, s.first, s.end, s.write) == (access.thread, first, end, access.write)
        };
        let weight = access.weight;
        let square = (weight as f64).powi(2);
        match block.spots.iter_mut().find(same) {
            Some(spot) => {
                spot.events += 1;
                spot.weight = spot.weight.saturating_add(weight);
                spot.square += square;
            }
            None => block.spots.push(Spot {
                thread: access.thread,
                first,
                end,
                write: access.write,
                events: 1,
                weight,
                square,
            }),
        }
    }

    /// The blocks that several threads use and one of them writes, most weight first, and how many were tested.
    /// `total` is the weight of all accesses; `tids` are the threads by their positions.
    pub(super) fn found(
        &self,
        objects: &[ObjectRow],
        tids: &[Tid],
        total: u64,
    ) -> (Vec<SharedBlock>, u64) {
        let mut found: Vec<SharedBlock> = self
            .known
            .iter()
            .filter(|(_, block)| block.turns >= MIN_TURNS)
            .filter_map(|(key, block)| self.judge(*key, block, objects, tids, total))
            .collect();
        let tested = found.len() as u64;
        // Bonferroni: of so many tests, none should be passed by luck.
        found.retain(|b| b.kind == BlockKind::TrueSharing || b.chance * tested as f64 <= SURE);
        found.sort_by_key(|b| (Reverse(b.weight), b.address, b.object));
        found.truncate(LISTED);
        (found, tested)
    }

    fn judge(
        &self,
        (object, _, number): (u32, Pid, u64),
        block: &Block,
        objects: &[ObjectRow],
        tids: &[Tid],
        total: u64,
    ) -> Option<SharedBlock> {
        let mut by_thread: HashMap<u32, u64> = HashMap::new();
        for spot in &block.spots {
            *by_thread.entry(spot.thread).or_default() += spot.events;
        }
        let mut busiest: Vec<(u32, u64)> = by_thread.into_iter().collect();
        busiest.sort_by_key(|&(thread, events)| (Reverse(events), thread));
        let [(one, _), (other, least), ..] = busiest[..] else {
            return None;
        };
        let of = |thread: u32| block.spots.iter().filter(move |s| s.thread == thread);
        let bits = |thread: u32, write: bool| {
            of(thread)
                .filter(|s| s.write || !write)
                .fold(0, |bits, s| bits | s.mask())
        };
        let writes = bits(one, true) | bits(other, true);
        if least < MIN_EVENTS || writes == 0 {
            return None;
        }
        let conflict =
            (bits(one, true) & bits(other, false)) | (bits(other, true) & bits(one, false));
        // Bytes that both only read keep them together as well, but are no conflict.
        let common = bits(one, false) & bits(other, false);
        let kind = match (conflict, common) {
            (0, 0) => BlockKind::FalseSharing,
            (0, _) => return None,
            // Sixteen bytes around each address: whether it is the same ones is not known.
            _ if self.unit == 0 && !self.is_sampled => return None,
            _ => BlockKind::TrueSharing,
        };
        let chance = match kind {
            BlockKind::TrueSharing => 0.0,
            BlockKind::FalseSharing => apart(&places(of(one)), &places(of(other))),
        };
        let weight = block.spots.iter().map(|s| s.weight).sum::<u64>();
        let square = block.spots.iter().map(|s| s.square).sum::<f64>();
        let total = (total as f64).max(1.0);
        let share = weight as f64 / total;
        // Of a ratio of weighted samples; with equal weights sqrt(p (1 - p) / n).
        let rest = (self.square - square).max(0.0);
        let error = match self.is_sampled {
            true => (square * (1.0 - share).powi(2) + rest * share.powi(2)).sqrt() / total,
            false => 0.0,
        };
        let row = objects.get(object as usize);
        let thread = |thread: u32| BlockThread {
            thread,
            tid: tids.get(thread as usize).copied().unwrap_or_default(),
            events: of(thread).map(|s| s.events).sum(),
            writes: of(thread).filter(|s| s.write).map(|s| s.events).sum(),
            bytes: stretches(bits(thread, false))
                .map(|(from, to)| (from << self.unit, to << self.unit))
                .collect(),
        };
        Some(SharedBlock {
            object: row.map(|o| o.object),
            name: row.map_or_else(String::new, |o| o.name.clone()),
            address: Address(number << (self.unit + 6)),
            bytes: Bytes(64 << self.unit),
            kind,
            events: block.spots.iter().map(|s| s.events).sum(),
            weight,
            share,
            share_error: error,
            turns: block.turns,
            chance,
            threads: [thread(one), thread(other)],
        })
    }
}

/// Events of each place: spots that overlap are one.
fn places<'a>(spots: impl Iterator<Item = &'a Spot>) -> Vec<u64> {
    let mut spots: Vec<(u8, u8, u64)> = spots.map(|s| (s.first, s.end, s.events)).collect();
    spots.sort_unstable();
    let mut places: Vec<(u8, u64)> = Vec::new();
    for (first, end, events) in spots {
        match places.last_mut() {
            Some((reach, sum)) if first < *reach => {
                *reach = end.max(*reach);
                *sum += events;
            }
            _ => places.push((end, events)),
        }
    }
    places.into_iter().map(|(_, events)| events).collect()
}

/// The stretches of set bits: from, to.
fn stretches(bits: u64) -> impl Iterator<Item = (u32, u32)> {
    let mut rest = bits;
    std::iter::from_fn(move || {
        (rest != 0).then(|| {
            let from = rest.trailing_zeros();
            let length = (rest >> from).trailing_ones();
            rest &= !mask(from as u8, (from + length) as u8);
            (from, from + length)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(thread: u32, address: u64, write: bool) -> Access {
        Access {
            pid: Pid(1),
            thread,
            object: None,
            address: Address(address),
            bytes: Some(Bytes(8)),
            write,
            weight: 100,
        }
    }

    fn kinds(accesses: &[Access]) -> Vec<BlockKind> {
        let mut blocks = Blocks::lines(true);
        accesses.iter().for_each(|a| blocks.add(a));
        let (found, _) = blocks.found(&[], &[], 100 * accesses.len() as u64);
        found.iter().map(|b| b.kind).collect()
    }

    fn turns(n: u64, one: Access, other: Access) -> Vec<Access> {
        (0..n).flat_map(|_| [one, other]).collect()
    }

    #[test]
    fn different_bytes_are_false_sharing_and_the_same_bytes_true() {
        let apart = turns(20, access(0, 4096, true), access(1, 4104, false));
        assert_eq!(kinds(&apart), [BlockKind::FalseSharing]);
        let same = turns(20, access(0, 4096, true), access(1, 4096, false));
        assert_eq!(kinds(&same), [BlockKind::TrueSharing]);
        let partly = turns(20, access(0, 4096, true), access(1, 4100, false));
        assert_eq!(kinds(&partly), [BlockKind::TrueSharing]);
    }

    #[test]
    fn silent_where_it_should_be() {
        let reads = turns(20, access(0, 4096, false), access(1, 4104, false));
        assert!(kinds(&reads).is_empty(), "nobody writes");
        let lines = turns(20, access(0, 4096, true), access(1, 4160, true));
        assert!(kinds(&lines).is_empty(), "two lines");
        let few = turns(4, access(0, 4096, true), access(1, 4104, true));
        assert!(kinds(&few).is_empty(), "four events each");
        // Luck: one in 126 is too likely.
        let five = turns(5, access(0, 4096, true), access(1, 4104, true));
        assert_eq!(kinds(&five), [BlockKind::FalseSharing], "2 of 252");
        let mut after = vec![access(0, 4096, true); 20];
        after.extend([access(1, 4104, true); 20]);
        assert!(kinds(&after).is_empty(), "one after the other");
    }

    #[test]
    fn places_that_were_seen_once_are_no_evidence() {
        // Both threads wander over a page; no line was seen twice.
        let mut blocks = Blocks::pages(true);
        for i in 0..12 {
            blocks.add(&access(0, 4096 + i * 128, true));
            blocks.add(&access(1, 4096 + i * 128 + 64, true));
        }
        assert_eq!(blocks.found(&[], &[], 2400), (vec![], 1));
        for _ in 0..10 {
            for i in 0..8 {
                blocks.add(&access(0, 8192 + i * 64, true));
                blocks.add(&access(1, 8192 + 2048 + i * 64, true));
            }
        }
        let (found, tested) = blocks.found(&[], &[], 100_000);
        assert_eq!((found.len(), tested), (1, 2));
        assert_eq!(found[0].threads[0].bytes, [(0, 512)]);
        assert_eq!(found[0].threads[1].bytes, [(2048, 2560)]);
    }

    #[test]
    fn room_is_made_by_forgetting_the_rare() {
        let mut blocks = Blocks::lines(true);
        blocks.most = 100;
        for i in 0..1000_u64 {
            blocks.add(&access(0, 4096, true));
            blocks.add(&access(1, 4104, true));
            blocks.add(&access(2, (1 << 20) + i * 64, true));
        }
        assert!(blocks.floor() > 0 && blocks.known.len() <= 100);
        let (found, _) = blocks.found(&[], &[], 300_000);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].turns, 1999);
    }

    #[test]
    fn an_access_over_the_end_of_a_line_is_in_both() {
        let mut blocks = Blocks::lines(true);
        blocks.add(&access(0, 4096 + 60, true));
        assert_eq!(blocks.known.len(), 2);
        let large = Access {
            bytes: Some(Bytes(1 << 30)),
            ..access(0, 1 << 20, true)
        };
        blocks.add(&large);
        assert_eq!(blocks.known.len(), 6);
        let last = Access {
            address: Address(u64::MAX),
            ..large
        };
        blocks.add(&last);
    }
}
