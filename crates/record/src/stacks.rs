//! Call stacks, each written once.

use std::collections::HashMap;

use varve_model::{Address, Pid, SiteId, Time};
use varve_trace::tables::StackRow;

/// Gives each distinct stack of a process a number of the trace.
#[derive(Debug, Default)]
pub(crate) struct Stacks {
    next: u32,
    known: HashMap<(Pid, Vec<Address>), SiteId>,
    pub(crate) rows: Vec<StackRow>,
}

impl Stacks {
    /// A site whose stack is to come.
    pub(crate) fn reserve(&mut self) -> SiteId {
        let site = SiteId(self.next);
        self.next += 1;
        site
    }

    /// The stack of a site that was reserved.
    pub(crate) fn fill(&mut self, site: SiteId, pid: Pid, time: Time, frames: Vec<Address>) {
        self.rows.push(StackRow {
            site,
            pid,
            time_ns: time,
            frames,
            first_is_return: true,
        });
    }

    /// The site of a stack; `first_is_return` says whether its innermost address is a return address.
    pub(crate) fn site(
        &mut self,
        pid: Pid,
        time: Time,
        frames: Vec<Address>,
        first_is_return: bool,
    ) -> SiteId {
        let next = SiteId(self.next);
        match self.known.entry((pid, frames)) {
            std::collections::hash_map::Entry::Occupied(e) => *e.get(),
            std::collections::hash_map::Entry::Vacant(e) => {
                self.rows.push(StackRow {
                    site: next,
                    pid,
                    time_ns: time,
                    frames: e.key().1.clone(),
                    first_is_return,
                });
                self.next += 1;
                *e.insert(next)
            }
        }
    }

    /// Forgets the stacks of a program that is gone: the same addresses mean something else now.
    pub(crate) fn forget(&mut self, pid: Pid) {
        self.known.retain(|(p, _), _| *p != pid);
    }
}
