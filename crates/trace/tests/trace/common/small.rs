//! A small trace with rows of every table, ended and killed, and the rows that it must be read to.

use std::fs;
use std::path::Path;

use serde_json::{Map, Value};
use varve_model::{
    Address, Bytes, Cpu, Duration, Interval, MemoryLevel, ObjectId, ObjectKind, Page, Pid,
    Resolved, SampleMode, SampleSource, SiteId, Tid, Time, TouchSource,
};
use varve_trace::tables::*;
use varve_trace::{State, TraceFolder, TraceWriter, finish_tables, write_table};

use crate::common::{AnyRow, manifest};

fn intervals() -> Vec<IntervalRow> {
    let row = |i: u32| IntervalRow {
        interval: Interval(i),
        start_ns: Time(1_000 + u64::from(i) * 50_000_000),
        end_ns: Time(900 + u64::from(i + 1) * 50_000_000),
        held_ns: Duration(100),
        longest_hold_ns: Duration(100),
        longest_stop_ns: Duration(0),
        holds: 1,
        overlap_ns: Duration(0),
        resident_pages: 2000,
        mappings: 0,
        processes: 1,
        threads: 2,
        recorder_cpu_ns: Duration(300_000),
    };
    (0..3).map(row).collect()
}

fn touches() -> Vec<TouchRow> {
    let row = |interval, page, pages, page_bytes, written, source| TouchRow {
        interval: Interval(interval),
        pid: Pid(100),
        page: Page(page),
        pages,
        page_bytes,
        written,
        source,
    };
    vec![
        row(0, 0x5_5555_5555, 3, 4096, Some(true), TouchSource::Scan),
        row(0, 0x7_f000_0000, 512, 2 << 20, None, TouchSource::Scan),
        row(1, 0x5_5555_5555, 1, 4096, Some(false), TouchSource::Vanish),
        row(1, 0x5_5555_5557, 1, 4096, None, TouchSource::PageFlag),
        row(2, 0x7_ffff_fff0, 15, 4096, Some(true), TouchSource::Pinned),
        row(2, u64::MAX >> 12, 1, 1 << 30, None, TouchSource::Sticky),
        row(2, 0x5_5555_5560, 1000, 4096, None, TouchSource::Damon),
        row(2, 0x5_5555_5950, 1, 4096, Some(true), TouchSource::Imported),
    ]
}

fn faults() -> Vec<FaultRow> {
    let row = |time, write, kernel| FaultRow {
        time_ns: Time(time),
        pid: Pid(100),
        tid: Tid(101),
        cpu: Cpu(1),
        ip: Address(0x5555_5555_5123),
        address: Address(0x5555_5555_6008),
        write,
        kernel,
    };
    vec![row(1_500, Some(true), false), row(1_600, None, true)]
}

fn samples() -> Vec<SampleRow> {
    let bare = |time, source| SampleRow {
        time_ns: Time(time),
        pid: Pid(100),
        tid: None,
        cpu: None,
        ip: None,
        address: None,
        bytes: None,
        write: None,
        object: None,
        source,
        latency_cycles: None,
        level: None,
        resolved: None,
        mode: None,
        weight_ns: None,
        event: None,
        period: None,
        site: None,
    };
    let full = SampleRow {
        tid: Some(Tid(101)),
        cpu: Some(Cpu(1)),
        ip: Some(Address(0x5555_5555_5123)),
        address: Some(Address(0x5555_5556_0008)),
        bytes: Some(Bytes(8)),
        write: Some(true),
        object: Some(ObjectId(1)),
        latency_cycles: Some(230),
        level: Some(MemoryLevel::LocalDram),
        resolved: Some(Resolved::Hardware),
        mode: Some(SampleMode::User),
        weight_ns: Some(Duration(1_000_000)),
        event: Some("cpu/mem-loads,ldlat=30/P".to_owned()),
        period: Some(1009),
        site: Some(SiteId(1)),
        ..bare(1_800, SampleSource::PerfMem)
    };
    let sources = SampleSource::ALL.iter().map(|s| bare(1_900, *s));
    let levels = MemoryLevel::ALL.iter().map(|l| SampleRow {
        level: Some(*l),
        ..bare(2_000, SampleSource::Pebs)
    });
    let resolved = Resolved::ALL.iter().map(|r| SampleRow {
        resolved: Some(*r),
        ..bare(2_100, SampleSource::CpuClock)
    });
    let modes = SampleMode::ALL.iter().map(|m| SampleRow {
        mode: Some(*m),
        weight_ns: Some(Duration(250_000)),
        ..bare(2_200, SampleSource::CpuClock)
    });
    [full]
        .into_iter()
        .chain(sources)
        .chain(levels)
        .chain(resolved)
        .chain(modes)
        .collect()
}

fn counts() -> Vec<CountRow> {
    let row = |tid, reads, writes, first| CountRow {
        interval: Interval(2),
        pid: Pid(100),
        tid,
        page: Page(0x5_5555_5950),
        reads,
        writes,
        first,
    };
    vec![
        row(Some(Tid(101)), 7, u64::MAX, Some(true)),
        row(None, 0, 1, None),
    ]
}

fn mappings() -> Vec<MappingRow> {
    let row = |path: &str, build_id: Option<&str>, to| MappingRow {
        pid: Pid(100),
        address: Address(0x5555_5555_5000),
        bytes: Bytes(8192),
        perms: "r-xp".into(),
        offset: 4096,
        path: path.into(),
        device: "fe:00".into(),
        inode: 17,
        build_id: build_id.map(str::to_owned),
        from_ns: Time(1_000),
        to_ns: to,
    };
    vec![
        row("", None, None),
        row("/usr/bin/solver naïve", Some("00ff"), Some(Time(9_000))),
    ]
}

fn threads() -> Vec<ThreadRow> {
    let row = |tid, name: &str, died| ThreadRow {
        pid: Pid(100),
        tid: Tid(tid),
        name: name.into(),
        born_ns: Time(1_000),
        died_ns: died,
    };
    vec![
        row(100, "solver", None),
        row(101, "worker/1", Some(Time(9_000))),
    ]
}

fn processes() -> Vec<ProcessRow> {
    vec![ProcessRow {
        pid: Pid(100),
        parent: Pid(1),
        exe: "/usr/bin/solver".into(),
        file: None,
        command: "./solver --size 3".into(),
        born_ns: Time(1_000),
        died_ns: Some(Time(150_000_000)),
        exit_code: Some(-1),
        objects: Some("kernel".into()),
        objects_why: Some("static".into()),
        peak_resident_bytes: Some(Bytes(3 << 20)),
        peak_resident_why: Some("earlier".into()),
    }]
}

fn counters() -> Vec<CounterRow> {
    let row = |node, value| CounterRow {
        time_ns: Time(2_000),
        node,
        name: "pgscan_direct".into(),
        value,
    };
    vec![row(None, i64::MAX), row(Some(1), -1)]
}

fn losses() -> Vec<LossRow> {
    vec![LossRow {
        time_ns: Time(3_000),
        kind: "faults".into(),
        count: 2,
    }]
}

fn operations() -> Vec<OperationRow> {
    let row = |operation: &'static str, class_bytes, site| OperationRow {
        time_ns: Time(500_000_000),
        pid: Pid(100),
        tid: Tid(101),
        operation: operation.into(),
        class_bytes,
        site,
        count: 1 << 40,
        reallocated: 5,
        requested_bytes: Bytes(40 << 40),
        usable_bytes: Some(Bytes(48 << 40)),
        fresh: Some(3),
        parallel: 0,
        timed: 1 << 34,
        timed_ns: Duration(90 << 34),
        timed_norm_ns: site.map(|_| Duration(90 << 17)),
    };
    vec![
        row("malloc", Some(Bytes(48)), Some(SiteId(1))),
        row("delete[]", None, None),
    ]
}

fn operation_times() -> Vec<OperationTimeRow> {
    vec![OperationTimeRow {
        time_ns: Time(500_000_000),
        pid: Pid(100),
        kind: "fresh".into(),
        from_ns: Duration(16),
        to_ns: Duration(18),
        count: 7,
    }]
}

fn operation_charges() -> Vec<OperationChargeRow> {
    let row = |operation, site, name: &'static str| OperationChargeRow {
        time_ns: Time(500_000_000),
        pid: Pid(100),
        operation,
        site,
        name: name.into(),
        count: 2,
        total_ns: Duration(3_000),
        queued_ns: Duration(500),
        bytes: Bytes(135_168),
        failed: 1,
    };
    vec![
        row(Some("malloc".into()), Some(SiteId(1)), "brk"),
        row(None, None, "clock_user"),
    ]
}

fn sampled_blocks() -> Vec<SampledBlockRow> {
    let row = |time, freed, site| SampledBlockRow {
        time_ns: Time(time),
        pid: Pid(100),
        tid: Tid(100),
        freed,
        address: Address(0x1000_0000),
        bytes: Bytes(100),
        site,
    };
    vec![
        row(20_000_000, false, Some(SiteId(0))),
        row(30_000_000, true, None),
    ]
}

fn heap_pages() -> Vec<HeapPagesRow> {
    vec![HeapPagesRow {
        time_ns: Time(50_000_000),
        pid: Pid(100),
        eighths: 2,
        pages: 3,
        live_bytes: Bytes(1500),
        lines: 24,
        shared_pages: 1,
    }]
}

fn sparse_pages() -> Vec<SparsePagesRow> {
    vec![SparsePagesRow {
        time_ns: Time(50_000_000),
        pid: Pid(100),
        page: Page(0x1_0000),
        pages: 3,
        live_bytes: 500,
    }]
}

fn shared_lines() -> Vec<SharedLineRow> {
    vec![SharedLineRow {
        time_ns: Time(500_000_000),
        pid: Pid(100),
        tid: Tid(101),
        operation: "malloc".into(),
        site: Some(SiteId(1)),
        blocks: 4,
        active: 3,
    }]
}

fn block_choices() -> Vec<BlockChoiceRow> {
    vec![BlockChoiceRow {
        time_ns: Time(500_000_000),
        pid: Pid(100),
        tid: Tid(101),
        operation: "malloc".into(),
        site: Some(SiteId(1)),
        blocks: 5,
        far: 2,
    }]
}

fn marks() -> Vec<MarkRow> {
    let row = |kind: &'static str, end: Option<u64>| MarkRow {
        pid: Pid(100),
        tid: Tid(101),
        kind: kind.into(),
        name: "load".into(),
        start_ns: Time(2_000),
        end_ns: end.map(Time),
        until_ns: end.map(Time),
    };
    vec![row("phase", Some(50_000_000)), row("event", None)]
}

fn heap_memory() -> Vec<HeapMemoryRow> {
    let row = |resident_bytes| HeapMemoryRow {
        time_ns: Time(50_000_000),
        pid: Pid(100),
        allocator: "/lib/libc.so.6".into(),
        requested_bytes: Bytes(4000),
        usable_bytes: Some(Bytes(4008)),
        blocks: 4,
        peak_requested_bytes: Bytes(5000),
        peak_usable_bytes: Some(Bytes(5016)),
        peak_ns: Time(40_000_000),
        resident_bytes,
        mapped_bytes: resident_bytes,
        heap_resident_bytes: resident_bytes,
        kept_bytes: resident_bytes.map(|_| Bytes(4096)),
        own_bytes: Bytes(8 << 20),
        uncounted: resident_bytes.map(|_| 3),
        unknown_frees: 1,
        unseen_frees: 2,
    };
    vec![row(None), row(Some(Bytes(135_168)))]
}

fn births() -> Vec<BirthRow> {
    let row = |object, kind, made_by: &str, tid, site, pool| BirthRow {
        object: ObjectId(object),
        pid: Pid(100),
        kind,
        made_by: made_by.to_owned().into(),
        address: Address(0x5555_5556_0000),
        bytes: Bytes(10_000),
        born_ns: Time(1_700),
        tid,
        site,
        pool,
        reserved: pool,
        continues: (object == 2).then_some(ObjectId(1)),
    };
    vec![
        row(
            1,
            ObjectKind::Heap,
            "malloc",
            Some(Tid(101)),
            Some(SiteId(1)),
            false,
        ),
        row(2, ObjectKind::Stack, "main stack", None, None, true),
    ]
}

fn deaths() -> Vec<DeathRow> {
    vec![DeathRow {
        object: ObjectId(1),
        died_ns: Time(8_000),
    }]
}

fn stacks() -> Vec<StackRow> {
    let row = |site, frames: &[u64], first_is_return| StackRow {
        site: SiteId(site),
        pid: Pid(100),
        time_ns: Time(1_700),
        frames: frames.iter().map(|a| Address(*a)).collect(),
        first_is_return,
    };
    vec![
        row(1, &[0x5555_5555_5200, 0x5555_5555_5100], true),
        row(2, &[], false),
    ]
}

fn objects() -> Vec<ObjectRow> {
    ObjectKind::ALL
        .iter()
        .enumerate()
        .map(|(i, kind)| ObjectRow {
            object: ObjectId(i as u64),
            pid: Pid(100),
            kind: *kind,
            name: format!("object {i} (solver.c:42, in setup)"),
            site: (i == 1).then_some(SiteId(1)),
            address: Address(0x5555_5556_0000),
            bytes: Bytes(10_000),
            born_ns: Time(1_700),
            died_ns: (i == 1).then_some(Time(8_000)),
            tid: (i == 2).then_some(Tid(101)),
            pool: i == 3,
            layer: i as u32,
            continues: (i == 2).then_some(ObjectId(1)),
        })
        .collect()
}

fn sites() -> Vec<SiteRow> {
    let full = Frame {
        function: Some("Solver::setup<日本>".into()),
        file: Some("solver.c".into()),
        line: Some(42),
        column: Some(7),
        function_line: Some(40),
        module: Some("/usr/bin/solver".into()),
        offset: None,
        address: Address(0x5555_5555_51ff),
    };
    let bare = Frame {
        module: Some("/usr/bin/solver".into()),
        offset: Some(0x11d2),
        address: Address(u64::MAX),
        ..Frame::default()
    };
    vec![
        SiteRow {
            site: SiteId(1),
            label: "solver.c:42, in setup".into(),
            frames: vec![full, bare],
        },
        SiteRow {
            site: SiteId(2),
            label: String::new(),
            frames: vec![],
        },
    ]
}

fn symbols() -> Vec<SymbolRow> {
    let row = |name: &str, file: Option<&str>, line| SymbolRow {
        pid: Pid(100),
        address: Address(0x5555_5555_5000),
        bytes: Bytes(512),
        name: name.into(),
        module: "/usr/bin/solver".into(),
        file: file.map(str::to_owned),
        line,
    };
    vec![
        row("matrix", Some("solver.c"), Some(7)),
        row("rest", None, None),
    ]
}

/// Writes a trace whose recording ended in order, and gives the rows that it must be read to.
pub(crate) fn finished(folder: &Path) -> Value {
    let mut writer = TraceWriter::create(folder, &manifest()).expect("create");
    let mut expected = Map::new();
    append(&mut writer, &mut expected, intervals());
    append(&mut writer, &mut expected, touches());
    append(&mut writer, &mut expected, faults());
    append(&mut writer, &mut expected, samples());
    append(&mut writer, &mut expected, counts());
    append(&mut writer, &mut expected, mappings());
    append(&mut writer, &mut expected, threads());
    append(&mut writer, &mut expected, processes());
    append(&mut writer, &mut expected, counters());
    append(&mut writer, &mut expected, losses());
    append(&mut writer, &mut expected, operations());
    append(&mut writer, &mut expected, operation_times());
    append(&mut writer, &mut expected, operation_charges());
    append(&mut writer, &mut expected, heap_memory());
    append(&mut writer, &mut expected, sampled_blocks());
    append(&mut writer, &mut expected, heap_pages());
    append(&mut writer, &mut expected, sparse_pages());
    append(&mut writer, &mut expected, shared_lines());
    append(&mut writer, &mut expected, block_choices());
    // The merge leaves these in the order of what they speak of.
    expected.insert(
        "mappings".into(),
        mappings().iter().map(AnyJson::any_json).collect(),
    );
    let folder_of = writer.into_folder();
    finish_tables(&folder_of, &mut |_| ()).expect("merge");
    whole(&folder_of, &mut expected, objects());
    whole(&folder_of, &mut expected, sites());
    whole(&folder_of, &mut expected, symbols());
    whole(&folder_of, &mut expected, marks());
    let mut ended = manifest();
    ended.state = State::Finished;
    ended.losses.insert("faults".into(), 2);
    ended.derive_completeness();
    folder_of.write_manifest(&ended).expect("manifest");
    Value::Object(expected)
}

/// Writes a trace as a killed recorder leaves it, and gives the rows that it must be read to.
pub(crate) fn killed(folder: &Path) -> Value {
    let mut writer = TraceWriter::create(folder, &manifest()).expect("create");
    let mut expected = Map::new();
    for half in touches().chunks(4) {
        append(&mut writer, &mut expected, half.to_vec());
    }
    append(&mut writer, &mut expected, intervals());
    let mut mapping = mappings().remove(1);
    mapping.to_ns = None;
    append(&mut writer, &mut expected, samples());
    append(&mut writer, &mut expected, vec![mapping]);
    append(&mut writer, &mut expected, mappings());
    append(&mut writer, &mut expected, births());
    append(&mut writer, &mut expected, deaths());
    append(&mut writer, &mut expected, stacks());
    fs::write(folder.join("parts/faults-000000.new"), "PAR1 half").expect("leftover");
    Value::Object(expected)
}

trait AnyJson {
    fn any_json(&self) -> Value;
}

impl<R: AnyRow> AnyJson for R {
    fn any_json(&self) -> Value {
        self.json()
    }
}

fn append<R: AnyRow>(writer: &mut TraceWriter, expected: &mut Map<String, Value>, rows: Vec<R>) {
    writer.append(&rows).expect("append");
    let so_far = expected
        .entry(R::TABLE.name)
        .or_insert_with(|| Value::Array(vec![]));
    let so_far = so_far.as_array_mut().expect("array");
    so_far.extend(rows.iter().map(AnyJson::any_json));
}

fn whole<R: AnyRow>(folder: &TraceFolder, expected: &mut Map<String, Value>, rows: Vec<R>) {
    write_table(folder, &rows).expect("write");
    let rows = rows.iter().map(AnyJson::any_json).collect();
    expected.insert(R::TABLE.name.to_owned(), rows);
}
