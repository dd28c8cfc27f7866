//! The end of the fold: what is still with the pages goes to the objects.

use std::collections::HashMap;

use varve_model::{Pid, Time};
use varve_objects::Span;

use super::{Fold, ProcessPages, User, key};
use crate::analysis::Reuse;
use crate::memory::is_space;
use crate::stats::{SharedPage, close};

/// The whole, when all was entered.
pub(crate) struct Folded {
    /// Pages by the number of intervals that touched them.
    pub(crate) reuse: Reuse,
    /// Pages that several objects lay on.
    pub(crate) shared_pages: u64,
    /// Touched pages of objects that live at the end which the tail did not touch.
    pub(crate) cold_pages: u64,
    /// What each process touched.
    pub(crate) processes: HashMap<u32, ProcessPages>,
    /// What each process did to the objects of memory that several may map, by object and process.
    pub(crate) users: HashMap<(u32, u32), User>,
}

impl Fold<'_> {
    /// Gives everything to the objects.
    pub(crate) fn finish(&mut self) -> Folded {
        let mut folded = Folded {
            reuse: Reuse::default(),
            shared_pages: 0,
            cold_pages: 0,
            processes: HashMap::new(),
            users: HashMap::new(),
        };
        let mut cold = Vec::new();
        for position in 0..self.chunks.all.len() {
            self.assign(position);
            let chunk = &self.chunks.all[position];
            let [once, twice, more] = chunk.pages.reuse();
            let reuse = &mut folded.reuse;
            reuse.once.0 += once;
            reuse.twice.0 += twice;
            reuse.more.0 += more;
            if !is_space(Pid(chunk.pid)) {
                let of = folded.processes.entry(chunk.pid).or_default();
                of.touched += once + twice + more;
            }
            folded.shared_pages += chunk.pages.shared();
            let mut first = 0;
            for cell in &chunk.cells {
                let end = usize::from(cell.end);
                if let [owner] = *cell.owners(&chunk.owners) {
                    let stats = &mut self.objects[owner as usize];
                    let lives = alive_at(self.places, owner, self.end);
                    let mut page = chunk.pages.next(first);
                    while page < end {
                        let mut known = SharedPage {
                            count: chunk.pages.count(page),
                            flags: chunk.pages.flags(page),
                        };
                        let key = key(position, page);
                        if stats.shared_pages > 0
                            && let Some(more) = self.shared_pages.remove(&(owner, key))
                        {
                            stats.shared_pages -= 1;
                            known.count = known.count.saturating_add(more.count);
                            known.flags |= more.flags;
                        }
                        let closed = close(stats, known, lives);
                        if closed.cold && !stats.own {
                            cold.push(key);
                        }
                        self.sites.closed(owner, key, closed);
                        page = chunk.pages.next(page + 1);
                    }
                }
                first = end;
            }
        }
        for ((owner, key), known) in self.shared_pages.drain() {
            let lives = alive_at(self.places, owner, self.end);
            let stats = &mut self.objects[owner as usize];
            let closed = close(stats, known, lives);
            if closed.cold && !stats.own {
                cold.push(key);
            }
            self.sites.closed(owner, key, closed);
        }
        cold.sort_unstable();
        cold.dedup();
        folded.cold_pages = cold.len() as u64;
        std::mem::take(&mut self.users).finish(&mut folded);
        folded
    }
}

fn alive_at(places: &[Span], owner: u32, end: Time) -> bool {
    places.get(owner as usize).is_none_or(|s| s.died >= end)
}
