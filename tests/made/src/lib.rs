//! Made-up traces: rows and manifests with nothing unusual in them, of which a test changes what it is about.

use varve_model::{
    Address, Backend, Bytes, Capability, Duration, Interval, ObjectId, ObjectKind, Page, Pid,
    Resolved, SampleMode, SampleSource, SiteId, Tid, Time, TouchSource,
};
use varve_trace::tables::{IntervalRow, ObjectRow, Row, SampleRow, TouchRow};
use varve_trace::{
    Clock, Completeness, FORMAT_VERSION, Features, IntervalChoice, Machine, Manifest, Options,
    Overhead, State, Target, TraceWriter, write_table,
};

/// The length of an interval, nanoseconds.
pub const STEP: u64 = 50_000_000;

/// Writes a table. A finished trace has all of them, empty ones too.
///
/// # Panics
/// Where it cannot be written.
pub fn table<R: Row>(writer: &TraceWriter, rows: &[R]) {
    write_table(writer.folder(), rows).unwrap_or_else(|e| panic!("cannot write a table: {e}"));
}

/// An interval of 50 ms.
pub fn interval(i: u32) -> IntervalRow {
    IntervalRow {
        interval: Interval(i),
        start_ns: Time(u64::from(i) * STEP),
        end_ns: Time((u64::from(i) + 1) * STEP - 1000),
        held_ns: Duration(1000),
        longest_hold_ns: Duration(1000),
        longest_stop_ns: Duration(0),
        holds: 1,
        overlap_ns: Duration(0),
        resident_pages: 100,
        mappings: 0,
        processes: 1,
        threads: 1,
        recorder_cpu_ns: Duration(500),
    }
}

/// Pages that were touched in an interval, by process 1.
pub fn touch(i: u32, page: u64, pages: u32) -> TouchRow {
    TouchRow {
        interval: Interval(i),
        pid: Pid(1),
        page: Page(page),
        pages,
        page_bytes: 4096,
        written: None,
        source: TouchSource::Scan,
    }
}

/// A clock sample of an access to 8 bytes of an object, one for each millisecond.
pub fn sample(at: u64, tid: u32, object: u64, address: u64, write: bool) -> SampleRow {
    SampleRow {
        time_ns: Time(at * 1_000_000),
        pid: Pid(1),
        tid: Some(Tid(tid)),
        cpu: None,
        ip: Some(Address(0x1000)),
        address: Some(Address(address)),
        bytes: Some(Bytes(8)),
        write: Some(write),
        object: Some(ObjectId(object)),
        source: SampleSource::CpuClock,
        latency_cycles: None,
        level: None,
        resolved: Some(Resolved::Behind),
        mode: Some(SampleMode::User),
        weight_ns: Some(Duration(1_000_000)),
        event: None,
        period: None,
        site: None,
    }
}

/// A heap object that lives from the beginning to the end.
pub fn object(id: u64, page: u64, pages: u64) -> ObjectRow {
    ObjectRow {
        object: ObjectId(id),
        pid: Pid(1),
        kind: ObjectKind::Heap,
        name: format!("o{id}"),
        site: Some(SiteId(0)),
        address: Address(page * 4096),
        bytes: Bytes(pages * 4096),
        born_ns: Time(0),
        died_ns: None,
        tid: Some(Tid(1)),
        pool: false,
        layer: 5,
        continues: None,
    }
}

/// The manifest of a program that was recorded by scans, with heap objects, and ended well.
pub fn manifest() -> Manifest {
    Manifest {
        format: "varve-trace".into(),
        version: FORMAT_VERSION,
        varve: "0.1.0".into(),
        state: State::Finished,
        recorder_pid: None,
        backend: Backend::Scan,
        capabilities: Capability::RECORDED
            .into_iter()
            .chain([Capability::HeapObjects])
            .collect(),
        target: Target {
            command: vec!["./program".into()],
            pid: 1,
            attached: false,
            exit_code: Some(0),
        },
        options: Options {
            interval: IntervalChoice::Fixed(Duration(STEP)),
            follow: true,
            delay_ns: Duration(0),
            min_object_bytes: Bytes(4096),
            max_hold_ns: None,
            thp_never: false,
            without: vec![],
        },
        features: Features {
            writes: None,
            page_flags: true,
            hold: "cgroup".into(),
            objects: Some("preload".into()),
            vanish: Some("locks".into()),
        },
        machine: Machine {
            kernel: "6.12.0".into(),
            architecture: "x86_64".into(),
            cpu: "made up".into(),
            cpus: 2,
            memory_bytes: Bytes(8 << 30),
            nodes: Some(2),
        },
        clock: Clock::default(),
        completeness: Completeness {
            complete: true,
            statement: String::new(),
        },
        overhead: Overhead::default(),
        losses: Default::default(),
        samples: None,
        traps: None,
        operations: None,
        modules: vec![],
        checksums: Default::default(),
        notes: vec![],
    }
}
