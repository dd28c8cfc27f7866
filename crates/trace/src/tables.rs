//! The tables of a trace: one row type each, whose fields are the columns, in order.

use std::borrow::Cow;
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{Field, Schema, SchemaRef};
use varve_model::{
    Address, Bytes, Cpu, Duration, Interval, MemoryLevel, ObjectId, ObjectKind, Page, Pid,
    Resolved, SampleMode, SampleSource, SiteId, Tid, Time, TouchSource,
};

use crate::cell::Cell;
use crate::selection::{self, Selection};

/// A table's name and how its columns are best packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table {
    /// The file is `NAME.parquet`.
    pub name: &'static str,
    /// Columns whose values mostly grow or hardly ever repeat: packed as deltas.
    pub growing: &'static [&'static str],
}

/// A row of a table.
pub trait Row: Sized + Clone {
    /// The table that holds such rows.
    const TABLE: Table;
    /// The columns.
    fn schema() -> SchemaRef;
    /// The same facts in the rows that are smallest when written.
    fn packed(rows: &[Self]) -> Cow<'_, [Self]> {
        Cow::Borrowed(rows)
    }
    /// Whether a reader sees it who reads a part of a trace.
    fn is_chosen(&self, _of: &Selection) -> bool {
        true
    }
    /// Rows to columns.
    fn to_batch(rows: &[Self]) -> Result<RecordBatch, String>;
    /// Columns to rows. Columns that this version does not know are passed over.
    fn from_batch(batch: &RecordBatch) -> Result<Vec<Self>, String>;
}

macro_rules! table {
    ($(#[$doc:meta])* $row:ident in $name:literal growing [$($growing:literal),*] $(packed by $pack:path)? $(; chosen by $chosen:path)? {
        $($(#[$fdoc:meta])* $field:ident: $ty:ty,)*
    }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $row { $($(#[$fdoc])* pub $field: $ty,)* }

        impl Row for $row {
            const TABLE: Table = Table { name: $name, growing: &[$($growing),*] };

            fn schema() -> SchemaRef {
                Arc::new(Schema::new(vec![
                    $(Field::new(stringify!($field), <$ty as Cell>::data_type(), <$ty as Cell>::NULLABLE)),*
                ]))
            }

            $(fn packed(rows: &[Self]) -> Cow<'_, [Self]> {
                $pack(rows)
            })?

            $(fn is_chosen(&self, of: &Selection) -> bool {
                $chosen(self, of)
            })?

            fn to_batch(rows: &[Self]) -> Result<RecordBatch, String> {
                let columns: Vec<ArrayRef> = vec![$({
                    let cells: Vec<$ty> = rows.iter().map(|r| r.$field.clone()).collect();
                    <$ty as Cell>::to_array(&cells)
                }),*];
                RecordBatch::try_new(Self::schema(), columns).map_err(|e| e.to_string())
            }

            fn from_batch(batch: &RecordBatch) -> Result<Vec<Self>, String> {
                $(let mut $field = {
                    let column = batch
                        .column_by_name(stringify!($field))
                        .ok_or_else(|| format!("it has no column `{}`", stringify!($field)))?;
                    <$ty as Cell>::from_array(column.as_ref())
                        .map_err(|e| format!("column `{}`: {e}", stringify!($field)))?
                        .into_iter()
                };)*
                let mut rows = Vec::with_capacity(batch.num_rows());
                while let ($(Some($field),)*) = ($($field.next(),)*) {
                    rows.push($row { $($field),* });
                }
                Ok(rows)
            }
        }
    };
}

mod marks;
mod operations;
pub use self::marks::{BegunMarkRow, EndedMarkRow, MarkRow};
pub use self::operations::{
    BlockChoiceRow, HeapMemoryRow, HeapPagesRow, OperationChargeRow, OperationRow,
    OperationTimeRow, SampledBlockRow, SharedLineRow, SparsePagesRow,
};

table! {
    /// One interval of the recording.
    IntervalRow in "intervals" growing ["interval", "start_ns", "end_ns"] ; chosen by selection::of_interval {
        /// Its number, from 0, without gaps.
        interval: Interval,
        /// When the target was let go at the interval's beginning.
        start_ns: Time,
        /// When the target was held at the interval's end, or else the accessed bits had been cleared: everything it did before is in it.
        end_ns: Time,
        /// How long the target was held at the end of the interval: from the order to stand still to its release. Until all threads stood still the interval went on. The sum where it was held several times.
        held_ns: Duration,
        /// The longest time for which it was held without a break.
        longest_hold_ns: Duration,
        /// The part of that until all threads stood still.
        longest_stop_ns: Duration,
        /// How often it was held at the end of the interval, each time for a part of its memory where that was more than once; 0 where it was not.
        holds: u32,
        /// How long the target ran on while its bits were taken, about `end_ns`: what it accessed in this time before `end_ns` may stand in the next interval as well, and what in this time after, in this one. 0 where it was held once, for all of its memory.
        overlap_ns: Duration,
        /// Pages resident in all recorded processes at the end, in 4 KiB pages; a page of shared memory (`MAP_SHARED`) counts once, any other that several processes map in each.
        resident_pages: u64,
        /// Mappings of all recorded processes at the end, as far as they are known.
        mappings: u64,
        /// Processes alive at the end.
        processes: u32,
        /// Threads alive at the end.
        threads: u32,
        /// CPU time that the recorder itself used in the interval.
        recorder_cpu_ns: Duration,
    }
}

table! {
    /// A run of pages touched in an interval.
    TouchRow in "touches" growing ["interval", "page"] packed by crate::encoding::packing::pack ; chosen by selection::of_touch {
        /// The interval.
        interval: Interval,
        /// The process.
        pid: Pid,
        /// The first page: virtual address >> 12.
        page: Page,
        /// The length of the run, in 4 KiB pages.
        pages: u32,
        /// The size of the hardware page that carried the accessed bit, in bytes: a touch of one byte
        /// of a huge page is a touch of all of it.
        page_bytes: u32,
        /// Whether the pages were written in the interval; null where the kernel does not say.
        written: Option<bool>,
        /// How the touch became known.
        source: TouchSource,
    }
}

table! {
    /// One page fault of a recorded thread.
    FaultRow in "faults" growing ["time_ns", "address"] ; chosen by selection::of_fault {
        /// When it happened.
        time_ns: Time,
        /// The process.
        pid: Pid,
        /// The thread.
        tid: Tid,
        /// The CPU it ran on.
        cpu: Cpu,
        /// The instruction, a kernel address where `kernel` is true.
        ip: Address,
        /// The address that was accessed.
        address: Address,
        /// Whether it was a write; null where the source does not say.
        write: Option<bool>,
        /// Whether the kernel made the access on the program's behalf.
        kernel: bool,
    }
}

table! {
    /// One memory access that was sampled, trapped or imported, or a sample whose access is not known.
    SampleRow in "samples" growing ["time_ns", "address"] ; chosen by selection::of_sample {
        /// When it happened.
        time_ns: Time,
        /// The process; 0 where the source does not say.
        pid: Pid,
        /// The thread.
        tid: Option<Tid>,
        /// The CPU it ran on.
        cpu: Option<Cpu>,
        /// The program's instruction at which the thread stood, also where the kernel was at work.
        ip: Option<Address>,
        /// The first byte of the access; null where it could not be resolved for certain.
        address: Option<Address>,
        /// How many bytes were accessed.
        bytes: Option<Bytes>,
        /// Whether it was a write.
        write: Option<bool>,
        /// The object, in `objects`.
        object: Option<ObjectId>,
        /// How the sample became known.
        source: SampleSource,
        /// How long the access took, in CPU cycles, as the hardware reports it.
        latency_cycles: Option<u32>,
        /// Where the data came from.
        level: Option<MemoryLevel>,
        /// Which instruction's access it is. Of `overwritten` the address is null.
        resolved: Option<Resolved>,
        /// Which code was at work, where the source says.
        mode: Option<SampleMode>,
        /// The time of a CPU that the row stands for: the sample's, shared by its accesses. Not a number of accesses; null
        /// where a row is an access.
        weight_ns: Option<Duration>,
        /// What was sampled, as another tool that recorded it calls it, such as `cycles`; null of the recorder's own samples and
        /// where a source has one kind of sample.
        event: Option<String>,
        /// How many of that event the row stands for.
        period: Option<u64>,
        /// The call stack, in `sites`; its first frame is the instruction.
        site: Option<SiteId>,
    }
}

table! {
    /// How often a thread accessed a page in an interval.
    CountRow in "counts" growing ["interval", "page"] ; chosen by selection::of_count {
        /// The interval.
        interval: Interval,
        /// The process; 0 where the source does not say.
        pid: Pid,
        /// The thread.
        tid: Option<Tid>,
        /// The page: virtual address >> 12.
        page: Page,
        /// Accesses that read.
        reads: u64,
        /// Accesses that wrote.
        writes: u64,
        /// Whether the thread was the first to access the page.
        first: Option<bool>,
    }
}

table! {
    /// The beginning of an object's life (raw; `objects` holds the merged form).
    BirthRow in "births" growing ["object", "address", "born_ns"] {
        /// The object.
        object: ObjectId,
        /// The process.
        pid: Pid,
        /// What it is.
        kind: ObjectKind,
        /// How it was made, such as `malloc` or `mmap`; for stacks and files, their name.
        made_by: Cow<'static, str>,
        /// Its first byte.
        address: Address,
        /// Its size.
        bytes: Bytes,
        /// When.
        born_ns: Time,
        /// The thread that made it.
        tid: Option<Tid>,
        /// The call stack, in `stacks`.
        site: Option<SiteId>,
        /// Whether it is a page of pooled small objects.
        pool: bool,
        /// Whether it is a reservation: address space that cannot be accessed.
        reserved: bool,
        /// The object that it came of, when that grew, shrank or moved.
        continues: Option<ObjectId>,
    }
}

table! {
    /// The end of an object's life (raw).
    DeathRow in "deaths" growing ["object", "died_ns"] {
        /// The object.
        object: ObjectId,
        /// When.
        died_ns: Time,
    }
}

table! {
    /// A call stack as it was captured (raw; `sites` holds the symbolized form).
    StackRow in "stacks" growing ["site"] {
        /// The site.
        site: SiteId,
        /// The process whose mappings give the addresses their meaning.
        pid: Pid,
        /// When it was captured.
        time_ns: Time,
        /// User instruction addresses, innermost first; all are return addresses but the first, and the
        /// first too where `first_is_return`.
        frames: Vec<Address>,
        /// Whether the first frame is a return address too.
        first_is_return: bool,
    }
}

table! {
    /// A function that a program generated while it ran, as its runtime reported it to `perf` (raw; `sites` holds the symbolized form).
    GeneratedRow in "generated" growing ["address"] {
        /// The process.
        pid: Pid,
        /// When the program ended that reported it; the greatest number where it went on.
        until_ns: Time,
        /// Where it starts.
        address: Address,
        /// Its size in bytes.
        bytes: Bytes,
        /// As the runtime calls it.
        name: String,
    }
}

table! {
    /// One life of one object.
    ObjectRow in "objects" growing ["object", "address", "born_ns", "died_ns"] ; chosen by selection::of_object {
        /// The object.
        object: ObjectId,
        /// The process.
        pid: Pid,
        /// What it is.
        kind: ObjectKind,
        /// Its name, as a person would say it.
        name: String,
        /// Its allocation site, in `sites`.
        site: Option<SiteId>,
        /// Its first byte.
        address: Address,
        /// Its size.
        bytes: Bytes,
        /// When it came to be; for static data, when its file was mapped.
        born_ns: Time,
        /// When it ceased; null where it lived to the end.
        died_ns: Option<Time>,
        /// The thread that made it, where one did.
        tid: Option<Tid>,
        /// Whether it is a page of pooled small objects.
        pool: bool,
        /// How far inside other objects it lies: where several objects cover a page, the one with the
        /// highest layer owns it. 0 mapping, 1 segment of an executable or a reservation, 2 mapping with a call site,
        /// 3 stack, 4 pool, 5 heap object, 6 and up static data.
        layer: u32,
        /// The object that it came of, when that grew, shrank or moved: both are one object.
        continues: Option<ObjectId>,
    }
}

/// A frame of a call stack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Frame {
    /// The function, demangled.
    pub function: Option<String>,
    /// The source file.
    pub file: Option<String>,
    /// The line in it.
    pub line: Option<u32>,
    /// The byte in the line, from 1.
    pub column: Option<u32>,
    /// The line at which the function begins, in the same file: what is so many lines behind it is the same place in
    /// another build.
    pub function_line: Option<u32>,
    /// The executable or library.
    pub module: Option<String>,
    /// Where the line is not known: the address in the module's file, as its symbols count and as `addr2line -e` takes it. Of a return address, that
    /// of the byte before, which is the call's. `None` as well where no file has the code.
    pub offset: Option<u64>,
    /// The instruction's address.
    pub address: Address,
}

impl Frame {
    /// What code without symbols is called: `app+0x11d2`, by the base name of its module; that alone where the offset is not known.
    #[must_use]
    pub fn in_module(&self) -> Option<String> {
        let module = self.module.as_deref()?;
        let base = module.rsplit('/').next().unwrap_or(module);
        Some(match self.offset {
            Some(offset) => format!("{base}+{offset:#x}"),
            None => base.to_owned(),
        })
    }
}

table! {
    /// A call stack with names.
    SiteRow in "sites" growing ["site"] {
        /// The site.
        site: SiteId,
        /// A one-line name, such as `solver.c:42, in setup`.
        label: String,
        /// The frames, innermost first, inlined ones included.
        frames: Vec<Frame>,
    }
}

table! {
    /// A symbol that an address of the trace fell into.
    SymbolRow in "symbols" growing [] {
        /// The process.
        pid: Pid,
        /// Its first address.
        address: Address,
        /// Its size.
        bytes: Bytes,
        /// Its name, demangled.
        name: String,
        /// The executable or library.
        module: String,
        /// Where it is declared.
        file: Option<String>,
        /// The line in it.
        line: Option<u32>,
    }
}

table! {
    /// A mapping of a process, as `/proc/PID/maps` shows it.
    MappingRow in "mappings" growing [] {
        /// The process.
        pid: Pid,
        /// Its first address.
        address: Address,
        /// Its size.
        bytes: Bytes,
        /// `rwxp` or `rwxs`, with `-` for what is not allowed.
        perms: String,
        /// The offset in the file, bytes.
        offset: u64,
        /// The file or the kernel's name for it; empty where it has none.
        path: String,
        /// The device, `major:minor`.
        device: String,
        /// The inode; 0 where there is none.
        inode: u64,
        /// The build id of the ELF file, hexadecimal; null where it has none or could not be read.
        build_id: Option<String>,
        /// From when it counts: when it was first seen, or the beginning of the program that has it.
        from_ns: Time,
        /// When it was gone.
        to_ns: Option<Time>,
    }
}

table! {
    /// A thread.
    ThreadRow in "threads" growing ["born_ns"] ; chosen by selection::of_thread {
        /// The process.
        pid: Pid,
        /// The thread.
        tid: Tid,
        /// Its last name.
        name: String,
        /// When it came to be, or was first seen.
        born_ns: Time,
        /// When it ended.
        died_ns: Option<Time>,
    }
}

table! {
    /// A process, or one program of a process that changed its program by exec.
    ProcessRow in "processes" growing ["born_ns"] ; chosen by selection::of_process {
        /// The process.
        pid: Pid,
        /// Its parent.
        parent: Pid,
        /// The executable, by the path by which it was run.
        exe: String,
        /// The file that this leads to where that has another name, as of a program that was run through a link; null where it has not.
        file: Option<String>,
        /// The command line, words joined by spaces.
        command: String,
        /// When it came to be, or was first seen.
        born_ns: Time,
        /// When it ended.
        died_ns: Option<Time>,
        /// Its wait status as a shell would show it: the exit code, or 128 + signal.
        exit_code: Option<i32>,
        /// Who reported its heap objects and mappings: `preload`, the library in it, or `kernel`, system calls alone; null where nobody did.
        objects: Option<String>,
        /// Why not the library: `static` (it loads no libraries), `rights` (it gained rights by setuid or setgid bits), `replaced` (its LD_PRELOAD has other libraries alone), `removed` (it has no LD_PRELOAD), `cleared` (it has no variables at all), `root` (the library is not to be found in its root folder, or not to be read), `bits` (it is a 32-bit program), `musl` (its C library is musl), `sanitizer` (it is built with a sanitizer, which must stand in front of the allocator alone), `unanswered` (it did not connect in time).
        objects_why: Option<String>,
        /// The most memory that was resident at once, from its beginning to its end, as the kernel counts it for `getrusage` (`ru_maxrss`): without hugetlbfs, with what Varve has in the process. Where there is one count for all processors it is exact; since Linux 6.2 each processor may hold back some pages.
        peak_resident_bytes: Option<Bytes>,
        /// Why it is not known: `running` (it had not ended as the recording did), `began` (it ran before the recording began), `earlier` (what ran in the process before had as much or more, and this kernel shows the larger of the two alone), `borrowed` (it had its parent's memory to its end), `emulated` (the emulator's memory is counted with it), `kernel` (this kernel does not show it); null where it is known, and where nobody looked.
        peak_resident_why: Option<String>,
    }
}

table! {
    /// A kernel counter.
    CounterRow in "counters" growing ["time_ns"] {
        /// When it was read.
        time_ns: Time,
        /// The memory node; null for counters of the whole machine.
        node: Option<i32>,
        /// Its name in the kernel, such as `pgscan_direct`.
        name: String,
        /// Its value.
        value: i64,
    }
}

table! {
    /// Something that was lost: each row makes the trace incomplete.
    LossRow in "losses" growing ["time_ns"] {
        /// When it was noticed.
        time_ns: Time,
        /// What was lost.
        kind: String,
        /// How much of it.
        count: u64,
    }
}

/// The names of all tables, in the order that a reader would want them.
pub const ALL: &[Table] = &[
    IntervalRow::TABLE,
    TouchRow::TABLE,
    FaultRow::TABLE,
    SampleRow::TABLE,
    CountRow::TABLE,
    ObjectRow::TABLE,
    SiteRow::TABLE,
    SymbolRow::TABLE,
    MappingRow::TABLE,
    ThreadRow::TABLE,
    ProcessRow::TABLE,
    CounterRow::TABLE,
    LossRow::TABLE,
    OperationRow::TABLE,
    OperationTimeRow::TABLE,
    OperationChargeRow::TABLE,
    HeapMemoryRow::TABLE,
    SampledBlockRow::TABLE,
    HeapPagesRow::TABLE,
    SparsePagesRow::TABLE,
    SharedLineRow::TABLE,
    BlockChoiceRow::TABLE,
    MarkRow::TABLE,
    BirthRow::TABLE,
    DeathRow::TABLE,
    StackRow::TABLE,
    GeneratedRow::TABLE,
    BegunMarkRow::TABLE,
    EndedMarkRow::TABLE,
];
