//! Small traces whose figures are known.

use std::path::Path;

use varve_analyse::{AnalyseOptions, Analysis, analyse};
use varve_model::{
    Address, Bytes, Cpu, Duration, Interval, ObjectId, ObjectKind, Page, Pid, Resolved, SampleMode,
    SampleSource, SiteId, Tid, Time, TouchSource,
};
use varve_trace::tables::{
    FaultRow, IntervalRow, ObjectRow, SampleRow, SiteRow, ThreadRow, TouchRow,
};
use varve_trace::{Manifest, SamplesNote, State, Trace, TraceWriter, finish_tables, write_table};

pub(crate) const STEP: u64 = 50_000_000;

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Kind {
    Complete,
    Incomplete,
    Empty,
    WithoutFaults,
    Imported,
    Sampled,
}

pub(crate) fn manifest(kind: Kind) -> Manifest {
    let text = serde_json::json!({
        "format": "varve-trace", "version": 1, "varve": "0.1.0",
        "state": if kind == Kind::Incomplete { "recovered" } else { "finished" },
        "backend": if kind == Kind::Imported { "import/damon" } else { "scan" },
        "capabilities": if kind == Kind::Imported { serde_json::json!(["touches", "places", "lives"]) } else { serde_json::json!(["touches", "resident", "faults", "overhead", "machine", "places", "lives", "superset", "marks", "heap_objects"]) },
        "target": {"command": ["./solver", "--grid", "64"], "pid": 42, "attached": false, "exit_code": 0},
        "options": {"interval": {"fixed": STEP}, "follow": true, "delay_ns": 0, "min_object_bytes": 4096, "thp_never": false, "without": []},
        "features": {"writes": null, "page_flags": true, "hold": "cgroup", "objects": "preload", "vanish": null},
        "machine": {"kernel": "6.12.48", "architecture": "x86_64", "cpu": "Some CPU", "cpus": 2, "memory_bytes": 8_u64 << 30, "nodes": 2},
        "clock": {"start_ns": 0, "end_ns": 400 * STEP, "start_unix_ns": 1_773_480_413_000_000_000_u64, "unit": "nanoseconds"},
        "completeness": {"complete": false, "statement": if kind == Kind::Imported { "Imported: some pages were touched." } else { "" }},
        "overhead": overhead(kind),
        "losses": if kind == Kind::Incomplete { serde_json::json!({"ring_overflow": 17}) } else { serde_json::json!({}) },
        "modules": [], "checksums": {}, "notes": [],
    });
    let mut manifest: Manifest = serde_json::from_value(text).unwrap();
    assert_ne!(manifest.state, State::Recording);
    if kind == Kind::Sampled {
        let mut note = SamplesNote::new(SampleSource::CpuClock, 1000);
        (note.taken, note.behind) = (4000, 4000);
        manifest.samples = Some(note);
    }
    manifest.derive_completeness();
    manifest
}

pub(crate) fn write(folder: &Path, kind: Kind) -> (Trace, Analysis) {
    let end = manifest(kind);
    let mut during = end.clone();
    during.state = State::Recording;
    let mut writer = TraceWriter::create(folder, &during).unwrap();
    if kind != Kind::Empty {
        rows(&mut writer, kind);
    }
    finish_tables(writer.folder(), &mut |_| ()).unwrap();
    writer.folder().write_manifest(&end).unwrap();
    let trace = Trace::open(folder).unwrap();
    let analysis = analyse(&trace, &AnalyseOptions::default(), &mut |_| ()).unwrap();
    (trace, analysis)
}

/// What nobody measured is 0.
fn overhead(kind: Kind) -> serde_json::Value {
    let part = |ns: u64| if kind == Kind::Empty { 0 } else { ns };
    serde_json::json!({
        "held_ns": part(120_000_000), "first_accesses_ns": part(80_000_000), "samples_ns": part(40_000_000), "objects_ns": part(10_000_000), "reports_ns": part(5_000_000),
        "contention_ns": part(20_000_000), "recorder_cpu_ns": 0, "recorder_peak_bytes": 50 << 20,
    })
}

pub(crate) fn rows(writer: &mut TraceWriter, kind: Kind) {
    let intervals: Vec<IntervalRow> = (0..400_u32)
        .map(|i| IntervalRow {
            interval: Interval(i),
            start_ns: Time(u64::from(i) * STEP),
            end_ns: Time((u64::from(i) + 1) * STEP - 300_000),
            held_ns: Duration(300_000),
            longest_hold_ns: Duration(300_000),
            longest_stop_ns: Duration(0),
            holds: 1,
            overlap_ns: Duration(0),
            resident_pages: 9000,
            mappings: 0,
            processes: 1,
            threads: 3,
            recorder_cpu_ns: Duration(800_000),
        })
        .collect();
    let touch = |i: u32, page: u64, pages: u64| TouchRow {
        interval: Interval(i),
        pid: Pid(42),
        page: Page(page),
        pages: pages as u32,
        page_bytes: 4096,
        written: None,
        source: TouchSource::Scan,
    };
    let mut touches = Vec::new();
    for i in 0..400_u32 {
        let wave = (f64::from(i) / 25.0).sin() * 800.0 + 1000.0;
        touches.push(touch(i, 0x10000, wave as u64));
        if i < 150 {
            touches.push(touch(i, 0x20000 + u64::from(i) * 20, 40));
        }
        touches.push(touch(i, 0x40000, 3));
    }
    let object = |id: u64, kind: ObjectKind, name: &str, page: u64, pages: u64| ObjectRow {
        object: ObjectId(id),
        pid: Pid(42),
        kind,
        name: name.into(),
        site: (kind == ObjectKind::Heap).then_some(SiteId(0)),
        address: Address(page * 4096 + 64),
        bytes: Bytes(pages * 4096 - 64),
        born_ns: Time(1000),
        died_ns: None,
        tid: Some(Tid(42)),
        pool: false,
        layer: if kind == ObjectKind::Heap { 5 } else { 6 },
        continues: None,
    };
    let objects = [
        object(
            1,
            ObjectKind::Heap,
            "matrix (solver.c:42, in setup)",
            0x10000,
            2000,
        ),
        object(
            2,
            ObjectKind::Heap,
            "std::vector<std::pair<unsigned long, Particle>> particles (simulation/particles.cpp:1207, in ParticleSystem::reserve_all)",
            0x20000,
            3100,
        ),
        object(
            3,
            ObjectKind::Heap,
            "spare (solver.c:50, in setup)",
            0x30000,
            2048,
        ),
        object(4, ObjectKind::Static, "table", 0x50000, 16),
    ];
    let thread = |tid: u32| ThreadRow {
        pid: Pid(42),
        tid: Tid(tid),
        name: if tid == 42 {
            "solver".into()
        } else {
            format!("worker-{tid}")
        },
        born_ns: Time(0),
        died_ns: None,
    };
    let fault = |i: u64, page: u64| FaultRow {
        time_ns: Time(i * STEP + 9),
        pid: Pid(42),
        tid: Tid(if page < 0x20000 {
            42
        } else {
            43 + (page % 2) as u32
        }),
        cpu: Cpu(0),
        ip: Address(1),
        address: Address(page * 4096),
        write: None,
        kernel: false,
    };
    let mut faults: Vec<FaultRow> = (0..1800).map(|p| fault(0, 0x10000 + p)).collect();
    faults.extend((0..3000).map(|p| fault(p / 20, 0x20000 + p)));
    writer.append(&intervals).unwrap();
    writer.append(&touches).unwrap();
    if !matches!(kind, Kind::WithoutFaults | Kind::Imported) {
        writer.append(&faults).unwrap();
        writer
            .append(&[thread(42), thread(43), thread(44)])
            .unwrap();
    }
    if kind == Kind::Sampled {
        writer.append(&samples()).unwrap();
    }
    write_table(writer.folder(), &objects).unwrap();
    let site = SiteRow {
        site: SiteId(0),
        label: "solver.c:42, in setup".into(),
        frames: vec![],
    };
    write_table(writer.folder(), &[site]).unwrap();
}

/// Each worker uses a half of the matrix, which thread 42 touched first.
pub(crate) fn samples() -> Vec<SampleRow> {
    let sample = |i: u64| {
        let (worker, step) = (i % 2, i / 2 % 1000);
        SampleRow {
            time_ns: Time(i * 5_000_000),
            pid: Pid(42),
            tid: Some(Tid(43 + worker as u32)),
            cpu: Some(Cpu(0)),
            ip: Some(Address(0x1000)),
            address: Some(Address(
                (0x10000 + 1 + worker * 998 + step * 997 % 998) * 4096,
            )),
            bytes: Some(Bytes(8)),
            write: Some(i % 4 < 2),
            object: Some(ObjectId(1)),
            source: SampleSource::CpuClock,
            latency_cycles: None,
            level: None,
            resolved: Some(Resolved::Behind),
            mode: Some(SampleMode::User),
            weight_ns: Some(Duration(1_000_000)),
            event: None,
            period: None,
            site: Some(SiteId(0)),
        }
    };
    (0..4000).map(sample).collect()
}
