//! Resident pages that more than one mapping of shared memory has.

use std::collections::HashMap;

use varve_bpf::Bitmap;
use varve_model::{PAGE_BYTES, Pid};
use varve_sys::FileIdentity;

use super::pages::{REGION, Residents, within};
use super::processes::Processes;

/// Pages of a file that mappings have, by number of the page divided by 64.
#[derive(Debug, Default)]
struct FilePages(HashMap<u64, u64>);

impl FilePages {
    /// Adds 64 pages, the first of which has this number in the file, and returns how many of them were there already. Bits of
    /// pages before the file's first one are not set.
    fn add(&mut self, first: i64, bits: u64) -> u32 {
        let (word, shift) = (first.div_euclid(64), first.rem_euclid(64) as u32);
        let parts = u128::from(bits) << shift;
        [(word, parts as u64), (word + 1, (parts >> 64) as u64)]
            .into_iter()
            .filter(|(_, bits)| *bits != 0)
            .map(|(word, bits)| {
                let known = self.0.entry(word.cast_unsigned()).or_default();
                let again = (*known & bits).count_ones();
                *known |= bits;
                again
            })
            .sum()
    }
}

/// One mapping of shared memory.
struct Shared<'a> {
    residents: &'a Residents,
    start: u64,
    end: u64,
    /// Bytes.
    offset: u64,
}

impl Shared<'_> {
    /// Adds the resident pages of the mapping, and returns how many of them were there already.
    fn add_to(&self, pages: &mut FilePages) -> u64 {
        let from = self
            .residents
            .partition_point(|(region, _)| *region < self.start / REGION);
        let delta = (self.offset / PAGE_BYTES) as i64 - (self.start / PAGE_BYTES) as i64;
        let mut again = 0;
        for (region, bits) in &self.residents[from..] {
            if region * REGION >= self.end {
                break;
            }
            let inside: Bitmap = within(*region, self.start, self.end);
            let first = (region * (REGION / PAGE_BYTES)) as i64 + delta;
            for (at, bits) in bits.iter().zip(inside).map(|(a, b)| a & b).enumerate() {
                again += u64::from(pages.add(first + at as i64 * 64, bits));
            }
        }
        again
    }
}

/// How many of the resident pages are counted again because shared memory is mapped more than once, by one process or several. Private
/// pages that processes have in common since a fork are not among them: no mapping shows those.
pub(crate) fn mapped_again(residents: &HashMap<Pid, Residents>, processes: &Processes) -> u64 {
    let mut mappings: HashMap<FileIdentity, Vec<Shared<'_>>> = HashMap::new();
    for (pid, residents) in residents {
        for shared in processes.shared_mappings(processes.owner_of_memory(*pid)) {
            mappings.entry(shared.file).or_default().push(Shared {
                residents,
                start: shared.addresses.start,
                end: shared.addresses.end,
                offset: shared.offset,
            });
        }
    }
    mappings
        .values()
        .filter(|mappings| mappings.len() > 1)
        .map(|mappings| {
            let mut pages = FilePages::default();
            mappings.iter().map(|m| m.add_to(&mut pages)).sum::<u64>()
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared(residents: &Residents, start_page: u64, pages: u64, offset_page: u64) -> Shared<'_> {
        Shared {
            residents,
            start: start_page * PAGE_BYTES,
            end: (start_page + pages) * PAGE_BYTES,
            offset: offset_page * PAGE_BYTES,
        }
    }

    #[test]
    fn pages_at_several_addresses_are_counted_again() {
        // All of the first two regions is resident, and of the third the first page.
        let mut one = [0; 8];
        one[0] = 1;
        let all: Residents = vec![(10, [u64::MAX; 8]), (11, [u64::MAX; 8]), (12, one)];
        let base = 10 * 512;
        let mut pages = FilePages::default();
        assert_eq!(shared(&all, base + 7, 100, 0).add_to(&mut pages), 0);
        // Pages 50 to 149 of the file, at an address that is no multiple of 64 pages.
        assert_eq!(shared(&all, base + 301, 100, 50).add_to(&mut pages), 50);
        // Over the border of two regions, and over the end of what is resident.
        assert_eq!(shared(&all, base + 1000, 200, 0).add_to(&mut pages), 25);
        // Another part of the file.
        assert_eq!(shared(&all, base, 64, 1 << 20).add_to(&mut pages), 0);
        let known: u32 = pages.0.values().map(|bits| bits.count_ones()).sum();
        assert_eq!(known, 150 + 64);
    }
}
