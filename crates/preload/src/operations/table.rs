//! A thread's block and its table of rows, in the memory that the recorder reads.
//!
//! Only the thread itself writes to them, so that adding is a load and a store. The recorder may see one figure of a row before another.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use varve_preload_abi::operations::{
    BLOCK_BYTES, BUCKETS, FAILED_CLASS, FIRST_TABLE_BITS, FREE, HEADER_BYTES, IN_USE,
    MAX_TABLE_BITS, MEMORY_BYTES, Operation, PENDING_BYTES, ROW_BYTES, SHARDS, SHARED_LINE_CLASS,
    TIME_KINDS, TimeKind, block, bucket_of, class_of, header, reallocated_key, row, row_key,
    squares_at, table_bytes, ticks,
};

use super::attach;
use crate::sys;

/// Blocks and tables begin at multiples of this: the low bits of a table's place are its size.
const EXTENT: usize = 256;

/// At most one place of so many has a row: nearly all searches end at the first place, which processors foresee.
const MAX_LOAD: usize = 4;

/// Timed operations of a kind and length until the clock's own time is looked at again.
const CLOCK_EVERY: u64 = 16;

/// Bytes of the memory that may be taken: less where the program's address space is limited.
pub(super) static CAPACITY: AtomicUsize = AtomicUsize::new(MEMORY_BYTES);

/// What reading the clock twice takes now.
pub(super) fn reading_ticks() -> u64 {
    let began = ticks();
    ticks().saturating_sub(began)
}

/// The memory that the process shares with the recorder.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Shared(pub(super) NonNull<u8>);

impl Shared {
    /// A word at a place that the layout names, or that [`Shared::take`] gave.
    #[inline]
    pub(super) fn word(self, at: usize) -> &'static AtomicU64 {
        debug_assert!(at < MEMORY_BYTES);
        // SAFETY: within the mapping, which stays, and aligned; all accesses to it are atomic.
        unsafe { AtomicU64::from_ptr(self.0.as_ptr().add(at).cast()) }
    }

    /// Takes zeroed memory.
    fn take(self, bytes: usize) -> Option<usize> {
        let bytes = bytes.next_multiple_of(EXTENT);
        let next = self.word(header::NEXT);
        // What is taken is seen by who lowers the capacity, or sees that.
        let at = next.fetch_add(bytes as u64, Ordering::SeqCst) as usize;
        let at = at.next_multiple_of(EXTENT);
        if at
            .checked_add(bytes + EXTENT)
            .is_none_or(|end| end > CAPACITY.load(Ordering::SeqCst))
        {
            next.fetch_sub(bytes as u64, Ordering::Relaxed);
            return None;
        }
        Some(at)
    }

    /// A block for the calling thread: that of one that has ended, or a new one.
    pub(super) fn claim(self, tid: u32, running: u64) -> Option<Block> {
        let block = self.reuse().or_else(|| self.make())?;
        block.set(block::TID, u64::from(tid));
        block.set(block::RUNNING, running);
        block.set(block::WATCH, 0);
        block.set(block::RANDOM, u64::from(tid) << 32 | 0x9e37_79b9);
        block.set(
            block::COUNTDOWN,
            1 + u64::from(tid) % self.word(header::EVERY).load(Ordering::Relaxed).max(1),
        );
        self.word(header::THREADS).fetch_add(1, Ordering::Relaxed);
        Some(block)
    }

    /// Whether no other thread than this one is within an operation, nor will be in these tables: operations were ended before. Waits for threads that
    /// are, but not for ever.
    pub(super) fn is_quiet(self, own: u32) -> bool {
        const GLOBAL: usize = 1;
        const LOOKS: usize = 2000;
        let mut barrier_is_due = true;
        let mut at = self.word(header::BLOCKS).load(Ordering::Acquire) as usize;
        while at != 0 {
            let block = Block { shared: self, at };
            at = block.get(block::NEXT) as usize;
            if block.get(block::STATE) != IN_USE || block.get(block::TID) == u64::from(own) {
                continue;
            }
            if barrier_is_due {
                // Other threads say that they are within one by a plain store: after this it is seen here, or operations have ended for them.
                // SAFETY: takes integers.
                let done = unsafe { sys::call(libc::SYS_membarrier, [GLOBAL, 0, 0, 0, 0, 0]) };
                if done != 0 {
                    return false;
                }
                barrier_is_due = false;
            }
            // A thread that has ended may have no memory any more.
            let mut word = [0];
            let is_within = |word: &mut [u64; 1]| {
                sys::peek(block.get(block::RUNNING), word) == size_of::<u64>() && word[0] != 0
            };
            let mut looks = 0;
            while is_within(&mut word) {
                looks += 1;
                if looks > LOOKS {
                    return false;
                }
                sys::yield_now();
            }
        }
        true
    }

    fn reuse(self) -> Option<Block> {
        if self.word(header::FREE_BLOCKS).load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut at = self.word(header::BLOCKS).load(Ordering::Acquire) as usize;
        while at != 0 {
            let state = self.word(at + block::STATE);
            let (done, other) = (Ordering::AcqRel, Ordering::Relaxed);
            if state.compare_exchange(FREE, IN_USE, done, other).is_ok() {
                self.word(header::FREE_BLOCKS)
                    .fetch_sub(1, Ordering::Relaxed);
                return Some(Block { shared: self, at });
            }
            at = self.word(at + block::NEXT).load(Ordering::Acquire) as usize;
        }
        None
    }

    fn make(self) -> Option<Block> {
        let at = self.take(BLOCK_BYTES)?;
        let made = Block { shared: self, at };
        let table = self.take(table_bytes(FIRST_TABLE_BITS))?;
        made.set(block::TABLE, table as u64 | u64::from(FIRST_TABLE_BITS));
        made.set(block::STATE, IN_USE);
        let first = self.word(header::BLOCKS);
        let mut before = first.load(Ordering::Relaxed);
        loop {
            made.set(block::NEXT, before);
            let (done, other) = (Ordering::Release, Ordering::Relaxed);
            match first.compare_exchange_weak(before, at as u64, done, other) {
                Ok(_) => return Some(made),
                Err(now) => before = now,
            }
        }
    }
}

/// What an operation adds.
pub(super) struct Change {
    pub(super) running: u64,
    pub(super) operation: Operation,
    pub(super) requested: u64,
    pub(super) usable: u64,
    pub(super) fresh: bool,
    pub(super) took: Option<u64>,
}

/// A thread's block.
#[derive(Clone, Copy)]
pub(super) struct Block {
    pub(super) shared: Shared,
    pub(super) at: usize,
}

impl Block {
    #[inline]
    pub(super) fn get(self, which: usize) -> u64 {
        self.shared.word(self.at + which).load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn set(self, which: usize, value: u64) {
        self.shared
            .word(self.at + which)
            .store(value, Ordering::Relaxed);
    }

    /// Whether the next operation is timed: one in so many on average, at distances that no pattern of the program's can follow.
    #[inline]
    pub(super) fn is_timed(self) -> bool {
        let left = self.get(block::COUNTDOWN);
        if left > 1 {
            self.set(block::COUNTDOWN, left - 1);
            return false;
        }
        self.restart()
    }

    #[cold]
    fn restart(self) -> bool {
        let every = self.shared.word(header::EVERY).load(Ordering::Relaxed);
        let random = super::sampling::next_random(self.get(block::RANDOM));
        self.set(block::RANDOM, random);
        // From 1 to twice the mean less one.
        let distance = 1 + (random >> 11) % (2 * every).saturating_sub(1).max(1);
        self.set(block::COUNTDOWN, distance);
        !sys::CLOCK_FORBIDDEN.load(Ordering::Relaxed)
    }

    /// Adds an operation, and says its size class.
    #[inline(always)]
    pub(super) fn count(self, change: &Change) -> u8 {
        let class = class_of(change.usable as usize);
        let Some(at) = self.row(row_key(change.running, class)) else {
            return class;
        };
        let add = |which: usize, more: u64| {
            let word = self.shared.word(at + which);
            word.store(
                word.load(Ordering::Relaxed).wrapping_add(more),
                Ordering::Relaxed,
            );
        };
        add(row::COUNT, 1);
        add(row::REQUESTED, change.requested);
        add(row::USABLE, change.usable);
        if change.fresh {
            add(row::FRESH, 1);
        }
        if self.shared.word(header::THREADS).load(Ordering::Relaxed) > 1 {
            add(row::PARALLEL, 1);
        }
        if let Some(took) = change.took {
            add(row::TIMED, 1);
            add(row::TICKS, took);
            self.add_square(at, took);
            self.count_time(change, took);
        }
        class
    }

    /// Counts a block that was reallocated, by its usable bytes: it leaves the class that it had, for another one or for the same.
    #[inline]
    pub(super) fn reallocated(self, running: u64, usable: usize) {
        if let Some(at) = self.row(reallocated_key(running, class_of(usable))) {
            let count = self.shared.word(at + row::COUNT);
            let before = count.load(Ordering::Relaxed);
            count.store(before.wrapping_add(1), Ordering::Relaxed);
        }
    }

    /// Adds to the squares of a row's timed operations.
    #[inline]
    fn add_square(self, row: usize, took: u64) {
        let word = self.shared.word(squares_at(self.get(block::TABLE), row));
        let before = f64::from_bits(word.load(Ordering::Relaxed));
        let took = took as f64;
        word.store((before + took * took).to_bits(), Ordering::Relaxed);
    }

    /// Adds one that gave nothing.
    #[cold]
    pub(super) fn failed(self, running: u64) {
        if let Some(at) = self.row(row_key(running, FAILED_CLASS)) {
            self.shared
                .word(at + row::COUNT)
                .fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Adds a block on a cache line with another thread's; it may have had its memory from another one that this one freed.
    #[cold]
    pub(super) fn shares_line(self, running: u64, passed: bool) {
        self.count_special(row_key(running, SHARED_LINE_CLASS), !passed);
    }

    /// Adds one to a row that is no size class's, also to its second figure where that `counts`.
    #[cold]
    pub(super) fn count_special(self, key: u64, counts: bool) {
        if let Some(at) = self.row(key) {
            let add = |which| self.shared.word(at + which).fetch_add(1, Ordering::Relaxed);
            add(row::COUNT);
            if counts {
                add(row::FRESH);
            }
        }
    }

    #[inline(never)]
    fn count_time(self, change: &Change, took: u64) {
        let kind = match change.operation.time_kind() {
            TimeKind::None => return,
            TimeKind::Reused if change.fresh => TimeKind::Fresh,
            kind => kind,
        };
        let shard = (self.at / EXTENT) % SHARDS;
        let index = (shard * TIME_KINDS + kind as usize) * BUCKETS + bucket_of(took);
        let word = self.shared.word(HEADER_BYTES + index * 8);
        // A processor that has just woken, or whose other half is busy, takes longer to read its clock than it will later.
        if word
            .fetch_add(1, Ordering::Relaxed)
            .is_multiple_of(CLOCK_EVERY)
        {
            let clock = self.shared.word(header::CLOCK_TICKS);
            clock.fetch_min(reading_ticks(), Ordering::Relaxed);
        }
    }

    /// The place of a row, made if need be.
    #[inline(always)]
    fn row(self, key: u64) -> Option<usize> {
        let table = self.get(block::TABLE);
        let bits = (table & 0xff) as u32;
        let mask = (1usize << bits) - 1;
        let base = (table & !0xff) as usize;
        let mut place = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - bits)) as usize;
        loop {
            let at = base + place * ROW_BYTES;
            match self.shared.word(at).load(Ordering::Relaxed) {
                known if known == key => return Some(at),
                0 => return self.insert(key),
                _ => place = (place + 1) & mask,
            }
        }
    }

    #[cold]
    fn insert(self, key: u64) -> Option<usize> {
        let rows = self.get(block::ROWS) as usize;
        let mut table = self.get(block::TABLE);
        let room = 1usize << (table & 0xff);
        if (rows + 1) * MAX_LOAD > room {
            match self.grow(table) {
                Some(larger) => table = larger,
                // The search must come to an end.
                None if rows + 2 > room => {
                    attach::count_uncounted();
                    return None;
                }
                None => {}
            }
        }
        let at = self.free_place(table, key);
        self.set(block::ROWS, rows as u64 + 1);
        self.shared.word(at).store(key, Ordering::Release);
        Some(at)
    }

    /// Where a key that is not in the table is to be put.
    fn free_place(self, table: u64, key: u64) -> usize {
        let bits = (table & 0xff) as u32;
        let mask = (1usize << bits) - 1;
        let mut place = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - bits)) as usize;
        loop {
            let at = (table & !0xff) as usize + place * ROW_BYTES;
            if self.shared.word(at).load(Ordering::Relaxed) == 0 {
                return at;
            }
            place = (place + 1) & mask;
        }
    }

    /// A table of twice the size, with all rows.
    fn grow(self, table: u64) -> Option<u64> {
        let bits = (table & 0xff) as u32;
        if bits >= MAX_TABLE_BITS {
            return None;
        }
        let larger = bits + 1;
        let at = self.shared.take(table_bytes(larger))?;
        let made = at as u64 | u64::from(larger);
        for old in (0..1usize << bits).map(|i| (table & !0xff) as usize + i * ROW_BYTES) {
            let word = |at: usize| self.shared.word(at).load(Ordering::Relaxed);
            let key = word(old);
            if key != 0 {
                let new = self.free_place(made, key);
                let set = |at: usize, value| self.shared.word(at).store(value, Ordering::Relaxed);
                (0..ROW_BYTES)
                    .step_by(8)
                    .for_each(|which| set(new + which, word(old + which)));
                set(squares_at(made, new), word(squares_at(table, old)));
            }
        }
        self.shared
            .word(self.at + block::TABLE)
            .store(made, Ordering::Release);
        Some(made)
    }

    /// Adds to what is alive: bytes asked for, usable bytes, blocks.
    #[inline(always)]
    pub(super) fn add_live(self, more: [i64; 3]) {
        let add = |which: usize, more: i64| {
            let now = self.get(which).cast_signed() + more;
            self.set(which, now.cast_unsigned());
            now
        };
        let requested = add(block::PENDING_REQUESTED, more[0]);
        let usable = add(block::PENDING_USABLE, more[1]);
        add(block::PENDING_BLOCKS, more[2]);
        if requested > self.get(block::MAX_REQUESTED).cast_signed() {
            self.set(block::MAX_REQUESTED, requested.cast_unsigned());
            self.set(block::MAX_USABLE, usable.cast_unsigned());
        }
        if requested.abs() >= PENDING_BYTES {
            self.hand_over(None);
        }
    }

    /// A block goes whose end was reported for this time, nanoseconds: a peak that was reached with it is an earlier one.
    #[inline(always)]
    pub(super) fn note_peak_before(self, ended: Option<u64>) {
        if let Some(ended) = ended {
            self.hand_over(Some(ended - 1));
        }
    }

    /// Adds what this thread has allocated and freed to the process's, until now or until a time in nanoseconds.
    #[cold]
    pub(super) fn hand_over(self, until: Option<u64>) {
        let take = |which: usize| {
            let value = self.get(which);
            self.set(which, 0);
            value
        };
        let most = take(block::MAX_REQUESTED).cast_signed();
        let most_usable = take(block::MAX_USABLE).cast_signed();
        let word = |which: usize| self.shared.word(which);
        let requested = take(block::PENDING_REQUESTED);
        let usable = take(block::PENDING_USABLE);
        let blocks = take(block::PENDING_BLOCKS);
        let before = word(header::LIVE_REQUESTED).fetch_add(requested, Ordering::Relaxed);
        let usable_before = word(header::LIVE_USABLE).fetch_add(usable, Ordering::Relaxed);
        word(header::LIVE_BLOCKS).fetch_add(blocks, Ordering::Relaxed);
        for (own, more) in attach::LIVE.iter().zip([requested, usable, blocks]) {
            own.fetch_add(more, Ordering::Relaxed);
        }
        let reached = before.cast_signed() + most;
        let peak = word(header::PEAK_REQUESTED);
        if reached > peak.load(Ordering::Relaxed).cast_signed() {
            peak.store(reached.cast_unsigned(), Ordering::Relaxed);
            let usable = usable_before.cast_signed() + most_usable;
            word(header::PEAK_USABLE).store(usable.cast_unsigned(), Ordering::Relaxed);
            let until = until.unwrap_or_else(sys::now_ns);
            word(header::PEAK_NS).store(until, Ordering::Relaxed);
        }
    }
}
