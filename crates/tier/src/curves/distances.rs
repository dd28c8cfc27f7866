//! Stack distances: how many other pages were touched since a page's last touch.
//!
//! Mattson, Gecsei, Slutz, Traiger, "Evaluation techniques for storage hierarchies" (1970): a page is in an LRU memory of C pages
//! exactly if fewer than C others were touched since. They are counted in a Fenwick tree over the time line of last touches
//! (Bennett and Kruskal, 1975), here one of 64-bit words. Pages side by side that were last touched one after the other have one
//! distance, and are counted together.
//!
//! A page that is given back leaves a *hole*: a free frame in every memory that held it. It is filled by the next page that comes from
//! further down, or is new, and moves down to where that was. (Without holes a page that had left would seem to be back.)

use std::collections::BTreeSet;

use crate::stream::Slot;

/// How often each distance came.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    counts: Vec<u64>,
    sum: u64,
}

impl Histogram {
    pub(super) fn add(&mut self, distance: u64, times: u64) {
        let at = distance as usize;
        if at >= self.counts.len() {
            self.counts.resize((at + 1).max(2 * self.counts.len()), 0);
        }
        self.counts[at] += times;
        self.sum += times;
    }

    /// Touches that are not the first of a page's life.
    pub fn touches(&self) -> u64 {
        self.sum
    }

    /// How many of them have a distance of `pages` or more: they find their page gone from a memory of that size.
    pub fn beyond(&self, pages: u64) -> u64 {
        let from = usize::try_from(pages).unwrap_or(usize::MAX);
        self.counts.iter().skip(from).sum()
    }

    /// The same for many sizes, in ascending order, in one pass.
    pub fn beyond_each(&self, sizes: &[u64]) -> Vec<u64> {
        let mut left = self.sum;
        let mut at = 0;
        let beyond = sizes.iter().map(|&pages| {
            let until = usize::try_from(pages).unwrap_or(usize::MAX);
            while at < until.min(self.counts.len()) {
                left -= self.counts[at];
                at += 1;
            }
            left
        });
        beyond.collect()
    }
}

const NEVER: u32 = u32::MAX;

/// The time line of last touches.
pub struct Distances {
    /// Where each slot stands in the time line.
    place: Vec<u32>,
    /// The slot at each place, whether it stands there still or not.
    at: Vec<Slot>,
    /// Bits of places at which a slot stands still.
    bits: Vec<u64>,
    /// Fenwick tree over the number of bits in each word.
    tree: Vec<u32>,
    /// The next place.
    next: usize,
    /// Slots and holes.
    alive: u64,
    /// The places of holes.
    holes: BTreeSet<u32>,
    /// What was found.
    pub histogram: Histogram,
}

impl Distances {
    /// Nothing was touched.
    pub fn new(slots: u32) -> Distances {
        // Slots and holes together are twice the slots at most: there are no more holes than slots were ever in use at once.
        // So the time line is made anew after twice as many touches as there are slots at the least.
        let words = (4 * slots as usize).div_ceil(64) + 1;
        Distances {
            place: vec![NEVER; slots as usize],
            at: vec![0; words * 64],
            bits: vec![0; words],
            tree: vec![0; words + 1],
            next: 0,
            alive: 0,
            holes: BTreeSet::new(),
            histogram: Histogram::default(),
        }
    }

    #[inline]
    fn add(&mut self, word: usize, by: i32) {
        let mut i = word + 1;
        while i < self.tree.len() {
            self.tree[i] = self.tree[i].wrapping_add_signed(by);
            i += i & i.wrapping_neg();
        }
    }

    /// Slots that stand at places up to this one.
    #[inline]
    fn up_to(&self, place: usize) -> u64 {
        let (word, bit) = (place / 64, place % 64);
        let mut sum = u64::from((self.bits[word] << (63 - bit)).count_ones());
        let mut i = word;
        while i > 0 {
            sum += u64::from(self.tree[i]);
            i &= i - 1;
        }
        sum
    }

    /// Changes bits of places `first..end`, all of which are the other way.
    fn turn(&mut self, first: usize, end: usize, on: bool) {
        let mut at = first;
        while at < end {
            let (word, bit) = (at / 64, at % 64);
            let take = (64 - bit).min(end - at);
            let mask = (u64::MAX >> (64 - take)) << bit;
            self.bits[word] ^= mask;
            self.add(word, if on { take as i32 } else { -(take as i32) });
            at += take;
        }
    }

    /// Puts slots at the end of the time line.
    fn append(&mut self, first: Slot, end: Slot) {
        let count = (end - first) as usize;
        let from = self.next;
        for (i, slot) in (first..end).enumerate() {
            self.place[slot as usize] = (from + i) as u32;
            self.at[from + i] = slot;
        }
        self.next += count;
        self.alive += count as u64;
        self.turn(from, from + count, true);
    }

    /// Moves all that stands still together.
    fn compact(&mut self) {
        let mut next = 0;
        let holes = std::mem::take(&mut self.holes);
        for place in 0..self.next {
            if self.bits[place / 64] >> (place % 64) & 1 == 0 {
                continue;
            }
            if holes.contains(&(place as u32)) {
                self.holes.insert(next as u32);
            } else {
                let slot = self.at[place];
                self.at[next] = slot;
                self.place[slot as usize] = next as u32;
            }
            next += 1;
        }
        self.bits.fill(0);
        self.tree.fill(0);
        self.next = next;
        self.turn(0, next, true);
    }

    /// Slots are touched one after the other.
    pub fn touch(&mut self, first: Slot, end: Slot) {
        let mut slot = first;
        while slot < end {
            // As many as fit behind what is there: a run is no longer than all slots.
            if self.next + (end - slot) as usize > self.at.len() {
                self.compact();
            }
            let place = self.place[slot as usize];
            if !self.holes.is_empty() {
                self.touch_one(slot, place);
                slot += 1;
                continue;
            }
            let mut until = slot + 1;
            if place == NEVER {
                while until < end && self.place[until as usize] == NEVER {
                    until += 1;
                }
            } else {
                let mut next = place + 1;
                while until < end && self.place[until as usize] == next {
                    until += 1;
                    next += 1;
                }
                let count = u64::from(until - slot);
                let distance = self.alive - self.up_to(place as usize);
                self.histogram.add(distance, count);
                self.turn(place as usize, next as usize, false);
                self.alive -= count;
            }
            self.append(slot, until);
            slot = until;
        }
    }

    /// A slot is touched while there are holes.
    fn touch_one(&mut self, slot: Slot, place: u32) {
        let is_new = place == NEVER;
        if !is_new {
            let distance = self.alive - self.up_to(place as usize);
            self.histogram.add(distance, 1);
        }
        // The hole that is nearest to the top, where the page comes from further down.
        let hole = self.holes.last().copied();
        let gone = match hole.filter(|&hole| is_new || hole > place) {
            Some(hole) => {
                self.holes.remove(&hole);
                if !is_new {
                    self.holes.insert(place);
                }
                Some(hole)
            }
            None => (!is_new).then_some(place),
        };
        if let Some(gone) = gone {
            self.turn(gone as usize, gone as usize + 1, false);
            self.alive -= 1;
        }
        self.append(slot, slot + 1);
    }

    /// A page is given back.
    pub fn free(&mut self, slot: Slot) {
        let place = std::mem::replace(&mut self.place[slot as usize], NEVER);
        if place != NEVER {
            self.holes.insert(place);
        }
    }
}
