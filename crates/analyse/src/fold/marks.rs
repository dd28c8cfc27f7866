//! What more is known of runs than that they were touched.

use varve_model::Pid;

use super::{Fold, counted, index, is_own};
use crate::chunks::CHUNK_PAGES;
use crate::stats::{TAIL, WRITTEN};
use crate::sweep::Run;

/// What more is known of runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// They were written.
    Written,
    /// They are of huge pages.
    Huge,
    /// They count whether they were touched or not.
    Standing,
    /// Others may have touched them; they are in no other figure.
    Possibly,
}

impl Fold<'_> {
    /// Enters what more is known of runs of the interval that do not overlap. Returns how many of their pages are the
    /// program's.
    pub(crate) fn mark(&mut self, runs: &[Run], mark: Mark) -> u64 {
        let (in_tail, mut pages) = (self.in_tail, 0);
        for run in runs {
            self.each_chunk(*run, |parts, first, end| {
                match mark {
                    Mark::Written => parts.chunk.pages.put_flags_of(first, end, WRITTEN),
                    // Nobody knows these to be cold.
                    Mark::Possibly if in_tail => parts.chunk.pages.put_flags_of(first, end, TAIL),
                    _ => (),
                }
                for (from, to, owners) in parts.chunk.overlap(first, end) {
                    let count = (to - from) as u64;
                    let own = is_own(parts.objects, owners);
                    pages += count * u64::from(!own);
                    if mark == Mark::Possibly && !own {
                        let base = parts.chunk.number * CHUNK_PAGES;
                        let (first, end) = (base + from as u64, base + to as u64);
                        parts.possibly.add(parts.chunk.pid, first, end);
                    }
                    if mark == Mark::Written {
                        continue;
                    }
                    for &owner in counted(parts.objects, owners, own) {
                        let stats = &mut parts.objects[owner as usize];
                        match mark {
                            Mark::Huge => stats.huge += count,
                            Mark::Possibly => stats.possibly += count,
                            Mark::Standing | Mark::Written => stats.standing += count,
                        }
                    }
                    parts.sites.marked(owners, mark, count * u64::from(!own));
                }
            });
        }
        pages
    }

    /// Calls `each` with process, first page and end of those parts of runs that are the program's.
    pub(crate) fn of_program(&mut self, runs: &[Run], mut each: impl FnMut(u32, u64, u64)) {
        for run in runs {
            self.each_chunk(*run, |parts, first, end| {
                let (pid, base) = (parts.chunk.pid, parts.chunk.number * CHUNK_PAGES);
                for (from, to, owners) in parts.chunk.overlap(first, end) {
                    if !is_own(parts.objects, owners) {
                        each(pid, base + from as u64, base + to as u64);
                    }
                }
            });
        }
    }

    /// Enters runs that one process touched of memory that several may map, after [`Fold::touch`]. Returns how many of
    /// their pages are the program's.
    pub(crate) fn used(&mut self, process: Pid, runs: &[Run], written: bool) -> u64 {
        let mut pages = 0;
        for run in runs {
            self.each_chunk(*run, |parts, first, end| {
                for (from, to, owners) in parts.chunk.overlap(first, end) {
                    if is_own(parts.objects, owners) {
                        continue;
                    }
                    pages += (to - from) as u64;
                    for &owner in owners {
                        let key = (owner, process.0, index(parts.position));
                        parts.users.enter(key, from, to, written);
                    }
                }
            });
        }
        pages
    }
}
