//! Every access counted: what is left of the counts when the recorder is killed, and many threads.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::process::Signal;
use varve_faults::{Running, Stage, patiently, ring_folders, varve_binary, watchdogs};
use varve_model::Page;
use varve_trace::tables::CountRow;
use varve_trace::{State, Trace};

/// The program, built once. Where it lies it lies alone: the program that it becomes lies where such programs do.
fn counted() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| varve_faults::build("counted", &["-O1", "-g", "-no-pie"]))
}

/// Words of the program's command line after its own name.
fn arguments(stage: &Stage, mode: &str, more: &[&str]) -> Vec<String> {
    let started = stage.path("started").display().to_string();
    let first = [
        counted().display().to_string(),
        mode.to_owned(),
        started.clone(),
    ];
    first
        .into_iter()
        .chain(more.iter().map(|w| (*w).to_owned()))
        .collect()
}

fn tally(stage: &Stage) -> Vec<String> {
    arguments(stage, "tally", &[&stage.path("go").display().to_string()])
}

/// What `tally` prints when nobody records it.
fn unrecorded() -> String {
    let stage = Stage::new();
    fs::write(stage.path("go"), "").expect("a file");
    let arguments = tally(&stage);
    let mut command = stage.command(&arguments[0]);
    command.args(&arguments[1..]);
    stage.run(command).require(0).text()
}

/// Starts counting, and waits until the program has done half of its work and waits.
fn half_done(stage: &Stage) -> Running {
    let mut recorder = stage.start(stage.record(&["--backend", "exact"], &tally(stage)));
    let started = stage.path("started");
    patiently(|| started.exists() || recorder.has_ended());
    assert!(started.exists(), "{}", recorder.messages());
    recorder
}

fn first_page(stage: &Stage) -> Page {
    let written = fs::read_to_string(stage.path("started")).expect("what it wrote");
    Page(written.trim().parse().expect("a page"))
}

fn counts(folder: &Path) -> Vec<CountRow> {
    let trace = Trace::open(folder).expect("a trace");
    let mut rows = Vec::new();
    for batch in trace.batches::<CountRow>().expect("counts") {
        rows.extend(batch.expect("counts"));
    }
    rows
}

/// Reads and writes of the pages from `first` on.
fn sums<const N: usize>(rows: &[CountRow], first: Page) -> [(u64, u64); N] {
    let mut sums = [(0, 0); N];
    for row in rows {
        let at = row.page.0.wrapping_sub(first.0) as usize;
        if let Some(sum) = sums.get_mut(at) {
            *sum = (sum.0 + row.reads, sum.1 + row.writes);
        }
    }
    sums
}

/// What `tally` has done when it waits, page by page.
const HALF: [(u64, u64); 4] = [(0, 1000), (700, 0), (0, 0), (0, 0)];
/// What it does in all.
const WHOLE: [(u64, u64); 4] = [(512, 2000), (1400, 0), (1, 300), (0, 0)];

/// Reads the trace, has it put in order, and reads the counts.
fn recovered(stage: &Stage) -> Vec<CountRow> {
    let mut report = stage.command(varve_binary());
    report.args(["report", "--json", "trace.varve"]);
    let said = stage.run(report).require(0).text();
    assert!(said.contains("recorder_killed"), "{said}");
    let mut recover = stage.command(varve_binary());
    recover.args(["recover", "trace.varve"]);
    stage.run(recover).require(0);
    let trace = stage.path("trace.varve");
    let state = Trace::open(&trace).expect("a trace").manifest.state;
    assert_eq!(state, State::Recovered);
    counts(&trace)
}

/// Lets the target go on, and requires that it does what it would do without a recorder.
fn runs_on(stage: &Stage, recorder: Running) {
    fs::write(stage.path("go"), "").expect("a file");
    let ended = recorder.end();
    let read = || fs::read_to_string(ended.output()).expect("its output");
    // A process that is becoming another program has no environment to be known by for a moment.
    patiently(|| !read().is_empty());
    stage.require_clean(ended.pid);
    let printed = read();
    assert_eq!(printed, unrecorded(), "{}", ended.stderr);
}

/// Kills a recorder, and its watchdogs first, which would see to the counts; its process number.
fn kill_with_watchdog(recorder: &Running) -> u32 {
    recorder.signal(Signal::STOP);
    for watchdog in watchdogs(recorder.pid()) {
        let id = rustix::process::Pid::from_raw(watchdog as i32).expect("a watchdog");
        let _ = rustix::process::kill_process(id, Signal::KILL);
    }
    recorder.signal(Signal::KILL);
    let pid = recorder.pid();
    assert!(patiently(|| gone(pid)), "the recorder does not die");
    pid
}

#[test]
fn a_recorder_that_lives_has_all_counts() {
    let stage = Stage::new();
    let recorder = half_done(&stage);
    fs::write(stage.path("go"), "").expect("a file");
    let ended = recorder.end().require(0);
    stage.require_clean(ended.pid);
    let rows = counts(&stage.path("trace.varve"));
    assert_eq!(sums(&rows, first_page(&stage)), WHOLE);
}

#[test]
fn what_was_counted_survives_the_recorder() {
    let stage = Stage::new();
    let recorder = half_done(&stage);
    recorder.signal(Signal::KILL);
    let pid = recorder.pid();
    assert!(patiently(|| ring_folders(pid).is_empty()), "not cleaned up");
    // It was written by the watchdog: nobody has put the trace in order yet.
    let rows = counts(&stage.path("trace.varve"));
    assert_eq!(sums(&rows, first_page(&stage)), HALF);
    // It may fork and become another program, though what counts it has lost its place.
    runs_on(&stage, recorder);
    assert_eq!(recovered(&stage), rows);
}

/// How often other recorders of this machine, which clean up as they start, may have been quicker.
const MAX_OVERTAKEN: usize = 20;

/// The control too: while neither recorder nor watchdog lives there are no counts in the trace, until somebody
/// puts it in order.
#[test]
fn what_was_counted_survives_the_watchdog_too() {
    let alone = (0..MAX_OVERTAKEN).any(|_| survives_the_watchdog());
    assert!(alone, "what was left was always gone");
}

/// False where another recorder has found what was left.
fn survives_the_watchdog() -> bool {
    let stage = Stage::new();
    let recorder = half_done(&stage);
    let pid = kill_with_watchdog(&recorder);
    let before = counts(&stage.path("trace.varve"));
    let rows = recovered(&stage);
    assert_eq!(sums(&rows, first_page(&stage)), HALF);
    let folders = ring_folders(pid);
    if folders.is_empty() {
        runs_on(&stage, recorder);
        return false;
    }
    assert_eq!(before, []);
    assert_eq!(folders.len(), 1, "{folders:?}");
    // The next recorder finds what is left, and does not touch the trace any more.
    let next = Stage::new();
    next.run(next.record(&[], &["true"])).require(0);
    assert_eq!(counts(&stage.path("trace.varve")), rows);
    runs_on(&stage, recorder);
    true
}

/// Whether a process is gone, or waits only to be waited for.
fn gone(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    !status.contains("State:") || status.contains("State:\tZ")
}

/// The next recorder writes what it finds of a trace that nobody has put in order.
#[test]
fn what_was_counted_is_found_by_the_next_recorder() {
    let stage = Stage::new();
    let recorder = half_done(&stage);
    let pid = kill_with_watchdog(&recorder);
    let next = Stage::new();
    next.run(next.record(&[], &["true"])).require(0);
    let is_gone = patiently(|| ring_folders(pid).is_empty());
    assert!(is_gone, "the rings are still there");
    let rows = counts(&stage.path("trace.varve"));
    assert_eq!(sums(&rows, first_page(&stage)), HALF);
    runs_on(&stage, recorder);
    assert_eq!(recovered(&stage), rows);
}

#[test]
fn a_crowd_of_threads_is_counted() {
    let stage = Stage::new();
    // No more of them: the emulator is slow to make a thread.
    let arguments = arguments(&stage, "crowd", &["2000", "1000"]);
    let ended = stage.run(stage.record(&["--backend", "exact"], &arguments));
    let ended = ended.require(0);
    stage.require_clean(ended.pid);
    let trace = stage.path("trace.varve");
    let said = Trace::open(&trace).expect("a trace").manifest.completeness;
    assert!(said.complete, "{}", said.statement);
    let first = first_page(&stage);
    let apart: i64 = ended.text().trim().parse().expect("a distance");
    let second = Page(first.0.wrapping_add_signed(apart));
    let rows = counts(&trace);
    assert_eq!(sums(&rows, first), [(2000, 2000)]);
    assert_eq!(sums(&rows, second), [(1000, 1000)]);
    // Those that lived at once have ids of their own.
    let of_page = rows.iter().filter(|r| r.page == second);
    let threads: BTreeSet<_> = of_page.map(|r| r.tid).collect();
    assert_eq!(threads.len(), 1000);
}

/// The kernel takes the emulator for what such a process runs.
#[test]
fn a_program_that_runs_itself_again_is_counted() {
    let stage = Stage::new();
    let script = "cd /; exec /proc/self/exe -c 'exec /proc/$$/exe -c \"echo twice; exit 9\"'";
    let options = ["--backend", "exact"];
    let arguments = ["bash", "-c", script];
    let ended = stage.run(stage.record(&options, &arguments)).require(9);
    assert_eq!(ended.text(), "twice\n");
    let trace = Trace::open(&stage.path("trace.varve")).unwrap();
    assert!(
        trace.manifest.completeness.complete,
        "{:?}",
        trace.manifest.losses
    );
    assert!(!counts(&stage.path("trace.varve")).is_empty());
}

#[test]
fn a_program_that_is_run_by_a_descriptor_is_counted() {
    let stage = Stage::new();
    let command = stage.record_actor(&["--backend", "exact"], &["execs_at", "4"]);
    let ended = stage.run(command).require(9);
    assert_eq!(ended.text(), "the last program\n");
    let trace = Trace::open(&stage.path("trace.varve")).unwrap();
    let manifest = &trace.manifest;
    assert!(manifest.completeness.complete, "{:?}", manifest.losses);
}
