//! The recorder's side. Nothing in the memory is trusted: the watched program can write to it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use super::{
    BLOCK_BYTES, BUCKETS, FIRST_EXTENT, FREE, HEADER_BYTES, IN_USE, MAX_TABLE_BITS, MEMORY_BYTES,
    OPERATIONS_NAME, ROW_BYTES, SHARDS, TIME_KINDS, block, header, heap, limit, row, squares_at,
    table_bytes,
};
use crate::memory::Memory;

/// A process has no more blocks than this: one that says so is not believed.
const MAX_BLOCKS: usize = 1 << 18;

/// Whose a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockState {
    /// A thread's.
    InUse,
    /// Nobody's.
    Free,
}

/// A thread's block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadBlock {
    /// Where it is: it stays there.
    pub at: usize,
    /// The thread, as it calls itself.
    pub tid: u32,
    /// Whose it is.
    pub state: BlockState,
    /// What it has not added to the process's sums yet: bytes asked for, usable bytes, blocks.
    pub pending: [i64; 3],
    /// The most of the first since it was added last, and the second then.
    pub most: [i64; 2],
}

/// A row, as it was at some moment: each figure only grows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RowSnapshot {
    /// See [`super::of_row_key`] and [`super::is_reallocated`].
    pub key: u64,
    /// Operations, or blocks that were reallocated.
    pub count: u64,
    /// Bytes asked for, or given back.
    pub requested: u64,
    /// Usable bytes.
    pub usable: u64,
    /// Blocks that began where none had begun before.
    pub fresh: u64,
    /// Operations while there was more than one thread.
    pub parallel: u64,
    /// Operations that were timed.
    pub timed: u64,
    /// Their ticks.
    pub ticks: u64,
    /// The sum of the squares of the ticks of each. The program can write anything there: it may be negative or no number.
    pub squares: f64,
}

/// Sums of a process, without what threads have not added yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Bytes asked for and not freed.
    pub requested: i64,
    /// Bytes of those blocks that could be used.
    pub usable: i64,
    /// Those blocks.
    pub blocks: i64,
    /// The most of the first.
    pub peak_requested: i64,
    /// The second then.
    pub peak_usable: i64,
    /// When.
    pub peak_ns: u64,
    /// Operations that were not counted.
    pub uncounted: u64,
    /// Those of the process that it was forked from, up to the fork.
    pub uncounted_before: u64,
    /// Frees of what nobody saw allocated.
    pub unknown_frees: u64,
    /// Blocks that were handed out where one lived, which nobody saw freed. That one is no part of the sums any more.
    pub unseen_frees: u64,
}

/// Reads the tables of one process.
#[derive(Debug)]
pub struct OperationsReader {
    memory: Memory,
}

impl OperationsReader {
    /// Makes the memory, with the descriptor through which a process is given it. One in `every` operations is to be timed.
    ///
    /// # Errors
    /// Where the kernel has no memory, mappings or descriptors left.
    pub fn create(every: u32) -> io::Result<(OperationsReader, OwnedFd)> {
        let (memory, file) = Memory::create(OPERATIONS_NAME, MEMORY_BYTES)?;
        let set = |at, value| memory.word(at).store(value, Ordering::Release);
        set(header::EVERY, u64::from(every.max(1)));
        set(header::NEXT, FIRST_EXTENT as u64);
        Ok((OperationsReader { memory }, file))
    }

    fn read(&self, at: usize) -> u64 {
        self.memory.word(at).load(Ordering::Acquire)
    }

    fn signed(&self, at: usize) -> i64 {
        self.read(at).cast_signed()
    }

    /// Ticks and nanoseconds at the beginning, and what reading the clock twice takes; none where the process has not begun.
    #[must_use]
    pub fn clock(&self) -> Option<(u64, u64, u64)> {
        let began = self.read(header::START_NS);
        (began != 0).then(|| {
            let ticks = self.read(header::START_TICKS);
            (ticks, began, self.read(header::CLOCK_TICKS))
        })
    }

    /// The path of the file that has the allocator.
    #[must_use]
    pub fn allocator(&self) -> String {
        let words = (0..header::ALLOCATOR_BYTES / 8).map(|i| self.read(header::ALLOCATOR + i * 8));
        let bytes = words.flat_map(u64::to_ne_bytes);
        let name: Vec<u8> = bytes.take_while(|b| *b != 0).collect();
        String::from_utf8_lossy(&name).into_owned()
    }

    /// The library's own memory beside this: addresses and bytes.
    #[must_use]
    pub fn own_memory(&self) -> Vec<(u64, u64)> {
        let pieces = self.shadows().into_iter();
        pieces.map(|(at, _)| (at, heap::PIECE_BYTES)).collect()
    }

    /// The pieces of the shadow of the heap: where each is, and the first of the [`heap::SPAN`] bytes that it says something of.
    #[must_use]
    pub fn shadows(&self) -> Vec<(u64, u64)> {
        let pieces = (0..header::SHADOWS).map(|i| {
            let at = header::SHADOW + i * 16;
            (self.read(at), self.read(at + 8))
        });
        pieces.take_while(|(address, _)| *address != 0).collect()
    }

    /// Whether a limit of the process's address space has kept operations from being counted, all or those at the end.
    #[must_use]
    pub fn is_limited(&self) -> bool {
        !matches!(self.read(header::LIMIT), 0 | limit::LOCKED)
    }

    /// Whether that the process locked its memory has ended the counting.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        self.read(header::LIMIT) == limit::LOCKED
    }

    /// Bytes of this memory that were taken.
    #[must_use]
    pub fn taken_bytes(&self) -> u64 {
        self.read(header::NEXT).min(MEMORY_BYTES as u64)
    }

    /// The sums.
    #[must_use]
    pub fn totals(&self) -> Totals {
        Totals {
            requested: self.signed(header::LIVE_REQUESTED),
            usable: self.signed(header::LIVE_USABLE),
            blocks: self.signed(header::LIVE_BLOCKS),
            peak_requested: self.signed(header::PEAK_REQUESTED),
            peak_usable: self.signed(header::PEAK_USABLE),
            peak_ns: self.read(header::PEAK_NS),
            uncounted: self.read(header::UNCOUNTED),
            uncounted_before: self.read(header::UNCOUNTED_BEFORE),
            unknown_frees: self.read(header::UNKNOWN_FREES),
            unseen_frees: self.read(header::UNSEEN_FREES),
        }
    }

    /// Where something of so many bytes may lie.
    fn checked(&self, at: u64, bytes: usize) -> Option<usize> {
        let at = usize::try_from(at).ok()?;
        let end = at.checked_add(bytes)?;
        (at >= FIRST_EXTENT && at.is_multiple_of(8) && end <= self.memory.bytes()).then_some(at)
    }

    /// All blocks.
    #[must_use]
    pub fn blocks(&self) -> Vec<ThreadBlock> {
        let mut found = Vec::new();
        let mut next = self.read(header::BLOCKS);
        while let Some(at) = self.checked(next, BLOCK_BYTES) {
            if found.len() >= MAX_BLOCKS {
                break;
            }
            let pending = |word| self.signed(at + word);
            found.push(ThreadBlock {
                at,
                tid: self.read(at + block::TID) as u32,
                state: match self.read(at + block::STATE) {
                    FREE => BlockState::Free,
                    _ => BlockState::InUse,
                },
                pending: [
                    pending(block::PENDING_REQUESTED),
                    pending(block::PENDING_USABLE),
                    pending(block::PENDING_BLOCKS),
                ],
                most: [pending(block::MAX_REQUESTED), pending(block::MAX_USABLE)],
            });
            next = self.read(at + block::NEXT);
        }
        found
    }

    /// The rows of a block.
    pub fn rows(&self, of: &ThreadBlock, mut each: impl FnMut(RowSnapshot)) {
        let table = self.read(of.at + block::TABLE);
        let bits = (table & 0xff) as u32;
        let bits = bits.min(MAX_TABLE_BITS);
        let Some(table) = self.checked(table & !0xff, table_bytes(bits)) else {
            return;
        };
        for at in (0..1usize << bits).map(|i| table + i * ROW_BYTES) {
            let key = self.read(at + row::KEY);
            if key == 0 {
                continue;
            }
            let word = |which| self.memory.word(at + which).load(Ordering::Relaxed);
            let squares = self
                .memory
                .word(squares_at(table as u64 | u64::from(bits), at));
            each(RowSnapshot {
                key,
                count: word(row::COUNT),
                requested: word(row::REQUESTED),
                usable: word(row::USABLE),
                fresh: word(row::FRESH),
                parallel: word(row::PARALLEL),
                timed: word(row::TIMED),
                ticks: word(row::TICKS),
                squares: f64::from_bits(squares.load(Ordering::Relaxed)),
            });
        }
    }

    /// A bucket of the times of a kind, of all shards.
    #[must_use]
    pub fn bucket(&self, kind: usize, bucket: usize) -> u64 {
        let of = |shard: usize| {
            let index = (shard * TIME_KINDS + kind) * BUCKETS + bucket;
            self.read(HEADER_BYTES + index * 8)
        };
        (0..SHARDS).map(of).fold(0, u64::wrapping_add)
    }

    /// Gives a block whose thread has ended to the next thread.
    pub fn release(&self, of: &ThreadBlock) {
        let state = self.memory.word(of.at + block::STATE);
        let (done, other) = (Ordering::AcqRel, Ordering::Acquire);
        if state.compare_exchange(IN_USE, FREE, done, other).is_ok() {
            let threads = self.memory.word(header::THREADS);
            threads.fetch_sub(1, Ordering::Relaxed);
            let free = self.memory.word(header::FREE_BLOCKS);
            free.fetch_add(1, Ordering::Release);
        }
    }
}
