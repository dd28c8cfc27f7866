//! Sets of pages of lanes, in memory only where they have members.

use std::collections::HashMap;

/// Pages of a block, a bit each.
const BLOCK: u64 = 1 << 15;
const WORDS: usize = (BLOCK / 64) as usize;
/// Blocks of a lane, 8 TiB of it, that are found by their number; those beyond are looked up.
const NEAR: u64 = 1 << 16;
const NONE: u32 = u32::MAX;

/// Pages of a block that has members.
struct Block {
    pages: [u64; WORDS],
    /// Which words of `pages` are not zero, a bit each. Of memory that is used sparsely a block has few members, and to clear all of
    /// it would take longer than everything else.
    used: [u64; WORDS / 64],
}

impl Block {
    const EMPTY: Block = Block {
        pages: [0; WORDS],
        used: [0; WORDS / 64],
    };

    /// Adds the pages of a word that are set in the mask; returns how many were new.
    fn add(&mut self, word: usize, mask: u64) -> u32 {
        let pages = &mut self.pages[word];
        let new = (mask & !*pages).count_ones();
        *pages |= mask;
        self.used[word / 64] |= 1 << (word % 64);
        new
    }

    fn clear(&mut self) {
        for (words, used) in self.pages.chunks_exact_mut(64).zip(&mut self.used) {
            while *used != 0 {
                words[used.trailing_zeros() as usize] = 0;
                *used &= *used - 1;
            }
        }
    }
}

/// A set of pages of lanes.
pub(super) struct PageSet {
    /// For each lane the positions of its blocks.
    near: Vec<Vec<u32>>,
    far: HashMap<(u32, u64), u32>,
    blocks: Vec<Box<Block>>,
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
            let block = &mut self.blocks[position as usize];
            while at < stop {
                let bit = at % 64;
                let take = (64 - bit).min(stop - at);
                let mask = (u64::MAX >> (64 - take)) << bit;
                new += block.add(((at % BLOCK) / 64) as usize, mask);
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
            self.blocks.push(Box::new(Block::EMPTY));
            self.used.push(false);
        }
        *slot
    }

    /// Takes all pages out.
    pub(super) fn clear(&mut self) {
        for position in self.in_use.drain(..) {
            self.blocks[position as usize].clear();
            self.used[position as usize] = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_set_of_pages_is_that_again_and_again() {
        let mut number = 1_u64;
        let mut below = |bound: u64| {
            number = number
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (number >> 33) % bound
        };
        let mut set = PageSet::new(3);
        for _ in 0..20 {
            let mut model: HashSet<(u32, u64)> = HashSet::new();
            for _ in 0..300 {
                let lane = below(3) as u32;
                // Near borders of words, of words of words and of blocks, near and far.
                let border = [64, 64 * 64, BLOCK, NEAR * BLOCK][below(4) as usize];
                let first = border * (below(3) + 1) - below(5);
                let end = first + below(9);
                let new = (first..end).filter(|page| model.insert((lane, *page)));
                let new = new.count() as u32;
                assert_eq!(set.add(lane, first, end), new);
            }
            set.clear();
        }
        assert!(
            set.blocks
                .iter()
                .all(|b| b.pages == [0; WORDS] && b.used == [0; WORDS / 64])
        );
    }

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
