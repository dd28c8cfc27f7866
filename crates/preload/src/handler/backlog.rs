//! What the kernel has said and the handler has not done yet.
//!
//! The handler must read whatever the kernel has to say, always: the kernel hands out accesses that wait before
//! it hands out changes of mappings, and lets no page be moved while a change has not been read. A handler that
//! stopped reading because many threads wait would wait for ever. So accesses beyond the room of the list are
//! forgotten, and that some were is remembered: when the list is done, whoever still waits is woken and asks again.

use std::sync::atomic::{Ordering, compiler_fence};

use varve_preload_abi::journal::{Change, HEARD, Journal, WAITING};

use super::memory;
use super::mover::{PAGE, Watch};
use super::place::EVENT_FORK;
use super::ranges::Range;

const EVENT_PAGEFAULT: u8 = 0x12;
const FAULT_WRITE: u64 = 1;

/// Room for so many accesses. A thread waits for one at a time, and asks again where it was forgotten.
const ROOM: usize = 8 << 10;
/// Bytes of a backlog, in whole pages.
pub(super) const BYTES: usize = (ROOM * size_of::<Access>()).next_multiple_of(PAGE as usize)
    + size_of::<Journal>().next_multiple_of(PAGE as usize);

/// A list, first come, first served, in memory of the handler's own that is touched only where it is used.
struct List<T: 'static> {
    places: &'static mut [T],
    first: usize,
    count: usize,
}

impl<T: Copy> List<T> {
    /// An empty one. Zeroes must be a valid `T`.
    unsafe fn new() -> Option<List<T>> {
        let memory = memory::take(ROOM * size_of::<T>())?;
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

/// What is written before this is there before what is written behind it, whenever this process is ended.
fn order_writes() {
    compiler_fence(Ordering::SeqCst);
}

/// Both lists.
pub(super) struct Backlog {
    accesses: List<Access>,
    /// Changes are noted where others find them, should this process be ended.
    journal: &'static mut Journal,
    /// Forks among the changes that wait.
    forks: u64,
    /// Some accesses were forgotten.
    has_forgotten: bool,
}

impl Backlog {
    pub(super) fn new() -> Option<Backlog> {
        // SAFETY: it is made of integers.
        let accesses = unsafe { List::new()? };
        let memory = memory::take(size_of::<Journal>())?;
        // SAFETY: fresh zeroed memory of that size, page-aligned, which stays; zeroes are an empty journal.
        let journal = unsafe { memory.cast::<Journal>().as_mut() };
        Some(Backlog {
            accesses,
            journal,
            forks: 0,
            has_forgotten: false,
        })
    }

    /// Where the lists lie.
    pub(super) fn memory(&self) -> [Range; 2] {
        let start = self.journal();
        let journal = Range {
            start,
            end: (start + size_of::<Journal>() as u64).next_multiple_of(PAGE),
        };
        [self.accesses.memory(), journal]
    }

    pub(super) fn push_access(&mut self, page: u64, is_write: bool) {
        let access = Access(page | u64::from(is_write));
        self.has_forgotten |= !self.accesses.push(access);
    }

    /// Where the journal lies.
    pub(super) fn journal(&self) -> u64 {
        &raw const *self.journal as u64
    }

    /// Reads what the kernel has to say into the list that it belongs to; whether there may be more.
    pub(super) fn hear(&mut self, front: Watch) -> bool {
        let count = front.read(&mut self.journal.heard);
        for index in 0..count.min(HEARD) {
            let Some(heard) = self.journal.heard.get_mut(index) else {
                break;
            };
            let Change { event, words } = *heard;
            if event as u8 == EVENT_PAGEFAULT {
                heard.event = 0;
                let [flags, address, _] = words;
                self.push_access(address & !(PAGE - 1), flags & FAULT_WRITE != 0);
                continue;
            }
            // There is room: whoever calls asks first.
            let place = (self.journal.first + self.journal.count) as usize % WAITING;
            if let Some(place) = self.journal.waiting.get_mut(place) {
                *place = Change { event, words };
                order_writes();
                self.journal.count += 1;
                self.forks += u64::from(event as u8 == EVENT_FORK);
            }
            order_writes();
            if let Some(heard) = self.journal.heard.get_mut(index) {
                heard.event = 0;
            }
        }
        count == HEARD
    }

    /// Whether there is room for what one more read brings.
    pub(super) fn has_room_for_changes(&self) -> bool {
        self.journal.count as usize + HEARD <= WAITING
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

    /// The change that is to be followed next. It stays until that is done.
    pub(super) fn next_change(&self) -> Option<Change> {
        let journal = &self.journal;
        let place = journal.waiting.get(journal.first as usize % WAITING);
        place.copied().filter(|_| journal.count > 0)
    }

    /// The changes that wait, in their order.
    pub(super) fn changes(&self) -> impl Iterator<Item = Change> {
        let journal = &self.journal;
        (0..journal.count).filter_map(|behind| {
            let place = (journal.first + behind) as usize % WAITING;
            journal.waiting.get(place).copied()
        })
    }

    /// How many changes wait before the first fork; `None` where no fork waits.
    pub(super) fn before_fork(&self) -> Option<usize> {
        if self.forks == 0 {
            return None;
        }
        self.changes().position(|c| c.event as u8 == EVENT_FORK)
    }

    /// The child of the fork that `behind` changes wait before has been filled: nothing is left to do for it.
    pub(super) fn finish_fork(&mut self, behind: usize) {
        let place = (self.journal.first as usize + behind) % WAITING;
        if let Some(fork) = self.journal.waiting.get_mut(place) {
            fork.event = 0;
            self.forks = self.forks.saturating_sub(1);
        }
    }

    /// The next change was followed.
    pub(super) fn finish_change(&mut self) {
        if self
            .next_change()
            .is_some_and(|c| c.event as u8 == EVENT_FORK)
        {
            self.forks = self.forks.saturating_sub(1);
        }
        self.journal.count = self.journal.count.saturating_sub(1);
        order_writes();
        self.journal.first = (self.journal.first + 1) % WAITING as u64;
    }

    pub(super) fn accesses(&self) -> usize {
        self.accesses.count
    }

    /// Whether accesses were forgotten since this was last asked.
    pub(super) fn take_forgotten(&mut self) -> bool {
        std::mem::take(&mut self.has_forgotten)
    }
}
