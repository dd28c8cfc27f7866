//! The mappings of a process, as those who decode its code and unwind its stacks want them.

use std::collections::HashMap;

use varve_model::{Address, Pid, Time};
use varve_symbols::Mapping;

use super::code::{CodeReader, is_read_only_file};
use super::forks::{Forks, Original};
use crate::state::processes::{MapsVersion, Processes};

/// What the mappings were made of.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Version {
    maps: MapsVersion,
    /// Of a process whose mappings nobody has read: what it is a copy of.
    of: Option<Original>,
}

/// A process's mappings at one moment.
pub(super) struct Space {
    /// The process whose memory and files have the code: itself, or the one that it is a copy of.
    pub(super) pid: Pid,
    version: Version,
    /// All mappings, by address; of a copy those of code that is surely the original's.
    pub(super) placed: Vec<Mapping>,
}

impl Space {
    /// Makes the known mappings those of now.
    pub(super) fn refresh(
        known: &mut HashMap<Pid, Space>,
        pid: Pid,
        processes: &mut Processes,
        forks: &Forks,
        code: &mut CodeReader,
    ) {
        if processes.mappings(pid).next().is_none() {
            processes.refresh_maps_of(pid, varve_sys::monotonic_now());
        }
        if processes.mappings(pid).next().is_none()
            && let Some(original) = forks.original(pid, processes)
        {
            Space::copy(known, pid, processes, original, code);
            return;
        }
        Space::read(known, pid, processes, code);
    }

    /// Those of a process that was looked at.
    fn read(
        known: &mut HashMap<Pid, Space>,
        pid: Pid,
        processes: &Processes,
        code: &mut CodeReader,
    ) {
        let Some(maps) = processes.maps_version(pid) else {
            return;
        };
        let version = Version { maps, of: None };
        let old = known.get(&pid);
        if old.is_some_and(|space| space.version == version) {
            return;
        }
        let mut placed = processes.placed(pid);
        placed.sort_by_key(|m| m.address);
        let space = Space {
            pid,
            version,
            placed,
        };
        // New data need not have code decoded again.
        if old.is_none_or(|old| !old.code().eq(space.code())) {
            code.forget(pid);
        }
        known.insert(pid, space);
    }

    /// Those of a process that is gone, or nearly so: what its original had at the fork and has still.
    fn copy(
        known: &mut HashMap<Pid, Space>,
        pid: Pid,
        processes: &Processes,
        original: Original,
        code: &mut CodeReader,
    ) {
        Space::read(known, original.pid, processes, code);
        let Some(space) = known.get(&original.pid) else {
            return;
        };
        let version = Version {
            maps: space.version.maps,
            of: Some(original.clone()),
        };
        if known.get(&pid).is_some_and(|old| old.version == version) {
            return;
        }
        let since: HashMap<Address, Time> = processes
            .mappings(original.pid)
            .map(|(entry, since)| (entry.address, since))
            .collect();
        let is_same = |mapping: &&Mapping| {
            let (start, end) = (mapping.address.0, mapping.address.0 + mapping.bytes.0);
            let was_there = since.get(&mapping.address);
            is_code(mapping)
                // What the original has written there since would not be the copy's.
                && (is_read_only_file(mapping) || mapping.path == "[vdso]")
                && was_there.is_some_and(|since| *since <= original.until)
                && !original.changed.iter().any(|c| c.start < end && start < c.end)
        };
        let placed = space.placed.iter().filter(is_same).cloned().collect();
        let copy = Space {
            pid: original.pid,
            version,
            placed,
        };
        known.insert(pid, copy);
    }

    fn code(&self) -> impl Iterator<Item = &Mapping> {
        self.placed.iter().filter(|m| is_code(m))
    }

    /// The mapping of code at an address.
    pub(super) fn code_at(&self, address: Address) -> Option<&Mapping> {
        let after = self.placed.partition_point(|m| m.address <= address);
        self.placed[..after]
            .last()
            .filter(|m| is_code(m) && address.0 - m.address.0 < m.bytes.0)
    }
}

fn is_code(mapping: &Mapping) -> bool {
    mapping.perms.as_bytes().get(2) == Some(&b'x')
}
