//! Signals: a terminal's Ctrl-C, and what is sent to the recorder alone.

use std::fs;

use rustix::process::Signal;
use varve_faults::{Running, Stage, check_trace, patiently, recorder_cgroups};

/// What is there when a recorder has written the first intervals.
const FLUSHED: &str = "trace.varve/parts/intervals-000000.parquet";

/// A recording of the target program in its midst: intervals have been written.
fn recording(stage: &Stage, what: &str, more: &[&str]) -> Running {
    let (started, flushed) = (stage.path("started"), stage.path(FLUSHED));
    let mut words = vec![what, started.to_str().expect("a path")];
    words.extend(more);
    let recorder = stage.start(stage.record_actor(&["--interval", "10ms"], &words));
    let begun = patiently(|| started.exists() && flushed.exists());
    assert!(begun, "{}", recorder.messages());
    recorder
}

fn finished(stage: &Stage, recorder: Running, code: i32) -> varve_faults::Ended {
    let ended = recorder.end().require(code);
    stage.require_clean(ended.pid);
    let contents = check_trace(&stage.path("trace.varve")).expect("a trace");
    assert_eq!(contents.state, varve_trace::State::Finished);
    assert!(contents.touches > 0);
    ended
}

#[test]
fn a_signal_to_the_group_ends_both() {
    let stage = Stage::new();
    let recorder = recording(&stage, "run", &[]);
    recorder.signal_group(Signal::INT);
    finished(&stage, recorder, 130);
}

/// A terminal's Ctrl-C reaches the target by itself: the recorder must not send it a second one.
#[test]
fn ctrl_c_in_a_terminal_reaches_the_target_once() {
    let stage = Stage::new();
    let started = stage.path("started");
    let words = format!(
        "exec {} record -o trace.varve -- {} handle {}",
        varve_faults::varve_binary().display(),
        varve_faults::actor().display(),
        started.display()
    );
    // script(1) hands a ^C on its input to the terminal that it makes.
    let mut command = stage.command("script");
    command.args(["-qec", &words, "/dev/null"]);
    command.stdin(std::process::Stdio::piped());
    command.stdout(std::process::Stdio::piped());
    let mut child = command.spawn().expect("script");
    let flushed = stage.path(FLUSHED);
    assert!(patiently(|| started.exists() && flushed.exists()));
    let mut input = child.stdin.take().expect("a pipe");
    std::io::Write::write_all(&mut input, b"\x03").expect("Ctrl-C");
    let output = child.wait_with_output().expect("its end");
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(41), "{text}");
    assert!(text.contains("caught 2"), "{text}");
    let contents = check_trace(&stage.path("trace.varve")).expect("a trace");
    assert_eq!(contents.state, varve_trace::State::Finished);
}

#[test]
fn signals_to_the_recorder_are_passed_on() {
    for (signal, number) in [(Signal::TERM, 15), (Signal::INT, 2), (Signal::HUP, 1)] {
        let stage = Stage::new();
        let recorder = recording(&stage, "handle", &[]);
        recorder.signal(signal);
        let ended = finished(&stage, recorder, 41);
        assert_eq!(ended.text(), format!("caught {number}\n"));
    }
}

#[test]
fn a_target_that_ignores_ctrl_c_ends_by_itself() {
    let stage = Stage::new();
    let go = stage.path("go");
    let recorder = recording(&stage, "ignore", &[go.to_str().expect("a path")]);
    recorder.signal_group(Signal::INT);
    fs::write(go, "").expect("a file");
    let ended = finished(&stage, recorder, 6);
    assert_eq!(ended.text(), "ended by itself\n");
}

/// A stopped recorder cannot let go what it holds; its watchdog does.
#[test]
fn a_stopped_recorder_does_not_hold_the_target() {
    let stage = Stage::new();
    let mut recorder = recording(&stage, "serve", &[]);
    let cgroup = recorder_cgroups(recorder.pid()).pop().expect("a cgroup");
    let beats = || fs::read(stage.path("started.beats")).expect("beats");
    assert!(recorder.stop());
    // As if it had been stopped between freeze and thaw, which needs luck.
    fs::write(cgroup.join("cgroup.freeze"), "1").expect("frozen");
    let before = beats();
    assert!(patiently(|| beats() != before), "it is still frozen");
    recorder.signal(Signal::CONT);
    recorder.signal(Signal::TERM);
    finished(&stage, recorder, 11);
}
