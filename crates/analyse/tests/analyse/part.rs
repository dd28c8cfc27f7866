//! Figures of a part of a trace are those of a trace that has no more.

use varve_analyse::Known;
use varve_model::{Interval, ObjectId, Pages, Pid, Tid, Time};
use varve_trace::Selection;

use crate::common::{Made, STEP, fault, object, process, sample, thread, touch};

/// Two processes of one thread each; the first has two objects of 16 pages, of which one is touched in the first half only.
fn made() -> Made {
    let mut made = Made::new(40);
    made.objects = vec![object(1, 10_000, 16), object(2, 20_000, 16)];
    made.processes = vec![process(1, 0), process(2, 0)];
    made.threads = vec![thread(1), thread(2)];
    for i in 0..40 {
        made.touches.push(touch(i, 10_000, 16));
        if i < 20 {
            made.touches.push(touch(i, 20_000, 16));
        }
        let mut other = touch(i, 30_000, 8);
        other.pid = Pid(2);
        made.touches.push(other);
    }
    made.faults = vec![fault(0, 10_000, 1), fault(0, 20_000, 2)];
    made.samples = (0..100)
        .map(|at| {
            sample(
                at,
                1 + at as u32 % 2,
                1 + at % 2,
                10_000 * (1 + at % 2) * 4096,
                false,
            )
        })
        .collect();
    made
}

#[test]
fn all_of_it() {
    let all = made().analyse();
    assert_eq!(all.footprint.touched_pages.or_zero(), Pages(40));
    assert_eq!(all.trace.selected, None);
}

#[test]
fn a_process() {
    let part = made().analyse_part(Selection {
        pids: Some([Pid(2)].into()),
        description: "process 2".into(),
        ..Selection::default()
    });
    assert_eq!(part.footprint.touched_pages.or_zero(), Pages(8));
    assert_eq!(part.processes.len(), 1);
    assert!(part.objects.is_empty() && part.samples.is_none());
    assert_eq!(part.trace.selected.as_deref(), Some("process 2"));
}

#[test]
fn a_time() {
    let part = made().analyse_part(Selection {
        time: Some(Time(20 * STEP)..Time(30 * STEP)),
        intervals: Some(Interval(20)..Interval(30)),
        ..Selection::default()
    });
    assert_eq!(part.trace.intervals, Known::Exact(10));
    assert_eq!(part.footprint.touched_pages.or_zero(), Pages(24));
    assert_eq!(part.footprint.page_touches.or_zero(), 240);
    assert_eq!(part.footprint.faults.or_zero(), 0);
    assert_eq!(part.trace.stray_rows, Known::Exact(0));
}

#[test]
fn an_object() {
    let part = made().analyse_part(Selection {
        objects: Some([ObjectId(2)].into()),
        ..Selection::default()
    });
    assert_eq!(part.footprint.touched_pages.or_zero(), Pages(16));
    assert_eq!(part.footprint.page_touches.or_zero(), 20 * 16);
    assert_eq!(part.footprint.faults.or_zero(), 1);
    assert_eq!(part.objects.len(), 1);
    assert_eq!(part.groups.len(), 1);
    assert_eq!(part.samples.unwrap().all.samples, 50);
}

#[test]
fn a_thread() {
    let part = made().analyse_part(Selection {
        tids: Some([Tid(2)].into()),
        ..Selection::default()
    });
    assert_eq!(part.footprint.page_touches.or_zero(), 0);
    assert_eq!(part.footprint.faults.or_zero(), 1);
    assert_eq!(part.samples.unwrap().all.samples, 50);
}

/// What a part does not show may have happened outside of it.
#[test]
fn a_part_is_not_said_to_lack_what_the_whole_has() {
    let mut made = made();
    made.objects.push(object(3, 40_000, 4096));
    made.touches.insert(0, touch(0, 40_000, 4096));
    let untouched = |found: varve_analyse::Analysis| {
        let mut ids = found.findings.iter().map(|f| f.id);
        ids.any(|id| id == varve_analyse::FindingId::NeverTouched)
    };
    let later = Selection {
        time: Some(Time(10 * STEP)..Time(40 * STEP)),
        intervals: Some(Interval(10)..Interval(40)),
        ..Selection::default()
    };
    assert!(!untouched(made.analyse_part(later)));
    made.manifest
        .capabilities
        .remove(&varve_model::Capability::Touches);
    let of_thread = Selection {
        tids: Some([Tid(1)].into()),
        ..Selection::default()
    };
    assert!(!untouched(made.analyse_part(of_thread)));
}
