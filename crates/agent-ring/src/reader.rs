//! The recorder's side. Nothing in the file is trusted: the watched program can write to it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::error::RingError;
use crate::layout::{
    AT_CAPACITY, AT_CREATED, AT_DROPPED, AT_HEAD, AT_HEARTBEAT, AT_MAGIC, AT_PID, AT_READER_ALIVE,
    AT_SEQUENCE, AT_STACKLESS, AT_TAIL, AT_VERSION, AT_WAITED, COMMITTED, HEADER_BYTES, Head,
    Identity, MAGIC, MAX_CAPACITY, MAX_RECORD_WORDS, MIN_CAPACITY, RESERVED, VERSION,
};
use crate::record::{PAD, Record};

/// The part of the header that is in use.
const HEADER_READ: usize = 512;

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

/// What the process could not tell, since the ring was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Records that found the ring full.
    pub dropped: u64,
    /// Events recorded without a call stack.
    pub stackless: u64,
    /// Nanoseconds that threads waited for room.
    pub waited_ns: u64,
}

/// Reads one ring.
#[derive(Debug)]
pub struct RingReader {
    file: File,
    path: PathBuf,
    identity: Identity,
    capacity: u64,
    tail: u64,
    losses: Losses,
    damaged: Option<(u64, &'static str)>,
    bytes: Vec<u8>,
    words: Vec<u64>,
}

impl RingReader {
    /// Opens a ring and tells its writers that somebody reads.
    ///
    /// # Errors
    /// When the file cannot be opened for reading and writing, is not a regular file, or is not a
    /// ring of this version.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, RingError> {
        let path = path.as_ref().to_path_buf();
        let io_error = |source| RingError::Io {
            path: path.clone(),
            source,
        };
        let not_a_ring = |reason| RingError::NotARing {
            path: path.clone(),
            reason,
        };
        // The target could put a symbolic link or a FIFO there.
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC)
            .open(&path)
            .map_err(io_error)?;
        let metadata = file.metadata().map_err(io_error)?;
        if !metadata.is_file() {
            return Err(not_a_ring("it is not a regular file"));
        }
        if metadata.len() < (HEADER_BYTES + MIN_CAPACITY) as u64 {
            return Err(not_a_ring("it is too short"));
        }
        let mut header = [0u8; HEADER_READ];
        file.read_exact_at(&mut header, 0).map_err(io_error)?;
        if word_at(&header, AT_MAGIC) != MAGIC {
            return Err(not_a_ring("it does not start as one"));
        }
        if word_at(&header, AT_VERSION) != u64::from(VERSION) {
            return Err(not_a_ring("it has another version"));
        }
        let capacity = word_at(&header, AT_CAPACITY);
        let sane = (MIN_CAPACITY as u64..=MAX_CAPACITY as u64).contains(&capacity)
            && capacity.is_power_of_two();
        if !sane || metadata.len() < HEADER_BYTES as u64 + capacity {
            return Err(not_a_ring("its capacity does not fit its length"));
        }
        let tail = word_at(&header, AT_TAIL);
        if !tail.is_multiple_of(8) {
            return Err(not_a_ring("its tail is not at a word"));
        }
        let reader = RingReader {
            identity: Identity {
                pid: word_at(&header, AT_PID) as u32,
                created_ns: word_at(&header, AT_CREATED),
                sequence: word_at(&header, AT_SEQUENCE) as u32,
            },
            file,
            path,
            capacity,
            tail,
            losses: losses_of(&header),
            damaged: None,
            bytes: Vec::new(),
            words: Vec::new(),
        };
        reader.beat(true)?;
        Ok(reader)
    }

    /// Whose ring it is, as the header says; the target can lie.
    #[must_use]
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// The ring file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The losses as of the last drain.
    #[must_use]
    pub fn losses(&self) -> Losses {
        self.losses
    }

    /// Records dropped because the ring was full, as of the last drain.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.losses.dropped
    }

    /// Hands out every finished record up to the first unfinished one, and frees their room. Call
    /// it at least once a second: writers take a reader that is silent for two seconds for gone.
    ///
    /// # Errors
    /// [`RingError::Damaged`], now and from then on, when the target wrote over the ring; records
    /// before the damage were handed out. [`RingError::Io`] when the file cannot be read.
    pub fn drain(&mut self, each: impl FnMut(&Record<'_>)) -> Result<Drained, RingError> {
        self.drain_with(false, each)
    }

    /// The last drain, when the process (or the program in it) is over: also skips records that
    /// were reserved and will never be finished.
    ///
    /// # Errors
    /// As for [`RingReader::drain`].
    pub fn drain_rest(&mut self, each: impl FnMut(&Record<'_>)) -> Result<Drained, RingError> {
        self.drain_with(true, each)
    }

    fn drain_with(
        &mut self,
        skip_unfinished: bool,
        mut each: impl FnMut(&Record<'_>),
    ) -> Result<Drained, RingError> {
        if let Some((position, reason)) = self.damaged {
            return Err(self.damage(position, reason));
        }
        self.beat(true)?;
        let mut header = [0u8; HEADER_READ];
        self.read(&mut header, 0)?;
        self.losses = losses_of(&header);
        let used = word_at(&header, AT_HEAD).wrapping_sub(self.tail);
        if used > self.capacity || !used.is_multiple_of(8) {
            return Err(self.damage(self.tail, "its head makes no sense"));
        }
        let mut drained = Drained {
            fill_percent: (used * 100 / self.capacity) as u8,
            ..Drained::default()
        };
        // Only what is committed before the second look is sure to be whole in it.
        self.load(used as usize / 8)?;
        let extent = self.finished(skip_unfinished);
        self.load(extent)?;
        let (consumed, fault) = self.hand_out(&mut drained, &mut each);
        self.release(consumed)?;
        drained.bytes = consumed as u64 * 8;
        // Thousands of processes may have a reader each: keep little between drains.
        self.bytes.shrink_to(BUFFER_KEPT);
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
            if head.state == RESERVED {
                drained.unfinished += 1;
            } else if head.kind == PAD {
                if count != to_end {
                    return (at, Some("padding does not reach the end"));
                }
            } else if count > MAX_RECORD_WORDS {
                return (at, Some("a record is too long"));
            } else if let Some(record) = Record::decode(words) {
                drained.records += 1;
                each(&record);
            } else {
                return (at, Some("a record makes no sense"));
            }
            at += count;
        }
        (at, None)
    }

    /// Reads `count` words from the tail on into `self.words`.
    fn load(&mut self, count: usize) -> Result<(), RingError> {
        let position = self.tail & (self.capacity - 1);
        let length = count * 8;
        let first = length.min((self.capacity - position) as usize);
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.resize(length, 0);
        self.read(&mut bytes[..first], HEADER_BYTES as u64 + position)?;
        self.read(&mut bytes[first..], HEADER_BYTES as u64)?;
        self.words.clear();
        self.words.extend(
            bytes
                .as_chunks::<8>()
                .0
                .iter()
                .map(|chunk| u64::from_ne_bytes(*chunk)),
        );
        self.bytes = bytes;
        Ok(())
    }

    /// Zeroes what was consumed, then lets the writers have it.
    fn release(&mut self, words: usize) -> Result<(), RingError> {
        if words == 0 {
            return Ok(());
        }
        let length = words * 8;
        let position = self.tail & (self.capacity - 1);
        let first = length.min((self.capacity - position) as usize);
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.clear();
        bytes.resize(length, 0);
        self.write(&bytes[..first], HEADER_BYTES as u64 + position)?;
        self.write(&bytes[first..], HEADER_BYTES as u64)?;
        self.bytes = bytes;
        // Where counting starts is the file's word.
        self.tail = self.tail.wrapping_add(length as u64);
        self.write(&self.tail.to_ne_bytes(), AT_TAIL as u64)
    }

    /// Tells the writers that the reader is, or is no longer, there.
    fn beat(&self, alive: bool) -> Result<(), RingError> {
        let mut words = [0u8; 16];
        words[..8].copy_from_slice(&monotonic_ns().to_ne_bytes());
        words[8..].copy_from_slice(&u64::from(alive).to_ne_bytes());
        const { assert!(AT_READER_ALIVE == AT_HEARTBEAT + 8) };
        self.write(&words, AT_HEARTBEAT as u64)
    }

    fn damage(&mut self, position: u64, reason: &'static str) -> RingError {
        self.damaged = Some((position, reason));
        RingError::Damaged {
            path: self.path.clone(),
            position,
            reason,
        }
    }

    fn read(&self, buffer: &mut [u8], offset: u64) -> Result<(), RingError> {
        if buffer.is_empty() {
            return Ok(());
        }
        self.file
            .read_exact_at(buffer, offset)
            .map_err(|source| self.io(source))
    }

    fn write(&self, buffer: &[u8], offset: u64) -> Result<(), RingError> {
        if buffer.is_empty() {
            return Ok(());
        }
        self.file
            .write_all_at(buffer, offset)
            .map_err(|source| self.io(source))
    }

    fn io(&self, source: io::Error) -> RingError {
        RingError::Io {
            path: self.path.clone(),
            source,
        }
    }
}

impl Drop for RingReader {
    fn drop(&mut self) {
        // The target must not wait for a reader that has left. If this fails, the silence tells it.
        let _ = self.beat(false);
    }
}

fn word_at(header: &[u8; HEADER_READ], offset: usize) -> u64 {
    let mut bytes = [0u8; 8];
    bytes.copy_from_slice(&header[offset..offset + 8]);
    u64::from_ne_bytes(bytes)
}

fn losses_of(header: &[u8; HEADER_READ]) -> Losses {
    Losses {
        dropped: word_at(header, AT_DROPPED),
        stackless: word_at(header, AT_STACKLESS),
        waited_ns: word_at(header, AT_WAITED),
    }
}

fn monotonic_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is to a local that the call fills; CLOCK_MONOTONIC always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
