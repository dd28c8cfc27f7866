//! Policies that decide where a page is made, and do not look at it again.

use std::sync::Arc;

use super::{Found, Now, Policy};
use crate::frames::{ABSENT, Frames};
use crate::spec::Tiers;
use crate::stream::Slot;

/// Each page is made in the fastest tier that has room.
pub struct FirstTouch {
    frames: Frames,
}

impl FirstTouch {
    /// No page exists.
    pub fn new(slots: u32, tiers: &Tiers) -> FirstTouch {
        FirstTouch {
            frames: Frames::new(slots, tiers),
        }
    }
}

impl Policy for FirstTouch {
    #[inline]
    fn touch(&mut self, slot: Slot, _group: u32) -> Found {
        let mut tier = self.frames.tier(slot);
        if tier == ABSENT {
            tier = self.frames.with_room(0);
            self.frames.make(slot, tier);
        }
        Found::staying(tier)
    }

    fn frames(&mut self) -> &mut Frames {
        &mut self.frames
    }
}

/// Pages are made in one tier after the other, by weight.
pub struct Interleave {
    frames: Frames,
    /// Pages for each tier in a row.
    weights: Vec<u32>,
    turn: u8,
    /// Pages that the tier whose turn it is has had.
    had: u32,
}

impl Interleave {
    /// No page exists. Each tier gets as many pages in a row as its weight says; at least one weight is not 0.
    pub fn new(slots: u32, tiers: &Tiers, weights: Vec<u32>) -> Interleave {
        Interleave {
            frames: Frames::new(slots, tiers),
            weights,
            turn: 0,
            had: 0,
        }
    }

    fn next(&mut self) -> u8 {
        for _ in 0..=self.weights.len() {
            if self.had < self.weights[self.turn as usize] {
                self.had += 1;
                return self.turn;
            }
            self.had = 0;
            self.turn = (self.turn + 1) % self.frames.tiers();
        }
        self.turn
    }
}

impl Policy for Interleave {
    #[inline]
    fn touch(&mut self, slot: Slot, _group: u32) -> Found {
        let mut tier = self.frames.tier(slot);
        if tier == ABSENT {
            let meant = self.next();
            tier = match self.frames.free(meant) {
                0 => self.frames.with_room(0),
                _ => meant,
            };
            self.frames.make(slot, tier);
        }
        Found::staying(tier)
    }

    fn frames(&mut self) -> &mut Frames {
        &mut self.frames
    }
}

/// A part of a group whose pages lie in another tier than the rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spill {
    /// The group.
    pub group: u32,
    /// The pages of the part, in ascending order.
    pub slots: Arc<[Slot]>,
    /// The tier of the part.
    pub tier: u8,
}

/// The tier of each group of objects, from an interval on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// The first interval.
    pub from: u32,
    /// The tier of each group.
    pub tiers: Vec<u8>,
    /// A part that lies elsewhere.
    pub spill: Option<Spill>,
}

impl Placement {
    /// The tier that is meant for a page.
    #[inline]
    pub fn tier(&self, slot: Slot, group: u32) -> u8 {
        if let Some(spill) = &self.spill
            && spill.group == group
            && spill.slots.binary_search(&slot).is_ok()
        {
            return spill.tier;
        }
        self.tiers.get(group as usize).copied().unwrap_or(0)
    }
}

/// Objects are placed as a plan says. A page that comes to belong to another object moves when that is touched first; when
/// another phase begins, all pages move whose tier is another one then.
pub struct Placed {
    frames: Frames,
    /// In the order of their intervals; the first is of interval 0.
    phases: Vec<Placement>,
    phase: usize,
    /// The group of each page when it was placed.
    group: Vec<u32>,
}

impl Placed {
    /// No page exists. `phases` has at least one.
    pub fn new(slots: u32, tiers: &Tiers, phases: Vec<Placement>) -> Placed {
        Placed {
            frames: Frames::new(slots, tiers),
            phases,
            phase: 0,
            group: vec![u32::MAX; slots as usize],
        }
    }

    fn meant(&self, slot: Slot, group: u32) -> u8 {
        self.phases[self.phase].tier(slot, group)
    }

    /// The tier that is meant, or the next that has room; the fastest that has any where no slower one does.
    fn room_for(&self, meant: u8) -> u8 {
        let tier = self.frames.with_room(meant);
        match self.frames.free(tier) {
            0 => self.frames.with_room(0),
            _ => tier,
        }
    }

    /// Moves all pages to where the phase has them: what leaves a tier first, then what comes.
    fn rearrange(&mut self) {
        let slots = self.group.len() as u32;
        for coming in [false, true] {
            for slot in 0..slots {
                let tier = self.frames.tier(slot);
                if tier == ABSENT {
                    continue;
                }
                let meant = self.meant(slot, self.group[slot as usize]);
                if coming && meant < tier && self.frames.free(meant) > 0 {
                    self.frames.shift(slot, meant);
                    self.frames.fetched += 1;
                } else if !coming && meant > tier && self.frames.free(meant) > 0 {
                    self.frames.shift(slot, meant);
                }
            }
        }
    }
}

impl Policy for Placed {
    fn begin(&mut self, now: Now) {
        let next = self.phases.get(self.phase + 1);
        if next.is_some_and(|p| p.from <= now.interval) {
            self.phase += 1;
            self.rearrange();
        }
    }

    #[inline]
    fn touch(&mut self, slot: Slot, group: u32) -> Found {
        let tier = self.frames.tier(slot);
        if tier == ABSENT {
            let tier = self.room_for(self.meant(slot, group));
            self.group[slot as usize] = group;
            self.frames.make(slot, tier);
            return Found::staying(tier);
        }
        if self.group[slot as usize] == group {
            return Found::staying(tier);
        }
        self.group[slot as usize] = group;
        let meant = self.meant(slot, group);
        if meant != tier && self.frames.free(meant) > 0 {
            self.frames.shift(slot, meant);
            return Found {
                at: tier,
                serves: meant,
            };
        }
        Found::staying(tier)
    }

    fn frames(&mut self) -> &mut Frames {
        &mut self.frames
    }
}
