//! Interrupts end a recording, whatever it is at, and leave a trace. How soon: `benches/goals/hold.rs`.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use varve_faults::{Running, Stage, check_trace, patiently};
use varve_trace::{State, Trace};

use crate::hostile::readable;

/// Signals that follow one another so soon are one (`crates/sys/src/signals.rs`).
const SAME: Duration = Duration::from_secs(1);

/// Begins to record what ignores signals, and waits until something is recorded.
fn record_stubborn(stage: &Stage) -> Running {
    let script = "trap '' INT TERM HUP; touch ready; while :; do sleep 0.05; done";
    let recorder = stage.start(stage.record(&[], &["sh", "-c", script]));
    let ready = stage.path("ready");
    assert!(patiently(|| ready.exists()), "{}", recorder.messages());
    wait_for_a_part(stage, &recorder);
    recorder
}

fn wait_for_a_part(stage: &Stage, recorder: &Running) {
    let trace = stage.path("trace.varve");
    let is_there = || varve_trust::flushed(&trace, "intervals") > 0;
    assert!(patiently(is_there), "{}", recorder.messages());
}

#[test]
fn a_target_that_ignores_signals_is_left_by_the_second() {
    for signal in [Signal::INT, Signal::TERM] {
        let stage = Stage::new();
        let recorder = record_stubborn(&stage);
        recorder.signal(signal);
        // It says so once the recording is over.
        assert!(
            patiently(|| recorder.messages().contains("an interrupt leaves it")),
            "{}",
            recorder.messages()
        );
        // It leaves the target at once.
        recorder.signal(signal);
        let ended = recorder.end();
        assert_eq!(ended.code, 128 + signal.as_raw(), "{}", ended.stderr);
        assert_eq!(ended.stderr.matches("goes on").count(), 1);
        check_trace(&stage.path("trace.varve")).unwrap();
        readable(&stage);
    }
}

#[test]
fn a_trace_does_not_wait_for_a_target_that_ignores_signals() {
    for signal in [Signal::INT, Signal::TERM] {
        let stage = Stage::new();
        let recorder = record_stubborn(&stage);
        recorder.signal(signal);
        let manifest = || Trace::open(&stage.path("trace.varve")).map(|t| t.manifest);
        let is_finished = || manifest().is_ok_and(|m| m.state == State::Finished);
        assert!(patiently(is_finished), "{}", recorder.messages());
        // The first interrupt is answered before the trace is in order, as the target gives no sign of having noticed.
        let said = recorder.messages();
        assert!(said.contains("its trace is put in order now"), "{said}");
        let notes = manifest().unwrap().notes;
        let is_said = notes
            .iter()
            .any(|n| n.contains("The recording ended before its target"));
        assert!(is_said, "{notes:?}");
        // The target goes on, and is waited for.
        assert!(patiently(|| recorder
            .messages()
            .contains("an interrupt leaves it")));
        recorder.signal(signal);
        recorder.end().require(128 + signal.as_raw());
    }
}

/// `timeout -s INT` sends one to the recorder and one to its group, and people press Ctrl-C twice.
#[test]
fn a_signal_that_comes_twice_is_one() {
    for milliseconds in [0, 2, 20, 80, 300] {
        let stage = Stage::new();
        let recorder = stage.start(stage.record(&[], &["sleep", "600"]));
        wait_for_a_part(&stage, &recorder);
        let began = Instant::now();
        recorder.signal(Signal::INT);
        std::thread::sleep(Duration::from_millis(milliseconds));
        recorder.signal(Signal::INT);
        let ended = recorder.end();
        // Where the machine let the recorder find the second only much later, that is another one, and may end it.
        let is_another = began.elapsed() >= SAME && ended.stderr.contains("interrupted: ");
        assert!(
            ended.stderr.contains("wrote ") || is_another,
            "{milliseconds} ms: {}",
            ended.stderr
        );
        check_trace(&stage.path("trace.varve")).unwrap();
        readable(&stage);
    }
}

#[test]
fn putting_a_trace_in_order_can_be_interrupted() {
    let stage = Stage::new();
    let program = varve_trust::program("objects");
    let done = stage.path("done");
    let command = [program.as_os_str(), "400000".as_ref(), done.as_os_str()];
    let recorder = stage.start(stage.record(&[], &command));
    assert!(patiently(|| done.exists()));
    // It has ended, and its trace is put in order: tables are written under names of their own first.
    let trace = stage.path("trace.varve");
    let begins = || {
        let entries = std::fs::read_dir(&trace).unwrap().flatten();
        let mut names = entries.map(|e| e.file_name().to_string_lossy().into_owned());
        names.any(|name| {
            name.ends_with(".parquet") || name.ends_with(".new") && !name.starts_with("manifest")
        })
    };
    assert!(patiently(begins), "{}", recorder.messages());
    recorder.signal(Signal::INT);
    let ended = recorder.end();
    if ended.code != 0 {
        assert_eq!(ended.code, 130, "{}", ended.stderr);
        assert!(ended.stderr.contains("interrupted"), "{}", ended.stderr);
    }
    readable(&stage);
}
