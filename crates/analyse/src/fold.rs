//! The fold over touches and faults: one interval after the other, in memory that depends on the pages touched and on
//! the objects, not on the length of the trace.

use std::collections::HashMap;

use varve_attribute::{Owners, Span};
use varve_model::{Address, Page, PageRange, Pages, Pid, Time};
use varve_trace::tables::FaultRow;

use crate::analysis::Reuse;
use crate::chunks::{Bits, CHUNK_PAGES, Cell, Chunk, Chunks, MOST_PAGES, MOST_PENDING, has, set};
use crate::stats::{
    Aside, FAULTED, Marks, NEVER, Seen, Stats, ThreadStats, close, flags, put_flags, take_flags,
};
use crate::sweep::{Moment, Run};

/// The part of a run that lies in one chunk.
#[derive(Clone, Copy, Debug)]
struct Piece {
    position: u32,
    first: u16,
    end: u16,
}

/// Pieces that are worked on together.
const PIECES: usize = 512;

/// Where a page fault was, objects by position.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Faulted {
    /// The object that holds the address at that moment.
    pub(crate) within: Option<u32>,
    /// The object whose page it touched first, if it did and one lies there.
    pub(crate) first: Option<u32>,
}

/// The state of the fold.
pub(crate) struct Fold<'a> {
    spans: &'a [Span],
    owners: Owners<'a>,
    by_birth: Vec<u32>,
    born: usize,
    by_death: Vec<u32>,
    died: usize,
    from: Time,
    interval: u32,
    in_tail: bool,
    end: Time,
    chunks: Chunks,
    /// One for each span, and one for pages without an object.
    pub(crate) objects: Vec<Stats>,
    /// Likewise.
    pub(crate) seen: Vec<Seen>,
    /// Page counts of objects that do not have the page to themselves, by object and by chunk and page.
    aside: HashMap<(u32, u64), Aside>,
    pub(crate) threads: Vec<ThreadStats>,
    thread_index: HashMap<(u32, u32), u32>,
    /// Pages first touched, by object and thread.
    pub(crate) by_thread: HashMap<(u32, u32), u64>,
    /// Page touches of pages that several objects lay on, once for each page.
    pub(crate) shared_touches: u64,
    /// Runs that were not entered because the trace cannot be right.
    pub(crate) refused: u64,
    scratch: (Vec<Cell>, Vec<u32>),
    pieces: Vec<Piece>,
}

impl<'a> Fold<'a> {
    /// `own` tells which spans are the recorder's own memory; `end` is the end of the recording.
    pub(crate) fn new(spans: &'a [Span], own: impl Fn(usize) -> bool, end: Time) -> Fold<'a> {
        let mut by_birth: Vec<u32> = (0..index(spans.len())).collect();
        let mut by_death = by_birth.clone();
        by_birth.sort_by_key(|&i| spans[i as usize].born);
        by_death.sort_by_key(|&i| spans[i as usize].died);
        let mut objects: Vec<Stats> = (0..spans.len()).map(|i| Stats::new(own(i))).collect();
        objects.push(Stats::new(false));
        Fold {
            spans,
            owners: Owners::new(spans),
            by_birth,
            born: 0,
            by_death,
            died: 0,
            from: Time(0),
            interval: 0,
            in_tail: false,
            end,
            chunks: Chunks::default(),
            seen: vec![Seen::NOT; objects.len()],
            objects,
            aside: HashMap::new(),
            threads: Vec::new(),
            thread_index: HashMap::new(),
            by_thread: HashMap::new(),
            shared_touches: 0,
            refused: 0,
            scratch: (Vec::new(), Vec::new()),
            pieces: Vec::with_capacity(PIECES),
        }
    }

    /// Goes on to an interval, from the end of the one before it to its own end.
    pub(crate) fn begin(&mut self, now: Moment, in_tail: bool) {
        self.interval = index(now.position);
        if in_tail && !self.in_tail {
            // What is settled from here on was touched in the tail.
            for position in 0..self.chunks.all.len() {
                self.settle(position);
            }
        }
        self.in_tail = in_tail;
        self.from = self.from.max(now.from);
        let to = now.to.max(Time(self.from.0.saturating_add(1)));
        self.owners.advance(self.from, to);
        let (spans, chunks) = (self.spans, &mut self.chunks);
        let mut changed = |span: &Span| {
            if let Some(last) = span.bytes.0.checked_sub(1) {
                let (first, last) = (span.address, Address(span.address.0.saturating_add(last)));
                let number = |a: Address| a.page().0 / CHUNK_PAGES;
                chunks.make_stale(span.pid.0, number(first), number(last));
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
    }

    /// Enters runs of the interval that do not overlap. Returns how many of their pages are the program's.
    ///
    /// The touches of an interval lie all over memory. So each step is done for many of them before the next step, which
    /// lets the processor wait for many cache lines at once.
    pub(crate) fn touch(&mut self, runs: &[Run]) -> u64 {
        let mut pages = 0;
        for run in runs {
            let end = run.end.0.min(MOST_PAGES);
            let mut at = run.first.0;
            self.refused += u64::from(at >= end);
            while at < end {
                let number = at / CHUNK_PAGES;
                let stop = end.min((number + 1) * CHUNK_PAGES);
                let Some(position) = self.enter(run.pid.0, number) else {
                    break;
                };
                let base = number * CHUNK_PAGES;
                self.pieces.push(Piece {
                    position: index(position),
                    // At most 512.
                    first: (at - base) as u16,
                    end: (stop - base) as u16,
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
            if self.chunks.all[position].pending == MOST_PENDING {
                self.settle(position);
            }
            let chunk = &mut self.chunks.all[position];
            chunk.pending += 1;
            if piece.first == 0 && u64::from(piece.end) == CHUNK_PAGES {
                chunk.full += 1;
            } else {
                let differences = self.chunks.differences.of(position);
                differences[usize::from(piece.first)] += 1;
                if let Some(behind) = differences.get_mut(usize::from(piece.end)) {
                    *behind -= 1;
                }
            }
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
                if chunk.has_own {
                    own += u64::from(piece.end - piece.first);
                }
                continue;
            }
            let (first, end) = (usize::from(piece.first), usize::from(piece.end));
            for (from, to, owners) in chunk.overlap(first, end) {
                for &owner in owners {
                    self.seen[owner as usize].mark(self.interval);
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

    /// Enters what more is known of a run of the interval.
    pub(crate) fn mark(&mut self, run: Run, marks: Marks) {
        self.each_chunk(run, |objects, chunk, first, end| {
            if marks.written {
                set(&mut chunk.dense.written, first, end);
            }
            if marks.huge || marks.standing {
                for (from, to, owners) in chunk.overlap(first, end) {
                    let pages = (to - from) as u64;
                    for &owner in owners {
                        let stats = &mut objects[owner as usize];
                        stats.huge += pages * u64::from(marks.huge);
                        stats.standing += pages * u64::from(marks.standing);
                    }
                }
            }
        });
    }

    /// Enters a page fault of the interval.
    pub(crate) fn fault(&mut self, fault: &FaultRow) -> Faulted {
        let (pid, tid) = (fault.pid.0, fault.tid.0);
        let (address, time) = (fault.address, fault.time_ns);
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
        let page = address.page();
        let run = Run {
            pid: fault.pid,
            first: page,
            end: Page(page.0 + 1),
        };
        let spans = self.spans;
        let (mut found, mut within) = (None, None);
        self.each_chunk(run, |objects, chunk, first, _| {
            let owners = chunk
                .overlap(first, first + 1)
                .next()
                .map_or(&[][..], |c| c.2);
            // Of several, the one that was there at that moment.
            let here = |&&o: &&u32| {
                spans.get(o as usize).is_some_and(|s| {
                    s.born <= time
                        && time < s.died
                        && s.address <= address
                        && address < s.address + s.bytes
                })
            };
            within = owners.iter().find(here).copied();
            let Some(owner) = within.or(owners.first().copied()) else {
                return;
            };
            let fresh = !has(&chunk.dense.faulted, first);
            set(&mut chunk.dense.faulted, first, first + 1);
            let stats = &mut objects[owner as usize];
            if fresh && !stats.own {
                stats.first_touches += 1;
                if stats.first_thread == NEVER {
                    stats.first_thread = thread;
                }
                found = Some(owner);
            }
        });
        self.threads[thread as usize].faults += 1;
        if let Some(owner) = found {
            self.threads[thread as usize].first_touches += 1;
            *self.by_thread.entry((owner, thread)).or_default() += 1;
        }
        let known = |owner: &u32| (*owner as usize) < self.spans.len();
        Faulted {
            within: within.filter(known),
            first: found.filter(known),
        }
    }

    /// Calls `each` with the chunks of a run, up to date, and the pages within.
    #[inline]
    fn each_chunk(
        &mut self,
        run: Run,
        mut each: impl FnMut(&mut [Stats], &mut Chunk, usize, usize),
    ) {
        let end = run.end.0.min(MOST_PAGES);
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
            let chunk = &mut self.chunks.all[position];
            let base = number * CHUNK_PAGES;
            each(
                &mut self.objects,
                chunk,
                (at - base) as usize,
                (stop - base) as usize,
            );
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
        self.settle(position);
        let chunk = &mut self.chunks.all[position];
        let nobody = index(self.spans.len());
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
                [only] => (1, only.object.0),
                several => {
                    // A page has 4096 bytes, and few of them more than one owner in an interval.
                    let several = &several[..several.len().min(usize::from(u16::MAX))];
                    let from = index(owners.len());
                    owners.extend(several.iter().map(|s| s.object.0));
                    (several.len() as u16, from)
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

    /// Gives the touches since the last settlement to the objects.
    fn settle(&mut self, position: usize) {
        let chunk = &mut self.chunks.all[position];
        if chunk.pending == 0 {
            return;
        }
        chunk.pending = 0;
        let mut running = u32::from(std::mem::take(&mut chunk.full));
        let differences = self.chunks.differences.of(position);
        let mut first = 0;
        for i in 0..chunk.cells.len() {
            let cell = chunk.cells[i];
            let owners = cell.owners(&chunk.owners);
            let end = usize::from(cell.end);
            let dense = &mut *chunk.dense;
            let own = owners.iter().any(|&o| self.objects[o as usize].own);
            let mut sum = 0;
            for (page, &difference) in differences.iter().enumerate().take(end).skip(first) {
                running = running.wrapping_add_signed(difference.into());
                if running == 0 {
                    continue;
                }
                sum += u64::from(running);
                if !own {
                    dense.total[page] =
                        (u32::from(dense.total[page]).saturating_add(running)).min(3) as u8;
                }
                if self.in_tail {
                    set(&mut dense.tail, page, page + 1);
                }
                if owners.len() == 1 {
                    dense.counts[page] = dense.counts[page].saturating_add(running);
                    continue;
                }
                set(&mut dense.shared, page, page + 1);
                let flags = take_flags(dense, page) & !FAULTED;
                for &owner in owners {
                    let key = (owner, key(position, page));
                    let stats = &mut self.objects[owner as usize];
                    let entry = self.aside.entry(key).or_insert_with(|| {
                        stats.aside += 1;
                        Aside::default()
                    });
                    entry.count = entry.count.saturating_add(running);
                    entry.flags |= flags;
                }
            }
            if owners.len() > 1 {
                self.shared_touches += sum;
            }
            for &owner in owners {
                let stats = &mut self.objects[owner as usize];
                stats.touches += sum;
                if owners.len() > 1 {
                    stats.shared += sum;
                }
            }
            first = end;
        }
        differences.fill(0);
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
                for page in page..end {
                    self.hand_over_page(position, page, had, &now);
                }
            }
            page = end;
            old += usize::from(usize::from(before.end) <= end);
            new += usize::from(usize::from(after.end) <= end);
        }
    }

    fn hand_over_page(&mut self, position: usize, page: usize, had: &[u32], now: &[u32]) {
        let key = key(position, page);
        let dense = &mut *self.chunks.all[position].dense;
        let flags = take_flags(dense, page);
        let count = std::mem::take(&mut dense.counts[page]);
        let dead = |o: u32| {
            self.spans
                .get(o as usize)
                .is_some_and(|s| s.died <= self.from)
        };
        for &owner in had {
            let is_dead = dead(owner);
            let stats = &mut self.objects[owner as usize];
            let mut known = Aside::default();
            if stats.aside > 0
                && let Some(aside) = self.aside.remove(&(owner, key))
            {
                stats.aside -= 1;
                known = aside;
            }
            if had.len() == 1 {
                known.count = known.count.saturating_add(count);
                known.flags |= flags;
            }
            if is_dead {
                close(stats, known, false);
            } else if known.count > 0 || known.flags > 0 {
                stats.aside += 1;
                self.aside.insert((owner, key), known);
            }
        }
        if let [only] = *now {
            let stats = &mut self.objects[only as usize];
            if stats.aside > 0
                && let Some(known) = self.aside.remove(&(only, key))
            {
                stats.aside -= 1;
                let dense = &mut *self.chunks.all[position].dense;
                dense.counts[page] = known.count;
                put_flags(dense, page, known.flags);
            }
        }
    }

    /// Gives everything to the objects. Returns, for each process, its pages by the number of intervals that touched
    /// them, and how many pages several objects lay on.
    pub(crate) fn finish(&mut self) -> (HashMap<u32, Reuse>, u64) {
        let mut processes: HashMap<u32, Reuse> = HashMap::new();
        let mut shared = 0;
        for position in 0..self.chunks.all.len() {
            self.settle(position);
            let chunk = &self.chunks.all[position];
            let reuse = processes.entry(chunk.pid).or_default();
            let mut counted = [0_u64; 4];
            for &total in &chunk.dense.total {
                counted[usize::from(total & 3)] += 1;
            }
            reuse.once.0 += counted[1];
            reuse.twice.0 += counted[2];
            reuse.more.0 += counted[3];
            shared += ones(&chunk.dense.shared);
            let mut first = 0;
            for cell in &chunk.cells {
                let end = usize::from(cell.end);
                if let [owner] = *cell.owners(&chunk.owners) {
                    let stats = &mut self.objects[owner as usize];
                    let lives = alive_at(self.spans, owner, self.end);
                    for page in first..end {
                        let mut known = Aside {
                            count: chunk.dense.counts[page],
                            flags: flags(&chunk.dense, page),
                        };
                        if stats.aside > 0
                            && let Some(more) = self.aside.remove(&(owner, key(position, page)))
                        {
                            stats.aside -= 1;
                            known.count = known.count.saturating_add(more.count);
                            known.flags |= more.flags;
                        }
                        close(stats, known, lives);
                    }
                }
                first = end;
            }
        }
        for ((owner, _), known) in self.aside.drain() {
            let lives = alive_at(self.spans, owner, self.end);
            close(&mut self.objects[owner as usize], known, lives);
        }
        (processes, shared)
    }

    /// What is known of pages without an object.
    pub(crate) fn nobody(&self) -> &Stats {
        &self.objects[self.spans.len()]
    }
}

fn alive_at(spans: &[Span], owner: u32, end: Time) -> bool {
    spans.get(owner as usize).is_none_or(|s| s.died >= end)
}

fn key(chunk: usize, page: usize) -> u64 {
    chunk as u64 * CHUNK_PAGES + page as u64
}

fn index(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn ones(bits: &Bits) -> u64 {
    bits.iter().map(|w| u64::from(w.count_ones())).sum()
}
