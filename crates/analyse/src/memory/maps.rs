//! What the addresses of one process stand for, over time.

use std::collections::BTreeMap;

use varve_model::{Pid, Time};

/// Pages of a process for a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) first: u64,
    pub(super) end: u64,
    pub(super) from: Time,
    /// The moment after the last.
    pub(super) to: Time,
    /// What they stand for: a space and the number of the first page in it. None for memory of the process alone.
    pub(super) memory: Option<(Pid, u64)>,
    /// The moments are those of the calls that made and ended it, not those of looks at the mappings.
    pub(super) exact: bool,
}

/// Pages that stand for other memory than the process's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct View {
    pub(super) first: u64,
    pub(super) end: u64,
    pub(super) space: Pid,
    pub(super) at: u64,
}

/// The entries of a process.
#[derive(Default)]
pub(super) struct Maps {
    /// In the order of time once sorted.
    pub(super) entries: Vec<Entry>,
    /// Whether any page stands for other memory.
    pub(super) is_of_use: bool,
    /// All moments at which something changes.
    changes: Vec<Time>,
    /// What holds between two changes, and between which.
    view: Vec<View>,
    holds: Option<(usize, usize)>,
}

impl Maps {
    /// Puts the entries in order: to be called when all are there.
    pub(super) fn sort(&mut self) {
        self.entries.retain(|e| e.first < e.end && e.from < e.to);
        self.entries.sort_by_key(|e| (e.from, e.first));
        self.is_of_use = self.entries.iter().any(|e| e.memory.is_some());
        self.changes = self.entries.iter().flat_map(|e| [e.from, e.to]).collect();
        self.changes.sort_unstable();
        self.changes.dedup();
        self.holds = None;
    }

    /// What holds in a window of time, in the order of pages.
    ///
    /// Mappings are looked at between intervals: what was mapped within one is seen at its end or later. So pages of which
    /// no look found anything yet stand for what the next look found.
    pub(super) fn view(&mut self, from: Time, to: Time) -> &[View] {
        let to = to.max(Time(from.0.saturating_add(1)));
        let before = |moment: Time| self.changes.partition_point(|c| *c < moment);
        let holds = (self.changes.partition_point(|c| *c <= from), before(to));
        if self.holds == Some(holds) {
            return &self.view;
        }
        self.holds = Some(holds);
        let begun = self.entries.partition_point(|e| e.from < to);
        let alive = |e: &&Entry| e.to > from;
        let mut taken: BTreeMap<u64, Claim> = BTreeMap::new();
        let now = &self.entries[..begun];
        for e in now.iter().rev().filter(|e| e.exact).filter(alive) {
            claim(&mut taken, e);
        }
        for e in now.iter().rev().filter(|e| !e.exact).filter(alive) {
            claim(&mut taken, e);
        }
        let later = self.entries[begun..].iter().filter(|e| !e.exact);
        let next = later.clone().next().map(|e| e.from);
        for e in later.take_while(|e| Some(e.from) == next) {
            claim(&mut taken, e);
        }
        self.view.clear();
        for (first, (end, memory)) in taken {
            let Some((space, at)) = memory else { continue };
            match self.view.last_mut() {
                Some(last)
                    if last.end == first
                        && last.space == space
                        && last.at.wrapping_add(first - last.first) == at =>
                {
                    last.end = end;
                }
                _ => self.view.push(View {
                    first,
                    end,
                    space,
                    at,
                }),
            }
        }
        &self.view
    }
}

/// The end of pages that are spoken for, and what for.
type Claim = (u64, Option<(Pid, u64)>);

/// Enters what of an entry nobody has claimed before.
fn claim(taken: &mut BTreeMap<u64, Claim>, e: &Entry) {
    let mut at = e.first;
    if let Some((_, &(end, _))) = taken.range(..=at).next_back() {
        at = at.max(end);
    }
    while at < e.end {
        let next = taken
            .range(at..)
            .next()
            .map(|(first, (end, _))| (*first, *end));
        let (until, then) = match next {
            Some((first, end)) if first < e.end => (first, end),
            _ => (e.end, e.end),
        };
        if at < until {
            let memory = e
                .memory
                .map(|(space, first)| (space, first.wrapping_add(at - e.first)));
            taken.insert(at, (until, memory));
        }
        at = then;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(first: u64, end: u64, from: u64, to: u64, at: Option<u64>) -> Entry {
        Entry {
            first,
            end,
            from: Time(from),
            to: Time(to),
            memory: at.map(|at| (Pid(7), at)),
            exact: false,
        }
    }

    fn view(maps: &mut Maps, from: u64, to: u64) -> Vec<(u64, u64, u64)> {
        let view = maps.view(Time(from), Time(to)).iter();
        view.map(|v| (v.first, v.end, v.at)).collect()
    }

    #[test]
    fn an_address_stands_for_what_was_mapped_there_then() {
        let mut maps = Maps {
            entries: vec![
                entry(10, 20, 100, 200, Some(0)),
                entry(10, 15, 200, 300, None),
                entry(15, 20, 200, 300, Some(40)),
                entry(40, 50, 300, 400, Some(5)),
            ],
            ..Maps::default()
        };
        maps.sort();
        assert_eq!(view(&mut maps, 100, 150), [(10, 20, 0)]);
        // Of two in one interval the later; the rest as it was.
        assert_eq!(view(&mut maps, 150, 250), [(15, 20, 40), (40, 50, 5)]);
        assert_eq!(view(&mut maps, 210, 250), [(15, 20, 40), (40, 50, 5)]);
        // Before the first look, what it found.
        assert_eq!(view(&mut maps, 0, 50), [(10, 20, 0)]);
        assert_eq!(view(&mut maps, 400, 500), []);
    }

    #[test]
    fn neighbours_of_one_file_are_one() {
        let mut maps = Maps {
            entries: vec![
                entry(10, 12, 1, 9, Some(0)),
                entry(12, 20, 1, 9, Some(2)),
                entry(20, 21, 1, 9, Some(2)),
            ],
            ..Maps::default()
        };
        maps.sort();
        assert_eq!(view(&mut maps, 1, 5), [(10, 20, 0), (20, 21, 2)]);
    }
}
