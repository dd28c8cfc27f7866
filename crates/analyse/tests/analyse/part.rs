//! Figures of a part of a trace are those of a trace that has no more.

use varve_analyse::{AnalyseOptions, Analysis, Known};
use varve_model::{Interval, ObjectId, ObjectKind, Pages, Pid, Tid, Time};
use varve_trace::Selection;
use varve_trace::tables::ProcessRow;

use crate::common::{Made, STEP, fault, mapping, object, process, sample, thread, touch};

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
fn a_selection_without_heap_objects_says_that_they_are_absent() {
    let absent = |a: &Analysis| {
        let mut unknown = a.unknown.iter();
        unknown
            .find(|s| s.starts_with("Objects within the heap: they are absent here"))
            .cloned()
    };
    assert_eq!(absent(&made().analyse()), None);
    let of_pid = |pid: u32, process: Option<ProcessRow>| {
        let mut made = made();
        made.objects
            .iter_mut()
            .for_each(|o| o.kind = ObjectKind::Heap);
        if let Some(process) = process {
            made.processes[1] = process;
        }
        made.analyse_part(Selection {
            pids: Some([Pid(pid)].into()),
            description: format!("process {pid}"),
            ..Selection::default()
        })
    };
    // That process has some.
    assert_eq!(absent(&of_pid(1, None)), None);
    let said = absent(&of_pid(2, None)).expect("no object of it");
    assert!(said.contains("none of what is chosen"), "{said}");
    let without = ProcessRow {
        objects: Some("kernel".into()),
        objects_why: Some("static".into()),
        ..process(2, 1)
    };
    let said = absent(&of_pid(2, Some(without))).expect("no object of it");
    assert!(
        said.ends_with("reported nothing of the chosen processes: it loads no libraries."),
        "{said}"
    );
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

/// A list that `realloc` moved is one object, called as it was first; whoever asks for it has both of its places.
#[test]
fn an_object_that_moved() {
    let mut made = Made::new(4);
    let (mut list, mut moved) = (object(1, 10_000, 16), object(2, 20_000, 32));
    (list.name, moved.name) = ("list".into(), "longer list".into());
    (list.died_ns, moved.born_ns) = (Some(Time(2 * STEP)), Time(2 * STEP));
    moved.continues = Some(list.object);
    made.objects = vec![list, moved, object(3, 30_000, 8)];
    made.touches = vec![
        touch(0, 10_000, 16),
        touch(0, 30_000, 8),
        touch(3, 20_000, 32),
    ];
    let part = made.analyse_named(|name| name == "list").unwrap();
    assert_eq!(part.footprint.page_touches.or_zero(), 48);
    assert_eq!(part.objects.len(), 1);
    assert_eq!(part.objects[0].name, "list");
    assert!(made.analyse_named(|name| name == "longer list").is_none());
    // Any of its rows stands for the whole of it.
    let part = made.analyse_part(Selection {
        objects: Some([ObjectId(2)].into()),
        ..Selection::default()
    });
    assert_eq!(part.footprint.page_touches.or_zero(), 48);
    assert_eq!(part.groups.len(), 1);
}

/// A size that cannot be is cut in a part too: what lies behind is not the object's.
#[test]
fn an_object_that_is_said_to_be_too_large() {
    let mut made = Made::new(2);
    made.objects = vec![object(1, 10_000, 4096)];
    made.mappings = vec![mapping(1, 10_000, 600, "rw-p", 0, 0)];
    made.touches = vec![touch(0, 10_000, 2000)];
    let part = made.analyse_named(|name| name == "o1").unwrap();
    assert_eq!(part.footprint.touched_pages.or_zero(), Pages(600));
    assert_eq!(part.unowned.or_zero().page_touches, 0);
}

/// Objects beyond those that are listed count where they are chosen.
#[test]
fn more_objects_than_are_listed() {
    let mut made = Made::new(2);
    made.objects = (0..30)
        .map(|i| object(i, 10_000 + 10 * i, 1 + i % 2))
        .collect();
    for (i, row) in made.objects.iter_mut().enumerate() {
        row.name = ["even", "odd"][i % 2].into();
    }
    made.touches = vec![touch(0, 10_000, 400)];
    let options = AnalyseOptions {
        max_objects: 10,
        ..AnalyseOptions::default()
    };
    let part = made.analyse_named_with(&options, |name| name == "even");
    let part = part.unwrap();
    assert_eq!((part.objects.len(), part.omitted.objects), (10, 5));
    assert_eq!(part.footprint.touched_pages.or_zero(), Pages(15));
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
