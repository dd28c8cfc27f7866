//! Which pages were touched since they were mapped.

use std::collections::BTreeMap;
use std::ops::Range;

use varve_bpf::Bitmap;
use varve_model::Page;

/// Pages of a region, a bit each.
const REGION: u64 = 512;

/// A set of pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Touched {
    regions: BTreeMap<u64, Bitmap>,
}

impl Touched {
    /// Adds a page; whether it was not there.
    pub(super) fn insert(&mut self, page: Page) -> bool {
        let region = self.regions.entry(page.0 / REGION).or_default();
        let word = &mut region[(page.0 % REGION / 64) as usize];
        let bit = 1u64 << (page.0 % 64);
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }

    /// Takes pages of these numbers out of the set.
    pub(super) fn take(&mut self, pages: Range<u64>) -> Touched {
        let mut taken = Touched::default();
        if pages.is_empty() {
            return taken;
        }
        let mut empty = Vec::new();
        let regions = pages.start / REGION..=(pages.end - 1) / REGION;
        for (number, region) in self.regions.range_mut(regions) {
            let mask = mask(number * REGION, &pages);
            let found: Bitmap = std::array::from_fn(|i| region[i] & mask[i]);
            for (word, found) in region.iter_mut().zip(found) {
                *word &= !found;
            }
            if found != Bitmap::default() {
                taken.regions.insert(*number, found);
            }
            if *region == Bitmap::default() {
                empty.push(*number);
            }
        }
        for number in empty {
            self.regions.remove(&number);
        }
        taken
    }

    pub(super) fn count(&self) -> u64 {
        let words = self.regions.values().flatten();
        words.map(|word| u64::from(word.count_ones())).sum()
    }

    /// The pages in order.
    pub(super) fn pages(&self) -> impl Iterator<Item = Page> + '_ {
        self.regions.iter().flat_map(|(number, region)| {
            let is_in = move |bit: &u64| region[(bit / 64) as usize] >> (bit % 64) & 1 == 1;
            let bits = (0..REGION).filter(is_in);
            bits.map(move |bit| Page(number * REGION + bit))
        })
    }
}

/// Which pages of the region that begins with this one have numbers in the range.
fn mask(first: u64, pages: &Range<u64>) -> Bitmap {
    std::array::from_fn(|i| {
        let first = first + i as u64 * 64;
        let (from, to) = (pages.start.max(first), pages.end.min(first + 64));
        match from < to {
            true => (u64::MAX >> (64 - (to - from))) << (from - first),
            false => 0,
        }
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_set_of_touched_pages_is_a_set_of_pages(
            steps in prop::collection::vec((any::<bool>(), 0u64..1600, 0u64..700), 0..80)
        ) {
            let mut touched = Touched::default();
            let mut pages = BTreeSet::new();
            for (takes, first, count) in steps {
                if takes {
                    let taken = touched.take(first..first + count);
                    let expected: Vec<u64> = pages.range(first..first + count).copied().collect();
                    prop_assert_eq!(taken.count(), expected.len() as u64);
                    prop_assert_eq!(taken.pages().map(|p| p.0).collect::<Vec<_>>(), expected);
                    pages.retain(|p| !(first..first + count).contains(p));
                } else {
                    prop_assert_eq!(touched.insert(Page(first)), pages.insert(first));
                }
            }
            let all: Vec<u64> = pages.into_iter().collect();
            prop_assert_eq!(touched.count(), all.len() as u64);
            prop_assert_eq!(touched.pages().map(|p| p.0).collect::<Vec<_>>(), all);
        }
    }
}
