//! What is known of the pages of a chunk: a list where few of them were touched, arrays where many were.
//!
//! Programs that touch a page here and there over terabytes of addresses exist, and traces that say so take no more than
//! some bytes a page. So memory follows the pages that were entered, at most some 230 bytes for each.

use crate::chunks::{Bits, PAGES, WORDS, clear, has, set};
use crate::stats::{FAULTED, TAIL, WRITTEN};

/// The page was touched while several objects lay on it.
const SHARED: u8 = 8;
/// A chunk with more pages than this gets arrays, which cost as much as three hundred entries.
const MAX_FEW: usize = 16;

/// A page of a chunk of which few were touched.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Entry {
    /// Touches by its only owner.
    count: u32,
    page: u16,
    /// Touches since the last assignment.
    pending: u16,
    /// Intervals that touched it, whosever it was, up to 3.
    total: u8,
    flags: u8,
}

/// What is kept for each page of a chunk of which many were touched, 5.5 bytes in all.
pub(crate) struct Dense {
    /// Touches of the page by its only owner.
    counts: [u32; PAGES],
    /// Intervals that touched the page, whosever it was, up to 3.
    total: [u8; PAGES],
    /// Pages written, of their only owner.
    written: Bits,
    /// Pages that had a page fault, of their only owner.
    faulted: Bits,
    /// Pages touched in the tail of the recording, of their only owner.
    tail: Bits,
    /// Pages touched while several objects lay on them.
    shared: Bits,
}

/// What is known of the pages of a chunk.
pub(crate) enum PageStates {
    /// In the order of pages.
    Few(Vec<Entry>),
    /// All of them.
    Many(Box<Dense>),
}

/// How a page was touched.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Touched {
    /// How often.
    pub(crate) times: u32,
    /// Whether it is the recorder's own memory.
    pub(crate) own: bool,
    /// Whether in the tail of the recording.
    pub(crate) in_tail: bool,
    /// Whether one object has it to itself.
    pub(crate) alone: bool,
}

impl PageStates {
    /// Makes entries for pages `first..end`; false where these are too many for a list.
    pub(crate) fn make_room(&mut self, first: usize, end: usize) -> bool {
        let PageStates::Few(list) = self else {
            return true;
        };
        if end - first > MAX_FEW {
            return false;
        }
        let at = list.partition_point(|e| usize::from(e.page) < first);
        let behind = at + list[at..].partition_point(|e| usize::from(e.page) < end);
        if behind - at == end - first {
            return true;
        }
        if list.len() + (end - first) - (behind - at) > MAX_FEW {
            return false;
        }
        for page in first..end {
            entry(list, page);
        }
        true
    }

    /// Makes arrays of a list. Calls `pending` with the touches that wait there.
    pub(crate) fn widen(&mut self, mut pending: impl FnMut(usize, u16)) {
        let PageStates::Few(list) = self else {
            return;
        };
        let list = std::mem::take(list);
        *self = PageStates::Many(Box::new(Dense {
            counts: [0; PAGES],
            total: [0; PAGES],
            written: [0; WORDS],
            faulted: [0; WORDS],
            tail: [0; WORDS],
            shared: [0; WORDS],
        }));
        for known in list {
            let page = usize::from(known.page);
            self.put_flags(page, known.flags);
            if let PageStates::Many(dense) = self {
                dense.counts[page] = known.count;
                dense.total[page] = known.total;
                if known.flags & SHARED != 0 {
                    set(&mut dense.shared, page, page + 1);
                }
            }
            if known.pending > 0 {
                pending(page, known.pending);
            }
        }
    }

    /// Adds a touch that waits to be assigned; false where arrays are kept, which leave that to others.
    #[inline]
    pub(crate) fn await_touch(&mut self, first: usize, end: usize) -> bool {
        let PageStates::Few(list) = self else {
            return false;
        };
        for page in first..end {
            let known = entry(list, page);
            known.pending = known.pending.saturating_add(1);
        }
        true
    }

    /// Takes what waits to be assigned out of a list.
    pub(crate) fn take_waiting(&mut self, mut each: impl FnMut(u16, u32)) {
        if let PageStates::Few(list) = self {
            for known in list.iter_mut().filter(|e| e.pending > 0) {
                each(known.page, std::mem::take(&mut known.pending).into());
            }
        }
    }

    /// Enters assigned touches of a page.
    #[inline]
    pub(crate) fn touched(&mut self, page: usize, how: Touched) {
        let more = |total: u8| u32::from(total).saturating_add(how.times).min(3) as u8;
        match self {
            PageStates::Few(list) => {
                let known = entry(list, page);
                if !how.own {
                    known.total = more(known.total);
                }
                if how.in_tail {
                    known.flags |= TAIL;
                }
                if how.alone {
                    known.count = known.count.saturating_add(how.times);
                } else if !how.own {
                    known.flags |= SHARED;
                }
            }
            PageStates::Many(dense) => {
                if !how.own {
                    dense.total[page] = more(dense.total[page]);
                }
                if how.in_tail {
                    set(&mut dense.tail, page, page + 1);
                }
                if how.alone {
                    dense.counts[page] = dense.counts[page].saturating_add(how.times);
                } else if !how.own {
                    set(&mut dense.shared, page, page + 1);
                }
            }
        }
    }

    /// The first page from `page` on that something may be known of; the number of pages where there is none.
    #[inline]
    pub(crate) fn next(&self, page: usize) -> usize {
        match self {
            PageStates::Few(list) => {
                let at = list.partition_point(|e| usize::from(e.page) < page);
                list.get(at).map_or(PAGES, |e| usize::from(e.page))
            }
            PageStates::Many(_) => page.min(PAGES),
        }
    }

    /// How many pages were touched in one, two, and three or more intervals.
    pub(crate) fn reuse(&self) -> [u64; 3] {
        let mut counted = [0_u64; 4];
        match self {
            PageStates::Few(list) => list
                .iter()
                .for_each(|e| counted[usize::from(e.total & 3)] += 1),
            PageStates::Many(dense) => dense
                .total
                .iter()
                .for_each(|&total| counted[usize::from(total & 3)] += 1),
        }
        [counted[1], counted[2], counted[3]]
    }

    /// How many pages several objects lay on.
    pub(crate) fn shared(&self) -> u64 {
        match self {
            PageStates::Few(list) => list.iter().filter(|e| e.flags & SHARED != 0).count() as u64,
            PageStates::Many(dense) => dense.shared.iter().map(|w| u64::from(w.count_ones())).sum(),
        }
    }

    /// Touches of a page by its only owner.
    pub(crate) fn count(&self, page: usize) -> u32 {
        match self {
            PageStates::Few(list) => find(list, page).map_or(0, |e| e.count),
            PageStates::Many(dense) => dense.counts[page],
        }
    }

    /// Replaces the touches of a page by its only owner; returns those before.
    pub(crate) fn replace_count(&mut self, page: usize, count: u32) -> u32 {
        let place = match self {
            PageStates::Few(list) => &mut entry(list, page).count,
            PageStates::Many(dense) => &mut dense.counts[page],
        };
        std::mem::replace(place, count)
    }

    /// `WRITTEN`, `FAULTED` and `TAIL` of a page, of its only owner.
    pub(crate) fn flags(&self, page: usize) -> u8 {
        match self {
            PageStates::Few(list) => find(list, page).map_or(0, |e| e.flags & !SHARED),
            PageStates::Many(dense) => {
                (u8::from(has(&dense.written, page)) * WRITTEN)
                    | (u8::from(has(&dense.faulted, page)) * FAULTED)
                    | (u8::from(has(&dense.tail, page)) * TAIL)
            }
        }
    }

    /// Takes these flags of a page.
    pub(crate) fn take_flags(&mut self, page: usize) -> u8 {
        let found = self.flags(page);
        match self {
            PageStates::Few(list) => entry(list, page).flags &= SHARED,
            PageStates::Many(dense) => {
                clear(&mut dense.written, page);
                clear(&mut dense.faulted, page);
                clear(&mut dense.tail, page);
            }
        }
        found
    }

    /// Sets flags of a page.
    pub(crate) fn put_flags(&mut self, page: usize, flags: u8) {
        self.put_flags_of(page, page + 1, flags);
    }

    /// Sets flags of pages `first..end`.
    pub(crate) fn put_flags_of(&mut self, first: usize, end: usize, flags: u8) {
        match self {
            PageStates::Few(list) => (first..end)
                .for_each(|page| entry(list, page).flags |= flags & (WRITTEN | FAULTED | TAIL)),
            PageStates::Many(dense) => {
                for (flag, bits) in [
                    (WRITTEN, &mut dense.written),
                    (FAULTED, &mut dense.faulted),
                    (TAIL, &mut dense.tail),
                ] {
                    if flags & flag != 0 {
                        set(bits, first, end);
                    }
                }
            }
        }
    }
}

fn find(list: &[Entry], page: usize) -> Option<&Entry> {
    let at = list.binary_search_by_key(&page, |e| usize::from(e.page));
    at.ok().map(|at| &list[at])
}

/// The entry of a page, which is made if it is not there.
fn entry(list: &mut Vec<Entry>, page: usize) -> &mut Entry {
    let at = list.binary_search_by_key(&page, |e| usize::from(e.page));
    let at = at.unwrap_or_else(|at| {
        if list.len() == list.capacity() {
            // One at first, as many chunks have no more.
            list.reserve_exact(list.len().clamp(1, MAX_FEW));
        }
        list.insert(
            at,
            Entry {
                // Below 512.
                page: page as u16,
                ..Entry::default()
            },
        );
        at
    });
    &mut list[at]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn states() -> PageStates {
        PageStates::Few(Vec::new())
    }

    /// What can be asked, of all pages.
    fn all(states: &PageStates) -> (Vec<(u32, u8)>, [u64; 3], u64) {
        let pages = (0..PAGES).map(|p| (states.count(p), states.flags(p)));
        (pages.collect(), states.reuse(), states.shared())
    }

    #[test]
    fn a_list_says_what_arrays_say() {
        let (mut few, mut many) = (states(), states());
        many.widen(|_, _| panic!("nothing waits"));
        for (page, times, alone) in [(7, 1, true), (300, 5, true), (7, 1, false), (511, 2, true)] {
            for states in [&mut few, &mut many] {
                assert!(states.make_room(page, page + 1));
                let how = Touched {
                    times,
                    own: page == 511,
                    in_tail: page == 300,
                    alone,
                };
                states.touched(page, how);
                states.put_flags_of(page, page + 1, WRITTEN);
            }
        }
        assert!(matches!(few, PageStates::Few(_)));
        assert_eq!(all(&few), all(&many));
        assert_eq!(few.reuse(), [0, 1, 1]);
        for states in [&mut few, &mut many] {
            assert_eq!(states.take_flags(300), WRITTEN | TAIL);
            assert_eq!(states.replace_count(300, 9), 5);
        }
        assert_eq!(all(&few), all(&many));
        assert_eq!((few.next(0), few.next(8), few.next(512)), (7, 300, PAGES));
        let before = all(&few);
        few.widen(|_, _| panic!("nothing waits"));
        assert_eq!(all(&few), before);
    }

    #[test]
    fn a_list_stays_short_and_keeps_what_waits() {
        let mut states = states();
        assert!(!states.make_room(0, MAX_FEW + 1));
        assert!(states.make_room(0, MAX_FEW));
        assert!(states.make_room(3, 9), "they are there");
        assert!(!states.make_room(MAX_FEW, MAX_FEW + 1));
        assert!(states.await_touch(3, 5));
        assert!(states.await_touch(4, 5));
        let mut waiting = Vec::new();
        states.widen(|page, times| waiting.push((page, times)));
        assert_eq!(waiting, [(3, 1), (4, 2)]);
        assert!(!states.await_touch(3, 5));
        assert!(states.make_room(0, PAGES));
    }
}
