//! Policies that learn of touches by hint faults: pages of slower tiers are made to fault now and then, and those that fault soon
//! come to the fastest. Linux's NUMA balancing in tiering mode (`numa_balancing=2`) does so, and TPP (Maruf et al., ASPLOS 2023).

use varve_model::{Bytes, Duration, PAGE_BYTES};

use super::{Found, Now, Policy, refilled};
use crate::frames::{ABSENT, Frames};
use crate::lists::Lists;
use crate::spec::Tiers;
use crate::stream::Slot;

/// How a policy of hint faults is set.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HintSettings {
    /// Memory that is made to fault in a second (`scan_size_mb` in each `scan_period_min_ms`).
    pub scan: Bytes,
    /// A page that faults within this time of being made to is hot (`numa_balancing_hot_threshold_ms`).
    pub threshold: Duration,
    /// Memory that may be promoted in a second (`numa_balancing_promote_rate_limit_MBps`).
    pub rate: Bytes,
    /// Free memory of the fastest tier below which pages are demoted, and up to which, in thousandths of it.
    pub low: u32,
    /// The same, up to which.
    pub high: u32,
    /// Whether a page is promoted at its second hint fault only, and whatever its time: TPP takes pages from the active list alone,
    /// to which the first fault moves them.
    pub second_fault: bool,
}

impl HintSettings {
    /// Linux's: 256 MB in each second, a threshold of 1 s, 65536 MB/s.
    pub const AUTONUMA: HintSettings = HintSettings {
        scan: Bytes(256 << 20),
        threshold: Duration(1_000_000_000),
        rate: Bytes(65_536 << 20),
        low: 10,
        high: 20,
        second_fault: false,
    };

    /// TPP's: free memory is kept for what is promoted and what is new (`demote_scale_factor`, 2 %).
    pub const TPP: HintSettings = HintSettings {
        threshold: Duration(u64::MAX),
        low: 20,
        high: 40,
        second_fault: true,
        ..HintSettings::AUTONUMA
    };
}

const NOT_MARKED: u32 = u32::MAX;

/// A policy of hint faults.
///
/// The scan goes round over the pages of slower tiers. A page that is made to fault in an interval and touched in it counts as
/// touched at once: the order within is not known. Demotion takes as many pages as it must, whatever their number: kswapd is never behind.
pub struct Hints {
    settings: HintSettings,
    frames: Frames,
    lists: Lists,
    touched: Vec<bool>,
    /// The interval in which each page was made to fault; [`NOT_MARKED`] where it does not.
    marked: Vec<u32>,
    /// Pages that had one hint fault in the tier in which they are.
    faulted: Vec<bool>,
    /// When intervals began, as far as they did.
    starts: Vec<u64>,
    /// The next slot that the scan looks at.
    cursor: Slot,
    /// Pages that may be made to fault, and promoted, now.
    scan_left: f64,
    tokens: f64,
    now: u32,
}

impl Hints {
    /// No page exists.
    pub fn new(slots: u32, tiers: &Tiers, settings: HintSettings) -> Hints {
        Hints {
            settings,
            frames: Frames::new(slots, tiers),
            lists: Lists::new(slots, tiers.all().len()),
            touched: vec![false; slots as usize],
            marked: vec![NOT_MARKED; slots as usize],
            faulted: vec![false; slots as usize],
            starts: Vec::new(),
            cursor: 0,
            scan_left: 0.0,
            tokens: 0.0,
            now: 0,
        }
    }

    fn enter(&mut self, slot: Slot, tier: u8) {
        self.lists.push(tier as usize, slot);
        self.touched[slot as usize] = false;
        self.faulted[slot as usize] = false;
        self.marked[slot as usize] = NOT_MARKED;
    }

    /// Has the pages leave that were not touched, from each tier with little room, for the next.
    fn demote(&mut self) {
        for tier in 0..self.frames.tiers() - 1 {
            if self.frames.free(tier) >= self.frames.thousandths(tier, self.settings.low).max(1) {
                continue;
            }
            let high = self.frames.thousandths(tier, self.settings.high).max(1);
            // Where the tiers behind are full, too, nothing can leave.
            while self.frames.free(tier) < high && self.room_behind(tier) {
                let Some(slot) = self.lists.pop(tier as usize) else {
                    break;
                };
                if std::mem::take(&mut self.touched[slot as usize]) {
                    self.lists.push(tier as usize, slot);
                    continue;
                }
                let to = self.frames.with_room(tier + 1);
                self.frames.shift(slot, to);
                self.enter(slot, to);
            }
        }
    }

    fn room_behind(&self, tier: u8) -> bool {
        (tier + 1..self.frames.tiers()).any(|t| self.frames.free(t) > 0)
    }

    /// A page of a slower tier that was made to fault is touched: whether it is promoted.
    fn is_promoted(&mut self, slot: Slot) -> bool {
        let marked = std::mem::replace(&mut self.marked[slot as usize], NOT_MARKED);
        if marked == NOT_MARKED {
            return false;
        }
        if self.settings.second_fault && !std::mem::replace(&mut self.faulted[slot as usize], true)
        {
            return false;
        }
        // With room to spare Linux promotes whatever faults.
        let has_room = self.frames.free(0) > self.frames.thousandths(0, self.settings.high);
        if self.tokens < 1.0 || self.frames.free(0) == 0 {
            return false;
        }
        let since = self.starts[self.now as usize] - self.starts[marked as usize];
        if !has_room && !self.settings.second_fault && since > self.settings.threshold.0 {
            return false;
        }
        self.tokens -= 1.0;
        true
    }

    /// Makes pages of slower tiers fault.
    fn scan(&mut self) {
        let slots = self.marked.len() as u32;
        let slower: u64 = (1..self.frames.tiers())
            .map(|t| self.frames.used(t).0)
            .sum();
        let mut marks = (self.scan_left as u64).min(slower);
        self.scan_left -= marks as f64;
        self.scan_left = self.scan_left.min(slower as f64);
        let mut looked = 0;
        while marks > 0 && looked < slots {
            let slot = self.cursor;
            self.cursor = (self.cursor + 1) % slots;
            looked += 1;
            let tier = self.frames.tier(slot);
            if tier != 0 && tier != ABSENT {
                marks -= 1;
                if self.marked[slot as usize] == NOT_MARKED {
                    self.marked[slot as usize] = self.now;
                }
            }
        }
    }
}

impl Policy for Hints {
    fn begin(&mut self, now: Now) {
        self.now = now.interval;
        self.starts.push(now.start.0);
        let seconds = now.length.seconds();
        self.scan_left += self.settings.scan.0 as f64 * seconds / PAGE_BYTES as f64;
        self.tokens = refilled(self.tokens, self.settings.rate, seconds);
        self.scan();
    }

    #[inline]
    fn touch(&mut self, slot: Slot, _group: u32) -> Found {
        let tier = self.frames.tier(slot);
        if tier == ABSENT {
            let tier = self.frames.with_room(0);
            self.frames.make(slot, tier);
            self.enter(slot, tier);
            self.demote();
            return Found::staying(tier);
        }
        self.touched[slot as usize] = true;
        if tier > 0 && self.is_promoted(slot) {
            self.lists.remove(tier as usize, slot);
            self.frames.shift(slot, 0);
            self.enter(slot, 0);
            self.demote();
        }
        Found::staying(tier)
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
