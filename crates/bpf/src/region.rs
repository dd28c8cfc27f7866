//! What a walk of the page tables finds in one 2 MiB region or one huge page

use varve_model::{Address, Bytes};

/// 512 bits, one for each 4 KiB page of a 2 MiB region; only bit 0 counts for a huge page
pub type Bitmap = [u64; 8];

/// Touched pages of one 2 MiB region, or one huge page
///
/// Only regions with something touched are reported. A page stands in one or more of the bitmaps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// Address of the first page; aligned to 2 MiB, or to the huge page
    pub base: Address,
    /// Size of the hardware page
    pub leaf: Leaf,
    /// A huge page known to be of hugetlb; only ever set for regions of a walk whose page flags
    /// were checked
    pub hugetlb: bool,
    /// Pages whose accessed bit is set and can be cleared
    pub accessed: Bitmap,
    /// Anonymous pages of this process alone whose bit someone else (DAMON, idle tracking) took, who left `PG_young`
    pub young: Bitmap,
    /// Anonymous pages of this process alone that the kernel touched through the direct map (`O_DIRECT` and its kin):
    /// `PG_referenced`
    pub referenced: Bitmap,
    /// Pages that may be pinned for DMA: a device may touch them at any time
    pub pinned: Bitmap,
    /// Pages whose accessed bit is set and cannot be cleared by `clear_refs` (zero page, PFN maps,
    /// hugetlb): touched at least once since they were mapped
    pub sticky: Bitmap,
    /// Pages written since the last `clear_refs` 4; all zero where the kernel has no soft-dirty bits.
    /// After [`Kernel::guard_writes`](crate::Kernel::guard_writes): pages that are not protected and
    /// dirty, which were written if all pages of their mapping were protected
    pub written: Bitmap,
    /// Pages that userfaultfd protects, and that were therefore not written through this mapping
    /// since they were protected, except by a device if they were pinned then; all zero before
    /// `guard_writes`, and where page flags are not looked at
    pub intact: Bitmap,
    /// Pages with one of these two flags that other processes may have set: pages of files and of shared memory, and
    /// pages that somebody else has mapped too
    pub others: Bitmap,
    /// Pages of the region that are present, touched or not (1 for a huge page)
    pub present: u32,
}

/// Size of a hardware page
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Leaf {
    /// 512 pages of 4 KiB
    Small,
    /// One page of 2 MiB
    Huge2M,
    /// One page of 1 GiB
    Huge1G,
}

impl Leaf {
    /// Bytes of one hardware page
    pub const fn bytes(self) -> Bytes {
        match self {
            Leaf::Small => Bytes(1 << 12),
            Leaf::Huge2M => Bytes(1 << 21),
            Leaf::Huge1G => Bytes(1 << 30),
        }
    }
}

impl Region {
    /// A region of which nothing is known to be touched, or there
    pub const fn untouched(base: Address, leaf: Leaf) -> Region {
        Region {
            base,
            leaf,
            hugetlb: false,
            accessed: [0; 8],
            young: [0; 8],
            referenced: [0; 8],
            pinned: [0; 8],
            sticky: [0; 8],
            written: [0; 8],
            intact: [0; 8],
            others: [0; 8],
            present: 0,
        }
    }

    /// All pages that may have been touched, whatever the cause
    pub fn touched(&self) -> Bitmap {
        let mut all = self.accessed;
        for other in [
            &self.young,
            &self.referenced,
            &self.pinned,
            &self.sticky,
            &self.others,
        ] {
            for (a, b) in all.iter_mut().zip(other) {
                *a |= b;
            }
        }
        all
    }

    /// Whether a bitmap of this region has the page of an address
    pub(crate) fn has(&self, address: Address, pages: &Bitmap) -> bool {
        let offset = address.0.wrapping_sub(self.base.0);
        let (bytes, at) = match self.leaf {
            Leaf::Small => (Leaf::Huge2M.bytes(), (offset >> 12) as usize),
            leaf => (leaf.bytes(), 0),
        };
        if offset >= bytes.0 {
            return false;
        }
        pages[at / 64] >> (at % 64) & 1 == 1
    }

    /// Adds what another look at the same pages found
    pub fn join(&mut self, other: &Region) {
        for (own, others) in [
            (&mut self.accessed, &other.accessed),
            (&mut self.young, &other.young),
            (&mut self.referenced, &other.referenced),
            (&mut self.pinned, &other.pinned),
            (&mut self.sticky, &other.sticky),
            (&mut self.written, &other.written),
            (&mut self.intact, &other.intact),
            (&mut self.others, &other.others),
        ] {
            for (a, b) in own.iter_mut().zip(others) {
                *a |= b;
            }
        }
        self.present = self.present.max(other.present);
        self.hugetlb |= other.hugetlb;
    }

    /// How many hardware pages are touched
    pub fn touched_count(&self) -> u32 {
        self.touched().iter().map(|w| w.count_ones()).sum()
    }
}

/// The pages of one 2 MiB region, or of one huge page, that are there, touched or not
///
/// Of what `MADV_FREE` was called for only those count that were accessed or written since: the kernel takes the others when it likes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resident {
    /// Address of the first page; aligned to 2 MiB, or to the huge page
    pub base: Address,
    /// Size of the hardware page
    pub leaf: Leaf,
    /// The pages; all of a huge page of 2 MiB, and all 512 bits of one of 1 GiB
    pub pages: Bitmap,
}

/// What to walk of an address space; by default all of it
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Part {
    /// The address space that it must be; the default is whichever the process has
    pub mm: crate::MmId,
    /// From where on; a multiple of 2 MiB
    pub start: Address,
    /// Up to where; none: all
    pub end: Option<Address>,
    /// Stop at the next multiple of 2 MiB when so many 4 KiB pages were there; more where a page is larger
    pub most: Option<u64>,
}

/// Sums over one whole walk
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WalkStats {
    /// The first thread of the process has ended; what was walked is the memory of the others
    pub first_ended: bool,
    /// 4 KiB pages present, huge pages counted as the 4 KiB pages that they hold
    pub present_pages: u64,
    /// Regions reported
    pub regions: u64,
    /// Pages whose `struct page` was read because their accessed bit was clear
    pub flag_checks: u64,
    /// Pages whose `struct page` could not be read: nothing is known of them
    pub flag_failures: u64,
    /// Page tables that could not be read: their 2 MiB are missing
    pub table_failures: u64,
    /// Calls into the kernel (more than one if the output filled up)
    pub calls: u32,
    /// The address space
    pub mm: crate::MmId,
}

/// What `clear_refs` is about to take away
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Harvest {
    /// Accessed bits and page flags: it is written `1`
    Accessed,
    /// Soft-dirty bits: it is written `4`
    Written,
}

/// Sums over what was kept of it
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HarvestStats {
    /// The address space; 0 where there was nothing to clear
    pub mm: crate::MmId,
    /// Regions reported
    pub regions: u32,
    /// Touched pages for which there was no room
    pub lost: u32,
    /// Page tables and pages' flags that could not be read
    pub failures: u64,
}
