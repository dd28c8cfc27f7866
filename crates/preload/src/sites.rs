//! Numbers for call stacks. Each distinct stack is sent once per ring.
//!
//! A stack's 64-bit hash stands for it; two stacks with one hash in one process are less likely
//! than a bit flip. The number is the place in the table, so it is known before the stack was
//! sent, and no thread waits for another.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use varve_preload_abi::OwnMemory;

use crate::{budget, modules, process, sys};

struct Entry {
    hash: AtomicU64,
    /// The generation of the process whose ring knows the stack.
    sent: AtomicU32,
}

/// Tables of growing size; the next one is used when eight places in a row are taken.
const SIZES: [usize; 4] = [1 << 12, 1 << 15, 1 << 18, 1 << 21];
const PROBES: usize = 8;
static TABLES: [AtomicPtr<Entry>; SIZES.len()] =
    [const { AtomicPtr::new(null_mut()) }; SIZES.len()];

fn table(index: usize) -> Option<&'static [Entry]> {
    let size = SIZES[index];
    let mut pointer = TABLES[index].load(Ordering::Acquire);
    if pointer.is_null() {
        let bytes = size * size_of::<Entry>();
        if !budget::permits(bytes) {
            return None;
        }
        let memory = sys::map_anonymous(bytes)?;
        let fresh: *mut Entry = memory.as_ptr().cast();
        pointer = match TABLES[index].compare_exchange(
            null_mut(),
            fresh,
            Ordering::AcqRel,
            Ordering::Acquire,
        ) {
            Ok(_) => {
                process::note_own_memory(memory, bytes, OwnMemory::Table);
                fresh
            }
            Err(other) => {
                // SAFETY: nobody else has seen this mapping.
                unsafe { sys::unmap(memory, bytes) };
                other
            }
        };
    }
    // SAFETY: the mapping holds `size` entries, zeroed at first, and is never unmapped.
    Some(unsafe { std::slice::from_raw_parts(pointer, size) })
}

/// `unloaded` tells apart stacks through libraries that took turns at one address.
fn hash(frames: &[u64], unloaded: u32) -> u64 {
    let mut state = 0x9e37_79b9_7f4a_7c15u64 ^ frames.len() as u64 ^ u64::from(unloaded) << 32;
    for &frame in frames {
        let product = u128::from(state ^ frame) * 0xa076_1d64_78bd_642f;
        state = (product as u64) ^ ((product >> 64) as u64).rotate_left(23);
    }
    state | 1
}

/// The number of a stack, and whether this caller must send it. `None` when the tables are full.
pub(crate) fn number(frames: &[u64]) -> Option<(u32, &'static AtomicU32)> {
    let hash = hash(frames, modules::unloaded());
    let mut base = 1u32;
    for (index, &size) in SIZES.iter().enumerate() {
        let entries = table(index)?;
        let start = (hash >> 20) as usize;
        for probe in 0..PROBES {
            let place = (start + probe) & (size - 1);
            let entry = &entries[place];
            let mut found = entry.hash.load(Ordering::Relaxed);
            if found == 0 {
                found =
                    match entry
                        .hash
                        .compare_exchange(0, hash, Ordering::Relaxed, Ordering::Relaxed)
                    {
                        Ok(_) => hash,
                        Err(other) => other,
                    };
            }
            if found == hash {
                return Some((base + place as u32, &entry.sent));
            }
        }
        base += size as u32;
    }
    None
}
