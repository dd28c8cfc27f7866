//! What is written is read back, finished or not.

use std::fs;

use varve_model::{Address, Duration, Interval, ObjectKind, Page, Pid, SiteId, Time, TouchSource};
use varve_trace::tables::{Frame, ObjectRow, SiteRow, StackRow, TouchRow};
use varve_trace::{
    Completeness, Existing, FORMAT_VERSION, Features, IntervalChoice, Machine, Manifest, Options,
    Output, State, Target, Trace, TraceError, TraceFolder, TraceWriter, finish_tables, write_table,
};

fn manifest() -> Manifest {
    Manifest {
        format: "varve-trace".into(),
        version: FORMAT_VERSION,
        varve: "test".into(),
        state: State::Recording,
        backend: varve_model::Backend::Scan,
        capabilities: varve_model::Capability::RECORDED.into(),
        recorder_pid: None,
        target: Target::default(),
        options: Options {
            interval: IntervalChoice::Fixed(Duration(50_000_000)),
            follow: true,
            delay_ns: Duration(0),
            min_object_bytes: varve_model::Bytes(4096),
            max_hold_ns: None,
            thp_never: false,
            without: vec![],
        },
        features: Features::default(),
        machine: Machine {
            kernel: "6".into(),
            architecture: "x86_64".into(),
            cpu: "x".into(),
            cpus: 2,
            memory_bytes: varve_model::Bytes(1),
            nodes: None,
        },
        clock: Default::default(),
        completeness: Completeness {
            complete: false,
            statement: String::new(),
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

fn touch(interval: u32, page: u64) -> TouchRow {
    TouchRow {
        interval: Interval(interval),
        pid: Pid(7),
        page: Page(page),
        pages: 3,
        page_bytes: 4096,
        written: [None, Some(true), Some(false)][page as usize % 3],
        source: TouchSource::ALL[page as usize % TouchSource::ALL.len()],
    }
}

#[test]
fn parts_and_merged_tables_read_alike() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("t.varve");
    let mut writer = TraceWriter::create(&folder, &manifest()).unwrap();
    let mut expected = Vec::new();
    for part in 0..5 {
        let rows: Vec<TouchRow> = (0..1000).map(|i| touch(part, i * 51)).collect();
        writer.append(&rows).unwrap();
        expected.extend(rows);
    }
    // What a recorder leaves that is killed in the middle of a write.
    fs::write(folder.join("parts/touches-000005.new"), b"PAR1 half").unwrap();
    let trace = Trace::open(&folder).unwrap();
    assert_eq!(trace.rows::<TouchRow>().unwrap(), expected);
    assert_eq!(trace.count::<TouchRow>().unwrap(), 5000);
    finish_tables(writer.folder(), &mut |_| ()).unwrap();
    assert!(folder.join("touches.parquet").is_file());
    assert!(!folder.join("parts").exists());
    assert_eq!(
        Trace::open(&folder).unwrap().rows::<TouchRow>().unwrap(),
        expected
    );
}

#[test]
fn a_writer_that_goes_on_adds_to_what_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("t.varve");
    let rows: Vec<TouchRow> = (0..30).map(|i| touch(i / 10, u64::from(i))).collect();
    let mut writer = TraceWriter::create(&folder, &manifest()).unwrap();
    for part in rows[..20].chunks(2) {
        writer.append(part).unwrap();
    }
    drop(writer);
    // What a killed recorder was writing is no part.
    fs::write(folder.join("parts/touches-000010.new"), "half").unwrap();
    let mut writer = TraceWriter::resume(TraceFolder::open(&folder).unwrap()).unwrap();
    writer.append(&rows[20..]).unwrap();
    let trace = Trace::open(&folder).unwrap();
    assert_eq!(trace.rows::<TouchRow>().unwrap(), rows);
}

#[test]
fn nested_columns_round_trip() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = TraceWriter::create(&dir.path().join("t.varve"), &manifest()).unwrap();
    let stacks: Vec<StackRow> = (0..4)
        .map(|i| StackRow {
            site: SiteId(i),
            pid: Pid(1),
            time_ns: Time(5),
            frames: (0..i as u64).map(Address).collect(),
            first_is_return: i % 2 == 0,
        })
        .collect();
    writer.append(&stacks).unwrap();
    let frame = |line| Frame {
        function: Some("f".into()),
        file: None,
        line,
        column: line.map(|line| line + 1),
        function_line: None,
        module: Some("m".into()),
        offset: line.is_none().then_some(8),
        address: Address(9),
    };
    let sites = vec![
        SiteRow {
            site: SiteId(0),
            label: "a".into(),
            frames: vec![],
        },
        SiteRow {
            site: SiteId(1),
            label: "b".into(),
            frames: vec![frame(None), frame(Some(3))],
        },
    ];
    writer.append(&sites).unwrap();
    let objects = vec![ObjectRow {
        object: varve_model::ObjectId(1),
        pid: Pid(2),
        kind: ObjectKind::Heap,
        name: "matrix (solver.c:42, in setup)".into(),
        site: Some(SiteId(1)),
        address: Address(4096),
        bytes: varve_model::Bytes(1),
        born_ns: Time(1),
        died_ns: None,
        tid: None,
        pool: false,
        layer: 5,
        continues: None,
    }];
    write_table(writer.folder(), &objects).unwrap();
    let trace = writer.folder().trace().unwrap();
    assert_eq!(trace.rows::<StackRow>().unwrap(), stacks);
    assert_eq!(trace.rows::<SiteRow>().unwrap(), sites);
    assert_eq!(trace.rows::<ObjectRow>().unwrap(), objects);
}

#[test]
fn what_is_not_a_trace_is_neither_read_nor_replaced() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("thesis.tex"), "x").unwrap();
    let error = TraceWriter::create(dir.path(), &manifest()).unwrap_err();
    assert!(matches!(error, TraceError::NotOurs { .. }), "{error}");
    assert!(matches!(
        Trace::open(dir.path()),
        Err(TraceError::NotATrace { .. })
    ));
    assert!(dir.path().join("thesis.tex").is_file());
}

/// Such as one of another version of Varve.
#[test]
fn a_trace_that_cannot_be_read_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("t.varve");
    drop(TraceWriter::create(&folder, &manifest()).unwrap());
    let manifest_file = folder.join("manifest.json");
    let text = fs::read_to_string(&manifest_file).unwrap();
    let whole: serde_json::Value = serde_json::from_str(&text).unwrap();
    for version in [1, 999] {
        let head = serde_json::json!({ "format": whole["format"], "version": version });
        fs::write(&manifest_file, head.to_string()).unwrap();
        assert!(Trace::open(&folder).is_err());
        let mut output = Output::new(&folder);
        assert!(output.create().is_err(), "nobody asked to replace it");
        output.existing = Existing::Replace;
        drop(TraceWriter::begin(output.create().unwrap(), &manifest()).unwrap());
        assert!(Trace::open(&folder).is_ok());
    }
    let other = serde_json::json!({ "format": "thesis", "version": 1 });
    fs::write(&manifest_file, other.to_string()).unwrap();
    let mut output = Output::new(&folder);
    output.existing = Existing::Replace;
    let error = output.create().unwrap_err();
    assert!(matches!(error, TraceError::NotOurs { .. }), "{error}");
}

#[test]
fn damaged_files_give_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("t.varve");
    let mut writer = TraceWriter::create(&folder, &manifest()).unwrap();
    writer
        .append(&(0..5000).map(|i| touch(1, i)).collect::<Vec<_>>())
        .unwrap();
    let path = folder.join("parts/touches-000000.parquet");
    let whole = fs::read(&path).unwrap();
    for cut in [0, 3, 8, whole.len() / 2, whole.len() - 1] {
        fs::write(&path, &whole[..cut]).unwrap();
        let error = Trace::open(&folder)
            .unwrap()
            .rows::<TouchRow>()
            .unwrap_err();
        assert!(
            error.to_string().contains("touches-000000.parquet"),
            "{error}"
        );
    }
}

#[test]
fn a_newer_format_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut newer = manifest();
    newer.version = FORMAT_VERSION + 1;
    let text = serde_json::to_vec(&newer).unwrap();
    fs::write(dir.path().join("manifest.json"), text).unwrap();
    assert!(matches!(
        Trace::open(dir.path()),
        Err(TraceError::TooNew { .. })
    ));
}
