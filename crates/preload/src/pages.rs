//! Which heap pages have an owner, and where recorded objects start.
//!
//! One byte per page says both whether small objects on it are already pooled under a name and
//! whether any recorded object starts on it, so that the common `malloc` and `free` of small
//! objects cost one look at the same byte. Where a recorded object starts, one bit per 16 bytes says
//! so. Tables of bytes cover 1 GiB of addresses each, those of bits 128 MiB, as all that is mapped counts where the program's memory is limited. Both are
//! backed only where they are touched: at most 1/128 of the heap for the bits. All of it is lock-free and whole at every instruction.

use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU64, Ordering};

use varve_preload_abi::OwnMemory;

use crate::{budget, process, sys};

const OWNED: u8 = 1;
const STARTS_HERE: u8 = 2;

const REGION_SHIFT: u32 = 30;
/// User addresses end at 2^47; processes that ask for more (5-level paging) are not covered there.
const REGIONS: usize = 1 << (47 - REGION_SHIFT);
const PAGES: usize = 1 << (REGION_SHIFT - 12);
const PART_SHIFT: u32 = 27;
const PARTS: usize = 1 << (REGION_SHIFT - PART_SHIFT);
const START_WORDS: usize = 1 << (PART_SHIFT - 4 - 6);

/// In whole pages, as a mapping is.
#[repr(C, align(4096))]
struct Region {
    flags: [AtomicU8; PAGES],
    starts: [AtomicPtr<Starts>; PARTS],
}

type Starts = [AtomicU64; START_WORDS];

static REGION_TABLE: [AtomicPtr<Region>; REGIONS] = [const { AtomicPtr::new(null_mut()) }; REGIONS];

#[inline]
fn region(address: u64) -> Option<&'static Region> {
    let place = REGION_TABLE.get((address >> REGION_SHIFT) as usize)?;
    // SAFETY: entries are null or point to a zeroed mapping of a `Region` that is never unmapped.
    unsafe { place.load(Ordering::Acquire).as_ref() }
}

/// The region of an address, which is mapped where it is not there; none where there is no room for it.
fn make_region(address: u64) -> Option<&'static Region> {
    let place = REGION_TABLE.get((address >> REGION_SHIFT) as usize)?;
    // SAFETY: it has atomic integers and pointers that may be null.
    region(address).or_else(|| unsafe { map_at(place) })
}

#[inline]
fn part(region: &Region, address: u64) -> &AtomicPtr<Starts> {
    &region.starts[(address >> PART_SHIFT) as usize & (PARTS - 1)]
}

#[inline]
fn starts(region: &Region, address: u64) -> Option<&'static Starts> {
    // SAFETY: as in `region`.
    unsafe { part(region, address).load(Ordering::Acquire).as_ref() }
}

/// The bits of an address likewise.
fn make_starts(region: &Region, address: u64) -> Option<&'static Starts> {
    // SAFETY: it has atomic integers.
    starts(region, address).or_else(|| unsafe { map_at(part(region, address)) })
}

#[inline]
fn starts_of(address: u64) -> Option<&'static Starts> {
    region(address).and_then(|region| starts(region, address))
}

/// Maps a table for a place that has none, unless a limit of the program's leaves too little.
///
/// # Safety
/// Zeroes are a valid `T`, which is as long as whole pages.
#[cold]
unsafe fn map_at<T: 'static>(place: &AtomicPtr<T>) -> Option<&'static T> {
    let bytes = size_of::<T>();
    if !budget::permits(bytes) {
        return None;
    }
    let memory = sys::map_anonymous(bytes)?;
    let fresh: *mut T = memory.as_ptr().cast();
    match place.compare_exchange(null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            process::note_own_memory(memory, bytes, OwnMemory::Table);
            // SAFETY: the mapping is zeroed, page-aligned, as large as a `T`, and stays.
            Some(unsafe { &*fresh })
        }
        Err(other) => {
            // SAFETY: nobody else has seen this mapping.
            unsafe { sys::unmap(memory, bytes) };
            // SAFETY: another thread's, as above.
            NonNull::new(other).map(|other| unsafe { other.as_ref() })
        }
    }
}

#[inline]
fn page_flags(region: &Region, address: u64) -> &AtomicU8 {
    &region.flags[(address >> 12) as usize & (PAGES - 1)]
}

#[inline]
fn start_bit(starts: &Starts, address: u64) -> (&AtomicU64, u64) {
    let granule = (address >> 4) as usize & (START_WORDS * 64 - 1);
    (&starts[granule / 64], 1 << (granule % 64))
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
    let Some(region) = make_region(address) else {
        return Owning::NoRoom;
    };
    match page_flags(region, address).fetch_or(OWNED, Ordering::Relaxed) & OWNED {
        0 => Owning::New,
        _ => Owning::Before,
    }
}

/// Notes that a recorded object starts at `address`; false if there is no room to note it.
pub(crate) fn add_start(address: u64) -> bool {
    let Some(region) = make_region(address) else {
        return false;
    };
    let Some(starts) = make_starts(region, address) else {
        return false;
    };
    let (word, bit) = start_bit(starts, address);
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
    starts_of(address).is_some_and(|starts| {
        let (word, bit) = start_bit(starts, address);
        word.load(Ordering::Relaxed) & bit != 0
    })
}

/// Forgets the recorded object at `address`; true for the one caller that did.
pub(crate) fn take_start(address: u64) -> bool {
    let Some(starts) = starts_of(address) else {
        return false;
    };
    let (word, bit) = start_bit(starts, address);
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

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn used() -> u64 {
        budget::used().unwrap()[0]
    }

    #[test]
    fn a_start_is_known_until_it_is_taken() {
        let address = 7 << REGION_SHIFT;
        for distance in [0, 16, 1 << PART_SHIFT, (1 << REGION_SHIFT) - 16] {
            let address = address + distance;
            assert!(!is_start(address) && !take_start(address));
            assert!(add_start(address));
            assert!(may_start(address) && is_start(address));
            assert!(!is_start(address ^ 32));
            assert!(take_start(address) && !take_start(address));
            assert!(!is_start(address));
        }
    }

    #[test]
    fn a_page_has_an_owner_until_all_of_it_goes() {
        let address = 9 << REGION_SHIFT;
        assert!(matches!(own(address), Owning::New));
        assert!(matches!(own(address + 4095), Owning::Before));
        disown(address, 4095);
        assert!(is_owned(address));
        disown(address - 4096, 3 * 4096);
        assert!(!is_owned(address));
    }

    /// A program with a limit of its address space lacks what is mapped, whether it is touched or not.
    #[test]
    fn a_gigabyte_of_addresses_takes_no_more_than_its_objects_need() {
        let address = 11 << REGION_SHIFT;
        let before = used();
        own(address);
        let owned = used();
        add_start(address);
        let started = used();
        // What this process maps besides is less.
        let taken = [owned.saturating_sub(before), started.saturating_sub(owned)];
        assert!(taken[0] < MIB && taken[1] < 2 * MIB, "{taken:?}");
    }
}
