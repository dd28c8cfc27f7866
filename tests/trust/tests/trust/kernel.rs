//! What the kernel does to a target by itself: it makes huge pages of its memory, ends it for lack of memory, gives its pid to another.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use varve_faults::{Stage, check_trace, patiently, varve_binary};
use varve_trace::tables::{FaultRow, IntervalRow, ProcessRow, TouchRow};
use varve_trace::{State, Trace};
use varve_trust::{program, see_an_interval};

use crate::reports::{number, objects_with};

// ---- accesses that a signal refuses ----

/// Three hundred of them, 4 MiB apart: nothing there was touched, neither the page nor what the kernel maps along with one.
#[test]
fn accesses_that_are_refused_touch_nothing() {
    for options in [&[][..], &["--no-preload"], &["--vanish", "exact"]] {
        let stage = Stage::new();
        let words = [program("refused").to_str().unwrap().to_owned()];
        let ended = stage.run(stage.record(options, &words)).require(0);
        let trace = Trace::open(&stage.path("trace.varve")).unwrap();
        assert!(trace.manifest.completeness.complete);
        let printed = String::from_utf8(ended.stdout).unwrap();
        let addresses: Vec<u64> = printed
            .split_whitespace()
            .map(|a| u64::from_str_radix(a.trim_start_matches("0x"), 16).unwrap())
            .collect();
        assert_eq!(addresses.len(), 3);
        let is_there = |first: u64, bytes: u64| {
            let end = first + bytes;
            let mut ways = addresses.iter().map(|a| *a..*a + (100 << 22));
            ways.any(|way| first < way.end && end > way.start)
        };
        let touches: Vec<TouchRow> = trace.rows().unwrap();
        let touched = touches
            .iter()
            .filter(|t| is_there(t.page.address().0, u64::from(t.pages) << 12));
        assert_eq!(touched.count(), 0, "{options:?}");
        let faults: Vec<FaultRow> = trace.rows().unwrap();
        let faulted = faults.iter().filter(|f| is_there(f.address.0, 1));
        assert_eq!(faulted.count(), 0, "{options:?}");
        assert!(touches.len() > 10 && faults.len() > 10);
    }
}

// ---- khugepaged ----

/// A file of sysfs with other content, until this goes.
struct Setting {
    file: &'static str,
    before: String,
}

impl Setting {
    /// None where this machine has no such file.
    fn new(file: &'static str, now: &str) -> Option<Setting> {
        let before = fs::read_to_string(file).ok()?;
        fs::write(file, now).ok()?;
        Some(Setting { file, before })
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        let _ = fs::write(self.file, self.before.trim());
    }
}

const SLEEP: &str = "/sys/kernel/mm/transparent_hugepage/khugepaged/scan_sleep_millisecs";

/// Records a program whose file is on a file system of its own, which goes with it; how it ended.
fn collapse(stage: &Stage, how: &str) -> i32 {
    let folder = stage.path("files");
    fs::create_dir_all(&folder).unwrap();
    let script = format!(
        "mount -t tmpfs -o huge=advise files {0} && exec {1} {0}/file {how}",
        folder.display(),
        program("collapsed").display()
    );
    let words = ["unshare", "--mount", "sh", "-c", &script];
    stage
        .run(stage.record(&["--interval", "20ms"], &words))
        .code
}

fn losses(stage: &Stage) -> (bool, u64) {
    check_trace(&stage.path("trace.varve")).expect("a trace");
    let manifest = Trace::open(&stage.path("trace.varve")).unwrap().manifest;
    let lost = manifest.losses.get("vanish_walks").copied();
    // Reclaim is the machine's.
    let is_reclaim = |kind: &str| kind == "reclaim_scanned_pages";
    let mut others = manifest.losses.iter().filter(|(kind, _)| !is_reclaim(kind));
    (others.all(|(_, n)| *n == 0), lost.unwrap_or(0))
}

#[test]
fn khugepaged_that_collapses_pages_of_a_target_is_a_loss() {
    let Some(_quick) = Setting::new(SLEEP, "20") else {
        eprintln!("skipped: this kernel has no khugepaged");
        return;
    };
    let stage = Stage::new();
    let code = collapse(&stage, "");
    if code == 77 {
        eprintln!("skipped: khugepaged made no huge page of the file within 20 s");
        return;
    }
    assert_eq!(code, 7);
    let (complete, lost) = losses(&stage);
    assert!(!complete && lost > 0, "complete {complete}, {lost} losses");
    // The control: pages that nobody wants to be huge stay as they are.
    let control = Stage::new();
    assert_eq!(collapse(&control, "small"), 7);
    assert_eq!(losses(&control), (true, 0));
}

// ---- no memory ----

/// A cgroup with a limit of memory, of whichever version has that on this machine.
struct Limited(PathBuf);

impl Limited {
    fn new(bytes: u64) -> Option<Limited> {
        let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
        let roots = mounts.lines().filter_map(|line| {
            let fields: Vec<&str> = line.split(' ').collect();
            fields[2].starts_with("cgroup").then(|| fields[1])
        });
        for root in roots {
            let group =
                Limited(Path::new(root).join(format!("trust-{}-memory", std::process::id())));
            let limits = ["memory.max", "memory.limit_in_bytes"];
            let is_made = fs::create_dir(&group.0).is_ok();
            let limit = |file| fs::write(group.0.join(file), bytes.to_string()).is_ok();
            if is_made && limits.into_iter().any(limit) {
                return Some(group);
            }
        }
        None
    }

    /// How many processes the kernel ended here for lack of memory.
    fn kills(&self) -> u64 {
        let files = ["memory.events", "memory.oom_control"];
        let texts = files.map(|file| fs::read_to_string(self.0.join(file)).unwrap_or_default());
        let count = |text: &String| {
            let line = text.lines().find_map(|l| l.strip_prefix("oom_kill "));
            line.and_then(|n| n.parse::<u64>().ok())
        };
        texts.iter().find_map(count).unwrap_or(0)
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        patiently(|| fs::remove_dir(&self.0).is_ok() || !self.0.exists());
    }
}

/// The pages that the target noted and that the trace lacks.
fn missing(stage: &Stage, trace: &Trace) -> usize {
    let bytes = fs::read(stage.path("eaten")).unwrap();
    let mut notes = bytes
        .chunks_exact(8)
        .map(|w| u64::from_ne_bytes(w.try_into().unwrap()));
    let (first, pages) = (notes.next().unwrap(), notes.next().unwrap());
    assert!(pages > 1024, "{pages} pages");
    let rows = trace.rows::<TouchRow>().unwrap();
    let touched: HashSet<u64> = rows
        .into_iter()
        .flat_map(|row| row.page.0..row.page.0 + u64::from(row.pages))
        .collect();
    (first..first + pages)
        .filter(|p| !touched.contains(p))
        .count()
}

#[test]
fn a_target_that_the_kernel_ends_for_lack_of_memory() {
    let Some(group) = Limited::new(48 << 20) else {
        eprintln!("skipped: no cgroup of this machine limits memory");
        return;
    };
    let stage = Stage::new();
    let script = format!(
        "echo $$ > {}/cgroup.procs; exec {} eat eaten",
        group.0.display(),
        program("memory").display()
    );
    let words = ["sh", "-c", &script];
    let ended = stage
        .run(stage.record(&["--interval", "20ms"], &words))
        .require(128 + 9);
    assert!(group.kills() > 0, "something else ended it");
    check_trace(&stage.path("trace.varve")).expect("a trace");
    let trace = Trace::open(&stage.path("trace.varve")).unwrap();
    let manifest = &trace.manifest;
    assert_eq!(manifest.state, State::Finished);
    assert_eq!(manifest.target.exit_code, Some(128 + 9));
    let lost: u64 = manifest.losses.values().sum();
    assert_eq!(manifest.completeness.complete, lost == 0);
    if lost == 0 {
        assert_eq!(missing(&stage, &trace), 0);
    }
    stage.require_clean(ended.pid);
}

// ---- a pid that is given anew ----

#[test]
fn two_processes_with_one_pid_are_two() {
    let stage = Stage::new();
    let ran = stage.run(stage.record(&["--interval", "20ms"], &[program("reuse")]));
    if ran.code == 77 {
        eprintln!("skipped: this kernel does not let a program choose the pid of its child");
        return;
    }
    let ran = ran.require(7);
    let pid: u64 = ran.text().trim().parse().unwrap();
    let mut report = stage.command(varve_binary());
    report.args(["report", "trace.varve", "--json"]);
    let report: serde_json::Value =
        serde_json::from_str(&stage.run(report).require(0).text()).unwrap();
    assert_eq!(report["contradictions"], serde_json::Value::Array(vec![]));
    for (name, pages) in [("first_block", 40), ("second_block", 80)] {
        let named = |o: &serde_json::Value| o["name"].as_str().unwrap_or("").contains(name);
        let objects = objects_with(&report, named);
        assert_eq!(objects.len(), 1, "{name}: {objects:#?}");
        assert_eq!(number(objects[0], "touched_pages"), pages, "{objects:#?}");
    }
    let reuse = program("reuse").to_string_lossy().into_owned();
    let rows = Trace::open(&stage.path("trace.varve"))
        .unwrap()
        .rows::<ProcessRow>();
    let lives = rows
        .unwrap()
        .iter()
        // Between fork and exec each was a copy of its parent.
        .filter(|p| u64::from(p.pid.0) == pid && p.command != reuse)
        .count();
    assert_eq!(lives, 2);
    let processes = report["processes"].as_array().unwrap();
    let of_pid = processes.iter().filter(|p| p["pid"] == pid);
    let commands: Vec<&str> = of_pid.filter_map(|p| p["command"].as_str()).collect();
    assert_eq!(commands, ["first first; then second second"]);
}

// ---- a process whose first thread has ended ----

/// How many touches of its two blocks the trace of `leader` has after it began to use the second alone.
struct Late {
    first: usize,
    second: usize,
    /// Whether an interval ended while the program did.
    is_cut: bool,
}

/// Records `leader`. What is touched after its last sentence counts where `to_the_end`.
fn late_touches(options: &[&str], alone: &[&str], to_the_end: bool) -> Late {
    let stage = Stage::new();
    let (said, trace) = (stage.path("said"), stage.path("trace.varve"));
    let mut words = vec![program("leader").into_os_string(), said.clone().into()];
    words.extend(alone.iter().map(Into::into));
    let options = [options, &["--interval", "20ms"]].concat();
    let recorder = stage.start(stage.record(&options, &words));
    assert!(see_an_interval(&trace), "{}", recorder.messages());
    fs::write(said.with_extension("two"), "").unwrap();
    let has_begun = || fs::metadata(&said).is_ok_and(|m| m.len() > 0);
    assert!(patiently(has_begun), "{}", recorder.messages());
    assert!(see_an_interval(&trace), "{}", recorder.messages());
    fs::write(said.with_extension("over"), "").unwrap();
    recorder.end().require(9);
    check_trace(&trace).expect("a trace");
    let trace = Trace::open(&trace).unwrap();
    let said = fs::read_to_string(said).unwrap();
    let said: Vec<u64> = said
        .split_whitespace()
        .map(|w| w.parse().unwrap())
        .collect();
    let [first, second, began, over] = said[..] else {
        panic!("{said:?}")
    };
    let mut intervals = trace.rows::<IntervalRow>().unwrap();
    let ended_late = intervals.iter().filter(|i| i.end_ns.0 > over).count();
    intervals.retain(|i| i.start_ns.0 > began && (to_the_end || i.end_ns.0 <= over));
    let late: HashSet<u32> = intervals.iter().map(|i| i.interval.0).collect();
    assert!(!late.is_empty());
    let rows = trace.rows::<TouchRow>().unwrap();
    let of = |block: u64| {
        let rows = rows.iter().filter(|r| late.contains(&r.interval.0));
        let pages = rows.flat_map(|r| r.page.0..r.page.0 + u64::from(r.pages));
        let own = pages.filter(|p| (block / 4096..block / 4096 + 64).contains(p));
        own.collect::<HashSet<u64>>().len()
    };
    Late {
        first: of(first),
        second: of(second),
        is_cut: ended_late > 1,
    }
}

#[test]
fn a_process_without_its_first_thread_touches_what_it_touches() {
    for (options, to_the_end) in [
        (&["--backend", "scan"], true),
        // At the end of a program with several threads its pages are put back, and count.
        (&["--backend", "fault"], false),
        (&["--hold", "ptrace"], true),
    ] {
        let late = late_touches(options, &[], to_the_end);
        assert_eq!(late.first, 0, "{options:?}: touches that did not happen");
        assert_eq!(late.second, 64, "{options:?}");
    }
}

#[test]
fn pages_that_are_put_back_at_the_end_of_a_program_are_not_touched() {
    // An interval may end while they are put back, which is seen then: such a recording says nothing, and is made again.
    let whole = (0..20).find_map(|_| {
        let late = late_touches(&["--backend", "fault"], &["alone"], true);
        assert_eq!(late.second, 64);
        (!late.is_cut).then_some(late)
    });
    let late = whole.expect("a program that ends within an interval");
    assert_eq!(late.first, 0, "pages that were not touched");
}

// ---- others at work while a recording begins ----

#[test]
fn who_writes_files_while_a_recording_begins_loses_it_nothing() {
    let busy = Stage::new();
    let opener = busy.start({
        let mut command = busy.command(program("opener"));
        command.arg(busy.path("file"));
        command
    });
    for _ in 0..12 {
        let stage = Stage::new();
        stage.run(stage.record(&[], &["true"])).require(0);
        assert_eq!(losses(&stage).1, 0);
    }
    opener.signal(rustix::process::Signal::KILL);
    opener.end();
}
