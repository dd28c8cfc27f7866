//! Other processes' accesses are not this program's.
//!
//! What a page flag says of a page of a file is true of the file, whoever reads it. A recorder that takes it for the
//! program's own has a register loop touch libc, for as long as other programs begin and end beside it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::Value;
use varve_faults::{Stage, varve_binary};
use varve_model::TouchSource;
use varve_trace::Trace;
use varve_trace::tables::{IntervalRow, TouchRow};
use varve_trust::program;

/// The file that the program has mapped, by the variable that holds its address.
const MAP: &str = "map (mapped.c";

/// What one recording said.
struct Said {
    report: Value,
    intervals: Vec<IntervalRow>,
    touches: Vec<TouchRow>,
}

impl Said {
    /// Pages of objects with this in their names, first and one past the last, and what is said of them.
    fn objects(&self, part: &str) -> Vec<(u64, u64, &Value)> {
        let objects = self.report["objects"].as_array().unwrap().iter();
        objects
            .filter(|o| o["name"].as_str().unwrap().contains(part))
            .map(|o| {
                let first = number(&o["address"]) / 4096;
                (first, first + number(&o["bytes"]).div_ceil(4096), o)
            })
            .collect()
    }

    /// For each interval that lies in the middle of the recording, the pages within a range that are said to be touched,
    /// and those that others may have touched.
    fn pages(&self, first: u64, end: u64) -> Vec<(usize, usize)> {
        let (from, to) = (self.intervals.len() / 4, self.intervals.len() - 2);
        self.intervals[from..to]
            .iter()
            .map(|interval| {
                let (mut touched, mut possibly) = (0, 0);
                for row in self
                    .touches
                    .iter()
                    .filter(|t| t.interval == interval.interval)
                {
                    let last = (row.page.0 + u64::from(row.pages)).min(end);
                    let pages = last.saturating_sub(row.page.0.max(first)) as usize;
                    match row.source {
                        TouchSource::PossiblyOthers => possibly += pages,
                        _ => touched += pages,
                    }
                }
                (touched, possibly)
            })
            .collect()
    }
}

fn number(value: &Value) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("{value} is no number"))
}

/// Records the program while `beside` runs again and again.
fn record(stage: &Stage, arguments: &[&str], beside: impl Fn() + Sync) -> Said {
    let program = program("mapped").display().to_string();
    let words: Vec<&str> = [program.as_str()]
        .iter()
        .chain(arguments)
        .copied()
        .collect();
    let recording = AtomicBool::new(true);
    thread::scope(|scope| {
        scope.spawn(|| {
            while recording.load(Ordering::Relaxed) {
                beside();
            }
        });
        stage
            .run(stage.record(&["--interval", "100ms"], &words))
            .require(0);
        recording.store(false, Ordering::Relaxed);
    });
    let mut report = stage.command(varve_binary());
    report.args(["report", "--json", "trace.varve"]);
    let report = stage.run(report).require(0);
    let trace = Trace::open(&stage.path("trace.varve")).unwrap();
    Said {
        report: serde_json::from_slice(&fs::read(report.output()).unwrap()).unwrap(),
        intervals: trace.rows().unwrap(),
        touches: trace.rows().unwrap(),
    }
}

fn true_again(stage: &Stage) {
    assert!(stage.command("/bin/true").status().unwrap().success());
}

/// A file of so many pages.
fn file(stage: &Stage, pages: usize) -> PathBuf {
    let path = stage.path("shared-with-others");
    fs::write(&path, vec![7; pages * 4096]).unwrap();
    path
}

fn read(path: &Path) {
    assert!(!fs::read(path).unwrap().is_empty());
    thread::sleep(std::time::Duration::from_millis(5));
}

#[test]
fn a_register_loop_does_not_touch_libc() {
    let stage = Stage::new();
    let said = record(&stage, &["spin", "3000"], || true_again(&stage));
    let libc = said.objects("libc.so");
    assert!(!libc.is_empty(), "the loop has libc mapped");
    let (mut touched, mut possibly) = (0, 0);
    // Objects lie on one another: each page counts once.
    let mut ranges: Vec<(u64, u64)> = libc.iter().map(|o| (o.0, o.1)).collect();
    ranges.sort_unstable();
    let mut behind = 0;
    for (first, end) in ranges {
        for (is, may) in said.pages(first.max(behind), end.max(behind)) {
            touched += is;
            possibly += may;
        }
        behind = behind.max(end);
    }
    for &(first, end, object) in &libc {
        let listed = number(&object["page_touches"]);
        let beginning = 3 * (end - first);
        assert!(listed <= beginning, "{listed} page touches: {object:#}");
    }
    assert_eq!(touched, 0, "the loop calls no library");
    assert!(
        possibly > 0,
        "others did, and nobody can know that it did not"
    );
    let footprint = &said.report["footprint"];
    assert!(number(&footprint["possibly_others_pages"]) > 0);
    assert!(number(&footprint["possibly_others_page_touches"]) >= possibly as u64);
    let sets = said.report["working_set"].as_array().unwrap();
    for interval in &sets[sets.len() / 4..sets.len() - 2] {
        let pages = number(&interval["pages"]);
        assert!(pages <= 16, "the working set of a register loop: {pages}");
    }
    assert_eq!(said.report["trace"]["complete"], true, "the bound holds");
}

#[test]
fn what_the_program_reads_by_its_mapping_is_seen() {
    const PAGES: usize = 32;
    let stage = Stage::new();
    let path = file(&stage, PAGES);
    let said = record(&stage, &["read", path.to_str().unwrap(), "3000"], || {
        true_again(&stage);
        read(&path);
    });
    let (first, end, _) = said.objects(MAP)[0];
    let intervals = said.pages(first, end);
    let whole = intervals.iter().filter(|(touched, _)| *touched == PAGES);
    // Where much else is to be run, the program may not have run in an interval.
    let share = whole.count() as f64 / intervals.len() as f64;
    assert!(share >= 0.9, "{intervals:?}");
}

#[test]
fn what_others_read_of_a_mapped_file_is_only_possibly_touched() {
    const PAGES: usize = 32;
    let stage = Stage::new();
    let path = file(&stage, PAGES);
    let said = record(&stage, &["idle", path.to_str().unwrap(), "3000"], || {
        read(&path);
    });
    let (first, end, object) = said.objects(MAP)[0];
    let intervals = said.pages(first, end);
    let touched: usize = intervals.iter().map(|(touched, _)| touched).sum();
    assert_eq!(touched, 0, "{intervals:?}");
    let read = intervals.iter().filter(|(_, possibly)| *possibly == PAGES);
    assert!(read.count() * 2 > intervals.len(), "{intervals:?}");
    // Its own reading at the beginning stands.
    assert_eq!(number(&object["touched_pages"]), PAGES as u64);
    assert!(number(&object["page_touches"]) <= 2 * PAGES as u64);
    let possibly = number(&object["possibly_others_page_touches"]);
    assert!(possibly > number(&object["page_touches"]), "{possibly}");
    let mut report = stage.command(varve_binary());
    report.args(["report", "trace.varve", "--all"]);
    let text = stage.run(report).require(0).output().to_owned();
    let text = fs::read_to_string(text).unwrap();
    assert!(text.contains("possibly touched by others"), "{text}");
}
