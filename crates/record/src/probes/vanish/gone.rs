//! Pages that go unseen: resident at one boundary, or faulted in since, and gone at the next.
//!
//! What has a new page-table entry has its accessed bit set, and a move keeps the bit. So a page that is there at a boundary with
//! a clear bit was not touched, and what is gone and was not looked at as it went may have been.

use std::ops::Range;

use varve_bpf::Bitmap;
use varve_model::PAGE_BYTES;

use crate::state::pages::{Pages, REGION, Residents, within};

/// How much of a file the kernel maps around a page that is read first, aligned (`fault_around_bytes`).
const AROUND: u64 = 16 * PAGE_BYTES;

/// What happened to the memory of a process in an interval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// A page was accessed that was not there, or not writable.
    Fault(u64),
    /// The kernel mapped pages without a fault for each.
    Populated(u64, u64),
    /// All that was there, as is said, was looked at and went; what was not had gone before.
    Removed(u64, u64, Residents),
    /// Pages moved from one address to another, so many bytes of them.
    Moved(u64, u64, u64),
    /// All of the memory went: the process ended, or ran another program.
    Ended,
}

/// A mapping, as far as the kernel's ways of mapping more than a page at once depend on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Area {
    pub(super) addresses: Range<u64>,
    pub(super) is_file: bool,
}

/// What is known of the memory of a process.
#[derive(Clone, Debug, Default)]
pub(super) struct Space {
    /// What was resident at the last boundary; what a forked child was given, until it is read first.
    before: Residents,
    changes: Vec<Change>,
    /// Those of the next interval.
    next: Vec<Change>,
}

/// Pages that are gone.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Gone {
    /// They were faulted in since the last boundary, and so accessed.
    pub(super) accessed: Pages,
    /// They may have been.
    pub(super) perhaps: Pages,
}

impl Space {
    pub(super) fn of(residents: Residents) -> Space {
        Space {
            before: residents,
            ..Space::default()
        }
    }

    pub(super) fn change(&mut self, change: Change, is_next: bool) {
        let changes = if is_next {
            &mut self.next
        } else {
            &mut self.changes
        };
        // A loop of faults at one page. Of two the last may be refused.
        if !changes.ends_with(&[change.clone(), change.clone()]) {
            changes.push(change);
        }
    }

    /// The last fault at a page found no page there that it may access.
    pub(super) fn refuse(&mut self, address: u64) {
        for changes in [&mut self.next, &mut self.changes] {
            let at = changes.iter().rposition(|c| *c == Change::Fault(address));
            if let Some(at) = at {
                changes.remove(at);
                return;
            }
        }
    }

    /// What a child has that is forked now: copies of what is in the areas.
    pub(super) fn forked(&self, areas: &[Range<u64>]) -> Space {
        let mut all = Replay::new(Pages::of(&self.before), &self.before);
        let changes = self.changes.iter().chain(&self.next);
        changes.for_each(|change| all.take(change));
        let mut left = all.faulted;
        left.add(&all.old);
        let mut copied = left.clone();
        for area in areas {
            left.remove_all(area.start, area.end);
        }
        copied.take_away(&left);
        Space::of(copied.sorted())
    }

    /// Whether all of it went, and nothing came after. Two threads that end at the same time may both read the memory, one of them after the
    /// other has said that the process ended.
    pub(super) fn is_over(&self) -> bool {
        let mut backwards = self.changes.iter().rev();
        let last = backwards.find(|change| !matches!(change, Change::Removed(..)));
        last == Some(&Change::Ended)
    }

    /// Forgets what happened, which is not to be recorded.
    pub(super) fn forget(&mut self) {
        if self.changes.contains(&Change::Ended) {
            self.before.clear();
        }
        self.changes.clear();
    }

    /// The interval is over: what is gone, when this is what is resident.
    pub(super) fn close(
        &mut self,
        residents: Residents,
        areas: impl FnOnce() -> Vec<Area>,
        huge: bool,
    ) -> Gone {
        let changes = std::mem::replace(&mut self.changes, std::mem::take(&mut self.next));
        let before = std::mem::replace(&mut self.before, residents);
        let here = &self.before;
        let old = if changes.contains(&Change::Ended) {
            Pages::of(&before)
        } else {
            missing(&before, here)
        };
        let mut all = Replay::new(old, &before);
        changes.iter().for_each(|change| all.take(change));
        if all.is_empty() {
            return Gone::default();
        }
        let here = Pages::of(here);
        let mut gone = Gone {
            accessed: all.faulted,
            perhaps: all.old,
        };
        gone.accessed.take_away(&here);
        gone.perhaps.take_away(&here);
        gone.accessed.add(&all.sooner.accessed);
        if !gone.accessed.is_empty() {
            let along = mapped_along(&gone.accessed, &changes, &before, &areas(), huge);
            gone.perhaps.add(&along);
            gone.perhaps.take_away(&here);
        }
        gone.perhaps.add(&all.sooner.perhaps);
        gone.perhaps.take_away(&gone.accessed);
        gone
    }
}

/// What was resident and is not any more; both are sorted.
fn missing(before: &Residents, here: &Residents) -> Pages {
    let mut here = here.iter().peekable();
    let mut missing = Pages::default();
    for (region, bits) in before {
        while here.next_if(|(other, _)| other < region).is_some() {}
        let there = match here.peek() {
            Some((other, there)) if other == region => *there,
            _ => [0; 8],
        };
        let gone: Bitmap = std::array::from_fn(|i| bits[i] & !there[i]);
        if gone != [0; 8] {
            missing.insert_bits(*region, gone);
        }
    }
    missing
}

/// Goes through changes in their order.
struct Replay<'a> {
    before: &'a Residents,
    /// Pages that were resident before, or were populated.
    old: Pages,
    faulted: Pages,
    /// What went unseen before what was around it, or all of it, went.
    sooner: Gone,
    /// Of `before` nothing is left.
    is_new: bool,
}

impl Replay<'_> {
    fn new(old: Pages, before: &Residents) -> Replay<'_> {
        Replay {
            before,
            old,
            faulted: Pages::default(),
            sooner: Gone::default(),
            is_new: false,
        }
    }

    fn is_empty(&self) -> bool {
        let sooner = self.sooner.accessed.is_empty() && self.sooner.perhaps.is_empty();
        self.old.is_empty() && self.faulted.is_empty() && sooner
    }

    fn take(&mut self, change: &Change) {
        match change {
            Change::Fault(address) => self.faulted.insert(*address),
            Change::Populated(start, end) => self.old.insert_all(*start, *end),
            Change::Removed(start, end, there) => self.removed(*start, *end, there),
            Change::Moved(from, to, bytes) => self.moved(*from, *to, *bytes),
            Change::Ended => {
                self.sooner.accessed.add(&std::mem::take(&mut self.faulted));
                self.sooner.perhaps.add(&std::mem::take(&mut self.old));
                self.is_new = true;
            }
        }
    }

    fn removed(&mut self, start: u64, end: u64, there: &Residents) {
        let there = Pages::of(there);
        for (of, sooner) in [
            (&mut self.faulted, &mut self.sooner.accessed),
            (&mut self.old, &mut self.sooner.perhaps),
        ] {
            let mut unseen = of.take(start, end);
            unseen.take_away(&there);
            sooner.add(&unseen);
        }
    }

    /// What is touched at its new address before it goes is touched there.
    fn moved(&mut self, from: u64, to: u64, bytes: u64) {
        let end = from + bytes;
        let mut moving = self.old.take(from, end);
        moving.add(&self.faulted.take(from, end));
        if !self.is_new {
            let first = self.before.partition_point(|(r, _)| *r < from / REGION);
            let there = self.before[first..].iter();
            for (region, bits) in there.take_while(|(r, _)| r * REGION < end) {
                let within = within(*region, from, end);
                let of = std::array::from_fn(|i| bits[i] & within[i]);
                moving.insert_bits(*region, of);
            }
        }
        for address in moving.addresses() {
            self.old.insert(address - from + to);
        }
    }
}

/// What the kernel may have mapped along with pages that were faulted in and are gone: of that no fault is seen.
fn mapped_along(
    gone: &Pages,
    changes: &[Change],
    before: &Residents,
    areas: &[Area],
    huge: bool,
) -> Pages {
    let mut along = Pages::default();
    let mut faulted = Pages::default();
    for change in changes {
        if let Change::Fault(address) = change {
            faulted.insert(*address);
        }
    }
    let sorted = |pages: &Pages| {
        let mut all: Vec<u64> = pages.addresses().collect();
        all.sort_unstable();
        all
    };
    let (lost, asked) = (sorted(gone), sorted(&faulted));
    let in_area = |of: &[u64], area: &Range<u64>| {
        let first = of.partition_point(|address| *address < area.start);
        first..of.partition_point(|address| *address < area.end).max(first)
    };
    let mut hit: Vec<&Area> = areas
        .iter()
        .filter(|a| !in_area(&lost, &a.addresses).is_empty())
        .collect();
    hit.sort_unstable_by_key(|a| a.addresses.start);
    let mut take = |address: u64, bounds: Range<u64>, is_file: bool| {
        let (start, end) = (bounds.start, bounds.end);
        if is_file {
            let first = address / AROUND * AROUND;
            along.insert_all(first.max(start), (first + AROUND).min(end));
        }
        let first = address / REGION * REGION;
        // Where a huge page was mapped there was nothing before, and nothing else was faulted in.
        let was_empty = before
            .binary_search_by_key(&(first / REGION), |(region, _)| *region)
            .is_err();
        let alone = faulted.count_in(first / REGION) == 1;
        let fits = first >= start && first + REGION <= end;
        if huge && was_empty && alone && gone.contains(address) && fits {
            along.insert_all(first, first + REGION);
        }
    };
    for area in &hit {
        for address in &asked[in_area(&asked, &area.addresses)] {
            take(*address, area.addresses.clone(), area.is_file);
        }
    }
    // Of a mapping that is gone too it is not known what it was.
    let is_known = |address: u64| {
        let above = hit.partition_point(|area| area.addresses.start <= address);
        above > 0 && address < hit[above - 1].addresses.end
    };
    for address in asked
        .iter()
        .filter(|a| !is_known(**a) && gone.contains(**a))
    {
        take(*address, 0..u64::MAX, true);
    }
    along
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = PAGE_BYTES;
    const BASE: u64 = 8 * REGION;

    fn pages(of: &Pages) -> Vec<u64> {
        let mut all: Vec<u64> = of.addresses().map(|a| (a - BASE) / PAGE).collect();
        all.sort_unstable();
        all
    }

    fn residents(pages: &[u64]) -> Residents {
        let mut all = Pages::default();
        pages.iter().for_each(|page| all.insert(BASE + page * PAGE));
        all.sorted()
    }

    fn at(page: u64) -> u64 {
        BASE + page * PAGE
    }

    fn anonymous() -> Vec<Area> {
        let addresses = at(0)..at(1024);
        vec![Area {
            addresses,
            is_file: false,
        }]
    }

    #[test]
    fn what_was_resident_and_is_gone_may_have_been_touched_once() {
        let mut space = Space::of(residents(&[1, 2, 600]));
        let gone = space.close(residents(&[2]), Vec::new, false);
        assert_eq!(pages(&gone.perhaps), [1, 600]);
        assert!(gone.accessed.is_empty());
        assert_eq!(
            space.close(residents(&[2]), Vec::new, false),
            Gone::default()
        );
    }

    #[test]
    fn what_was_refused_was_not_touched() {
        let mut space = Space::default();
        space.change(Change::Fault(at(5)), false);
        space.change(Change::Fault(at(9)), false);
        space.change(Change::Fault(at(9)), false);
        space.refuse(at(9));
        space.refuse(at(5));
        space.refuse(at(7));
        let gone = space.close(residents(&[]), anonymous, true);
        assert_eq!(pages(&gone.accessed), [9]);
    }

    #[test]
    fn what_was_looked_at_as_it_went_is_known() {
        let mut space = Space::of(residents(&[1, 2, 3]));
        space.change(Change::Removed(at(1), at(3), residents(&[1, 2])), false);
        space.change(Change::Fault(at(2)), false);
        let gone = space.close(residents(&[]), anonymous, false);
        assert_eq!(
            (pages(&gone.perhaps), pages(&gone.accessed)),
            (vec![3], vec![2])
        );
    }

    #[test]
    fn what_went_unseen_before_its_mapping_may_have_been_touched() {
        let mut space = Space::of(residents(&[1, 2]));
        space.change(Change::Fault(at(600)), false);
        space.change(Change::Fault(at(601)), false);
        let there = residents(&[2, 601]);
        space.change(Change::Removed(at(0), at(1024), there), false);
        let gone = space.close(residents(&[]), anonymous, false);
        assert_eq!(
            (pages(&gone.perhaps), pages(&gone.accessed)),
            (vec![1], vec![600])
        );
    }

    #[test]
    fn what_moved_may_be_touched_where_it_went() {
        let mut space = Space::of(residents(&[1, 2]));
        space.change(Change::Moved(at(1), at(601), PAGE), false);
        let gone = space.close(residents(&[2]), Vec::new, false);
        assert_eq!(pages(&gone.perhaps), [601]);
    }

    #[test]
    fn a_program_that_went_unseen_may_have_touched_all_of_it() {
        let mut space = Space::of(residents(&[1, 2]));
        space.change(Change::Fault(at(5)), false);
        space.change(Change::Ended, false);
        space.change(Change::Fault(at(1)), false);
        let gone = space.close(residents(&[1]), anonymous, false);
        assert_eq!(
            (pages(&gone.perhaps), pages(&gone.accessed)),
            (vec![1, 2], vec![5])
        );
    }

    #[test]
    fn a_program_that_another_thread_reads_as_it_ends_is_over() {
        let mut space = Space::of(residents(&[1]));
        space.change(Change::Fault(at(5)), false);
        assert!(!space.is_over());
        let all = Change::Removed(0, 1 << 47, residents(&[]));
        space.change(all.clone(), false);
        assert!(!space.is_over(), "it may have given all of it back");
        space.change(Change::Ended, false);
        space.change(all, false);
        assert!(space.is_over());
        let gone = space.close(residents(&[]), anonymous, false);
        assert_eq!(
            (pages(&gone.perhaps), pages(&gone.accessed)),
            (vec![1], vec![5])
        );
        space.change(Change::Ended, false);
        space.change(Change::Fault(at(5)), false);
        assert!(!space.is_over(), "another program has begun");
    }

    #[test]
    fn changes_of_the_next_interval_wait_for_it() {
        let mut space = Space::of(residents(&[1]));
        space.change(Change::Removed(at(0), at(9), residents(&[2])), true);
        assert_eq!(
            pages(&space.close(residents(&[2]), Vec::new, false).perhaps),
            [1]
        );
        assert_eq!(
            space.close(residents(&[]), Vec::new, false),
            Gone::default()
        );
    }

    #[test]
    fn neighbours_in_a_file_go_along() {
        let area = |is_file| Area {
            addresses: at(4)..at(1024),
            is_file,
        };
        let mut space = Space::default();
        space.change(Change::Fault(at(9)), false);
        let mut same = space.clone();
        let gone = space.close(residents(&[10]), || vec![area(true)], false);
        let expected: Vec<u64> = (4..16).filter(|p| *p != 9 && *p != 10).collect();
        assert_eq!(
            (pages(&gone.perhaps), pages(&gone.accessed)),
            (expected, vec![9])
        );
        let gone = same.close(residents(&[]), || vec![area(false)], true);
        assert!(gone.perhaps.is_empty());
    }

    #[test]
    fn a_huge_page_goes_whole() {
        let area = Area {
            addresses: at(0)..at(1024),
            is_file: false,
        };
        let mut space = Space::default();
        space.change(Change::Fault(at(520)), false);
        let gone = space.close(residents(&[]), || vec![area], true);
        assert_eq!(pages(&gone.perhaps).len(), 511);
    }

    #[test]
    fn a_forked_child_has_copies_of_what_is_private() {
        let mut parent = Space::of(residents(&[1, 2, 700]));
        parent.change(Change::Fault(at(3)), false);
        parent.change(Change::Removed(at(1), at(2), residents(&[1])), false);
        let private = [at(0)..at(4), at(5)..at(6)];
        let mut child = parent.forked(&private);
        let gone = child.close(residents(&[2]), Vec::new, false);
        assert_eq!(pages(&gone.perhaps), [3]);
    }
}
