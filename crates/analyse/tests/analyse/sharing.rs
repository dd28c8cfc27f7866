//! Who shares what, and what is said of it, where it should be and where it should not.

use crate::common::{Made, count, fault, object, sample, thread, touch};
use varve_analyse::{
    Analysis, BlockKind, Finding, FindingId, ObjectSharing, SharingClass, SharingSource, WeightUnit,
};
use varve_model::{Backend, Capability, ImportFormat, ObjectId, SampleSource, Tid, Time};
use varve_trace::SamplesNote;

const FIRST: u64 = 10_000;
const PAGES: u64 = 2048;

fn finding(found: &Analysis, id: FindingId) -> Option<&Finding> {
    found.findings.iter().find(|f| f.id == id)
}

fn shared(found: &Analysis, id: u64) -> &ObjectSharing {
    let all = &found.sharing.as_ref().unwrap().objects;
    all.iter().find(|o| o.object == ObjectId(id)).unwrap()
}

/// Two threads and one object of 8 MiB, touched all over in every interval, first by thread 1.
fn two_threads() -> Made {
    let mut made = Made::new(40);
    made.manifest.samples = Some(SamplesNote::new(SampleSource::CpuClock, 1000));
    made.objects = vec![object(1, FIRST, PAGES)];
    made.touches = (0..40).map(|i| touch(i, FIRST, PAGES as u32)).collect();
    made.threads = vec![thread(1), thread(2)];
    made.faults = (0..PAGES).map(|p| fault(0, FIRST + p, 1)).collect();
    made
}

/// An address in a page of the object that wanders without a pattern, from a sequence number.
fn wander(i: u64, from: u64, pages: u64) -> u64 {
    let page = (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) % pages;
    (FIRST + from + page) * 4096 + i * 8 % 4096
}

#[test]
fn a_line_with_two_counters_is_falsely_shared() {
    let with = |second: u64, writes: bool| {
        let mut made = two_threads();
        // Three quarters of the samples are elsewhere.
        made.samples = (0..1000)
            .flat_map(|i| {
                let line = FIRST * 4096 + 640;
                let elsewhere =
                    move |n| sample(8 * i + n, 1, 1, wander(8 * i + n, 1, PAGES - 1), true);
                [
                    sample(8 * i, 1, 1, line, writes),
                    sample(8 * i + 1, 2, 1, line + second, writes),
                ]
                .into_iter()
                .chain((2..8).map(elsewhere))
            })
            .collect();
        made.analyse()
    };
    let found = with(8, true);
    let one = finding(&found, FindingId::FalseSharing).expect("it is false sharing");
    assert!(one.title.contains("25.0 % ± 0.5 %"), "{one:?}");
    assert!(one.evidence.contains("thread 1 at bytes 0-8"), "{one:?}");
    assert!(one.evidence.contains("thread 2 at bytes 8-16"), "{one:?}");
    assert!(one.evidence.contains("time"), "what the weight is: {one:?}");
    let line = &found.sharing.as_ref().unwrap().lines[0];
    assert_eq!((line.kind, line.events), (BlockKind::FalseSharing, 2000));
    // The standard error of a quarter of 8000 samples of equal weight.
    assert!((line.share_error - (0.25 * 0.75 / 8000_f64).sqrt()).abs() < 1e-9);
    assert!(finding(&found, FindingId::TrueSharing).is_none());

    let same = with(0, true);
    assert!(finding(&same, FindingId::TrueSharing).is_some());
    assert!(finding(&same, FindingId::FalseSharing).is_none());
    for (second, writes) in [(8, false), (64, true)] {
        let silent = with(second, writes);
        assert!(finding(&silent, FindingId::FalseSharing).is_none());
        assert!(finding(&silent, FindingId::TrueSharing).is_none());
    }
}

#[test]
fn few_samples_are_no_evidence_of_false_sharing() {
    // The line has 4 samples of each thread among thousands.
    let mut made = two_threads();
    made.samples = (0..2000)
        .map(|i| match i % 500 {
            0 => sample(i, 1, 1, FIRST * 4096, true),
            1 => sample(i, 2, 1, FIRST * 4096 + 8, true),
            _ => sample(i, 1, 1, wander(i, 1, 1000), true),
        })
        .collect();
    let found = made.analyse();
    assert!(finding(&found, FindingId::FalseSharing).is_none());
    assert!(found.sharing.unwrap().lines.is_empty());
}

#[test]
fn a_page_with_two_halves_is_falsely_shared() {
    let with = |apart: u64| {
        let mut made = two_threads();
        made.samples = (0..4000)
            .map(|i| {
                let (tid, half) = (1 + i % 2, i % 2 * apart);
                let at = FIRST * 4096 + half + i / 2 % 32 * 64;
                sample(i, tid as u32, 1, at, true)
            })
            .collect();
        made.analyse()
    };
    let found = with(2048);
    let one = finding(&found, FindingId::PageFalseSharing).expect("two halves");
    assert!(
        one.evidence.contains("0-2048") && one.evidence.contains("2048-4096"),
        "{one:?}"
    );
    assert!(finding(&with(0), FindingId::PageFalseSharing).is_none());
    assert!(finding(&with(4096), FindingId::PageFalseSharing).is_none());
}

#[test]
fn parts_of_their_own_ask_for_a_parallel_first_touch() {
    let with = |second: u64, first_by_both: bool| {
        let mut made = two_threads();
        made.samples = (0..4000)
            .map(|i| {
                let tid = 1 + i % 2;
                let from = (tid - 1) * second;
                sample(i, tid as u32, 1, wander(i, from, PAGES / 2), true)
            })
            .collect();
        if first_by_both {
            made.faults
                .iter_mut()
                .skip(1024)
                .for_each(|f| f.tid = Tid(2));
        }
        made.analyse()
    };
    let found = with(PAGES / 2, false);
    let one = finding(&found, FindingId::ParallelFirstTouch).expect("halves");
    assert!(
        one.title.contains("8 MiB were first touched by thread 1"),
        "{one:?}"
    );
    // More is known than by first touches alone.
    assert!(finding(&found, FindingId::SingleFirstTouch).is_none());
    assert!(finding(&found, FindingId::Interleave).is_none());
    let of = shared(&found, 1);
    assert!(of.own_share.unwrap() > 0.95);
    assert_eq!(of.class, Some(SharingClass::ManyWriters));
    assert_eq!(of.first_tid, Some(Tid(1)));
    assert_eq!(of.ranges.count, 64);
    assert!(of.ranges.cells.iter().all(|c| (c.range < 32)
        == (of.threads.iter().find(|t| t.tid == Tid(1)).unwrap().thread == c.thread)));
    assert!(finding(&with(PAGES / 2, true), FindingId::ParallelFirstTouch).is_none());
    assert!(finding(&with(0, false), FindingId::ParallelFirstTouch).is_none());
}

#[test]
fn what_all_threads_scan_is_interleaved_or_replicated() {
    let with = |writes: u64, second_pages: u64, samples: u64| {
        let mut made = two_threads();
        made.samples = (0..samples)
            .map(|i| {
                let tid = 1 + i % 2;
                let pages = if tid == 1 { PAGES } else { second_pages };
                sample(i, tid as u32, 1, wander(i, 0, pages), i % 100 < writes)
            })
            .collect();
        made.analyse()
    };
    let found = with(50, PAGES, 4000);
    let one = finding(&found, FindingId::Interleave).expect("both write all of it");
    assert!(
        one.title.contains("2 threads read and write all of 8 MiB"),
        "{one:?}"
    );
    assert!(finding(&found, FindingId::Replicate).is_none());
    let mut partly = two_threads();
    let pages = PAGES / 4 * 3;
    partly.touches = (0..40).map(|i| touch(i, FIRST, pages as u32)).collect();
    let samples =
        (0..4000).map(|i| sample(i, 1 + (i % 2) as u32, 1, wander(i, 0, pages), i % 2 == 0));
    partly.samples = samples.collect();
    let found = partly.analyse();
    let one = finding(&found, FindingId::Interleave).expect("both write what is touched");
    assert!(
        one.title
            .ends_with("all of what was touched, 6 MiB of 8 MiB"),
        "{one:?}"
    );
    let found = with(2, PAGES, 4000);
    assert!(finding(&found, FindingId::Replicate).is_some());
    assert!(finding(&found, FindingId::Interleave).is_none());
    for (second, samples) in [(PAGES / 2, 4000), (PAGES, 100)] {
        let silent = with(50, second, samples);
        assert!(
            finding(&silent, FindingId::Interleave).is_none(),
            "{second} {samples}"
        );
        assert!(finding(&silent, FindingId::Replicate).is_none());
    }
}

#[test]
fn hot_and_cold_parts_are_split() {
    let with = |hot: u64, samples: u64| {
        let mut made = two_threads();
        made.samples = (0..samples)
            .map(|i| {
                let pages = if i % 20 == 0 { PAGES } else { hot };
                sample(i, 1, 1, wander(i, 0, pages), false)
            })
            .collect();
        made.analyse()
    };
    let found = with(128, 4000);
    let one = finding(&found, FindingId::SplitHotCold).expect("95 % in a sixteenth");
    assert!(one.evidence.contains("± 0."), "sampling error: {one:?}");
    assert!(finding(&with(1500, 4000), FindingId::SplitHotCold).is_none());
    assert!(
        finding(&with(128, 300), FindingId::SplitHotCold).is_none(),
        "too few"
    );
}

#[test]
fn next_to_no_samples_say_next_to_nothing() {
    let of = |samples: u64| {
        let mut made = two_threads();
        made.samples = (0..samples)
            .map(|i| sample(i, 1, 1, FIRST * 4096 + i * 64, i % 2 == 0))
            .collect();
        made.analyse()
    };
    let one = of(1);
    assert!(!one.sharing.as_ref().unwrap().enough);
    assert_eq!(shared(&one, 1).class, Some(SharingClass::TooFew));
    assert!(shared(&one, 1).phases.is_empty());
    assert!(one.sharing.as_ref().unwrap().threads[0].phases.is_empty());
    let many = of(30);
    assert!(many.sharing.as_ref().unwrap().enough);
    assert_eq!(shared(&many, 1).class, Some(SharingClass::Private));
    // Two threads that were seen to write do write it, however few samples there are.
    let mut made = two_threads();
    made.samples = vec![
        sample(0, 1, 1, FIRST * 4096, true),
        sample(1, 2, 1, FIRST * 4096, true),
    ];
    let two = made.analyse();
    assert_eq!(shared(&two, 1).class, Some(SharingClass::ManyWriters));
}

#[test]
fn private_shared_and_never() {
    let mut made = two_threads();
    made.objects.push(object(2, 50_000, 16));
    made.threads.push(thread(3));
    made.samples = (0..600)
        .map(|i| match i % 3 {
            0 => sample(i, 1, 1, FIRST * 4096 + i * 64, i % 2 == 0),
            1 => sample(i, 2, 1, FIRST * 4096 + i * 64, false),
            _ => sample(i, 3, 2, 50_000 * 4096, false),
        })
        .collect();
    let found = made.analyse();
    let sharing = found.sharing.as_ref().unwrap();
    assert_eq!(
        (sharing.source, sharing.unit),
        (SharingSource::Samples, WeightUnit::Nanoseconds)
    );
    assert!(sharing.weight.contains("time"));
    let one = shared(&found, 1);
    assert_eq!(one.class, Some(SharingClass::OneWriter));
    assert_eq!(one.never_touched_by.as_deref(), Some(&[Tid(3)][..]));
    assert_eq!(one.never_written_by.as_deref(), Some(&[Tid(2)][..]));
    assert_eq!(one.reads.unwrap() + one.writes.unwrap(), one.weight);
    assert_eq!(one.weight, 400_000_000);
    let two = shared(&found, 2);
    assert_eq!(two.class, Some(SharingClass::Private));
    assert_eq!(two.never_touched_by.as_deref(), Some(&[Tid(1), Tid(2)][..]));
    // Of a thread that was hardly seen, nothing is said.
    made.samples
        .retain(|s| s.tid != Some(Tid(3)) || s.time_ns < Time(60_000_000));
    let found = made.analyse();
    assert_eq!(shared(&found, 1).never_touched_by.as_deref(), Some(&[][..]));
}

#[test]
fn small_objects_of_one_name_count_together() {
    let mut made = two_threads();
    for i in 0..50 {
        let mut small = object(100 + i, 50_000 + i, 1);
        small.name = "node".into();
        made.objects.push(small);
    }
    made.samples = (0..500)
        .map(|i| {
            sample(
                i,
                1 + i as u32 % 2,
                100 + i % 50,
                (50_000 + i % 50) * 4096,
                false,
            )
        })
        .collect();
    let found = made.analyse();
    let all = &found.sharing.as_ref().unwrap().objects;
    assert_eq!(all.len(), 1);
    assert_eq!(
        (all[0].objects, all[0].events, all[0].bytes.0),
        (50, 500, 50 * 4096)
    );
    assert_eq!((all[0].ranges.count, all[0].own_share), (0, None));
}

#[test]
fn flows_tell_who_came_when() {
    let mut made = two_threads();
    made.objects.push(object(2, 50_000, 16));
    // Thread 1 uses the first object for one second, then the second one; thread 2 the other way round.
    made.samples = (0..2000)
        .map(|i| {
            let tid = 1 + i % 2;
            let first = (i < 1000) == (tid == 1);
            match first {
                true => sample(i, tid as u32, 1, FIRST * 4096 + i * 64, false),
                false => sample(i, tid as u32, 2, 50_000 * 4096 + i * 8, false),
            }
        })
        .collect();
    let found = made.analyse();
    let sharing = found.sharing.as_ref().unwrap();
    for (tid, order) in [(1, [1, 2]), (2, [2, 1])] {
        let thread = sharing.threads.iter().find(|t| t.tid == Tid(tid)).unwrap();
        let objects: Vec<u64> = thread.phases.iter().map(|p| p.object.0).collect();
        assert_eq!(objects, order, "thread {tid}");
    }
    let one = shared(&found, 1);
    assert_eq!(one.phases.len(), 2);
    assert_eq!(one.phases[0].to_ns, one.phases[1].from_ns);
    assert!(one.phases[0].to_ns.0.abs_diff(1_000_000_000) <= sharing.axis.unwrap().bin_ns.0);
    let flow: u64 = one.flow.iter().map(|c| c.weight).sum();
    assert_eq!(flow, one.weight);
}

#[test]
fn counts_are_exact_and_page_faults_are_only_first_touches() {
    let mut made = two_threads();
    let faults = made.analyse();
    let sharing = faults.sharing.as_ref().unwrap();
    assert_eq!(
        (sharing.source, sharing.unit),
        (SharingSource::Faults, WeightUnit::Pages)
    );
    assert_eq!((sharing.events, sharing.total), (PAGES, PAGES));
    let one = shared(&faults, 1);
    assert_eq!(
        (one.class, &one.never_touched_by, one.writes),
        (None, &None, None)
    );

    made.counts = (0..PAGES)
        .flat_map(|p| [count(0, 1, FIRST + p, 10, 5), count(0, 2, FIRST + p, 7, 0)])
        .collect();
    let counted = made.analyse();
    let sharing = counted.sharing.as_ref().unwrap();
    assert_eq!(
        (sharing.source, sharing.unit),
        (SharingSource::Counts, WeightUnit::Accesses)
    );
    assert_eq!(sharing.total, 22 * PAGES);
    let one = shared(&counted, 1);
    assert_eq!((one.reads, one.writes), (Some(17 * PAGES), Some(5 * PAGES)));
    assert_eq!(one.pages.unwrap().one_writer.0, PAGES);
    assert_eq!(one.class, Some(SharingClass::OneWriter));
    assert_eq!(one.never_written_by.as_deref(), Some(&[Tid(2)][..]));
    assert!(counted.exact.is_none(), "counts are not exact");
    assert!(counted.unknown.iter().all(|u| !u.contains("which objects")));
    made.counts.iter_mut().for_each(|c| c.tid = None);
    let nobody = made.analyse();
    assert!(
        nobody.unknown.iter().any(|u| u.contains("which objects")),
        "{:?}",
        nobody.unknown
    );
    assert_eq!(counted.counts.unwrap().all.reads, 17 * PAGES);
}

#[test]
fn samples_alone_are_enough() {
    // As an importer writes them: no touches, no intervals, no sizes.
    let mut made = two_threads();
    made.intervals.clear();
    made.touches.clear();
    made.faults.clear();
    made.manifest.samples = None;
    made.manifest.backend = Backend::Import(ImportFormat::PerfData);
    made.manifest.capabilities =
        [Capability::Samples, Capability::Places, Capability::Lives].into();
    made.manifest.clock.end_ns = Time(4_000_000_000);
    made.samples = (0..2000)
        .map(|i| {
            let mut row = sample(i, 1 + (i % 2) as u32, 1, FIRST * 4096 + i % 2 * 32, true);
            (row.bytes, row.weight_ns, row.source) = (None, None, SampleSource::PerfMem);
            row
        })
        .collect();
    let found = made.analyse();
    assert_eq!(found.sharing.as_ref().unwrap().unit, WeightUnit::Samples);
    assert!(
        finding(&found, FindingId::FalseSharing).is_some(),
        "{:?}",
        found.findings
    );
    assert!(found.samples.as_ref().unwrap().all.time_ns.is_none());
    // Addresses 8 bytes apart may be one access of 16 bytes.
    for row in &mut made.samples {
        row.address = row
            .address
            .map(|a| varve_model::Address(a.0 / 32 % 2 * 8 + FIRST * 4096));
    }
    let found = made.analyse();
    assert!(finding(&found, FindingId::FalseSharing).is_none());
}
