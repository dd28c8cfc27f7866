//! Interrupts end a recording within a second, whatever it is at.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use varve_faults::{Stage, check_trace, patiently};
use varve_trace::{State, Trace};

use crate::hostile::readable;

/// A second, and what a machine that has much else to do takes.
const WITHIN: Duration = Duration::from_millis(4000);

#[test]
fn a_target_that_ignores_signals_is_left_by_the_second() {
    for signal in [Signal::INT, Signal::TERM] {
        let stage = Stage::new();
        let script = "trap '' INT TERM HUP; touch ready; while :; do sleep 0.05; done";
        let recorder = stage.start(stage.record(&[], &["sh", "-c", script]));
        let ready = stage.path("ready");
        assert!(patiently(|| ready.exists()));
        std::thread::sleep(Duration::from_millis(300));
        let began = Instant::now();
        recorder.signal(signal);
        // It says so once the recording is over.
        assert!(
            patiently(|| recorder.messages().contains("an interrupt leaves it")),
            "{}",
            recorder.messages()
        );
        let over = began.elapsed();
        assert!(over < WITHIN, "the recording ended after {over:?}");
        let began = Instant::now();
        recorder.signal(signal);
        let ended = recorder.end();
        let left = began.elapsed();
        // It leaves the target at once, and puts the trace in order, which a third interrupt would end.
        assert!(left < 4 * WITHIN, "the recorder ended after {left:?}");
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
        let script = "trap '' INT TERM HUP; touch ready; while :; do sleep 0.05; done";
        let recorder = stage.start(stage.record(&[], &["sh", "-c", script]));
        let ready = stage.path("ready");
        assert!(patiently(|| ready.exists()));
        std::thread::sleep(Duration::from_millis(300));
        let began = Instant::now();
        recorder.signal(signal);
        let manifest = || Trace::open(&stage.path("trace.varve")).map(|t| t.manifest);
        let is_finished = || manifest().is_ok_and(|m| m.state == State::Finished);
        assert!(patiently(is_finished), "{}", recorder.messages());
        let took = began.elapsed();
        assert!(took < WITHIN, "the trace was in order after {took:?}");
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
        let recorder = stage.start(stage.record(&[], &["sleep", "60"]));
        let begun = || stage.path("trace.varve/manifest.json").exists();
        assert!(patiently(begun));
        std::thread::sleep(Duration::from_millis(500));
        recorder.signal(Signal::INT);
        std::thread::sleep(Duration::from_millis(milliseconds));
        recorder.signal(Signal::INT);
        let ended = recorder.end();
        assert!(
            ended.stderr.contains("wrote "),
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
    // It has ended, and its trace is put in order.
    std::thread::sleep(Duration::from_millis(400));
    let began = Instant::now();
    recorder.signal(Signal::INT);
    let ended = recorder.end();
    let took = began.elapsed();
    assert!(took < WITHIN, "it ended after {took:?}");
    if ended.code != 0 {
        assert_eq!(ended.code, 130, "{}", ended.stderr);
        assert!(ended.stderr.contains("interrupted"), "{}", ended.stderr);
    }
    readable(&stage);
}
