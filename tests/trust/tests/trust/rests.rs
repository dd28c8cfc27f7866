//! Times in which nothing is recorded: what was accessed then is in no interval, and all else is in one.

use std::ffi::OsString;

use rustix::process::Signal;
use varve_faults::{Stage, monotonic_ns, patiently};
use varve_trace::tables::{FaultRow, IntervalRow, SampleRow};
use varve_trust::wait_for_flushes;

use crate::rounds::{compare, go_on, rounds, rounds_done};

#[test]
fn what_happens_in_a_pause_is_not_recorded() {
    let stage = Stage::new();
    let options = ["--interval", "10ms", "--samples", "1000/s"];
    // The target itself mostly sleeps; something beside it is there to be sampled.
    let script = "(while kill -0 $$; do :; done) & exec \"$@\"";
    let mut words: Vec<OsString> = ["sh", "-c", script, "sh"].map(Into::into).into();
    words.extend(rounds(&stage, 2));
    let recorder = stage.start(stage.record(&options, &words));
    let pauses =
        |times: usize| patiently(|| recorder.messages().matches("paused:").count() == times);
    let goes_on = |times: usize| {
        patiently(|| recorder.messages().matches("the pause is over").count() == times)
    };
    let mut rests = Vec::new();
    for time in 1..=2 {
        go_on(&stage, 100);
        recorder.signal(Signal::USR1);
        assert!(pauses(time), "{}", recorder.messages());
        let began = monotonic_ns();
        go_on(&stage, 100);
        rests.push((began, monotonic_ns()));
        recorder.signal(Signal::USR1);
        assert!(goes_on(time), "{}", recorder.messages());
    }
    go_on(&stage, 100);
    recorder.signal(Signal::TERM);
    let ended = recorder.end().require(7);
    let seen = compare(&stage, &stage);
    seen.require_all("cgroup");
    let intervals: Vec<IntervalRow> = seen.trace.rows().unwrap();
    let faults: Vec<FaultRow> = seen.trace.rows().unwrap();
    let samples: Vec<SampleRow> = seen.trace.rows().unwrap();
    assert!(!samples.is_empty());
    for (began, over) in rests {
        let rested = began..=over;
        let overlap = |i: &&IntervalRow| i.start_ns.0 <= over && i.end_ns.0 >= began;
        assert_eq!(intervals.iter().filter(overlap).count(), 0);
        assert!(faults.iter().all(|f| !rested.contains(&f.time_ns.0)));
        assert!(samples.iter().all(|s| !rested.contains(&s.time_ns.0)));
    }
    let notes = seen.trace.manifest.notes.join(" ");
    assert!(notes.contains("paused 2 times, for "), "{notes}");
    stage.require_clean(ended.pid);
}

#[test]
fn a_recording_that_is_ended_in_a_pause_has_what_came_before() {
    let stage = Stage::new();
    let recorder = stage.start(stage.record(&["--interval", "10ms"], &rounds(&stage, 1)));
    assert!(patiently(|| rounds_done(&stage) > 50));
    // So that there are intervals that begin only now.
    wait_for_flushes(&stage, &recorder, "intervals", 3);
    recorder.signal(Signal::USR1);
    assert!(patiently(|| recorder.messages().contains("paused")));
    go_on(&stage, 50);
    recorder.signal(Signal::TERM);
    let ended = recorder.end().require(7);
    let seen = compare(&stage, &stage);
    seen.require_all("cgroup");
    let notes = seen.trace.manifest.notes.join(" ");
    assert!(notes.contains("paused once, for "), "{notes}");
    stage.require_clean(ended.pid);
}

#[test]
fn what_happens_before_a_delay_is_over_is_not_recorded() {
    let stage = Stage::new();
    let began = monotonic_ns();
    let options = ["--interval", "10ms", "--delay", "400ms"];
    let recorder = stage.start(stage.record(&options, &rounds(&stage, 1)));
    assert!(patiently(|| recorder
        .messages()
        .contains("recorded from now on")));
    assert!(monotonic_ns() - began >= 400_000_000);
    go_on(&stage, 200);
    recorder.signal(Signal::TERM);
    recorder.end().require(7);
    let seen = compare(&stage, &stage);
    seen.require_all("cgroup");
    let start = seen.trace.manifest.clock.start_ns.0;
    assert!(start - began >= 400_000_000, "{}", start - began);
    let intervals: Vec<IntervalRow> = seen.trace.rows().unwrap();
    assert_eq!(intervals[0].start_ns.0, start);
    let faults: Vec<FaultRow> = seen.trace.rows().unwrap();
    assert!(faults.iter().all(|f| f.time_ns.0 >= start));
}

#[test]
fn a_target_that_ends_before_its_delay_leaves_an_empty_trace_that_says_so() {
    let stage = Stage::new();
    let options = ["--delay", "60s"];
    stage.run(stage.record(&options, &["true"])).require(0);
    let mut report = stage.command(varve_faults::varve_binary());
    report.args(["report", "trace.varve", "--all"]);
    let said = stage.run(report).require(0).text();
    assert!(said.contains("ended before the delay was over"), "{said}");
}
