//! Programs under filters of system calls.

use std::fs;

use rustix::process::Signal;
use varve_faults::{Stage, check_trace, patiently, varve_binary};
use varve_trace::Trace;
use varve_trust::program;

use crate::reports::objects_with;

/// Records it and requires how it ends and what it prints.
fn record(stage: &Stage, options: &[&str], words: &[&str], code: i32, printed: &str) {
    let sandbox = program("sandbox");
    let sandbox = sandbox.to_string_lossy();
    let all: Vec<&str> = [&*sandbox]
        .into_iter()
        .chain(words.iter().copied())
        .collect();
    let ended = stage.run(stage.record(options, &all)).require(code);
    assert_eq!(ended.text(), printed);
    check_trace(&stage.path("trace.varve")).expect("a trace");
    stage.require_clean(ended.pid);
}

#[test]
fn a_program_below_a_filter_that_kills_is_not_killed() {
    for backend in ["scan", "fault"] {
        let stage = Stage::new();
        let options = ["--backend", backend, "--interval", "20ms"];
        record(
            &stage,
            &options,
            &["kill", "sh", "-c", "echo ran; exit 6"],
            6,
            "ran\n",
        );
    }
}

/// As most containers have: the objects are the library's there.
#[test]
fn a_program_below_a_filter_that_refuses_has_its_objects() {
    let stage = Stage::new();
    let heap = program("heap");
    let words = ["deny", heap.to_str().unwrap(), "200"];
    record(&stage, &["--interval", "20ms"], &words, 0, "");
    let mut report = stage.command(varve_faults::varve_binary());
    report.args(["report", "trace.varve", "--json"]);
    let report = serde_json::from_str(&stage.run(report).require(0).text()).unwrap();
    let named = |o: &serde_json::Value| o["name"].as_str().unwrap_or("").contains("work");
    assert_eq!(objects_with(&report, named).len(), 1);
}

#[test]
fn a_wait_of_a_program_that_confined_itself_does_not_end_it() {
    let stage = Stage::new();
    record(&stage, &["--interval", "10ms"], &["wait"], 5, "");
    assert!(
        Trace::open(&stage.path("trace.varve"))
            .unwrap()
            .manifest
            .completeness
            .complete
    );
}

/// A hold interrupts a sleep, which goes on by a call of its own: a filter that has another answer to that ends the program, or its sleep. It is
/// not held then, and that is said.
#[test]
fn a_sleep_that_may_not_be_gone_on_with_is_not_interrupted() {
    for hold in ["cgroup", "ptrace"] {
        let stage = Stage::new();
        let (sandbox, over) = (program("sandbox"), stage.path("over"));
        let words = [sandbox.to_str().unwrap(), "rest", over.to_str().unwrap()];
        let options = ["--interval", "10ms", "--hold", hold];
        let recorder = stage.start(stage.record(&options, &words));
        let rests = patiently(|| recorder.said() == "rests\n");
        assert!(rests, "{}", recorder.messages());
        // There has been a boundary when a pause has begun.
        recorder.signal(Signal::USR1);
        let is_paused = patiently(|| recorder.messages().contains("paused:"));
        assert!(is_paused, "{}", recorder.messages());
        fs::write(&over, "").unwrap();
        let ended = recorder.end().require(5);
        stage.require_clean(ended.pid);
        let trace = Trace::open(&stage.path("trace.varve")).unwrap();
        let manifest = &trace.manifest;
        let unheld = manifest.losses.get("unheld_processes");
        assert!(unheld > Some(&0), "{hold}: {:?}", manifest.losses);
        let named = |n: &String| n.contains("(sandbox)") && n.contains("restart_syscall");
        let notes = &manifest.notes;
        assert!(notes.iter().any(named), "{hold}: {notes:?}");
    }
}

/// What the preload library tells of a library that is unloaded, and the clock that it reads for allocator operations, are no system call
/// and no instruction that the program's confinement forbids.
#[test]
fn a_confined_program_allocates_and_unloads_a_library() {
    let stage = Stage::new();
    let program = program("unloads");
    let program = program.to_str().unwrap();
    for how in ["filter", "strict"] {
        for command in [&["record"][..], &["alloc", "record"]] {
            let mut varve = stage.command(varve_binary());
            varve
                .args(command)
                .args(["--force", "-o", "trace.varve", "--", program, how]);
            let ended = stage.run(varve).require(6);
            assert_eq!(ended.text(), "unloaded\n", "{command:?} {how}");
        }
    }
}

/// Where it has allocated nothing yet, the preload library needs a table of its own: advice on that is a call too.
#[test]
fn a_confined_program_allocates_where_it_has_nothing_yet() {
    let stage = Stage::new();
    let program = program("narrow");
    let program = program.to_str().unwrap();
    for command in [&["record"][..], &["alloc", "record"]] {
        let mut varve = stage.command(varve_binary());
        varve
            .args(command)
            .args(["--force", "-o", "trace.varve", "--", program]);
        let ended = stage.run(varve).require(6);
        assert_eq!(ended.text(), "allocated\n", "{command:?}");
    }
}
