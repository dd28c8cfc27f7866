//! Other processes' accesses are not this program's.
//!
//! What a page flag says of a page of a file is true of the file, whoever reads it. A recorder that takes it for the
//! program's own has a register loop touch libc, for as long as other programs begin and end beside it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::Value;
use varve_faults::{Stage, monotonic_ns, patiently, varve_binary};
use varve_model::TouchSource;
use varve_trace::Trace;
use varve_trace::tables::{IntervalRow, TouchRow};
use varve_trust::{program, unless_reclaimed, wait_for_flushes};

/// The file that the program has mapped, by the variable that holds its address.
const MAP: &str = "map (mapped.c";
/// Pages of that file.
const PAGES: usize = 32;

/// Begin and end of something, CLOCK_MONOTONIC nanoseconds.
type Times = (u64, u64);

/// What one recording said.
struct Said {
    stage: Stage,
    trace: Trace,
    report: Value,
    intervals: Vec<IntervalRow>,
    touches: Vec<TouchRow>,
    /// When the program was certain to do only what it was there for.
    middle: Times,
    /// When others ran.
    beside: Vec<Times>,
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

    fn is_middle(&self, interval: &IntervalRow) -> bool {
        interval.start_ns.0 >= self.middle.0 && interval.end_ns.0 <= self.middle.1
    }

    /// For each interval in the middle of the recording, the pages within a range that are said to be touched, and those that others
    /// may have touched.
    fn pages(&self, first: u64, end: u64) -> Vec<(&IntervalRow, usize, usize)> {
        let intervals = self.intervals.iter().filter(|i| self.is_middle(i));
        let found: Vec<_> = intervals
            .map(|interval| {
                let (mut touched, mut possibly) = (0, 0);
                let of = |t: &&TouchRow| t.interval == interval.interval;
                for row in self.touches.iter().filter(of) {
                    let last = (row.page.0 + u64::from(row.pages)).min(end);
                    let pages = last.saturating_sub(row.page.0.max(first)) as usize;
                    match row.source {
                        TouchSource::PossiblyOthers => possibly += pages,
                        _ => touched += pages,
                    }
                }
                (interval, touched, possibly)
            })
            .collect();
        assert!(!found.is_empty(), "{:?} {:?}", self.middle, self.intervals);
        found
    }
}

/// Whether one of these lies in the interval as a whole.
fn has_whole(interval: &IntervalRow, times: &[Times]) -> bool {
    let (start, end) = (interval.start_ns.0, interval.end_ns.0);
    times.iter().any(|t| t.0 >= start && t.1 <= end)
}

fn number(value: &Value) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("{value} is no number"))
}

/// Records the program while `beside` runs again and again.
fn record(arguments: &[&str], beside: impl Fn(&Stage) + Sync) -> Said {
    let said = unless_reclaimed(|| record_once(arguments, &beside), |said| Some(&said.trace));
    let manifest = &said.trace.manifest;
    assert!(manifest.completeness.complete, "{:?}", manifest.losses);
    said
}

fn record_once(arguments: &[&str], beside: &(impl Fn(&Stage) + Sync)) -> Said {
    let stage = Stage::new();
    file(&stage);
    let program = program("mapped").display().to_string();
    let words = [&[program.as_str()], arguments].concat();
    let (recording, times) = (AtomicBool::new(true), Mutex::new(Vec::new()));
    let runs_of = |times: &Mutex<Vec<Times>>| times.lock().unwrap().len();
    let middle = thread::scope(|scope| {
        let recorder = stage.start(stage.record(&["--interval", "100ms"], &words));
        let running = scope.spawn(|| {
            while recording.load(Ordering::Relaxed) {
                let began = monotonic_ns();
                beside(&stage);
                times.lock().unwrap().push((began, monotonic_ns()));
                thread::sleep(std::time::Duration::from_millis(5));
            }
        });
        let more_runs = || {
            let before = runs_of(&times);
            // Whatever fails beside is seen when it is joined.
            assert!(patiently(
                || runs_of(&times) >= before + 10 || running.is_finished()
            ));
        };
        let begun = patiently(|| stage.path("begun").exists());
        assert!(begun, "{}", recorder.messages());
        more_runs();
        let from = monotonic_ns();
        wait_for_flushes(&stage, &recorder, "intervals", 3);
        more_runs();
        wait_for_flushes(&stage, &recorder, "intervals", 3);
        let to = monotonic_ns();
        recording.store(false, Ordering::Relaxed);
        fs::write(stage.path("over"), "").unwrap();
        recorder.end().require(0);
        (from, to)
    });
    let mut report = stage.command(varve_binary());
    report.args(["report", "--json", "trace.varve"]);
    let report = stage.run(report).require(0);
    let trace = Trace::open(&stage.path("trace.varve")).unwrap();
    Said {
        report: serde_json::from_slice(&fs::read(report.output()).unwrap()).unwrap(),
        intervals: trace.rows().unwrap(),
        touches: trace.rows().unwrap(),
        trace,
        stage,
        middle,
        beside: times.into_inner().unwrap(),
    }
}

fn true_again(stage: &Stage) {
    assert!(stage.command("/bin/true").status().unwrap().success());
}

/// The file that the program maps and others read.
fn file(stage: &Stage) -> PathBuf {
    let path = stage.path("shared-with-others");
    if !path.exists() {
        fs::write(&path, vec![7; PAGES * 4096]).unwrap();
    }
    path
}

fn read(path: &Path) {
    assert!(!fs::read(path).unwrap().is_empty());
}

#[test]
fn a_register_loop_does_not_touch_libc() {
    let said = record(&["spin"], true_again);
    let libc = said.objects("libc.so");
    assert!(!libc.is_empty(), "the loop has libc mapped");
    let (mut touched, mut possibly) = (0, 0);
    // Objects lie on one another: each page counts once.
    let mut ranges: Vec<(u64, u64)> = libc.iter().map(|o| (o.0, o.1)).collect();
    ranges.sort_unstable();
    let mut behind = 0;
    for (first, end) in ranges {
        for (_, is, may) in said.pages(first.max(behind), end.max(behind)) {
            touched += is;
            possibly += may;
        }
        behind = behind.max(end);
    }
    // Its beginning and its end call libraries, in as many intervals as they take.
    let others = said.intervals.iter().filter(|i| !said.is_middle(i)).count() as u64;
    for &(first, end, object) in &libc {
        let listed = number(&object["page_touches"]);
        assert!(listed <= others * (end - first), "{listed}: {object:#}");
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
    assert_eq!(sets.len(), said.intervals.len());
    for (set, interval) in sets.iter().zip(&said.intervals) {
        let pages = number(&set["pages"]);
        assert!(
            pages <= 16 || !said.is_middle(interval),
            "the working set of a register loop: {pages}"
        );
    }
    assert_eq!(said.report["trace"]["complete"], true, "the bound holds");
}

#[test]
fn what_the_program_reads_by_its_mapping_is_seen() {
    let said = record(&["read", "shared-with-others"], |stage| {
        true_again(stage);
        read(&file(stage));
    });
    let (first, end, _) = said.objects(MAP)[0];
    let noted = fs::read(said.stage.path("rounds")).unwrap();
    let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().unwrap());
    let rounds: Vec<Times> = noted
        .chunks_exact(16)
        .map(|pair| (word(&pair[..8]), word(&pair[8..])))
        .collect();
    let intervals = said.pages(first, end);
    // Where much else is to be run, the program may not have run in an interval.
    let mut read = intervals.iter().filter(|i| has_whole(i.0, &rounds));
    // Of a bit that DAMON took the page's own flag is left, which does not say whose access it was.
    let damon = damon_runs();
    let missed = read.clone().find(|(_, touched, possibly)| {
        let seen = if damon { touched + possibly } else { *touched };
        seen != PAGES
    });
    assert!(missed.is_none(), "{missed:?} of {intervals:?}");
    assert!(read.clone().any(|(_, touched, _)| *touched > 0));
    assert!(read.next().is_some(), "{intervals:?}");
}

/// Whether a thread of DAMON's runs, which clears accessed bits of any process.
fn damon_runs() -> bool {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let mut names = processes.filter_map(|p| fs::read_to_string(p.path().join("comm")).ok());
    names.any(|name| name.starts_with("kdamond"))
}

#[test]
fn what_others_read_of_a_mapped_file_is_only_possibly_touched() {
    let said = record(&["idle", "shared-with-others"], |stage| read(&file(stage)));
    let (first, end, object) = said.objects(MAP)[0];
    let intervals = said.pages(first, end);
    let touched: usize = intervals.iter().map(|(_, touched, _)| touched).sum();
    assert_eq!(touched, 0, "{intervals:?}");
    let mut read = intervals.iter().filter(|i| has_whole(i.0, &said.beside));
    let missed = read.clone().find(|(.., possibly)| *possibly != PAGES);
    assert!(missed.is_none(), "{missed:?} of {intervals:?}");
    assert!(read.next().is_some(), "{intervals:?}");
    // Its own reading at the beginning stands.
    assert_eq!(number(&object["touched_pages"]), PAGES as u64);
    assert!(number(&object["page_touches"]) <= 2 * PAGES as u64);
    assert!(number(&object["possibly_others_page_touches"]) > 0);
    let mut report = said.stage.command(varve_binary());
    report.args(["report", "trace.varve", "--all"]);
    let text = said.stage.run(report).require(0).output().to_owned();
    let text = fs::read_to_string(text).unwrap();
    assert!(text.contains("possibly touched by others"), "{text}");
}
