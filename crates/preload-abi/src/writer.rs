//! The watched program's side: many threads write, none waits for another.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::layout::{
    AT_CAPACITY, AT_DROPPED, AT_HEAD, AT_HEARTBEAT, AT_MAGIC, AT_MIN_OBJECT, AT_READER_ALIVE,
    AT_SPENT, AT_STACKLESS, AT_TAIL, AT_VERSION, AT_WAITED, COMMITTED, HEADER_BYTES, MAGIC,
    MAX_CAPACITY, MIN_CAPACITY, READER_GONE, READER_NOT_YET, RESERVED, VERSION, header_word,
};
use crate::record::{PAD, Record};

/// A reader that has not shown itself for this long counts as gone.
const READER_SILENCE_NS: u64 = 2_000_000_000;

/// A reader that has not shown itself for this long will not come back.
const READER_DEAD_NS: u64 = 30_000_000_000;

/// What a writer that found the ring full may base its patience on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fullness {
    /// A reader is at work: waiting helps.
    ReaderAlive,
    /// The ring was made, and nobody has read it yet.
    ReaderNotYet,
    /// The reader said goodbye or fell silent: waiting is of no use.
    ReaderGone,
}

/// Writes records into a ring that is mapped into this process. Copies share the ring.
#[derive(Clone, Copy, Debug)]
pub struct RingWriter {
    base: NonNull<u8>,
    capacity: u64,
}

// SAFETY: all accesses to the mapping go through atomics, or to bytes that this thread reserved.
unsafe impl Send for RingWriter {}
// SAFETY: as above.
unsafe impl Sync for RingWriter {}

impl RingWriter {
    /// The nearest capacity that a ring may have: a power of two within bounds.
    #[must_use]
    pub fn capacity_for(bytes: usize) -> usize {
        bytes.clamp(MIN_CAPACITY, MAX_CAPACITY).next_power_of_two()
    }

    /// Uses a ring that the recorder made; `None` if the memory holds none that fits into it.
    ///
    /// # Safety
    /// `base` points to `bytes` bytes, 8-byte aligned, that stay mapped as long as any copy of the writer is used.
    pub unsafe fn attach(base: NonNull<u8>, bytes: usize) -> Option<Self> {
        let capacity = bytes.checked_sub(HEADER_BYTES)?;
        let writer = RingWriter {
            base,
            capacity: capacity as u64,
        };
        let fits = capacity >= MIN_CAPACITY
            && capacity.is_power_of_two()
            && writer.field(AT_MAGIC).load(Ordering::Acquire) == MAGIC
            && writer.field(AT_VERSION).load(Ordering::Relaxed) == u64::from(VERSION)
            && writer.field(AT_CAPACITY).load(Ordering::Relaxed) == capacity as u64;
        fits.then_some(writer)
    }

    /// Bytes of the mapping.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.capacity as usize + HEADER_BYTES
    }

    /// Writes one record. While the ring is full, asks `wait` whether to try again: it sleeps for
    /// as long as it sees fit and returns true, or returns false to drop the record, which is then
    /// counted. Returns whether the record was written.
    #[inline]
    pub fn write(
        &self,
        record: &Record<'_>,
        now_ns: u64,
        mut wait: impl FnMut(Fullness) -> bool,
    ) -> bool {
        let encoded = record.encode();
        let bytes = encoded.words() as u64 * 8;
        let Some(start) = self.reserve(bytes, now_ns, &mut wait) else {
            self.count_dropped();
            return false;
        };
        let first = self.word(start);
        first.store(encoded.head(RESERVED), Ordering::Release);
        let mut at = start + 8;
        for &value in encoded.fixed[..encoded.fixed_words]
            .iter()
            .chain(encoded.frames)
        {
            self.word(at).store(value, Ordering::Relaxed);
            at += 8;
        }
        first.store(encoded.head(COMMITTED), Ordering::Release);
        true
    }

    /// Counts a record that could not even be tried to be written.
    pub fn count_dropped(&self) {
        self.field(AT_DROPPED).fetch_add(1, Ordering::Relaxed);
    }

    /// Counts an event whose call stack could not be taken.
    pub fn count_stackless(&self) {
        self.field(AT_STACKLESS).fetch_add(1, Ordering::Relaxed);
    }

    /// Counts nanoseconds that the program spent waiting for the reader.
    pub fn count_waited(&self, nanoseconds: u64) {
        self.field(AT_WAITED)
            .fetch_add(nanoseconds, Ordering::Relaxed);
    }

    /// Counts nanoseconds that the program's threads spent on records.
    pub fn count_spent(&self, nanoseconds: u64) {
        self.field(AT_SPENT)
            .fetch_add(nanoseconds, Ordering::Relaxed);
    }

    /// The smallest object that the reader wants to be recorded by itself, bytes; 0 where it has not said.
    #[must_use]
    pub fn min_object(&self) -> u64 {
        self.field(AT_MIN_OBJECT).load(Ordering::Relaxed)
    }

    /// Whether a reader has been at work in the last seconds.
    #[must_use]
    pub fn is_read(&self, now_ns: u64) -> bool {
        self.fullness(now_ns) != Fullness::ReaderGone
    }

    /// Whether the reader said goodbye, or has been silent for so long that it will not come back.
    #[must_use]
    pub fn is_over(&self, now_ns: u64) -> bool {
        let heartbeat = self.field(AT_HEARTBEAT).load(Ordering::Relaxed);
        self.field(AT_READER_ALIVE).load(Ordering::Relaxed) == READER_GONE
            || now_ns.saturating_sub(heartbeat) > READER_DEAD_NS
    }

    /// Whether somebody reads.
    #[must_use]
    pub fn fullness(&self, now_ns: u64) -> Fullness {
        let heartbeat = self.field(AT_HEARTBEAT).load(Ordering::Relaxed);
        if now_ns.saturating_sub(heartbeat) >= READER_SILENCE_NS {
            return Fullness::ReaderGone;
        }
        match self.field(AT_READER_ALIVE).load(Ordering::Relaxed) {
            READER_GONE => Fullness::ReaderGone,
            READER_NOT_YET => Fullness::ReaderNotYet,
            _ => Fullness::ReaderAlive,
        }
    }

    /// Reserves `bytes` in one piece; returns the position within the ring.
    #[inline]
    fn reserve(
        &self,
        bytes: u64,
        now_ns: u64,
        wait: &mut impl FnMut(Fullness) -> bool,
    ) -> Option<u64> {
        let head_field = self.field(AT_HEAD);
        let tail_field = self.field(AT_TAIL);
        loop {
            let head = head_field.load(Ordering::Relaxed);
            let tail = tail_field.load(Ordering::Acquire);
            // The program may have scribbled over `head`: stay on words all the same.
            let position = head & (self.capacity - 1) & !7;
            let room = self.capacity - position;
            let pad = if room < bytes { room } else { 0 };
            let used = head.wrapping_sub(tail);
            if used > self.capacity || used + pad + bytes > self.capacity {
                if wait(self.fullness(now_ns)) {
                    continue;
                }
                return None;
            }
            if head_field
                .compare_exchange_weak(
                    head,
                    head.wrapping_add(pad + bytes),
                    Ordering::AcqRel,
                    Ordering::Relaxed,
                )
                .is_err()
            {
                continue;
            }
            if pad == 0 {
                return Some(position);
            }
            let filler = header_word(COMMITTED, PAD, 0, pad as usize / 8);
            self.word(position).store(filler, Ordering::Release);
            return Some(0);
        }
    }

    #[inline]
    fn field(&self, offset: usize) -> &AtomicU64 {
        debug_assert!(offset + 8 <= HEADER_BYTES);
        // SAFETY: `attach` demands a mapping that covers the header, and `offset` is one of the
        // layout's constants, all multiples of 8 within it.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }

    #[inline]
    fn word(&self, position: u64) -> &AtomicU64 {
        debug_assert!(position + 8 <= self.capacity && position.is_multiple_of(8));
        // SAFETY: positions stay below the capacity: `reserve` masks them and hands out ranges
        // that end within the ring. The capacity is this side's own copy.
        unsafe {
            AtomicU64::from_ptr(
                self.base
                    .as_ptr()
                    .add(HEADER_BYTES + position as usize)
                    .cast(),
            )
        }
    }
}
