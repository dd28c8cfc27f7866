//! The recorder's side. Nothing in the memory is trusted: the watched program can write to it.
//!
//! The recorder makes the ring and seals its size, so that it may map it: no store of the program's can take
//! the memory away. What is read is copied first, word by word, and only the copy is looked at.

use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::clock::of_machine;
use crate::error::RingError;
use crate::layout::{
    AT_CAPACITY, AT_DROPPED, AT_HEAD, AT_HEARTBEAT, AT_MAGIC, AT_MIN_OBJECT, AT_READER_ALIVE,
    AT_ROOMLESS, AT_SPENT, AT_STACKLESS, AT_TAIL, AT_UNHEARD, AT_VERSION, AT_WAITED, COMMITTED,
    HEADER_BYTES, Head, MAGIC, MAX_RECORD_WORDS, READER_ALIVE, READER_GONE, READER_NOT_YET,
    RESERVED, VERSION,
};
use crate::memory::Memory;
use crate::raw::system_call;
use crate::record::{PAD, Record, VOID};
use crate::writer::RingWriter;

/// The name of the memory: `/memfd:NAME` in lists of mappings.
pub const RING_NAME: &str = "varve-ring";

/// Bytes of buffer that a reader keeps from one drain to the next.
const BUFFER_KEPT: usize = 16 << 10;

/// What one call to [`RingReader::drain`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Records handed out.
    pub records: u64,
    /// Bytes of the ring that were freed.
    pub bytes: u64,
    /// Reserved but never finished records that were skipped ([`RingReader::drain_rest`] only).
    pub unfinished: u64,
    /// The share of the ring that was in use, in percent: near 100 means drain more often.
    pub fill_percent: u8,
}

/// What the process could not report, since the ring was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Records that found the ring full.
    pub dropped: u64,
    /// Processes that were forked from this one, and could have no ring of their own.
    pub unheard: u64,
    /// Heap objects and pages of pools for whose notes the process had no memory.
    pub roomless: u64,
    /// Events recorded without a call stack.
    pub stackless: u64,
    /// Nanoseconds that threads waited for room.
    pub waited_ns: u64,
}

/// Reads one ring.
#[derive(Debug)]
pub struct RingReader {
    memory: Memory,
    capacity: u64,
    tail: u64,
    losses: Losses,
    damaged: Option<(u64, &'static str)>,
    words: Vec<u64>,
}

impl RingReader {
    /// Makes a ring of about this capacity, with the descriptor through which a process is given it. The size is
    /// sealed.
    ///
    /// # Errors
    /// Where the kernel has no memory, mappings or descriptors left.
    pub fn create(capacity: usize) -> io::Result<(RingReader, OwnedFd)> {
        let capacity = RingWriter::capacity_for(capacity);
        let bytes = HEADER_BYTES + capacity;
        let (memory, file) = Memory::create(RING_NAME, bytes)?;
        let reader = RingReader {
            memory,
            capacity: capacity as u64,
            tail: 0,
            losses: Losses::default(),
            damaged: None,
            words: Vec::new(),
        };
        let header = [
            (AT_VERSION, u64::from(VERSION)),
            (AT_CAPACITY, capacity as u64),
            (AT_MAGIC, MAGIC),
        ];
        for (offset, word) in header {
            reader.memory.word(offset).store(word, Ordering::Release);
        }
        reader.beat(READER_NOT_YET);
        Ok((reader, file))
    }

    /// Bytes of the memory, header included.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    /// The losses as of the last drain.
    #[must_use]
    pub fn losses(&self) -> Losses {
        self.losses
    }

    /// Nanoseconds that the program's threads have spent on records, as the program says.
    #[must_use]
    pub fn spent(&self) -> u64 {
        self.memory.word(AT_SPENT).load(Ordering::Relaxed)
    }

    /// Has the program record objects of so many bytes and more only.
    pub fn set_min_object(&self, bytes: u64) {
        self.memory
            .word(AT_MIN_OBJECT)
            .store(bytes, Ordering::Relaxed);
    }

    /// Hands out every finished record up to the first unfinished one, and frees their room. Call
    /// it at least once a second: writers take a reader that is silent for two seconds for gone.
    ///
    /// # Errors
    /// [`RingError::Damaged`], now and from then on, when the target wrote over the ring; records
    /// before the damage were handed out.
    pub fn drain(&mut self, each: impl FnMut(&Record<'_>)) -> Result<Drained, RingError> {
        self.drain_with(false, 0..0, each)
    }

    /// The same, but ends before the first record of these moments (nanoseconds of `CLOCK_MONOTONIC`), which stays for
    /// the next drain.
    ///
    /// # Errors
    /// As for [`RingReader::drain`].
    pub fn drain_before(
        &mut self,
        moments: Range<u64>,
        each: impl FnMut(&Record<'_>),
    ) -> Result<Drained, RingError> {
        self.drain_with(false, moments, each)
    }

    /// The last drain, when the process (or the program in it) is over: also skips records that
    /// were reserved and will never be finished.
    ///
    /// # Errors
    /// As for [`RingReader::drain`].
    pub fn drain_rest(&mut self, each: impl FnMut(&Record<'_>)) -> Result<Drained, RingError> {
        self.drain_with(true, 0..0, each)
    }

    fn drain_with(
        &mut self,
        skip_unfinished: bool,
        later: Range<u64>,
        mut each: impl FnMut(&Record<'_>),
    ) -> Result<Drained, RingError> {
        if let Some((position, reason)) = self.damaged {
            return Err(self.damage(position, reason));
        }
        self.beat(READER_ALIVE);
        self.losses = self.read_losses();
        let head = self.memory.word(AT_HEAD).load(Ordering::Acquire);
        let used = head.wrapping_sub(self.tail);
        if used > self.capacity || !used.is_multiple_of(8) {
            return Err(self.damage(self.tail, "its head makes no sense"));
        }
        let mut drained = Drained {
            fill_percent: (used * 100 / self.capacity) as u8,
            ..Drained::default()
        };
        // Only what is committed before the second look is sure to be whole in it.
        self.load(used as usize / 8);
        let extent = self.finished(skip_unfinished);
        self.load(extent);
        let (consumed, fault) = self.hand_out(&mut drained, &later, &mut each);
        self.release(consumed);
        drained.bytes = consumed as u64 * 8;
        // Thousands of processes may have a reader each: keep little between drains.
        self.words.clear();
        self.words.shrink_to(BUFFER_KEPT / 8);
        match fault {
            Some(reason) => Err(self.damage(self.tail, reason)),
            None => Ok(drained),
        }
    }

    /// The number of words, from the tail, of records that may be read.
    fn finished(&self, skip_unfinished: bool) -> usize {
        let mut at = 0;
        while let Some(&word) = self.words.get(at) {
            let head = Head::parse(word);
            let known = head.state == COMMITTED || (skip_unfinished && head.state == RESERVED);
            if known {
                // Nonsense sizes are left to `hand_out`, which reports them.
                at += (head.bytes / 8).max(1);
            } else if word == 0 && !skip_unfinished || head.state == RESERVED {
                return at;
            } else {
                at += 1;
            }
        }
        self.words.len()
    }

    /// Parses the loaded words; returns how many were consumed, and what was wrong at the end.
    fn hand_out(
        &self,
        drained: &mut Drained,
        later: &Range<u64>,
        each: &mut impl FnMut(&Record<'_>),
    ) -> (usize, Option<&'static str>) {
        let mask = self.capacity as usize / 8 - 1;
        let start = (self.tail / 8) as usize & mask;
        let mut at = 0;
        let mut in_hole = false;
        while at < self.words.len() {
            let word = self.words[at];
            let head = Head::parse(word);
            if word == 0 {
                // Reserved by a thread that died before it wrote the size.
                drained.unfinished += u64::from(!in_hole);
                in_hole = true;
                at += 1;
                continue;
            }
            in_hole = false;
            let count = head.bytes / 8;
            let to_end = mask + 1 - ((start + at) & mask);
            if !head.bytes.is_multiple_of(8) || count == 0 || count > to_end {
                return (at, Some("a record has an impossible size"));
            }
            let Some(words) = self.words.get(at..at + count) else {
                return (at, Some("a record reaches past the end"));
            };
            if head.state == RESERVED || head.kind == VOID {
                drained.unfinished += 1;
            } else if head.kind == PAD {
                if count != to_end {
                    return (at, Some("padding does not reach the end"));
                }
            } else if count > MAX_RECORD_WORDS {
                return (at, Some("a record is too long"));
            } else if let Some(record) = Record::decode(words) {
                if later.contains(&record.time_ns) {
                    return (at, None);
                }
                drained.records += 1;
                each(&record);
            } else {
                return (at, Some("a record makes no sense"));
            }
            at += count;
        }
        (at, None)
    }

    /// The word of the ring that is so many words from the tail.
    fn at(&self, index: usize) -> &AtomicU64 {
        let position = self.tail.wrapping_add(index as u64 * 8) & (self.capacity - 1);
        self.memory.word(HEADER_BYTES + position as usize)
    }

    /// Copies `count` words from the tail on into `self.words`.
    fn load(&mut self, count: usize) {
        let mut words = std::mem::take(&mut self.words);
        words.clear();
        words.extend((0..count).map(|i| self.at(i).load(Ordering::Relaxed)));
        // What is looked at next was written before what was seen here.
        fence(Ordering::Acquire);
        self.words = words;
    }

    /// Zeroes what was consumed, then lets the writers have it.
    fn release(&mut self, words: usize) {
        if words == 0 {
            return;
        }
        for i in 0..words {
            self.at(i).store(0, Ordering::Relaxed);
        }
        self.tail = self.tail.wrapping_add(words as u64 * 8);
        self.memory
            .word(AT_TAIL)
            .store(self.tail, Ordering::Release);
    }

    /// Tells the writers that the reader is, or is no longer, there.
    fn beat(&self, state: u64) {
        let word = |offset| self.memory.word(offset);
        word(AT_HEARTBEAT).store(monotonic_ns(), Ordering::Relaxed);
        word(AT_READER_ALIVE).store(state, Ordering::Release);
    }

    fn read_losses(&self) -> Losses {
        let word = |offset| self.memory.word(offset).load(Ordering::Relaxed);
        Losses {
            dropped: word(AT_DROPPED),
            unheard: word(AT_UNHEARD),
            roomless: word(AT_ROOMLESS),
            stackless: word(AT_STACKLESS),
            waited_ns: word(AT_WAITED),
        }
    }

    fn damage(&mut self, position: u64, reason: &'static str) -> RingError {
        self.damaged = Some((position, reason));
        RingError::Damaged { position, reason }
    }
}

impl Drop for RingReader {
    fn drop(&mut self) {
        // The target must not wait for a reader that has left.
        self.beat(READER_GONE);
    }
}

fn monotonic_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let arguments = [
        libc::CLOCK_MONOTONIC as usize,
        &raw mut time as usize,
        0,
        0,
        0,
        0,
    ];
    // SAFETY: the pointer is to a local that the call fills; CLOCK_MONOTONIC always exists. Not the C library's, in front of which a
    // preloaded library may stand that gives another time.
    unsafe { system_call(libc::SYS_clock_gettime, arguments) };
    of_machine(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}
