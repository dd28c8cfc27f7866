//! Offsets and words that both sides agree on. Every field is a native-endian u64 where nothing else is said.

/// "VARVEXCT", read as a little-endian word.
pub const MAGIC: u64 = u64::from_le_bytes(*b"VARVEXCT");
/// The version of the layout.
pub const VERSION: u64 = 1;

/// Bytes before the first segment of a file of counts.
pub const HEADER_BYTES: u64 = 4096;
/// Where [`MAGIC`] stands, in both kinds of file.
pub const AT_MAGIC: u64 = 0;
/// Where [`VERSION`] stands, in both kinds of file.
pub const AT_VERSION: u64 = 8;
/// The process.
pub const AT_PID: u64 = 16;
/// When the program began, or was forked, CLOCK_MONOTONIC nanoseconds.
pub const AT_BORN: u64 = 24;
/// The offset of the newest segment; 0 where there is none.
pub const AT_SEGMENTS: u64 = 32;
/// The first byte that nothing uses yet.
pub const AT_FREE: u64 = 40;
/// Accesses that could not be counted: no memory for the tables, or more threads than they have room for.
pub const AT_LOST: u64 = 64;
/// Programs that this one changed into, and that run natively, uncounted.
pub const AT_UNFOLLOWED: u64 = 72;
/// Length of the path of the executable, bytes; the path follows.
pub const AT_PATH: u64 = 128;
/// The longest path that is kept.
pub const MAX_PATH: usize = 3840;

/// A segment: the counts of one thread in one interval.
/// Bytes of it. Its table lies elsewhere.
pub const SEGMENT_BYTES: u64 = 64;
/// The segment that was begun before it; 0 at the end of the list.
pub const SEGMENT_NEXT: u64 = 0;
/// The thread.
pub const SEGMENT_TID: u64 = 8;
/// The interval.
pub const SEGMENT_INTERVAL: u64 = 16;
/// Where the table lies, and its size: `offset | log2(entries)`, one word so that it changes at once.
/// Offsets are multiples of 64.
pub const SEGMENT_TABLE: u64 = 24;
/// How many entries are in use, as of the last that was added.
pub const SEGMENT_USED: u64 = 32;

/// More segments than a file is believed to have.
pub const MAX_SEGMENTS: u64 = 1 << 24;

/// Bytes of an entry: page + 1 (0 where it is empty), reads, writes, stamp of the first access.
pub const ENTRY_BYTES: u64 = 32;
/// The largest table, log2 of its entries.
pub const MAX_LOG2: u32 = 40;

/// Interval length in accesses, in the control file; 0 where the whole run is one interval.
pub const CONTROL_LENGTH: u64 = 16;
/// Accesses that threads claimed at once, where there are intervals.
pub const CONTROL_BLOCK: u64 = 24;
/// Accesses claimed by all threads so far. On a cache line of its own.
pub const CONTROL_CLAIMED: u64 = 64;
/// The newest stamp that was given. Stamps are times, CLOCK_MONOTONIC nanoseconds, made to differ: what
/// was later has the higher one.
pub const CONTROL_STAMP: u64 = 128;
/// Processes that could not make a file of counts.
pub const CONTROL_UNCOUNTED: u64 = 192;
/// When the first access of each interval was claimed, from here on; 0 where nobody noted it.
pub const CONTROL_STARTS: u64 = 4096;
/// How many intervals the control file has room for. The last one holds all that came later.
pub const MAX_INTERVALS: u64 = 1 << 20;
/// Bytes of the control file.
pub const CONTROL_BYTES: u64 = CONTROL_STARTS + 8 * MAX_INTERVALS;
