//! Where pages lie while they are moved, and where pages of a forked child have gone.

pub(super) use varve_preload_abi::shadow::{MIDDLE, TOP, home_of, shadow_of};

use varve_preload_abi::journal::Change;

use super::ranges::{Range, Ranges};

// Messages of a userfaultfd about changes of mappings (linux/userfaultfd.h).
pub(super) const EVENT_FORK: u8 = 0x13;
pub(super) const EVENT_REMAP: u8 = 0x14;
pub(super) const EVENT_REMOVE: u8 = 0x15;
pub(super) const EVENT_UNMAP: u8 = 0x16;

pub(super) fn range_of(start: u64, bytes: u64) -> Range {
    Range {
        start,
        end: start.saturating_add(bytes),
    }
}

/// The parts of a range whose shadows are each in one piece.
pub(super) fn halves(range: Range) -> [Range; 2] {
    let low = Range {
        start: 0,
        end: MIDDLE,
    };
    let high = Range {
        start: MIDDLE,
        end: TOP,
    };
    [range.common(low), range.common(high)]
}

/// Moves within a child's memory that are remembered at most.
const MAX_MOVES: usize = 64;

/// What a forked child did to its memory since the fork.
pub(super) struct Changes {
    /// What it had at the fork and has no more, by the addresses of then. None where there is no memory for that.
    gone: Option<Ranges>,
    /// From where to where it moved memory, in that order.
    moves: [(Range, u64); MAX_MOVES],
    count: usize,
    /// How many changes there were.
    heard: u64,
    /// Whether all are remembered.
    is_whole: bool,
}

impl Changes {
    /// None yet.
    pub(super) fn new() -> Changes {
        let nothing = Range { start: 0, end: 0 };
        Changes {
            gone: Ranges::passing(),
            moves: [(nothing, 0); MAX_MOVES],
            count: 0,
            heard: 0,
            is_whole: true,
        }
    }

    /// The same, for a child of the child.
    pub(super) fn copy(&self) -> Changes {
        let mut copy = Changes::new();
        copy.moves = self.moves;
        copy.count = self.count;
        copy.is_whole = self.is_whole;
        for range in self.gone.iter().flat_map(|gone| gone.as_slice()) {
            copy.is_whole &= copy.gone.as_mut().is_some_and(|gone| gone.push(*range));
        }
        copy
    }

    /// Follows a change; that it forked gives the descriptor of its child.
    pub(super) fn follow(&mut self, change: &Change) -> Option<i32> {
        let [a, b, c] = change.words;
        match change.event as u8 {
            EVENT_FORK => return Some(a as i32),
            EVENT_REMAP => self.moved(range_of(a, c), b),
            EVENT_REMOVE | EVENT_UNMAP => self.went(Range { start: a, end: b }),
            _ => {}
        }
        None
    }

    /// How many changes there were.
    pub(super) fn heard(&self) -> u64 {
        self.heard
    }

    /// Whether one can know where everything is. If not, what is not remembered may be wrong.
    pub(super) fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// A range moved to an address.
    pub(super) fn moved(&mut self, range: Range, to: u64) {
        self.heard += 1;
        match self.moves.get_mut(self.count) {
            Some(place) => {
                *place = (range, to);
                self.count += 1;
            }
            None => self.is_whole = false,
        }
    }

    /// The content of a range went.
    pub(super) fn went(&mut self, range: Range) {
        self.heard += 1;
        self.forget(range, self.count);
    }

    /// Takes out what was moved into a range by the first so many moves, or was there.
    fn forget(&mut self, range: Range, moves: usize) {
        if range.is_empty() {
            return;
        }
        let last = moves
            .checked_sub(1)
            .and_then(|i| self.moves.get(i))
            .copied();
        let Some((from, to)) = last else {
            self.is_whole &= self.gone.as_mut().is_some_and(|gone| gone.insert(range));
            return;
        };
        let place = range_of(to, from.bytes());
        let came = range.common(place);
        if !came.is_empty() {
            let source = from.start + (came.start - to);
            self.forget(range_of(source, came.bytes()), moves - 1);
        }
        // What was there before had to go; what was where the rest came from has moved.
        for part in without(range, place) {
            for rest in without(part, from) {
                self.forget(rest, moves - 1);
            }
        }
    }

    /// Where the page is now that was here at the fork, if it still is.
    pub(super) fn now(&self, page: u64) -> Option<u64> {
        if self.gone.as_ref().is_some_and(|gone| gone.holds(page)) {
            return None;
        }
        let mut at = page;
        for (range, to) in self.moves.iter().take(self.count) {
            if range.start <= at && at < range.end {
                at = *to + (at - range.start);
            }
        }
        Some(at)
    }
}

impl Drop for Changes {
    fn drop(&mut self) {
        if let Some(gone) = self.gone.take() {
            gone.release();
        }
    }
}

/// The parts of a range before and behind another.
fn without(range: Range, other: Range) -> [Range; 2] {
    let before = Range {
        start: range.start,
        end: range.end.min(other.start),
    };
    let behind = Range {
        start: range.start.max(other.end),
        end: range.end,
    };
    if other.is_empty() {
        return [range, Range { start: 0, end: 0 }];
    }
    [before, behind]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> Range {
        Range { start, end }
    }

    /// Where each of the first pages is now.
    fn places(changes: &Changes, count: u64) -> Vec<Option<u64>> {
        (0..count).map(|page| changes.now(page)).collect()
    }

    #[test]
    fn what_went_is_nowhere_however_much_it_is() {
        let mut changes = Changes::new();
        for page in 0..1000 {
            changes.went(range(2 * page, 2 * page + 1));
        }
        assert!(changes.is_whole());
        for page in 0..1000 {
            assert_eq!(changes.now(2 * page), None);
            assert_eq!(changes.now(2 * page + 1), Some(2 * page + 1));
        }
    }

    #[test]
    fn what_went_behind_moves_is_what_had_been_moved_there() {
        let mut changes = Changes::new();
        changes.moved(range(2, 4), 100);
        // The old place is unmapped, which concerns nothing.
        changes.went(range(2, 4));
        // Whatever is where memory is moved to goes first.
        changes.went(range(101, 102));
        changes.moved(range(0, 1), 101);
        assert_eq!(
            places(&changes, 5),
            [Some(101), Some(1), Some(100), None, Some(4)]
        );
        let mut copy = changes.copy();
        copy.went(range(101, 102));
        assert_eq!(copy.now(0), None);
        assert_eq!(copy.now(2), Some(100));
        changes.went(range(0, 200));
        assert_eq!(places(&changes, 5), [None; 5]);
    }
}
