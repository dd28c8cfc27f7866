//! Sets of pages as sorted runs.

use varve_model::Page;

/// A set of pages, kept as sorted, disjoint runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageSet {
    /// First page and the page after the last one.
    runs: Vec<(u64, u64)>,
}

impl PageSet {
    /// The set of all pages of these runs, given as first page and count.
    pub fn from_runs(runs: impl IntoIterator<Item = (Page, u64)>) -> PageSet {
        let mut runs: Vec<(u64, u64)> = runs
            .into_iter()
            .filter(|(_, pages)| *pages > 0)
            .map(|(first, pages)| (first.0, first.0 + pages))
            .collect();
        runs.sort_unstable();
        let mut merged: Vec<(u64, u64)> = Vec::with_capacity(runs.len());
        for (start, end) in runs {
            match merged.last_mut() {
                Some(last) if start <= last.1 => last.1 = last.1.max(end),
                _ => merged.push((start, end)),
            }
        }
        PageSet { runs: merged }
    }

    /// Whether the page is in the set.
    pub fn contains(&self, page: Page) -> bool {
        self.intersects(page, 1)
    }

    /// Whether any of `pages` pages from `first` on is in the set.
    pub fn intersects(&self, first: Page, pages: u64) -> bool {
        let at = self.runs.partition_point(|(_, end)| *end <= first.0);
        self.runs
            .get(at)
            .is_some_and(|(start, _)| *start < first.0 + pages)
    }

    /// How many pages it holds.
    pub fn len(&self) -> u64 {
        self.runs.iter().map(|(start, end)| end - start).sum()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// The pages, ascending.
    pub fn iter(&self) -> impl Iterator<Item = Page> + '_ {
        self.runs.iter().flat_map(|(s, e)| (*s..*e).map(Page))
    }

    /// The runs as first page and count, ascending.
    pub fn runs(&self) -> impl Iterator<Item = (Page, u64)> + '_ {
        self.runs.iter().map(|(s, e)| (Page(*s), e - s))
    }

    /// The union of both.
    pub fn union(&self, other: &PageSet) -> PageSet {
        PageSet::from_runs(self.runs().chain(other.runs()))
    }
}

impl FromIterator<Page> for PageSet {
    fn from_iter<I: IntoIterator<Item = Page>>(pages: I) -> Self {
        PageSet::from_runs(pages.into_iter().map(|p| (p, 1)))
    }
}

/// The set as a person reads it: at most `most` runs.
pub fn describe(set: &PageSet, most: usize) -> String {
    let mut parts: Vec<String> = set
        .runs()
        .take(most)
        .map(|(first, pages)| match pages {
            1 => format!("{:#x}", first.0),
            _ => format!("{:#x}+{pages}", first.0),
        })
        .collect();
    let runs = set.runs().count();
    if runs > most {
        parts.push(format!("and {} more runs", runs - most));
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_merge_and_are_found() {
        let set = PageSet::from_runs([(Page(10), 5), (Page(3), 2), (Page(15), 1), (Page(4), 3)]);
        assert_eq!(
            set.runs().collect::<Vec<_>>(),
            [(Page(3), 4), (Page(10), 6)]
        );
        assert_eq!(set.len(), 10);
        let inside: Vec<u64> = (0..20).filter(|p| set.contains(Page(*p))).collect();
        assert_eq!(inside, [3, 4, 5, 6, 10, 11, 12, 13, 14, 15]);
        assert!(set.intersects(Page(7), 4) && !set.intersects(Page(7), 3));
        assert_eq!(describe(&set, 1), "0x3+4, and 1 more runs");
    }
}
