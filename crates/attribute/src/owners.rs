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

use varve_model::{Address, Bytes, ObjectKind, PAGE_BYTES, Page, PageRange, Pages, Pid, Time};
use varve_trace::tables::ObjectRow;

use crate::radix::ChunkIndex;

const CHUNK_PAGES: u64 = 512;
const CHUNK_BYTES: u64 = CHUNK_PAGES * PAGE_BYTES;
/// Objects over more chunks than this are kept in the list of large ones.
const LARGE_CHUNKS: u64 = 64;

/// How far inside others an object lies; a higher layer hides the lower ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Layer(u8);

impl Layer {
    /// What the kernel says of the mapping.
    pub const MAPPING: Self = Self(0);
    /// A segment of an ELF file.
    pub const SEGMENT: Self = Self(1);
    /// A mapping with a known call site.
    pub const SITE: Self = Self(2);
    /// A thread's stack, inside the mapping that the thread library made.
    pub const STACK: Self = Self(3);
    /// Pages of small heap objects.
    pub const POOL: Self = Self(4);
    /// A heap object.
    pub const HEAP: Self = Self(5);

    /// A variable that lies in `depth` others.
    pub const fn variable(depth: u8) -> Self {
        Self(Self::HEAP.0.saturating_add(1).saturating_add(depth))
    }

    /// Its number in a trace.
    pub const fn number(self) -> u32 {
        self.0 as u32
    }

    /// The layer of that number; numbers that are too high are taken for the innermost.
    pub const fn from_number(number: u32) -> Self {
        Self(if number > u8::MAX as u32 {
            u8::MAX
        } else {
            number as u8
        })
    }

    /// The layer of an object that was born in the recording.
    pub const fn of(kind: ObjectKind, pool: bool) -> Self {
        match (kind, pool) {
            (_, true) => Self::POOL,
            (ObjectKind::Heap, false) => Self::HEAP,
            (ObjectKind::Stack, false) => Self::STACK,
            (ObjectKind::Static, false) => Self::variable(0),
            (ObjectKind::Mapping | ObjectKind::File, false) => Self::SITE,
        }
    }
}

/// Where and when an object is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The process.
    pub pid: Pid,
    /// Which of several objects wins.
    pub layer: Layer,
    /// Its first byte.
    pub address: Address,
    /// Its size.
    pub bytes: Bytes,
    /// Its first moment.
    pub born: Time,
    /// The moment after its last; [`Span::FOREVER`] where it outlives the recording.
    pub died: Time,
}

impl Span {
    /// The death of what outlives the recording.
    pub const FOREVER: Time = Time(u64::MAX);

    /// Where and when an object of a trace is.
    pub fn of(row: &ObjectRow) -> Span {
        Span {
            pid: row.pid,
            layer: Layer::from_number(row.layer),
            address: row.address,
            bytes: row.bytes,
            born: row.born_ns,
            died: row.died_ns.unwrap_or(Span::FOREVER),
        }
    }

    fn end(&self) -> u64 {
        self.address.0.saturating_add(self.bytes.0)
    }
}

/// The position of a span in the slice that was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpanIndex(pub u32);

/// One object's part of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Share {
    /// The object.
    pub object: SpanIndex,
    /// How many bytes of the page are its own.
    pub bytes: Bytes,
}

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
        while let Some(&index) = self.by_birth.get(self.born) {
            let span = &self.spans[index as usize];
            if span.born >= self.to {
                break;
            }
            self.born += 1;
            if span.died <= self.from {
                continue;
            }
            let (first, last) = (span.address.0 / CHUNK_BYTES, (span.end() - 1) / CHUNK_BYTES);
            if last - first >= LARGE_CHUNKS {
                let (spans, from) = (self.spans, self.from);
                let space = self.space(span.pid);
                let space = &mut self.spaces[space];
                space
                    .large
                    .retain(|&index| spans[index as usize].died > from);
                space.large.push(index);
                space.version += 1;
                continue;
            }
            for number in first..=last {
                let position = self.chunk(span.pid, number);
                let chunk = &mut self.chunks[position];
                if chunk.members.len() > 2 * chunk.kept + 64 {
                    chunk
                        .members
                        .retain(|&index| self.spans[index as usize].died > self.from);
                    chunk.kept = chunk.members.len();
                }
                chunk.members.push(index);
                chunk.flat = false;
            }
        }
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

/// The first byte of a chunk, and the one after its last.
fn bounds(number: u64) -> (u64, u64) {
    let base = number.saturating_mul(CHUNK_BYTES);
    (base, base.saturating_add(CHUNK_BYTES))
}

fn run(first: u64, end: u64) -> PageRange {
    PageRange {
        first: Page(first),
        count: Pages(end - first),
    }
}

/// The innermost object at each of the points, of those that live at that very moment. Points may come in any order.
pub fn owners_at(spans: &[Span], points: &[(Pid, Address, Time)]) -> Vec<Option<SpanIndex>> {
    let mut order: Vec<usize> = (0..points.len()).collect();
    order.sort_by_key(|&index| points[index].2);
    let mut owners = Owners::new(spans);
    let mut found = vec![None; points.len()];
    for index in order {
        let (pid, address, time) = points[index];
        owners.advance(time, Time(time.0.saturating_add(1)));
        let page = PageRange {
            first: address.page(),
            count: Pages(1),
        };
        owners.owners(pid, page, |_, shares| {
            let holds = |share: &&Share| {
                let span = &spans[share.object.0 as usize];
                address >= span.address && address.0 < span.end()
            };
            let best = shares
                .iter()
                .filter(holds)
                .max_by_key(|share| spans[share.object.0 as usize].layer);
            found[index] = best.map(|share| share.object);
        });
    }
    found
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
            scratch.candidates.push((span.layer.0, start, end, index));
            chunk.expires = chunk.expires.min(span.died);
        }
    }
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
