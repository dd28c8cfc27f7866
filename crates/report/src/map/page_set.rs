//! Sets of pages of lanes, in memory only where they have members.

use std::collections::HashMap;

/// Pages of a block, a bit each.
const BLOCK: u64 = 1 << 15;
const WORDS: usize = (BLOCK / 64) as usize;
/// Blocks of a lane, 8 TiB of it, that are found by their number; those beyond are looked up.
const NEAR: u64 = 1 << 16;
const NONE: u32 = u32::MAX;

/// A set of pages of lanes.
pub(super) struct PageSet {
    /// For each lane the positions of its blocks.
    near: Vec<Vec<u32>>,
    far: HashMap<(u32, u64), u32>,
    blocks: Vec<Box<[u64; WORDS]>>,
    /// Whether a block has members, and all that have.
    used: Vec<bool>,
    in_use: Vec<u32>,
}

impl PageSet {
    pub(super) fn new(lanes: usize) -> PageSet {
        PageSet {
            near: vec![Vec::new(); lanes],
            far: HashMap::new(),
            blocks: Vec::new(),
            used: Vec::new(),
            in_use: Vec::new(),
        }
    }

    /// Adds pages `first..end` of a lane; returns how many were new.
    pub(super) fn add(&mut self, lane: u32, first: u64, end: u64) -> u32 {
        let mut new = 0;
        let mut at = first;
        while at < end {
            let number = at / BLOCK;
            let stop = end.min((number + 1) * BLOCK);
            let position = self.block(lane, number);
            if !std::mem::replace(&mut self.used[position as usize], true) {
                self.in_use.push(position);
            }
            let words = &mut self.blocks[position as usize];
            while at < stop {
                let bit = at % 64;
                let take = (64 - bit).min(stop - at);
                let mask = (u64::MAX >> (64 - take)) << bit;
                let word = &mut words[((at % BLOCK) / 64) as usize];
                new += (mask & !*word).count_ones();
                *word |= mask;
                at += take;
            }
        }
        new
    }

    fn block(&mut self, lane: u32, number: u64) -> u32 {
        let slot = if number < NEAR {
            let (blocks, number) = (&mut self.near[lane as usize], number as usize);
            if blocks.len() <= number {
                blocks.resize(number + 1, NONE);
            }
            &mut blocks[number]
        } else {
            self.far.entry((lane, number)).or_insert(NONE)
        };
        if *slot == NONE {
            // 2^32 blocks would be 16 TiB of bits.
            *slot = self.blocks.len() as u32;
            self.blocks.push(Box::new([0; WORDS]));
            self.used.push(false);
        }
        *slot
    }

    /// Takes all pages out.
    pub(super) fn clear(&mut self) {
        for position in self.in_use.drain(..) {
            self.blocks[position as usize].fill(0);
            self.used[position as usize] = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_new_once() {
        let mut set = PageSet::new(2);
        assert_eq!(set.add(0, 60, 70), 10);
        assert_eq!(set.add(0, 65, 75), 5);
        assert_eq!(set.add(1, 65, 75), 10);
        // Over the border of blocks, and where blocks are looked up.
        assert_eq!(set.add(1, BLOCK - 3, BLOCK + 3), 6);
        let far = NEAR * BLOCK;
        assert_eq!(set.add(0, far - 1, far + 1), 2);
        assert_eq!(set.add(0, far - 1, far + 2), 1);
        set.clear();
        assert_eq!(set.add(0, 60, 70), 10);
        assert_eq!(set.add(0, far, far + 2), 2);
    }
}
