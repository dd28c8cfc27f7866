//! Targets that do what recorders do not expect.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use rustix::process::Signal;
use varve_faults::{Stage, actor, check_trace, patiently};

#[test]
fn exit_codes_are_the_targets_own() {
    let stage = Stage::new();
    for code in [0, 1, 42, 125, 255] {
        let ended = stage.run(stage.record_actor(&[], &["exit", &code.to_string()]));
        stage.require_clean(ended.require(code).pid);
    }
    let alone = stage.run(stage.record_actor(&[], &["exit", "3"]));
    assert!(!alone.stderr.contains("unrecorded"), "{}", alone.stderr);
    // A shell's way of telling of a signal.
    for (signal, code) in [("9", 137), ("15", 143), ("segv", 139), ("6", 134)] {
        let ended = stage.run(stage.record_actor(&[], &["crash", signal]));
        let ended = ended.require(code);
        assert!(!ended.stderr.contains("error:"), "{}", ended.stderr);
        stage.require_clean(ended.pid);
        check_trace(&stage.path("trace.varve")).expect("a trace of a crash");
    }
}

#[test]
fn a_target_that_is_killed_from_outside() {
    let stage = Stage::new();
    let started = stage.path("started");
    let recorder =
        stage.start(stage.record_actor(&[], &["run", started.to_str().expect("a path")]));
    assert!(patiently(|| started.exists()));
    let cgroup = varve_faults::recorder_cgroups(recorder.pid())
        .pop()
        .expect("a cgroup");
    let target: i32 = fs::read_to_string(cgroup.join("cgroup.procs"))
        .expect("the target")
        .trim()
        .parse()
        .expect("one process");
    let target = rustix::process::Pid::from_raw(target).expect("a process id");
    rustix::process::kill_process(target, Signal::KILL).expect("killed");
    let ended = recorder.end().require(137);
    stage.require_clean(ended.pid);
    check_trace(&stage.path("trace.varve")).expect("a trace");
}

#[test]
fn seccomp_filtered_targets_run_on() {
    for which in ["seccomp_strict", "seccomp_filter"] {
        let stage = Stage::new();
        let ended = stage
            .run(stage.record_actor(&["--interval", "10ms"], &[which]))
            .require(5);
        assert_eq!(ended.text(), stage.run(stage.actor(&[which])).text());
        stage.require_clean(ended.pid);
        let contents = check_trace(&stage.path("trace.varve")).expect("a trace");
        assert!(contents.touches > 0);
    }
}

#[test]
fn a_daemon_is_let_go() {
    let stage = Stage::new();
    let result = stage.path("result");
    let ended = stage
        .run(stage.record_actor(&[], &["daemon", result.to_str().expect("a path")]))
        .require(3);
    assert!(patiently(|| result.exists()), "the daemon did not run on");
    stage.require_clean(ended.pid);
    check_trace(&stage.path("trace.varve")).expect("a trace");
}

/// The recording ends when the command does; children that it leaves behind run on unrecorded, where
/// they would have been without it.
#[test]
fn a_child_that_outlives_the_command_is_let_go() {
    let stage = Stage::new();
    let result = stage.path("result");
    let ended = stage
        .run(stage.record_actor(
            &["--interval", "10ms"],
            &["background", result.to_str().expect("a path")],
        ))
        .require(4);
    let left = varve_faults::recorder_cgroups(ended.pid);
    assert!(left.is_empty(), "the recorder left {left:?} at its end");
    assert!(patiently(|| result.exists()), "the child did not run on");
    stage.require_clean(ended.pid);
    check_trace(&stage.path("trace.varve")).expect("a trace");
}

#[test]
fn processes_that_the_command_leaves_behind_are_named() {
    let stage = Stage::new();
    let script = "sleep 300 >/dev/null 2>&1 </dev/null & echo $!; exit 3";
    let ended = stage
        .run(stage.record(&[], &["sh", "-c", script]))
        .require(3);
    let left: i32 = ended.text().trim().parse().expect("a process id");
    let named = format!("a process that it left behind runs on unrecorded, {left} (sleep)");
    assert!(ended.stderr.contains(&named), "{}", ended.stderr);
    let left = rustix::process::Pid::from_raw(left).expect("a process id");
    rustix::process::kill_process(left, Signal::KILL).expect("it runs on");
    check_trace(&stage.path("trace.varve")).expect("a trace");
}

#[test]
fn heavy_forking_and_execs() {
    let stage = Stage::new();
    let ended = stage
        .run(stage.record_actor(&["--interval", "10ms"], &["forks", "1000"]))
        .require(0);
    assert_eq!(ended.text(), "0 failed\n");
    stage.require_clean(ended.pid);
    check_trace(&stage.path("trace.varve")).expect("a trace of forks");
    let ended = stage
        .run(stage.record_actor(&["--interval", "10ms"], &["execs", "100"]))
        .require(9);
    assert_eq!(ended.text(), "the last program\n");
    stage.require_clean(ended.pid);
    check_trace(&stage.path("trace.varve")).expect("a trace of execs");
}

#[test]
fn ten_thousand_threads() {
    let stage = Stage::new();
    let ended = stage
        .run(stage.record_actor(&[], &["threads", "10000"]))
        .require(0);
    assert_eq!(ended.text(), "50005000\n");
    stage.require_clean(ended.pid);
    let contents = check_trace(&stage.path("trace.varve")).expect("a trace");
    let longest = contents.intervals.iter().map(|i| i.held_ns.0).max();
    println!(
        "10,000 threads: held {longest:?} ns at most, notes {:?}",
        contents.notes
    );
    // They end all at once. What the machine itself may do, such as reclaim, is not the recorder's fault.
    let lost = ["process_events", "vanished_pages", "vanish_walks", "faults"];
    let lost = contents
        .losses
        .iter()
        .filter(|l| lost.contains(&l.kind.as_str()));
    assert_eq!(
        lost.collect::<Vec<_>>(),
        Vec::<&varve_trace::tables::LossRow>::new()
    );
}

/// Being let go makes the scheduler place every thread anew; the first must not fall behind for ever: it ends the others.
#[test]
fn many_busy_threads_have_their_turns() {
    let stage = Stage::new();
    // Many more than there are CPUs.
    let cpus = std::thread::available_parallelism()
        .expect("a number")
        .get();
    let (count, go) = (128.max(8 * cpus).to_string(), stage.path("go"));
    let arguments = ["crowd", &count, go.to_str().expect("a path")];
    let recorder = stage.start(stage.record_actor(&["--interval", "10ms"], &arguments));
    let flushed = stage.path("trace.varve/parts/intervals-000001.parquet");
    assert!(patiently(|| flushed.exists()), "{}", recorder.messages());
    fs::write(go, "").expect("a file");
    let ended = recorder.end().require(0);
    let contents = check_trace(&stage.path("trace.varve")).expect("a trace");
    let reported = |n: &String| n.contains("wanted to run had its turn");
    assert!(contents.notes.iter().any(reported), "{:?}", contents.notes);
    stage.require_clean(ended.pid);
}

/// The preload library is not loaded into a program that changes its user; its heap objects come from
/// the kernel's view, and the trace says so.
#[test]
fn a_setuid_target() {
    let stage = Stage::new();
    let program = stage.path("actor-setuid");
    fs::copy(actor(), &program).expect("a copy");
    std::os::unix::fs::chown(&program, Some(65534), Some(65534)).expect("another owner");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o6755)).expect("setuid");
    fs::set_permissions(stage.folder(), fs::Permissions::from_mode(0o777)).expect("open to all");
    let started = stage.path("started");
    let result = stage.path("result");
    let words = [
        program.to_str().expect("a path"),
        "checksum",
        "8",
        "20",
        started.to_str().expect("a path"),
        result.to_str().expect("a path"),
    ];
    let ended = stage.run(stage.record(&[], &words)).require(0);
    assert_eq!(ended.text(), fs::read_to_string(&result).expect("a result"));
    stage.require_clean(ended.pid);
    let contents = check_trace(&stage.path("trace.varve")).expect("a trace");
    assert!(contents.touches > 0, "its memory was recorded");
    let manifest = fs::read_to_string(stage.path("trace.varve/manifest.json")).expect("a manifest");
    assert!(manifest.contains("\"objects\": \"kernel\""), "{manifest}");
    let warning = ended
        .stderr
        .lines()
        .filter(|l| l.starts_with("warning: "))
        .count();
    assert_eq!(warning, 1, "one sentence about it: {}", ended.stderr);
    assert!(ended.stderr.contains("hint: "), "{}", ended.stderr);
}
