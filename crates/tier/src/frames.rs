//! Where pages lie: the tier of each slot, how full tiers are, and what moved.

use varve_model::Pages;

use crate::spec::{MAX_TIERS, Tiers};
use crate::stream::Slot;

/// The tier of a page that does not exist.
pub const ABSENT: u8 = u8::MAX;

/// Pages that moved from one tier to another.
pub type Moves = [[u64; MAX_TIERS]; MAX_TIERS];

/// Where pages lie.
#[derive(Clone, Debug)]
pub struct Frames {
    tier: Vec<u8>,
    used: [u64; MAX_TIERS],
    capacity: [u64; MAX_TIERS],
    tiers: u8,
    /// Pages that moved, since somebody took the counts.
    pub moves: Moves,
    /// Pages that were brought into a faster tier without a touch.
    pub fetched: u64,
}

impl Frames {
    /// No page exists.
    pub fn new(slots: u32, tiers: &Tiers) -> Frames {
        let mut capacity = [0; MAX_TIERS];
        for (of, tier) in capacity.iter_mut().zip(tiers.all()) {
            *of = tier.capacity().0;
        }
        Frames {
            tier: vec![ABSENT; slots as usize],
            used: [0; MAX_TIERS],
            capacity,
            tiers: tiers.all().len() as u8,
            moves: [[0; MAX_TIERS]; MAX_TIERS],
            fetched: 0,
        }
    }

    /// How many tiers there are.
    #[inline]
    pub fn tiers(&self) -> u8 {
        self.tiers
    }

    /// The tier of a page; [`ABSENT`] where it does not exist.
    #[inline]
    pub fn tier(&self, slot: Slot) -> u8 {
        self.tier[slot as usize]
    }

    /// Pages for which a tier has room.
    #[inline]
    pub fn free(&self, tier: u8) -> u64 {
        self.capacity[tier as usize].saturating_sub(self.used[tier as usize])
    }

    /// Pages in a tier.
    #[inline]
    pub fn used(&self, tier: u8) -> Pages {
        Pages(self.used[tier as usize])
    }

    /// Pages that a tier holds.
    #[inline]
    pub fn capacity(&self, tier: u8) -> u64 {
        self.capacity[tier as usize]
    }

    /// So many thousandths of what a tier holds, in pages.
    pub fn thousandths(&self, tier: u8, of: u32) -> u64 {
        (u128::from(self.capacity(tier)) * u128::from(of) / 1000) as u64
    }

    /// Makes a page.
    #[inline]
    pub fn make(&mut self, slot: Slot, tier: u8) {
        debug_assert_eq!(self.tier[slot as usize], ABSENT);
        self.tier[slot as usize] = tier;
        self.used[tier as usize] += 1;
    }

    /// Moves a page to another tier.
    #[inline]
    pub fn shift(&mut self, slot: Slot, to: u8) {
        let from = std::mem::replace(&mut self.tier[slot as usize], to);
        debug_assert_ne!(from, ABSENT);
        self.used[from as usize] -= 1;
        self.used[to as usize] += 1;
        self.moves[from as usize][to as usize] += 1;
    }

    /// Gives a page back; says where it was.
    #[inline]
    pub fn drop(&mut self, slot: Slot) -> u8 {
        let from = std::mem::replace(&mut self.tier[slot as usize], ABSENT);
        if from != ABSENT {
            self.used[from as usize] -= 1;
        }
        from
    }

    /// The first tier from this one on that has room; the last where none has.
    #[inline]
    pub fn with_room(&self, from: u8) -> u8 {
        let last = self.tiers - 1;
        (from..last).find(|&t| self.free(t) > 0).unwrap_or(last)
    }

    /// Whether no tier holds more than it can.
    pub fn holds(&self) -> bool {
        self.used.iter().zip(&self.capacity).all(|(u, c)| u <= c)
    }
}
