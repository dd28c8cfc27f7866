//! The memory that allocators have mapped: what system calls within operations map, and nobody unmaps since.
//!
//! What the program maps itself is not in it, nor are stacks and static data: no allocator can be blamed for those. First touches of these
//! pages are counted, and how often the clocks of CPUs found a thread in one: they are the price of fresh memory that the program pays later.
//!
//! A page fault is a first touch where the page was not touched since it was mapped, or since its contents were given up: the kernel says of a
//! page that may not be accessed for the moment, or is in swap, that it is not there either.
//!
//! Touched pages that operations give back (`munmap`, `brk`, `madvise`) would be there still had the allocator kept them. As many of the first
//! touches that follow are of memory that *came again*. What the program gives back itself is not among it. A large page is one touch, as it is
//! one page fault: that such a touch came again is as true, and how many bytes it brought is not known here.

use std::collections::HashMap;
use std::ops::Range;

use varve_bpf::{Emptied, Event, FirstTouch, ForkKind, Mapping, MappingCall, TouchSeen, TouchedBy};
use varve_model::{Address, Bytes, Duration, PAGE_BYTES, Page, Pages, Pid, Tid, Time};
use varve_trace::tables::OperationChargeRow;

use super::CLOCK_RATE;
use super::touched::Touched;
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
    /// Pages of these that were touched, and have their contents.
    touched: Touched,
    /// How many touched pages operations gave back that have not come again.
    given: u64,
    /// Of each thread the last first touch by the program's own code, and whether its memory came again.
    last: HashMap<Tid, (Page, bool)>,
    /// What is not written yet.
    counts: Counts,
}

/// First touches.
#[derive(Clone, Copy, Default)]
struct Touches {
    by_program: u64,
    by_kernel: u64,
    in_operation: u64,
}

impl Touches {
    fn count(&mut self, by: TouchedBy) {
        *match by {
            TouchedBy::Program => &mut self.by_program,
            TouchedBy::Kernel => &mut self.by_kernel,
            TouchedBy::Operation => &mut self.in_operation,
        } += 1;
    }
}

/// What happens to the pages of a process.
#[derive(Clone, Copy, Default)]
struct Counts {
    touches: Touches,
    /// Those of memory that came again.
    again: Touches,
    /// How often the clock of a CPU found a thread in a first touch, and in one of memory that came again.
    sampled: u64,
    sampled_again: u64,
    /// Touched pages that operations unmapped, and those that they gave back by `madvise`.
    unmapped: u64,
    advised: u64,
}

impl Counts {
    /// Names of rows in the table of charges, with their counts.
    fn named(&self) -> [(&'static str, u64); 10] {
        let outside = |of: &Touches| of.by_program + of.by_kernel;
        [
            ("first_touch", outside(&self.touches)),
            ("first_touch_by_kernel", self.touches.by_kernel),
            ("first_touch_in_operation", self.touches.in_operation),
            ("came_again", outside(&self.again)),
            ("came_again_by_kernel", self.again.by_kernel),
            ("came_again_in_operation", self.again.in_operation),
            (CLOCK_FIRST_TOUCH, self.sampled),
            (CLOCK_CAME_AGAIN, self.sampled_again),
            (UNMAPPED_TOUCHED, self.unmapped),
            (ADVISED_TOUCHED, self.advised),
        ]
    }
}

/// So much at once for which the kernel is to set no memory aside is addresses, of which hardly any are used, as for an allocator's own tables: to look at
/// each would take the recorder a second.
const ADDRESSES: Bytes = Bytes(64 << 30);

/// Rows with the time that samples stand for.
const CLOCK_FIRST_TOUCH: &str = "clock_first_touch";
const CLOCK_CAME_AGAIN: &str = "clock_came_again";
/// Rows with the bytes of pages.
const UNMAPPED_TOUCHED: &str = "unmapped_touched";
const ADVISED_TOUCHED: &str = "advised_touched";

/// How an operation gives memory back.
#[derive(Clone, Copy)]
enum Way {
    Unmapped,
    Advised,
}

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
                process.change(mapping);
                process.most = process.most.max(process.ranges.bytes());
            }
            Event::FirstTouch(touch) => {
                let pid = state.processes.owner_of_memory(touch.pid);
                if let Some(process) = self.processes.get_mut(&pid) {
                    process.touch(touch);
                }
            }
            Event::Emptied(emptied) => {
                let pid = state.processes.owner_of_memory(emptied.pid);
                if let Some(process) = self.processes.get_mut(&pid) {
                    process.advised(emptied);
                }
            }
            Event::Exit(exit) => {
                let pid = state.processes.owner_of_memory(exit.pid);
                if let Some(process) = self.processes.get_mut(&pid) {
                    process.last.remove(&exit.tid);
                }
            }
            Event::Fork(fork) if fork.kind == ForkKind::Process => {
                let parent = state.processes.owner_of_memory(fork.parent);
                if let Some(process) = self.processes.get(&parent) {
                    let child = process.forked();
                    self.processes.insert(fork.pid, child);
                }
            }
            _ => {}
        }
    }

    /// What the process runs has ended.
    pub(super) fn forget(&mut self, pid: Pid) {
        self.processes.remove(&pid);
    }

    /// What has happened to pages since the last time, of one process or all.
    pub(super) fn read(&mut self, now: Time, of: Option<Pid>, rows: &mut Vec<OperationChargeRow>) {
        let period = 1_000_000_000 / u64::from(CLOCK_RATE);
        let processes = self.processes.iter_mut();
        for (pid, process) in processes.filter(|(pid, _)| of.is_none_or(|of| of == **pid)) {
            let counts = std::mem::take(&mut process.counts).named();
            for (name, count) in counts.into_iter().filter(|(_, count)| *count > 0) {
                let ns = match name {
                    CLOCK_FIRST_TOUCH | CLOCK_CAME_AGAIN => count * period,
                    _ => 0,
                };
                rows.push(OperationChargeRow {
                    time_ns: now,
                    pid: *pid,
                    operation: None,
                    site: None,
                    name: name.into(),
                    count,
                    total_ns: Duration(ns),
                    queued_ns: Duration(0),
                    bytes: match name {
                        UNMAPPED_TOUCHED | ADVISED_TOUCHED => Pages(count).bytes(),
                        _ => Bytes(0),
                    },
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

impl Process {
    /// What a child has of it: what it gave back was its own.
    fn forked(&self) -> Process {
        Process {
            given: 0,
            last: HashMap::new(),
            counts: Counts::default(),
            ..self.clone()
        }
    }

    /// Counts a page fault at a page that the kernel says is not there.
    fn touch(&mut self, touch: &FirstTouch) {
        if !self.ranges.holds(touch.address, Bytes(1)) {
            return;
        }
        let page = touch.address.page();
        if touch.seen == TouchSeen::Sampled {
            if let Some((_, is_again)) = self.last.get(&touch.tid).filter(|(of, _)| *of == page) {
                self.counts.sampled += 1;
                self.counts.sampled_again += u64::from(*is_again);
            }
            return;
        }
        let is_first = self.touched.insert(page);
        let is_again = is_first && self.given > 0;
        match touch.by {
            TouchedBy::Program if is_first => _ = self.last.insert(touch.tid, (page, is_again)),
            _ => _ = self.last.remove(&touch.tid),
        }
        if is_first {
            self.counts.touches.count(touch.by);
        }
        if is_again {
            self.given -= 1;
            self.counts.again.count(touch.by);
        }
    }

    /// Pages of a range lose their contents; the way in which an operation gave them back, where one did.
    fn empty(&mut self, at: Address, bytes: Bytes, way: Option<Way>) {
        let pages = self.touched.take(pages_of(at, bytes)).count();
        let Some(way) = way else {
            return;
        };
        self.given += pages;
        match way {
            Way::Unmapped => self.counts.unmapped += pages,
            Way::Advised => self.counts.advised += pages,
        }
    }

    /// Where the kernel takes pages as it needs them, it is not known whether they went: they did where a page fault follows.
    fn advised(&mut self, of: &Emptied) {
        let is_given = of.by_operation && of.at_once;
        let way = is_given.then_some(Way::Advised);
        self.empty(of.address, of.bytes, way);
    }

    /// A range is mapped, and is the allocator's or not.
    fn map(&mut self, at: Address, bytes: Bytes, is_allocators: bool) {
        self.ranges.remove(at, bytes);
        if is_allocators {
            self.ranges.insert(at, bytes);
        }
    }

    /// What a call has made of its ranges.
    fn change(&mut self, mapping: &Mapping<'_>) {
        let Ok(result) = u64::try_from(mapping.result) else {
            return;
        };
        let (result, by_operation) = (Address(result), mapping.by_operation);
        let way = by_operation.then_some(Way::Unmapped);
        match mapping.call {
            MappingCall::Map { bytes, flags, .. } => {
                let has = |flag: i32| flags & flag.cast_unsigned() != 0;
                // Where the kernel chose the place nothing was there.
                self.empty(result, bytes, way.filter(|_| has(libc::MAP_FIXED)));
                let is_reserved = has(libc::MAP_NORESERVE) && bytes >= ADDRESSES;
                let is_memory = has(libc::MAP_ANONYMOUS) && !is_reserved;
                self.map(result, bytes, by_operation && is_memory);
            }
            MappingCall::Unmap { address, bytes } => {
                self.empty(address, bytes, way);
                self.ranges.remove(address, bytes);
            }
            MappingCall::Remap {
                old_address,
                old_bytes,
                new_bytes,
                flags,
            } => {
                // Moved pages are the allocator's where they were, whoever moves them.
                let was_memory = self.ranges.holds(old_address, old_bytes);
                let is_allocators = by_operation && was_memory;
                self.move_touched((old_address, old_bytes), (result, new_bytes), way);
                if flags & libc::MREMAP_DONTUNMAP.cast_unsigned() == 0 {
                    self.ranges.remove(old_address, old_bytes);
                }
                self.map(result, new_bytes, is_allocators);
            }
            MappingCall::Brk { before, .. } if result > before => {
                self.map(before, Bytes(result.0 - before.0), by_operation);
            }
            MappingCall::Brk { before, .. } => {
                // The page with the end stays.
                let from = Address(result.0.next_multiple_of(PAGE_BYTES));
                self.empty(from, Bytes(before.0.saturating_sub(from.0)), way);
                self.ranges.remove(result, Bytes(before.0 - result.0));
            }
            MappingCall::ShmAttach { .. } | MappingCall::ShmDetach { .. } => {}
        }
    }

    /// A range goes elsewhere with its contents, or becomes shorter or longer where it is.
    fn move_touched(
        &mut self,
        (from, old): (Address, Bytes),
        (to, new): (Address, Bytes),
        way: Option<Way>,
    ) {
        let whole = |bytes: Bytes| bytes.0.next_multiple_of(PAGE_BYTES);
        let kept = whole(old).min(whole(new));
        let rest = Bytes(whole(old) - kept);
        self.empty(Address(from.0.saturating_add(kept)), rest, way);
        if from == to {
            return;
        }
        let moved = self.touched.take(pages_of(from, Bytes(kept)));
        // What lay there before.
        self.empty(to, new, way);
        for page in moved.pages() {
            let at = page.0 - from.page().0 + to.page().0;
            self.touched.insert(Page(at));
        }
    }
}

/// The numbers of the pages of a range.
fn pages_of(at: Address, bytes: Bytes) -> Range<u64> {
    let end = at.0.saturating_add(bytes.0);
    at.page().0..end.div_ceil(PAGE_BYTES)
}

#[cfg(test)]
mod tests;
