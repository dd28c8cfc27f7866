//! Allocator operations, their times, what the kernel did within them, and the memory that allocators manage.

use std::borrow::Cow;
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{Field, Schema, SchemaRef};
use varve_model::{Address, Bytes, Duration, Page, Pid, SiteId, Tid, Time};

use super::{Row, Table};
use crate::cell::Cell;

table! {
    /// Allocator operations of a thread since the row before with the same thread, operation, class and site.
    OperationRow in "operations" growing ["time_ns"] {
        /// When they were read: they had ended by then.
        time_ns: Time,
        /// The process.
        pid: Pid,
        /// The thread.
        tid: Tid,
        /// What was called, such as `malloc` or `delete[]`; `realloc(0)`: a `realloc` or `reallocarray` to 0 bytes that gave nothing and freed the block.
        operation: Cow<'static, str>,
        /// The size class, by its largest usable size; null where there was nothing to be had. Of a free, that of what was freed.
        class_bytes: Option<Bytes>,
        /// The caller, in `sites`: a stack of one frame.
        site: Option<SiteId>,
        /// Operations. 0 in rows that have `reallocated` alone.
        count: u64,
        /// Blocks of this class that `realloc` and `reallocarray` took: what they became is an operation of the class of its new size, the same one or another.
        reallocated: u64,
        /// Bytes that were asked for, or given back.
        requested_bytes: Bytes,
        /// Bytes that could be used in those blocks; null where the allocator does not say it.
        usable_bytes: Option<Bytes>,
        /// Blocks that began where none had begun before; null where probes counted, which do not know it.
        fresh: Option<u64>,
        /// Operations while the process had several threads that allocate.
        parallel: u64,
        /// Operations that were timed.
        timed: u64,
        /// How long these took, without what the clock takes.
        timed_ns: Duration,
        /// The root of the sum of the squares of how long each of these took: rows add up as its squares. Null where probes counted, which do not add squares.
        timed_norm_ns: Option<Duration>,
    }
}

table! {
    /// Times of allocator operations of a process, of those that were timed, since the row before with the same bounds.
    OperationTimeRow in "operation_times" growing ["time_ns"] {
        /// When they were read.
        time_ns: Time,
        /// The process.
        pid: Pid,
        /// `fresh` and `reused` (allocations, by whether a block had begun there before; `allocation` where probes counted, which do not know it), `free`, `realloc` or `aligned`.
        kind: Cow<'static, str>,
        /// The shortest time of these.
        from_ns: Duration,
        /// All were shorter than this.
        to_ns: Duration,
        /// How many.
        count: u64,
    }
}

table! {
    /// What the kernel did within allocator operations of a process, since the row before with the same operation, site and name.
    OperationChargeRow in "operation_charges" growing ["time_ns"] {
        /// When it was read, or the program had ended.
        time_ns: Time,
        /// The process.
        pid: Pid,
        /// What was called; null: outside of operations (page faults, waits for the lock of mappings and clocks alone), and of what is counted for all of a process; `counting`: the preload library was at work on its tables, or the kernel on its probes.
        operation: Option<String>,
        /// The caller, in `sites`.
        site: Option<SiteId>,
        /// A system call by its name; `page_fault`; `first_touch`: a page fault outside of operations at a page of the allocator's that had not been touched since it was mapped or emptied, `first_touch_by_kernel` those of them that the kernel made for the program as in `read`, and `first_touch_in_operation` the same within operations; `came_again`, `came_again_by_kernel` and `came_again_in_operation`: those of these for which a touched page was there that operations had given back and that had not come again; `unmapped_touched` and `advised_touched`: touched pages that operations unmapped, or gave back by `madvise`; `unmapped_resident` and `advised_resident`: calls that did so, and at least how much of the process was gone then by the kernel's counter; `most_resident`: calls that take pages away, and how much of the process there was before one at most, by which that has grown; `mmap_lock`, `mmap_lock_spun` and `mmap_lock_of_others`: waits for the lock of the process's mappings in which the thread slept, kept its CPU, or waited for another process; `clock_user` and `clock_kernel`: the clock of a CPU found a thread at work there; `clock_pause`: of `clock_user`, those at the instruction by which loops that wait pause; `clock_first_touch`: of `clock_kernel` outside of operations, those in a `first_touch` by the program's own code and not by the kernel, `clock_came_again` those in one that is a `came_again`.
        name: Cow<'static, str>,
        /// How often.
        count: u64,
        /// How long in all the threads ran or slept in system calls and waits; of clocks, the time that they stand for.
        total_ns: Duration,
        /// How long they were ready to run in those calls and had no CPU, because others did.
        queued_ns: Duration,
        /// Bytes of memory that the calls were about that did not fail, or of the pages.
        bytes: Bytes,
        /// Calls that failed: they gave an error, or (`brk`) did not move the end of the heap to where it was to be.
        failed: u64,
    }
}

table! {
    /// The memory of a process that its allocator manages, at a moment.
    HeapMemoryRow in "heap_memory" growing ["time_ns"] {
        /// When.
        time_ns: Time,
        /// The process.
        pid: Pid,
        /// The file that has the allocator.
        allocator: String,
        /// Bytes that the program asked for and had not freed.
        requested_bytes: Bytes,
        /// Bytes that it could use in those blocks; null where the allocator does not say it.
        usable_bytes: Option<Bytes>,
        /// Those blocks.
        blocks: u64,
        /// The most of `requested_bytes` up to then.
        peak_requested_bytes: Bytes,
        /// `usable_bytes` at that moment; null likewise.
        peak_usable_bytes: Option<Bytes>,
        /// When that was.
        peak_ns: Time,
        /// Resident anonymous memory without Varve's own; null where it could not be read.
        resident_bytes: Option<Bytes>,
        /// Bytes of addresses that system calls within operations had mapped, at the most since the row before; null where that is not known.
        mapped_bytes: Option<Bytes>,
        /// Resident bytes of those; null where nobody looked.
        heap_resident_bytes: Option<Bytes>,
        /// Of these, at least so many that lay in no block, nor in what glibc has before each; null likewise.
        kept_bytes: Option<Bytes>,
        /// Memory that counting takes in the process.
        own_bytes: Bytes,
        /// Operations up to then that were not counted, with those of the process that it was forked from up to the fork: what lives, and the most, are not known from the first one on. Null where the process has ended the counting, for a limit of its memory or as it locked that.
        uncounted: Option<u64>,
        /// Frees up to then of blocks that nobody saw allocated.
        unknown_frees: u64,
        /// Blocks up to then that were handed out where one lived: nobody saw that one freed. It is no part of the other figures from then on.
        unseen_frees: u64,
    }
}

table! {
    /// A sampled block of memory, once as it is allocated and once as it is freed. Each byte that a thread allocates is as likely as any other to have its block sampled: one of `s` bytes is with the probability `1 - exp(-s / m)`, where `m` is `operations.sample_bytes` of the manifest. What a forked child frees of its parent's is not listed.
    SampledBlockRow in "sampled_blocks" growing ["time_ns"] {
        /// When.
        time_ns: Time,
        /// The process.
        pid: Pid,
        /// The thread that allocated or freed it.
        tid: Tid,
        /// Whether it is freed.
        freed: bool,
        /// Its first byte.
        address: Address,
        /// What was asked for.
        bytes: Bytes,
        /// The call stack that allocated it, in `sites`; null as it is freed, and where it is not known.
        site: Option<SiteId>,
    }
}

table! {
    /// How full the resident pages of what an allocator has mapped are with blocks that live, at a moment: all that are full up to the same bound.
    HeapPagesRow in "heap_pages" growing ["time_ns"] {
        /// When.
        time_ns: Time,
        /// The process.
        pid: Pid,
        /// Eighths of a page that are in blocks, at most: 0, 1, 2, 4, 6 or 8; more than the bound before it.
        eighths: u32,
        /// Resident pages of 4 KiB.
        pages: u64,
        /// Bytes of blocks on them, each block rounded up to 16.
        live_bytes: Bytes,
        /// Cache lines with a part of a block.
        lines: u64,
        /// Of these pages, those with blocks that several threads allocated, at least: of blocks that begin on one cache line the last one's thread is known.
        shared_pages: u64,
    }
}

table! {
    /// Resident pages of what an allocator has mapped that blocks fill to a quarter at most, but not to nothing, at the moment when they kept most free memory.
    SparsePagesRow in "sparse_pages" growing ["page"] {
        /// When.
        time_ns: Time,
        /// The process.
        pid: Pid,
        /// The first page.
        page: Page,
        /// How many, one behind the other.
        pages: u32,
        /// Bytes of blocks on each of them, each block rounded up to 16.
        live_bytes: u32,
    }
}

table! {
    /// Blocks of a thread that came to lie on a cache line with one of another thread, since the row before with the same thread, operation and site.
    SharedLineRow in "shared_lines" growing ["time_ns"] {
        /// When they were read.
        time_ns: Time,
        /// The process.
        pid: Pid,
        /// The thread.
        tid: Tid,
        /// What was called.
        operation: Cow<'static, str>,
        /// The caller, in `sites`: a stack of one frame.
        site: Option<SiteId>,
        /// Blocks.
        blocks: u64,
        /// Of these, in memory that no other thread than the one that had allocated it had freed: the allocator gave the line to both by itself.
        active: u64,
    }
}

table! {
    /// Small blocks (1 KiB at most) that a thread allocated after it had freed others of their size class, in a sample, since the row before with
    /// the same thread, operation and site.
    BlockChoiceRow in "block_choices" growing ["time_ns"] {
        /// When they were read.
        time_ns: Time,
        /// The process.
        pid: Pid,
        /// The thread.
        tid: Tid,
        /// What was called.
        operation: Cow<'static, str>,
        /// The caller, in `sites`: a stack of one frame.
        site: Option<SiteId>,
        /// Blocks.
        blocks: u64,
        /// Of these, 64 KiB and more away from what was freed since the thread's allocation of that class before, and from that one's block.
        far: u64,
    }
}
