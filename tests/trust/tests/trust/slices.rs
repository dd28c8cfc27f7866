//! `--max-hold`: no hold is longer than asked, and nothing is lost or invented for it.

use std::collections::BTreeMap;

use varve_faults::Stage;
use varve_model::{Duration, TouchSource};
use varve_trace::Trace;
use varve_trace::tables::{IntervalRow, TouchRow};
use varve_trust::program;

fn record(name: &str, options: &[&str], arguments: &[&str]) -> (Stage, Trace) {
    let stage = Stage::new();
    let program = program(name);
    let command = [&[program.to_str().unwrap()], arguments].concat();
    let fixed = ["--thp", "never", "--hold", "cgroup", "--interval", "500ms"];
    let options = [&fixed, options].concat();
    stage.run(stage.record(&options, &command)).require(0);
    let trace = Trace::open(&stage.path("trace.varve")).unwrap();
    let manifest = &trace.manifest;
    assert!(manifest.completeness.complete, "{:?}", manifest.losses);
    (stage, trace)
}

/// Of all holds. A busy machine stretches each of them, whatever the limit.
fn mean_hold(intervals: &[IntervalRow]) -> u64 {
    let held: u64 = intervals.iter().map(|i| i.held_ns.0).sum();
    let holds: u64 = intervals.iter().map(|i| u64::from(i.holds)).sum();
    held / holds
}

/// Intervals at whose end the target lived.
fn whole(trace: &Trace) -> Vec<IntervalRow> {
    let rows: Vec<IntervalRow> = trace.rows().unwrap();
    rows.into_iter().filter(|i| i.resident_pages > 0).collect()
}

/// The negative control is the longer limit: then one hold is as long as it takes.
#[test]
fn holds_are_as_short_as_asked() {
    const ASKED: Duration = Duration(5_000_000);
    let arguments = ["1500", "4000"];
    let (_stage, trace) = record("resident", &["--max-hold", "5ms"], &arguments);
    let short = whole(&trace);
    assert!(short.iter().any(|i| i.holds > 1), "{short:#?}");
    let kept = short.iter().any(|i| i.longest_hold_ns <= ASKED);
    assert!(kept, "{short:#?}");
    for i in &short {
        assert!(i.held_ns >= i.longest_hold_ns, "{i:?}");
        assert!(i.holds < 2 || i.overlap_ns > i.held_ns, "{i:?}");
    }
    let too_long = short
        .iter()
        .any(|i| i.holds > 1 && i.longest_hold_ns > ASKED);
    let notes = &trace.manifest.notes;
    let told = notes.iter().any(|note| note.contains("--max-hold"));
    assert!(told || !too_long, "{notes:?}");
    let (_stage, trace) = record("resident", &["--max-hold", "10s"], &arguments);
    let long = whole(&trace);
    assert!(long.iter().all(|i| i.holds == 1), "{long:#?}");
    let (short, long) = (mean_hold(&short), mean_hold(&long));
    assert!(
        2 * short < long,
        "mean holds: {short} ns in slices, {long} ns at once"
    );
}

/// The kernel clears no part of shared memory: each process is cleared by itself.
#[test]
fn shared_memory_is_cleared_by_process() {
    const PAGES: u64 = 256 << 8;
    const PROCESSES: usize = 4;
    let options = ["--max-hold", "2ms"];
    let (_stage, trace) = record("sharing", &options, &["256", "4", "5000"]);
    let intervals: Vec<IntervalRow> = trace.rows().unwrap();
    let most = intervals.iter().map(|i| i.holds).max().unwrap();
    assert!(most as usize > PROCESSES, "{intervals:#?}");
    // All ran for the last whole second.
    let end = intervals.last().unwrap().end_ns;
    let late = intervals
        .iter()
        .rev()
        .find(|i| (end - i.end_ns).0 > 1_000_000_000);
    let late = late.unwrap().interval;
    let rows: Vec<TouchRow> = trace.rows().unwrap();
    let mut touched: BTreeMap<_, (u64, u64)> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.interval == late) {
        let of = touched.entry(row.pid).or_default();
        of.0 += u64::from(row.pages);
        if row.source == TouchSource::Sticky {
            of.1 += u64::from(row.pages);
        }
    }
    let users = touched.values().filter(|of| of.0 >= PAGES / 16);
    assert_eq!(users.count(), PROCESSES, "{touched:?}");
    for (all, sticky) in touched.values() {
        assert!(*all < PAGES / 8, "{touched:?}");
        assert!(*sticky < 512, "libraries at most: {touched:?}");
    }
}
