//! Forked children that nobody has looked at: their code is a copy of their parents', at the same addresses.
//!
//! A child that ends soon is gone before its mappings are read and its samples decoded. Its code is what its parent had mapped at
//! the fork, but for what it has mapped anew since.

use std::collections::HashMap;
use std::ops::Range;

use varve_bpf::{Event, ForkKind, MappingCall};
use varve_model::{Pid, Time};

use crate::state::processes::Processes;

/// A child that maps more than this anew is not taken for a copy.
const MAX_CHANGES: usize = 256;
/// Forks of forks that are followed.
const MAX_DEPTH: usize = 8;

/// A process as it was made.
#[derive(Debug)]
struct Fork {
    parent: Pid,
    time: Time,
    /// What it has mapped or unmapped since; nothing is known where there are too many of these.
    changed: Option<Vec<Range<u64>>>,
}

/// The processes that were forked, until they run another program.
#[derive(Debug, Default)]
pub(super) struct Forks(HashMap<Pid, Fork>);

/// A process whose mappings are known, and of which another one is a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Original {
    pub(super) pid: Pid,
    /// When the copy was made: what was mapped later is not in it.
    pub(super) until: Time,
    /// Where the copy has mapped other things since.
    pub(super) changed: Vec<Range<u64>>,
}

impl Forks {
    /// Takes an event.
    pub(super) fn event(&mut self, event: &Event<'_>) {
        match event {
            Event::Fork(fork) if fork.kind == ForkKind::Process && fork.tracked => {
                let made = Fork {
                    parent: fork.parent,
                    time: fork.time,
                    changed: Some(Vec::new()),
                };
                self.0.insert(fork.pid, made);
            }
            Event::Mapping(mapping) => {
                let Some(fork) = self.0.get_mut(&mapping.pid) else {
                    return;
                };
                let Some(changed) = &mut fork.changed else {
                    return;
                };
                changed.extend(changed_by(&mapping.call, mapping.result));
                if changed.len() > MAX_CHANGES {
                    fork.changed = None;
                }
            }
            _ => {}
        }
    }

    /// Forgets a process that has ended or runs another program.
    pub(super) fn forget(&mut self, pid: Pid) {
        self.0.remove(&pid);
    }

    /// The process that a child is a copy of: the nearest forebear whose mappings are known, where all in between are
    /// what they were at the forks.
    pub(super) fn original(&self, child: Pid, processes: &Processes) -> Option<Original> {
        let (mut at, mut changed) = (child, Vec::new());
        for _ in 0..MAX_DEPTH {
            let fork = self.0.get(&at)?;
            changed.extend_from_slice(fork.changed.as_ref()?);
            // One that has run another program since has other code.
            let parent = processes.all.get(&fork.parent);
            parent.filter(|parent| parent.image <= fork.time)?;
            if processes.mappings(fork.parent).next().is_some() {
                return Some(Original {
                    pid: fork.parent,
                    until: fork.time,
                    changed,
                });
            }
            at = fork.parent;
        }
        None
    }
}

/// The addresses at which something else may lie after a call.
fn changed_by(call: &MappingCall, result: i64) -> impl Iterator<Item = Range<u64>> {
    let range = |start: u64, bytes: u64| start..start.saturating_add(bytes);
    let made = |bytes: u64| match u64::try_from(result) {
        Ok(start) => range(start, bytes),
        // It failed.
        Err(_) => 0..0,
    };
    let both = match *call {
        MappingCall::Map { bytes, .. } => [made(bytes.0), 0..0],
        MappingCall::Unmap { address, bytes } => [range(address.0, bytes.0), 0..0],
        MappingCall::Remap {
            old_address,
            old_bytes,
            new_bytes,
            ..
        } => [range(old_address.0, old_bytes.0), made(new_bytes.0)],
        // A segment's size is not said: whatever lies behind its address.
        MappingCall::ShmAttach { .. } => [made(u64::MAX), 0..0],
        MappingCall::ShmDetach { address } => [range(address.0, u64::MAX), 0..0],
        // No code lies in the heap.
        MappingCall::Brk { .. } => [0..0, 0..0],
    };
    both.into_iter().filter(|range| !range.is_empty())
}

#[cfg(test)]
mod tests {
    use varve_bpf::{Fork, Mapping, MmId};
    use varve_model::{Address, Bytes, Tid};

    use super::*;

    const CHILD: Pid = Pid(u32::MAX - 9);
    const GRANDCHILD: Pid = Pid(u32::MAX - 10);

    fn fork(parent: Pid, pid: Pid, time: u64) -> Event<'static> {
        Event::Fork(Fork {
            time: Time(time),
            pid,
            tid: Tid(pid.0),
            own_tid: None,
            parent,
            parent_tid: Tid(parent.0),
            kind: ForkKind::Process,
            mm: MmId(pid.0.into()),
            stack_pointer: None,
            tracked: true,
            tls: None,
        })
    }

    fn call(pid: Pid, call: MappingCall, result: i64) -> Event<'static> {
        Event::Mapping(Mapping {
            entered: Time(20),
            time: Time(21),
            pid,
            tid: Tid(pid.0),
            call,
            result,
            by_operation: false,
            stack: None,
        })
    }

    /// A process whose mappings are known, its child and its grandchild, which are not there to be looked at.
    fn family(processes: &mut Processes) -> (Pid, Forks) {
        let own = Pid(std::process::id());
        processes.adopt(own, Pid(1), Time(1));
        processes.refresh_maps_of(own, Time(2));
        processes.adopt(CHILD, own, Time(10));
        processes.adopt(GRANDCHILD, CHILD, Time(12));
        let mut forks = Forks::default();
        forks.event(&fork(own, CHILD, 10));
        forks.event(&fork(CHILD, GRANDCHILD, 12));
        (own, forks)
    }

    #[test]
    fn a_child_is_a_copy_of_the_nearest_forebear_that_is_known() {
        let mut processes = Processes::default();
        let (own, mut forks) = family(&mut processes);
        let of = |forks: &Forks, pid| forks.original(pid, &processes);
        let copy = Original {
            pid: own,
            until: Time(10),
            changed: Vec::new(),
        };
        assert_eq!(of(&forks, CHILD), Some(copy.clone()));
        assert_eq!(of(&forks, GRANDCHILD), Some(copy));
        assert_eq!(of(&forks, own), None);
        forks.forget(CHILD);
        assert_eq!(of(&forks, CHILD), None);
        assert_eq!(of(&forks, GRANDCHILD), None);
    }

    #[test]
    fn who_has_run_another_program_since_is_no_original() {
        let mut processes = Processes::default();
        let (own, forks) = family(&mut processes);
        processes.all.get_mut(&own).unwrap().image = Time(11);
        assert_eq!(forks.original(CHILD, &processes), None);
        processes.all.get_mut(&own).unwrap().image = Time(1);
        processes.all.get_mut(&CHILD).unwrap().image = Time(13);
        assert_eq!(forks.original(GRANDCHILD, &processes), None);
    }

    #[test]
    fn what_a_child_maps_anew_is_no_copy() {
        let mut processes = Processes::default();
        let (_, mut forks) = family(&mut processes);
        let map = |bytes| MappingCall::Map {
            hint: Address(0),
            bytes: Bytes(bytes),
            protection: 0,
            flags: 0,
            fd: -1,
            offset: 0,
        };
        let unmap = MappingCall::Unmap {
            address: Address(0x9000),
            bytes: Bytes(0x1000),
        };
        forks.event(&call(CHILD, map(0x2000), 0x5000));
        forks.event(&call(CHILD, map(0x2000), -12));
        forks.event(&call(GRANDCHILD, unmap, 0));
        let changed = |forks: &Forks, pid| Some(forks.original(pid, &processes)?.changed);
        let own = 0x5000..0x7000;
        assert_eq!(changed(&forks, CHILD), Some(vec![own]));
        let both = vec![0x9000..0xa000, 0x5000..0x7000];
        assert_eq!(changed(&forks, GRANDCHILD), Some(both));
        for _ in 0..MAX_CHANGES {
            forks.event(&call(CHILD, map(1), 0x5000));
        }
        assert_eq!(changed(&forks, CHILD), None);
    }
}
