//! Holding the target by ptrace, where there is no cgroup freezer: the target comes to no more harm.

use std::fs;
use std::time::Duration;

use rustix::process::Signal;
use varve_faults::{Running, Stage, check_trace, patiently, stat};

const OPTIONS: [&str; 4] = ["--interval", "10ms", "--hold", "ptrace"];

/// A target with several threads, in a stage of its own.
struct Server {
    stage: Stage,
    running: Running,
}

impl Server {
    fn start() -> Server {
        let stage = Stage::new();
        let started = stage.path("started");
        let running = stage.start(stage.actor(&["serve", started.to_str().expect("a path")]));
        assert!(patiently(|| started.exists()));
        Server { stage, running }
    }

    fn beats_on(&self) -> bool {
        let beats = || fs::read(self.stage.path("started.beats")).expect("beats");
        let before = beats();
        patiently(|| beats() != before)
    }

    fn end(self) {
        self.running.signal(Signal::TERM);
        self.running.end().require(11);
    }
}

/// Attaches, and waits until intervals have been flushed.
fn attach(stage: &Stage, pid: u32) -> Running {
    let pid = pid.to_string();
    let options: Vec<&str> = OPTIONS.into_iter().chain(["-p", &pid]).collect();
    let mut recorder = stage.start(stage.record::<&str>(&options, &[]));
    let parts = stage.path("trace.varve/parts/intervals-000000.parquet");
    let is_at_work = patiently(|| parts.exists() || recorder.has_ended());
    let has_ended = recorder.has_ended();
    assert!(is_at_work && !has_ended, "{}", recorder.messages());
    recorder
}

/// Who traces any thread of a process.
fn is_traced(pid: u32) -> bool {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("its threads");
    tasks.flatten().any(|task| {
        let status = fs::read_to_string(task.path().join("status")).unwrap_or_default();
        status.lines().any(|l| {
            l.strip_prefix("TracerPid:")
                .is_some_and(|t| t.trim() != "0")
        })
    })
}

/// The letter of a process's state.
fn state_of(pid: u32) -> char {
    stat(pid).expect("its status").state
}

#[test]
fn a_killed_recorder_lets_go() {
    let server = Server::start();
    let mut while_held = 0;
    for round in 0..12 {
        let recorders = Stage::new();
        let recorder = attach(&recorders, server.running.pid());
        if round % 2 == 0 {
            // Between stopping and letting go, if the machine lets us see it.
            while_held += u32::from(patiently(|| is_traced(server.running.pid())));
        } else {
            std::thread::sleep(Duration::from_millis(3 * round));
        }
        recorder.signal(Signal::KILL);
        let pid = recorder.end().pid;
        recorders.require_clean(pid);
        assert!(patiently(|| !is_traced(server.running.pid())));
        assert!(server.beats_on());
        check_trace(&recorders.path("trace.varve")).expect("a trace");
    }
    assert!(while_held > 0, "no hold was ever seen");
    server.end();
}

/// Ctrl-Z and SIGSTOP, in the middle of a hold: the recorder stops, and the target runs.
#[test]
fn a_stopped_recorder_lets_go() {
    let server = Server::start();
    for signal in [Signal::TSTP, Signal::STOP] {
        let recorders = Stage::new();
        let recorder = attach(&recorders, server.running.pid());
        for _ in 0..12 {
            assert!(patiently(|| is_traced(server.running.pid())));
            recorder.signal(signal);
            assert!(patiently(|| state_of(recorder.pid()) == 'T'), "{signal:?}");
            assert!(patiently(|| !is_traced(server.running.pid())));
            assert!(server.beats_on());
            assert!(patiently(|| state_of(recorder.pid()) == 'T'), "{signal:?}");
            recorder.signal(Signal::CONT);
        }
        recorder.signal(Signal::INT);
        let ended = recorder.end().require(0);
        recorders.require_clean(ended.pid);
        check_trace(&recorders.path("trace.varve")).expect("a trace");
    }
    server.end();
}

/// At whatever moment: while its watchdog has it go on for as long as it holds the target, too.
#[test]
fn a_stopped_recorder_goes_on_when_it_is_told_to() {
    let server = Server::start();
    let recorders = Stage::new();
    let recorder = attach(&recorders, server.running.pid());
    let mut lost = 0;
    for step in 0..150 {
        let goes_on = patiently(|| {
            let is_stopped = state_of(recorder.pid()) == 'T';
            if is_stopped {
                lost += 1;
                recorder.signal(Signal::CONT);
            }
            is_traced(server.running.pid())
        });
        assert!(goes_on, "step {step}");
        recorder.signal(Signal::STOP);
        // Over more than the time between two looks of the watchdog.
        std::thread::sleep(Duration::from_micros(500 * step));
        recorder.signal(Signal::CONT);
    }
    // A signal is lost within less than a microsecond of the 10 ms of an interval: three of 150 are in 2 million runs.
    assert!(lost <= 2, "{lost} of 150");
    recorder.signal(Signal::INT);
    let ended = recorder.end().require(0);
    recorders.require_clean(ended.pid);
    check_trace(&recorders.path("trace.varve")).expect("a trace");
    server.end();
}

#[test]
fn a_recorder_that_ends_lets_go() {
    let server = Server::start();
    let recorders = Stage::new();
    let recorder = attach(&recorders, server.running.pid());
    recorder.signal(Signal::INT);
    let ended = recorder.end().require(0);
    recorders.require_clean(ended.pid);
    assert!(!is_traced(server.running.pid()));
    assert!(server.beats_on());
    let contents = check_trace(&recorders.path("trace.varve")).expect("a trace");
    assert!(contents.touches > 0);
    server.end();
}

#[test]
fn a_stopped_target_stays_stopped() {
    let server = Server::start();
    server.running.signal(Signal::STOP);
    let recorders = Stage::new();
    let recorder = attach(&recorders, server.running.pid());
    recorder.signal(Signal::INT);
    recorder.end().require(0);
    assert_eq!(state_of(server.running.pid()), 'T');
    server.running.signal(Signal::CONT);
    assert!(server.beats_on());
    server.end();
}

/// Each signal is waited for before the next is sent: one that is lost is missed for ever.
#[test]
fn no_signal_is_swallowed() {
    let stage = Stage::new();
    let count = stage.path("count");
    let target = stage.start(stage.actor(&["count_signals", count.to_str().expect("a path")]));
    let counted = || fs::read_to_string(&count).unwrap_or_default();
    assert!(patiently(|| counted() == "0\n"));
    let recorders = Stage::new();
    let recorder = attach(&recorders, target.pid());
    for sent in 1..=300 {
        target.signal(Signal::USR1);
        assert!(
            patiently(|| counted() == format!("{sent}\n")),
            "{sent} were sent, {} arrived",
            counted()
        );
    }
    recorder.signal(Signal::INT);
    recorder.end().require(0);
    target.signal(Signal::TERM);
    target.end().require(13);
}

#[test]
fn threads_and_processes_come_and_go() {
    for (arguments, code, output) in [
        (["forks", "300"], 0, "0 failed\n"),
        (["execs", "30"], 9, "the last program\n"),
        (["threads", "1000"], 0, "500500\n"),
    ] {
        let stage = Stage::new();
        let ended = stage
            .run(stage.record_actor(&OPTIONS, &arguments))
            .require(code);
        assert_eq!(ended.text(), output);
        stage.require_clean(ended.pid);
        check_trace(&stage.path("trace.varve")).expect("a trace");
    }
}

#[test]
fn what_a_debugger_traces_is_refused_in_one_sentence() {
    let targets = Stage::new();
    let traced = targets.path("traced");
    let debugger = targets.start(targets.actor(&["debugger", traced.to_str().expect("a path")]));
    assert!(patiently(|| traced.exists()));
    let pid = fs::read_to_string(&traced).expect("its id");
    let stage = Stage::new();
    let options: Vec<&str> = OPTIONS.into_iter().chain(["-p", pid.trim()]).collect();
    let ended = stage.run(stage.record::<&str>(&options, &[])).require(125);
    ended.require_complaint(&["is being traced by process", "debugger"]);
    stage.require_clean(ended.pid);
    debugger.signal(Signal::TERM);
    debugger.end().require(12);
}

#[test]
fn a_second_recorder_is_refused() {
    let server = Server::start();
    let (first, second) = (Stage::new(), Stage::new());
    let recorder = attach(&first, server.running.pid());
    let pid = server.running.pid().to_string();
    let options: Vec<&str> = OPTIONS.into_iter().chain(["-p", &pid]).collect();
    let ended = second
        .run(second.record::<&str>(&options, &[]))
        .require(125);
    ended.require_complaint(&["recorded already"]);
    recorder.signal(Signal::INT);
    recorder.end().require(0);
    server.end();
}
