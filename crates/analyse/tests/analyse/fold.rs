//! The fold against a model that keeps a set of pages for each interval.

use std::collections::{BTreeMap, BTreeSet};

use crate::common::{Made, STEP, fault, object, touch, touched};
use proptest::prelude::*;
use varve_analyse::{AnalyseOptions, Known};
use varve_model::{Address, Bytes, ObjectId, ObjectKind, Pages, Pid, Time, TouchSource};
use varve_trace::TraceError;
use varve_trace::tables::ObjectRow;

const INTERVALS: u32 = 12;

fn some_touches() -> impl Strategy<Value = Vec<(u32, u32, u64, u32, bool)>> {
    // Around a chunk's border, in two processes, often overlapping.
    let one = (
        0..INTERVALS,
        1_u32..3,
        500_u64..1060,
        1_u32..90,
        any::<bool>(),
    );
    prop::collection::vec(one, 0..80)
}

/// Objects as pages and intervals of birth and death, on two layers, overlapping as they like.
fn some_objects() -> impl Strategy<Value = Vec<ObjectRow>> {
    let one = (
        490_u64..1050,
        1_u64..120,
        0..INTERVALS,
        0..INTERVALS,
        any::<bool>(),
        1_u32..3,
    );
    prop::collection::vec(one, 0..9).prop_map(|list| {
        let row =
            |(id, (page, pages, a, b, inner, pid)): (u64, (u64, u64, u32, u32, bool, u32))| {
                let mut row = object(id, page, pages);
                row.pid = Pid(pid);
                // Births and deaths lie in the middle of intervals.
                row.born_ns = Time(u64::from(a.min(b)) * STEP + STEP / 2);
                row.died_ns = (a != b).then_some(Time(u64::from(a.max(b)) * STEP + STEP / 2));
                row.layer = if inner { 5 } else { 2 };
                row
            };
        (0..).zip(list).map(row).collect()
    })
}

/// The objects that a page belongs to in an interval: the innermost of those that live at any moment of it.
fn owners(objects: &[ObjectRow], pid: u32, page: u64, i: u32) -> Vec<usize> {
    let (from, to) = (u64::from(i) * STEP, (u64::from(i) + 1) * STEP);
    let lives = |o: &ObjectRow| {
        let first = o.address.0 / 4096;
        o.pid.0 == pid
            && (first..first + o.bytes.0 / 4096).contains(&page)
            && o.born_ns.0 < to
            && o.died_ns.is_none_or(|d| d.0 > from)
    };
    let found: Vec<usize> = (0..objects.len()).filter(|&i| lives(&objects[i])).collect();
    let top = found.iter().map(|&i| objects[i].layer).max();
    found
        .into_iter()
        .filter(|&i| Some(objects[i].layer) == top)
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn agrees_with_sets(mut list in some_touches(), objects in some_objects()) {
        list.sort_by_key(|t| t.0);
        let mut made = Made::new(INTERVALS);
        let mut sets: Vec<BTreeSet<(u32, u64)>> = vec![BTreeSet::new(); INTERVALS as usize];
        for &(i, pid, page, pages, vanished) in &list {
            let mut row = touch(i, page, pages);
            row.pid = Pid(pid);
            if vanished {
                row.source = TouchSource::Vanish;
            }
            made.touches.push(row);
            sets[i as usize].extend((page..page + u64::from(pages)).map(|p| (pid, p)));
        }
        made.objects = objects.clone();
        let found = made.analyse();

        let mut counts: BTreeMap<(u32, u64), u64> = BTreeMap::new();
        let mut by_object: BTreeMap<(usize, u64), u64> = BTreeMap::new();
        let mut marks: BTreeMap<usize, BTreeSet<u32>> = BTreeMap::new();
        let (mut nobody, mut shared) = (BTreeMap::new(), BTreeMap::new());
        for (i, set) in (0..).zip(&sets) {
            for &(pid, page) in set {
                *counts.entry((pid, page)).or_default() += 1;
                let owners = owners(&objects, pid, page, i);
                for &owner in &owners {
                    *by_object.entry((owner, page)).or_default() += 1;
                    marks.entry(owner).or_default().insert(i);
                }
                match owners.len() {
                    0 => *nobody.entry((pid, page)).or_default() += 1,
                    1 => (),
                    _ => *shared.entry((pid, page)).or_default() += 1,
                }
            }
        }
        let sizes: Vec<u64> = sets.iter().map(|s| s.len() as u64).collect();
        prop_assert_eq!(found.working_set.items().iter().map(|w| w.pages.0).collect::<Vec<_>>(), sizes.clone());
        prop_assert_eq!(found.footprint.touched_pages.or_zero(), Pages(counts.len() as u64));
        prop_assert_eq!(found.footprint.page_touches.or_zero(), sizes.iter().sum::<u64>());
        let times = |n: std::ops::RangeInclusive<u64>| counts.values().filter(|c| n.contains(c)).count() as u64;
        prop_assert_eq!(found.reuse.or_zero().once.0, times(1..=1));
        prop_assert_eq!(found.reuse.or_zero().twice.0, times(2..=2));
        prop_assert_eq!(found.reuse.or_zero().more.0, times(3..=u64::MAX));
        let sum = |m: &BTreeMap<(u32, u64), u64>| (m.len() as u64, m.values().sum::<u64>());
        prop_assert_eq!((found.unowned.or_zero().touched_pages.0, found.unowned.or_zero().page_touches), sum(&nobody));
        prop_assert_eq!((found.shared.or_zero().touched_pages.0, found.shared.or_zero().page_touches), sum(&shared));
        prop_assert_eq!(found.objects.len(), objects.len());
        for o in &found.objects {
            let at = o.object.0 as usize;
            let mine: Vec<u64> = by_object.iter().filter(|((i, _), _)| *i == at).map(|(_, c)| *c).collect();
            let times = |n: u64| mine.iter().filter(|c| (**c).min(3) == n).count() as u64;
            prop_assert_eq!(touched(&o.usage).touched_pages.0, mine.len() as u64, "{:?}", o);
            prop_assert_eq!(touched(&o.usage).page_touches, mine.iter().sum::<u64>());
            prop_assert_eq!([touched(&o.usage).reuse.once.0, touched(&o.usage).reuse.twice.0, touched(&o.usage).reuse.more.0], [times(1), times(2), times(3)]);
            let intervals = marks.get(&at);
            prop_assert_eq!(touched(&o.usage).intervals_touched, intervals.map_or(0, |m| m.len() as u64));
            let end = |i: Option<&u32>| i.map(|i| Time((u64::from(*i) + 1) * STEP - 1000));
            prop_assert_eq!(touched(&o.usage).first_touch_ns, end(intervals.and_then(|m| m.first())));
            prop_assert_eq!(touched(&o.usage).last_touch_ns, end(intervals.and_then(|m| m.last())));
        }
    }

    #[test]
    fn whatever_the_rows_say_it_ends(
        rows in prop::collection::vec((any::<u32>(), any::<u32>(), any::<u64>(), any::<u32>()), 0..30),
        things in prop::collection::vec((any::<u64>(), any::<u64>(), any::<u64>(), any::<Option<u64>>(), any::<u32>()), 0..12),
        gaps in prop::collection::vec((0_u32..9, any::<u64>(), any::<u64>()), 0..9),
        held in prop_oneof![Just(0), any::<u64>(), Just(u64::MAX)],
    ) {
        let mut made = Made::new(0);
        made.intervals = gaps.iter().map(|&(i, start, end)| {
            let mut row = crate::common::interval(i);
            (row.start_ns, row.end_ns, row.resident_pages) = (Time(start), Time(end), u64::MAX);
            (row.held_ns.0, row.recorder_cpu_ns.0) = (held, u64::MAX);
            row
        }).collect();
        for &(i, pid, page, pages) in &rows {
            let mut row = touch(i % 12, page >> (page % 64), pages >> (15 + pages % 17));
            row.pid = Pid(pid % 3);
            row.page_bytes = pages;
            made.touches.push(row);
            made.faults.push(fault(i % 12, page >> 12, pid));
        }
        made.objects = (0..).zip(&things).map(|(id, &(address, bytes, born, died, layer))| {
            let mut row = object(id, 0, 1);
            (row.address, row.bytes) = (Address(address), Bytes(bytes));
            (row.born_ns, row.died_ns, row.layer) = (Time(born), died.map(Time), layer);
            row
        }).collect();
        match made.try_analyse(&AnalyseOptions::default()) {
            Ok(_) => {}
            // The one thing that no rows can say.
            Err(TraceError::BadTable { message, .. }) => {
                prop_assert!(held > 0 && message.contains("was held for longer"), "{}", message);
            }
            Err(other) => prop_assert!(false, "{}", other),
        }
    }
}

#[test]
fn runs_beyond_the_address_space_are_stray() {
    let mut made = Made::new(2);
    made.touches = vec![touch(0, 1 << 60, 9), touch(1, 7, 1)];
    let found = made.analyse();
    assert_eq!(found.footprint.touched_pages.or_zero(), Pages(1));
    assert!(found.trace.stray_rows.or_zero() > 0);
}

/// Else its pages would count twice in the working set, and once in what was touched.
#[test]
fn an_interval_that_comes_again_is_out_of_order() {
    let mut made = Made::new(3);
    made.touches = vec![
        touch(2, 10, 5),
        touch(0, 20, 1),
        touch(2, 12, 1),
        touch(2, 30, 1),
    ];
    let found = made.analyse();
    assert_eq!(found.footprint.touched_pages.or_zero(), Pages(7));
    let working_set: Vec<u64> = found
        .working_set
        .items()
        .iter()
        .map(|w| w.pages.0)
        .collect();
    assert_eq!(working_set, [0, 0, 5]);
}

#[test]
fn rows_out_of_order_are_counted_and_said() {
    let mut made = Made::new(3);
    made.touches = vec![touch(2, 10, 1), touch(0, 20, 1), touch(9, 30, 1)];
    let found = made.analyse();
    assert_eq!(found.footprint.touched_pages.or_zero(), Pages(3));
    assert_eq!(found.trace.stray_rows, Known::Exact(2));
    assert_eq!(
        found
            .working_set
            .items()
            .iter()
            .map(|w| w.pages.0)
            .collect::<Vec<_>>(),
        [0, 0, 1]
    );
    assert!(
        found.unknown.iter().any(|s| s.contains("2 rows")),
        "{:?}",
        found.unknown
    );
}

#[test]
fn an_interval_that_comes_again_counts_once() {
    let mut made = Made::new(1);
    // Between its rows stand rows of an interval that the trace does not have.
    made.touches = vec![touch(0, 10, 4), touch(5, 30, 1), touch(0, 12, 4)];
    let found = made.analyse();
    assert_eq!(found.working_set.items()[0].pages, Pages(4));
    assert_eq!(found.footprint.touched_pages.or_zero(), Pages(7));
    assert_eq!(found.trace.stray_rows, Known::Exact(2));
}

#[test]
fn memory_of_the_recorder_is_kept_apart() {
    let mut made = Made::new(2);
    made.objects = vec![object(1, 10, 4), object(2, 14, 4)];
    made.objects[1].kind = ObjectKind::Recorder;
    made.touches = vec![touch(0, 10, 8), touch(1, 12, 3)];
    let found = made.analyse();
    assert_eq!(found.footprint.touched_pages.or_zero(), Pages(4));
    assert_eq!(
        found
            .working_set
            .items()
            .iter()
            .map(|w| w.pages.0)
            .collect::<Vec<_>>(),
        [4, 2]
    );
    assert_eq!(
        (
            found.own_memory.or_zero().touched_pages,
            found.own_memory.or_zero().page_touches
        ),
        (Pages(4), 5)
    );
    assert_eq!(found.objects.len(), 1);
}

#[test]
fn first_touches_are_by_fault_and_life() {
    let mut made = Made::new(4);
    let mut first = object(1, 10, 4);
    first.died_ns = Some(Time(STEP + STEP / 2));
    let mut second = object(2, 10, 4);
    second.born_ns = Time(2 * STEP + 1);
    made.objects = vec![first, second];
    made.faults = vec![
        fault(0, 10, 7),
        fault(0, 11, 7),
        fault(0, 10, 8),
        fault(1, 12, 8),
        fault(2, 10, 9),
    ];
    made.touches = vec![touch(0, 10, 2), touch(1, 12, 1), touch(2, 10, 1)];
    let found = made.analyse();
    let of = |id: u64| {
        found
            .objects
            .iter()
            .find(|o| o.object == ObjectId(id))
            .unwrap()
    };
    let shares = |id: u64| {
        of(id)
            .threads
            .iter()
            .flatten()
            .map(|t| (t.tid.0, t.pages.0))
            .collect::<Vec<_>>()
    };
    assert_eq!(shares(1), [(7, 2), (8, 1)]);
    assert_eq!(shares(2), [(9, 1)]);
    assert_eq!(of(1).first_touch_tid.map(|t| t.0), Some(7));
    assert_eq!(found.footprint.faults.or_zero(), 5);
}

#[test]
fn writes_are_reported_where_they_are_known() {
    let mut made = Made::new(2);
    made.objects = vec![object(1, 10, 8)];
    made.touches = vec![touch(0, 10, 4), touch(1, 10, 8)];
    let written = |made: &Made| touched(&made.analyse().objects[0].usage).written_pages;
    assert_eq!(written(&made), None);
    made.touches[0].written = Some(true);
    made.touches[1].written = Some(false);
    assert_eq!(written(&made), Some(Pages(4)));
}
