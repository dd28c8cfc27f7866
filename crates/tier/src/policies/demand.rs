//! Policies of demand paging: what is touched in a slower tier comes to the fastest at once, and something else has to leave it.

use super::{Found, Policy};
use crate::frames::{ABSENT, Frames};
use crate::lists::Lists;
use crate::spec::Tiers;
use crate::stream::Slot;

/// What a touch that brings its page to the fastest tier is.
#[inline]
const fn brought(from: u8) -> Found {
    match from {
        ABSENT => Found::staying(0),
        _ => Found {
            at: from,
            serves: 0,
        },
    }
}

/// Puts a page into the fastest tier.
#[inline]
fn bring(frames: &mut Frames, slot: Slot) {
    match frames.tier(slot) {
        ABSENT => frames.make(slot, 0),
        0 => (),
        _ => frames.shift(slot, 0),
    }
}

/// The page that was not touched for the longest time leaves. The tiers behind the fastest are one list each, so that what leaves
/// one is the first to leave the next, too.
pub struct Lru {
    frames: Frames,
    lists: Lists,
}

impl Lru {
    /// No page exists.
    pub fn new(slots: u32, tiers: &Tiers) -> Lru {
        Lru {
            frames: Frames::new(slots, tiers),
            lists: Lists::new(slots, tiers.all().len()),
        }
    }
}

impl Policy for Lru {
    #[inline]
    fn touch(&mut self, slot: Slot, _group: u32) -> Found {
        let from = self.frames.tier(slot);
        if from != ABSENT {
            self.lists.remove(from as usize, slot);
        }
        self.lists.push(0, slot);
        if from == 0 {
            return Found::staying(0);
        }
        bring(&mut self.frames, slot);
        overflow(&mut self.frames, |frames, tier| {
            let gone = self.lists.pop(tier as usize);
            if let Some(gone) = gone {
                self.lists.push(tier as usize + 1, gone);
                frames.shift(gone, tier + 1);
            }
            gone.is_some()
        });
        brought(from)
    }

    fn free(&mut self, slot: Slot) {
        let from = self.frames.drop(slot);
        if from != ABSENT {
            self.lists.remove(from as usize, slot);
        }
    }

    fn frames(&mut self) -> &mut Frames {
        &mut self.frames
    }
}

/// Has pages leave each tier that holds more than it can, for the next one. `demote` says whether there was one.
fn overflow(frames: &mut Frames, mut demote: impl FnMut(&mut Frames, u8) -> bool) {
    for tier in 0..frames.tiers() - 1 {
        while frames.used(tier).0 > frames.capacity(tier) {
            if !demote(frames, tier) {
                return;
            }
        }
    }
}

/// Second chance: pages stand in a circle, and the hand passes by those that were touched since it came by last.
pub struct Clock {
    frames: Frames,
    lists: Lists,
    touched: Vec<bool>,
}

impl Clock {
    /// No page exists.
    pub fn new(slots: u32, tiers: &Tiers) -> Clock {
        Clock {
            frames: Frames::new(slots, tiers),
            lists: Lists::new(slots, tiers.all().len()),
            touched: vec![false; slots as usize],
        }
    }
}

impl Policy for Clock {
    #[inline]
    fn touch(&mut self, slot: Slot, _group: u32) -> Found {
        let from = self.frames.tier(slot);
        if from == 0 {
            self.touched[slot as usize] = true;
            return Found::staying(0);
        }
        if from != ABSENT {
            self.lists.remove(from as usize, slot);
        }
        // What comes is not touched again by the access that brings it.
        self.touched[slot as usize] = false;
        self.lists.push(0, slot);
        bring(&mut self.frames, slot);
        let (lists, touched) = (&mut self.lists, &mut self.touched);
        overflow(&mut self.frames, |frames, tier| {
            let list = tier as usize;
            loop {
                let Some(hand) = lists.pop(list) else {
                    return false;
                };
                if std::mem::take(&mut touched[hand as usize]) {
                    lists.push(list, hand);
                    continue;
                }
                lists.push(list + 1, hand);
                frames.shift(hand, tier + 1);
                return true;
            }
        });
        brought(from)
    }

    fn free(&mut self, slot: Slot) {
        let from = self.frames.drop(slot);
        self.touched[slot as usize] = false;
        if from != ABSENT {
            self.lists.remove(from as usize, slot);
        }
    }

    fn frames(&mut self) -> &mut Frames {
        &mut self.frames
    }
}

/// Generations of the fastest tier at once, as Linux's MAX_NR_GENS.
const GENERATIONS: u32 = 4;
/// Before pages leave there are so many younger than the oldest at least, as its MIN_NR_GENS.
const MIN_GENERATIONS: u32 = 2;

/// As Linux's multi-generational LRU: pages belong to the generation in which they were touched last, and the oldest leaves. A new
/// generation begins when pages are to leave and there are too few. Unlike there, no walk over page tables puts pages into their
/// generation: that is found out when one's turn to leave comes, which leads to the same.
pub struct Generations {
    frames: Frames,
    /// Lists of the fastest tier's generations, then one of each slower tier.
    lists: Lists,
    /// The generation in whose list each page of the fastest tier stands, and in which it was touched last.
    listed: Vec<u32>,
    touched: Vec<u32>,
    oldest: u32,
    youngest: u32,
    /// The generation before the youngest in which a new page begins: 0, or 1 for the second youngest.
    fresh_age: u32,
}

impl Generations {
    /// No page exists. New pages begin so many generations before the youngest; less than two.
    pub fn new(slots: u32, tiers: &Tiers, fresh_age: u32) -> Generations {
        Generations {
            frames: Frames::new(slots, tiers),
            lists: Lists::new(slots, GENERATIONS as usize + tiers.all().len() - 1),
            listed: vec![0; slots as usize],
            touched: vec![0; slots as usize],
            oldest: 0,
            youngest: MIN_GENERATIONS - 1,
            fresh_age: fresh_age.min(MIN_GENERATIONS - 1),
        }
    }

    /// The list of a tier behind the fastest.
    fn behind(tier: u8) -> usize {
        GENERATIONS as usize + tier as usize - 1
    }

    fn enter(&mut self, slot: Slot, generation: u32) {
        self.listed[slot as usize] = generation;
        self.lists.push((generation % GENERATIONS) as usize, slot);
    }

    /// Takes a page of the oldest generation out of the fastest tier's lists.
    fn oldest_page(&mut self) -> Option<Slot> {
        // Each page is looked at once for each generation at most, and there are no more generations than lists.
        for _ in 0..=2 * GENERATIONS {
            self.youngest = self.youngest.max(self.oldest + MIN_GENERATIONS);
            while let Some(slot) = self.lists.pop((self.oldest % GENERATIONS) as usize) {
                let touched = self.touched[slot as usize];
                if touched <= self.oldest {
                    return Some(slot);
                }
                self.enter(slot, touched);
            }
            self.oldest += 1;
        }
        None
    }
}

impl Policy for Generations {
    #[inline]
    fn touch(&mut self, slot: Slot, _group: u32) -> Found {
        let from = self.frames.tier(slot);
        if from == 0 {
            self.touched[slot as usize] = self.youngest;
            return Found::staying(0);
        }
        if from != ABSENT {
            self.lists.remove(Self::behind(from), slot);
        }
        let generation = self.youngest - self.fresh_age;
        self.touched[slot as usize] = generation;
        self.enter(slot, generation);
        bring(&mut self.frames, slot);
        while self.frames.used(0).0 > self.frames.capacity(0) {
            let Some(gone) = self.oldest_page() else {
                break;
            };
            self.frames.shift(gone, 1);
            self.lists.push(Self::behind(1), gone);
        }
        for tier in 1..self.frames.tiers() - 1 {
            while self.frames.used(tier).0 > self.frames.capacity(tier) {
                let Some(gone) = self.lists.pop(Self::behind(tier)) else {
                    break;
                };
                self.frames.shift(gone, tier + 1);
                self.lists.push(Self::behind(tier + 1), gone);
            }
        }
        brought(from)
    }

    fn free(&mut self, slot: Slot) {
        match self.frames.drop(slot) {
            ABSENT => (),
            0 => {
                let list = self.listed[slot as usize] % GENERATIONS;
                self.lists.remove(list as usize, slot);
            }
            from => self.lists.remove(Self::behind(from), slot),
        }
    }

    fn frames(&mut self) -> &mut Frames {
        &mut self.frames
    }
}
