//! Each rule speaks when it should, and is silent when it should be.

use crate::common::{Made, STEP, fault, object, thread, touch};
use varve_analyse::{AnalyseOptions, Analysis, Finding, FindingId, Known, Overview};
use varve_model::{
    Address, Bytes, Duration, Loss, LossPart, ObjectKind, Pid, SiteId, Time, TouchSource,
};
use varve_trace::IntervalChoice;
use varve_trace::tables::{Frame, ProcessRow, SiteRow};

fn has(found: &Analysis, id: FindingId) -> bool {
    found.findings.iter().any(|f| f.id == id)
}

/// Two objects of 4 MiB, touched all over in every interval, by one thread.
fn busy(intervals: u32) -> Made {
    let mut made = Made::new(intervals);
    made.objects = vec![object(1, 10_000, 1024), object(2, 20_000, 1024)];
    for i in 0..intervals {
        made.touches.push(touch(i, 10_000, 1024));
        made.touches.push(touch(i, 20_000, 1024));
    }
    made.threads = vec![thread(1)];
    made.faults = (0..1024).map(|p| fault(0, 10_000 + p, 1)).collect();
    made
}

#[test]
fn nothing_stands_out_of_a_busy_program() {
    let found = busy(300).analyse();
    assert!(found.findings.is_empty(), "{:?}", found.findings);
}

#[test]
fn incomplete_and_short() {
    let mut made = busy(300);
    made.manifest.losses.insert("ring_overflow".into(), 3);
    let found = made.analyse();
    assert!(has(&found, FindingId::Incomplete) && !found.trace.complete);
    assert!(!has(&found, FindingId::ShortRecording));
    assert!(has(&busy(5).analyse(), FindingId::ShortRecording));
}

/// What is said of a program that ended, whose intervals are few and took `step` nanoseconds each.
fn few_intervals(count: u32, step: u64, choice: IntervalChoice) -> Finding {
    let mut made = busy(count);
    made.manifest.target.exit_code = Some(0);
    made.manifest.options.interval = choice;
    for interval in &mut made.intervals {
        let at = |time: Time| Time(time.0.div_ceil(STEP) * step);
        (interval.start_ns, interval.end_ns) = (at(interval.start_ns), at(interval.end_ns));
    }
    let found = made.analyse().findings.into_iter();
    let mut short = found.filter(|f| f.id == FindingId::ShortRecording);
    short.next().expect("the intervals are few")
}

/// Shorter intervals are advised where nobody asked for their length, and only such as there can be.
#[test]
fn the_length_of_intervals_that_was_asked_for_stays() {
    let millis = |ms: u64| ms * 1_000_000;
    let asked = |ms: u64| {
        let choice = IntervalChoice::Fixed(Duration(millis(ms)));
        few_intervals(5, millis(ms), choice)
    };
    for ms in [50, 100, 1000] {
        let found = asked(ms);
        let enough = format!("give the program work for {} s", ms * 20 / 1000);
        assert_eq!(found.action, enough);
        assert!(!found.advice.contains("--interval"), "{found:?}");
    }
    // A backend's own length, with the time in which the program waited for trapped accesses and without.
    let own = |count: u32, ms: u64| {
        let choice = IntervalChoice::Default(Duration(millis(50)));
        few_intervals(count, millis(ms), choice).action
    };
    assert_eq!(own(10, 50), "record with --interval 20ms");
    assert_eq!(own(10, 2000), "record with --interval 20ms");
    assert_eq!(own(5, 2000), "record with --interval 10ms");
    // There are none that are shorter than 10 ms.
    assert_eq!(own(3, 2000), "give the program work for 40 s");
}

#[test]
fn only_a_program_of_a_moment_is_called_short() {
    let of = |step: u64| {
        let by_cost = IntervalChoice::Auto { overhead: 0.05 };
        few_intervals(5, step, by_cost)
    };
    let (brief, long) = (of(30_000_000), of(2_000_000_000));
    assert_eq!(brief.title, "The recording is short");
    assert_eq!(brief.action, "give the program more to do");
    // It was recorded to its end, and ran long enough: for ten seconds.
    assert_eq!(long.title, "The intervals are few");
    assert_eq!(long.action, "record with --interval 500ms");
}

#[test]
fn each_loss_has_its_own_remedy() {
    let incomplete = |losses: &[Loss]| {
        let found = busy_with(losses).analyse().findings.into_iter();
        found.into_iter().next().expect("it is incomplete")
    };
    for loss in Loss::ALL {
        let found = incomplete(&[*loss]);
        assert_eq!(found.id, FindingId::Incomplete);
        assert_eq!(found.action, loss.remedy());
        assert!(!found.advice.contains("longer --interval"), "{found:?}");
    }
    // Counts have no intervals of time.
    let counts = incomplete(&[Loss::UncountedAccesses, Loss::DamagedCounts]);
    assert!(!counts.advice.contains("--interval "), "{counts:?}");
    assert!(counts.advice.contains("; let nobody write"), "{counts:?}");
}

/// The busy program, recorded with 3 of each of these losses.
fn busy_with(losses: &[Loss]) -> Made {
    let mut made = busy(300);
    let counted = losses.iter().map(|l| (l.as_str().to_owned(), 3));
    made.manifest.losses.extend(counted);
    made.manifest.derive_completeness();
    made
}

#[test]
fn a_loss_makes_bounds_of_what_it_concerns_alone() {
    let is_bound = |known: &Known<Bytes>| matches!(known, Known::AtLeast(_));
    for &loss in Loss::ALL {
        let found = busy_with(&[loss]).analyse();
        assert!(!found.trace.complete, "{loss}");
        let overview = Overview::of(&found);
        let of_pages = loss.part() == LossPart::Pages;
        assert_eq!(is_bound(&overview.touched), of_pages, "{loss}");
        assert_eq!(is_bound(&overview.peak_working_set), of_pages, "{loss}");
        let of_objects = of_pages || loss.part() == LossPart::Objects;
        assert!(!overview.hot.is_empty());
        for hot in &overview.hot {
            assert_eq!(is_bound(&hot.touched), of_objects, "{loss}");
        }
        let said = &found.findings[0];
        assert_eq!(said.id, FindingId::Incomplete);
        let title = match loss.part() {
            LossPart::Pages => "some accesses may be missing",
            LossPart::Objects => {
                "objects or call stacks may be missing, while the pages are complete"
            }
            LossPart::Operations => {
                "allocator operations may be missing, while the pages are complete"
            }
        };
        assert_eq!(said.title, format!("The trace is incomplete: {title}"));
        let unseen = said.advice.contains("not as unused");
        assert_eq!(unseen, of_pages, "{}", said.advice);
    }
}

#[test]
fn never_touched_and_only_when_new() {
    let mut made = busy(300);
    made.objects.push(object(3, 40_000, 1024));
    let found = made.analyse();
    let finding = found
        .findings
        .iter()
        .find(|f| f.id == FindingId::NeverTouched)
        .unwrap();
    assert!(finding.title.starts_with("4 MiB"), "{}", finding.title);
    assert!(finding.evidence.contains("o3"), "{}", finding.evidence);
    assert_eq!(finding.action, "allocate less, or later");
    assert!(
        finding.advice.starts_with("Untouched pages"),
        "{}",
        finding.advice
    );
    assert!(!finding.advice.contains("first use"), "{}", finding.advice);
    // A mapping that holds a heap: its own pages do not follow from its size.
    made.objects.push(object(4, 40_000, 512));
    made.objects[2].layer = 2;
    made.objects[2].kind = varve_model::ObjectKind::Mapping;
    made.touches.insert(0, touch(0, 40_000, 512));
    let found = made.analyse();
    let finding = found
        .findings
        .iter()
        .find(|f| f.id == FindingId::NeverTouched)
        .unwrap();
    assert_eq!(finding.title, "2 MiB were touched only when they were new");
    assert!(!finding.evidence.contains("o3"), "{}", finding.evidence);
    // The advice is of what was found.
    assert_eq!(finding.action, "release it after its first use");
    assert!(!finding.advice.contains("Untouched"), "{}", finding.advice);
}

/// A heap that grows in steps, and a block that begins in one step and covers the next: whose pages are the block's.
#[test]
fn what_lies_below_a_block_is_not_untouched() {
    let mut made = busy(300);
    let mut step = object(3, 40_000, 1024);
    step.layer = 2;
    made.objects.push(step);
    let without = made.analyse();
    assert!(has(&without, FindingId::NeverTouched));
    made.objects.push(object(4, 39_900, 1124));
    for interval in 0..300 {
        made.touches.push(touch(interval, 39_900, 1124));
    }
    made.touches.sort_by_key(|t| t.interval);
    let found = made.analyse();
    assert!(!has(&found, FindingId::NeverTouched));
}

/// A program that maps 4 MiB and touches nothing of it, by a call of `mmap` in this module.
fn mapped_by(module: &str) -> Analysis {
    let mut made = busy(300);
    let mut mapped = object(3, 40_000, 1024);
    mapped.kind = ObjectKind::Mapping;
    made.objects.push(mapped);
    let frame = |module: &str| Frame {
        function: None,
        file: None,
        line: None,
        column: None,
        function_line: None,
        module: Some(module.into()),
        offset: None,
        address: Address(1),
    };
    made.sites.push(SiteRow {
        site: SiteId(0),
        label: "somewhere".into(),
        frames: vec![frame("libc.so.6"), frame(module), frame("prog")],
    });
    made.processes.push(ProcessRow {
        pid: Pid(1),
        parent: Pid(0),
        exe: "/usr/bin/prog".into(),
        file: None,
        command: "prog".into(),
        born_ns: Time(0),
        died_ns: None,
        exit_code: None,
        objects: None,
        objects_why: None,
        peak_resident_bytes: None,
        peak_resident_why: None,
    });
    made.analyse()
}

#[test]
fn the_reserve_of_a_library_is_no_news() {
    assert!(has(&mapped_by("prog"), FindingId::NeverTouched));
    assert!(!has(
        &mapped_by("/usr/lib/libruby.so.3"),
        FindingId::NeverTouched
    ));
}

#[test]
fn a_cold_tail_needs_time() {
    let cold = |intervals: u32| {
        let mut made = busy(intervals);
        made.touches
            .retain(|t| t.page.0 != 20_000 || t.interval.0 < intervals / 2);
        made.analyse()
    };
    let found = cold(300);
    let finding = found
        .findings
        .iter()
        .find(|f| f.id == FindingId::ColdTail)
        .unwrap();
    assert!(
        finding.title.starts_with("4 MiB") && finding.evidence.contains("o2"),
        "{finding:?}"
    );
    assert!(!has(&cold(100), FindingId::ColdTail), "5 s are too few");
}

/// Nobody can give back what is not there any more, whatever came in its place.
#[test]
fn what_has_ended_has_no_cold_tail() {
    let half = Time(150 * STEP);
    for is_replaced in [false, true] {
        let mut made = busy(300);
        made.objects[1].died_ns = Some(half);
        if is_replaced {
            let mut next = object(3, 20_000, 1024);
            next.born_ns = half;
            made.objects.push(next);
        } else {
            made.touches
                .retain(|t| t.page.0 != 20_000 || t.interval.0 < 150);
        }
        let found = made.analyse();
        assert!(!has(&found, FindingId::ColdTail));
        assert_eq!(found.tail.or_zero().cold_pages.0, 0);
        let ended = found.objects.iter().find(|o| o.name == "o2").unwrap();
        let touched = ended.usage.touched.get().unwrap();
        assert_eq!((touched.touched_pages.0, touched.cold_pages.0), (1024, 0));
    }
}

#[test]
fn one_thread_first_needs_another_thread() {
    let mut made = busy(300);
    assert!(!has(&made.analyse(), FindingId::SingleFirstTouch));
    made.threads.push(thread(2));
    let found = made.analyse();
    assert!(
        has(&found, FindingId::SingleFirstTouch),
        "{:?}",
        found.findings
    );
    // The other thread took a third.
    made.faults.iter_mut().step_by(3).for_each(|f| f.tid.0 = 2);
    assert!(!has(&made.analyse(), FindingId::SingleFirstTouch));
}

#[test]
fn all_threads_in_equal_shares() {
    let mut made = busy(300);
    made.threads.extend([thread(2), thread(3)]);
    for (i, f) in (0..).zip(&mut made.faults) {
        f.tid.0 = 1 + i % 3;
    }
    assert!(has(&made.analyse(), FindingId::ScannedByAll));
    for (i, f) in (0..).zip(&mut made.faults) {
        f.tid.0 = if i < 20 { 1 + i % 3 } else { 1 };
    }
    assert!(!has(&made.analyse(), FindingId::ScannedByAll));
}

#[test]
fn streamed_once() {
    let mut made = busy(300);
    made.objects.push(object(3, 40_000, 3000));
    made.touches
        .extend((0..300).map(|i| touch(i, 40_000 + u64::from(i) * 10, 10)));
    made.touches.sort_by_key(|t| t.interval);
    let found = made.analyse();
    let finding = found
        .findings
        .iter()
        .find(|f| f.id == FindingId::TouchedOnce)
        .unwrap();
    assert!(
        finding.evidence.contains("o3") && !finding.evidence.contains("o1"),
        "{finding:?}"
    );
}

#[test]
fn churn_needs_many_short_lives() {
    let churning = |count: u64, life: u64, faults: u64| {
        let mut made = busy(300);
        made.objects.extend((0..count).map(|i| {
            let mut o = object(100 + i, 90_000, 32);
            o.name = "buffer".into();
            o.born_ns = Time(i * STEP / 10);
            o.died_ns = Some(Time(i * STEP / 10 + life));
            o
        }));
        made.faults.extend((0..faults).map(|i| {
            let mut fault = fault(0, 90_000, 1);
            fault.time_ns = Time(i * STEP / 10 + 1);
            fault
        }));
        made.analyse()
    };
    let many = |count, life| churning(count, life, count);
    let found = many(2000, STEP / 20);
    let of = |f: &&varve_analyse::Finding| f.id == FindingId::Churn;
    let finding = found.findings.iter().find(of).expect("churn");
    assert!(
        finding
            .evidence
            .ends_with("2,000 page faults, 1.0 for each object."),
        "{finding:?}"
    );
    // The allocator gives the same memory out again: a life costs nothing.
    let reused = churning(2000, STEP / 20, 100);
    assert!(!has(&reused, FindingId::Churn), "{:?}", reused.findings);
    assert!(!has(&many(500, STEP / 20), FindingId::Churn), "too few");
    assert!(
        !has(&many(2000, 200 * STEP), FindingId::Churn),
        "they live long"
    );
}

#[test]
fn churn_is_one_programs_not_that_of_many_that_end() {
    let mut made = busy(300);
    // What the loader maps, in each of 500 processes.
    made.objects.extend((0..2000).map(|i| {
        let mut o = object(100 + i, 90_000, 32);
        o.name = "mapping from _dl_map_segments (ld-linux-x86-64.so.2)".into();
        o.pid = Pid(1000 + (i / 4) as u32);
        o.born_ns = Time(i * STEP / 10);
        o.died_ns = Some(Time(i * STEP / 10 + STEP / 20));
        o
    }));
    assert!(!has(&made.analyse(), FindingId::Churn));
}

#[test]
fn what_cannot_be_cleared_is_said() {
    let mut made = busy(300);
    made.touches
        .iter_mut()
        .filter(|t| t.page.0 == 20_000)
        .for_each(|t| t.source = TouchSource::Sticky);
    let found = made.analyse();
    assert!(has(&found, FindingId::Sticky));
    made.touches
        .iter_mut()
        .for_each(|t| (t.source, t.page_bytes) = (TouchSource::Scan, 2 << 20));
    let found = made.analyse();
    assert!(has(&found, FindingId::HugePages) && !has(&found, FindingId::Sticky));
}

#[test]
fn advice_for_several_nodes_needs_them() {
    let mut made = busy(300);
    made.threads.push(thread(2));
    assert!(has(&made.analyse(), FindingId::SingleFirstTouch));
    for nodes in [Some(1), None] {
        made.manifest.machine.nodes = nodes;
        assert!(!has(&made.analyse(), FindingId::SingleFirstTouch));
        let asked = AnalyseOptions {
            for_numa: true,
            ..AnalyseOptions::default()
        };
        assert!(has(&made.analyse_with(&asked), FindingId::SingleFirstTouch));
    }
}

#[test]
fn threads_that_sleep_are_no_reason_to_initialise_in_parallel() {
    let with = |busy_helper: bool| {
        let mut made = busy(300);
        made.threads.push(thread(2));
        made.samples = (0..400)
            .map(|i| {
                let tid = if busy_helper && i % 4 == 0 { 2 } else { 1 };
                crate::common::sample(i, tid, 2, 20_000 * 4096, true)
            })
            .collect();
        made.manifest
            .capabilities
            .insert(varve_model::Capability::Samples);
        has(&made.analyse(), FindingId::SingleFirstTouch)
    };
    assert!(with(true) && !with(false));
}

#[test]
fn memory_of_a_collector_is_no_news() {
    let with = |file: &str| {
        let mut made = busy(300);
        let mut heap = object(3, 40_000, 3000);
        (heap.name, heap.kind, heap.site) = ("anonymous memory".into(), ObjectKind::Mapping, None);
        let mut code = object(4, 80_000, 8);
        (code.name, code.kind) = (file.to_owned(), ObjectKind::File);
        made.objects.extend([heap, code]);
        made.touches
            .extend((0..300).map(|i| touch(i, 40_000 + u64::from(i) * 10, 10)));
        made.touches.sort_by_key(|t| t.interval);
        has(&made.analyse(), FindingId::TouchedOnce)
    };
    assert!(with("solver .text"));
    assert!(!with("libjvm.so .text") && !with("node .text"));
}

/// A busy program with another object that is never touched.
fn with_untouched(name: &str, kind: ObjectKind, pages: u64) -> Analysis {
    let mut made = busy(300);
    let mut o = object(3, 40_000, pages);
    (o.name, o.kind) = (name.to_owned(), kind);
    made.objects.push(o);
    made.analyse()
}

#[test]
fn what_runtimes_keep_for_later_is_no_news() {
    let never = |name| {
        has(
            &with_untouched(name, ObjectKind::Heap, 2048),
            FindingId::NeverTouched,
        )
    };
    assert!(never("heap from load (solver.c:4)"));
    for name in [
        "mapping (sys_linux_amd64.s:496, in runtime.sysMmap)",
        "mapping from v8::base::OS::Allocate (node)",
        "mapping from os::reserve_memory (libjvm.so)",
        "mapping from os::pd_commit_memory_or_exit (libjvm.so+0xc29d8d)",
        "mapping from _dl_map_segments (ld-linux-x86-64.so.2)",
    ] {
        assert!(!never(name), "{name}");
    }
}

#[test]
fn little_memory_is_no_news() {
    // 2 MiB of 8 MiB are; of 800 MiB they are not.
    let made = |pages: u32| {
        let mut made = busy(300);
        made.objects.push(object(3, 40_000, 512));
        made.objects.push(object(4, 100_000, pages.into()));
        for i in 0..300 {
            made.touches.push(touch(i, 100_000, pages));
        }
        made.touches.sort_by_key(|t| t.interval);
        made.analyse()
    };
    assert!(has(&made(16), FindingId::NeverTouched));
    assert!(!has(&made(200 * 1024), FindingId::NeverTouched));
}

#[test]
fn what_a_linker_made_is_no_streamed_data() {
    let once = |name: &str, kind: ObjectKind| {
        let mut made = busy(300);
        let mut o = object(3, 40_000, 3000);
        (o.name, o.kind) = (name.to_owned(), kind);
        made.objects.push(o);
        made.touches
            .extend((0..300).map(|i| touch(i, 40_000 + u64::from(i) * 10, 10)));
        made.touches.sort_by_key(|t| t.interval);
        has(&made.analyse(), FindingId::TouchedOnce)
    };
    assert!(once("input.dat", ObjectKind::File));
    assert!(once(
        "solver .data/.bss (small variables)",
        ObjectKind::Static
    ));
    assert!(!once("solver .dynstr", ObjectKind::File));
    assert!(!once("libc.so.6 .text", ObjectKind::File));
    assert!(!once("libc.so.6 .data.rel.ro", ObjectKind::Static));
    assert!(!once(
        "ld-linux-x86-64.so.2 .data/.bss (small variables)",
        ObjectKind::Static
    ));
}
