//! The watched program's side: many threads write, none waits for another.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::layout::{
    AT_CAPACITY, AT_DROPPED, AT_HEAD, AT_HEARTBEAT, AT_MAGIC, AT_MIN_OBJECT, AT_READER_ALIVE,
    AT_ROOMLESS, AT_SPENT, AT_STACKLESS, AT_TAIL, AT_UNHEARD, AT_VERSION, AT_WAITED, COMMITTED,
    HEADER_BYTES, MAGIC, MAX_CAPACITY, MIN_CAPACITY, READER_GONE, READER_NOT_YET, VERSION,
    header_word, reserved_word,
};
use crate::record::{PAD, Record, VOID};

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

/// Room for a record that a thread makes and has not filled yet, in which ring and where: what it leaves behind by its end, or by
/// a jump out of a signal handler, would keep the reader from all records after it. One for each thread.
#[derive(Debug)]
pub struct Reservation {
    /// The thread; 0: none.
    tid: AtomicU32,
    ring: AtomicU64,
    /// See [`Room`]; 0: none.
    room: AtomicU64,
}

/// Where a thread makes room, from before it has it until the record is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Room {
    /// Where it begins: where the record does, or what is left of the ring before it.
    position: u64,
    /// Of the record.
    words: usize,
    /// The record is at the beginning of the ring.
    is_padded: bool,
}

impl Room {
    const POSITION_BITS: u32 = 40;
    const PADDED: u64 = 1 << 63;

    fn pack(self) -> u64 {
        let padded = if self.is_padded { Self::PADDED } else { 0 };
        (self.position + 1) | (self.words as u64) << Self::POSITION_BITS | padded
    }

    fn unpack(word: u64) -> Option<Room> {
        let position = (word & ((1 << Self::POSITION_BITS) - 1)).checked_sub(1)?;
        Some(Room {
            position,
            words: ((word & !Self::PADDED) >> Self::POSITION_BITS) as usize,
            is_padded: word & Self::PADDED != 0,
        })
    }
}

impl Reservation {
    /// One of no thread.
    #[must_use]
    pub const fn new() -> Self {
        Reservation {
            tid: AtomicU32::new(0),
            ring: AtomicU64::new(0),
            room: AtomicU64::new(0),
        }
    }

    /// The thread whose it is; 0: none's.
    #[must_use]
    pub fn tid(&self) -> u32 {
        self.tid.load(Ordering::Acquire)
    }

    /// Makes it a thread's, where it is still `before`'s. What that one left is given up before anything is written.
    #[must_use]
    pub fn claim(&self, before: u32, tid: u32) -> bool {
        let (set, keep) = (Ordering::AcqRel, Ordering::Relaxed);
        self.tid.compare_exchange(before, tid, set, keep).is_ok()
    }

    /// Forgets everything: in a forked child all are other threads'.
    pub fn reset(&self) {
        self.room.store(0, Ordering::Relaxed);
        self.tid.store(0, Ordering::Release);
    }

    /// The room that a signal handler has interrupted, if it has; from now on rooms are in this ring. A process has one.
    #[inline]
    fn begin(&self, ring: NonNull<u8>) -> u64 {
        let ring = ring.as_ptr() as u64;
        if self.ring.load(Ordering::Relaxed) != ring {
            self.room.store(0, Ordering::Relaxed);
            self.ring.store(ring, Ordering::Release);
        }
        self.room.load(Ordering::Relaxed)
    }

    #[inline]
    fn set(&self, room: u64) {
        self.room.store(room, Ordering::Release);
    }

    fn room_in(&self, ring: &RingWriter) -> Option<Room> {
        let room = self.room.load(Ordering::Acquire);
        let is_there = self.ring.load(Ordering::Relaxed) == ring.base.as_ptr() as u64;
        Room::unpack(room).filter(|_| is_there)
    }
}

impl Default for Reservation {
    fn default() -> Self {
        Self::new()
    }
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
    /// counted. `reservation` is the calling thread's. Returns whether the record was written.
    #[inline]
    pub fn write(
        &self,
        record: &Record<'_>,
        now_ns: u64,
        reservation: &Reservation,
        mut wait: impl FnMut(Fullness) -> bool,
    ) -> bool {
        let encoded = record.encode();
        let words = encoded.words();
        // What a signal handler has interrupted.
        let before = reservation.begin(self.base);
        let Some(start) = self.reserve(words, now_ns, reservation, &mut wait) else {
            reservation.set(before);
            self.count_dropped();
            return false;
        };
        let first = self.word(start);
        first.store(reserved_word(record.tid, words), Ordering::Release);
        let mut at = start + 8;
        for &value in encoded.fixed[..encoded.fixed_words]
            .iter()
            .chain(encoded.frames)
        {
            self.word(at).store(value, Ordering::Relaxed);
            at += 8;
        }
        first.store(encoded.head(COMMITTED), Ordering::Release);
        reservation.set(before);
        true
    }

    /// Gives up the room that a thread has made for a record and will not fill, if it has: the calling thread's, which has left
    /// its work by a jump, or that of one that is gone. `all` are the reservations of all threads.
    pub fn give_up(&self, tid: u32, reservation: &Reservation, all: &[Reservation]) {
        let Some(room) = reservation.room_in(self) else {
            return;
        };
        let (set, keep) = (Ordering::AcqRel, Ordering::Relaxed);
        let taken = reservation.room.compare_exchange(room.pack(), 0, set, keep);
        // Another one gives it up.
        if taken.is_err() {
            return;
        }
        let head = self.field(AT_HEAD).load(Ordering::Acquire);
        let tail = self.field(AT_TAIL).load(Ordering::Acquire);
        // It may have been about to make it, or others may have been faster: they say so before.
        let distance = room.position.wrapping_sub(tail) & (self.capacity - 1);
        let is_others = |other: &Reservation| {
            let same = |of: Room| of.position == room.position;
            !std::ptr::eq(other, reservation) && other.room_in(self).is_some_and(same)
        };
        if distance >= head.wrapping_sub(tail) || all.iter().any(is_others) {
            return;
        }
        let mut position = room.position;
        if room.is_padded {
            let filler = filler(self.capacity - position);
            self.finish(position, &[0], filler);
            position = 0;
        }
        let reserved = reserved_word(tid, room.words);
        let void = header_word(COMMITTED, VOID, 0, room.words);
        self.finish(position, &[0, reserved], void);
    }

    /// Writes a first word where one of those stands that a record has before it is written.
    fn finish(&self, position: u64, before: &[u64], word: u64) {
        let (set, keep) = (Ordering::AcqRel, Ordering::Relaxed);
        let first = self.word(position);
        for &before in before {
            let _ = first.compare_exchange(before, word, set, keep);
        }
    }

    /// Gives up the room that threads have made and not filled that are gone.
    pub fn give_up_for_others(&self, all: &[Reservation], is_gone: impl Fn(u32) -> bool) {
        for reservation in all {
            let tid = reservation.tid();
            if reservation.room_in(self).is_some() && is_gone(tid) {
                self.give_up(tid, reservation, all);
            }
        }
    }

    /// Counts a record that found no room.
    fn count_dropped(&self) {
        self.field(AT_DROPPED).fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a process that was forked from this ring's, and could have no ring of its own.
    pub fn count_unheard(&self) {
        self.field(AT_UNHEARD).fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a heap object, or a page of a pool, for whose note the process had no memory.
    pub fn count_roomless(&self) {
        self.field(AT_ROOMLESS).fetch_add(1, Ordering::Relaxed);
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

    /// Reserves so many words in one piece; returns the position within the ring.
    #[inline]
    fn reserve(
        &self,
        words: usize,
        now_ns: u64,
        reservation: &Reservation,
        wait: &mut impl FnMut(Fullness) -> bool,
    ) -> Option<u64> {
        let bytes = words as u64 * 8;
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
                reservation.set(0);
                if wait(self.fullness(now_ns)) {
                    continue;
                }
                return None;
            }
            let room = Room {
                position,
                words,
                is_padded: pad != 0,
            };
            reservation.set(room.pack());
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
            self.word(position).store(filler(pad), Ordering::Release);
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

/// The first word of so many bytes that nobody uses, up to the end of the ring.
fn filler(bytes: u64) -> u64 {
    header_word(COMMITTED, PAD, 0, bytes as usize / 8)
}
