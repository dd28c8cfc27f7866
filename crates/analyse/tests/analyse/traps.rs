//! What trapped accesses say of who shares what, and what they do not.

use crate::common::{Made, STEP, fault, object, sample, thread, touch};
use varve_analyse::{Analysis, BlockKind, FindingId, ObjectSharing, SharingClass, SharingSource};
use varve_analyse::{SharingUse, WeightUnit};
use varve_model::{Address, Backend, Capability, ImportFormat, ObjectId, SampleSource, Tid, Time};
use varve_trace::tables::FaultRow;
use varve_trace::{SamplesNote, TrapsNote};

const FIRST: u64 = 10_000;
const PAGES: u64 = 64;
const INTERVALS: u32 = 40;

/// Of the backend that traps: two objects of 64 pages.
fn made(faults: Vec<FaultRow>) -> Made {
    let mut made = Made::new(INTERVALS);
    made.manifest.backend = Backend::Fault;
    made.manifest.capabilities.insert(Capability::Traps);
    made.manifest.traps = Some(TrapsNote::default());
    made.objects = vec![object(1, FIRST, PAGES), object(2, FIRST + 2 * PAGES, PAGES)];
    let all = (0..INTERVALS)
        .flat_map(|i| [FIRST, FIRST + 2 * PAGES].map(|first| touch(i, first, PAGES as u32)));
    made.touches = all.collect();
    made.threads = vec![thread(1), thread(2)];
    made.faults = faults;
    made
}

/// The first access to a page in an interval.
fn first(i: u32, tid: u32, page: u64, offset: u64, write: bool) -> FaultRow {
    FaultRow {
        address: Address((FIRST + page) * 4096 + offset),
        write: Some(write),
        ..fault(i, 0, tid)
    }
}

fn sharing(found: &Analysis) -> &SharingUse {
    found.sharing.as_ref().expect("accesses were trapped")
}

fn shared(found: &Analysis, id: u64) -> &ObjectSharing {
    let all = &sharing(found).objects;
    all.iter().find(|o| o.object == ObjectId(id)).unwrap()
}

fn title(found: &Analysis, id: FindingId) -> Option<&str> {
    let finding = found.findings.iter().find(|f| f.id == id)?;
    Some(&finding.title)
}

/// Thread 1 is first at all pages of both objects in even intervals, thread 2 at those of the first in odd ones.
fn by_turns(write: impl Fn(u32) -> bool) -> Vec<FaultRow> {
    let all = (0..INTERVALS).flat_map(|i| (0..PAGES).map(move |p| (i, p)));
    all.flat_map(|(i, p)| {
        let tid = 1 + i % 2;
        let own = (tid == 1).then(|| first(i, 1, 2 * PAGES + p, 0, true));
        [first(i, tid, p, 0, write(tid))].into_iter().chain(own)
    })
    .collect()
}

#[test]
fn different_threads_in_different_intervals_share_and_one_proves_nothing() {
    let found = made(by_turns(|_| true)).analyse();
    let all = sharing(&found);
    assert_eq!(
        (all.source, all.unit),
        (SharingSource::Traps, WeightUnit::FirstAccesses)
    );
    let events = u64::from(INTERVALS) * PAGES * 3 / 2;
    assert_eq!((all.events, all.total), (events, events));
    for limit in [
        "first access to a page in an interval",
        "neither times nor counts",
    ] {
        assert!(all.weight.contains(limit), "{}", all.weight);
    }
    let both = shared(&found, 1);
    assert_eq!(both.class, Some(SharingClass::ManyWriters));
    let by_thread: Vec<(Tid, u64)> = both.threads.iter().map(|t| (t.tid, t.weight)).collect();
    let half = u64::from(INTERVALS) * PAGES / 2;
    assert_eq!(by_thread, [(Tid(1), half), (Tid(2), half)]);
    // Thread 2 may have used it later in an interval.
    let one = shared(&found, 2);
    assert_eq!((one.threads.len(), one.class), (1, None));
    for o in [both, one] {
        assert_eq!((&o.never_touched_by, &o.never_written_by), (&None, &None));
        assert_eq!(o.own_share, None);
    }
    assert!(
        found.unknown.iter().any(|u| u.contains("trapped accesses")),
        "{:?}",
        found.unknown
    );
    // Who read first may have written later.
    let of = |write: fn(u32) -> bool| shared(&made(by_turns(write)).analyse(), 1).clone();
    let reads = of(|_| false);
    assert_eq!(
        (reads.class, reads.writes),
        (Some(SharingClass::Shared), Some(0))
    );
    assert_eq!(of(|tid| tid == 1).class, Some(SharingClass::Shared));
}

#[test]
fn an_interval_and_a_page_have_one_first_access() {
    let at = |i: u32, tid, after: u64| FaultRow {
        time_ns: Time(u64::from(i) * STEP + after),
        ..first(i, tid, 3, 0, false)
    };
    // Both met in the first interval; the next one is another.
    let found = made(vec![at(0, 1, 10), at(0, 2, 11), at(0, 1, 12), at(1, 2, 10)]).analyse();
    let of: Vec<(Tid, u64)> = shared(&found, 1)
        .threads
        .iter()
        .map(|t| (t.tid, t.events))
        .collect();
    assert_eq!(of, [(Tid(1), 1), (Tid(2), 1)]);
    // Outside of all objects there is a thread, and no object.
    let nowhere = made(vec![first(0, 1, 5000, 0, true)]).analyse();
    let all = sharing(&nowhere);
    assert_eq!((all.events, all.objects.len()), (1, 0));
}

#[test]
fn what_advice_needs_more_than_first_accesses_is_not_given() {
    let found = made(by_turns(|_| false)).analyse();
    for id in [
        FindingId::Replicate,
        FindingId::Interleave,
        FindingId::ParallelFirstTouch,
        FindingId::SplitHotCold,
        FindingId::TrueSharing,
    ] {
        assert_eq!(title(&found, id), None);
    }
}

#[test]
fn pages_and_lines_that_threads_meet_in_are_possible_false_sharing() {
    let with = |apart: u64, write: bool| {
        let turns = (0..INTERVALS).flat_map(|i| (0..PAGES).map(move |p| (i, p)));
        let rows = turns.map(|(i, p)| {
            let tid = 1 + i % 2;
            first(i, tid, p, u64::from(i % 2) * apart, write)
        });
        made(rows.collect()).analyse()
    };
    let pages = with(2048, true);
    let one = title(&pages, FindingId::PageFalseSharing).expect("two halves");
    assert!(
        one.contains("may hold") && one.contains("100.0 % of the first"),
        "{one}"
    );
    assert!(!one.contains('±'), "no sample: {one}");
    assert_eq!(sharing(&pages).pages[0].share_error, 0.0);
    assert_eq!(sharing(&pages).lines, []);
    let lines = with(32, true);
    let one = title(&lines, FindingId::FalseSharing).expect("two places in a line");
    assert!(
        one.starts_with("Possible false sharing: 64 cache lines"),
        "{one}"
    );
    let kinds: Vec<BlockKind> = sharing(&lines).lines.iter().map(|b| b.kind).collect();
    assert_eq!(kinds, [BlockKind::FalseSharing; PAGES as usize]);
    // Sizes are not known: 8 bytes further may be another number or the same.
    for (apart, write) in [(8, true), (0, true), (2048, false)] {
        let silent = with(apart, write);
        assert_eq!(sharing(&silent).lines, [], "{apart}");
        assert_eq!(title(&silent, FindingId::FalseSharing), None);
        assert_eq!(title(&silent, FindingId::TrueSharing), None);
        assert_eq!(title(&silent, FindingId::PageFalseSharing), None);
    }
}

#[test]
fn samples_come_first_where_they_know_an_access() {
    let mut made = made(by_turns(|_| true));
    made.manifest.samples = Some(SamplesNote::new(SampleSource::CpuClock, 1000));
    made.samples = vec![sample(1, 1, 1, FIRST * 4096, true)];
    let source = |made: &Made| sharing(&made.analyse()).source;
    assert_eq!(source(&made), SharingSource::Samples);
    for row in &mut made.samples {
        (row.address, row.object, row.write) = (None, None, None);
    }
    assert_eq!(source(&made), SharingSource::Traps);
    // Without traps, page faults are no trapped accesses.
    made.samples.clear();
    made.manifest.capabilities.remove(&Capability::Traps);
    assert_eq!(source(&made), SharingSource::Faults);
}

#[test]
fn a_budget_is_reported() {
    let mut made = made(by_turns(|_| true));
    assert!(!sharing(&made.analyse()).weight.contains("at random"));
    made.manifest.traps = Some(TrapsNote {
        budget: Some(0.05),
        sampling_rate: 0.25,
        ..TrapsNote::default()
    });
    let found = made.analyse();
    let weight = &sharing(&found).weight;
    assert!(
        weight.contains("25.0 % of the pages were trapped"),
        "{weight}"
    );
}

#[test]
fn what_moca_trapped_is_no_sample_of_all_accesses() {
    let mut made = made(vec![]);
    made.manifest.backend = Backend::Import(ImportFormat::Moca);
    made.manifest.capabilities.remove(&Capability::Faults);
    made.manifest.traps = None;
    made.samples = (0..100)
        .map(|i| {
            let mut row = sample(i, 1, 1, FIRST * 4096, false);
            (row.source, row.weight_ns) = (SampleSource::Moca, None);
            row
        })
        .collect();
    let found = made.analyse();
    assert_eq!(sharing(&found).source, SharingSource::Traps);
    assert_eq!(shared(&found, 1).class, None);
    assert_eq!(shared(&found, 1).never_touched_by, None);
}
