//! Touched pages between those who find them and the rows that they become.

use std::collections::{BTreeMap, HashMap};

use varve_bpf::{Leaf, Region};
use varve_model::{Address, Pid};

/// When pages were found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    /// At the end of an interval.
    AtBoundary,
    /// As they vanished, in the interval that runs ...
    Vanishing,
    /// ... or in the next one, whose beginning is known but not all events of the one before.
    VanishingNext,
}

impl When {
    /// Whether the pages vanished.
    pub(crate) fn is_vanishing(self) -> bool {
        self != When::AtBoundary
    }
}

/// Touched pages of a process.
#[derive(Debug)]
pub(crate) struct Found {
    /// Whose memory it is.
    pub(crate) pid: Pid,
    pub(crate) when: When,
    pub(crate) regions: Vec<Region>,
}

/// Pages of a process that went in an interval, and nobody saw them go.
#[derive(Debug)]
pub(crate) struct Unseen {
    /// Whose memory it is.
    pub(crate) pid: Pid,
    /// They were accessed before they went.
    pub(crate) accessed: Vec<Region>,
    /// They may have been.
    pub(crate) perhaps: Vec<Region>,
}

/// Pages that vanished in one interval, by process and place.
#[derive(Debug, Default)]
pub(crate) struct Vanished(HashMap<(Pid, Address, Leaf), Region>);

impl Vanished {
    /// Adds pages of a process.
    pub(crate) fn add(&mut self, pid: Pid, region: Region) {
        let known = self.0.entry((pid, region.base, region.leaf));
        known
            .and_modify(|known| known.join(&region))
            .or_insert(region);
    }

    /// Those of a process.
    pub(crate) fn of(&self, pid: Pid) -> impl Iterator<Item = &Region> {
        let own = self.0.iter().filter(move |(key, _)| key.0 == pid);
        own.map(|(_, region)| region)
    }

    /// All, by process.
    pub(crate) fn into_found(self) -> impl Iterator<Item = Found> {
        let mut by_process: BTreeMap<Pid, Vec<Region>> = BTreeMap::new();
        for ((pid, _, _), region) in self.0 {
            by_process.entry(pid).or_default().push(region);
        }
        by_process.into_iter().map(|(pid, regions)| Found {
            pid,
            when: When::Vanishing,
            regions,
        })
    }
}
