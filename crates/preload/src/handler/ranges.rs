//! Sets of address ranges in memory of the handler's own, without an allocator.

use std::ptr::NonNull;

use super::memory;
use crate::sys;

/// A range of addresses: the first, and the one after the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Range {
    pub(crate) start: u64,
    pub(crate) end: u64,
}

impl Range {
    pub(super) fn bytes(self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    pub(super) fn is_empty(self) -> bool {
        self.end <= self.start
    }

    pub(super) fn common(self, other: Range) -> Range {
        Range {
            start: self.start.max(other.start),
            end: self.end.min(other.end),
        }
    }
}

/// Ranges that a set holds at most.
pub(super) const MAX: usize = 16 << 10;
/// Bytes of a set.
pub(super) const BYTES: usize = MAX * size_of::<Range>();

/// A set of addresses, as ranges in order that neither overlap nor touch.
pub(super) struct Ranges {
    ranges: &'static mut [Range],
    count: usize,
}

impl Ranges {
    /// An empty one that stays, in memory of the handler's.
    pub(super) fn new() -> Option<Ranges> {
        memory::take(BYTES).map(Ranges::within)
    }

    /// An empty one in fresh memory, which is to be released.
    pub(super) fn passing() -> Option<Ranges> {
        sys::map_anonymous(BYTES).map(Ranges::within)
    }

    fn within(memory: NonNull<u8>) -> Ranges {
        // SAFETY: fresh zeroed memory of that size, page-aligned, which stays; zeroes are valid ranges.
        let ranges = unsafe { std::slice::from_raw_parts_mut(memory.cast().as_ptr(), MAX) };
        Ranges { ranges, count: 0 }
    }

    /// Gives its memory back, where it is a passing one.
    pub(super) fn release(self) {
        if let Some(memory) = NonNull::new(self.ranges.as_mut_ptr()) {
            // SAFETY: `passing` mapped it, and nobody else has it.
            unsafe { sys::unmap(memory.cast(), BYTES) };
        }
    }

    pub(super) fn as_slice(&self) -> &[Range] {
        self.ranges.get(..self.count).unwrap_or_default()
    }

    /// Where this memory lies.
    pub(super) fn memory(&self) -> Range {
        let start = self.ranges.as_ptr() as u64;
        Range {
            start,
            end: start + (MAX * size_of::<Range>()) as u64,
        }
    }

    pub(super) fn clear(&mut self) {
        self.count = 0;
    }

    /// Takes out the first so many ranges.
    pub(super) fn remove_first(&mut self, count: usize) {
        self.splice(0, count.min(self.count), &[]);
    }

    /// The first range that ends behind an address.
    pub(super) fn first_behind(&self, address: u64) -> usize {
        self.as_slice().partition_point(|r| r.end <= address)
    }

    pub(super) fn get(&self, index: usize) -> Option<Range> {
        self.as_slice().get(index).copied()
    }

    /// Whether the address is in it.
    pub(super) fn holds(&self, address: u64) -> bool {
        self.get(self.first_behind(address))
            .is_some_and(|r| r.start <= address)
    }

    /// Puts `with` in the place of the ranges `from..to`; whether there was room.
    fn splice(&mut self, from: usize, to: usize, with: &[Range]) -> bool {
        let after = self.count - to;
        let end = from + with.len() + after;
        if end > MAX {
            return false;
        }
        self.ranges.copy_within(to..self.count, from + with.len());
        if let Some(place) = self.ranges.get_mut(from..from + with.len()) {
            place.copy_from_slice(with);
        }
        self.count = end;
        true
    }

    /// Adds a range; whether there was room.
    pub(super) fn insert(&mut self, mut range: Range) -> bool {
        if range.is_empty() {
            return true;
        }
        let from = self.as_slice().partition_point(|r| r.end < range.start);
        let mut to = from;
        while let Some(next) = self.get(to).filter(|r| r.start <= range.end) {
            range.start = range.start.min(next.start);
            range.end = range.end.max(next.end);
            to += 1;
        }
        self.splice(from, to, &[range])
    }

    /// Adds a range behind all others and does not join it with them; whether there was room.
    pub(super) fn push(&mut self, range: Range) -> bool {
        let room = self.ranges.get_mut(self.count);
        let has_room = room.is_some();
        if let Some(place) = room {
            *place = range;
            self.count += 1;
        }
        has_room
    }

    /// Takes a range out. Where there is no room for the two halves of what it cuts, both go.
    pub(super) fn remove(&mut self, range: Range) {
        if range.is_empty() {
            return;
        }
        let from = self.first_behind(range.start);
        let mut to = from;
        let mut left = [range; 2];
        let mut count = 0;
        while let Some(next) = self.get(to).filter(|r| r.start < range.end) {
            let before = Range {
                start: next.start,
                end: range.start,
            };
            let after = Range {
                start: range.end,
                end: next.end,
            };
            for rest in [before, after] {
                if !rest.is_empty()
                    && let Some(place) = left.get_mut(count)
                {
                    *place = rest;
                    count += 1;
                }
            }
            to += 1;
        }
        let left = left.get(..count).unwrap_or_default();
        if !self.splice(from, to, left) {
            self.splice(from, to, &[]);
        }
    }

    /// Hands on the parts of a range that are not in the set, in order.
    pub(super) fn gaps(&self, range: Range, mut each: impl FnMut(Range)) {
        let mut at = range.start;
        let mut index = self.first_behind(at);
        while let Some(next) = self.get(index).filter(|r| r.start < range.end) {
            let gap = Range {
                start: at,
                end: next.start,
            };
            if !gap.is_empty() {
                each(gap);
            }
            at = next.end;
            index += 1;
        }
        let gap = Range {
            start: at,
            end: range.end,
        };
        if !gap.is_empty() {
            each(gap);
        }
    }
}
