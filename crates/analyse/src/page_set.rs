//! Sets of pages as ranges, in memory that depends on how scattered they are.

use std::collections::BTreeMap;

/// A set of pages of processes.
#[derive(Clone, Debug, Default)]
pub(crate) struct PageSet {
    /// The end of a range by its process and first page; no two touch.
    ends: BTreeMap<(u32, u64), u64>,
}

impl PageSet {
    /// Adds pages `first..end` of a process.
    pub(crate) fn add(&mut self, pid: u32, mut first: u64, mut end: u64) {
        if let Some((&(before, from), &to)) = self.ends.range(..=(pid, first)).next_back()
            && before == pid
            && to >= first
        {
            if to >= end {
                return;
            }
            first = from;
        }
        while let Some((&key, &to)) = self.ends.range((pid, first)..=(pid, end)).next() {
            end = end.max(to);
            self.ends.remove(&key);
        }
        self.ends.insert((pid, first), end);
    }

    /// How many pages.
    pub(crate) fn pages(&self) -> u64 {
        self.ends.iter().map(|((_, first), end)| end - first).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_counts_once_for_each_process() {
        let mut set = PageSet::default();
        for (pid, first, end, pages) in [
            (1, 10, 20, 10),
            (1, 12, 15, 10),
            (2, 12, 15, 13),
            (1, 30, 40, 23),
            (1, 20, 30, 33),
            (1, 5, 45, 43),
            (2, 10, 12, 45),
            (1, 45, 46, 46),
        ] {
            set.add(pid, first, end);
            assert_eq!(set.pages(), pages, "{pid}: {first}..{end}");
        }
    }
}
