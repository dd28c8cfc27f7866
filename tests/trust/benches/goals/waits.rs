//! What a program waits for longer than it would without a recorder.

use std::fs;
use std::time::Duration;

use rustix::process::Signal;
use varve_faults::{Stage, patiently};
use varve_goals::Goals;
use varve_trust::program;

/// The longest of the waits for 300 ms of a program that is held each 20 ms: milliseconds.
fn longest_wait(hold: &str) -> f64 {
    let stage = Stage::new();
    let program = program("transfers");
    let options = ["--hold", hold, "--interval", "20ms"];
    let command = [program.to_str().unwrap(), "times"];
    let said = stage
        .run(stage.record(&options, &command))
        .require(0)
        .text();
    let waits = said.lines().map(|line| line.parse().unwrap());
    waits.fold(0.0, f64::max)
}

/// How long a program takes to begin and end while the recorder stands, the shortest of several: milliseconds.
fn start_beside_a_stopped_recorder() -> f64 {
    let stage = Stage::new();
    let script = "touch begun; while [ ! -e go ]; do sleep 0.02; done; \
                  for i in 1 2 3 4 5 6; do date +%s%N; /bin/true; date +%s%N; done > times; touch done";
    let mut recorder = stage.start(stage.record(&[], &["sh", "-c", script]));
    let begun = stage.path("begun");
    assert!(patiently(|| begun.exists()), "{}", recorder.messages());
    assert!(recorder.stop());
    fs::write(stage.path("go"), "").unwrap();
    assert!(patiently(|| stage.path("done").exists()));
    recorder.signal(Signal::CONT);
    recorder.end().require(0);
    let text = fs::read_to_string(stage.path("times")).unwrap();
    let times: Vec<u64> = text.lines().map(|l| l.parse().unwrap()).collect();
    // Two programs begin between two such times: `true`, and the second `date`.
    let starts = times.chunks_exact(2).map(|t| (t[1] - t[0]) / 2);
    Duration::from_nanos(starts.min().unwrap()).as_secs_f64() * 1e3
}

/// Measures them.
pub(crate) fn measure(goals: &mut Goals) {
    for hold in ["cgroup", "ptrace"] {
        let name = format!("waits: the longest of those for 300 ms, held by {hold}");
        goals.at_most(&name, "ms", 600.0, || longest_wait(hold));
    }
    let name = "waits: start of a program beside a recorder that stands";
    goals.at_most(name, "ms", 130.0, start_beside_a_stopped_recorder);
}
