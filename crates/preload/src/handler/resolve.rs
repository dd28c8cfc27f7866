//! Hearing what the kernel says, bringing pages back, and following changes of mappings.

use varve_preload_abi::journal::Change;

use super::backlog::{Access, Backlog};
use super::exempt::Exempt;
use super::mover::{PAGE, Pagemap, Refusal, Watch};
use super::place::{
    Changes, EVENT_FORK, EVENT_REMAP, EVENT_REMOVE, EVENT_UNMAP, halves, home_of, range_of,
    shadow_of,
};
use super::protect::discard;
use super::ranges::{Range, Ranges};
use super::rights::Taken;
use super::steady::Steady;
use crate::sys;

/// From so many waiting accesses on, those who wait are woken in groups.
const CROWD: usize = 32;
/// The size of a group.
const MAX_CROWD: usize = 512;
/// Runs of pages that one look lists.
const LISTED: usize = 64;
/// Children of children that are filled while their parent is: each takes a part of the stack.
const MAX_GENERATIONS: u32 = 8;
/// How often a child is filled again that changes its memory meanwhile.
const MAX_ROUNDS: usize = 64;
/// How long the kernel may take from a change of mappings until it says so.
const MOMENT_NS: i64 = 1_000_000;

/// How often the same is tried, with pauses.
pub(super) struct Patience {
    tries: u32,
    most: u32,
}

impl Patience {
    /// For something that somebody waits for: a tenth of a second.
    pub(super) const SHORT: u32 = 2_000;
    /// For something that must not fail unless memory is lacking: seconds.
    pub(super) const LONG: u32 = 50_000;
    const YIELDS: u32 = 200;
    const PAUSE_NS: i64 = 20_000;

    pub(super) fn new(most: u32) -> Patience {
        Patience { tries: 0, most }
    }

    /// Waits a moment; false where it has been often enough.
    pub(super) fn pause(&mut self) -> bool {
        self.tries += 1;
        if self.tries < Patience::YIELDS {
            sys::yield_now();
        } else {
            sys::sleep_ns(Patience::PAUSE_NS);
        }
        self.tries < self.most
    }
}

/// Pages of zeroes to copy from, in the library's file and so never moved.
#[repr(C, align(4096))]
struct Zeroes([u8; PAGE as usize]);
static ZEROES: Zeroes = Zeroes([0; PAGE as usize]);

/// How many sets of ranges a handler has: five of its own, and two of [`Exempt`].
pub(super) const SETS: usize = 7;

/// What the handler knows.
pub(super) struct Handler {
    pub(super) front: Watch,
    pub(super) back: Watch,
    pub(super) pagemap: Pagemap,
    pub(super) maps: sys::ReadFile,
    pub(super) exempt: Exempt,
    /// The handler's own stack.
    pub(super) stack: Range,
    /// What is put back shall not look as if the program had touched it: a page that is moved counts as accessed. Only
    /// while nobody touches any.
    pub(super) cools: bool,
    /// What the front watches.
    pub(super) watched: Ranges,
    /// The shadows. It stays mapped when what it belongs to goes.
    pub(super) shadows: Ranges,
    /// Where memory moved to since the last boundary: nothing of it lies in a shadow, but perhaps what was there before.
    pub(super) arrived: Ranges,
    /// What of it is new since the last report to the recorder.
    pub(super) fresh: Ranges,
    /// What is to be protected, mapping by mapping.
    pub(super) plain: Ranges,
    pub(super) steady: Steady,
    pub(super) backlog: Backlog,
    pub(super) resolved: u64,
    pub(super) empty: u64,
}

impl Handler {
    pub(super) fn new(front: Watch, back: Watch, taken: Taken, stack: Range) -> Option<Handler> {
        Some(Handler {
            front,
            back,
            pagemap: taken.pagemap,
            maps: taken.maps,
            exempt: Exempt::new()?,
            stack,
            cools: false,
            watched: Ranges::new()?,
            shadows: Ranges::new()?,
            arrived: Ranges::new()?,
            fresh: Ranges::new()?,
            plain: Ranges::new()?,
            steady: Steady::new()?,
            backlog: Backlog::new()?,
            resolved: 0,
            empty: 0,
        })
    }

    /// Accesses resolved since the last boundary, and of them those to pages without content.
    pub(super) fn resolved(&self) -> (u64, u64) {
        (self.resolved, self.empty)
    }

    // ---- what the kernel says ----

    /// Whether there is something to do before the kernel says more.
    pub(super) fn has_more(&self) -> bool {
        self.backlog.accesses() > 0
    }

    /// Resolves the accesses that wait now. Others may wait afterwards.
    pub(super) fn resolve_batch(&mut self) {
        self.attend();
        let mut rest = self.backlog.accesses();
        // The kernel looks at all who wait to find whom to wake. Where there are many, those who wait for neighbouring
        // pages are woken together, and nobody whose page is not back yet: who is woken early asks again.
        let one_by_one = rest < CROWD;
        if !one_by_one {
            self.backlog.sort_accesses();
        }
        while rest > 0 {
            let mut resolved = Range {
                start: u64::MAX,
                end: 0,
            };
            for _ in 0..rest.min(MAX_CROWD) {
                if let Some(access) = self.backlog.pop_access() {
                    self.resolve(access, one_by_one);
                    resolved.start = resolved.start.min(access.page());
                    resolved.end = resolved.end.max(access.page() + PAGE);
                }
            }
            if !one_by_one && !resolved.is_empty() {
                self.front.wake(resolved);
            }
            rest = rest.saturating_sub(MAX_CROWD);
        }
        if self.backlog.accesses() == 0 && self.backlog.take_forgotten() {
            self.front.wake_all();
        }
    }

    /// Resolves until nothing waits: for when nobody runs who could go on making more.
    pub(super) fn resolve_all(&mut self) {
        loop {
            self.resolve_batch();
            if self.backlog.accesses() == 0 {
                return;
            }
        }
    }

    /// Takes what the kernel has to say, all of it: nothing that is at work here can stop this.
    fn listen(&mut self) {
        // With so many changes waiting, their makers wait for once; all that is read gets done in between.
        while self.backlog.has_room_for_changes() && self.backlog.hear(self.front) {}
        self.fill_children();
    }

    /// Fills the children of the forks that wait, before any more pages move.
    ///
    /// A change is heard before it is followed, and its thread goes on as soon as it is heard. So a program may fork while memory
    /// that it has moved comes home page by page: what comes home after the fork the child has neither from its parent
    /// nor from the shadow. The kernel refuses to move pages from the fork until it is heard, so nothing is missed before that.
    fn fill_children(&mut self) {
        while let Some(behind) = self.backlog.before_fork() {
            let mut since = Changes::new();
            let mut descriptor = None;
            for change in self.backlog.changes().take(behind + 1) {
                descriptor = since.follow(&change).or(descriptor);
            }
            // Too many to know where everything is: it is filled when they have been followed.
            let Some(descriptor) = descriptor.filter(|_| since.is_whole()) else {
                return;
            };
            self.fill_child(Watch { descriptor }, &mut since, 0);
            self.backlog.finish_fork(behind);
        }
    }

    /// Takes what the kernel has to say and follows changes of mappings, in their order. That comes before any access
    /// is resolved: a page must not come back between a fork and the filling of the child.
    pub(super) fn attend(&mut self) {
        self.listen();
        while let Some(Change { event, words }) = self.backlog.next_change() {
            let [a, b, c] = words;
            match event as u8 {
                EVENT_FORK => {
                    let child = Watch {
                        descriptor: a as i32,
                    };
                    self.fill_child(child, &mut Changes::new(), 0);
                }
                EVENT_REMAP => self.follow(a, b, c),
                EVENT_REMOVE => self.drop_moved(Range { start: a, end: b }),
                EVENT_UNMAP => {
                    let gone = Range { start: a, end: b };
                    self.watched.remove(gone);
                    self.drop_moved(gone);
                }
                _ => {}
            }
            self.backlog.finish_change();
        }
    }

    /// Brings one page back and wakes who waits for it, if so wished.
    fn resolve(&mut self, access: Access, wake: bool) {
        let page = access.page();
        self.resolved += 1;
        let mut patience = Patience::new(Patience::SHORT);
        loop {
            match self.bring(page, access.is_write(), wake) {
                None => return,
                Some(why) if why.is_passing() => {
                    // Whoever changes mappings goes on when this was read.
                    self.attend();
                    if !patience.pause() {
                        break;
                    }
                }
                Some(_) => break,
            }
        }
        // Somebody was faster, or the memory is gone, or it is not the time: who waits shall look again.
        if wake {
            self.front.wake(range_of(page, PAGE));
        }
    }

    fn bring(&mut self, page: u64, write: bool, wake: bool) -> Option<Refusal> {
        let source = shadow_of(page);
        if self.shadows.holds(source) && !self.arrived.holds(page) {
            match self.front.move_page(page, source, wake) {
                Some(Refusal::Nothing) => {}
                // The mapping's rights have changed, or it was locked: a copy does as well.
                Some(Refusal::Immovable | Refusal::Busy) => {
                    match self.front.copy_page(page, source, wake) {
                        None => {
                            discard(range_of(source, PAGE));
                            return None;
                        }
                        Some(Refusal::Nothing) => {}
                        other => return other,
                    }
                }
                other => return other,
            }
        }
        self.empty += 1;
        if write {
            let zeroes = &raw const ZEROES as u64;
            self.front.copy_page(page, zeroes, wake)
        } else {
            self.front.zero_page(page, wake)
        }
    }

    // ---- changes of mappings ----

    /// What is moved of a range is of no use any more.
    fn drop_moved(&mut self, range: Range) {
        for part in halves(range).into_iter().filter(|p| !p.is_empty()) {
            let place = range_of(shadow_of(part.start), part.bytes());
            let mut index = self.shadows.first_behind(place.start);
            while let Some(shadow) = self.shadows.get(index).filter(|s| s.start < place.end) {
                discard(shadow.common(place));
                index += 1;
            }
        }
    }

    /// Memory moved within the address space: what is moved of it comes back, to where it belongs now.
    ///
    /// Not to a shadow there. The kernel reports a change after it has made it and let others go on, so that what another
    /// thread did to the new place before may be reported only after this, and concerns what lies in its shadow.
    fn follow(&mut self, from: u64, to: u64, bytes: u64) {
        let (old, new) = (range_of(from, bytes), range_of(to, bytes));
        self.watched.remove(old);
        self.watched.remove(new);
        let _ = self.make_place(new) && self.watched.insert(new);
        let _ = self.arrived.insert(new);
        let source = range_of(shadow_of(from), bytes);
        self.each_run(source, |handler, run| {
            let mut page = run.start;
            let mut patience = Patience::new(Patience::LONG);
            while page < run.end {
                let goal = to + (page - source.start);
                let mut refused = handler.front.move_page(goal, page, true);
                if refused.is_some_and(|r| !r.is_passing()) {
                    refused = handler.front.copy_page(goal, page, true);
                    // Where there is a page, this one is of no use any more.
                    if matches!(refused, None | Some(Refusal::Occupied)) {
                        discard(range_of(page, PAGE));
                    }
                }
                if refused.is_some_and(Refusal::is_passing) {
                    // Another change may wait behind this one. It is heard now and followed afterwards.
                    handler.listen();
                    if patience.pause() {
                        continue;
                    }
                }
                page += PAGE;
            }
        });
    }

    /// A forked process shall find what its parent has moved. It does not run before this has begun, and what it
    /// misses meanwhile it waits for. `since` is what it did to its memory since it had its parent's. What cannot be
    /// brought for lack of memory ends the child when it comes there: it must not find zeroes.
    fn fill_child(&mut self, child: Watch, since: &mut Changes, generation: u32) {
        let mut patience = Patience::new(Patience::LONG);
        let mut has_patience = generation < MAX_GENERATIONS;
        for _ in 0..MAX_ROUNDS {
            let heard = since.heard();
            let mut misses = false;
            self.each_moved_run(|handler, run| {
                let mut page = run.start;
                while page < run.end {
                    let refused = since.now(home_of(page)).and_then(|to| {
                        if has_patience && since.is_whole() {
                            child.copy_page(to, page, false)
                        } else {
                            child.poison(to)
                        }
                    });
                    if has_patience && refused.is_some_and(Refusal::is_passing) {
                        handler.listen_to(child, since, generation);
                        has_patience = patience.pause();
                        continue;
                    }
                    // Else it has it already.
                    misses |= refused == Some(Refusal::Nothing);
                    page += PAGE;
                }
            });
            if !misses {
                break;
            }
            // It did not inherit the page, or is gone, or has just moved it: then the kernel says so in a moment.
            sys::sleep_ns(MOMENT_NS);
            self.listen_to(child, since, generation);
            if since.heard() == heard {
                break;
            }
        }
        child.close();
    }

    /// What a child does to its memory while it is filled waits to be heard.
    fn listen_to(&mut self, child: Watch, since: &mut Changes, generation: u32) {
        let mut messages = [Change::default(); 1];
        while child.read(&mut messages) == 1 {
            if let Some(descriptor) = since.follow(&messages[0]) {
                let grandchild = Watch { descriptor };
                self.fill_child(grandchild, &mut since.copy(), generation + 1);
            }
        }
    }

    // ---- what is moved ----

    /// Hands on every run of moved pages.
    pub(super) fn each_moved_run(&mut self, mut each: impl FnMut(&mut Handler, Range)) {
        for index in 0.. {
            let Some(shadow) = self.shadows.get(index) else {
                break;
            };
            self.each_run(shadow, &mut each);
        }
    }

    /// Hands on every run of pages in a range. Each look is copied, because a fault that waits may be resolved in between.
    fn each_run(&mut self, range: Range, mut each: impl FnMut(&mut Handler, Range)) {
        let mut at = range.start;
        while at < range.end {
            let rest = Range {
                start: at,
                end: range.end,
            };
            let (runs, next) = self.list(rest);
            for run in runs.iter().filter(|r| !r.is_empty()) {
                each(self, *run);
            }
            at = next;
        }
    }

    /// A copy of what one look at the page tables brings, and where the next begins.
    fn list(&mut self, range: Range) -> ([Range; LISTED], u64) {
        let mut list = [Range { start: 0, end: 0 }; LISTED];
        let mut next = range.end;
        if let Some((runs, after)) = self.pagemap.look(range) {
            next = after;
            for (index, run) in runs.enumerate() {
                let Some(place) = list.get_mut(index) else {
                    next = run.start;
                    break;
                };
                *place = run;
            }
        }
        (list, next)
    }
}
