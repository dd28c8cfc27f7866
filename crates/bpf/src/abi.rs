//! The layout of what passes between the programs and the loader; mirrors `bpf/abi.h`

use varve_model::Address;

use crate::{Bitmap, Leaf, Region};

pub(crate) const OPT_PAGE_FLAGS: u32 = 1;
pub(crate) const OPT_SOFT_DIRTY: u32 = 2;
pub(crate) const OPT_EXIT_HAS_MM: u32 = 4;
pub(crate) const OPT_PREPARE_EXEC: u32 = 8;
pub(crate) const OPT_GUARDED: u32 = 32;

pub(crate) const CAL_FIND: u32 = 0;
pub(crate) const CAL_TRANSLATE: u32 = 1;
pub(crate) const CAL_PIPE: u32 = 2;

pub(crate) const FEATURE_YOUNG: u32 = 1;
pub(crate) const FEATURE_REFERENCED: u32 = 2;
pub(crate) const FEATURE_COMPOUND: u32 = 4;
pub(crate) const FEATURE_PINCOUNT: u32 = 8;
pub(crate) const FEATURE_HUGETLB: u32 = 16;

pub(crate) const TRACK_MEMORY_FILES: u32 = 256;
pub(crate) const DROP_FAULT: u32 = 0;
pub(crate) const DROP_VANISH_PAGES: u32 = 1;
pub(crate) const DROP_VANISH_WALKS: u32 = 2;
pub(crate) const DROP_LIFE: u32 = 3;
pub(crate) const DROP_MAPPING: u32 = 4;
pub(crate) const DROP_TRACK: u32 = 5;
pub(crate) const DROP_SAMPLE: u32 = 6;
/// In the cause of a vanish record: another process makes the pages vanish
pub(crate) const CAUSE_BY_OTHERS: u32 = 0x100;

pub(crate) const STACK_MAX: u32 = 16384;
pub(crate) const SAMPLE_STACK_MAX: u32 = 4096;

/// Where a sample found the thread: the low bits of `aux`
pub(crate) const SAMPLE_PLACE: u32 = 3;
pub(crate) const SAMPLE_CALL: u32 = 1;
pub(crate) const SAMPLE_TRAP: u32 = 2;
/// A flag beside it
pub(crate) const SAMPLE_COMPAT: u32 = 4;

const ENTRY_WRITTEN: u64 = 4;
const ENTRY_OTHERS: u64 = 8;
const ENTRY_LEAF: u64 = 3;
const ENTRY_LOW: u64 = (1 << 21) - 1;

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

plain!(Settings {
    direct: u64,
    frame_mask: u64,
    vmemmap: u64,
    levels: u32,
    options: u32,
    stack_bytes: u32,
    ring_wake: u32,
    self_pid: u32,
    sample_stack: u32,
});

plain!(Tracked {
    leader: u64,
    flags: u32,
    announced: u32,
    dead: u32,
    pad: u32,
    image: u64,
});

plain!(FlagArgs {
    image: u64,
    pid: u32,
    set: u32,
    clear: u32,
    done: u32,
});

plain!(Waits {
    waited: u64,
    covered: u64,
});

plain!(HeldGroup {
    id: u64,
    thaws: u64,
});

plain!(RawRegion {
    base: u64,
    accessed: Bitmap,
    young: Bitmap,
    referenced: Bitmap,
    pinned: Bitmap,
    sticky: Bitmap,
    written: Bitmap,
    intact: Bitmap,
    others: Bitmap,
    present: u32,
    leaf: u16,
    flags: u16,
});

plain!(WalkArgs {
    pid: u32,
    first_ended: u32,
    start: u64,
    mm_wanted: u64,
    resume: u64,
    mm: u64,
    present: u64,
    checks: u64,
    check_failures: u64,
    table_failures: u64,
    regions: u32,
    error: i32,
});

plain!(Exempt {
    made: u64,
    parent: u32,
    flags: u32,
});

plain!(CalibrateArgs {
    what: u32,
    fd: i32,
    address: u64,
    value: u64,
    direct: u64,
    frame_mask: u64,
    levels: u32,
    error: i32,
    entry: u64,
    page: u64,
    page_bytes: u32,
    tgid: u32,
    features: u32,
    pad: u32,
});

plain!(Record {
    kind: u32,
    aux: u32,
    time: u64,
    pid: u32,
    tid: u32,
});

plain!(RecFault {
    ip: u64,
    address: u64,
});

plain!(RecFork {
    pid: u32,
    tid: u32,
    mm: u64,
    sp: u64,
    tls: u64,
    thread: u32,
    same_mm: u32,
    tracked: u32,
    own_tid: u32,
});

plain!(RecExec {
    mm: u64,
    old_tid: u32,
    pad: u32,
});

plain!(RecExit {
    status: i32,
    pad: u32,
});

plain!(RecMapping {
    entered: u64,
    args: [u64; 6],
    before: u64,
    result: i64,
    ip: u64,
    sp: u64,
    bp: u64,
    saved: [u64; 5],
    stack_bytes: u32,
    has_stack: u32,
});

plain!(RecSample {
    ip: u64,
    flags: u64,
    general: [u64; 16],
    fs_base: u64,
    gs_base: u64,
});

plain!(RecVanish {
    mm: u64,
    count: u64,
});

plain!(VanishEntry {
    base: u64,
    pages: Bitmap,
});

fn leaf(code: u64) -> Leaf {
    match code {
        0 => Leaf::Small,
        1 => Leaf::Huge2M,
        _ => Leaf::Huge1G,
    }
}

impl RawRegion {
    pub(crate) fn region(&self) -> Region {
        Region {
            base: Address(self.base),
            leaf: leaf(u64::from(self.leaf)),
            hugetlb: self.flags & 1 != 0,
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

/// The regions of a vanish record; further entries for the same region tell what was written, and what others may
/// have touched
pub(crate) fn vanish_regions(bytes: &[u8]) -> impl Iterator<Item = Region> + '_ {
    let mut entries = bytes
        .chunks_exact(size_of::<VanishEntry>())
        .filter_map(VanishEntry::read)
        .peekable();
    std::iter::from_fn(move || {
        let entry = entries.next()?;
        let mut further = |kind| {
            entries
                .next_if(|next| next.base & kind != 0)
                .map_or([0; 8], |next| next.pages)
        };
        let (written, others) = (further(ENTRY_WRITTEN), further(ENTRY_OTHERS));
        Some(Region {
            base: Address(entry.base & !ENTRY_LOW),
            leaf: leaf(entry.base & ENTRY_LEAF),
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
            base: 0x40_0000 | ENTRY_WRITTEN,
            pages: [1, 0, 0, 0, 0, 0, 0, 0],
        };
        let huge = VanishEntry {
            base: 0x80_0000 | 1,
            pages: [1, 0, 0, 0, 0, 0, 0, 0],
        };
        let of_others = |base| VanishEntry {
            base: base | ENTRY_OTHERS,
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
        let regions: Vec<Region> = vanish_regions(&bytes).collect();
        assert_eq!(regions.len(), 2);
        assert_eq!((regions[0].accessed[0], regions[0].written[0]), (3, 1));
        assert_eq!((regions[0].others[0], regions[1].others[0]), (8, 8));
        assert_eq!(
            (regions[1].leaf, regions[1].base),
            (Leaf::Huge2M, Address(0x80_0000))
        );
    }
}
