//! Counting: what runs after each load and each store.
//!
//! Whether it was a load or a store mostly follows from the instruction; else the emulator is asked. (Its own choice
//! between loads and stores, offered when a callback is registered, is the wrong way round in version 7.2 for all that it does
//! not do in functions.) The size of an access matters only near the end of a page, and is asked for there alone.

use std::ffi::c_void;

use crate::api::{MemInfo, qemu_plugin_mem_is_store, qemu_plugin_mem_size_shift};
use crate::file;
use crate::slots::{Slot, place, slot};

/// The instruction only reads.
pub(crate) const READ: usize = 0;
/// It only writes.
pub(crate) const WRITE: usize = 1;
/// It does both, or nobody knows.
pub(crate) const EITHER: usize = 2;
/// It does both at once. The emulator reports one access of both kinds where there are several threads, and a load and a store where
/// there is one; both times there is one that writes.
pub(crate) const ATOMIC: usize = 3;

/// No access of the emulator's is wider than this.
const WIDEST: u64 = 64;
const PAGE: u64 = 4096;

/// An access that the emulator makes in one piece.
pub(crate) extern "C" fn narrow<const KIND: usize, const INTERVALS: bool>(
    vcpu: u32,
    info: MemInfo,
    address: u64,
    _: *mut c_void,
) {
    let Some(slot) = slot(vcpu) else {
        return file::count_lost();
    };
    // SAFETY: this thread's own slot; nobody else holds a reference to it.
    let slot = unsafe { &mut *slot };
    by_kind::<KIND>(slot, info, address, access::<INTERVALS>);
}

/// An access that the emulator may make in several pieces, one after the other from the lowest address on; `bytes` is
/// how long all of them are.
pub(crate) extern "C" fn wide<const KIND: usize, const INTERVALS: bool>(
    vcpu: u32,
    info: MemInfo,
    address: u64,
    bytes: *mut c_void,
) {
    let Some(slot) = slot(vcpu) else {
        return file::count_lost();
    };
    // SAFETY: as in `narrow`.
    let slot = unsafe { &mut *slot };
    let bytes = bytes as u64;
    by_kind::<KIND>(slot, info, address, |slot, kind, info, address| {
        piece::<INTERVALS>(slot, kind, info, address, bytes);
    });
}

#[derive(Clone, Copy)]
struct Kind {
    reads: bool,
    writes: bool,
}

#[inline(always)]
fn by_kind<const KIND: usize>(
    slot: &mut Slot,
    info: MemInfo,
    address: u64,
    count: impl FnOnce(&mut Slot, Kind, MemInfo, u64),
) {
    let kind = match KIND {
        READ => Kind {
            reads: true,
            writes: false,
        },
        WRITE => Kind {
            reads: false,
            writes: true,
        },
        EITHER => {
            let writes = writes(info);
            Kind {
                reads: !writes,
                writes,
            }
        }
        _ => {
            if !writes(info) {
                return;
            }
            Kind {
                reads: true,
                writes: true,
            }
        }
    };
    count(slot, kind, info, address);
}

#[inline(always)]
fn piece<const INTERVALS: bool>(
    slot: &mut Slot,
    kind: Kind,
    info: MemInfo,
    address: u64,
    bytes: u64,
) {
    let size = size(info);
    if address == slot.next_piece && address < slot.whole_end {
        slot.next_piece = address.wrapping_add(size);
        // The page of the byte before has it counted already.
        let counted = (address - 1) / PAGE;
        for page in counted + 1..=address.wrapping_add(size - 1) / PAGE {
            on_page(slot, kind, page);
        }
        return;
    }
    slot.next_piece = address.wrapping_add(size);
    slot.whole_end = address.wrapping_add(bytes);
    access::<INTERVALS>(slot, kind, info, address);
}

#[inline(always)]
fn access<const INTERVALS: bool>(slot: &mut Slot, kind: Kind, info: MemInfo, address: u64) {
    if INTERVALS {
        if slot.left == 0 {
            slot.next_block();
        }
        slot.left -= 1;
    }
    on_page(slot, kind, address / PAGE);
    if address % PAGE > PAGE - WIDEST {
        straddle(slot, kind, info, address);
    }
}

/// The page after, where an access reaches into it.
#[cold]
#[inline(never)]
fn straddle(slot: &mut Slot, kind: Kind, info: MemInfo, address: u64) {
    if address % PAGE + size(info) > PAGE {
        on_page(slot, kind, address / PAGE + 1);
    }
}

#[inline(always)]
fn on_page(slot: &mut Slot, kind: Kind, page: u64) {
    let at = place(page, slot.shift) as usize;
    // SAFETY: the table has one entry more than places.
    let mut entry = unsafe { slot.entries.add(at) };
    // SAFETY: this thread alone uses the table.
    unsafe {
        if (*entry).key != page + 1 {
            entry = entry.add(1);
            if (*entry).key != page + 1 {
                entry = slot.search(page);
                if entry.is_null() {
                    return file::count_lost();
                }
            }
        }
        (*entry).counts[0] += u64::from(kind.reads);
        (*entry).counts[1] += u64::from(kind.writes);
    }
}

#[inline(always)]
fn writes(info: MemInfo) -> bool {
    // SAFETY: the emulator gave `info` for this access.
    unsafe { qemu_plugin_mem_is_store(info) }
}

#[inline(always)]
fn size(info: MemInfo) -> u64 {
    // SAFETY: the emulator gave `info` for this access.
    1 << unsafe { qemu_plugin_mem_size_shift(info) }.min(6)
}
