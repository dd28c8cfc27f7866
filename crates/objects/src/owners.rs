//! Which object owns a page at a time.
//!
//! Objects lie in layers: a heap object inside `[heap]`, a variable inside its segment. The innermost one owns what it
//! covers; a page that several objects lie on is shared, and each gets the bytes that are its own.
//!
//! Questions come in the order of time, as a trace is read. So time is swept: objects are entered as they are born, into
//! the 2 MiB chunks of address space that they overlap, and each chunk is flattened into runs of pages with one answer
//! when it is first asked about, then again only after a birth or a death in it. Objects larger than 128 MiB are few and
//! stand in a list of their own. Memory: about 50 bytes per object, and what the chunks in use need.

use std::collections::HashMap;

use varve_model::{Bytes, PAGE_BYTES, Page, PageRange, Pages, Pid, Time};

use crate::layer::Layer;
use crate::radix::ChunkIndex;
use crate::span::{CHUNK_PAGES, Share, Span, SpanIndex, bounds};

/// Objects over more chunks than this are kept in the list of large ones.
const LARGE_CHUNKS: u64 = 64;
/// Pages that the objects of more than two pages may take up in a chunk together, in one window: 8 times the chunk. Those
/// that live on count first, then what the program reported, then the newest; the rest goes without. Objects of a layer do
/// not overlap at one moment, so that only a program that makes and ends many in one place has as much, or a mapping that
/// every refresh within a long window finds at another size; one that lies must not make a report slow.
const MAX_WIDE_PAGES: u64 = 8 * CHUNK_PAGES;
/// Objects over several chunks, of a process, that are born and ended in one window: the newest.
const MAX_PASSING: usize = 1024;
/// Large objects of a process that are kept at most, the newest.
const MAX_LARGE: usize = 4096;

#[derive(Default)]
struct Chunk {
    members: Vec<u32>,
    /// Members after the last look for dead ones.
    kept: usize,
    cells: Vec<Cell>,
    shares: Vec<Share>,
    /// The flattened cells hold until the first of their objects dies.
    expires: Time,
    /// How often it was flattened.
    version: u32,
    /// The process, by its position.
    space: usize,
    /// The state of the list of large objects that they were made with.
    large: usize,
    flat: bool,
}

/// A run of pages, up to the next cell's, with one answer.
struct Cell {
    first: u16,
    shares: u16,
    start: u32,
}

/// The large objects of a process.
#[derive(Default)]
struct Space {
    large: Vec<u32>,
    /// Large objects after the last look for dead ones.
    kept: usize,
    /// Counts additions to `large`.
    version: usize,
}

/// Answers who owns which page, for windows of time in ascending order.
pub struct Owners<'a> {
    spans: &'a [Span],
    by_birth: Vec<u32>,
    born: usize,
    from: Time,
    to: Time,
    chunks: Vec<Chunk>,
    index: ChunkIndex,
    spaces: Vec<Space>,
    by_pid: HashMap<Pid, usize>,
    scratch: Scratch,
}

impl<'a> Owners<'a> {
    /// Prepares the sweep. At most 2^32 spans; what is beyond is not seen.
    pub fn new(spans: &'a [Span]) -> Self {
        let count = u32::try_from(spans.len()).unwrap_or(u32::MAX);
        let mut by_birth: Vec<u32> = (0..count)
            .filter(|&index| spans[index as usize].bytes.0 > 0)
            .collect();
        by_birth.sort_by_key(|&index| spans[index as usize].born);
        Self {
            spans,
            by_birth,
            born: 0,
            from: Time(0),
            to: Time(0),
            chunks: Vec::new(),
            index: ChunkIndex::default(),
            spaces: Vec::new(),
            by_pid: HashMap::new(),
            scratch: Scratch::default(),
        }
    }

    /// Moves on to the window `from..to`. Both must ascend from call to call; earlier moments count as the last ones.
    pub fn advance(&mut self, from: Time, to: Time) {
        self.from = self.from.max(from);
        self.to = self.to.max(to).max(Time(self.from.0.saturating_add(1)));
        let window = self.by_birth[self.born..]
            .partition_point(|&index| self.spans[index as usize].born < self.to);
        let until = self.born + window;
        let surplus = self.surplus(until);
        for (at, here) in (self.born..until).enumerate() {
            let index = self.by_birth[here];
            let span = &self.spans[index as usize];
            if span.died <= self.from || surplus.get(at) == Some(&true) {
                continue;
            }
            let (first, last) = span.chunks();
            if last - first >= LARGE_CHUNKS {
                self.enter_large(index);
                continue;
            }
            for number in first..=last {
                let position = self.chunk(span.pid, number);
                let chunk = &mut self.chunks[position];
                if chunk.members.len() > 2 * chunk.kept + 64 {
                    let (spans, from) = (self.spans, self.from);
                    chunk
                        .members
                        .retain(|&index| spans[index as usize].died > from);
                    keep_newest(&mut chunk.members, spans, self.to, number, |i| *i);
                    chunk.kept = chunk.members.len();
                }
                chunk.members.push(index);
                chunk.flat = false;
            }
        }
        self.born = until;
    }

    /// Which of the objects born up to a position are not entered, as too many of their process lie over several chunks
    /// and are gone again at the end of the window.
    fn surplus(&self, until: usize) -> Vec<bool> {
        let born = &self.by_birth[self.born..until];
        let passes = |index: u32| {
            let span = &self.spans[index as usize];
            let (first, last) = span.chunks();
            last > first && span.died <= self.to
        };
        if born.len() <= MAX_PASSING || born.iter().filter(|i| passes(**i)).count() <= MAX_PASSING {
            return Vec::new();
        }
        let mut surplus = vec![false; born.len()];
        let mut known: HashMap<Pid, usize> = HashMap::new();
        for (&index, surplus) in born.iter().zip(&mut surplus).rev() {
            if passes(index) {
                let known = known.entry(self.spans[index as usize].pid).or_default();
                *known += 1;
                *surplus = *known > MAX_PASSING;
            }
        }
        surplus
    }

    fn enter_large(&mut self, index: u32) {
        let (spans, from) = (self.spans, self.from);
        let space = self.space(spans[index as usize].pid);
        let space = &mut self.spaces[space];
        if space.large.len() > 2 * space.kept + 64 {
            space
                .large
                .retain(|&index| spans[index as usize].died > from);
            // They are in the order of their births.
            let surplus = space.large.len().saturating_sub(MAX_LARGE);
            space.large.drain(..surplus);
            space.kept = space.large.len();
        }
        space.large.push(index);
        space.version += 1;
    }

    fn space(&mut self, pid: Pid) -> usize {
        let next = self.spaces.len();
        let space = *self.by_pid.entry(pid).or_insert(next);
        if space == next {
            self.spaces.push(Space::default());
        }
        space
    }

    /// The position of a chunk, which is made if it is not there.
    fn chunk(&mut self, pid: Pid, number: u64) -> usize {
        if let Some(position) = self.index.get(pid, number) {
            return position;
        }
        let space = self.space(pid);
        self.chunks.push(Chunk {
            space,
            ..Chunk::default()
        });
        self.index.set(pid, number, self.chunks.len() - 1);
        self.chunks.len() - 1
    }

    /// The position of a chunk that objects may lie in. Whatever pages are asked for, no other chunk is made.
    #[inline]
    fn inhabited(&mut self, pid: Pid, number: u64) -> Option<usize> {
        let found = self.index.get(pid, number);
        if found.is_none() {
            let space = &self.spaces[*self.by_pid.get(&pid)?];
            let (base, top) = bounds(number);
            let spans = self.spans;
            let overlaps = |&index: &u32| {
                let span = &spans[index as usize];
                span.address.0 < top && base < span.end()
            };
            if space.large.iter().any(overlaps) {
                return Some(self.chunk(pid, number));
            }
        }
        found
    }

    /// A chunk of 2 MiB in the window: a position that is its own for good, and a number that is another one whenever its
    /// owners may have changed. None where no object is known. `number` is its address in units of 2 MiB.
    #[inline]
    pub fn chunk_at(&mut self, pid: Pid, number: u64) -> Option<(usize, u32)> {
        let position = self.inhabited(pid, number)?;
        let chunk = &mut self.chunks[position];
        let space = &self.spaces[chunk.space];
        if !chunk.flat || chunk.expires <= self.from || chunk.large != space.version {
            let window = (self.from, self.to);
            flatten(chunk, space, number, self.spans, window, &mut self.scratch);
        }
        Some((position, chunk.version))
    }

    /// Calls `visit` for the pages of a chunk that [`Owners::chunk_at`] found: the pages up to a number, below 513, that
    /// come after those before, and whose they are.
    pub fn of_chunk(&self, position: usize, mut visit: impl FnMut(u16, &[Share])) {
        let chunk = &self.chunks[position];
        let ends = chunk.cells.iter().skip(1).map(|cell| cell.first);
        let ends = ends.chain([CHUNK_PAGES as u16]);
        for (cell, end) in chunk.cells.iter().zip(ends) {
            let start = cell.start as usize;
            visit(end, &chunk.shares[start..start + usize::from(cell.shares)]);
        }
    }

    /// Calls `visit` for runs of the given pages with one answer each, in ascending order: the objects alive at any
    /// moment of the window, none where no object is known. Of two that lived at the same place one after the other
    /// within the window, both are named.
    pub fn owners(
        &mut self,
        pid: Pid,
        pages: PageRange,
        mut visit: impl FnMut(PageRange, &[Share]),
    ) {
        let mut first = pages.first.0;
        let end = pages.end().0;
        // Neighbouring chunks often have the same single owner.
        let mut pending: Option<(u64, u64, Share)> = None;
        while first < end {
            let number = first / CHUNK_PAGES;
            let base = number * CHUNK_PAGES;
            let stop = end.min(base.saturating_add(CHUNK_PAGES));
            let Some((position, _)) = self.chunk_at(pid, number) else {
                if let Some((start, last, share)) = pending.take() {
                    visit(run(start, last), &[share]);
                }
                visit(run(first, stop), &[]);
                first = stop;
                continue;
            };
            let chunk = &self.chunks[position];
            let mut cell = chunk
                .cells
                .partition_point(|cell| base + u64::from(cell.first) <= first)
                .saturating_sub(1);
            while first < stop {
                let next = chunk
                    .cells
                    .get(cell + 1)
                    .map_or(stop, |next| stop.min(base + u64::from(next.first)));
                let shares = chunk.cells.get(cell).map_or(&[][..], |cell| {
                    let start = cell.start as usize;
                    &chunk.shares[start..start + usize::from(cell.shares)]
                });
                match (&mut pending, shares) {
                    (Some((_, last, share)), [only]) if last == &first && share == only => {
                        *last = next
                    }
                    (_, shares) => {
                        if let Some((start, last, share)) = pending.take() {
                            visit(run(start, last), &[share]);
                        }
                        match shares {
                            [only] => pending = Some((first, next, *only)),
                            _ => visit(run(first, next), shares),
                        }
                    }
                }
                first = next;
                cell += 1;
            }
        }
        if let Some((start, last, share)) = pending {
            visit(run(start, last), &[share]);
        }
    }
}

/// Takes those out of a list that are too many for [`MAX_WIDE_PAGES`] of a chunk.
fn keep_newest<T>(
    list: &mut Vec<T>,
    spans: &[Span],
    to: Time,
    number: u64,
    index: impl Fn(&T) -> u32,
) {
    let wide = |item: &T| {
        let index = index(item);
        let span = &spans[index as usize];
        // A mapping that grows is another one at each refresh: these must not displace an object with a birth of its own.
        let is_reported = span.layer >= Layer::SITE;
        let rank = (span.died > to, is_reported, span.born, index);
        Some((rank, span.wide_in(number)?))
    };
    let mut sum: u64 = list.iter().filter_map(wide).map(|(_, pages)| pages).sum();
    if sum <= MAX_WIDE_PAGES {
        return;
    }
    let mut ranks: Vec<_> = list.iter().filter_map(wide).collect();
    ranks.sort_unstable();
    let least = ranks.iter().find(|(_, pages)| {
        let is_kept = sum <= MAX_WIDE_PAGES;
        sum = sum.saturating_sub(*pages);
        is_kept
    });
    let least = least.map(|(rank, _)| *rank);
    list.retain(|item| wide(item).is_none_or(|(rank, _)| least.is_some_and(|l| rank >= l)));
}

fn run(first: u64, end: u64) -> PageRange {
    PageRange {
        first: Page(first),
        count: Pages(end - first),
    }
}

/// Buffers of [`flatten`], kept from one chunk to the next.
#[derive(Default)]
struct Scratch {
    candidates: Vec<(u8, u64, u64, u32)>,
    free: Vec<(u64, u64)>,
    rest: Vec<(u64, u64)>,
    entries: Vec<(u16, u32, u32)>,
}

/// Works out the cells of a chunk for a window of time.
fn flatten(
    chunk: &mut Chunk,
    space: &Space,
    number: u64,
    spans: &[Span],
    (from, to): (Time, Time),
    scratch: &mut Scratch,
) {
    let (base, top) = bounds(number);
    chunk
        .members
        .retain(|&index| spans[index as usize].died > from);
    chunk.kept = chunk.members.len();
    chunk.expires = Span::FOREVER;
    scratch.candidates.clear();
    for &index in chunk.members.iter().chain(&space.large) {
        let span = &spans[index as usize];
        let (start, end) = (span.address.0.max(base), span.end().min(top));
        if start < end && span.died > from && span.born < to {
            scratch
                .candidates
                .push((span.layer.rank(), start, end, index));
            chunk.expires = chunk.expires.min(span.died);
        }
    }
    keep_newest(&mut scratch.candidates, spans, to, number, |c| c.3);
    // From the innermost layer outwards, each layer takes what is still free.
    scratch
        .candidates
        .sort_unstable_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)).then(a.3.cmp(&b.3)));
    scratch.free.clear();
    scratch.free.push((base, top));
    scratch.entries.clear();
    for layer in scratch.candidates.chunk_by(|a, b| a.0 == b.0) {
        let mut cursor = 0;
        for &(_, start, end, index) in layer {
            // Starts ascend within a layer, so free ranges before this start are done with.
            while scratch
                .free
                .get(cursor)
                .is_some_and(|&(_, free_end)| free_end <= start)
            {
                cursor += 1;
            }
            for &(free_start, free_end) in scratch.free[cursor..]
                .iter()
                .take_while(|free| free.0 < end)
            {
                claim(
                    &mut scratch.entries,
                    base,
                    start.max(free_start),
                    end.min(free_end),
                    index,
                );
            }
        }
        scratch.rest.clear();
        subtract(&scratch.free, layer, &mut scratch.rest);
        std::mem::swap(&mut scratch.free, &mut scratch.rest);
        if scratch.free.is_empty() {
            break;
        }
    }
    scratch.entries.sort_unstable();
    chunk.cells.clear();
    chunk.shares.clear();
    let mut previous: Option<(usize, usize)> = None;
    let mut next_page = 0u16;
    for page in scratch.entries.chunk_by(|a, b| a.0 == b.0) {
        let number = page[0].0;
        if number > next_page {
            push_cell(chunk, next_page, 0, 0);
            previous = None;
        }
        next_page = number + 1;
        let start = chunk.shares.len();
        for piece in page.chunk_by(|a, b| a.1 == b.1) {
            let bytes = piece.iter().map(|(_, _, bytes)| u64::from(*bytes)).sum();
            chunk.shares.push(Share {
                object: SpanIndex(piece[0].1),
                bytes: Bytes(bytes),
            });
        }
        // The largest part comes first; it stands for the page where one object must.
        chunk.shares[start..].sort_by_key(|share| (std::cmp::Reverse(share.bytes), share.object));
        if let Some((old, end)) = previous
            && chunk.shares[old..end] == chunk.shares[start..]
        {
            chunk.shares.truncate(start);
            continue;
        }
        previous = Some((start, chunk.shares.len()));
        push_cell(chunk, number, start, chunk.shares.len() - start);
    }
    if u64::from(next_page) < CHUNK_PAGES {
        push_cell(chunk, next_page, 0, 0);
    }
    chunk.cells.shrink_to_fit();
    chunk.shares.shrink_to_fit();
    chunk.large = space.version;
    chunk.version = chunk.version.wrapping_add(1);
    chunk.flat = true;
}

fn push_cell(chunk: &mut Chunk, first: u16, start: usize, shares: usize) {
    let start = u32::try_from(start).unwrap_or(u32::MAX);
    chunk.cells.push(Cell {
        first,
        shares: u16::try_from(shares).unwrap_or(u16::MAX),
        start,
    });
}

/// Notes a claim on each page that it overlaps: page within the chunk, object, bytes.
fn claim(entries: &mut Vec<(u16, u32, u32)>, base: u64, start: u64, end: u64, index: u32) {
    let mut at = start;
    while at < end {
        let page = (at - base) / PAGE_BYTES;
        let next = end.min(base + (page + 1) * PAGE_BYTES);
        // Both fit: a chunk has 512 pages of 4096 bytes.
        entries.push((page as u16, index, (next - at) as u32));
        at = next;
    }
}

/// What of the free ranges the layer leaves; both are sorted by start.
fn subtract(free: &[(u64, u64)], layer: &[(u8, u64, u64, u32)], rest: &mut Vec<(u64, u64)>) {
    let mut taken = layer
        .iter()
        .map(|&(_, start, end, _)| (start, end))
        .peekable();
    for &(start, end) in free {
        let mut at = start;
        while let Some(&(taken_start, taken_end)) = taken.peek() {
            if taken_start >= end {
                break;
            }
            if taken_start > at {
                rest.push((at, taken_start));
            }
            at = at.max(taken_end);
            if taken_end >= end && at >= end {
                break;
            }
            taken.next();
        }
        if at < end {
            rest.push((at, end));
        }
    }
}
