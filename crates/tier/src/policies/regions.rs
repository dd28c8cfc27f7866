//! Policies that know of regions how many of their pages are touched, as DAMON does by samples, and move whole regions:
//! DAMOS's `migrate_hot` and `migrate_cold`.

use varve_model::{Bytes, Duration};

use super::{Found, Now, Policy, refilled};
use crate::frames::{ABSENT, Frames};
use crate::spec::Tiers;
use crate::stream::Slot;

/// Pages of a region: 2 MiB. DAMON's regions have sizes of their own, which it finds by splitting and joining.
const REGION: u32 = 512;

/// How a policy of regions is set.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RegionSettings {
    /// A region is hot of whose pages so many thousandths or more were touched in an interval.
    pub hot: u32,
    /// A region is cold that was not touched for so long.
    pub cold: Duration,
    /// Memory that may move in a second, each way.
    pub quota: Bytes,
    /// Free memory that demotion leaves in the fastest tier, in thousandths of it.
    pub free: u32,
}

impl RegionSettings {
    /// Hot: a fifth of the pages; cold: not touched for 5 s; 1 GiB/s; half a hundredth free (as DAMOS's samples for tiers have it: 99.5 % used).
    pub const DEFAULT: RegionSettings = RegionSettings {
        hot: 200,
        cold: Duration(5_000_000_000),
        quota: Bytes(1 << 30),
        free: 5,
    };
}

#[derive(Clone, Copy, Debug, Default)]
struct Region {
    pages: u32,
    slow: u32,
    touched: u32,
    /// When it was touched last.
    last: u64,
}

/// A policy of regions. They move at the end of intervals.
pub struct Regions {
    settings: RegionSettings,
    frames: Frames,
    regions: Vec<Region>,
    /// The interval of each page's last touch, counted from 1.
    touched: Vec<u32>,
    /// Pages that may move, to the fastest tier and away from it.
    quota: [f64; 2],
    now: Now,
    order: Vec<(u64, u32)>,
}

impl Regions {
    /// No page exists.
    pub fn new(slots: u32, tiers: &Tiers, settings: RegionSettings) -> Regions {
        Regions {
            settings,
            frames: Frames::new(slots, tiers),
            regions: vec![Region::default(); slots.div_ceil(REGION) as usize],
            touched: vec![0; slots as usize],
            quota: [0.0; 2],
            now: Now {
                interval: 0,
                start: varve_model::Time(0),
                length: Duration(0),
            },
            order: Vec::new(),
        }
    }

    fn slots(&self, region: u32) -> std::ops::Range<u32> {
        let end = ((region + 1) * REGION).min(self.touched.len() as u32);
        region * REGION..end
    }

    /// Regions of the fastest tier leave, those first that were touched least and longest ago, until so many pages are free.
    fn demote(&mut self, free: u64, but: impl Fn(&Region) -> bool) {
        if self.frames.free(0) >= free {
            return;
        }
        let mut order = std::mem::take(&mut self.order);
        order.clear();
        let in_fast = |r: &Region| r.pages > r.slow;
        let all = self
            .regions
            .iter()
            .zip(0..)
            .filter(|(r, _)| in_fast(r) && !but(r));
        order.extend(all.map(|(r, i)| (r.last << 10 | u64::from(share(r)), i)));
        order.sort_unstable();
        'regions: for &(_, region) in &order {
            for slot in self.slots(region) {
                if self.frames.free(0) >= free || self.quota[1] < 1.0 {
                    break 'regions;
                }
                if self.frames.tier(slot) != 0 {
                    continue;
                }
                let to = self.frames.with_room(1);
                if self.frames.free(to) == 0 {
                    break 'regions;
                }
                self.frames.shift(slot, to);
                self.regions[region as usize].slow += 1;
                self.quota[1] -= 1.0;
            }
        }
        self.order = order;
    }

    /// Whether a region is hot, and has pages that are not in the fastest tier.
    fn comes(&self, of: &Region) -> bool {
        of.slow > 0 && of.touched > 0 && share(of) >= self.settings.hot
    }

    /// Hot regions come to the fastest tier, the hottest first.
    fn promote(&mut self) {
        let mut order: Vec<(u64, u32)> = Vec::new();
        let all = self.regions.iter().zip(0..).filter(|(r, _)| self.comes(r));
        order.extend(all.map(|(r, i)| (u64::MAX - u64::from(share(r)), i)));
        order.sort_unstable();
        let interval = self.now.interval + 1;
        for (_, region) in order {
            for slot in self.slots(region) {
                let tier = self.frames.tier(slot);
                if tier == 0 || tier == ABSENT {
                    continue;
                }
                if self.frames.free(0) == 0 || self.quota[0] < 1.0 {
                    return;
                }
                self.frames.shift(slot, 0);
                self.frames.fetched += u64::from(self.touched[slot as usize] != interval);
                self.regions[region as usize].slow -= 1;
                self.quota[0] -= 1.0;
            }
        }
    }
}

/// Thousandths of a region's pages that were touched.
fn share(of: &Region) -> u32 {
    (u64::from(of.touched) * 1000 / u64::from(of.pages.max(1))) as u32
}

impl Policy for Regions {
    fn begin(&mut self, now: Now) {
        self.now = now;
        for quota in &mut self.quota {
            *quota = refilled(*quota, self.settings.quota, now.length.seconds());
        }
        for region in &mut self.regions {
            region.touched = 0;
        }
    }

    #[inline]
    fn touch(&mut self, slot: Slot, _group: u32) -> Found {
        let mut tier = self.frames.tier(slot);
        let region = &mut self.regions[(slot / REGION) as usize];
        if tier == ABSENT {
            tier = self.frames.with_room(0);
            self.frames.make(slot, tier);
            region.pages += 1;
            region.slow += u32::from(tier > 0);
        }
        region.touched += 1;
        region.last = self.now.start.0;
        self.touched[slot as usize] = self.now.interval + 1;
        Found::staying(tier)
    }

    fn end(&mut self) {
        let coming = self.regions.iter().filter(|r| self.comes(r));
        let wanted: u64 = coming.map(|r| u64::from(r.slow)).sum();
        let capacity = self.frames.capacity(0);
        let free = self.frames.thousandths(0, self.settings.free);
        let cold_since = self.now.start.0.saturating_sub(self.settings.cold.0);
        let is_warm = |r: &Region| r.last > cold_since;
        // What is cold makes room for what is hot, and for what is new.
        if wanted > 0 || self.frames.free(0) < free {
            self.demote(wanted.saturating_add(free).min(capacity), is_warm);
        }
        if wanted > 0 {
            self.promote();
        }
    }

    fn free(&mut self, slot: Slot) {
        let from = self.frames.drop(slot);
        if from != ABSENT {
            let region = &mut self.regions[(slot / REGION) as usize];
            region.pages -= 1;
            region.slow -= u32::from(from > 0);
        }
    }

    fn frames(&mut self) -> &mut Frames {
        &mut self.frames
    }
}
