//! What the kernel has said and the handler has not done yet.
//!
//! The handler must read whatever the kernel has to say, always: the kernel hands out accesses that wait before
//! it hands out changes of mappings, and lets no page be moved while a change has not been read. A handler that
//! stopped reading because many threads wait would wait for ever. So accesses beyond the room of the list are
//! forgotten, and that some were is remembered: when the list is done, whoever still waits is woken and asks again.

use super::ranges::Range;
use crate::sys;

/// Room for so many of each kind. A thread waits for one thing at a time.
const ROOM: usize = 64 << 10;

/// A list, first come first served, in memory of the handler's own that is touched only where it is used.
struct List<T: 'static> {
    places: &'static mut [T],
    first: usize,
    count: usize,
}

impl<T: Copy> List<T> {
    /// An empty one. Zeroes must be a valid `T`.
    unsafe fn new() -> Option<List<T>> {
        let memory = sys::map_anonymous(ROOM * size_of::<T>())?;
        // SAFETY: fresh zeroed memory of that size, page-aligned, which stays; the caller vouches for zeroes.
        let places = unsafe { std::slice::from_raw_parts_mut(memory.cast().as_ptr(), ROOM) };
        Some(List {
            places,
            first: 0,
            count: 0,
        })
    }

    fn memory(&self) -> Range {
        let start = self.places.as_ptr() as u64;
        Range {
            start,
            end: start + size_of_val(self.places) as u64,
        }
    }

    /// Adds one; whether there was room.
    fn push(&mut self, one: T) -> bool {
        if self.count == 0 {
            // From the start again, so that memory is touched only as far as it was ever needed.
            self.first = 0;
        }
        if self.count == ROOM {
            return false;
        }
        if let Some(place) = self.places.get_mut((self.first + self.count) % ROOM) {
            *place = one;
            self.count += 1;
        }
        true
    }

    fn pop(&mut self) -> Option<T> {
        let one = self.places.get(self.first).copied()?;
        self.count = self.count.checked_sub(1)?;
        self.first = (self.first + 1) % ROOM;
        Some(one)
    }
}

/// An access that waits: the page, and in the lowest bit whether it is a write.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Access(u64);

impl Access {
    pub(super) fn page(self) -> u64 {
        self.0 & !1
    }

    pub(super) fn is_write(self) -> bool {
        self.0 & 1 != 0
    }
}

/// A change of mappings, with the kernel's three words.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Change {
    pub(super) event: u64,
    pub(super) words: [u64; 3],
}

/// Both lists.
pub(super) struct Backlog {
    accesses: List<Access>,
    changes: List<Change>,
    /// Some accesses were forgotten.
    has_forgotten: bool,
}

impl Backlog {
    pub(super) fn new() -> Option<Backlog> {
        // SAFETY: both are made of integers.
        let (accesses, changes) = unsafe { (List::new()?, List::new()?) };
        Some(Backlog {
            accesses,
            changes,
            has_forgotten: false,
        })
    }

    /// Where the lists lie.
    pub(super) fn memory(&self) -> [Range; 2] {
        [self.accesses.memory(), self.changes.memory()]
    }

    pub(super) fn push_access(&mut self, page: u64, is_write: bool) {
        let access = Access(page | u64::from(is_write));
        self.has_forgotten |= !self.accesses.push(access);
    }

    pub(super) fn push_change(&mut self, change: Change) {
        // There is room: the reader asks first.
        self.changes.push(change);
    }

    pub(super) fn has_room_for_changes(&self, count: usize) -> bool {
        self.changes.count + count <= ROOM
    }

    pub(super) fn pop_access(&mut self) -> Option<Access> {
        self.accesses.pop()
    }

    /// Brings the accesses that wait into the order of their pages, as far as they lie side by side in the list.
    pub(super) fn sort_accesses(&mut self) {
        let (first, end) = (
            self.accesses.first,
            self.accesses.first + self.accesses.count,
        );
        if let Some(waiting) = self.accesses.places.get_mut(first..end.min(ROOM)) {
            waiting.sort_unstable();
        }
    }

    pub(super) fn pop_change(&mut self) -> Option<Change> {
        self.changes.pop()
    }

    pub(super) fn accesses(&self) -> usize {
        self.accesses.count
    }

    /// Whether accesses were forgotten since this was last asked.
    pub(super) fn take_forgotten(&mut self) -> bool {
        std::mem::take(&mut self.has_forgotten)
    }
}
