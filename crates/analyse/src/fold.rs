//! The fold over touches and faults: one interval after the other, in memory that depends on the pages touched and on
//! the objects, not on the length of the trace.

mod faults;
mod finish;
mod marks;
mod sites;
mod users;

use std::collections::HashMap;

use varve_model::{Address, Bytes, Page, PageRange, Pages, Pid, Time};
use varve_objects::{Owners, Span};

use crate::chunks::{Bits, CHUNK_PAGES, Cell, Chunk, Chunks, MAX_PAGES, MAX_PENDING};
use crate::memory::Objects;
use crate::page_set::PageSet;
use crate::page_states::Touched;
use crate::stats::{FAULTED, SHARE, Seen, SharedPage, Stats, ThreadStats, close};
use crate::sweep::{Moment, Run};
pub(crate) use faults::Faulted;
pub(crate) use finish::Folded;
pub(crate) use marks::Mark;
pub(crate) use sites::Sites;
use users::Users;
pub(crate) use users::{ProcessPages, User};

/// The part of a run that lies in one chunk.
#[derive(Clone, Copy, Debug)]
struct Piece {
    position: u32,
    first: u16,
    end: u16,
}

/// Pieces that are worked on together.
const PIECES: usize = 512;

/// The state of the fold.
pub(crate) struct Fold<'a> {
    spans: &'a [Span],
    /// The object of each span.
    of_span: &'a [u32],
    /// The spans of each object: where they begin in `span_order`.
    span_starts: Vec<u32>,
    span_order: Vec<u32>,
    /// Where each object lies, over its whole life.
    places: &'a [Span],
    owners: Owners<'a>,
    by_birth: Vec<u32>,
    born: usize,
    by_death: Vec<u32>,
    died: usize,
    from: Time,
    interval: u32,
    /// The interval lies in the tail of the recording.
    in_tail: bool,
    end: Time,
    chunks: Chunks,
    /// One for each object, and one for pages without an object.
    pub(crate) objects: Vec<Stats>,
    /// Likewise.
    pub(crate) seen: Vec<Seen>,
    /// Page counts of objects that do not have the page to themselves, by object and by chunk and page.
    shared_pages: HashMap<(u32, u64), SharedPage>,
    pub(crate) threads: Vec<ThreadStats>,
    thread_index: HashMap<(u32, u32), u32>,
    /// Objects of one site, taken together.
    pub(crate) sites: Sites,
    /// The processes that use memory which several may map.
    users: Users,
    /// Pages that others may have touched.
    pub(crate) possibly: PageSet,
    /// Pages first touched, by object and thread.
    pub(crate) by_thread: HashMap<(u32, u32), u64>,
    /// Page touches of pages that several objects lay on, once for each page.
    pub(crate) shared_touches: u64,
    /// Runs that were not entered because the trace cannot be right.
    pub(crate) refused: u64,
    /// The memory that pages may take.
    room: Bytes,
    scratch: (Vec<Cell>, Vec<u32>),
    pieces: Vec<Piece>,
    /// Pages of a chunk whose touches are assigned, and how often they were touched.
    touched: Vec<(u16, u32)>,
}

impl<'a> Fold<'a> {
    /// `own` says which objects are the recorder's own memory; `sites` puts objects together; `end` is the end of the
    /// recording. `room` is the memory that pages may take.
    pub(crate) fn new(
        all: &'a Objects,
        own: impl Fn(usize) -> bool,
        sites: Sites,
        end: Time,
        room: Bytes,
    ) -> Fold<'a> {
        let spans = &all.spans[..];
        let mut span_order: Vec<u32> = (0..index(spans.len())).collect();
        span_order.sort_by_key(|&i| all.of_span[i as usize]);
        let mut span_starts = vec![0; all.places.len() + 1];
        for &of in &all.of_span {
            span_starts[of as usize + 1] += 1;
        }
        for i in 1..span_starts.len() {
            span_starts[i] += span_starts[i - 1];
        }
        let mut by_birth: Vec<u32> = (0..index(spans.len())).collect();
        let mut by_death = by_birth.clone();
        by_birth.sort_by_key(|&i| spans[i as usize].born);
        by_death.sort_by_key(|&i| spans[i as usize].died);
        let mut objects: Vec<Stats> = (0..all.places.len()).map(|i| Stats::new(own(i))).collect();
        objects.push(Stats::new(false));
        Fold {
            spans,
            of_span: &all.of_span,
            span_starts,
            span_order,
            places: &all.places,
            sites,
            users: Users::default(),
            possibly: PageSet::default(),
            owners: Owners::new(spans),
            by_birth,
            born: 0,
            by_death,
            died: 0,
            from: Time(0),
            interval: 0,
            in_tail: false,
            end,
            chunks: Chunks::new(room),
            room,
            seen: vec![Seen::NOT; objects.len()],
            objects,
            shared_pages: HashMap::new(),
            threads: Vec::new(),
            thread_index: HashMap::new(),
            by_thread: HashMap::new(),
            shared_touches: 0,
            refused: 0,
            scratch: (Vec::new(), Vec::new()),
            pieces: Vec::with_capacity(PIECES),
            touched: Vec::new(),
        }
    }

    /// The memory that pages may take, where that does not do.
    pub(crate) fn room_that_is_full(&self) -> Option<Bytes> {
        self.chunks.is_full.then_some(self.room)
    }

    /// Goes on to an interval, from the end of the one before it to its own end.
    pub(crate) fn begin(&mut self, now: Moment, in_tail: bool) {
        self.interval = index(now.position);
        if in_tail && !self.in_tail {
            // What is assigned from here on was touched in the tail.
            for position in 0..self.chunks.all.len() {
                self.assign(position);
            }
        }
        self.in_tail = in_tail;
        self.from = self.from.max(now.from);
        let to = now.to.max(Time(self.from.0.saturating_add(1)));
        self.owners.advance(self.from, to);
        let (spans, chunks) = (self.spans, &mut self.chunks);
        // Those over many chunks are put together first: there may be many of them over the same ones.
        let mut wide: Vec<(u32, u64, u64)> = Vec::new();
        let mut changed = |span: &Span| {
            if let Some(last) = span.bytes.0.checked_sub(1) {
                let (first, last) = (span.address, Address(span.address.0.saturating_add(last)));
                let number = |a: Address| a.page().0 / CHUNK_PAGES;
                let (first, last) = (number(first), number(last));
                if first == last {
                    chunks.make_stale(span.pid.0, first, last);
                } else {
                    wide.push((span.pid.0, first, last));
                }
            }
        };
        while let Some(&i) = self.by_birth.get(self.born) {
            if spans[i as usize].born >= to {
                break;
            }
            self.born += 1;
            changed(&spans[i as usize]);
        }
        while let Some(&i) = self.by_death.get(self.died) {
            if spans[i as usize].died > self.from {
                break;
            }
            self.died += 1;
            changed(&spans[i as usize]);
        }
        wide.sort_unstable();
        wide.dedup_by(|next, last| {
            let joined = next.0 == last.0 && next.1 <= last.2;
            if joined {
                last.2 = last.2.max(next.2);
            }
            joined
        });
        for (pid, first, last) in wide {
            self.chunks.make_stale(pid, first, last);
        }
    }

    /// Enters runs of the interval that do not overlap. Returns how many of their pages are the program's.
    ///
    /// The touches of an interval lie all over memory. So each step is done for many of them before the next step, which
    /// lets the processor wait for many cache lines at once.
    pub(crate) fn touch(&mut self, runs: &[Run]) -> u64 {
        let mut pages = 0;
        for run in runs {
            let end = run.end.0.min(MAX_PAGES);
            if !self.chunks.has_room_for(end.saturating_sub(run.first.0)) {
                return pages;
            }
            let mut at = run.first.0;
            self.refused += u64::from(at >= end);
            while at < end {
                let number = at / CHUNK_PAGES;
                let stop = end.min((number + 1) * CHUNK_PAGES);
                let Some(position) = self.enter(run.pid.0, number) else {
                    break;
                };
                let base = number * CHUNK_PAGES;
                // At most 512.
                let (first, end) = ((at - base) as u16, (stop - base) as u16);
                if !self.chunks.make_room(position, first.into(), end.into()) {
                    self.refused += 1;
                    break;
                }
                self.pieces.push(Piece {
                    position: index(position),
                    first,
                    end,
                });
                pages += stop - at;
                at = stop;
                if self.pieces.len() == PIECES {
                    pages -= self.touch_pieces();
                }
            }
        }
        pages - self.touch_pieces()
    }

    /// Enters the pieces that were gathered. Returns how many of their pages are the recorder's own.
    fn touch_pieces(&mut self) -> u64 {
        let pieces = std::mem::take(&mut self.pieces);
        for piece in &pieces {
            let position = piece.position as usize;
            if self.chunks.all[position].pending == MAX_PENDING {
                self.assign(position);
            }
            self.chunks
                .add(position, piece.first.into(), piece.end.into());
        }
        let mut own = 0;
        for piece in &pieces {
            let chunk = &self.chunks.all[piece.position as usize];
            if let [
                Cell {
                    count: 1, owner, ..
                },
            ] = chunk.cells[..]
            {
                self.seen[owner as usize].mark(self.interval);
                self.sites.seen(owner, self.interval);
                if chunk.has_own {
                    own += u64::from(piece.end - piece.first);
                }
                continue;
            }
            let (first, end) = (usize::from(piece.first), usize::from(piece.end));
            for (from, to, owners) in chunk.overlap(first, end) {
                for &owner in owners {
                    self.seen[owner as usize].mark(self.interval);
                    self.sites.seen(owner, self.interval);
                }
                if chunk.has_own && owners.iter().any(|&o| self.objects[o as usize].own) {
                    own += (to - from) as u64;
                }
            }
        }
        self.pieces = pieces;
        self.pieces.clear();
        own
    }

    /// Calls `each` with the chunks of a run, up to date, and the pages within.
    #[inline]
    fn each_chunk(&mut self, run: Run, mut each: impl FnMut(&mut Parts<'_>, usize, usize)) {
        let end = run.end.0.min(MAX_PAGES);
        if !self.chunks.has_room_for(end.saturating_sub(run.first.0)) {
            return;
        }
        let mut at = run.first.0;
        if at >= end {
            self.refused += 1;
        }
        while at < end {
            let number = at / CHUNK_PAGES;
            let stop = end.min((number + 1) * CHUNK_PAGES);
            let Some(position) = self.enter(run.pid.0, number) else {
                return;
            };
            let base = number * CHUNK_PAGES;
            let (from, until) = ((at - base) as usize, (stop - base) as usize);
            if !self.chunks.make_room(position, from, until) {
                self.refused += 1;
                return;
            }
            let mut parts = Parts {
                possibly: &mut self.possibly,
                objects: &mut self.objects,
                sites: &mut self.sites,
                users: &mut self.users,
                chunk: &mut self.chunks.all[position],
                position,
            };
            each(&mut parts, from, until);
            at = stop;
        }
    }

    /// The position of a chunk, brought up to date; None where there are too many.
    #[inline]
    fn enter(&mut self, pid: u32, number: u64) -> Option<usize> {
        let position = self.chunks.enter(pid, number);
        match position {
            Some(position) if self.chunks.all[position].stale => self.refresh(position),
            Some(_) => (),
            None => self.refused += 1,
        }
        position
    }

    /// Brings the cells of a chunk up to date with the births and deaths.
    #[cold]
    fn refresh(&mut self, position: usize) {
        self.assign(position);
        let chunk = &mut self.chunks.all[position];
        let (of_span, nobody) = (self.of_span, index(self.places.len()));
        let (mut cells, mut owners) = std::mem::take(&mut self.scratch);
        cells.clear();
        owners.clear();
        let range = PageRange {
            first: Page(chunk.number * CHUNK_PAGES),
            count: Pages(CHUNK_PAGES),
        };
        self.owners.owners(Pid(chunk.pid), range, |pages, shares| {
            let (count, owner) = match shares {
                [] => (1, nobody),
                [only] => (1, of_span[only.object.0 as usize]),
                several => {
                    let from = owners.len();
                    for share in several {
                        let owner = of_span[share.object.0 as usize];
                        // Parts of one object are one; few pages have many owners.
                        if owners.len() - from < usize::from(u16::MAX)
                            && (several.len() > FEW_OWNERS || !owners[from..].contains(&owner))
                        {
                            owners.push(owner);
                        }
                    }
                    if several.len() > FEW_OWNERS {
                        owners[from..].sort_unstable();
                        let mut last = None;
                        let mut kept = from;
                        for i in from..owners.len() {
                            let owner = owners[i];
                            if last != Some(owner) {
                                owners[kept] = owner;
                                kept += 1;
                            }
                            last = Some(owner);
                        }
                        owners.truncate(kept);
                    }
                    match owners.len() - from {
                        1 => (1, owners.pop().unwrap_or(nobody)),
                        count => (count as u16, index(from)),
                    }
                }
            };
            cells.push(Cell {
                // At most 512.
                end: (pages.end().0 - range.first.0) as u16,
                count,
                owner,
            });
        });
        std::mem::swap(&mut chunk.cells, &mut cells);
        std::mem::swap(&mut chunk.owners, &mut owners);
        chunk.stale = false;
        let mut all = chunk.cells.iter().flat_map(|c| c.owners(&chunk.owners));
        chunk.has_own = all.any(|&o| self.objects[o as usize].own);
        if !cells.is_empty() {
            self.hand_over(position, &cells, &owners);
        }
        self.scratch = (cells, owners);
    }

    /// Gives the touches since the last assignment to the objects.
    fn assign(&mut self, position: usize) {
        let mut touched = std::mem::take(&mut self.touched);
        self.chunks.take_pending(position, &mut touched);
        let mut rest = &touched[..];
        let chunk = &mut self.chunks.all[position];
        for cell in &chunk.cells {
            let here = rest.partition_point(|&(page, _)| page < cell.end);
            let (of_cell, behind) = rest.split_at(here);
            rest = behind;
            if of_cell.is_empty() {
                continue;
            }
            let owners = cell.owners(&chunk.owners);
            let alone = owners.len() == 1;
            let own = is_own(&self.objects, owners);
            let mut sum = 0;
            for &(page, times) in of_cell {
                let page = usize::from(page);
                sum += u64::from(times);
                let in_tail = self.in_tail;
                let how = Touched {
                    times,
                    own,
                    in_tail,
                    alone,
                };
                chunk.pages.touched(page, how);
                if alone {
                    continue;
                }
                let flags = chunk.pages.take_flags(page) & !FAULTED;
                for &owner in counted(&self.objects, owners, own) {
                    let key = (owner, key(position, page));
                    let stats = &mut self.objects[owner as usize];
                    let entry = self.shared_pages.entry(key).or_insert_with(|| {
                        stats.shared_pages += 1;
                        SharedPage::default()
                    });
                    entry.count = entry.count.saturating_add(times);
                    entry.flags |= flags;
                }
            }
            if !alone && !own {
                self.shared_touches += sum;
            }
            if sum > 0 && !own {
                self.sites.touched(owners, sum);
            }
            let divided = u128::from(sum) * SHARE / owners.len().max(1) as u128;
            for &owner in counted(&self.objects, owners, own) {
                let stats = &mut self.objects[owner as usize];
                stats.touches += sum;
                stats.divided += divided;
                if !alone {
                    stats.shared += sum;
                }
            }
        }
        self.touched = touched;
    }

    /// Moves what is known of the pages whose owners changed: `cells` and `owners` are those of before.
    fn hand_over(&mut self, position: usize, cells: &[Cell], owners: &[u32]) {
        let (mut page, mut old, mut new) = (0, 0, 0);
        while let (Some(&before), Some(&after)) =
            (cells.get(old), self.chunks.all[position].cells.get(new))
        {
            let end = usize::from(before.end.min(after.end));
            let had = before.owners(owners);
            let now = after.owners(&self.chunks.all[position].owners).to_vec();
            if had != now {
                let next = |fold: &Self, page| fold.chunks.all[position].pages.next(page);
                let mut page = next(self, page);
                while page < end {
                    self.hand_over_page(position, page, had, &now);
                    page = next(self, page + 1);
                }
            }
            page = end;
            old += usize::from(usize::from(before.end) <= end);
            new += usize::from(usize::from(after.end) <= end);
        }
    }

    fn hand_over_page(&mut self, position: usize, page: usize, had: &[u32], now: &[u32]) {
        let key = key(position, page);
        let pages = &mut self.chunks.all[position].pages;
        let flags = pages.take_flags(page);
        let count = pages.replace_count(page, 0);
        let dead = |o: u32| {
            let place = self.places.get(o as usize);
            place.is_some_and(|s| s.died <= self.from)
        };
        for &owner in had {
            let is_dead = dead(owner);
            let stats = &mut self.objects[owner as usize];
            let mut known = SharedPage::default();
            if stats.shared_pages > 0
                && let Some(page) = self.shared_pages.remove(&(owner, key))
            {
                stats.shared_pages -= 1;
                known = page;
            }
            if had.len() == 1 {
                known.count = known.count.saturating_add(count);
                known.flags |= flags;
            }
            if is_dead {
                let closed = close(stats, known, false);
                self.sites.closed(owner, key, closed);
            } else if known.count > 0 || known.flags > 0 {
                stats.shared_pages += 1;
                self.shared_pages.insert((owner, key), known);
            }
        }
        if let [only] = *now {
            let stats = &mut self.objects[only as usize];
            if stats.shared_pages > 0
                && let Some(known) = self.shared_pages.remove(&(only, key))
            {
                stats.shared_pages -= 1;
                let pages = &mut self.chunks.all[position].pages;
                pages.replace_count(page, known.count);
                pages.put_flags(page, known.flags);
            }
        }
    }

    /// What is known of pages without an object.
    pub(crate) fn nobody(&self) -> &Stats {
        &self.objects[self.places.len()]
    }
}

/// Owners of a page that are looked through one by one.
const FEW_OWNERS: usize = 16;

/// What [`Fold::each_chunk`] lends.
struct Parts<'b> {
    possibly: &'b mut PageSet,
    objects: &'b mut [Stats],
    sites: &'b mut Sites,
    users: &'b mut Users,
    chunk: &'b mut Chunk,
    position: usize,
}

/// Whether memory of the recorder lies there: then the page is the recorder's.
fn is_own(objects: &[Stats], owners: &[u32]) -> bool {
    owners.iter().any(|&o| objects[o as usize].own)
}

/// The objects that a page counts for; of the recorder's pages, its own only. The recorder's memory has pages to itself,
/// so that others on them are the exception.
fn counted<'b>(objects: &[Stats], owners: &'b [u32], own: bool) -> &'b [u32] {
    match own {
        false => owners,
        true => {
            let at = owners.iter().position(|&o| objects[o as usize].own);
            at.map_or(&[], |at| &owners[at..=at])
        }
    }
}

fn key(chunk: usize, page: usize) -> u64 {
    chunk as u64 * CHUNK_PAGES + page as u64
}

pub(crate) fn index(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

pub(crate) fn ones(bits: &Bits) -> u64 {
    bits.iter().map(|w| u64::from(w.count_ones())).sum()
}
