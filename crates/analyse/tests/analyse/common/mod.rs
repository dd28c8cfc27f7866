//! Small traces, written and read as real ones are.
#![allow(dead_code)]

use std::collections::HashSet;

use tempfile::TempDir;
use varve_analyse::{AnalyseOptions, Analysis, Touched, Usage, analyse, object_names};
use varve_model::{
    Address, Backend, Bytes, Capability, Cpu, Duration, Interval, ObjectId, ObjectKind, Page, Pid,
    Resolved, SampleMode, SampleSource, SiteId, Tid, Time, TouchSource,
};
use varve_trace::tables::{
    CountRow, CounterRow, FaultRow, IntervalRow, LossRow, MappingRow, ObjectRow, ProcessRow, Row,
    SampleRow, ThreadRow, TouchRow,
};
use varve_trace::{
    Clock, Completeness, FORMAT_VERSION, Features, IntervalChoice, Machine, Manifest, Options,
    Overhead, Selection, State, Target, Trace, TraceError, TraceWriter, write_table,
};

/// The length of an interval.
pub const STEP: u64 = 50_000_000;
/// Intervals of traces that are made up at random.
pub const INTERVALS_OF_RANDOM: u32 = 8;

pub struct Made {
    pub manifest: Manifest,
    pub intervals: Vec<IntervalRow>,
    pub touches: Vec<TouchRow>,
    pub faults: Vec<FaultRow>,
    pub objects: Vec<ObjectRow>,
    pub threads: Vec<ThreadRow>,
    pub mappings: Vec<MappingRow>,
    pub processes: Vec<ProcessRow>,
    pub samples: Vec<SampleRow>,
    pub counts: Vec<CountRow>,
}

impl Made {
    pub fn new(intervals: u32) -> Made {
        let mut manifest = manifest();
        manifest.derive_completeness();
        Made {
            manifest,
            intervals: (0..intervals).map(interval).collect(),
            touches: vec![],
            faults: vec![],
            objects: vec![],
            threads: vec![],
            mappings: vec![],
            processes: vec![],
            samples: vec![],
            counts: vec![],
        }
    }

    pub fn analyse(&self) -> Analysis {
        self.analyse_with(&AnalyseOptions::default())
    }

    pub fn analyse_with(&self, options: &AnalyseOptions) -> Analysis {
        self.try_analyse(options).unwrap()
    }

    pub fn try_analyse(&self, options: &AnalyseOptions) -> Result<Analysis, TraceError> {
        self.analyse_of(options, |trace| trace)
    }

    /// What a reader sees of a part of the trace.
    pub fn analyse_part(&self, part: Selection) -> Analysis {
        let options = AnalyseOptions::default();
        self.analyse_of(&options, |trace| trace.part(part)).unwrap()
    }

    /// What a reader sees who chose objects by the names that reports give them; None where there are none of them.
    pub fn analyse_named(&self, is: impl Fn(&str) -> bool) -> Option<Analysis> {
        self.analyse_named_with(&AnalyseOptions::default(), is)
    }

    pub fn analyse_named_with(
        &self,
        options: &AnalyseOptions,
        is: impl Fn(&str) -> bool,
    ) -> Option<Analysis> {
        let mut any = false;
        let found = self.analyse_of(options, |trace| {
            let names = object_names(&trace).unwrap().into_iter();
            let objects: HashSet<ObjectId> = names
                .filter(|(_, _, name)| is(name))
                .map(|(object, ..)| object)
                .collect();
            any = !objects.is_empty();
            trace.part(Selection {
                objects: Some(objects),
                ..Selection::default()
            })
        });
        any.then(|| found.unwrap())
    }

    fn analyse_of(
        &self,
        options: &AnalyseOptions,
        choose: impl FnOnce(Trace) -> Trace,
    ) -> Result<Analysis, TraceError> {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("t.varve");
        let mut writer = TraceWriter::create(&path, &self.manifest).unwrap();
        if !self.intervals.is_empty() {
            writer.append(&self.intervals).unwrap();
        }
        // Two parts, so that units are put together.
        let (a, b) = self.touches.split_at(self.touches.len() / 2);
        writer.append(a).unwrap();
        writer.append(b).unwrap();
        table(&mut writer, &self.faults);
        table(&mut writer, &self.objects);
        table(&mut writer, &self.threads);
        if self.intervals.is_empty() {
            table(&mut writer, &self.intervals);
        }
        if self.touches.is_empty() {
            table(&mut writer, &self.touches);
        }
        table(&mut writer, &self.mappings);
        table(&mut writer, &self.processes);
        write_table::<CounterRow>(writer.folder(), &[]).unwrap();
        write_table::<LossRow>(writer.folder(), &[]).unwrap();
        table(&mut writer, &self.samples);
        table(&mut writer, &self.counts);
        let trace = choose(Trace::open(&path).unwrap());
        let found = analyse(&trace, options, &mut |_| ())?;
        assert_eq!(found.contradictions, Vec::<String>::new());
        Ok(found)
    }
}

/// A finished trace has all its tables, empty ones too.
fn table<R: Row>(writer: &mut TraceWriter, rows: &[R]) {
    write_table(writer.folder(), rows).unwrap();
}

/// What touches say of an object or a group.
pub fn touched(usage: &Usage) -> Touched {
    *usage.touched.get().expect("a trace with touches")
}

pub fn interval(i: u32) -> IntervalRow {
    IntervalRow {
        interval: Interval(i),
        start_ns: Time(u64::from(i) * STEP),
        end_ns: Time((u64::from(i) + 1) * STEP - 1000),
        held_ns: Duration(1000),
        longest_hold_ns: Duration(1000),
        holds: 1,
        overlap_ns: Duration(0),
        resident_pages: 100,
        processes: 1,
        threads: 1,
        recorder_cpu_ns: Duration(500),
    }
}

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

pub fn fault(i: u32, page: u64, tid: u32) -> FaultRow {
    FaultRow {
        time_ns: Time(u64::from(i) * STEP + 10),
        pid: Pid(1),
        tid: Tid(tid),
        cpu: Cpu(0),
        ip: Address(1),
        address: Address(page * 4096 + 1),
        write: None,
        kernel: false,
    }
}

pub fn thread(tid: u32) -> ThreadRow {
    ThreadRow {
        pid: Pid(1),
        tid: Tid(tid),
        name: format!("t{tid}"),
        born_ns: Time(0),
        died_ns: None,
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
        site: None,
    }
}

/// Accesses of a thread to a page in an interval.
pub fn count(i: u32, tid: u32, page: u64, reads: u64, writes: u64) -> CountRow {
    CountRow {
        interval: Interval(i),
        pid: Pid(1),
        tid: Some(Tid(tid)),
        page: Page(page),
        reads,
        writes,
        first: Some(false),
    }
}

/// Pages of a file, or of shared memory where `perms` ends with `s`, in a process.
pub fn mapping(pid: u32, page: u64, pages: u64, perms: &str, inode: u64, at: u64) -> MappingRow {
    MappingRow {
        pid: Pid(pid),
        address: Address(page * 4096),
        bytes: Bytes(pages * 4096),
        perms: perms.into(),
        offset: at * 4096,
        path: if inode == 0 {
            String::new()
        } else {
            format!("/file{inode}")
        },
        device: "08:01".into(),
        inode,
        build_id: None,
        from_ns: Time(0),
        to_ns: None,
    }
}

pub fn process(pid: u32, parent: u32) -> ProcessRow {
    ProcessRow {
        pid: Pid(pid),
        parent: Pid(parent),
        exe: "/bin/program".into(),
        file: None,
        command: "program".into(),
        born_ns: Time(0),
        died_ns: None,
        exit_code: None,
        objects: None,
        objects_why: None,
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
