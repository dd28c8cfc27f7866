//! Which heap pages have an owner, and where recorded objects start.
//!
//! One byte per page says both whether small objects on it are already pooled under a name and
//! whether any recorded object starts on it, so that the common `malloc` and `free` of small
//! objects cost one look at the same byte. Where a recorded object starts, one bit per 16 bytes says
//! so. Tables cover 1 GiB of addresses each and are backed only where they are touched: at most
//! 1/128 of the heap for the bits. All of it is lock-free and whole at every instruction.

use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU64, Ordering};

use varve_preload_abi::OwnMemory;

use crate::{process, sys};

const OWNED: u8 = 1;
const STARTS_HERE: u8 = 2;

const REGION_SHIFT: u32 = 30;
/// User addresses end at 2^47; processes that ask for more (5-level paging) are not covered there.
const REGIONS: usize = 1 << (47 - REGION_SHIFT);
const PAGES: usize = 1 << (REGION_SHIFT - 12);
const START_WORDS: usize = 1 << (REGION_SHIFT - 4 - 6);

#[repr(C)]
struct Region {
    flags: [AtomicU8; PAGES],
    starts: [AtomicU64; START_WORDS],
}

static REGION_TABLE: [AtomicPtr<Region>; REGIONS] = [const { AtomicPtr::new(null_mut()) }; REGIONS];

#[inline]
fn region(address: u64) -> Option<&'static Region> {
    let entry = REGION_TABLE.get((address >> REGION_SHIFT) as usize)?;
    // SAFETY: entries are null or point to a zeroed mapping of a `Region` that is never unmapped.
    unsafe { entry.load(Ordering::Acquire).as_ref() }
}

#[cold]
fn make_region(address: u64) -> Option<&'static Region> {
    let entry = REGION_TABLE.get((address >> REGION_SHIFT) as usize)?;
    let memory = sys::map_anonymous(size_of::<Region>())?;
    let fresh: *mut Region = memory.as_ptr().cast();
    match entry.compare_exchange(null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            process::note_own_memory(memory, size_of::<Region>(), OwnMemory::Table);
            // SAFETY: the mapping is zeroed, page-aligned, as large as a `Region`, and stays.
            Some(unsafe { &*fresh })
        }
        Err(other) => {
            // SAFETY: nobody else has seen this mapping.
            unsafe { sys::unmap(memory, size_of::<Region>()) };
            // SAFETY: as in `region`.
            NonNull::new(other).map(|other| unsafe { other.as_ref() })
        }
    }
}

#[inline]
fn page_flags(region: &Region, address: u64) -> &AtomicU8 {
    &region.flags[(address >> 12) as usize & (PAGES - 1)]
}

#[inline]
fn start_bit(region: &Region, address: u64) -> (&AtomicU64, u64) {
    let granule = (address >> 4) as usize & (START_WORDS * 64 - 1);
    (&region.starts[granule / 64], 1 << (granule % 64))
}

/// Whether the page of `address` has an owner.
#[inline]
pub(crate) fn is_owned(address: u64) -> bool {
    region(address)
        .is_some_and(|region| page_flags(region, address).load(Ordering::Relaxed) & OWNED != 0)
}

/// What came of [`own`].
pub(crate) enum Owning {
    /// The page had no owner; one caller gets this.
    New,
    /// It had one.
    Before,
    /// There is no memory to note it.
    NoRoom,
}

/// Makes the page of `address` owned.
pub(crate) fn own(address: u64) -> Owning {
    let Some(region) = region(address).or_else(|| make_region(address)) else {
        return Owning::NoRoom;
    };
    match page_flags(region, address).fetch_or(OWNED, Ordering::Relaxed) & OWNED {
        0 => Owning::New,
        _ => Owning::Before,
    }
}

/// Notes that a recorded object starts at `address`; false if there is no room to note it.
pub(crate) fn add_start(address: u64) -> bool {
    let Some(region) = region(address).or_else(|| make_region(address)) else {
        return false;
    };
    let (word, bit) = start_bit(region, address);
    word.fetch_or(bit, Ordering::Relaxed);
    page_flags(region, address).fetch_or(STARTS_HERE, Ordering::Relaxed);
    true
}

/// Whether a recorded object may start at `address`: cheap, and no for nearly all small objects.
#[inline]
pub(crate) fn may_start(address: u64) -> bool {
    region(address).is_some_and(|region| {
        page_flags(region, address).load(Ordering::Relaxed) & STARTS_HERE != 0
    })
}

/// Whether one does.
#[inline]
pub(crate) fn is_start(address: u64) -> bool {
    region(address).is_some_and(|region| {
        let (word, bit) = start_bit(region, address);
        word.load(Ordering::Relaxed) & bit != 0
    })
}

/// Forgets the recorded object at `address`; true for the one caller that did.
pub(crate) fn take_start(address: u64) -> bool {
    let Some(region) = region(address) else {
        return false;
    };
    let (word, bit) = start_bit(region, address);
    word.load(Ordering::Relaxed) & bit != 0 && word.fetch_and(!bit, Ordering::Relaxed) & bit != 0
}

/// Ends the ownership of every page that lies fully within the range.
pub(crate) fn disown(address: u64, bytes: u64) {
    let first = address.div_ceil(4096);
    let end = (address.saturating_add(bytes) >> 12).min(1 << (47 - 12));
    let mut page = first;
    while page < end {
        let region_end = ((page | (PAGES as u64 - 1)) + 1).min(end);
        if let Some(region) = region(page << 12) {
            let low = page as usize & (PAGES - 1);
            let high = low + (region_end - page) as usize;
            for flags in &region.flags[low..high] {
                if flags.load(Ordering::Relaxed) & OWNED != 0 {
                    flags.fetch_and(!OWNED, Ordering::Relaxed);
                }
            }
        }
        page = region_end;
    }
}
