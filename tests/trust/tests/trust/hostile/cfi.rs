//! Unwind tables that never end hang neither the recorder nor the target.

use varve_faults::{Stage, check_trace};

use crate::hostile::readable;

fn records(options: &[&str], what: &str) {
    let stage = Stage::new();
    let program = varve_trust::program("endless");
    let command = [program.as_os_str(), what.as_ref()];
    // A recorder or target that hangs does so for ever; `run` gives up after minutes.
    let ended = stage.run(stage.record(options, &command)).require(0);
    assert!(ended.text().contains("done"), "{}", ended.text());
    check_trace(&stage.path("trace.varve")).unwrap();
    readable(&stage);
    stage.require_clean(ended.pid);
}

#[test]
fn the_preload_library_ends_in_the_target() {
    records(&[], "heap");
}

#[test]
fn the_recorder_ends_at_events_of_the_kernel() {
    records(&["--no-preload"], "map");
}

#[test]
fn the_recorder_ends_at_samples() {
    records(&["--samples", "500/s"], "spin");
}
