//! Small traces of a program with allocation sites, written and read as real ones are.

use std::path::PathBuf;

use tempfile::TempDir;
use varve_analyse::{AnalyseOptions, analyse};
use varve_compare::Run;
use varve_made::{interval, manifest, object, sample, table, touch};
use varve_model::{Address, Bytes, Loss, ObjectKind, Pid, SiteId, Time, TouchSource};
use varve_trace::tables::{
    CountRow, CounterRow, FaultRow, Frame, IntervalRow, LossRow, MappingRow, ObjectRow, ProcessRow,
    SampleRow, SiteRow, ThreadRow, TouchRow,
};
use varve_trace::{Trace, TraceWriter};

/// A line of the program that allocates.
#[derive(Clone, Debug)]
pub struct Site {
    pub variable: &'static str,
    pub function: &'static str,
    pub line: u32,
    pub function_line: u32,
    pub column: u32,
    /// Pages of the object that lies there, and how many of them each interval touches, from the first on.
    pub pages: u64,
    pub touched: u32,
    /// How many behind these others may have touched, in the first interval.
    pub by_others: u32,
    /// Milliseconds of samples.
    pub samples: u64,
}

impl Site {
    pub fn new(variable: &'static str, function: &'static str, line: u32) -> Site {
        Site {
            variable,
            function,
            line,
            function_line: 10,
            column: 5,
            pages: 64,
            touched: 32,
            by_others: 0,
            samples: 0,
        }
    }

    pub fn touching(self, touched: u32) -> Site {
        Site { touched, ..self }
    }

    pub fn label(&self) -> String {
        format!("solver.c:{}, in {}", self.line, self.function)
    }

    pub fn name(&self) -> String {
        format!("{} ({})", self.variable, self.label())
    }
}

/// A program that was recorded.
#[derive(Clone, Debug)]
pub struct Made {
    pub sites: Vec<Site>,
    pub intervals: u32,
    pub build: &'static str,
    pub complete: bool,
    /// What it lost where it is not complete.
    pub loss: Loss,
    /// The number of its second thread, whose stack it touches.
    pub tid: u32,
    /// What the kernel says of the resident memory of each process, in MiB.
    pub peaks: Vec<u64>,
}

impl Made {
    pub fn new(sites: Vec<Site>) -> Made {
        Made {
            sites,
            intervals: 10,
            build: "aa11",
            complete: true,
            loss: Loss::Faults,
            tid: 7,
            peaks: Vec::new(),
        }
    }

    /// The trace as it is compared.
    pub fn run(&self) -> Run {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("t.varve");
        self.write(&path);
        let trace = Trace::open(&path).unwrap();
        let analysis = analyse(&trace, &AnalyseOptions::default(), &mut |_| ()).unwrap();
        assert_eq!(analysis.contradictions, Vec::<String>::new());
        Run::new(&PathBuf::from("t.varve"), &trace, &analysis).unwrap()
    }

    fn write(&self, path: &std::path::Path) {
        let mut manifest = manifest();
        manifest.target.command = vec!["./solver".into()];
        if !self.complete {
            manifest.losses.insert(self.loss.as_str().into(), 3);
        }
        manifest.derive_completeness();
        let writer = TraceWriter::create(path, &manifest).unwrap();
        let intervals: Vec<IntervalRow> = (0..self.intervals).map(interval).collect();
        table(&writer, &intervals);
        let mut touches = Vec::new();
        for i in 0..self.intervals {
            let mut base = 0x1000;
            for site in &self.sites {
                if site.touched > 0 {
                    touches.push(touch(i, base, site.touched));
                }
                if i == 0 && site.by_others > 0 {
                    touches.push(TouchRow {
                        source: TouchSource::PossiblyOthers,
                        ..touch(i, base + u64::from(site.touched), site.by_others)
                    });
                }
                base += site.pages + 1;
            }
            touches.push(touch(i, 0x90_0000, 2));
        }
        table(&writer, &touches);
        let mut objects = Vec::new();
        let mut sites = Vec::new();
        let mut samples = Vec::new();
        let mut base = 0x1000;
        for (i, site) in self.sites.iter().enumerate() {
            objects.push(named(
                i as u64,
                site.name(),
                ObjectKind::Heap,
                base,
                site.pages,
            ));
            objects[i].site = Some(SiteId(i as u32));
            sites.push(SiteRow {
                site: SiteId(i as u32),
                label: site.label(),
                frames: vec![frame("malloc", None), frame(site.function, Some(site))],
            });
            samples.extend((0..site.samples).map(|n| SampleRow {
                site: Some(SiteId(i as u32)),
                ..sample(n, 1, i as u64, base * 4096, false)
            }));
            base += site.pages + 1;
        }
        let stack = format!("stack of thread {} (worker)", self.tid);
        let number = objects.len() as u64;
        objects.push(named(number, stack, ObjectKind::Stack, 0x90_0000, 8));
        table(&writer, &objects);
        table(&writer, &sites);
        samples.sort_by_key(|s| s.time_ns);
        table(&writer, &samples);
        table(&writer, &[mapping(self.build)]);
        table::<FaultRow>(&writer, &[]);
        table::<ThreadRow>(&writer, &[]);
        let processes: Vec<ProcessRow> = (1..).zip(&self.peaks).map(process).collect();
        table(&writer, &processes);
        table::<CountRow>(&writer, &[]);
        table::<CounterRow>(&writer, &[]);
        table::<LossRow>(&writer, &[]);
    }
}

fn frame(function: &str, site: Option<&Site>) -> Frame {
    Frame {
        function: Some(function.into()),
        file: site.map(|_| "/src/solver.c".into()),
        line: site.map(|s| s.line),
        column: site.map(|s| s.column),
        function_line: site.map(|s| s.function_line),
        module: Some("solver".into()),
        offset: None,
        address: Address(0x1000),
    }
}

fn mapping(build: &str) -> MappingRow {
    MappingRow {
        pid: Pid(1),
        address: Address(0x400_0000),
        bytes: Bytes(1 << 20),
        perms: "r-xp".into(),
        offset: 0,
        path: "/bin/solver".into(),
        device: "08:01".into(),
        inode: 9,
        build_id: Some(build.into()),
        from_ns: Time(0),
        to_ns: None,
    }
}

/// An object of a name.
fn named(id: u64, name: String, kind: ObjectKind, page: u64, pages: u64) -> ObjectRow {
    ObjectRow {
        name,
        kind,
        site: None,
        ..object(id, page, pages)
    }
}

fn process((pid, peak): (u32, &u64)) -> ProcessRow {
    ProcessRow {
        pid: Pid(pid),
        parent: Pid(0),
        exe: "/bin/solver".into(),
        file: None,
        command: "./solver".into(),
        born_ns: Time(0),
        died_ns: Some(Time(1 << 40)),
        exit_code: Some(0),
        objects: None,
        objects_why: None,
        peak_resident_bytes: Some(Bytes(peak << 20)),
        peak_resident_why: None,
    }
}
