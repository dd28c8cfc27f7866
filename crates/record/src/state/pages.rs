//! Sets of pages, by regions of 2 MiB.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use varve_bpf::{Bitmap, Leaf, Region};
use varve_model::{Address, PAGE_BYTES};

/// Bytes of a region.
pub(crate) const REGION: u64 = 1 << 21;

/// What is resident, by number of the region; sorted.
pub(crate) type Residents = Vec<(u64, Bitmap)>;

/// Pages by region.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pages(HashMap<u64, Bitmap>);

impl Pages {
    pub(crate) fn of(residents: &Residents) -> Pages {
        Pages(residents.iter().copied().collect())
    }

    pub(crate) fn insert(&mut self, address: u64) {
        let bits = self.0.entry(address / REGION).or_default();
        let page = address % REGION / PAGE_BYTES;
        bits[(page / 64) as usize] |= 1 << (page % 64);
    }

    /// Adds pages of a region.
    pub(crate) fn insert_bits(&mut self, region: u64, more: Bitmap) {
        let bits = self.0.entry(region).or_default();
        bits.iter_mut().zip(more).for_each(|(a, b)| *a |= b);
    }

    /// How many pages of a region there are.
    pub(crate) fn count_in(&self, region: u64) -> u32 {
        let bits = self.0.get(&region);
        bits.map_or(0, |bits| bits.iter().map(|word| word.count_ones()).sum())
    }

    /// Those of a region, or of a huge page the page as a whole if it holds one of them.
    pub(crate) fn of_region(&self, region: &Region) -> Bitmap {
        let first = region.base.0 / REGION;
        let Leaf::Small = region.leaf else {
            let mut regions = first..first + region.leaf.bytes().0 / REGION;
            let mut whole = [0; 8];
            whole[0] = u64::from(regions.any(|region| self.0.contains_key(&region)));
            return whole;
        };
        self.0.get(&first).copied().unwrap_or_default()
    }

    pub(crate) fn contains(&self, address: u64) -> bool {
        let page = address % REGION / PAGE_BYTES;
        let bits = self.0.get(&(address / REGION));
        bits.is_some_and(|bits| bits[(page / 64) as usize] >> (page % 64) & 1 != 0)
    }

    pub(crate) fn insert_all(&mut self, start: u64, end: u64) {
        for region in start / REGION..end.div_ceil(REGION) {
            self.insert_bits(region, within(region, start, end));
        }
    }

    pub(crate) fn remove_all(&mut self, start: u64, end: u64) {
        let clear = |region: u64, bits: &mut Bitmap| {
            let within = within(region, start, end);
            bits.iter_mut().zip(within).for_each(|(a, b)| *a &= !b);
            *bits != [0; 8]
        };
        // A range may be the whole address space.
        if (end - start) / REGION > self.0.len() as u64 {
            self.0.retain(|region, bits| clear(*region, bits));
            return;
        }
        for region in start / REGION..end.div_ceil(REGION) {
            if let Some(bits) = self.0.get_mut(&region)
                && !clear(region, bits)
            {
                self.0.remove(&region);
            }
        }
    }

    /// Takes away the pages of a range, and returns them.
    pub(crate) fn take(&mut self, start: u64, end: u64) -> Pages {
        let regions = start / REGION..end.div_ceil(REGION);
        let mut taken = Pages::default();
        let mut take = |region: u64, bits: &mut Bitmap| {
            let within = within(region, start, end);
            let of: Bitmap = std::array::from_fn(|i| bits[i] & within[i]);
            if of != [0; 8] {
                taken.0.insert(region, of);
                bits.iter_mut().zip(of).for_each(|(a, b)| *a &= !b);
            }
            *bits != [0; 8]
        };
        // A range may be the whole address space; and of a large process that ends there are thousands of small ones.
        if regions.end - regions.start > self.0.len() as u64 {
            self.0
                .retain(|region, bits| !regions.contains(region) || take(*region, bits));
        } else {
            for region in regions {
                if let Some(bits) = self.0.get_mut(&region)
                    && !take(region, bits)
                {
                    self.0.remove(&region);
                }
            }
        }
        taken
    }

    pub(crate) fn add(&mut self, more: &Pages) {
        for (region, more) in &more.0 {
            self.insert_bits(*region, *more);
        }
    }

    pub(crate) fn take_away(&mut self, others: &Pages) {
        others
            .0
            .iter()
            .for_each(|(region, bits)| self.take_away_bits(*region, bits));
    }

    fn take_away_bits(&mut self, region: u64, others: &Bitmap) {
        let Entry::Occupied(mut bits) = self.0.entry(region) else {
            return;
        };
        bits.get_mut()
            .iter_mut()
            .zip(others)
            .for_each(|(a, b)| *a &= !b);
        if *bits.get() == [0; 8] {
            bits.remove();
        }
    }

    /// Takes away pages that were found touched.
    pub(crate) fn take_away_regions<'a>(&mut self, regions: impl Iterator<Item = &'a Region>) {
        for region in regions {
            let start = region.base.0;
            if region.leaf == Leaf::Small {
                self.take_away_bits(start / REGION, &region.touched());
            } else {
                self.remove_all(start, start + region.leaf.bytes().0);
            }
        }
    }

    pub(crate) fn addresses(&self) -> impl Iterator<Item = u64> + '_ {
        self.0.iter().flat_map(|(region, bits)| {
            let set = (0..512).filter(|page| bits[page / 64] >> (page % 64) & 1 != 0);
            set.map(move |page| region * REGION + page as u64 * PAGE_BYTES)
        })
    }

    /// As regions, in no order.
    pub(crate) fn into_regions(self) -> Vec<Region> {
        let region = |(region, accessed): (u64, Bitmap)| Region {
            accessed,
            ..Region::untouched(Address(region * REGION), Leaf::Small)
        };
        self.0.into_iter().map(region).collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn sorted(self) -> Residents {
        let mut all: Residents = self.0.into_iter().collect();
        all.sort_unstable_by_key(|(region, _)| *region);
        all
    }
}

/// The pages of a region from `start` to `end`.
pub(crate) fn within(region: u64, start: u64, end: u64) -> Bitmap {
    let page = |address: u64| {
        let offset = address.saturating_sub(region * REGION);
        offset.div_ceil(PAGE_BYTES).min(512)
    };
    let (first, past) = (page(start), page(end));
    std::array::from_fn(|word| {
        let low = first.clamp(word as u64 * 64, word as u64 * 64 + 64) - word as u64 * 64;
        let high = past.clamp(word as u64 * 64, word as u64 * 64 + 64) - word as u64 * 64;
        let below = |n: u64| if n >= 64 { u64::MAX } else { (1 << n) - 1 };
        below(high) & !below(low)
    })
}
