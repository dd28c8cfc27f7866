//! The mappings of a process, as those who decode its code and unwind its stacks want them.

use std::collections::HashMap;

use varve_model::{Address, Pid};
use varve_symbols::Mapping;

use super::code::CodeReader;
use crate::state::processes::{MapsVersion, Processes};

/// A process's mappings at one moment.
pub(super) struct Space {
    pub(super) pid: Pid,
    version: MapsVersion,
    /// All mappings, by address.
    pub(super) placed: Vec<Mapping>,
}

impl Space {
    /// Makes the known mappings those of now.
    pub(super) fn refresh(
        known: &mut HashMap<Pid, Space>,
        pid: Pid,
        processes: &mut Processes,
        code: &mut CodeReader,
    ) {
        if processes.mappings(pid).next().is_none() {
            processes.refresh_maps_of(pid, varve_sys::monotonic_now());
        }
        let Some(version) = processes.maps_version(pid) else {
            return;
        };
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
