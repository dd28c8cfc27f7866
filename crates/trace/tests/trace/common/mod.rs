//! Every table, with rows from a seed and rows as JSON.
#![allow(dead_code, unreachable_pub)]

pub mod small;

use std::borrow::Cow;
use std::fmt::Debug;

use serde_json::{Map, Value, json};
use varve_model::{
    Address, Backend, Bytes, Capability, Cpu, Duration, Interval, MemoryLevel, ObjectId,
    ObjectKind, Page, Pid, Resolved, SampleMode, SampleSource, SiteId, Tid, Time, TouchSource,
};
use varve_trace::tables::*;
use varve_trace::{
    Completeness, FORMAT_VERSION, Features, IntervalChoice, Machine, Manifest, Options, State,
    Target, TraceFolder,
};

/// Makes a folder a trace, unfinished and empty, and gives it to be written.
pub fn begun(folder: &std::path::Path, manifest: &Manifest) -> TraceFolder {
    let text = serde_json::to_vec(manifest).unwrap();
    std::fs::write(folder.join("manifest.json"), text).unwrap();
    TraceFolder::open(folder).unwrap()
}

/// Numbers from a seed: the extremes more often than chance would have it.
pub struct Source(u64);

impl Source {
    pub fn new(seed: u64) -> Source {
        Source(seed)
    }

    /// SplitMix64.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }
}

/// A value of a field.
pub trait Cell: Sized {
    fn sample(source: &mut Source) -> Self;
    fn json(&self) -> Value;
}

macro_rules! numbers {
    ($($name:ty: $inner:ty => $make:expr, $get:expr);* $(;)?) => {$(
        impl Cell for $name {
            fn sample(source: &mut Source) -> Self {
                let value = match source.below(6) {
                    0 => 0,
                    1 => <$inner>::MAX,
                    2 => <$inner>::MIN,
                    3 => source.below(100) as $inner,
                    _ => source.next() as $inner,
                };
                $make(value)
            }

            fn json(&self) -> Value {
                json!($get(self))
            }
        }
    )*};
}

numbers! {
    u64: u64 => |v| v, |s: &u64| *s;
    u32: u32 => |v| v, |s: &u32| *s;
    i64: i64 => |v| v, |s: &i64| *s;
    i32: i32 => |v| v, |s: &i32| *s;
    Address: u64 => Address, |s: &Address| s.0;
    Bytes: u64 => Bytes, |s: &Bytes| s.0;
    Duration: u64 => Duration, |s: &Duration| s.0;
    ObjectId: u64 => ObjectId, |s: &ObjectId| s.0;
    Page: u64 => Page, |s: &Page| s.0;
    Time: u64 => Time, |s: &Time| s.0;
    Cpu: u32 => Cpu, |s: &Cpu| s.0;
    Interval: u32 => Interval, |s: &Interval| s.0;
    Pid: u32 => Pid, |s: &Pid| s.0;
    SiteId: u32 => SiteId, |s: &SiteId| s.0;
    Tid: u32 => Tid, |s: &Tid| s.0;
}

impl Cell for bool {
    fn sample(source: &mut Source) -> Self {
        source.below(2) == 1
    }

    fn json(&self) -> Value {
        json!(self)
    }
}

impl Cell for Cow<'static, str> {
    fn sample(source: &mut Source) -> Self {
        Cow::Owned(String::sample(source))
    }

    fn json(&self) -> Value {
        json!(self)
    }
}

impl Cell for String {
    fn sample(source: &mut Source) -> Self {
        let words = [
            "",
            "a",
            "naïve",
            "日本語",
            "\0",
            "🦀\n\"line\"",
            "A\u{301}",
            "\u{feff}",
        ];
        match source.below(12) {
            0 => "x".repeat(source.below(4000)),
            1 => format!("{:x}", source.next()),
            n => words[n % words.len()].to_owned(),
        }
    }

    fn json(&self) -> Value {
        json!(self)
    }
}

macro_rules! named {
    ($($name:ty),*) => {$(
        impl Cell for $name {
            fn sample(source: &mut Source) -> Self {
                Self::ALL[source.below(Self::ALL.len())]
            }

            fn json(&self) -> Value {
                json!(self.as_str())
            }
        }
    )*};
}

named!(
    TouchSource,
    ObjectKind,
    SampleSource,
    SampleMode,
    Resolved,
    MemoryLevel
);

impl<T: Cell> Cell for Option<T> {
    fn sample(source: &mut Source) -> Self {
        (source.below(3) > 0).then(|| T::sample(source))
    }

    fn json(&self) -> Value {
        self.as_ref().map_or(Value::Null, T::json)
    }
}

impl<T: Cell> Cell for Vec<T> {
    fn sample(source: &mut Source) -> Self {
        let most = [0, 1, 5, 60][source.below(4)];
        (0..source.below(most + 1))
            .map(|_| T::sample(source))
            .collect()
    }

    fn json(&self) -> Value {
        self.iter().map(T::json).collect()
    }
}

macro_rules! records {
    ($($name:ident { $($field:ident),* $(,)? })*) => {$(
        impl Cell for $name {
            fn sample(source: &mut Source) -> Self {
                $name { $($field: Cell::sample(source)),* }
            }

            fn json(&self) -> Value {
                let mut map = Map::new();
                $(map.insert(stringify!($field).to_owned(), self.$field.json());)*
                Value::Object(map)
            }
        }
    )*};
}

// A new column does not compile until it stands here.
records! {
    IntervalRow {
        interval, start_ns, end_ns, held_ns, longest_hold_ns, longest_stop_ns, holds, overlap_ns, resident_pages, mappings, processes,
        threads, recorder_cpu_ns,
    }
    TouchRow { interval, pid, page, pages, page_bytes, written, source }
    FaultRow { time_ns, pid, tid, cpu, ip, address, write, kernel }
    SampleRow {
        time_ns, pid, tid, cpu, ip, address, bytes, write, object, source, latency_cycles, level,
        resolved, mode, weight_ns, event, period, site,
    }
    CountRow { interval, pid, tid, page, reads, writes, first }
    BirthRow {
        object, pid, kind, made_by, address, bytes, born_ns, tid, site, pool, reserved, continues,
    }
    DeathRow { object, died_ns }
    StackRow { site, pid, time_ns, frames, first_is_return }
    GeneratedRow { pid, until_ns, address, bytes, name }
    ObjectRow {
        object, pid, kind, name, site, address, bytes, born_ns, died_ns, tid, pool, layer,
        continues,
    }
    SiteRow { site, label, frames }
    Frame { function, file, line, column, function_line, module, offset, address }
    SymbolRow { pid, address, bytes, name, module, file, line }
    MappingRow {
        pid, address, bytes, perms, offset, path, device, inode, build_id, from_ns, to_ns,
    }
    ThreadRow { pid, tid, name, born_ns, died_ns }
    ProcessRow { pid, parent, exe, file, command, born_ns, died_ns, exit_code, objects, objects_why, peak_resident_bytes, peak_resident_why }
    CounterRow { time_ns, node, name, value }
    LossRow { time_ns, kind, count }
    OperationRow {
        time_ns, pid, tid, operation, class_bytes, site, count, reallocated, requested_bytes, usable_bytes, fresh, parallel, timed, timed_ns, timed_norm_ns,
    }
    OperationTimeRow { time_ns, pid, kind, from_ns, to_ns, count }
    OperationChargeRow { time_ns, pid, operation, site, name, count, total_ns, queued_ns, bytes, failed }
    HeapMemoryRow {
        time_ns, pid, allocator, requested_bytes, usable_bytes, blocks, peak_requested_bytes, peak_usable_bytes, peak_ns,
        resident_bytes, mapped_bytes, heap_resident_bytes, kept_bytes, own_bytes, uncounted, unknown_frees,
        unseen_frees,
    }
    SampledBlockRow { time_ns, pid, tid, freed, address, bytes, site }
    HeapPagesRow { time_ns, pid, eighths, pages, live_bytes, lines, shared_pages }
    SparsePagesRow { time_ns, pid, page, pages, live_bytes }
    SharedLineRow { time_ns, pid, tid, operation, site, blocks, active }
    BlockChoiceRow { time_ns, pid, tid, operation, site, blocks, far }
    MarkRow { pid, tid, kind, name, start_ns, end_ns, until_ns }
    BegunMarkRow { mark, time_ns, pid, tid, kind, name }
    EndedMarkRow { mark, time_ns, said }
}

/// A row of any table.
pub trait AnyRow: varve_trace::Row + Cell + Debug + PartialEq {}
impl<T: varve_trace::Row + Cell + Debug + PartialEq> AnyRow for T {}

/// Calls `$function::<Row>($arguments)` for each table, in the order of [`ALL`]; the array of the results.
#[macro_export]
macro_rules! each_table {
    ($function:ident($($argument:expr),*)) => {{
        use varve_trace::tables::*;
        [
            $function::<IntervalRow>($($argument),*),
            $function::<TouchRow>($($argument),*),
            $function::<FaultRow>($($argument),*),
            $function::<SampleRow>($($argument),*),
            $function::<CountRow>($($argument),*),
            $function::<ObjectRow>($($argument),*),
            $function::<SiteRow>($($argument),*),
            $function::<SymbolRow>($($argument),*),
            $function::<MappingRow>($($argument),*),
            $function::<ThreadRow>($($argument),*),
            $function::<ProcessRow>($($argument),*),
            $function::<CounterRow>($($argument),*),
            $function::<LossRow>($($argument),*),
            $function::<OperationRow>($($argument),*),
            $function::<OperationTimeRow>($($argument),*),
            $function::<OperationChargeRow>($($argument),*),
            $function::<HeapMemoryRow>($($argument),*),
            $function::<SampledBlockRow>($($argument),*),
            $function::<HeapPagesRow>($($argument),*),
            $function::<SparsePagesRow>($($argument),*),
            $function::<SharedLineRow>($($argument),*),
            $function::<BlockChoiceRow>($($argument),*),
            $function::<MarkRow>($($argument),*),
            $function::<BirthRow>($($argument),*),
            $function::<DeathRow>($($argument),*),
            $function::<StackRow>($($argument),*),
            $function::<GeneratedRow>($($argument),*),
            $function::<BegunMarkRow>($($argument),*),
            $function::<EndedMarkRow>($($argument),*),
        ]
    }};
}

/// Rows, one for each seed.
pub fn rows<R: AnyRow>(seeds: &[u64]) -> Vec<R> {
    seeds
        .iter()
        .map(|s| R::sample(&mut Source::new(*s)))
        .collect()
}

/// A manifest of a recording that runs.
pub fn manifest() -> Manifest {
    Manifest {
        format: "varve-trace".into(),
        version: FORMAT_VERSION,
        varve: "0.1.0".into(),
        state: State::Recording,
        backend: Backend::Scan,
        capabilities: Capability::RECORDED
            .into_iter()
            .chain([Capability::HeapObjects, Capability::AllocatorOperations])
            .collect(),
        recorder_pid: None,
        target: Target {
            command: vec!["./solver".into(), "--size".into(), "3".into()],
            pid: 100,
            attached: false,
            exit_code: None,
        },
        options: Options {
            interval: IntervalChoice::Fixed(Duration(50_000_000)),
            follow: true,
            delay_ns: Duration(0),
            min_object_bytes: Bytes(4096),
            max_hold_ns: None,
            thp_never: false,
            without: vec![],
        },
        features: Features {
            writes: Some("soft-dirty".into()),
            page_flags: true,
            hold: "cgroup".into(),
            objects: Some("preload".into()),
            vanish: Some("locks".into()),
        },
        machine: Machine {
            kernel: "6.12.0".into(),
            architecture: "x86_64".into(),
            cpu: "a processor".into(),
            cpus: 2,
            memory_bytes: Bytes(1 << 34),
            nodes: Some(1),
        },
        clock: Default::default(),
        completeness: Completeness {
            complete: false,
            statement: "The recording has not ended.".into(),
        },
        overhead: Default::default(),
        losses: Default::default(),
        samples: None,
        traps: None,
        operations: None,
        modules: vec![],
        checksums: Default::default(),
        notes: vec![],
    }
}
