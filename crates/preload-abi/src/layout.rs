//! Offsets and words that both sides agree on. Every field is a native-endian u64.

/// Bytes before the first record: one page, so that records start page-aligned.
pub const HEADER_BYTES: usize = 4096;
/// The version of the layout and of the records.
pub const VERSION: u32 = 1;
/// "VARVERNG", read as a little-endian word.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"VARVERNG");

// Written once by the recorder, before the watched program gets the ring.
pub(crate) const AT_MAGIC: usize = 0;
pub(crate) const AT_VERSION: usize = 8;
pub(crate) const AT_CAPACITY: usize = 24;
// Written by the watched program. Each hot field has a cache line of its own.
pub(crate) const AT_HEAD: usize = 128;
pub(crate) const AT_DROPPED: usize = 256;
pub(crate) const AT_STACKLESS: usize = 264;
pub(crate) const AT_WAITED: usize = 272;
pub(crate) const AT_SPENT: usize = 280;
pub(crate) const AT_UNHEARD: usize = 288;
pub(crate) const AT_ROOMLESS: usize = 296;
// Written by the recorder.
pub(crate) const AT_TAIL: usize = 384;
pub(crate) const AT_HEARTBEAT: usize = 392;
pub(crate) const AT_READER_ALIVE: usize = 400;
pub(crate) const AT_MIN_OBJECT: usize = 408;

// What stands there.
pub(crate) const READER_GONE: u64 = 0;
pub(crate) const READER_ALIVE: u64 = 1;
pub(crate) const READER_NOT_YET: u64 = 2;

/// The state of a record, the top byte of its first word.
pub(crate) const RESERVED: u64 = 0x5a;
pub(crate) const COMMITTED: u64 = 0xa5;

/// No record is longer than this many words: the fixed part and the longest stack.
pub(crate) const MAX_RECORD_WORDS: usize = crate::record::FIXED_WORDS + crate::record::MAX_FRAMES;
/// The smallest ring: room for several of the longest records.
pub(crate) const MIN_CAPACITY: usize = 16 << 10;
/// The largest ring.
pub(crate) const MAX_CAPACITY: usize = 64 << 20;

pub(crate) fn header_word(state: u64, kind: u8, detail: u8, words: usize) -> u64 {
    (state << 56) | (u64::from(detail) << 40) | (u64::from(kind) << 32) | (words as u64 * 8)
}

/// The first word of a record that a thread has made room for and is writing.
pub(crate) fn reserved_word(tid: u32, words: usize) -> u64 {
    (RESERVED << 56) | ((words as u64 & 0xff_ffff) << 32) | u64::from(tid)
}

/// A record's first word, taken apart. Of one that is being written the size alone is known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    pub(crate) state: u64,
    pub(crate) kind: u8,
    pub(crate) detail: u8,
    pub(crate) bytes: usize,
}

impl Head {
    pub(crate) fn parse(word: u64) -> Self {
        let state = word >> 56;
        if state == RESERVED {
            return Head {
                state,
                kind: 0,
                detail: 0,
                bytes: (word >> 32) as usize % (1 << 24) * 8,
            };
        }
        Head {
            state,
            kind: (word >> 32) as u8,
            detail: (word >> 40) as u8,
            bytes: word as u32 as usize,
        }
    }
}
