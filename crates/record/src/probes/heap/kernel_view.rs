//! Objects of processes without the preload library: what the kernel's tracepoints see of mmap,
//! munmap, mremap, brk and shmat, with the user stack unwound here.

use varve_bpf::{Mapping, MappingCall};
use varve_model::{Address, Bytes, ObjectKind, SiteId};
use varve_symbols::{AddressSpaces, Locator, Snapshot, Unwinder};

use super::rings::grow_or_shrink;
use crate::state::State;
use crate::state::objects::Birth;
use crate::state::processes::Processes;
use crate::state::stacks::Stacks;

/// Whether a mapping takes address space of which parts become memory later: nobody may access it, or the kernel keeps no
/// memory for it.
pub(crate) const fn is_reservation(protection: u32, flags: i32) -> bool {
    protection == libc::PROT_NONE as u32 || flags & libc::MAP_NORESERVE != 0
}

/// Turns mapping events into births and deaths.
pub(crate) struct KernelView {
    unwinder: Unwinder,
}

impl KernelView {
    pub(crate) fn new() -> KernelView {
        KernelView {
            unwinder: Unwinder::new(Locator::while_recording()),
        }
    }

    pub(crate) fn take(&mut self, event: &Mapping<'_>, state: &mut State) {
        let State {
            processes,
            objects,
            stacks,
            ..
        } = state;
        // The kernel gives errors as the last page of the address space.
        if (-4095..0).contains(&event.result) {
            return;
        }
        let pid = event.pid;
        let result = event.result as u64;
        let makes = !matches!(
            event.call,
            MappingCall::Unmap { .. } | MappingCall::ShmDetach { .. }
        );
        let site = if makes {
            self.site(event, processes, stacks)
        } else {
            None
        };
        let birth = |kind, made_by, address, bytes| Birth {
            kind,
            made_by,
            address: Address(address),
            bytes,
            born: event.time,
            tid: Some(event.tid),
            site,
            reserved: false,
            continues: None,
        };
        match event.call {
            MappingCall::Map {
                bytes,
                protection,
                flags,
                fd,
                ..
            } => {
                let flags = flags as i32;
                let kind = if fd >= 0 && flags & libc::MAP_ANONYMOUS == 0 {
                    ObjectKind::File
                } else if flags & libc::MAP_STACK != 0 {
                    ObjectKind::Stack
                } else {
                    ObjectKind::Mapping
                };
                if kind == ObjectKind::File && site.is_none() {
                    // The table of mappings has the name of the file, which is all that is known of it.
                    objects.unmap(pid, Address(result), bytes, event.entered);
                    return;
                }
                let mut made = birth(kind, "mmap", result, bytes);
                made.reserved = kind == ObjectKind::Mapping && is_reservation(protection, flags);
                objects.map(pid, made);
            }
            MappingCall::Unmap { address, bytes } => {
                objects.unmap(pid, address, bytes, event.entered)
            }
            MappingCall::Remap {
                old_address,
                old_bytes,
                new_bytes,
                ..
            } => {
                let before = objects.area_of(pid, old_address).cloned();
                objects.unmap(pid, old_address, old_bytes, event.entered);
                let mut moved = birth(ObjectKind::Mapping, "mremap", result, new_bytes);
                if let Some(before) = before {
                    moved.kind = before.birth.kind;
                    moved.site = before.birth.site.or(moved.site);
                    // A part of it that moved would have another beginning.
                    let whole = before.birth.address == old_address;
                    moved.continues = whole.then_some(before.object);
                }
                objects.map(pid, moved);
            }
            MappingCall::Brk { before, .. } => {
                if before.0 != 0 {
                    grow_or_shrink(pid, before.0, result, event.time, objects, |a, b| {
                        birth(ObjectKind::Heap, "brk", a, Bytes(b))
                    });
                }
            }
            MappingCall::ShmAttach { .. } => {
                // The call does not say the size; the mappings, read again after it, do.
                let entry = processes.mappings(pid).find(|(e, _)| e.address.0 == result);
                if let Some((entry, _)) = entry {
                    objects.map(
                        pid,
                        birth(ObjectKind::Mapping, "shmat", result, entry.bytes),
                    );
                }
            }
            MappingCall::ShmDetach { address } => {
                if let Some(bytes) = objects.area_at(pid, address).map(|l| l.birth.bytes) {
                    objects.unmap(pid, address, bytes, event.entered);
                }
            }
        }
    }

    fn site(
        &mut self,
        event: &Mapping<'_>,
        processes: &Processes,
        stacks: &mut Stacks,
    ) -> Option<SiteId> {
        let stack = event.stack.as_ref()?;
        let placed = processes.placed_code(event.pid);
        let spaces = AddressSpaces::new(&placed);
        let snapshot = Snapshot {
            pid: event.pid,
            at: event.time,
            ip: stack.ip,
            sp: stack.sp,
            bp: stack.bp,
            stack: stack.bytes,
        };
        let frames = self.unwinder.unwind(&spaces, &snapshot);
        // The first frame is the instruction behind `syscall`: a return address in all but name.
        if frames.is_empty() {
            return None;
        }
        stacks.site(event.pid, event.time, frames, true)
    }
}
