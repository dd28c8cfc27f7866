//! Moving pages aside at the end of an interval, and back when they are accessed.

use varve_agent_ring::{Arm, Armed, is_chosen};

use super::keep::Keep;
use super::maps;
use super::mover::{AsRange, PAGE, Pagemap, Refusal, Told, Watch};
use super::place::{Changes, MIDDLE, TOP, aside, back, halves, range_of};
use super::ranges::{Range, Ranges};
use super::settled::Settled;
use crate::sys;

const EVENT_PAGEFAULT: u8 = 0x12;
const EVENT_FORK: u8 = 0x13;
const EVENT_REMAP: u8 = 0x14;
const EVENT_REMOVE: u8 = 0x15;
const EVENT_UNMAP: u8 = 0x16;
const FAULT_WRITE: u64 = 1;

/// Accesses that wait to be served at most; more wait in the kernel.
const MOST_WAITING: usize = 512;
/// Messages that one read brings.
const MESSAGES: usize = 16;
/// Pages that are passed over at most after one that cannot be moved.
const LONGEST_SKIP: u64 = 64;
/// A process with more mappings than this is near the kernel's limit (`vm.max_map_count`, 65,530).
const MOST_MAPPINGS: usize = 12_000;
/// A change of mappings is waited for at most so often.
const MOST_RETRIES: u32 = 100_000;

#[derive(Clone, Copy)]
struct Waiting {
    page: u64,
    write: bool,
}

/// Pages of zeroes to copy from, in the library's file and so never aside.
#[repr(C, align(4096))]
struct Zeroes([u8; PAGE as usize]);
static ZEROES: Zeroes = Zeroes([0; PAGE as usize]);

/// Runs of pages that one look lists.
const LISTED: usize = 64;

/// What the servant knows.
pub(super) struct Keeper {
    pub(super) front: Watch,
    back: Watch,
    pagemap: Pagemap,
    keep: Keep,
    /// The servant's own stack.
    stack: Range,
    /// What the front watches.
    watched: Ranges,
    /// The memory aside. It stays mapped when what it belongs to goes.
    shadows: Ranges,
    /// What of it is new since the recorder was last told.
    pub(super) fresh: Ranges,
    /// What is to be armed, mapping by mapping.
    plain: Ranges,
    settled: Settled,
    waiting: [Waiting; MOST_WAITING],
    first: usize,
    count: usize,
    served: u64,
    empty: u64,
}

impl Keeper {
    pub(super) fn new(front: Watch, back: Watch, stack: Range) -> Option<Keeper> {
        let none = Waiting {
            page: 0,
            write: false,
        };
        Some(Keeper {
            front,
            back,
            pagemap: Pagemap::open()?,
            keep: Keep::new()?,
            stack,
            watched: Ranges::new()?,
            shadows: Ranges::new()?,
            fresh: Ranges::new()?,
            plain: Ranges::new()?,
            settled: Settled::new()?,
            waiting: [none; MOST_WAITING],
            first: 0,
            count: 0,
            served: 0,
            empty: 0,
        })
    }

    /// Accesses served since the last boundary, and of them those to pages without content.
    pub(super) fn served(&self) -> (u64, u64) {
        (self.served, self.empty)
    }

    // ---- what the kernel tells ----

    /// Serves until nothing waits.
    pub(super) fn serve_all(&mut self) {
        loop {
            self.listen();
            if self.count == 0 {
                return;
            }
            while let Some(waiting) = self.next() {
                self.serve(waiting);
            }
        }
    }

    fn next(&mut self) -> Option<Waiting> {
        let waiting = self.waiting.get(self.first).copied()?;
        self.count = self.count.checked_sub(1)?;
        self.first = (self.first + 1) % MOST_WAITING;
        Some(waiting)
    }

    /// Takes what the kernel has to tell. Changes of mappings are followed at once, before any access is served: a
    /// page must not come back between a fork and the filling of the child.
    fn listen(&mut self) {
        let mut told = [Told::default(); MESSAGES];
        while self.count + MESSAGES <= MOST_WAITING {
            let count = self.front.read(&mut told);
            let told = told.get(..count).unwrap_or_default();
            for message in told {
                let [a, b, c] = message.words;
                match message.event {
                    EVENT_PAGEFAULT => self.push(b & !(PAGE - 1), a & FAULT_WRITE != 0),
                    EVENT_FORK => self.fill_child(Watch {
                        descriptor: a as i32,
                    }),
                    EVENT_REMAP => self.follow(a, b, c),
                    EVENT_REMOVE => self.drop_aside(Range { start: a, end: b }),
                    EVENT_UNMAP => {
                        let gone = Range { start: a, end: b };
                        self.watched.remove(gone);
                        self.drop_aside(gone);
                    }
                    _ => {}
                }
            }
            if count < MESSAGES {
                return;
            }
        }
    }

    fn push(&mut self, page: u64, write: bool) {
        let at = (self.first + self.count) % MOST_WAITING;
        if let Some(place) = self.waiting.get_mut(at) {
            *place = Waiting { page, write };
            self.count += 1;
        }
    }

    /// Brings one page back and wakes who waits for it.
    fn serve(&mut self, waiting: Waiting) {
        let Waiting { page, write } = waiting;
        self.served += 1;
        let whole = Range {
            start: page,
            end: page + PAGE,
        };
        for _ in 0..MOST_RETRIES {
            match self.bring(page, write) {
                None => return,
                Some(Refusal::Changing) => self.let_change(),
                Some(Refusal::NoMemory) => sys::yield_now(),
                // Somebody was faster, or the memory is gone: who waits shall look again.
                Some(_) => break,
            }
        }
        self.front.wake(whole);
    }

    /// Follows what changes, and lets those who change it go on.
    fn let_change(&mut self) {
        self.listen();
        sys::yield_now();
    }

    fn bring(&mut self, page: u64, write: bool) -> Option<Refusal> {
        let source = aside(page);
        let has_aside = self.shadows.holds(source);
        if has_aside {
            match self.front.move_page(page, source) {
                Some(Refusal::Nothing) => {}
                // The mapping's rights have changed, or it was locked: a copy does as well.
                Some(Refusal::Immovable | Refusal::Busy) => {
                    match self.front.copy_page(page, source, true) {
                        None => {
                            discard(Range {
                                start: source,
                                end: source + PAGE,
                            });
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
            self.front.copy_page(page, zeroes, true)
        } else {
            self.front.zero_page(page)
        }
    }

    // ---- changes of mappings ----

    /// What is aside of a range is of no use any more.
    fn drop_aside(&mut self, range: Range) {
        for part in halves(range) {
            let start = aside(part.start);
            let place = Range {
                start,
                end: start + part.bytes(),
            };
            let mut index = self.shadows.first_behind(place.start);
            while let Some(shadow) = self.shadows.get(index).filter(|s| s.start < place.end) {
                discard(shadow.common(place));
                index += 1;
            }
        }
    }

    /// Memory moved within the address space, and what is aside of it moves too.
    fn follow(&mut self, from: u64, to: u64, bytes: u64) {
        let (old, new) = (range_of(from, bytes), range_of(to, bytes));
        self.watched.remove(old);
        let has_place = self.make_place(new) && self.watched.insert(new);
        let source = range_of(aside(from), bytes);
        self.each_run(source, |keeper, run| {
            let mut page = run.start;
            while page < run.end {
                let goal = to + (page - source.start);
                let refused = if has_place {
                    keeper.back.move_page(aside(goal), page)
                } else {
                    keeper.front.move_page(goal, page)
                };
                if refused == Some(Refusal::Changing) {
                    // Another change waits behind this one.
                    keeper.let_change();
                    continue;
                }
                if refused.is_some() && keeper.front.copy_page(goal, page, true).is_none() {
                    discard(range_of(page, PAGE));
                }
                page += PAGE;
            }
        });
    }

    /// A forked process shall find what its parent has aside. It does not run before this has begun, and what it
    /// misses meanwhile it waits for.
    fn fill_child(&mut self, child: Watch) {
        let mut since = Changes::default();
        self.each_run_aside(|keeper, run| {
            let mut page = run.start;
            while page < run.end {
                match since
                    .now(back(page))
                    .map(|to| child.copy_page(to, page, false))
                {
                    Some(Some(Refusal::Changing)) => {
                        keeper.listen_to(child, &mut since);
                        sys::yield_now();
                    }
                    Some(Some(Refusal::NoMemory)) => sys::yield_now(),
                    // Not inherited, or the child is gone already.
                    _ => page += PAGE,
                }
            }
        });
        child.close();
    }

    /// What a child does to its memory while it is filled waits to be told of.
    fn listen_to(&mut self, child: Watch, since: &mut Changes) {
        let mut told = [Told::default(); 1];
        while child.read(&mut told) == 1 {
            let [a, b, c] = told[0].words;
            match told[0].event {
                EVENT_FORK => self.fill_child(Watch {
                    descriptor: a as i32,
                }),
                EVENT_REMAP => since.note(range_of(a, c), Some(b)),
                EVENT_REMOVE | EVENT_UNMAP => since.note(Range { start: a, end: b }, None),
                _ => {}
            }
        }
    }

    /// Hands on every run of pages that is aside.
    fn each_run_aside(&mut self, mut each: impl FnMut(&mut Keeper, Range)) {
        for index in 0.. {
            let Some(shadow) = self.shadows.get(index) else {
                break;
            };
            self.each_run(shadow, &mut each);
        }
    }

    /// Hands on every run of pages in a range. Each look is copied, because whoever waits may be served in between.
    fn each_run(&mut self, range: Range, mut each: impl FnMut(&mut Keeper, Range)) {
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
            for (index, run) in runs.iter().enumerate() {
                let Some(place) = list.get_mut(index) else {
                    next = run.range().start;
                    break;
                };
                *place = run.range();
            }
        }
        (list, next)
    }

    // ---- boundaries ----

    /// Moves every page that is to be trapped aside. The process is held.
    pub(super) fn arm(&mut self, process: u32, arm: &Arm, threads: &[u64]) -> Armed {
        let began = sys::now_ns();
        self.serve_all();
        if arm.afresh {
            self.put_back();
        }
        let lists = [
            self.watched.memory(),
            self.shadows.memory(),
            self.fresh.memory(),
            self.plain.memory(),
            self.settled.memory(),
            self.stack,
        ];
        self.keep.renew(threads, &lists);
        self.plain.clear();
        let mut mappings = 0;
        let mut armed = Armed::default();
        let limited = [libc::RLIMIT_AS, libc::RLIMIT_DATA]
            .iter()
            .any(|limit| sys::limit_of(process, *limit).is_some());
        let (keep, plain, shadows) = (&mut self.keep, &mut self.plain, &self.shadows);
        let mut refused = 0;
        maps::each(|entry| {
            keep.notice(&entry);
            mappings += 1;
            if !entry.is_plain || entry.range.end > TOP {
                return;
            }
            shadows.gaps(entry.range, |part| {
                keep.ranges().gaps(part, |part| {
                    if limited || mappings > MOST_MAPPINGS || !plain.push(part) {
                        refused += part.bytes();
                    }
                });
            });
        });
        armed.refused_bytes = refused;
        for index in 0.. {
            let Some(range) = self.plain.get(index) else {
                break;
            };
            self.arm_one(range, arm, &mut armed);
        }
        armed.served = std::mem::take(&mut self.served);
        armed.empty = std::mem::take(&mut self.empty);
        armed.took_ns = sys::now_ns().saturating_sub(began);
        armed
    }

    /// One mapping, or a part of it.
    fn arm_one(&mut self, range: Range, arm: &Arm, armed: &mut Armed) {
        let is_watched = self
            .watched
            .get(self.watched.first_behind(range.start))
            .is_some_and(|w| w.start <= range.start && w.end >= range.end);
        if !is_watched {
            // First accesses to new pages would trap, whatever the budget, and fault anyway.
            if arm.threshold != u64::MAX && !self.is_settled(range) {
                return;
            }
            if !self.make_place(range) || !self.front.register(range) {
                armed.refused_bytes += range.bytes();
                return;
            }
            if !self.watched.insert(range) {
                armed.refused_bytes += range.bytes();
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
                armed.refused_bytes += rest.bytes();
                return;
            };
            for run in runs.iter().map(AsRange::range) {
                if arm.threshold == u64::MAX {
                    move_run(self.back, run, armed);
                    continue;
                }
                let mut page = run.start;
                while page < run.end {
                    if is_chosen(page / PAGE, arm.seed, arm.threshold) {
                        move_run(self.back, range_of(page, PAGE), armed);
                    }
                    page += PAGE;
                }
            }
            at = next;
        }
    }

    fn is_settled(&mut self, range: Range) -> bool {
        let pages = self.pagemap.count(range);
        pages.is_some_and(|pages| self.settled.is(range, pages, range.bytes() / PAGE))
    }

    /// Makes the place aside for a range; whether there is one.
    fn make_place(&mut self, range: Range) -> bool {
        if range.start < MIDDLE && range.end > MIDDLE {
            return false;
        }
        let place = range_of(aside(range.start), range.bytes());
        // One gap at a time, as making a place changes the set.
        for _ in 0..super::ranges::MOST {
            let mut gap = None;
            self.shadows.gaps(place, |g| {
                gap.get_or_insert(g);
            });
            let Some(gap) = gap else { return true };
            if !sys::map_at(gap.start, gap.bytes()) {
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

    /// Moves everything back to where it belongs.
    fn put_back(&mut self) {
        self.each_run_aside(Keeper::put_back_run);
    }

    fn put_back_run(&mut self, run: Range) {
        const PIECE: u64 = 64 * PAGE;
        let mut at = run.start;
        let mut length = PIECE;
        let mut tries = 0;
        while at < run.end {
            let bytes = length.min(run.end - at);
            let (done, why) = self.front.move_run(back(at), at, bytes);
            self.front.wake(range_of(back(at), bytes));
            at += done;
            match why {
                None => {
                    length = PIECE;
                    tries = 0;
                }
                _ if done > 0 => length = PAGE,
                Some(Refusal::Changing | Refusal::NoMemory) if tries < MOST_RETRIES => {
                    tries += 1;
                    self.let_change();
                }
                Some(_) if bytes > PAGE => length = PAGE,
                Some(_) => {
                    // The mapping's rights have changed: a copy does as well. Where it is gone, or has a page of
                    // its own, this one is of no use.
                    let _ = self.front.copy_page(back(at), at, true);
                    discard(range_of(at, PAGE));
                    at += PAGE;
                }
            }
            self.listen();
        }
    }

    /// Puts everything back and stops watching, while the program runs.
    pub(super) fn release(mut self) {
        self.serve_all();
        // Twice, as memory may move from where it is yet to be looked for to where it was.
        self.put_back();
        self.put_back();
        self.serve_all();
        // Whoever waits now waits for a page without content, and looks again.
        self.front.close();
        self.back.close();
        for index in 0.. {
            let Some(shadow) = self.shadows.get(index) else {
                break;
            };
            // SAFETY: the servant's own memory; nothing is left there.
            unsafe { sys::unmap_at(shadow.start, shadow.bytes()) };
        }
    }
}

/// Moves a run of pages aside, and counts those that the kernel will not move.
fn move_run(to: Watch, run: Range, armed: &mut Armed) {
    let mut at = run.start;
    let mut length = run.bytes();
    let mut skip = PAGE;
    let mut tries = 0;
    while at < run.end {
        let bytes = length.min(run.end - at);
        let (done, why) = to.move_run(aside(at), at, bytes);
        armed.moved += done / PAGE;
        at += done;
        if done > 0 {
            skip = PAGE;
            tries = 0;
        }
        match why {
            None => length = (length * 2).min(run.bytes()),
            // The next page is the one that was refused.
            Some(_) if done > 0 => length = PAGE,
            Some(Refusal::Changing | Refusal::NoMemory) if tries < 1000 => {
                tries += 1;
                sys::yield_now();
            }
            Some(Refusal::Gone) => return,
            Some(Refusal::Busy) if bytes > PAGE => length = PAGE,
            // A run may reach over the border of a mapping.
            Some(_) if bytes > PAGE => length = (bytes / 2) & !(PAGE - 1),
            Some(_) => {
                let skipped = skip.min(run.end - at);
                armed.stuck += skipped / PAGE;
                at += skipped;
                skip = (skip * 2).min(LONGEST_SKIP * PAGE);
            }
        }
    }
}

/// Gives the memory of pages aside back.
fn discard(range: Range) {
    if range.is_empty() {
        return;
    }
    // SAFETY: the servant's own memory, whose content nobody needs any more.
    unsafe {
        sys::call(
            libc::SYS_madvise,
            [
                range.start as usize,
                range.bytes() as usize,
                libc::MADV_DONTNEED as usize,
                0,
                0,
                0,
            ],
        )
    };
}
