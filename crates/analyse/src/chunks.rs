//! Where the touched pages of all processes stand in memory: 2 MiB chunks.

use varve_attribute::ChunkIndex;
use varve_model::Pid;

/// Pages of a chunk, as many as one page table holds.
pub(crate) const CHUNK_PAGES: u64 = 512;
const PAGES: usize = CHUNK_PAGES as usize;
const WORDS: usize = PAGES / 64;
/// Pages beyond this cannot exist: addresses have 64 bits.
pub(crate) const MOST_PAGES: u64 = 1 << 52;
/// More chunks than this, 2 TiB of touched memory, only a damaged trace has; what is beyond is not entered.
const MOST_CHUNKS: usize = 1 << 20;
/// A set of the pages of a chunk.
pub(crate) type Bits = [u64; WORDS];

/// Pages of a chunk, up to `end`, that the same objects lie on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cell {
    /// One past the last page.
    pub(crate) end: u16,
    /// How many objects; at least one.
    pub(crate) count: u16,
    /// The only object, or where several begin in [`Chunk::owners`].
    pub(crate) owner: u32,
}

impl Cell {
    pub(crate) fn owners<'a>(&'a self, of_several: &'a [u32]) -> &'a [u32] {
        match self.count {
            1 => std::slice::from_ref(&self.owner),
            count => &of_several[self.owner as usize..][..usize::from(count)],
        }
    }
}

/// Two megabytes of a process that were touched.
///
/// Touches are added as [`Differences`], so that a run costs the same however long it is. They are summed up and given
/// to the objects when these change, and at the end.
pub(crate) struct Chunk {
    pub(crate) pid: u32,
    pub(crate) number: u64,
    /// Objects were born or died here since `cells` were made.
    pub(crate) stale: bool,
    /// Touches that were not given to the objects; at most [`MOST_PENDING`].
    pub(crate) pending: u16,
    /// Memory of the recorder lies here.
    pub(crate) has_own: bool,
    /// How many of them were of all pages.
    pub(crate) full: u16,
    pub(crate) cells: Vec<Cell>,
    /// The objects of cells with several.
    pub(crate) owners: Vec<u32>,
    pub(crate) dense: Box<Dense>,
}

/// What is kept for each page besides the differences, 5.5 bytes in all.
pub(crate) struct Dense {
    /// Touches of the page by its only owner.
    pub(crate) counts: [u32; PAGES],
    /// Intervals that touched the page, whosever it was, up to 3.
    pub(crate) total: [u8; PAGES],
    /// Pages written, of their only owner.
    pub(crate) written: Bits,
    /// Pages that had a page fault, of their only owner.
    pub(crate) faulted: Bits,
    /// Pages touched in the tail of the recording, of their only owner.
    pub(crate) tail: Bits,
    /// Pages touched while several objects lay on them.
    pub(crate) shared: Bits,
}

impl Chunk {
    fn new(pid: u32, number: u64) -> Chunk {
        Chunk {
            pid,
            number,
            stale: true,
            pending: 0,
            has_own: false,
            full: 0,
            cells: Vec::new(),
            owners: Vec::new(),
            dense: Box::new(Dense {
                counts: [0; PAGES],
                total: [0; PAGES],
                written: [0; WORDS],
                faulted: [0; WORDS],
                tail: [0; WORDS],
                shared: [0; WORDS],
            }),
        }
    }

    /// The cells that overlap pages `first..end`, with the part of each that does.
    pub(crate) fn overlap(
        &self,
        first: usize,
        end: usize,
    ) -> impl Iterator<Item = (usize, usize, &[u32])> {
        let before = |c: &&Cell| usize::from(c.end) <= first;
        let start = match self.cells.len() {
            ..16 => self.cells.iter().take_while(before).count(),
            _ => self.cells.partition_point(|c| before(&c)),
        };
        let mut at = first;
        self.cells[start..]
            .iter()
            .take_while(move |_| at < end)
            .map(move |cell| {
                let piece = (at, end.min(usize::from(cell.end)));
                at = piece.1;
                (piece.0, piece.1, cell.owners(&self.owners))
            })
            .take_while(move |piece| piece.0 < end)
    }
}

/// Touches of the pages of all chunks since these were settled, by the position of the chunk: +1 where a run begins, -1
/// behind its end. Apart from the rest, and small, because each touch goes to another place of it.
#[derive(Default)]
pub(crate) struct Differences {
    blocks: Vec<Box<[[i16; PAGES]]>>,
}

/// Chunks of a block of differences: 1 MiB.
const BLOCK: usize = 1024;
/// A chunk is settled before it has more touches: differences have 16 bits.
pub(crate) const MOST_PENDING: u16 = i16::MAX as u16;

impl Differences {
    #[inline]
    pub(crate) fn of(&mut self, position: usize) -> &mut [i16; PAGES] {
        &mut self.blocks[position / BLOCK][position % BLOCK]
    }

    fn grow(&mut self, chunks: usize) {
        if self.blocks.len() * BLOCK < chunks {
            self.blocks.push(vec![[0; PAGES]; BLOCK].into());
        }
    }
}

/// Sets bits `first..end`.
pub(crate) fn set(bits: &mut Bits, first: usize, end: usize) {
    let mut at = first;
    while at < end {
        let bit = at % 64;
        let take = (64 - bit).min(end - at);
        bits[at / 64] |= (u64::MAX >> (64 - take)) << bit;
        at += take;
    }
}

/// Whether a bit is set.
pub(crate) fn has(bits: &Bits, at: usize) -> bool {
    bits[at / 64] >> (at % 64) & 1 == 1
}

/// Clears a bit.
pub(crate) fn clear(bits: &mut Bits, at: usize) {
    bits[at / 64] &= !(1 << (at % 64));
}

/// All chunks, by process and number.
#[derive(Default)]
pub(crate) struct Chunks {
    pub(crate) all: Vec<Chunk>,
    pub(crate) differences: Differences,
    index: ChunkIndex,
}

impl Chunks {
    /// The position of a chunk, which is made if it is not there; None where there are too many.
    #[inline]
    pub(crate) fn enter(&mut self, pid: u32, number: u64) -> Option<usize> {
        let found = self.index.get(Pid(pid), number);
        if found.is_some() || self.all.len() >= MOST_CHUNKS {
            return found;
        }
        self.index.set(Pid(pid), number, self.all.len());
        self.all.push(Chunk::new(pid, number));
        self.differences.grow(self.all.len());
        Some(self.all.len() - 1)
    }

    /// Marks the chunks of a process from `first` to `last` as changed.
    pub(crate) fn make_stale(&mut self, pid: u32, first: u64, last: u64) {
        let all = &mut self.all;
        if (last - first) / CHUNK_PAGES > self.index.regions() as u64 {
            // More of the address space than there are tables: look at what is there.
            for chunk in all {
                chunk.stale |= chunk.pid == pid && (first..=last).contains(&chunk.number);
            }
            return;
        }
        self.index
            .each(Pid(pid), first, last, |position| all[position].stale = true);
    }
}
