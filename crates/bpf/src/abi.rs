//! The layout of what passes between the programs and the loader: made of `bpf/abi.h`, and what is read from it

use varve_model::Address;

use crate::Leaf;

/// The low bits of the base of an entry: what is left is the address of its region
const ENTRY_LOW: u64 = (1 << 21) - 1;
/// Of these, the page size
const ENTRY_LEAF: u64 = 3;

/// Types that are plain memory: every bit pattern is a value, and there is no padding
///
/// # Safety
/// Implement it for `repr(C)` types of integers without padding only.
pub(crate) unsafe trait Plain: Copy + Default {
    /// The first bytes as a value; none if there are too few
    fn read(bytes: &[u8]) -> Option<Self> {
        if bytes.len() < size_of::<Self>() {
            return None;
        }
        // SAFETY: there are enough bytes, and every bit pattern is a value of a Plain type
        Some(unsafe { std::ptr::read_unaligned(bytes.as_ptr().cast()) })
    }
}

macro_rules! plain {
    ($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty),* $(,)? }) => {
        $(#[$doc])*
        #[repr(C)]
        #[derive(Debug, Clone, Copy, Default)]
        pub(crate) struct $name { $(pub(crate) $field: $type),* }

        // SAFETY: integers only; the padding is spelled out as fields
        unsafe impl Plain for $name {}

        const _: () = assert!(size_of::<$name>() == 0 $(+ size_of::<$type>())*);
    };
}

#[allow(
    dead_code,
    reason = "the programs use more of the header than the loader"
)]
mod header {
    use super::Plain;

    include!(concat!(env!("OUT_DIR"), "/abi.rs"));
}

pub(crate) use header::*;

fn leaf(code: u32) -> Leaf {
    match code {
        LEAF_4K => Leaf::Small,
        LEAF_2M => Leaf::Huge2M,
        _ => Leaf::Huge1G,
    }
}

impl header::Region {
    pub(crate) fn region(&self) -> crate::Region {
        crate::Region {
            base: Address(self.base),
            leaf: leaf(u32::from(self.leaf)),
            hugetlb: u32::from(self.flags) & REGION_HUGETLB != 0,
            accessed: self.accessed,
            young: self.young,
            referenced: self.referenced,
            pinned: self.pinned,
            sticky: self.sticky,
            written: self.written,
            intact: self.intact,
            others: self.others,
            present: self.present,
        }
    }
}

impl header::Resident {
    pub(crate) fn resident(&self) -> crate::Resident {
        crate::Resident {
            base: Address(self.base & !ENTRY_LOW),
            leaf: leaf((self.base & ENTRY_LEAF) as u32),
            pages: self.pages,
        }
    }
}

fn entries(bytes: &[u8]) -> impl Iterator<Item = VanishEntry> + '_ {
    bytes
        .chunks_exact(size_of::<VanishEntry>())
        .filter_map(VanishEntry::read)
}

/// What was there of the range of a vanish record
pub(crate) fn vanish_residents(bytes: &[u8]) -> impl Iterator<Item = crate::Resident> + '_ {
    let there = entries(bytes).filter(|entry| entry.base & u64::from(ENTRY_THERE) != 0);
    there.map(|entry| crate::Resident {
        base: Address(entry.base & !ENTRY_LOW),
        leaf: leaf((entry.base & ENTRY_LEAF) as u32),
        pages: entry.pages,
    })
}

/// The regions of a vanish record; further entries for the same region say what was written, and what others may
/// have touched
pub(crate) fn vanish_regions(bytes: &[u8]) -> impl Iterator<Item = crate::Region> + '_ {
    let touched = |entry: &VanishEntry| entry.base & u64::from(ENTRY_THERE) == 0;
    let mut entries = entries(bytes).filter(touched).peekable();
    std::iter::from_fn(move || {
        let entry = entries.next()?;
        let mut further = |kind| {
            entries
                .next_if(|next| next.base & u64::from(kind) != 0)
                .map_or([0; 8], |next| next.pages)
        };
        let (written, others) = (further(ENTRY_WRITTEN), further(ENTRY_OTHERS));
        Some(crate::Region {
            base: Address(entry.base & !ENTRY_LOW),
            leaf: leaf((entry.base & ENTRY_LEAF) as u32),
            hugetlb: false,
            accessed: entry.pages,
            young: [0; 8],
            referenced: [0; 8],
            pinned: [0; 8],
            sticky: [0; 8],
            written,
            intact: [0; 8],
            others,
            present: 0,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vanish_record_joins_the_entries_of_a_region() {
        let touched = VanishEntry {
            base: 0x40_0000,
            pages: [3, 0, 0, 0, 0, 0, 0, 0],
        };
        let written = VanishEntry {
            base: 0x40_0000 | u64::from(ENTRY_WRITTEN),
            pages: [1, 0, 0, 0, 0, 0, 0, 0],
        };
        let huge = VanishEntry {
            base: 0x80_0000 | 1,
            pages: [1, 0, 0, 0, 0, 0, 0, 0],
        };
        let of_others = |base| VanishEntry {
            base: base | u64::from(ENTRY_OTHERS),
            pages: [8, 0, 0, 0, 0, 0, 0, 0],
        };
        let entries = [
            touched,
            written,
            of_others(touched.base),
            huge,
            of_others(huge.base),
        ];
        let bytes: Vec<u8> = entries
            .iter()
            .flat_map(|entry| std::iter::once(&entry.base).chain(&entry.pages))
            .flat_map(|word| word.to_ne_bytes())
            .collect();
        let regions: Vec<crate::Region> = vanish_regions(&bytes).collect();
        assert_eq!(regions.len(), 2);
        assert_eq!((regions[0].accessed[0], regions[0].written[0]), (3, 1));
        assert_eq!((regions[0].others[0], regions[1].others[0]), (8, 8));
        assert_eq!(
            (regions[1].leaf, regions[1].base),
            (Leaf::Huge2M, Address(0x80_0000))
        );
    }
}
