//! Who shares what: for every object its threads, the part of it that each uses, and when; and for every thread the
//! objects that it goes through. These are the questions of TABARNAC (which threads use which pages of which structure)
//! and of MemProf (object event flows and thread event flows).
//!
//! The answers come from the best that a trace has: counts of every access, else samples, else trapped accesses, else page
//! faults; each says which, and what its weight is. Of trapped accesses only the first to a page in an interval is known, so
//! they can prove that threads share something, never that one is alone with it; what would need more is null. Memory
//! depends on objects, threads and [`RANGES`], and of trapped accesses on the pages, not on the length of the trace.

mod blocks;
mod build;
mod chance;
mod flow;
mod parts;
mod sharers;

use serde::Serialize;
use ts_rs::TS;
use varve_model::{Address, Bytes, Duration, ObjectId, ObjectKind, Pages, Pid, Tid, Time};

use crate::sections::counts::Sharing;

pub(crate) use blocks::{MIN_EVENTS, MIN_TURNS, SURE};
pub(crate) use sharers::Sharers;

/// Parts into which an object's pages are divided, at most, a whole number of pages each.
pub(crate) const RANGES: u64 = 64;
/// A thread of which less is known is not said to leave an object alone, nor an object to be one thread's.
pub(crate) const ENOUGH: u64 = 30;

/// Who shares what.
#[derive(Clone, Debug, PartialEq, Serialize, TS)]
pub struct SharingUse {
    /// What it is known from.
    pub source: SharingSource,
    /// What weights count.
    pub unit: WeightUnit,
    /// What a weight is, a sentence.
    pub weight: String,
    /// Events: rows of counts, samples of known accesses, first accesses to pages in intervals, or page faults.
    pub events: u64,
    /// Whether these are enough to say who uses what: of samples, [`ENOUGH`].
    pub enough: bool,
    /// Their weight.
    pub total: u64,
    /// The time axis of flows; null where the source has none.
    pub axis: Option<Axis>,
    /// The threads, most weight first; others refer to them by position.
    pub threads: Vec<SharingThread>,
    /// The objects, most weight first.
    pub objects: Vec<ObjectSharing>,
    /// Objects that the list leaves out.
    pub omitted_objects: u64,
    /// Cache lines of 64 bytes with several threads of which one writes, most weight first. Only samples and trapped accesses
    /// have addresses; of the latter no lines with the same bytes are listed, as they do not say how many bytes are used.
    pub lines: Vec<SharedBlock>,
    /// The same of pages of 4 KiB, by lines.
    pub pages: Vec<SharedBlock>,
    /// Lines and pages in which accesses were distinguished; with [`SURE`] this bounds the chance of each to be there by luck.
    pub tested: u64,
    /// Blocks with no more events than this may be missing, because there were too many blocks; 0 as a rule.
    pub missed_below: u64,
}

/// What sharing is known from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, TS)]
#[serde(rename_all = "lowercase")]
pub enum SharingSource {
    /// Every access was counted, or another tool counted them.
    Counts,
    /// Samples of accesses.
    Samples,
    /// Trapped accesses: the first to each page in an interval. Who used the page later in it is not known.
    Traps,
    /// Page faults: the first touch of each page, nothing later.
    Faults,
}

/// What weights count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, TS)]
#[serde(rename_all = "lowercase")]
pub enum WeightUnit {
    /// Accesses.
    Accesses,
    /// Nanoseconds at the instruction.
    Nanoseconds,
    /// Samples.
    Samples,
    /// First accesses to pages in intervals.
    #[serde(rename = "first_accesses")]
    FirstAccesses,
    /// Pages touched first.
    Pages,
}

/// The time axis of flows: bins of equal length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, TS)]
pub struct Axis {
    /// Where the first bin begins.
    pub start_ns: Time,
    /// The length of a bin.
    pub bin_ns: Duration,
    /// How many bins.
    pub bins: u32,
}

/// A thread.
#[derive(Clone, Debug, PartialEq, Serialize, TS)]
pub struct SharingThread {
    /// Its process.
    pub pid: Pid,
    /// The thread.
    pub tid: Tid,
    /// Its name; empty where unknown.
    pub name: String,
    /// Its events.
    pub events: u64,
    /// Their weight.
    pub weight: u64,
    /// The part of it that writes.
    pub writes: u64,
    /// Its event flow: the objects that it goes through, in order.
    pub phases: Vec<ThreadPhase>,
}

/// A time in which a thread uses one object most.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, TS)]
pub struct ThreadPhase {
    /// Its beginning.
    pub from_ns: Time,
    /// Its end.
    pub to_ns: Time,
    /// The object.
    pub object: ObjectId,
    /// The weight of the thread's use of it.
    pub weight: u64,
    /// That of everything that the thread does meanwhile.
    pub of: u64,
}

/// An object and its threads.
#[derive(Clone, Debug, PartialEq, Serialize, TS)]
pub struct ObjectSharing {
    /// Its number.
    pub object: ObjectId,
    /// Its name.
    pub name: String,
    /// How many objects of that name these figures are of: small ones, below 64 KiB each, count together, and then there
    /// are no parts.
    pub objects: u64,
    /// What it is.
    pub kind: ObjectKind,
    /// Its process.
    pub pid: Pid,
    /// Its size; of several the sum.
    pub bytes: Bytes,
    /// Events in it.
    pub events: u64,
    /// Their weight.
    pub weight: u64,
    /// The part of it that reads; null where the source does not say.
    pub reads: Option<u64>,
    /// The part of it that writes.
    pub writes: Option<u64>,
    /// Private or shared, as far as was seen; null where only first touches are known, and where trapped accesses show one
    /// thread.
    pub class: Option<SharingClass>,
    /// Its pages by who accessed them; null where accesses were not counted.
    pub pages: Option<Sharing>,
    /// The thread that touched most of its pages first; null where unknown.
    pub first_tid: Option<Tid>,
    /// Its threads, most weight first.
    pub threads: Vec<SharingPart>,
    /// Threads of the process that lived beside it and never touched it; of samples: that were seen elsewhere at least
    /// [`ENOUGH`] times, and never in it. Null of trapped accesses.
    pub never_touched_by: Option<Vec<Tid>>,
    /// Threads that touch it and never write it; of samples: that were seen in it at least [`ENOUGH`] times. Null of trapped
    /// accesses.
    pub never_written_by: Option<Vec<Tid>>,
    /// The share of its weight that belongs to the heaviest thread of each part: 1 where every part is one thread's. Of at
    /// most 64 parts, fewer where they would have less than 16 events each; parts with less than 8 do not count, and it is
    /// null where the others have less than half the weight, and of trapped accesses.
    pub own_share: Option<f64>,
    /// The distribution of its pages over threads.
    pub ranges: Ranges,
    /// Its event flow: which threads use it, when.
    pub phases: Vec<ObjectPhase>,
    /// The same in bins of the axis.
    pub flow: Vec<FlowCell>,
}

/// Private or shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum SharingClass {
    /// One thread.
    Private,
    /// Several threads, none of which writes.
    ReadOnly,
    /// Several threads, one of which writes.
    OneWriter,
    /// Several threads that write.
    ManyWriters,
    /// Several threads; which of them write is not known.
    Shared,
    /// Fewer than [`ENOUGH`] samples of it, which do not show several threads that write: others may have gone unseen.
    TooFew,
}

impl SharingClass {
    /// In words.
    pub const fn as_str(self) -> &'static str {
        match self {
            SharingClass::Private => "private",
            SharingClass::ReadOnly => "read only",
            SharingClass::OneWriter => "one writes",
            SharingClass::ManyWriters => "several write",
            SharingClass::Shared => "shared",
            SharingClass::TooFew => "too few samples",
        }
    }
}

/// A thread's part of an object.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, TS)]
pub struct SharingPart {
    /// The thread, by position in [`SharingUse::threads`].
    pub thread: u32,
    /// The thread.
    pub tid: Tid,
    /// Its events.
    pub events: u64,
    /// Their weight.
    pub weight: u64,
    /// The part of it that writes.
    pub writes: u64,
    /// Parts of the object, of [`Ranges::count`], that it was seen in.
    pub ranges: u32,
    /// Pages that it touched first; null where unknown.
    pub first_pages: Option<Pages>,
    /// Its first event and its last; null where the source has no time.
    pub first_ns: Option<Time>,
    /// Likewise.
    pub last_ns: Option<Time>,
}

/// How an object's pages are spread over threads.
#[derive(Clone, Debug, Default, PartialEq, Serialize, TS)]
pub struct Ranges {
    /// Parts of the object.
    pub count: u32,
    /// Pages of a part; the last may have fewer.
    pub pages: Pages,
    /// The parts that are used.
    pub cells: Vec<RangeCell>,
}

/// A thread in a part of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, TS)]
pub struct RangeCell {
    /// The part.
    pub range: u32,
    /// The thread, by position.
    pub thread: u32,
    /// Events.
    pub events: u64,
    /// Their weight.
    pub weight: u64,
    /// The part of it that writes.
    pub writes: u64,
}

/// A time in which the same threads use an object.
#[derive(Clone, Debug, PartialEq, Serialize, TS)]
pub struct ObjectPhase {
    /// Its beginning.
    pub from_ns: Time,
    /// Its end.
    pub to_ns: Time,
    /// Threads with a tenth of its weight then, at least; by position.
    pub threads: Vec<u32>,
    /// The weight of all use.
    pub weight: u64,
}

/// A thread in an object in a bin of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, TS)]
pub struct FlowCell {
    /// The bin.
    pub bin: u32,
    /// The thread, by position.
    pub thread: u32,
    /// The weight.
    pub weight: u64,
    /// The part of it that writes.
    pub writes: u64,
}

/// What several threads do in one cache line, or in one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum BlockKind {
    /// The same bytes (of a page: the same lines), and one of the threads writes them.
    TrueSharing,
    /// Different bytes, and one of the threads writes.
    FalseSharing,
}

/// A cache line or a page with several threads.
#[derive(Clone, Debug, PartialEq, Serialize, TS)]
pub struct SharedBlock {
    /// The object; null where none is known there.
    pub object: Option<ObjectId>,
    /// Its name; empty where none is known.
    pub name: String,
    /// The first byte of the block.
    pub address: Address,
    /// Its size.
    pub bytes: Bytes,
    /// What its two busiest threads do.
    pub kind: BlockKind,
    /// Events in it.
    pub events: u64,
    /// Their weight.
    pub weight: u64,
    /// Its share of the weight of all accesses, 0 to 1; of trapped accesses that says nothing of how often it is used.
    pub share: f64,
    /// The standard error of `share`; 0 of trapped accesses, which are no sample of all accesses.
    pub share_error: f64,
    /// How often the next event in it was of another thread.
    pub turns: u64,
    /// The chance that accesses of one common pattern would fall apart between the two threads so by luck; 0 for true
    /// sharing.
    pub chance: f64,
    /// The two busiest threads, with the bytes (offsets in the block) that they use.
    pub threads: [BlockThread; 2],
}

/// A thread in a block.
#[derive(Clone, Debug, PartialEq, Serialize, TS)]
pub struct BlockThread {
    /// The thread, by position in [`SharingUse::threads`].
    pub thread: u32,
    /// The thread.
    pub tid: Tid,
    /// Events.
    pub events: u64,
    /// Those that write.
    pub writes: u64,
    /// Its bytes: from, to (one past the last).
    pub bytes: Vec<(u32, u32)>,
}
