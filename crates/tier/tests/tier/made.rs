//! Small traces, written and read as real ones are.

use tempfile::TempDir;
use varve_made::{interval, table};
use varve_model::{Address, Capability, Duration, SiteId};
use varve_trace::tables::{
    FaultRow, Frame, IntervalRow, LossRow, MappingRow, ObjectRow, ProcessRow, SampleRow, SiteRow,
    ThreadRow, TouchRow,
};
use varve_trace::{Trace, TraceWriter};

pub(crate) use varve_made::STEP;

#[derive(Default)]
pub struct Made {
    pub intervals: u32,
    pub touches: Vec<TouchRow>,
    pub objects: Vec<ObjectRow>,
    pub mappings: Vec<MappingRow>,
    pub samples: Vec<SampleRow>,
    pub sites: Vec<SiteRow>,
    pub processes: Vec<ProcessRow>,
    /// Whether the trace says that it has touches.
    pub hides_touches: bool,
}

impl Made {
    pub fn new(intervals: u32) -> Made {
        Made {
            intervals,
            ..Made::default()
        }
    }

    /// Writes the trace; it lies in the folder for as long as that lives.
    pub fn write(&self) -> (TempDir, Trace) {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("t.varve");
        let mut manifest = varve_made::manifest();
        manifest.target.command = vec!["./solver".into()];
        if self.hides_touches {
            manifest.capabilities.remove(&Capability::Touches);
        }
        manifest.derive_completeness();
        let writer = TraceWriter::create(&path, &manifest).unwrap();
        let intervals: Vec<IntervalRow> = (0..self.intervals).map(interval).collect();
        table(&writer, &intervals);
        table(&writer, &self.touches);
        table::<FaultRow>(&writer, &[]);
        table(&writer, &self.objects);
        table::<ThreadRow>(&writer, &[]);
        table(&writer, &self.mappings);
        table(&writer, &self.processes);
        table::<LossRow>(&writer, &[]);
        table(&writer, &self.samples);
        table(&writer, &self.sites);
        let trace = Trace::open(&path).unwrap();
        (folder, trace)
    }
}

pub(crate) fn touch(i: u32, page: u64, pages: u32, written: Option<bool>) -> TouchRow {
    TouchRow {
        written,
        ..varve_made::touch(i, page, pages)
    }
}

/// A heap object of a site, which lives from the beginning to the end.
pub(crate) fn object(id: u64, name: &str, page: u64, pages: u64) -> ObjectRow {
    ObjectRow {
        name: name.into(),
        site: Some(SiteId(id as u32)),
        ..varve_made::object(id, page, pages)
    }
}

/// The site of an object of that number.
pub(crate) fn site(id: u32, line: u32, at: u64) -> SiteRow {
    SiteRow {
        site: SiteId(id),
        label: format!("solver.c:{line}, in setup"),
        frames: vec![Frame {
            function: Some("setup".into()),
            file: Some("solver.c".into()),
            line: Some(line),
            column: None,
            function_line: None,
            module: Some("/usr/bin/solver".into()),
            offset: None,
            address: Address(at),
        }],
    }
}

/// A clock sample of an access in a page.
pub(crate) fn sample(at_ms: u64, page: u64, weight_ms: u64) -> SampleRow {
    SampleRow {
        object: None,
        weight_ns: Some(Duration(weight_ms * 1_000_000)),
        ..varve_made::sample(at_ms, 1, 0, page * 4096 + 64, false)
    }
}
