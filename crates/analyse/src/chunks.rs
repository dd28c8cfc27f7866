//! Where the touched pages of all processes stand in memory: 2 MiB chunks.

use varve_model::{Bytes, Pid};
use varve_objects::ChunkIndex;

use crate::page_states::PageStates;

/// Pages of a chunk, as many as one page table holds.
pub(crate) const CHUNK_PAGES: u64 = 512;
pub(crate) const PAGES: usize = CHUNK_PAGES as usize;
pub(crate) const WORDS: usize = PAGES / 64;
/// Pages beyond this cannot exist: addresses have 64 bits.
pub(crate) const MAX_PAGES: u64 = 1 << 52;
/// Memory that a chunk takes at most of which few pages were touched, with what is kept for its objects.
const BYTES: u64 = 2 << 10;
/// And of which many were.
const DENSE_BYTES: u64 = 8 << 10;
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
    /// Touches that were not given to the objects; at most [`MAX_PENDING`].
    pub(crate) pending: u16,
    /// Memory of the recorder lies here.
    pub(crate) has_own: bool,
    /// How many of them were of all pages.
    pub(crate) full: u16,
    pub(crate) cells: Vec<Cell>,
    /// The objects of cells with several.
    pub(crate) owners: Vec<u32>,
    /// The position of its differences; [`NOT_DENSE`] where `pages` is a list.
    slot: u32,
    pub(crate) pages: PageStates,
}

/// The slot of a chunk without differences.
const NOT_DENSE: u32 = u32::MAX;

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
            slot: NOT_DENSE,
            pages: PageStates::Few(Vec::new()),
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

/// Touches of the pages of chunks of which many were touched, since the last assignment: +1 where a run begins, -1
/// behind its end. Apart from the rest, and small, because each touch goes to another place of it.
#[derive(Default)]
struct Differences {
    blocks: Vec<Box<[[i16; PAGES]]>>,
    used: usize,
    /// How many may be used.
    most: usize,
}

/// Chunks of a block of differences: 1 MiB.
const BLOCK: usize = 1024;
/// The touches of a chunk are assigned before it has more: differences have 16 bits.
pub(crate) const MAX_PENDING: u16 = i16::MAX as u16;

impl Differences {
    #[inline]
    fn of(&mut self, slot: u32) -> &mut [i16; PAGES] {
        let slot = slot as usize;
        &mut self.blocks[slot / BLOCK][slot % BLOCK]
    }

    /// A new slot; None where there are too many.
    fn new_slot(&mut self) -> Option<u32> {
        if self.used >= self.most {
            return None;
        }
        if self.blocks.len() * BLOCK <= self.used {
            self.blocks.push(vec![[0; PAGES]; BLOCK].into());
        }
        self.used += 1;
        u32::try_from(self.used - 1).ok()
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
pub(crate) struct Chunks {
    pub(crate) all: Vec<Chunk>,
    differences: Differences,
    index: ChunkIndex,
    /// How many there may be.
    most: usize,
    /// Whether there were to be more than there is room for.
    pub(crate) is_full: bool,
}

impl Chunks {
    /// None yet; `room` is the memory that they may take.
    pub(crate) fn new(room: Bytes) -> Chunks {
        let fits = |bytes: u64| usize::try_from(room.0 / 2 / bytes).unwrap_or(usize::MAX);
        Chunks {
            all: Vec::new(),
            differences: Differences {
                most: fits(DENSE_BYTES),
                ..Differences::default()
            },
            index: ChunkIndex::default(),
            most: fits(BYTES),
            is_full: false,
        }
    }

    /// Whether a run of so many pages can be entered: before anything is done for it.
    #[inline]
    pub(crate) fn has_room_for(&mut self, pages: u64) -> bool {
        self.is_full |= pages / CHUNK_PAGES > self.differences.most as u64;
        !self.is_full
    }

    /// The position of a chunk, which is made if it is not there; None where there are too many.
    #[inline]
    pub(crate) fn enter(&mut self, pid: u32, number: u64) -> Option<usize> {
        let found = self.index.get(Pid(pid), number);
        if found.is_some() {
            return found;
        }
        if self.all.len() >= self.most {
            self.is_full = true;
            return None;
        }
        self.index.set(Pid(pid), number, self.all.len());
        self.all.push(Chunk::new(pid, number));
        Some(self.all.len() - 1)
    }

    /// Makes room for what is known of pages `first..end` of a chunk; false where there is none.
    #[inline]
    pub(crate) fn make_room(&mut self, position: usize, first: usize, end: usize) -> bool {
        let chunk = &mut self.all[position];
        chunk.slot != NOT_DENSE || chunk.pages.make_room(first, end) || self.widen(position)
    }

    /// Gives arrays to a chunk that had a list.
    #[cold]
    fn widen(&mut self, position: usize) -> bool {
        let Some(slot) = self.differences.new_slot() else {
            self.is_full = true;
            return false;
        };
        let chunk = &mut self.all[position];
        chunk.slot = slot;
        let differences = self.differences.of(slot);
        chunk.pages.widen(|page, times| {
            // At most `MAX_PENDING`, as the chunk has no more touches.
            let times = times as i16;
            differences[page] += times;
            if let Some(behind) = differences.get_mut(page + 1) {
                *behind -= times;
            }
        });
        true
    }

    /// Adds a touch of pages `first..end` of a chunk that has room for them.
    #[inline]
    pub(crate) fn add(&mut self, position: usize, first: usize, end: usize) {
        let chunk = &mut self.all[position];
        chunk.pending += 1;
        if first == 0 && end == PAGES {
            chunk.full += 1;
        } else if chunk.slot != NOT_DENSE {
            let differences = self.differences.of(chunk.slot);
            differences[first] += 1;
            if let Some(behind) = differences.get_mut(end) {
                *behind -= 1;
            }
        } else {
            chunk.pages.await_touch(first, end);
        }
    }

    /// Takes the touches of a chunk that were not given to the objects: pages in their order, and how often.
    pub(crate) fn take_pending(&mut self, position: usize, touched: &mut Vec<(u16, u32)>) {
        touched.clear();
        let chunk = &mut self.all[position];
        if std::mem::take(&mut chunk.pending) == 0 {
            return;
        }
        let mut running = u32::from(std::mem::take(&mut chunk.full));
        if chunk.slot == NOT_DENSE {
            chunk
                .pages
                .take_waiting(|page, times| touched.push((page, times)));
            return;
        }
        let differences = self.differences.of(chunk.slot);
        for (page, &difference) in (0..).zip(differences.iter()) {
            running = running.wrapping_add_signed(difference.into());
            if running != 0 {
                touched.push((page, running));
            }
        }
        differences.fill(0);
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
