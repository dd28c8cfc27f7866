//! The tables of allocator operations that a process keeps in memory shared with the recorder.
//!
//! Nothing is stored per operation: each thread adds to rows of its own, found by what was called, from where, and the size
//! class of the block. The recorder reads the rows whenever it likes and writes what they have grown by.
//!
//! # Layout
//! All words are native-endian u64. A header of [`HEADER_BYTES`] bytes, then [`SHARDS`] copies of the histograms of times, then what the process takes as
//! it needs it: a block of [`BLOCK_BYTES`] for each thread, in a list, and tables of rows of [`ROW_BYTES`] bytes, open-addressed, a power of
//! two of them, with a word for each row behind them ([`squares_at`]). A thread whose table is filled to a quarter makes one of twice the size, copies its rows and leaves the old one. When a
//! thread has ended the recorder, who has read its rows then, marks its block free; the next thread takes it with the
//! rows, which go on growing.
//!
//! While an operation runs, the thread has a [`Running`] in its thread-local memory that says which and from where; the kernel's part finds
//! it at a fixed distance from the thread pointer, which the process says as it asks for this memory.

#[cfg(target_arch = "x86_64")]
mod clock;
pub mod heap;
mod reader;

#[cfg(target_arch = "x86_64")]
pub use clock::ticks;
pub use reader::{BlockState, OperationsReader, RowSnapshot, ThreadBlock, Totals};

/// The environment variable that asks for operations to be counted: how many there are to each that is timed.
pub const OPERATIONS_VARIABLE: &str = "VARVE_OPERATIONS";
/// The environment variable that, if set, says that nothing else is to be reported: no objects, no mappings.
pub const ONLY_OPERATIONS_VARIABLE: &str = "VARVE_ONLY_OPERATIONS";
/// The environment variable for the bytes of allocations to each of which one block is sampled, on average.
pub const SAMPLE_BYTES_VARIABLE: &str = "VARVE_SAMPLE_BYTES";
/// The name of the memory: `/memfd:NAME` in lists of mappings.
pub const OPERATIONS_NAME: &str = "varve-operations";

/// As much as a process may ever fill.
pub const MEMORY_BYTES: usize = 1 << 30;
/// Bytes of the header.
pub const HEADER_BYTES: usize = 4096;
/// Copies of the histograms, so that threads seldom meet.
pub const SHARDS: usize = 4;
/// Kinds of operations whose times are kept apart.
pub const TIME_KINDS: usize = 5;
/// Buckets of a histogram.
pub const BUCKETS: usize = 256;
/// Bytes of all histograms.
pub const HISTOGRAM_BYTES: usize = SHARDS * TIME_KINDS * BUCKETS * 8;
/// Where blocks and tables begin.
pub const FIRST_EXTENT: usize = HEADER_BYTES + HISTOGRAM_BYTES;
/// Bytes of a thread's block.
pub const BLOCK_BYTES: usize = 192;
/// Bytes of a row.
pub const ROW_BYTES: usize = 64;
/// Bytes of a row's word behind the rows.
pub const SQUARES_BYTES: usize = 8;
/// A thread's first table has so many rows, as a power of two.
pub const FIRST_TABLE_BITS: u32 = 5;
/// And its last.
pub const MAX_TABLE_BITS: u32 = 18;
/// What a thread has allocated and freed is added up for the process when it comes to this many bytes.
pub const PENDING_BYTES: i64 = 64 << 10;

/// Words of the header.
pub mod header {
    /// The recorder's: how many operations there are to each that is timed.
    pub const EVERY: usize = 0;
    /// Ticks and nanoseconds at the beginning.
    pub const START_TICKS: usize = 8;
    /// See above.
    pub const START_NS: usize = 16;
    /// What reading the clock twice takes at least, in ticks.
    pub const CLOCK_TICKS: usize = 24;
    /// The first block; 0: none.
    pub const BLOCKS: usize = 32;
    /// Blocks that are free.
    pub const FREE_BLOCKS: usize = 40;
    /// Operations that found no room, or came while the thread was at work on its tables.
    pub const UNCOUNTED: usize = 48;
    /// Blocks of memory that were freed and that nobody saw allocated.
    pub const UNKNOWN_FREES: usize = 56;
    /// Blocks that were handed out where one lived: that nobody saw freed.
    pub const UNSEEN_FREES: usize = 64;
    /// What a limit of the process's address space has done to counting: one of [`limit`](super::limit), or 0.
    pub const LIMIT: usize = 72;
    /// [`UNCOUNTED`] of the process that this one was forked from, with those that this had from its own parent, up to the fork.
    pub const UNCOUNTED_BEFORE: usize = 80;
    /// Pieces of the shadow of the heap: where each is and the first address that it says something of, up to [`SHADOWS`].
    pub const SHADOW: usize = 1024;
    /// Pieces of that.
    pub const SHADOWS: usize = 128;
    /// The path of the file that has the allocator, a C string.
    pub const ALLOCATOR: usize = 512;
    /// Bytes of it.
    pub const ALLOCATOR_BYTES: usize = 512;
    /// The first byte that nobody has taken.
    pub const NEXT: usize = 128;
    /// Threads that have a block in use.
    pub const THREADS: usize = 192;
    /// Bytes that the program asked for and has not freed, up to what threads have not added yet.
    pub const LIVE_REQUESTED: usize = 256;
    /// Bytes that it could use.
    pub const LIVE_USABLE: usize = 264;
    /// Blocks.
    pub const LIVE_BLOCKS: usize = 272;
    /// The most of [`LIVE_REQUESTED`].
    pub const PEAK_REQUESTED: usize = 280;
    /// [`LIVE_USABLE`] then.
    pub const PEAK_USABLE: usize = 288;
    /// When that was.
    pub const PEAK_NS: usize = 296;
}

/// What a limit of a process's address space (RLIMIT_AS), or its memory's being locked, has done to counting.
pub mod limit {
    /// It leaves too little: nothing is counted.
    pub const NOTHING: u64 = 1;
    /// The program set it, or came to it, and got back what counting had taken: what was counted before is here.
    pub const GIVEN_BACK: u64 = 2;
    /// The program locked its memory (`mlockall`), of which counting would have taken much: what was counted before is here.
    pub const LOCKED: u64 = 3;
}

/// Words of a block.
pub mod block {
    /// The next block; 0: none.
    pub const NEXT: usize = 0;
    /// [`super::IN_USE`] or [`super::FREE`].
    pub const STATE: usize = 8;
    /// The thread, as it calls itself.
    pub const TID: usize = 16;
    /// Its table, and the power of two of its rows in the low 8 bits: both change at once.
    pub const TABLE: usize = 24;
    /// Rows in use.
    pub const ROWS: usize = 32;
    /// Operations until the next one is timed.
    pub const COUNTDOWN: usize = 40;
    /// The state of the numbers that scatter those.
    pub const RANDOM: usize = 48;
    /// Where the thread's [`Running`](super::Running) is in its process.
    pub const RUNNING: usize = 56;
    /// Not added to the header's yet.
    pub const PENDING_REQUESTED: usize = 64;
    /// Likewise.
    pub const PENDING_USABLE: usize = 72;
    /// Likewise.
    pub const PENDING_BLOCKS: usize = 80;
    /// The most of [`PENDING_REQUESTED`] since it was added last.
    pub const MAX_REQUESTED: usize = 88;
    /// [`PENDING_USABLE`] then.
    pub const MAX_USABLE: usize = 96;
    /// The allocation whose successor of the same size class is looked at: its class and 1 in the low 8 bits, 0: none; above them how
    /// many blocks of that class the thread has freed since.
    pub const WATCH: usize = 104;
    /// Where its block is.
    pub const WATCHED: usize = 112;
    /// Where those blocks were, the first [`WATCHED_FREES`](super::WATCHED_FREES) of them.
    pub const WATCHED_FREED: usize = 120;
}

/// Frees that are remembered between an allocation and its successor.
pub const WATCHED_FREES: usize = 8;
const _: () = assert!(block::WATCHED_FREED + WATCHED_FREES * 8 <= BLOCK_BYTES);

/// Words of a row.
pub mod row {
    /// What was called, from where, and the size class; 0: no row.
    pub const KEY: usize = 0;
    /// Operations; blocks where the key is a [`reallocated_key`](super::reallocated_key), of which nothing else is known.
    pub const COUNT: usize = 8;
    /// Bytes that were asked for, or given back.
    pub const REQUESTED: usize = 16;
    /// Bytes that could be used.
    pub const USABLE: usize = 24;
    /// Blocks that began where none had begun before.
    pub const FRESH: usize = 32;
    /// Operations while there was more than one thread.
    pub const PARALLEL: usize = 40;
    /// Operations that were timed.
    pub const TIMED: usize = 48;
    /// Their ticks.
    pub const TICKS: usize = 56;
}

/// Bytes of a table of so many rows, as a power of two.
#[must_use]
pub const fn table_bytes(bits: u32) -> usize {
    (ROW_BYTES + SQUARES_BYTES) << bits
}

/// Where the sum of the squares of [`row::TICKS`] of each timed operation of a row is, an f64: it neither overflows nor needs a unit of its own.
/// `table` is a block's [`block::TABLE`], `row` the place of the row. Timed operations alone touch it, so that a row stays one cache line.
#[inline]
#[must_use]
pub const fn squares_at(table: u64, row: usize) -> usize {
    let (base, bits) = ((table & !0xff) as usize, table & 0xff);
    base + (ROW_BYTES << bits) + row.wrapping_sub(base) / ROW_BYTES * SQUARES_BYTES
}

/// State of a block.
pub const IN_USE: u64 = 1;
/// State of a block.
pub const FREE: u64 = 2;

/// What runs on a thread at the moment; in its thread-local memory.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Running {
    /// [`running_word`]; 0: none.
    pub word: std::cell::Cell<u64>,
    /// The stack pointer at its beginning. One that is not below it has left the operation without an end, as by an exception.
    pub stack: std::cell::Cell<u64>,
}

macro_rules! operations {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $text:literal, $time:ident;)*) => {
        /// What a program calls of an allocator.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Operation { $($(#[$doc])* $name = $number,)* }

        impl Operation {
            /// All of them.
            pub const ALL: &'static [Operation] = &[$(Operation::$name),*];

            /// As a program calls it.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Operation::$name => $text,)* }
            }

            /// The one of that number.
            #[must_use]
            pub const fn of(number: u8) -> Option<Operation> {
                match number { $($number => Some(Operation::$name),)* _ => None }
            }

            /// How its times are kept: of what allocates, apart for fresh and reused memory.
            #[must_use]
            pub const fn time_kind(self) -> TimeKind {
                match self { $(Operation::$name => TimeKind::$time,)* }
            }
        }
    };
}

operations! {
    /// malloc
    Malloc = 1, "malloc", Reused;
    /// calloc
    Calloc = 2, "calloc", Reused;
    /// realloc
    Realloc = 3, "realloc", Realloc;
    /// reallocarray
    ReallocArray = 4, "reallocarray", Realloc;
    /// aligned_alloc
    AlignedAlloc = 5, "aligned_alloc", Aligned;
    /// posix_memalign
    PosixMemalign = 6, "posix_memalign", Aligned;
    /// memalign
    Memalign = 7, "memalign", Aligned;
    /// valloc
    Valloc = 8, "valloc", Aligned;
    /// pvalloc
    Pvalloc = 9, "pvalloc", Aligned;
    /// operator new
    New = 10, "new", Reused;
    /// operator new[]
    NewArray = 11, "new[]", Reused;
    /// operator new and new[] with an alignment
    NewAligned = 12, "new(align)", Aligned;
    /// free
    Free = 16, "free", Free;
    /// free_sized and free_aligned_sized
    FreeSized = 17, "free_sized", Free;
    /// operator delete
    Delete = 18, "delete", Free;
    /// operator delete[]
    DeleteArray = 19, "delete[]", Free;
    /// malloc_usable_size
    UsableSize = 20, "malloc_usable_size", None;
    /// realloc and reallocarray to 0 bytes that gave nothing: that is known at their end, and until then they run as those
    ReallocFree = 21, "realloc(0)", Free;
    /// malloc_trim
    Trim = 22, "malloc_trim", None;
}

/// Kinds of operations whose times are kept apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum TimeKind {
    /// Allocations where no block had begun before.
    Fresh = 0,
    /// Other allocations.
    Reused = 1,
    /// Frees.
    Free = 2,
    /// Changes of size.
    Realloc = 3,
    /// Allocations with an alignment.
    Aligned = 4,
    /// Not kept.
    None = 5,
}

impl TimeKind {
    /// Those that are kept.
    pub const ALL: [TimeKind; TIME_KINDS] = [
        TimeKind::Fresh,
        TimeKind::Reused,
        TimeKind::Free,
        TimeKind::Realloc,
        TimeKind::Aligned,
    ];

    /// Its name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            TimeKind::Fresh => "fresh",
            TimeKind::Reused => "reused",
            TimeKind::Free => "free",
            TimeKind::Realloc => "realloc",
            TimeKind::Aligned => "aligned",
            TimeKind::None => "none",
        }
    }
}

/// What a thread says while it is at work on its tables, which is nothing of the program's.
pub const COUNTING: u64 = 31 << 47;

/// Bits of an address of code.
const ADDRESS: u64 = (1 << 47) - 1;

/// What runs, from where.
#[inline]
#[must_use]
pub const fn running_word(operation: Operation, site: u64) -> u64 {
    (operation as u64) << 47 | site & ADDRESS
}

/// What such a word says; none for one that no library has written.
#[must_use]
pub const fn of_running_word(word: u64) -> Option<(Operation, u64)> {
    match Operation::of((word >> 47 & 31) as u8) {
        Some(operation) => Some((operation, word & ADDRESS)),
        None => None,
    }
}

/// Whether a file is the C library, by its path.
#[must_use]
pub fn is_libc(path: &[u8]) -> bool {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    name.starts_with(b"libc.so.6")
}

/// The size class of what could not be allocated.
pub const FAILED_CLASS: u8 = 255;
/// Not a size class: blocks that lie on a cache line with one of another thread. [`row::FRESH`] says of how many the allocator gave out the
/// memory so by itself (active false sharing, if both write); the memory of the others had been freed by another thread than allocated it
/// (passive; Berger and others, Hoard, ASPLOS 2000).
pub const SHARED_LINE_CLASS: u8 = 254;
/// Not a size class: small blocks that were allocated soon after the thread had freed others of their class, in a sample. [`row::FRESH`] says how
/// many of them lie far from those and from the block that the thread had allocated before: the allocator chose neither what was used last
/// nor what lies beside (random choice, as in DieHarder; Novark and Berger, CCS 2010).
pub const CHOICE_CLASS: u8 = 253;
const LAST_CLASS: u8 = 252;
/// The largest class of which that is looked at, up to 1 KiB: what lies in one page with others.
pub const LAST_CHOICE_CLASS: u8 = 64;
/// Blocks that are so many bytes apart are far from each other.
pub const FAR_BYTES: u64 = 64 << 10;

/// The key of a row.
#[inline]
#[must_use]
pub const fn row_key(running: u64, class: u8) -> u64 {
    running | (class as u64) << 52
}

/// The bit of a key that no operation, caller or class has.
const REALLOCATED: u64 = 1 << 60;

/// The key of the row that has only blocks of a class that were reallocated by an operation: [`row::COUNT`] of them. The blocks that they have
/// become are operations of the rows of their own classes.
#[inline]
#[must_use]
pub const fn reallocated_key(running: u64, class: u8) -> u64 {
    row_key(running, class) | REALLOCATED
}

/// Whether a key is of such a row.
#[must_use]
pub const fn is_reallocated(key: u64) -> bool {
    key & REALLOCATED != 0
}

/// What a key says.
#[must_use]
pub const fn of_row_key(key: u64) -> Option<(Operation, u64, u8)> {
    match of_running_word(key & ((1 << 52) - 1)) {
        Some((operation, site)) => Some((operation, site, (key >> 52) as u8)),
        None => None,
    }
}

/// The size class of a block: of 16 bytes each up to 1 KiB, then four to each power of two.
#[inline]
#[must_use]
pub const fn class_of(usable: usize) -> u8 {
    if usable <= 1024 {
        return usable.div_ceil(16) as u8;
    }
    let last = usable - 1;
    let bits = usize::BITS - 1 - last.leading_zeros();
    let quarter = last >> (bits - 2) & 3;
    let class = 65 + (bits as usize - 10) * 4 + quarter;
    if class < LAST_CLASS as usize {
        class as u8
    } else {
        LAST_CLASS
    }
}

/// The largest block of a class.
#[must_use]
pub const fn class_bytes(class: u8) -> u64 {
    if class <= 64 {
        return class as u64 * 16;
    }
    if class >= LAST_CLASS {
        return u64::MAX;
    }
    let step = class as u64 - 65;
    let bits = 10 + step / 4;
    (1 << bits) + ((step % 4 + 1) << (bits - 2))
}

/// The bucket of a time.
#[inline]
#[must_use]
pub const fn bucket_of(ticks: u64) -> usize {
    if ticks < 16 {
        return ticks as usize;
    }
    let bits = 63 - ticks.leading_zeros();
    let bucket = 16 + (bits as usize - 4) * 8 + (ticks >> (bits - 3) & 7) as usize;
    if bucket < BUCKETS {
        bucket
    } else {
        BUCKETS - 1
    }
}

/// The first tick of a bucket.
#[must_use]
pub const fn bucket_start(bucket: usize) -> u64 {
    if bucket < 16 {
        return bucket as u64;
    }
    let step = bucket as u64 - 16;
    (8 + step % 8) << (step / 8 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_has_the_blocks_up_to_its_size() {
        for usable in (1..70_000).chain((0..40).map(|b| (1usize << b) + 1)) {
            let class = class_of(usable);
            assert!(class_bytes(class) >= usable as u64, "{usable}");
            let below = class_bytes(class - 1);
            assert!(below < usable as u64, "{usable}: {class} {below}");
        }
        assert_eq!(class_of(0), 0);
        assert!(class_of(usize::MAX) < FAILED_CLASS);
    }

    #[test]
    fn buckets_have_the_times_from_their_start() {
        for ticks in (0..100_000).chain((0..33).map(|b| (1u64 << b) + 3)) {
            let bucket = bucket_of(ticks);
            assert!(bucket_start(bucket) <= ticks, "{ticks}");
            assert!(
                bucket == BUCKETS - 1 || bucket_start(bucket + 1) > ticks,
                "{ticks}"
            );
        }
    }

    #[test]
    fn keys_say_what_went_into_them() {
        for operation in Operation::ALL {
            let word = running_word(*operation, 0x7fff_1234_5678);
            assert_eq!(of_running_word(word), Some((*operation, 0x7fff_1234_5678)));
            let key = row_key(word, 254);
            assert_eq!(of_row_key(key), Some((*operation, 0x7fff_1234_5678, 254)));
            assert!(!is_reallocated(row_key(word, u8::MAX)));
            let key = reallocated_key(word, 17);
            assert!(is_reallocated(key));
            assert_eq!(of_row_key(key), Some((*operation, 0x7fff_1234_5678, 17)));
        }
        assert_eq!(of_running_word(0), None);
        assert_eq!(of_running_word(COUNTING), None);
    }
}
