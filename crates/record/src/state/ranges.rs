//! Sets of addresses.

use std::collections::BTreeMap;

use varve_bpf::Bitmap;
use varve_model::{Address, Bytes, PAGE_BYTES};

/// A set of whole pages, as ranges that do not overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ranges {
    ends: BTreeMap<u64, u64>,
    bytes: u64,
}

impl Ranges {
    pub(crate) fn insert(&mut self, address: Address, bytes: Bytes) {
        let (mut start, mut end) = whole_pages(address, bytes);
        if start >= end {
            return;
        }
        // What overlaps or touches becomes one with it.
        while let Some((at, its_end)) = self.last_up_to(end) {
            if its_end < start {
                break;
            }
            self.take(at, its_end);
            start = start.min(at);
            end = end.max(its_end);
        }
        self.put(start, end);
    }

    fn put(&mut self, start: u64, end: u64) {
        self.ends.insert(start, end);
        self.bytes += end - start;
    }

    fn take(&mut self, start: u64, end: u64) {
        self.ends.remove(&start);
        self.bytes -= end - start;
    }

    pub(crate) fn remove(&mut self, address: Address, bytes: Bytes) {
        let (start, end) = whole_pages(address, bytes);
        if start >= end {
            return;
        }
        while let Some((at, its_end)) = self.last_up_to(end - 1) {
            if its_end <= start {
                break;
            }
            self.take(at, its_end);
            if its_end > end {
                self.put(end, its_end);
            }
            if at < start {
                self.put(at, start);
            }
        }
    }

    pub(crate) fn extend(&mut self, other: &Ranges) {
        for (start, end) in &other.ends {
            self.insert(Address(*start), Bytes(end - start));
        }
    }

    /// The ranges in order: address and length.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Address, Bytes)> + '_ {
        let range = |(start, end): (&u64, &u64)| (Address(*start), Bytes(end - start));
        self.ends.iter().map(range)
    }

    /// Bytes of all ranges.
    pub(crate) fn bytes(&self) -> Bytes {
        Bytes(self.bytes)
    }

    pub(crate) fn clear(&mut self) {
        *self = Ranges::default();
    }

    fn last_up_to(&self, address: u64) -> Option<(u64, u64)> {
        let (at, end) = self.ends.range(..=address).next_back()?;
        Some((*at, *end))
    }

    /// Whether all of it is in the set.
    pub(crate) fn holds(&self, address: Address, bytes: Bytes) -> bool {
        self.last_up_to(address.0)
            .is_some_and(|(_, end)| address.0 + bytes.0 <= end)
    }

    /// Which of the 512 pages from `base` on are in the set.
    pub(crate) fn pages_of(&self, base: Address) -> Bitmap {
        let region_end = base.0 + 512 * PAGE_BYTES;
        let mut pages = [0; 8];
        for (start, end) in self.ends.range(..region_end).rev() {
            if *end <= base.0 {
                break;
            }
            let first = start.saturating_sub(base.0) / PAGE_BYTES;
            let last = ((*end).min(region_end) - base.0) / PAGE_BYTES - 1;
            for (i, word) in pages.iter_mut().enumerate() {
                let from = first.max(i as u64 * 64);
                let to = last.min(i as u64 * 64 + 63);
                if from <= to {
                    *word |= (u64::MAX >> (63 - (to - from))) << (from % 64);
                }
            }
        }
        pages
    }
}

/// Every page that the range touches.
fn whole_pages(address: Address, bytes: Bytes) -> (u64, u64) {
    let start = address.0 & !(PAGE_BYTES - 1);
    let end = address.0.saturating_add(bytes.0);
    let end = end
        .checked_next_multiple_of(PAGE_BYTES)
        .unwrap_or(end & !(PAGE_BYTES - 1));
    (start, end)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_set_of_ranges_is_a_set_of_pages(
            steps in prop::collection::vec((any::<bool>(), 0u64..1600, 1u64..700), 0..40)
        ) {
            let mut ranges = Ranges::default();
            let mut pages = BTreeSet::new();
            for (insert, first, count) in steps {
                let (address, bytes) = (Address(first << 12), Bytes(count << 12));
                if insert {
                    ranges.insert(address, bytes);
                    pages.extend(first..first + count);
                } else {
                    ranges.remove(address, bytes);
                    pages.retain(|p| !(first..first + count).contains(p));
                }
            }
            let in_ranges = ranges.iter().map(|(_, bytes)| bytes.0).sum::<u64>();
            prop_assert_eq!(in_ranges, (pages.len() as u64) << 12);
            prop_assert_eq!(ranges.bytes(), Bytes(in_ranges));
            for region in 0..5u64 {
                let bits = ranges.pages_of(Address(region << 21));
                for bit in 0..512u64 {
                    let set = bits[(bit / 64) as usize] >> (bit % 64) & 1 == 1;
                    prop_assert_eq!(set, pages.contains(&(region * 512 + bit)));
                }
                let whole = (region * 512..region * 512 + 512).all(|p| pages.contains(&p));
                prop_assert_eq!(ranges.holds(Address(region << 21), Bytes(1 << 21)), whole);
            }
        }
    }
}
