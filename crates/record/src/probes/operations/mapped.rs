//! The memory that allocators have mapped: what system calls within operations map, and nobody unmaps since.
//!
//! What the program maps itself is not in it, nor are stacks and static data: no allocator can be blamed for those. First touches of these
//! pages outside of operations are counted, and how often the clocks of CPUs found a thread in one: they are the price of fresh memory that the
//! program pays later.

use std::collections::HashMap;

use varve_bpf::{Event, FirstTouch, ForkKind, Mapping, MappingCall, TouchSeen};
use varve_model::{Address, Bytes, Duration, Pid, Time};
use varve_trace::tables::OperationChargeRow;

use super::CLOCK_RATE;
use crate::state::State;
use crate::state::ranges::Ranges;

/// The ranges of each process.
#[derive(Default)]
pub(super) struct Mapped {
    processes: HashMap<Pid, Process>,
}

#[derive(Clone, Default)]
struct Process {
    ranges: Ranges,
    /// The most bytes since anybody asked.
    most: Bytes,
    /// First touches of these pages outside of operations that are not written yet.
    touched: u64,
    /// How often the clock of a CPU found a thread in one; not written yet either.
    sampled: u64,
}

/// The name of such touches in the table of charges.
const FIRST_TOUCH: &str = "first_touch";
/// The name of what clocks found in them.
const CLOCK_FIRST_TOUCH: &str = "clock_first_touch";

/// What a process's allocator has mapped.
pub(super) struct Heap {
    /// Addresses and bytes.
    pub(super) ranges: Vec<(u64, u64)>,
    /// The most bytes since the last time.
    pub(super) most: Bytes,
}

impl Mapped {
    pub(super) fn event(&mut self, event: &Event<'_>, state: &State) {
        match event {
            Event::Mapping(mapping) => {
                let pid = state.processes.owner_of_memory(mapping.pid);
                let process = self.processes.entry(pid).or_default();
                change(&mut process.ranges, mapping);
                process.most = process.most.max(process.ranges.bytes());
            }
            Event::FirstTouch(touch) => {
                self.touch(state.processes.owner_of_memory(touch.pid), touch);
            }
            Event::Fork(fork) if fork.kind == ForkKind::Process => {
                let parent = state.processes.owner_of_memory(fork.parent);
                if let Some(process) = self.processes.get(&parent) {
                    let child = Process {
                        touched: 0,
                        sampled: 0,
                        ..process.clone()
                    };
                    self.processes.insert(fork.pid, child);
                }
            }
            _ => {}
        }
    }

    /// Counts a first touch in the memory of a process.
    fn touch(&mut self, pid: Pid, touch: &FirstTouch) {
        if let Some(process) = self.processes.get_mut(&pid)
            && process.ranges.holds(touch.address, Bytes(1))
        {
            match touch.seen {
                TouchSeen::Begun => process.touched += 1,
                TouchSeen::Sampled => process.sampled += 1,
            }
        }
    }

    /// What the process runs has ended.
    pub(super) fn forget(&mut self, pid: Pid) {
        self.processes.remove(&pid);
    }

    /// First touches since the last time, and what clocks found in them, of one process or all.
    pub(super) fn read(&mut self, now: Time, of: Option<Pid>, rows: &mut Vec<OperationChargeRow>) {
        let period = 1_000_000_000 / u64::from(CLOCK_RATE);
        let processes = self.processes.iter_mut();
        for (pid, process) in processes.filter(|(pid, _)| of.is_none_or(|of| of == **pid)) {
            let touched = std::mem::take(&mut process.touched);
            let sampled = std::mem::take(&mut process.sampled);
            let found = [
                (FIRST_TOUCH, touched, 0),
                (CLOCK_FIRST_TOUCH, sampled, sampled * period),
            ];
            for (name, count, ns) in found.into_iter().filter(|(_, count, _)| *count > 0) {
                rows.push(OperationChargeRow {
                    time_ns: now,
                    pid: *pid,
                    operation: None,
                    site: None,
                    name: name.into(),
                    count,
                    total_ns: Duration(ns),
                    queued_ns: Duration(0),
                    bytes: Bytes(0),
                    failed: 0,
                });
            }
        }
    }

    pub(super) fn heap(&mut self, pid: Pid) -> Heap {
        let process = self.processes.entry(pid).or_default();
        let range = |(at, bytes): (Address, Bytes)| (at.0, bytes.0);
        Heap {
            ranges: process.ranges.iter().map(range).collect(),
            most: std::mem::replace(&mut process.most, process.ranges.bytes()),
        }
    }
}

/// What a call has made of the ranges of a process.
fn change(ranges: &mut Ranges, mapping: &Mapping<'_>) {
    let Ok(result) = u64::try_from(mapping.result) else {
        return;
    };
    let result = Address(result);
    let mut made = |at: Address, bytes: Bytes, is_memory: bool| {
        ranges.remove(at, bytes);
        if mapping.by_operation && is_memory {
            ranges.insert(at, bytes);
        }
    };
    match mapping.call {
        MappingCall::Map { bytes, flags, .. } => {
            let is_memory = flags & libc::MAP_ANONYMOUS.cast_unsigned() != 0;
            made(result, bytes, is_memory);
        }
        MappingCall::Unmap { address, bytes } => ranges.remove(address, bytes),
        MappingCall::Remap {
            old_address,
            old_bytes,
            new_bytes,
            flags,
        } => {
            // Moved pages are the allocator's where they were, whoever moves them.
            let was_memory = ranges.holds(old_address, old_bytes);
            if flags & libc::MREMAP_DONTUNMAP.cast_unsigned() == 0 {
                ranges.remove(old_address, old_bytes);
            }
            ranges.remove(result, new_bytes);
            if mapping.by_operation && was_memory {
                ranges.insert(result, new_bytes);
            }
        }
        MappingCall::Brk { before, .. } if result > before => {
            made(before, Bytes(result.0 - before.0), true);
        }
        MappingCall::Brk { before, .. } => {
            ranges.remove(result, Bytes(before.0 - result.0));
        }
        MappingCall::ShmAttach { .. } | MappingCall::ShmDetach { .. } => {}
    }
}

#[cfg(test)]
mod tests {
    use varve_model::{Tid, Time};

    use super::*;

    const MAP: u32 = libc::MAP_ANONYMOUS.cast_unsigned();

    fn call(call: MappingCall, result: i64, by_operation: bool) -> Mapping<'static> {
        Mapping {
            entered: Time(1),
            time: Time(2),
            pid: Pid(1),
            tid: Tid(1),
            call,
            result,
            by_operation,
            stack: None,
        }
    }

    fn map(bytes: u64, flags: u32) -> MappingCall {
        MappingCall::Map {
            hint: Address(0),
            bytes: Bytes(bytes),
            protection: 3,
            flags,
            fd: -1,
            offset: 0,
        }
    }

    fn after(calls: &[Mapping<'_>]) -> Vec<(u64, u64)> {
        let mut ranges = Ranges::default();
        calls.iter().for_each(|call| change(&mut ranges, call));
        ranges.iter().map(|(at, bytes)| (at.0, bytes.0)).collect()
    }

    #[test]
    fn what_the_program_maps_is_not_the_allocators() {
        let own = call(map(0x4000, MAP), 0x10_0000, false);
        let allocators = call(map(0x4000, MAP), 0x20_0000, true);
        let file = call(map(0x4000, 0), 0x30_0000, true);
        let failed = call(map(0x4000, MAP), -12, true);
        assert_eq!(
            after(&[own, allocators, file, failed]),
            [(0x20_0000, 0x4000)]
        );
        // What it has given back is the program's when that maps it.
        let unmap = MappingCall::Unmap {
            address: Address(0x20_1000),
            bytes: Bytes(0x1000),
        };
        let own = call(map(0x2000, MAP), 0x20_2000, false);
        assert_eq!(
            after(&[allocators, call(unmap, 0, true), own]),
            [(0x20_0000, 0x1000)]
        );
    }

    #[test]
    fn a_block_that_moves_is_where_it_went() {
        let first = call(map(0x4000, MAP), 0x10_0000, true);
        let remap = |from, to: i64, by_operation| {
            let remap = MappingCall::Remap {
                old_address: Address(from),
                old_bytes: Bytes(0x4000),
                new_bytes: Bytes(0x8000),
                flags: 1,
            };
            call(remap, to, by_operation)
        };
        assert_eq!(
            after(&[first, remap(0x10_0000, 0x40_0000, true)]),
            [(0x40_0000, 0x8000)]
        );
        let own = call(map(0x4000, MAP), 0x10_0000, false);
        assert_eq!(after(&[own, remap(0x10_0000, 0x40_0000, false)]), []);
    }

    #[test]
    fn the_end_of_the_heap_moves() {
        let brk = |before, result: i64, by_operation| {
            let brk = MappingCall::Brk {
                wanted: Address(0),
                before: Address(before),
            };
            call(brk, result, by_operation)
        };
        let grown = brk(0x50_0000, 0x54_0000, true);
        assert_eq!(after(&[grown]), [(0x50_0000, 0x4_0000)]);
        assert_eq!(
            after(&[grown, brk(0x54_0000, 0x51_0000, true)]),
            [(0x50_0000, 0x1_0000)]
        );
        assert_eq!(after(&[brk(0x50_0000, 0x54_0000, false)]), []);
    }

    #[test]
    fn first_touches_are_those_of_the_allocators_pages() {
        let mut mapped = Mapped::default();
        let process = mapped.processes.entry(Pid(1)).or_default();
        process.ranges.insert(Address(0x10_0000), Bytes(0x2000));
        let mut touch = |pid, address, seen| {
            let touch = FirstTouch {
                pid: Pid(pid),
                address: Address(address),
                seen,
            };
            mapped.touch(Pid(pid), &touch);
        };
        touch(1, 0x10_0000, TouchSeen::Begun);
        touch(1, 0x10_1fff, TouchSeen::Begun);
        for _ in 0..3 {
            touch(1, 0x10_1fff, TouchSeen::Sampled);
        }
        // Beside it, and in a process whose allocator has nothing.
        touch(1, 0x10_2000, TouchSeen::Begun);
        touch(1, 0x10_2000, TouchSeen::Sampled);
        touch(2, 0x10_0000, TouchSeen::Begun);
        let mut read = || {
            let mut rows = Vec::new();
            mapped.read(Time(5), None, &mut rows);
            let row = |row: OperationChargeRow| (row.name.into_owned(), row.count, row.total_ns.0);
            rows.into_iter().map(row).collect::<Vec<_>>()
        };
        let period = 1_000_000_000 / u64::from(CLOCK_RATE);
        let expected = [
            (FIRST_TOUCH.to_owned(), 2, 0),
            (CLOCK_FIRST_TOUCH.to_owned(), 3, 3 * period),
        ];
        assert_eq!(read(), expected);
        assert_eq!(read(), []);
    }
}
