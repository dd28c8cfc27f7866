//! The mappings of a process as last seen.

use std::ops::Range;

use varve_sys::{FileIdentity, MapEntry, MapLine};

use super::Seen;

/// A mapping of shared memory of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SharedMapping {
    pub(crate) file: FileIdentity,
    pub(crate) addresses: Range<u64>,
    /// Where in the file it begins, bytes.
    pub(crate) offset: u64,
}

/// The mappings of one process, each once, in the order of [`MapLine`]. A process may have as many as 65,530 and more
/// (`vm.max_map_count`), of which few change from one reading to the next: readings are compared in one pass, and only what is
/// new is copied.
#[derive(Debug, Default)]
pub(super) struct Known {
    all: Vec<(MapEntry, Seen)>,
    /// Positions of those with code.
    code: Vec<usize>,
    shared: Vec<SharedMapping>,
}

/// What another reading has changed.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// Whether it has changed anything.
    pub(super) any: bool,
    /// Those that are not there any more.
    pub(super) gone: Vec<(MapEntry, Seen)>,
}

impl Known {
    /// Makes the known mappings those of a reading, which is in order and has each once. `begin` is asked for every one that is new.
    pub(super) fn update(
        &mut self,
        lines: &[MapLine<'_>],
        mut begin: impl FnMut(&MapEntry) -> Seen,
    ) -> Changes {
        let is_same =
            |((entry, _), line): &(&(MapEntry, Seen), &MapLine<'_>)| entry.line() == **line;
        let head = self.all.iter().zip(lines).take_while(is_same).count();
        let most = self.all.len().min(lines.len()) - head;
        let ends = self.all.iter().rev().zip(lines.iter().rev()).take(most);
        let tail = ends.take_while(is_same).count();
        let lines = &lines[head..lines.len() - tail];
        let before: Vec<_> = self.all.drain(head..self.all.len() - tail).collect();
        if lines.is_empty() && before.is_empty() {
            return Changes::default();
        }
        let mut before = before.into_iter().peekable();
        let mut gone = Vec::new();
        let mut now = Vec::with_capacity(lines.len());
        for line in lines {
            while let Some(old) = before.next_if(|(entry, _)| entry.line() < *line) {
                gone.push(old);
            }
            let known = before.next_if(|(entry, _)| entry.line() == *line);
            now.push(known.unwrap_or_else(|| {
                let entry = line.to_entry();
                let seen = begin(&entry);
                (entry, seen)
            }));
        }
        gone.extend(before);
        self.all.splice(head..head, now);
        self.index();
        Changes { any: true, gone }
    }

    fn index(&mut self) {
        let with =
            |entry: &MapEntry, at: usize, flag| entry.perms.as_bytes().get(at) == Some(&flag);
        let all = self.all.iter().enumerate();
        self.code.clear();
        self.code
            .extend(all.filter(|(_, (e, _))| with(e, 2, b'x')).map(|(at, _)| at));
        self.shared.clear();
        let shared = self.all.iter().filter(|(e, _)| with(e, 3, b's'));
        self.shared.extend(shared.filter_map(|(entry, _)| {
            Some(SharedMapping {
                file: entry.identity()?,
                addresses: entry.address.0..entry.address.0.saturating_add(entry.bytes.0),
                offset: entry.offset,
            })
        }));
    }

    /// Takes all of them out.
    pub(super) fn take(&mut self) -> Vec<(MapEntry, Seen)> {
        std::mem::take(self).all
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(super) fn contains(&self, entry: &MapEntry) -> bool {
        let line = entry.line();
        let found = self.all.binary_search_by(|(e, _)| e.line().cmp(&line));
        found.is_ok()
    }

    /// By address.
    pub(super) fn iter(&self) -> impl Iterator<Item = &(MapEntry, Seen)> {
        self.all.iter()
    }

    /// Those with code, by address.
    pub(super) fn code(&self) -> impl Iterator<Item = &MapEntry> {
        self.code.iter().map(|&at| &self.all[at].0)
    }

    /// Those of shared memory of files, by address.
    pub(super) fn shared(&self) -> &[SharedMapping] {
        &self.shared
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;
    use varve_model::{Address, Bytes, Time};

    use super::*;

    const PERMS: [&str; 4] = ["rw-p", "rw-s", "r-xp", "r-xs"];

    fn entry((page, pages, perms, inode): (u64, u64, usize, u64)) -> MapEntry {
        MapEntry {
            address: Address(page << 12),
            bytes: Bytes(pages << 12),
            perms: PERMS[perms].to_owned(),
            offset: inode << 12,
            device: if inode == 0 { "00:00" } else { "08:01" }.to_owned(),
            inode,
            path: if inode == 0 { "" } else { "/a" }.to_owned(),
        }
    }

    /// Mappings that may overlap, as those of a list may that was read in pieces.
    fn reading() -> impl Strategy<Value = Vec<MapEntry>> {
        let one = (0u64..12, 1u64..3, 0..PERMS.len(), 0u64..3).prop_map(entry);
        prop::collection::vec(one, 0..20)
    }

    proptest! {
        #[test]
        fn readings_are_compared_as_sets(readings in prop::collection::vec(reading(), 1..6)) {
            let mut known = Known::default();
            let mut model: HashMap<MapEntry, Time> = HashMap::new();
            for (now, mut entries) in (1..).map(Time).zip(readings) {
                entries.sort_by(|a, b| a.line().cmp(&b.line()));
                entries.dedup();
                let lines: Vec<MapLine<'_>> = entries.iter().map(MapEntry::line).collect();
                let mut new = Vec::new();
                let changes = known.update(&lines, |entry| {
                    new.push(entry.clone());
                    Seen { since: now, build_id: None }
                });
                let is_new = |e: &&MapEntry| !model.contains_key(*e);
                let expected: Vec<MapEntry> = entries.iter().filter(is_new).cloned().collect();
                prop_assert_eq!(&new, &expected);
                let gone: HashMap<MapEntry, Time> =
                    changes.gone.into_iter().map(|(e, seen)| (e, seen.since)).collect();
                let mut expected = model.clone();
                expected.retain(|e, _| !entries.contains(e));
                prop_assert_eq!(changes.any, !new.is_empty() || !expected.is_empty());
                prop_assert_eq!(gone, expected);
                model.retain(|e, _| entries.contains(e));
                model.extend(new.into_iter().map(|e| (e, now)));
                let listed: Vec<MapEntry> = known.iter().map(|(e, _)| e.clone()).collect();
                prop_assert_eq!(&listed, &entries);
                for (entry, seen) in known.iter() {
                    prop_assert_eq!(model.get(entry), Some(&seen.since));
                }
                prop_assert!(entries.iter().all(|e| known.contains(e)));
                prop_assert!(!known.contains(&entry((99, 1, 0, 0))));
                let code: Vec<&MapEntry> = known.code().collect();
                let expected: Vec<&MapEntry> =
                    entries.iter().filter(|e| e.perms.contains('x')).collect();
                prop_assert_eq!(code, expected);
                let shared = entries.iter().filter(|e| e.perms.ends_with('s') && e.inode != 0);
                let expected: Vec<(u64, u64)> =
                    shared.map(|e| (e.address.0, e.offset)).collect();
                let shared = known.shared().iter();
                let shared: Vec<(u64, u64)> =
                    shared.map(|s| (s.addresses.start, s.offset)).collect();
                prop_assert_eq!(shared, expected);
            }
            let taken = known.take();
            prop_assert_eq!(taken.len(), model.len());
            prop_assert!(known.is_empty() && known.shared().is_empty() && known.code().next().is_none());
        }
    }
}
