//! Small traces, written and read as real ones are.
#![allow(dead_code)]

use std::collections::HashSet;

use tempfile::TempDir;
use varve_analyse::{AnalyseOptions, Analysis, Touched, Usage, analyse, object_names};
pub use varve_made::{STEP, interval, manifest, object, sample, table, touch};
use varve_model::{Address, Bytes, Cpu, Interval, ObjectId, Page, Pid, Tid, Time};
use varve_trace::tables::{
    CountRow, CounterRow, FaultRow, IntervalRow, LossRow, MappingRow, ObjectRow, ProcessRow,
    SampleRow, SiteRow, ThreadRow, TouchRow,
};
use varve_trace::{Manifest, Selection, Trace, TraceError, TraceWriter, write_table};

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
    pub sites: Vec<SiteRow>,
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
            sites: vec![],
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
        table(&writer, &self.faults);
        table(&writer, &self.objects);
        table(&writer, &self.threads);
        if self.intervals.is_empty() {
            table(&writer, &self.intervals);
        }
        if self.touches.is_empty() {
            table(&writer, &self.touches);
        }
        table(&writer, &self.mappings);
        table(&writer, &self.processes);
        write_table::<CounterRow>(writer.folder(), &[]).unwrap();
        write_table::<LossRow>(writer.folder(), &[]).unwrap();
        table(&writer, &self.samples);
        table(&writer, &self.counts);
        table(&writer, &self.sites);
        let trace = choose(Trace::open(&path).unwrap());
        let found = analyse(&trace, options, &mut |_| ())?;
        assert_eq!(found.contradictions, Vec::<String>::new());
        Ok(found)
    }
}

/// What touches say of an object or a group.
pub fn touched(usage: &Usage) -> Touched {
    *usage.touched.get().expect("a trace with touches")
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
        peak_resident_bytes: None,
        peak_resident_why: None,
    }
}
