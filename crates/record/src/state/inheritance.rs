//! What forked children have of their parents: copies of all that lay in the memory at the fork.
//!
//! Copies of everything are made for those that live until they are scanned. A child that ends before, or runs another
//! program, as those of shells do, gets what it has touched until then.

use std::ops::Range;

use varve_model::{PAGE_BYTES, Pid, Time};

use super::State;
use super::processes::Process;

impl State {
    /// The children that have lived to be scanned get their parents' objects.
    pub(crate) fn inherit_pending(&mut self) {
        let processes = self.processes.all.iter();
        let heirs = processes.filter(|(_, p)| p.inherits.is_some());
        for heir in heirs.map(|(pid, _)| *pid).collect::<Vec<Pid>>() {
            self.inherit(heir, None);
        }
    }

    /// Gives a forked child its parent's objects, if it has not got them: what it has touched, where it will not touch more.
    fn inherit(&mut self, child: Pid, touched: Option<&[Range<u64>]>) {
        let process = self.processes.all.get_mut(&child);
        let Some((parent, time)) = process.and_then(|p| p.inherits.take()) else {
            return;
        };
        // A parent that is a forked child itself has its own first: it lives on, or did until now.
        if parent != child {
            self.inherit(parent, None);
        }
        self.objects.inherit(parent, child, time, touched);
    }

    /// Those who inherit of a process and have not yet.
    fn heirs(&self, pid: Pid) -> Vec<Pid> {
        let of = |p: &Process| p.inherits.is_some_and(|(parent, _)| parent == pid);
        let processes = self.processes.all.iter();
        processes.filter(|(_, p)| of(p)).map(|(h, _)| *h).collect()
    }

    /// Whether the end of a process's memory means that anybody inherits: then all that was reported of it must be known.
    pub(crate) fn has_heirs_or_inherits(&self, pid: Pid) -> bool {
        let process = self.processes.all.get(&pid);
        process.is_some_and(|p| p.inherits.is_some()) || !self.heirs(pid).is_empty()
    }

    /// The memory of a process ends, by exec or exit: those who inherit of it do so now, and so does it itself.
    pub(crate) fn end_memory(&mut self, pid: Pid, time: Time) {
        let heirs = self.heirs(pid);
        for heir in heirs {
            self.inherit(heir, None);
        }
        let Some((parent, fork)) = self.processes.all.get(&pid).and_then(|p| p.inherits) else {
            return;
        };
        let touched = self.touched_by(pid);
        self.processes
            .inherit_maps(parent, pid, (fork, time), &touched);
        self.inherit(pid, Some(&touched));
    }

    /// The memory that a process is known to have touched since the last boundary, in order.
    fn touched_by(&self, pid: Pid) -> Vec<Range<u64>> {
        let vanished = self.vanished.of(pid).chain(self.vanished_next.of(pid));
        let mut touched: Vec<Range<u64>> = Vec::new();
        for region in vanished {
            let bytes = region.leaf.bytes().0;
            let pages = region.touched();
            let pages = (0..512_u64).filter(|i| pages[(i / 64) as usize] >> (i % 64) & 1 == 1);
            touched.extend(pages.map(|i| {
                let start = region.base.0.saturating_add(i * bytes);
                start..start.saturating_add(bytes)
            }));
        }
        let faults = self.tables.faults.iter().filter(|f| f.pid == pid);
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
