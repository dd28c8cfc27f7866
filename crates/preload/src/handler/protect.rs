//! Moving pages to their shadows at the end of an interval, and putting everything back at the end.

use varve_preload_abi::{Protect, Protected, is_chosen};

use super::drain::drain;
use super::maps;
use super::mover::{PAGE, Refusal, Watch};
use super::place::{MIDDLE, TOP, home_of, range_of, shadow_of};
use super::ranges::Range;
use super::resolve::{Handler, Patience};
use crate::{limits, locking, sys};

/// Pages that are passed over at most after one that cannot be moved.
const MAX_SKIP: u64 = 64;
/// A process with more mappings than this is near the kernel's limit (`vm.max_map_count`, 65,530).
const MAX_MAPPINGS: usize = 12_000;
/// Pages that are put back at once.
const PIECE: u64 = 64 * PAGE;

impl Handler {
    /// Moves every page that is to be trapped to its shadow. The process is held.
    pub(super) fn protect(&mut self, protect: &Protect) -> Protected {
        let began = sys::now_ns();
        self.resolve_all();
        // All changes until here are known: the process stands still.
        self.arrived.clear();
        if protect.afresh {
            self.put_back();
        }
        let [accesses, changes] = self.backlog.memory();
        let lists = [
            self.watched.memory(),
            self.shadows.memory(),
            self.arrived.memory(),
            self.fresh.memory(),
            self.plain.memory(),
            self.steady.memory(),
            accesses,
            changes,
            self.stack,
        ];
        let may_protect = self.exempt.renew(&lists) && !protect.is_limited;
        self.plain.clear();
        let mut mappings = 0;
        let mut protected = Protected::default();
        let (exempt, plain, shadows) = (&self.exempt, &mut self.plain, &self.shadows);
        let mut refused = 0;
        maps::each(&self.maps, |entry| {
            mappings += 1;
            if !entry.is_plain || entry.range.end > TOP {
                return;
            }
            shadows.gaps(entry.range, |part| {
                exempt.ranges().gaps(part, |part| {
                    if !may_protect || mappings > MAX_MAPPINGS || !plain.push(part) {
                        refused += part.bytes();
                    }
                });
            });
        });
        protected.refused_bytes = refused;
        for index in 0.. {
            let Some(range) = self.plain.get(index) else {
                break;
            };
            self.protect_one(range, protect, &mut protected);
        }
        protected.resolved = std::mem::take(&mut self.resolved);
        protected.empty = std::mem::take(&mut self.empty);
        protected.took_ns = sys::now_ns().saturating_sub(began);
        protected
    }

    /// One mapping, or a part of it.
    fn protect_one(&mut self, range: Range, protect: &Protect, protected: &mut Protected) {
        let is_watched = self
            .watched
            .get(self.watched.first_behind(range.start))
            .is_some_and(|w| w.start <= range.start && w.end >= range.end);
        if !is_watched {
            // First accesses to new pages would trap, whatever the budget, and fault anyway.
            if protect.threshold != u64::MAX && !self.is_steady(range) {
                return;
            }
            if !self.make_place(range) || !self.front.register(range) {
                protected.refused_bytes += range.bytes();
                return;
            }
            if !self.watched.insert(range) {
                protected.refused_bytes += range.bytes();
                return;
            }
        }
        let mut at = range.start;
        while at < range.end {
            let rest = Range {
                start: at,
                end: range.end,
            };
            let Some((runs, next)) = self.pagemap.look(rest) else {
                protected.refused_bytes += rest.bytes();
                return;
            };
            for run in runs {
                if protect.threshold == u64::MAX {
                    move_run(self.back, run, protected);
                    continue;
                }
                let mut page = run.start;
                while page < run.end {
                    if is_chosen(page / PAGE, protect.seed, protect.threshold) {
                        move_run(self.back, range_of(page, PAGE), protected);
                    }
                    page += PAGE;
                }
            }
            at = next;
        }
    }

    fn is_steady(&mut self, range: Range) -> bool {
        let pages = self.pagemap.count(range);
        pages.is_some_and(|pages| self.steady.is(range, pages, range.bytes() / PAGE))
    }

    /// Makes the shadow of a range; whether there is one.
    pub(super) fn make_place(&mut self, range: Range) -> bool {
        if range.start < MIDDLE && range.end > MIDDLE {
            return false;
        }
        // It would be locked, and count against the program's limit.
        if locking::locks_future() {
            return false;
        }
        let place = range_of(shadow_of(range.start), range.bytes());
        // One gap at a time, as making a place changes the set.
        for _ in 0..super::ranges::MAX {
            let mut gap = None;
            self.shadows.gaps(place, |g| {
                gap.get_or_insert(g);
            });
            let Some(gap) = gap else { return true };
            if !limits::take_shadow(gap.bytes()) || !sys::map_at(gap.start, gap.bytes()) {
                return false;
            }
            if !self.back.register(gap) || !self.shadows.insert(gap) {
                // SAFETY: mapped just now, where nothing was; nobody knows of it.
                unsafe { sys::unmap_at(gap.start, gap.bytes()) };
                return false;
            }
            self.fresh.insert(gap);
        }
        false
    }

    /// Moves everything back to where it belongs; whether nothing is left that could not be moved just now.
    fn put_back(&mut self) -> bool {
        let mut is_done = true;
        self.each_moved_run(|handler, run| is_done &= handler.put_back_run(run));
        is_done
    }

    fn put_back_run(&mut self, run: Range) -> bool {
        let mut at = run.start;
        let mut length = PIECE;
        let mut patience = Patience::new(Patience::SHORT);
        let mut is_done = true;
        while at < run.end {
            if self.arrived.holds(home_of(at)) {
                // What another mapping had there; the kernel is yet to say where that is now.
                is_done = false;
                at += PAGE;
                continue;
            }
            let bytes = match self.arrived.as_slice() {
                [] => length.min(run.end - at),
                _ => PAGE,
            };
            let (done, why) = self.front.move_run(home_of(at), at, bytes);
            if self.cools {
                advise(range_of(home_of(at), done), libc::MADV_COLD);
            }
            self.front.wake(range_of(home_of(at), bytes));
            at += done;
            match why {
                None => {
                    length = PIECE;
                    patience = Patience::new(Patience::SHORT);
                }
                _ if done > 0 => length = PAGE,
                Some(why) if why.is_passing() => {
                    if !patience.pause() {
                        return false;
                    }
                }
                Some(_) if bytes > PAGE => length = PAGE,
                Some(_) => {
                    // The mapping's rights have changed: a copy does as well. Where it is gone, or has a page of
                    // its own, this one is of no use.
                    let refused = self.front.copy_page(home_of(at), at, true);
                    if refused.is_some_and(Refusal::is_passing) {
                        is_done = false;
                    } else {
                        discard(range_of(at, PAGE));
                    }
                    at += PAGE;
                }
            }
            self.attend();
        }
        is_done
    }

    /// Puts everything back and stops watching, while the program runs. It takes as long as it takes: what is moved when
    /// the handler ends is lost. What was [`resolved`](Handler::resolved) until then.
    pub(super) fn release(mut self) -> (u64, u64) {
        self.resolve_batch();
        if self.cools {
            drain(self.stack);
        }
        let mut patience = Patience::new(Patience::LONG);
        // Twice at least, as memory may move from where it is yet to be looked for to where it was.
        self.put_back();
        while !self.put_back() {
            self.resolve_batch();
            if !patience.pause() {
                // Nothing more is to be heard of where that is.
                self.arrived.clear();
            }
        }
        // Whoever waits now waits for a page without content, and looks again. The recorder may have the front too, so
        // that closing is not enough.
        for index in 0.. {
            let Some(range) = self.watched.get(index) else {
                break;
            };
            self.front.unregister(range);
        }
        self.attend();
        self.front.wake_all();
        self.front.close();
        self.back.close();
        for index in 0.. {
            let Some(shadow) = self.shadows.get(index) else {
                break;
            };
            // SAFETY: the handler's own memory; nothing is left there.
            unsafe { sys::unmap_at(shadow.start, shadow.bytes()) };
        }
        self.resolved()
    }
}

/// Moves a run of pages to its shadow, and counts those that the kernel will not move.
fn move_run(to: Watch, run: Range, protected: &mut Protected) {
    let mut at = run.start;
    let mut length = run.bytes();
    let mut skip = PAGE;
    let mut tries = 0;
    while at < run.end {
        let bytes = length.min(run.end - at);
        let (done, why) = to.move_run(shadow_of(at), at, bytes);
        protected.moved += done / PAGE;
        at += done;
        if done > 0 {
            skip = PAGE;
            tries = 0;
        }
        match why {
            None => length = (length * 2).min(run.bytes()),
            // The next page is the one that was refused.
            Some(_) if done > 0 => length = PAGE,
            Some(why) if why.is_passing() && tries < 1000 => {
                tries += 1;
                sys::yield_now();
            }
            Some(Refusal::Gone) => return,
            Some(Refusal::Busy) if bytes > PAGE => length = PAGE,
            // A run may reach over the border of a mapping.
            Some(_) if bytes > PAGE => length = (bytes / 2) & !(PAGE - 1),
            Some(_) => {
                let skipped = skip.min(run.end - at);
                protected.stuck += skipped / PAGE;
                at += skipped;
                skip = (skip * 2).min(MAX_SKIP * PAGE);
            }
        }
    }
}

/// Gives the memory of moved pages back.
pub(super) fn discard(range: Range) {
    // Nobody needs its content any more.
    advise(range, libc::MADV_DONTNEED);
}

pub(super) fn advise(range: Range, advice: i32) {
    if range.is_empty() {
        return;
    }
    // SAFETY: takes integers; where it takes content away, the caller has said that nobody needs that.
    unsafe {
        sys::call(
            libc::SYS_madvise,
            [
                range.start as usize,
                range.bytes() as usize,
                advice as usize,
                0,
                0,
                0,
            ],
        )
    };
}
