//! How soon interrupts end a recording, and what reports of hostile traces take.

use std::time::Instant;

use rustix::process::Signal;
use varve_faults::{Running, Stage, patiently};
use varve_goals::{Goals, median};
use varve_trace::{State, Trace};

#[path = "../../tests/trust/hostile/memory/traces.rs"]
mod traces;

use traces::{cost, lying, more_than_memory, real_manifest};

pub(crate) fn measure(goals: &mut Goals) {
    let rounds = goals.rounds(5);
    let several = |one: &dyn Fn() -> f64| median(&(0..rounds).map(|_| one()).collect::<Vec<_>>());
    goals.at_most("interrupt: the recording is over", "s", 1.0, || {
        several(&|| {
            let stage = Stage::new();
            let recorder = stubborn(&stage);
            until(&recorder, || {
                let said = recorder.messages();
                said.contains("its trace is put in order now")
            })
        })
    });
    goals.at_most("interrupt: the trace is in order", "s", 2.0, || {
        several(&|| {
            let stage = Stage::new();
            let recorder = stubborn(&stage);
            until(&recorder, || {
                let trace = Trace::open(&stage.path("trace.varve"));
                trace.is_ok_and(|t| t.manifest.state == State::Finished)
            })
        })
    });
    goals.at_most("interrupt: the second leaves the target", "s", 1.0, || {
        several(&|| {
            let stage = Stage::new();
            let recorder = stubborn(&stage);
            let is_over = || recorder.messages().contains("an interrupt leaves it");
            until(&recorder, is_over);
            let began = Instant::now();
            recorder.signal(Signal::INT);
            recorder.end().require(130);
            began.elapsed().as_secs_f64()
        })
    });
    goals.at_most(
        "report: more pages than memory are refused, CPU",
        "s",
        5.0,
        || {
            let stage = Stage::new();
            more_than_memory(&stage.path("t.varve"), &real_manifest(&stage));
            let (_, cpu, status) = cost(&stage, &["report", "t.varve", "--json"]);
            assert_ne!(status, 0);
            cpu
        },
    );
    for (what, sizes, is_mapped) in [
        (
            "report: objects larger than memory, mapped, CPU",
            1 << 60,
            true,
        ),
        ("report: objects larger than memory, CPU", 1 << 60, false),
        ("report: large objects that cannot be, CPU", 1 << 20, true),
    ] {
        goals.at_most(what, "s", 20.0, || {
            let stage = Stage::new();
            lying(
                &stage.path("t.varve"),
                &real_manifest(&stage),
                sizes,
                is_mapped,
            );
            let (_, cpu, status) = cost(&stage, &["report", "t.varve", "--json"]);
            assert_eq!(status, 0);
            cpu
        });
    }
}

/// A recording of what ignores signals.
fn stubborn(stage: &Stage) -> Running {
    let script = "trap '' INT TERM HUP; while :; do sleep 0.05; done";
    let recorder = stage.start(stage.record(&[], &["sh", "-c", script]));
    let trace = stage.path("trace.varve");
    assert!(
        patiently(|| varve_trust::flushed(&trace, "intervals") > 0),
        "{}",
        recorder.messages()
    );
    recorder
}

/// Seconds from an interrupt until this is so.
fn until(recorder: &Running, is_so: impl FnMut() -> bool) -> f64 {
    let began = Instant::now();
    recorder.signal(Signal::INT);
    assert!(patiently(is_so), "{}", recorder.messages());
    began.elapsed().as_secs_f64()
}
