//! What forked children have of their parents: copies of all that lay in the memory at the fork.
//!
//! Copies of everything are made for those that live until they are scanned. A child that ends before, or runs another
//! program, as those of shells do, gets what it has touched until then.

use std::ops::Range;

use varve_model::{PAGE_BYTES, Pid, Time};

use super::Intake;
use crate::world::Process;

impl Intake {
    /// The children that have lived to be scanned get their parents' objects.
    pub(crate) fn settle_inheritance(&mut self) {
        let processes = self.world.processes.iter();
        let heirs = processes.filter(|(_, p)| p.inherits.is_some());
        for heir in heirs.map(|(pid, _)| *pid).collect::<Vec<Pid>>() {
            self.inherit(heir, None);
        }
    }

    /// Gives a forked child its parent's objects, if it has not got them: what it has touched, where it will not touch more.
    fn inherit(&mut self, child: Pid, touched: Option<&[Range<u64>]>) {
        let process = self.world.processes.get_mut(&child);
        let Some((parent, time)) = process.and_then(|p| p.inherits.take()) else {
            return;
        };
        // A parent that is a forked child itself has its own first: it lives on, or did until now.
        if parent != child {
            self.inherit(parent, None);
        }
        self.lives.inherit(parent, child, time, touched);
    }

    /// The memory of a process ends, by exec or exit: those who inherit of it do so now, and so does it itself.
    pub(super) fn settle_estate(&mut self, pid: Pid, time: Time) {
        let processes = self.world.processes.iter();
        let of = |p: &Process| p.inherits.is_some_and(|(parent, _)| parent == pid);
        let heirs: Vec<Pid> = processes.filter(|(_, p)| of(p)).map(|(h, _)| *h).collect();
        let process = self.world.processes.get(&pid);
        if heirs.is_empty() && process.is_none_or(|p| p.inherits.is_none()) {
            return;
        }
        // What parents made before the fork may not have been heard of yet.
        if let Some(agents) = &mut self.agents {
            agents.drain(time, &self.world, &mut self.lives, &mut self.stacks);
        }
        for heir in heirs {
            self.inherit(heir, None);
        }
        let Some((parent, fork)) = self.world.processes.get(&pid).and_then(|p| p.inherits) else {
            return;
        };
        let touched = self.touched_by(pid);
        self.world.inherit_maps(parent, pid, (fork, time), &touched);
        self.inherit(pid, Some(&touched));
    }

    /// The memory that a process is known to have touched since the last boundary, in order.
    fn touched_by(&self, pid: Pid) -> Vec<Range<u64>> {
        let vanished = self.vanished.iter().chain(&self.vanished_next);
        let mut touched: Vec<Range<u64>> = Vec::new();
        for (_, region) in vanished.filter(|(key, _)| key.0 == pid) {
            let bytes = region.leaf.bytes().0;
            let pages = region.touched();
            let pages = (0..512_u64).filter(|i| pages[(i / 64) as usize] >> (i % 64) & 1 == 1);
            touched.extend(pages.map(|i| {
                let start = region.base.0.saturating_add(i * bytes);
                start..start.saturating_add(bytes)
            }));
        }
        let faults = self.output.faults.iter().filter(|f| f.pid == pid);
        touched.extend(faults.map(|f| {
            let page = f.address.page().address().0;
            page..page.saturating_add(PAGE_BYTES)
        }));
        touched.sort_unstable_by_key(|t| (t.start, t.end));
        touched.dedup_by(|next, last| {
            let joined = next.start <= last.end;
            if joined {
                last.end = last.end.max(next.end);
            }
            joined
        });
        touched
    }
}

#[cfg(test)]
mod tests {
    use varve_bpf::{Event, Exit, Fork, ForkKind, Leaf, MmId, Region};
    use varve_model::{Address, Bytes, ObjectKind, Tid};

    use super::*;
    use crate::lives::Birth;

    const PARENT: Pid = Pid(u32::MAX - 8);

    fn fork(child: Pid, parent: Pid, time: u64) -> Event<'static> {
        Event::Fork(Fork {
            time: Time(time),
            pid: child,
            tid: Tid(child.0),
            own_tid: None,
            parent,
            parent_tid: Tid(parent.0),
            kind: ForkKind::Process,
            mm: MmId(child.0.into()),
            stack_pointer: None,
            tracked: true,
            tls: None,
        })
    }

    fn exit(pid: Pid, time: u64) -> Event<'static> {
        Event::Exit(Exit {
            time: Time(time),
            pid,
            tid: Tid(pid.0),
            wait_status: 0,
            last: true,
        })
    }

    /// A process with an object at each of three addresses, and its child, which touched the second.
    #[test]
    fn a_child_that_is_never_scanned_has_what_it_touched() {
        let mut intake = Intake::new(None, None);
        intake.world.adopt(PARENT, Pid(1), Time(1));
        for at in [0x20_0000, 0x40_0000, 0x60_0000] {
            let birth = Birth {
                kind: ObjectKind::Mapping,
                made_by: "mmap",
                address: Address(at),
                bytes: Bytes(0x4000),
                born: Time(2),
                tid: None,
                site: None,
                reserved: false,
                continues: None,
            };
            intake.lives.map(PARENT, birth);
        }
        let (child, grandchild) = (Pid(u32::MAX - 9), Pid(u32::MAX - 10));
        intake.take(fork(child, PARENT, 5));
        intake.take(fork(grandchild, child, 6));
        for pid in [child, grandchild] {
            let mut region = Region {
                base: Address(0x40_0000),
                leaf: Leaf::Small,
                hugetlb: false,
                accessed: [0; 8],
                young: [0; 8],
                referenced: [0; 8],
                pinned: [0; 8],
                sticky: [0; 8],
                written: [0; 8],
                intact: [0; 8],
                others: [0; 8],
                present: 4,
            };
            region.accessed[0] = 0b100;
            intake.vanish_region(pid, region, false);
        }
        // The parent goes first, all before anybody was scanned.
        intake.take(exit(PARENT, 7));
        intake.take(exit(child, 8));
        intake.take(exit(grandchild, 9));
        intake.settle(Time(10));
        let of = |pid: Pid| {
            let births = intake.lives.births.iter().filter(|b| b.pid == pid);
            births
                .map(|b| (b.address.0, b.born_ns.0))
                .collect::<Vec<_>>()
        };
        assert!(of(child).contains(&(0x40_0000, 5)), "{:?}", of(child));
        assert!(
            of(grandchild).contains(&(0x40_0000, 6)),
            "{:?}",
            of(grandchild)
        );
        let deaths = &intake.lives.deaths;
        assert_eq!(deaths.len(), intake.lives.births.len());
    }
}
