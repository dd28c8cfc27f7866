//! What was asked for, by the block's address: one byte for each 16 of the heap.
//!
//! Allocators say how much of a block can be used; the byte of a block's first 16 says by how much that is more than what was
//! asked for. Where that is too much for a byte the block is large enough for its next bytes to be nobody else's, and they
//! hold the number. Two blocks of 8 bytes share a byte, half each. Tables cover 1 GiB of addresses each and are backed
//! only where they are touched. A block that begins where none had begun before is *fresh*.

use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

use super::attach;
use crate::sys;

const REGION_SHIFT: u32 = 30;
const REGIONS: usize = 1 << (47 - REGION_SHIFT);
const GRANULES: usize = 1 << (REGION_SHIFT - 4);

const NEVER: u8 = 0;
/// Excesses below this are in the byte, as one more.
const MAX_EXCESS: usize = 240;
const LARGE: u8 = 254;
const FREED: u8 = 255;
/// Bytes of the number of a large excess.
const NUMBER_BYTES: usize = 6;
/// The same of half a byte.
const HALF_FREED: u8 = 15;

#[repr(C)]
struct Region([AtomicU8; GRANULES]);

static REGION_TABLE: [AtomicPtr<Region>; REGIONS] = [const { AtomicPtr::new(null_mut()) }; REGIONS];

#[inline]
fn region(address: u64) -> Option<&'static Region> {
    let entry = REGION_TABLE.get((address >> REGION_SHIFT) as usize)?;
    // SAFETY: entries are null or point to a zeroed mapping of a `Region` that is never unmapped.
    unsafe { entry.load(Ordering::Acquire).as_ref() }
}

#[cold]
fn make_region(address: u64) -> Option<&'static Region> {
    const MADV_NOHUGEPAGE: usize = 15;
    let entry = REGION_TABLE.get((address >> REGION_SHIFT) as usize)?;
    let memory = sys::map_anonymous(size_of::<Region>())?;
    let fresh: *mut Region = memory.as_ptr().cast();
    match entry.compare_exchange(null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            // SAFETY: advice on the mapping just made: it is touched thinly.
            unsafe {
                let range = [
                    fresh as usize,
                    size_of::<Region>(),
                    MADV_NOHUGEPAGE,
                    0,
                    0,
                    0,
                ];
                sys::call(libc::SYS_madvise, range);
            }
            attach::note_shadow(fresh as u64, size_of::<Region>() as u64);
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
fn index(address: u64) -> usize {
    (address >> 4) as usize & (GRANULES - 1)
}

/// Which half of a byte is a block's of 8 bytes.
#[inline]
fn half(address: u64) -> u32 {
    (address >> 3 & 1) as u32 * 4
}

/// Replaces half a byte; what it was.
fn set_half(byte: &AtomicU8, half: u32, value: u8) -> u8 {
    let mask = 15 << half;
    let mut before = byte.load(Ordering::Relaxed);
    loop {
        let after = before & !mask | value << half;
        let (done, other) = (Ordering::Relaxed, Ordering::Relaxed);
        match byte.compare_exchange_weak(before, after, done, other) {
            Ok(_) => return before >> half & 15,
            Err(now) => before = now,
        }
    }
}

/// Notes a block; whether none has begun there before.
#[inline]
pub(super) fn set(address: u64, usable: usize, requested: usize) -> bool {
    let Some(region) = region(address).or_else(|| make_region(address)) else {
        return false;
    };
    let at = index(address);
    let byte = &region.0[at];
    if usable <= 8 {
        return set_half(byte, half(address), requested as u8 + 1) == NEVER;
    }
    let excess = usable - requested.min(usable);
    let before = byte.load(Ordering::Relaxed);
    if excess < MAX_EXCESS {
        byte.store(excess as u8 + 1, Ordering::Relaxed);
    } else {
        byte.store(LARGE, Ordering::Relaxed);
        let number = (requested as u64).to_le_bytes();
        let places = region.0.iter().skip(at + 1);
        for (place, digit) in places.zip(&number[..NUMBER_BYTES]) {
            place.store(*digit, Ordering::Relaxed);
        }
    }
    before == NEVER
}

/// Forgets a block; what was asked for, where it was noted.
#[inline]
pub(super) fn take(address: u64, usable: usize) -> Option<usize> {
    let region = region(address)?;
    let at = index(address);
    let byte = &region.0[at];
    if usable <= 8 {
        let noted = set_half(byte, half(address), HALF_FREED);
        return (1..=9).contains(&noted).then(|| usize::from(noted) - 1);
    }
    let noted = byte.load(Ordering::Relaxed);
    match noted {
        NEVER | FREED => None,
        LARGE => {
            byte.store(FREED, Ordering::Relaxed);
            let mut number = [0; 8];
            let places = region.0.iter().skip(at + 1);
            for (place, digit) in places.zip(&mut number[..NUMBER_BYTES]) {
                // What begins there later is fresh, as nothing had.
                *digit = place.swap(NEVER, Ordering::Relaxed);
            }
            Some(u64::from_le_bytes(number) as usize)
        }
        excess => {
            byte.store(FREED, Ordering::Relaxed);
            usable.checked_sub(usize::from(excess) - 1)
        }
    }
}
