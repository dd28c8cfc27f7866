//! `varve record -p`: joining what runs, and leaving it as it was.

use std::fs;
use std::time::Duration;

use rustix::process::Signal;
use varve_faults::{
    Running, Stage, cgroup_of, check_trace, is_frozen, patiently, recorder_cgroups, stat,
};

/// A program that runs and counts its life.
fn server(stage: &Stage) -> Running {
    let started = stage.path("started");
    let running = stage.start(stage.actor(&["serve", started.to_str().expect("a path")]));
    assert!(patiently(|| started.exists()));
    running
}

fn beats(stage: &Stage) -> Vec<u8> {
    fs::read(stage.path("started.beats")).expect("beats")
}

fn beats_on(stage: &Stage) -> bool {
    let before = beats(stage);
    patiently(|| beats(stage) != before)
}

fn attach(stage: &Stage, pid: u32) -> Running {
    stage.start(stage.record::<&str>(&["--interval", "10ms", "-p", &pid.to_string()], &[]))
}

/// Waits until the recording has begun in earnest: intervals have been flushed.
fn recording(stage: &Stage, recorder: &Running) {
    let parts = stage.path("trace.varve/parts/intervals-000000.parquet");
    assert!(patiently(|| parts.exists()), "{}", recorder.messages());
    // Who runs already is never moved.
    assert!(recorder_cgroups(recorder.pid()).is_empty());
}

#[test]
fn detaching_leaves_the_target_as_it_was() {
    for signal in [Signal::INT, Signal::TERM] {
        let (targets, recorders) = (Stage::new(), Stage::new());
        let target = server(&targets);
        let home = cgroup_of(target.pid()).expect("a cgroup");
        let recorder = attach(&recorders, target.pid());
        recording(&recorders, &recorder);
        assert_eq!(cgroup_of(target.pid()).as_ref(), Some(&home));
        recorder.signal(signal);
        let ended = recorder.end().require(0);
        recorders.require_clean(ended.pid);
        assert_eq!(cgroup_of(target.pid()), Some(home.clone()));
        assert!(!is_frozen(&home));
        assert!(beats_on(&targets));
        let contents = check_trace(&recorders.path("trace.varve")).expect("a trace");
        assert_eq!(contents.state, varve_trace::State::Finished);
        assert!(contents.touches > 0);
        target.signal(Signal::TERM);
        target.end().require(11);
    }
}

#[test]
fn a_recorder_that_is_killed_lets_go() {
    let (targets, recorders) = (Stage::new(), Stage::new());
    let target = server(&targets);
    let home = cgroup_of(target.pid());
    for round in 0..10 {
        let _ = fs::remove_dir_all(recorders.path("trace.varve"));
        let recorder = attach(&recorders, target.pid());
        recording(&recorders, &recorder);
        std::thread::sleep(Duration::from_millis(7 * round));
        recorder.signal(Signal::KILL);
        let pid = recorder.end().pid;
        recorders.require_clean(pid);
        assert_eq!(cgroup_of(target.pid()), home);
        assert!(beats_on(&targets));
        check_trace(&recorders.path("trace.varve")).expect("a trace");
    }
    target.signal(Signal::TERM);
    target.end().require(11);
}

#[test]
fn a_stopped_target_stays_stopped() {
    let (targets, recorders) = (Stage::new(), Stage::new());
    let target = server(&targets);
    target.signal(Signal::STOP);
    let recorder = attach(&recorders, target.pid());
    recording(&recorders, &recorder);
    recorder.signal(Signal::INT);
    let ended = recorder.end().require(0);
    recorders.require_clean(ended.pid);
    check_trace(&recorders.path("trace.varve")).expect("a trace");
    let stat = stat(target.pid()).expect("its status");
    assert_eq!(stat.state, 'T', "{stat:?}");
    target.signal(Signal::CONT);
    assert!(beats_on(&targets));
    target.signal(Signal::TERM);
    target.end().require(11);
}

#[test]
fn a_second_recorder_is_refused() {
    let (targets, first, second) = (Stage::new(), Stage::new(), Stage::new());
    let target = server(&targets);
    let recorder = attach(&first, target.pid());
    recording(&first, &recorder);
    let refused = attach(&second, target.pid()).end().require(125);
    refused.require_complaint(&["being recorded already", &recorder.pid().to_string()]);
    assert!(!second.path("trace.varve").exists());
    second.require_clean(refused.pid);
    assert!(beats_on(&targets));
    recorder.signal(Signal::INT);
    first.require_clean(recorder.end().require(0).pid);
    check_trace(&first.path("trace.varve")).expect("a trace");
    target.signal(Signal::TERM);
    target.end().require(11);
}

#[test]
fn a_recording_in_a_recording_is_refused() {
    let stage = Stage::new();
    let varve = varve_faults::varve_binary();
    let inner = [
        varve.to_str().expect("a path"),
        "record",
        "-o",
        "inner.varve",
        "--",
        "true",
    ];
    let ended = stage.run(stage.record(&[], &inner)).require(125);
    assert!(
        ended.stderr.contains("is itself being recorded"),
        "{}",
        ended.stderr
    );
    stage.require_clean(ended.pid);
}

#[test]
fn a_target_that_ends_ends_the_recording() {
    let (targets, recorders) = (Stage::new(), Stage::new());
    let target = server(&targets);
    let recorder = attach(&recorders, target.pid());
    recording(&recorders, &recorder);
    target.signal(Signal::KILL);
    target.end().require(137);
    let ended = recorder.end().require(0);
    recorders.require_clean(ended.pid);
    let contents = check_trace(&recorders.path("trace.varve")).expect("a trace");
    assert_eq!(contents.state, varve_trace::State::Finished);
}

#[test]
fn processes_that_cannot_be_recorded() {
    let stage = Stage::new();
    let gone = stage.run(stage.command("true")).require(0).pid;
    let kernel_thread = fs::read_dir("/proc")
        .expect("/proc")
        .flatten()
        .filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok())
        .find(|pid| stat(pid).is_some_and(|stat| stat.name == "kthreadd"));
    let mut cases = vec![
        (gone, "there is no process"),
        // More than any kernel gives.
        (4_194_305, "there is no process"),
        (std::process::id(), "one of its parents"),
        (1, "one of its parents"),
    ];
    cases.extend(kernel_thread.map(|pid| (pid, "kernel thread")));
    for (pid, words) in cases {
        let ended = attach(&stage, pid).end().require(125);
        ended.require_complaint(&[words]);
        assert!(!stage.path("trace.varve").exists());
        stage.require_clean(ended.pid);
    }
    for pid in ["0", "-1", "x"] {
        let ended = stage.run(stage.record::<&str>(&["-p", pid], &[]));
        assert!(ended.code == 2 || ended.code == 125, "{}", ended.stderr);
        assert!(ended.stderr.contains("error: "), "{}", ended.stderr);
    }
    let own = stage.command("sh");
    let mut own = own;
    own.args(["-c", "exec \"$0\" record -o trace.varve -p $$"])
        .arg(varve_faults::varve_binary());
    stage
        .run(own)
        .require(125)
        .require_complaint(&["this recorder"]);
}
