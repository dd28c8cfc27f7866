//! Counted accesses against programs that know how often they access which page, against Valgrind, and against a scan.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Once;
use std::time::Duration;

use object::{Object, ObjectSymbol};
use varve_model::{PAGE_BYTES, Page, Tid};
use varve_trace::Trace;
use varve_trace::tables::{CountRow, IntervalRow, ObjectRow, ProcessRow};
use varve_truth::{
    Plan, Recorded, Touches, finish, has_valgrind, make_workloads, record, run_lackey, temporary,
    workload,
};

/// Reads and writes by page of an array, counted from its first.
type Expected<'a> = &'a [(u64, u64, u64)];

/// What `exact_counted` does, by page.
const COUNTED: Expected<'static> = &[
    (0, 1000, 0),
    (1, 0, 700),
    (2, 300, 0),
    (3, 300, 200),
    (4, 100, 200 + 90),
    (5, 100, 90),
    (6, 50 + 40 + 64, 50 + 40),
    (7, 30 + 20, 64 + 30 + 20),
];

fn exact(program: &str, arguments: &[&str], options: &[&str]) -> Recorded {
    static BUILT: Once = Once::new();
    BUILT.call_once(|| make_workloads().unwrap());
    let mut plan = Plan::workload(program, Duration::from_millis(50));
    plan.arguments = arguments.iter().map(OsString::from).collect();
    plan.options = ["--backend", "exact"].map(OsString::from).to_vec();
    plan.options.extend(options.iter().map(OsString::from));
    record(&plan).unwrap()
}

fn counts(trace: &Trace) -> Vec<CountRow> {
    let mut rows = Vec::new();
    for batch in trace.batches::<CountRow>().unwrap() {
        rows.extend(batch.unwrap());
    }
    rows
}

/// The first page of a symbol of a program that lies where it was linked.
fn page_of(program: &str, symbol: &str) -> Page {
    let data = fs::read(workload(program)).unwrap();
    let file = object::File::parse(&*data).unwrap();
    let found = file.symbols().find(|s| s.name() == Ok(symbol)).unwrap();
    assert_eq!(found.address() % PAGE_BYTES, 0, "{symbol}");
    Page(found.address() / PAGE_BYTES)
}

/// Reads and writes by page, from `first` on.
fn by_page<'a>(
    rows: impl IntoIterator<Item = &'a CountRow>,
    first: Page,
    pages: u64,
) -> Vec<(u64, u64, u64)> {
    let mut sums: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    for row in rows {
        let within = row.page.0.checked_sub(first.0).filter(|p| *p < pages);
        if let Some(page) = within {
            let sum = sums.entry(page).or_default();
            sum.0 += row.reads;
            sum.1 += row.writes;
        }
    }
    sums.into_iter().map(|(p, (r, w))| (p, r, w)).collect()
}

fn complete(recorded: &Recorded) {
    let said = &recorded.trace.manifest.completeness;
    assert!(said.complete, "{}", said.statement);
    assert_eq!(recorded.trace.manifest.backend, varve_model::Backend::Exact);
}

#[test]
fn every_access_of_a_bare_program_is_counted_and_no_other() {
    let recorded = exact("exact_counted", &[], &[]);
    assert_eq!(recorded.finished.code, 0);
    complete(&recorded);
    let rows = counts(&recorded.trace);
    let first = page_of("exact_counted", "pages");
    assert_eq!(by_page(&rows, first, 8), COUNTED);
    let elsewhere: Vec<_> = rows
        .iter()
        .filter(|r| r.page < first || r.page.0 >= first.0 + 8)
        .collect();
    assert!(elsewhere.is_empty(), "{elsewhere:?}");
    let threads: BTreeSet<_> = rows.iter().map(|r| (r.pid.0, r.tid.unwrap().0)).collect();
    let pid = recorded.trace.manifest.target.pid;
    assert_eq!(threads, BTreeSet::from([(pid, pid)]));
    assert!(rows.iter().all(|r| r.first == Some(true)));
}

/// The control: an expectation that knows nothing of accesses over the end of a page does not hold.
#[test]
fn a_judge_without_straddling_is_wrong() {
    let recorded = exact("exact_counted", &[], &[]);
    let rows = counts(&recorded.trace);
    let counted = by_page(&rows, page_of("exact_counted", "pages"), 8);
    let without: Vec<(u64, u64, u64)> = COUNTED
        .iter()
        .map(|&(page, reads, writes)| match page {
            3 => (page, reads - 300, writes),
            4 => (page, reads, writes - 200),
            5 => (page, reads - 100, writes - 90),
            _ => (page, reads, writes),
        })
        .collect();
    assert_ne!(counted, without);
}

#[test]
fn intervals_hold_what_the_whole_run_holds() {
    let recorded = exact("exact_counted", &[], &["--interval-accesses", "640"]);
    complete(&recorded);
    let rows = counts(&recorded.trace);
    let first = page_of("exact_counted", "pages");
    assert_eq!(by_page(&rows, first, 8), COUNTED);
    let intervals = recorded.trace.rows::<IntervalRow>().unwrap();
    // Atomic operations are one access, though a read and a write.
    let accesses = 1000 + 700 + 300 + 200 + 100 + 90 + 50 + 2 * 40 + 2 * 64 + 2 * 30 + 20_u64;
    assert_eq!(intervals.len() as u64, accesses.div_ceil(640));
    assert!(intervals.is_sorted_by_key(|i| (i.start_ns, i.end_ns)));
    // Of the first 640 accesses all are reads of the first page.
    let begun: Vec<_> = rows.iter().filter(|r| r.interval.0 == 0).collect();
    assert_eq!(by_page(begun, first, 8), [(0, 640, 0)]);
    let next: Vec<_> = rows.iter().filter(|r| r.interval.0 == 1).collect();
    assert_eq!(by_page(next, first, 8), [(0, 360, 0), (1, 0, 280)]);
}

/// What `exact_threads` printed: its id and those of its two threads.
fn ids(recorded: &Recorded) -> [u32; 3] {
    let words: Vec<u32> = recorded
        .finished
        .stdout
        .split_whitespace()
        .map(|w| w.parse().unwrap())
        .collect();
    // Nothing that was counted up was lost.
    assert_eq!(words[3], 2000);
    [words[0], words[1], words[2]]
}

fn threads(program: &str, arguments: &[&str]) {
    let recorded = exact(program, arguments, &[]);
    assert_eq!(recorded.finished.code, 0, "{}", recorded.finished.stderr);
    complete(&recorded);
    let [main, writer, reader] = ids(&recorded);
    let rows = counts(&recorded.trace);
    let of = |tid: u32, symbol: &str, pages: u64| {
        let rows = rows.iter().filter(|r| r.tid == Some(Tid(tid)));
        by_page(rows, page_of(program, symbol), pages)
    };
    let writes: Vec<_> = (0..4).map(|page| (page, 0, 512)).collect();
    assert_eq!(of(writer, "array", 8), writes);
    let reads: Vec<_> = (2..6).map(|page| (page, 512, 0)).collect();
    assert_eq!(of(reader, "array", 8), reads);
    assert_eq!(of(main, "array", 8), [(6, 512, 512)]);
    for tid in [writer, reader] {
        assert_eq!(of(tid, "together", 1), [(0, 1000, 1000)], "{tid}");
    }
    if arguments.is_empty() {
        // One came after the other.
        let shared = Page(page_of(program, "array").0 + 2);
        let first = rows
            .iter()
            .filter(|r| r.page == shared)
            .find(|r| r.first == Some(true));
        assert_eq!(first.unwrap().tid, Some(Tid(writer)));
    }
    // Each page has one first thread.
    let first = rows.iter().filter(|r| r.first == Some(true));
    let first: Vec<_> = first.map(|r| r.page).collect();
    let pages: BTreeSet<_> = rows.iter().map(|r| r.page).collect();
    assert_eq!(first.len(), pages.len());
}

#[test]
fn each_thread_of_a_dynamic_program_has_its_counts() {
    threads("exact_threads", &[]);
}

#[test]
fn each_thread_of_a_static_program_has_its_counts() {
    threads("exact_threads_static", &[]);
}

#[test]
fn threads_that_run_at_once_have_their_counts() {
    threads("exact_threads", &["at-once"]);
}

#[test]
fn many_threads_one_after_the_other_have_tables_of_their_own() {
    let recorded = exact("exact_threads", &["many", "1000"], &[]);
    assert_eq!(recorded.finished.code, 0, "{}", recorded.finished.stderr);
    complete(&recorded);
    let threads: BTreeSet<_> = counts(&recorded.trace).iter().map(|r| r.tid).collect();
    assert_eq!(threads.len(), 1001);
}

/// Counts of the array of `exact_family` by process, of those that a program of that file made.
fn family(program: &str, recorded: &Recorded) -> BTreeMap<u32, Vec<(u64, u64, u64)>> {
    let rows = counts(&recorded.trace);
    let pids: BTreeSet<u32> = rows.iter().map(|r| r.pid.0).collect();
    let array = page_of(program, "array");
    pids.into_iter()
        .map(|pid| {
            let of = rows.iter().filter(|r| r.pid.0 == pid);
            (pid, by_page(of, array, 4))
        })
        .collect()
}

fn follows(program: &str, arguments: &[&str]) {
    let recorded = exact(program, arguments, &[]);
    assert_eq!(recorded.finished.code, 0, "{}", recorded.finished.stderr);
    complete(&recorded);
    let words: Vec<u32> = recorded
        .finished
        .stdout
        .split_whitespace()
        .map(|w| w.parse().unwrap())
        .collect();
    // The child's exit code comes from the program that it became.
    assert_eq!(words[2], 5);
    let counted = family(program, &recorded);
    assert_eq!(counted[&words[0]], [(0, 0, 1024)]);
    assert_eq!(counted[&words[1]], [(1, 0, 500), (2, 0, 250)]);
    let named = recorded.trace.rows::<ProcessRow>().unwrap();
    let path = workload(program).display().to_string();
    assert!(named.iter().any(|p| p.exe == path), "{named:?}");
}

#[test]
fn children_and_the_programs_that_they_become_are_counted() {
    follows("exact_family", &[]);
}

#[test]
fn the_same_of_a_static_program() {
    follows("exact_family_static", &[]);
}

#[test]
fn a_script_is_followed_to_its_interpreter() {
    let folder = temporary().unwrap();
    let script = folder.path().join("script");
    let program = workload("exact_family");
    fs::write(
        &script,
        format!("#!/bin/sh\nexec {} again\n", program.display()),
    )
    .unwrap();
    let mut mode = Command::new("chmod");
    mode.arg("755").arg(&script);
    finish(mode, folder.path(), Duration::from_secs(10))
        .unwrap()
        .require(0)
        .unwrap();
    follows("exact_family", &[script.to_str().unwrap()]);
}

#[test]
fn a_killed_program_loses_no_count() {
    let recorded = exact("exact_family", &["killed"], &[]);
    assert_eq!(recorded.finished.code, 137);
    complete(&recorded);
    let pid = recorded.trace.manifest.target.pid;
    let counted = family("exact_family", &recorded);
    assert_eq!(counted[&pid], [(0, 0, 1000)]);
}

#[test]
fn heap_objects_have_names_and_the_mappings_are_the_programs_own() {
    let recorded = exact("hot64", &[], &[]);
    assert_eq!(recorded.finished.code, 0, "{}", recorded.finished.stderr);
    complete(&recorded);
    let objects = recorded.trace.rows::<ObjectRow>().unwrap();
    assert!(objects.iter().any(|o| o.site.is_some()));
    let emulators: Vec<_> = objects.iter().filter(|o| o.name.contains("qemu")).collect();
    assert!(emulators.is_empty(), "{emulators:?}");
}

/// The oracle of a workload says which pages it touched.
#[test]
fn what_workloads_say_of_themselves_is_counted() {
    for name in ["straddle", "gather", "threads", "cow_fork", "exec"] {
        let recorded = exact(name, &[], &[]);
        assert_eq!(
            recorded.finished.code, 0,
            "{name}: {}",
            recorded.finished.stderr
        );
        complete(&recorded);
        let verdict = varve_truth::judge(&recorded.oracle, &recorded.touches);
        assert_eq!(verdict.missed(), 0, "{name}: {:?}", verdict.failures);
    }
}

#[test]
fn valgrind_sees_the_same_pages() {
    assert!(
        has_valgrind(),
        "valgrind is missing; run scripts/setup test"
    );
    let recorded = exact("exact_counted", &[], &[]);
    let seen = run_lackey(&workload("exact_counted"), &[], &[]).unwrap();
    let counted: BTreeSet<u64> = counts(&recorded.trace).iter().map(|r| r.page.0).collect();
    let first = page_of("exact_counted", "pages");
    for page in 0..8 {
        let page = Page(first.0 + page);
        assert!(seen.data.contains(page), "{page:?}");
        assert!(counted.contains(&page.0), "{page:?}");
    }
    assert_eq!(seen.data.len(), counted.len() as u64);
}

fn pages_of(touches: &Touches) -> BTreeSet<u64> {
    let layers = touches.layers.values();
    let all = layers.flat_map(|l| &l.touches);
    all.flat_map(|t| t.first.0..t.first.0 + t.pages).collect()
}

/// A scan of the same program, whose array lies where it was linked.
#[test]
fn the_pages_of_a_scan_are_among_the_counted() {
    let counted = pages_of(&exact("exact_threads_static", &[], &[]).touches);
    let scanned = record(&Plan::workload(
        "exact_threads_static",
        Duration::from_millis(50),
    ));
    let first = page_of("exact_threads_static", "array").0;
    let array: BTreeSet<u64> = pages_of(&scanned.unwrap().touches)
        .into_iter()
        .filter(|p| (first..first + 8).contains(p))
        .collect();
    // A scan sees what the seven accessed pages carry, however large the hardware page.
    let seven: BTreeSet<u64> = (first..first + 7).collect();
    assert!(array.is_superset(&seven), "{array:?}");
    assert!(counted.is_superset(&seven), "{counted:?}");
}

#[test]
fn output_is_the_same_and_what_cannot_be_counted_is_refused() {
    static BUILT: Once = Once::new();
    BUILT.call_once(|| make_workloads().unwrap());
    let folder = temporary().unwrap();
    let run = |words: &[&str]| {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]);
        finish(command, folder.path(), Duration::from_secs(60)).unwrap()
    };
    let varve = varve_truth::varve_binary().unwrap();
    let varve = varve.to_str().unwrap();
    let trace = folder.path().join("t.varve");
    let trace = trace.to_str().unwrap();
    let said = "printf 'a\\0b\\n'; ls /; exit 7";
    let plain = run(&["/bin/sh", "-c", said]);
    let counted = run(&[
        varve,
        "record",
        "--backend",
        "exact",
        "-o",
        trace,
        "--",
        "sh",
        "-c",
        said,
    ]);
    assert_eq!(plain.stdout, counted.stdout);
    assert_eq!((plain.code, counted.code), (7, 7));
    let refused = |program: &Path| {
        run(&[
            varve,
            "record",
            "--force",
            "--backend",
            "exact",
            "-o",
            trace,
            "--",
            program.to_str().unwrap(),
        ])
    };
    let text = folder.path().join("text");
    fs::write(&text, "no program\n").unwrap();
    let mut mode = Command::new("chmod");
    mode.arg("755").arg(&text);
    finish(mode, folder.path(), Duration::from_secs(10)).unwrap();
    let failed = refused(&text);
    assert_eq!(failed.code, 125);
    assert!(
        failed.stderr.contains("not an executable for x86-64"),
        "{}",
        failed.stderr
    );
}
