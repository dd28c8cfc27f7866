//! Page faults: which thread touched which pages first.

use varve_model::{Address, Pid};
use varve_trace::tables::FaultRow;

use super::{Fold, index};
use crate::chunks::CHUNK_PAGES;
use crate::memory::is_space;
use crate::stats::{FAULTED, NEVER, ThreadStats};

/// Where a page fault was, objects by position.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faulted {
    /// The object that holds the address at that moment.
    pub(crate) within: Option<u32>,
    /// The object whose page it touched first, if it did and one lies there.
    pub(crate) first: Option<u32>,
}

impl Fold<'_> {
    /// Enters a page fault of the interval, at a place in memory.
    pub(crate) fn fault(&mut self, fault: &FaultRow, place: (Pid, Address)) -> Faulted {
        let (pid, tid, time) = (fault.pid.0, fault.tid.0, fault.time_ns);
        let (space, address) = place;
        let next = index(self.threads.len());
        let thread = *self.thread_index.entry((pid, tid)).or_insert(next);
        if thread == next {
            self.threads.push(ThreadStats {
                pid,
                tid,
                faults: 0,
                first_touches: 0,
            });
        }
        let page = address.page().0;
        let Some(position) = self.enter(space.0, page / CHUNK_PAGES) else {
            self.threads[thread as usize].faults += 1;
            return Faulted::default();
        };
        let page = (page % CHUNK_PAGES) as usize;
        if !self.chunks.make_room(position, page, page + 1) {
            self.refused += 1;
            self.threads[thread as usize].faults += 1;
            return Faulted::default();
        }
        let known = self.places.len();
        let (spans, order, starts) = (self.spans, &self.span_order, &self.span_starts);
        let spans_of = |o: u32| {
            let own = starts[o as usize] as usize..starts[o as usize + 1] as usize;
            order[own].iter().map(|&i| &spans[i as usize])
        };
        // Of several objects, the one that was there at that moment.
        let here = |&&o: &&u32| {
            (o as usize) < known
                && spans_of(o).any(|s| {
                    s.pid == space
                        && s.born <= time
                        && time < s.died
                        && s.address <= address
                        && address < s.address + s.bytes
                })
        };
        let (mut found, mut within, mut owner) = (None, None, None);
        let chunk = &mut self.chunks.all[position];
        if let Some((_, _, owners)) = chunk.overlap(page, page + 1).next() {
            within = owners.iter().find(here).copied();
            owner = within.or(owners.first().copied());
        }
        if let Some(stats) = within.and_then(|o| self.objects.get_mut(o as usize)) {
            stats.faults += 1;
        }
        if let Some(owner) = owner {
            let fresh = chunk.pages.flags(page) & FAULTED == 0;
            chunk.pages.put_flags(page, FAULTED);
            let stats = &mut self.objects[owner as usize];
            if fresh && !stats.own {
                stats.first_touches += 1;
                if stats.first_thread == NEVER {
                    stats.first_thread = thread;
                }
                found = Some(owner);
            }
            if is_space(space) && !stats.own {
                self.users.fault(owner, pid, thread);
            }
        }
        self.threads[thread as usize].faults += 1;
        if let Some(owner) = found {
            self.threads[thread as usize].first_touches += 1;
            *self.by_thread.entry((owner, thread)).or_default() += 1;
        }
        let known = |owner: &u32| (*owner as usize) < self.places.len();
        Faulted {
            within: within.filter(known),
            first: found.filter(known),
        }
    }
}
