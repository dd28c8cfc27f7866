use std::collections::BTreeMap;

use super::*;
use crate::{About, OperationFigures, SiteFigures, Times, made};

fn estimate(bytes: u64, error: u64, blocks: u64) -> Estimate {
    Estimate {
        bytes: Bytes(bytes),
        error_bytes: Bytes(error),
        blocks,
        error_blocks: blocks / 2,
    }
}

fn block_site(stack: &[&str], bytes: u64, idle: Option<Idle>) -> BlockSite {
    BlockSite {
        site: None,
        label: String::new(),
        stack: stack.iter().map(|s| (*s).to_owned()).collect(),
        samples: 10,
        allocated: estimate(bytes, 30, 8),
        at_peak: Some(estimate(bytes / 2, 20, 4)),
        never_freed: estimate(0, 0, 0),
        lifetime_p50_ns: None,
        short_lived: 0.0,
        freed_elsewhere: 0.0,
        quarters: 0,
        idle,
    }
}

fn caller(label: &str, ns: u64) -> SiteFigures {
    SiteFigures {
        site: None,
        label: label.into(),
        operations: vec![],
        count: 50,
        requested_bytes: Bytes(0),
        freed_bytes: Bytes(0),
        timed: 10,
        time_ns: (ns > 0).then_some(Duration(ns)),
        time_error: (ns > 0).then_some(0.1),
        time_unknown: (ns == 0).then_some("none was timed"),
        cpu_ns: None,
        cpu_error: None,
        syscalls: 0,
        syscall_ns: Duration(0),
        faults: 0,
    }
}

/// A run of so many seconds with two call stacks, and a third that the list leaves out.
pub(crate) fn judgement(seconds: u64, idle: [Option<Idle>; 2]) -> Judgement {
    let [first, second] = idle;
    let made = made::judgement();
    Judgement {
        trace: About {
            duration_ns: Duration(seconds * 1_000_000_000),
            ..made.trace
        },
        operations: BTreeMap::from([(
            "malloc".to_owned(),
            OperationFigures {
                count: 120,
                ..OperationFigures::default()
            },
        )]),
        time: Times {
            operations_ns: Some(Duration(1000)),
            ..Times::default()
        },
        sites: vec![caller("push", 700), caller("pop", 0)],
        blocks: Blocks {
            sample_bytes: Bytes(1),
            samples: 21,
            allocated: estimate(1000, 50, 20),
            peak_ns: Some(Duration(0)),
            at_peak: Some(estimate(450, 30, 10)),
            never_freed: estimate(0, 0, 0),
            sites: vec![
                block_site(&["inner", "outer"], 600, first),
                block_site(&[], 300, second),
            ],
        },
        ..made
    }
}

fn weights(of: &Judgement, measure: Measure) -> Vec<(String, u64, Option<u64>)> {
    let graph = flame_graph(of, measure).unwrap();
    let row = |s: &FlameStack| (graph.frames(of, s).join(";"), s.weight, s.error);
    graph.stacks.iter().map(row).collect()
}

fn row(stack: &str, weight: u64, error: Option<u64>) -> (String, u64, Option<u64>) {
    (stack.to_owned(), weight, error)
}

#[test]
fn weights_and_what_is_left_out_add_up_to_the_whole() {
    let of = judgement(5, [None; 2]);
    assert_eq!(
        weights(&of, Measure::Allocated),
        [
            row("outer;inner", 600, Some(30)),
            row("(unknown caller)", 300, Some(30)),
            // 50² - 30² - 30² is 700.
            row("(other call stacks)", 100, Some(26)),
        ]
    );
    assert_eq!(
        weights(&of, Measure::Count),
        [
            row("outer;inner", 8, Some(4)),
            row("(unknown caller)", 8, Some(4)),
            row("(other call stacks)", 4, Some(8)),
        ]
    );
    // What the list has of the peak is all of it.
    assert_eq!(weights(&of, Measure::Peak).len(), 2);
    assert_eq!(weights(&of, Measure::NeverFreed), []);
}

#[test]
fn time_is_of_callers() {
    let of = judgement(5, [None; 2]);
    assert_eq!(
        weights(&of, Measure::Time),
        [
            row("push", 700, Some(70)),
            row("(other callers)", 300, None)
        ]
    );
    // Where the list has all callers nothing else is said, though their times are rounded.
    let mut all = of.clone();
    all.operations.get_mut("malloc").unwrap().count = 100;
    all.sites[1].time_ns = Some(Duration(0));
    all.sites[1].time_error = Some(0.0);
    assert_eq!(weights(&all, Measure::Time), [row("push", 700, Some(70))]);
    // The time of callers of whom it is not known is a part of the whole.
    all.sites[1].time_ns = None;
    assert_eq!(weights(&all, Measure::Time), weights(&of, Measure::Time));
}

#[test]
fn idle_is_what_was_not_touched_for_longest() {
    let old = Idle {
        ten_seconds: Bytes(4),
        longer: Bytes(10),
        never: Bytes(1),
        ..Idle::default()
    };
    let recent = Idle {
        ten_seconds: Bytes(7),
        ..Idle::default()
    };
    let long = judgement(100, [Some(old), Some(recent)]);
    let graph = flame_graph(&long, Measure::Idle).unwrap();
    assert_eq!(graph.idle_for_ns, Some(Duration(60_000_000_000)));
    assert_eq!(
        weights(&long, Measure::Idle),
        [row("outer;inner", 11, None)]
    );
    // Nothing is idle for a minute in a run of five seconds.
    let short = judgement(5, [Some(recent), Some(recent)]);
    let graph = flame_graph(&short, Measure::Idle).unwrap();
    assert_eq!(graph.idle_for_ns, Some(Duration(1_000_000_000)));
    assert_eq!(weights(&short, Measure::Idle).len(), 2);
}

#[test]
fn what_was_not_recorded_has_no_graph() {
    let mut of = judgement(5, [None; 2]);
    assert_eq!(flame_graph(&of, Measure::Idle), None);
    // When most lived is not known where operations were not counted; what was never freed is.
    of.blocks.at_peak = None;
    assert_eq!(flame_graph(&of, Measure::Peak), None);
    assert!(flame_graph(&of, Measure::NeverFreed).is_some());
    of.blocks = Blocks::default();
    assert_eq!(flame_graph(&of, Measure::Peak), None);
    assert!(flame_graph(&of, Measure::Time).is_some());
}
