//! What a trace holds, in lines that a person can check.
#![allow(dead_code)]

use std::collections::HashMap;
use std::fmt::Display;
use std::path::{Path, PathBuf};

use varve_import::{ImportError, Summary, import};
use varve_model::ImportFormat;
use varve_trace::tables::*;
use varve_trace::{Output, Trace};

pub(crate) const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/import");

pub(crate) fn golden(name: &str) -> PathBuf {
    Path::new(GOLDEN).join(name)
}

pub(crate) struct Imported {
    folder: tempfile::TempDir,
    pub(crate) summary: Summary,
}

pub(crate) fn imported(files: &[&str]) -> Imported {
    let files: Vec<PathBuf> = files.iter().map(|f| golden(f)).collect();
    of_paths(&files, None).unwrap()
}

pub(crate) fn of_paths(
    files: &[PathBuf],
    format: Option<ImportFormat>,
) -> Result<Imported, ImportError> {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("t.varve");
    let summary = import(files, &Output::new(&output), format, &mut |_| ())?;
    Ok(Imported { folder, summary })
}

/// Imports bytes; the error must leave no trace behind.
pub(crate) fn of_bytes(
    bytes: &[u8],
    format: Option<ImportFormat>,
) -> Result<Imported, ImportError> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, bytes).unwrap();
    let output = folder.path().join("t.varve");
    match import(&[file], &Output::new(&output), format, &mut |_| ()) {
        Ok(summary) => Ok(Imported { folder, summary }),
        Err(error) => {
            assert!(
                !output.exists(),
                "an import that failed left something behind"
            );
            Err(error)
        }
    }
}

fn or<T: Display>(value: Option<T>) -> String {
    value.map_or("-".to_owned(), |v| v.to_string())
}

impl Imported {
    pub(crate) fn trace(&self) -> Trace {
        Trace::open(&self.folder.path().join("t.varve")).unwrap()
    }

    /// `time pid tid cpu ip address bytes write object latency level site`, `-` for null.
    pub(crate) fn samples(&self) -> Vec<String> {
        let trace = self.trace();
        let objects: HashMap<_, _> = trace
            .rows::<ObjectRow>()
            .unwrap()
            .into_iter()
            .map(|o| (o.object, o.name))
            .collect();
        let sites: HashMap<_, _> = trace
            .rows::<SiteRow>()
            .unwrap()
            .into_iter()
            .map(|s| (s.site, s.label))
            .collect();
        let line = |r: &SampleRow| {
            format!(
                "{} {} {} {} {} {} {} {} {} {} {} {}",
                r.time_ns.0,
                r.pid,
                or(r.tid),
                or(r.cpu),
                or(r.ip),
                or(r.address),
                or(r.bytes.map(|b| b.0)),
                or(r.write),
                or(r.object.map(|o| &objects[&o])),
                or(r.latency_cycles),
                or(r.level),
                or(r.site.map(|s| &sites[&s])),
            )
        };
        trace
            .rows::<SampleRow>()
            .unwrap()
            .iter()
            .map(line)
            .collect()
    }

    /// `interval start..end pid first+pages written source`.
    pub(crate) fn touches(&self) -> Vec<String> {
        let trace = self.trace();
        let intervals: Vec<IntervalRow> = trace.rows().unwrap();
        let mut rows: Vec<TouchRow> = trace.rows().unwrap();
        // How pages are cut into rows says nothing.
        rows.dedup_by(|next, last| {
            let end = last.page.0 + u64::from(last.pages);
            let same = (next.interval, next.pid, next.written, next.source)
                == (last.interval, last.pid, last.written, last.source);
            let joined = same && next.page.0 == end;
            if joined {
                last.pages += next.pages;
            }
            joined
        });
        let line = |r: &TouchRow| {
            let i = &intervals[r.interval.0 as usize];
            format!(
                "{} {}..{} {} {:#x}+{} {} {}",
                r.interval,
                i.start_ns.0,
                i.end_ns.0,
                r.pid,
                r.page.0,
                r.pages,
                or(r.written),
                r.source
            )
        };
        rows.iter().map(line).collect()
    }

    /// `interval tid page reads writes first`.
    pub(crate) fn counts(&self) -> Vec<String> {
        let line = |r: &CountRow| {
            format!(
                "{} {} {:#x} {} {} {}",
                r.interval,
                or(r.tid),
                r.page.0,
                r.reads,
                r.writes,
                or(r.first)
            )
        };
        let rows: Vec<CountRow> = self.trace().rows().unwrap();
        rows.iter().map(line).collect()
    }

    /// `name kind address+bytes born..died`.
    pub(crate) fn objects(&self) -> Vec<String> {
        let line = |r: &ObjectRow| {
            format!(
                "{} {} {}+{} {}..{}",
                r.name,
                r.kind,
                r.address,
                r.bytes.0,
                r.born_ns.0,
                or(r.died_ns.map(|t| t.0))
            )
        };
        let rows: Vec<ObjectRow> = self.trace().rows().unwrap();
        rows.iter().map(line).collect()
    }
}
