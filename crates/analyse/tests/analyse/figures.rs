//! Figures of the first screen that must agree with each other.

use varve_analyse::{AnalyseOptions, Analysis, Known};
use varve_model::{Bytes, Capability, Duration, Interval, ObjectKind, Pid, SiteId, Tid, Time};
use varve_trace::tables::{Frame, ProcessRow, SiteRow, ThreadRow};
use varve_trace::{Selection, TraceError};

use crate::common::{Made, STEP, object, sample, thread, touch};

fn process(pid: u32, born: u64, died: Option<u64>) -> ProcessRow {
    ProcessRow {
        pid: Pid(pid),
        parent: Pid(1),
        exe: "/bin/p".into(),
        file: None,
        command: "p".into(),
        born_ns: Time(born),
        died_ns: died.map(Time),
        exit_code: died.map(|_| 0),
        objects: None,
        objects_why: None,
        peak_resident_bytes: None,
        peak_resident_why: None,
    }
}

#[test]
fn samples_in_the_recorders_own_memory_are_in_no_table() {
    let mut made = Made::new(20);
    made.objects = vec![object(1, 10_000, 16), object(2, 20_000, 16)];
    made.objects[1].kind = ObjectKind::Recorder;
    made.touches = (0..20).map(|i| touch(i, 10_000, 16)).collect();
    made.threads = vec![thread(1)];
    made.manifest.capabilities.insert(Capability::Samples);
    let of = |i| match i % 4 {
        0 => sample(i, 1, 2, 20_000 * 4096, false),
        _ => sample(i, 1, 1, 10_000 * 4096, false),
    };
    made.samples = (0..200).map(of).collect();
    let found = made.analyse();
    let samples = found.samples.as_ref().expect("samples");
    assert_eq!((samples.with_address, samples.own_accesses), (150, 50));
    let listed: u64 = samples.objects.iter().map(|o| o.sampled.samples).sum();
    let used = found.sharing.as_ref().expect("use by threads");
    assert_eq!((listed, used.events), (150, 150));
    // Its time is the program's, and of no object: the shares are of the other accesses.
    assert_eq!(samples.all.time_ns, Some(Duration(200_000_000)));
    assert_eq!(samples.all.access_ns, Some(Duration(150_000_000)));
}

#[test]
fn clocks_that_the_recorder_reads_are_no_line_of_the_programs() {
    let mut made = Made::new(20);
    made.objects = vec![object(1, 10_000, 16)];
    made.touches = (0..20).map(|i| touch(i, 10_000, 16)).collect();
    made.threads = vec![thread(1)];
    made.manifest.capabilities.insert(Capability::Samples);
    let frame = |(module, function): &(&str, &str)| Frame {
        function: Some((*function).into()),
        module: Some((*module).into()),
        ..Frame::default()
    };
    let clock = ("[vdso]", "__vdso_clock_gettime");
    let (own, app) = (("libvarve_preload.so", "malloc"), ("app", "work"));
    let stacks = [vec![clock, own, app], vec![clock, app], vec![app]];
    for (site, stack) in (0..).zip(&stacks) {
        made.sites.push(SiteRow {
            site: SiteId(site),
            label: "somewhere".into(),
            frames: stack.iter().map(frame).collect(),
        });
    }
    let of = |i| {
        let mut row = sample(i, 1, 1, 10_000 * 4096, false);
        row.site = Some(SiteId((i % 4).min(2) as u32));
        row
    };
    made.samples = (0..200).map(of).collect();
    let found = made.analyse();
    let lines = &found.samples.as_ref().expect("samples").lines;
    let mut lines: Vec<(&str, u64)> = lines
        .iter()
        .map(|line| (line.function.as_deref().unwrap_or_default(), line.samples))
        .collect();
    lines.sort_unstable();
    assert_eq!(lines, [(clock.1, 50), (app.1, 100)]);
}

#[test]
fn who_ended_before_the_recording_is_not_in_it() {
    let mut made = Made::new(20);
    for i in &mut made.intervals {
        (i.start_ns.0, i.end_ns.0) = (i.start_ns.0 + 10 * STEP, i.end_ns.0 + 10 * STEP);
    }
    made.manifest.options.delay_ns = Duration(10 * STEP);
    made.processes = vec![
        process(1, 0, None),
        process(2, STEP, Some(2 * STEP)),
        process(3, STEP, Some(11 * STEP)),
    ];
    made.threads = vec![
        thread(1),
        ThreadRow {
            pid: Pid(1),
            tid: Tid(9),
            died_ns: Some(Time(5)),
            ..thread(9)
        },
    ];
    let found = made.analyse();
    let pids: Vec<u32> = found.processes.iter().map(|p| p.pid.0).collect();
    assert_eq!(pids, [1, 3]);
    assert_eq!(found.processes[0].threads, 1);
    assert_eq!(found.trace.delay_ns, Duration(10 * STEP));
}

#[test]
fn a_part_of_the_time_says_where_it_begins() {
    let mut made = Made::new(20);
    made.manifest.clock.end_ns = Time(20 * STEP);
    let part = Selection {
        time: Some(Time(5 * STEP)..Time(7 * STEP)),
        intervals: Some(Interval(5)..Interval(7)),
        ..Selection::default()
    };
    let found = made.analyse_part(part);
    assert_eq!(found.trace.offset_ns, Some(Duration(5 * STEP)));
    assert_eq!(found.trace.whole_ns, Duration(20 * STEP));
    assert_eq!(made.analyse().trace.offset_ns, None);
}

#[test]
fn a_pause_is_no_time_of_the_recording() {
    let mut made = Made::new(4);
    for i in &mut made.intervals[2..] {
        (i.start_ns.0, i.end_ns.0) = (i.start_ns.0 + STEP, i.end_ns.0 + STEP);
    }
    let found = made.analyse();
    assert_eq!(found.trace.duration_ns, Duration(5 * STEP - 1000));
    assert_eq!(found.trace.paused_ns, Duration(STEP));
    assert_eq!(found.trace.recorded_ns(), Duration(4 * STEP - 1000));
}

#[test]
fn more_objects_than_memory_are_refused() {
    let mut made = Made::new(2);
    made.objects = (0..1000).map(|i| object(i, 10_000 + i, 1)).collect();
    let with = |room: u64| {
        made.try_analyse(&AnalyseOptions {
            room: Bytes(room),
            ..AnalyseOptions::default()
        })
    };
    assert!(matches!(with(100_000), Err(TraceError::TooLarge { .. })));
    assert!(with(1 << 20).is_ok());
}

#[test]
fn shares_of_touches_are_the_whole_together() {
    let mut made = Made::new(4);
    // Two objects on one page.
    made.objects = vec![object(1, 10_000, 1), object(2, 10_000, 1)];
    made.objects[0].bytes = Bytes(2048);
    made.objects[1].address.0 += 2048;
    made.objects[1].bytes = Bytes(2048);
    made.touches = (0..4).map(|i| touch(i, 10_000, 1)).collect();
    let found = made.analyse();
    assert_eq!(found.footprint.page_touches.or_zero(), 4);
    let shares = |found: &Analysis| -> Vec<f64> {
        let shares = found.groups.iter().map(|g| g.touch_share);
        shares.map(|share| share.expect("touches")).collect()
    };
    // Each has all of the page's touches, and half of the shares.
    let touched = found.groups.iter().filter_map(|g| g.usage.touched.get());
    assert!(touched.map(|t| t.page_touches).eq([4, 4]));
    assert_eq!(shares(&found), [0.5, 0.5]);
    let of_objects = found.objects.iter().map(|o| o.touch_share);
    assert!(of_objects.eq([Some(0.5), Some(0.5)]));
    made.objects.pop();
    assert_eq!(shares(&made.analyse()), [1.0]);
    // A page of no object is in the whole.
    made.touches.extend((0..4).map(|i| touch(i, 20_000, 3)));
    assert_eq!(shares(&made.analyse()), [0.25]);
}

/// A process of which the kernel reports a peak, in MiB, or why there is none.
fn peaking(pid: u32, peak: Result<u64, &str>) -> ProcessRow {
    ProcessRow {
        peak_resident_bytes: peak.ok().map(|mib| Bytes(mib << 20)),
        peak_resident_why: peak.err().map(str::to_owned),
        ..process(pid, 0, Some(2 * STEP))
    }
}

fn peak(processes: &[ProcessRow]) -> Known<Bytes> {
    let mut made = Made::new(4);
    made.processes = processes.to_vec();
    let found = made.analyse();
    assert_eq!(
        varve_analyse::Overview::of(&found).peak_process,
        found.footprint.peak_process_bytes
    );
    found.footprint.peak_process_bytes
}

#[test]
fn the_largest_process_has_the_peak() {
    let (small, large) = (peaking(1, Ok(3)), peaking(2, Ok(70)));
    let of_parent = peaking(3, Err("borrowed"));
    let exact = Known::Exact(Bytes(70 << 20));
    assert_eq!(peak(&[small.clone(), large.clone(), of_parent]), exact);
    let running = peaking(4, Err("running"));
    assert_eq!(
        peak(&[small, running.clone(), large]),
        Known::AtLeast(Bytes(70 << 20))
    );
    let why = "it had not ended as the recording did".to_owned();
    assert_eq!(peak(&[running]), Known::Absent(why));
    assert!(matches!(peak(&[]), Known::Absent(_)));
}

/// One row for each of its programs.
#[test]
fn a_process_has_the_peak_of_its_largest_program() {
    let mut made = Made::new(4);
    let second = ProcessRow {
        born_ns: Time(STEP),
        ..peaking(1, Ok(3))
    };
    made.processes = vec![peaking(1, Ok(70)), second.clone()];
    let of = |made: &Made| made.analyse().processes[0].peak_resident.clone();
    assert_eq!(of(&made), Known::Exact(Bytes(70 << 20)));
    let unknown = ProcessRow {
        peak_resident_bytes: None,
        peak_resident_why: Some("earlier".into()),
        ..second
    };
    made.processes = vec![peaking(1, Ok(70)), unknown];
    assert_eq!(of(&made), Known::AtLeast(Bytes(70 << 20)));
}

#[test]
fn a_part_of_a_life_has_no_peak() {
    let mut made = Made::new(20);
    made.processes = vec![peaking(1, Ok(70))];
    let part = Selection {
        time: Some(Time(STEP)..Time(2 * STEP)),
        intervals: Some(Interval(1)..Interval(2)),
        ..Selection::default()
    };
    let found = made.analyse_part(part);
    assert!(matches!(
        found.footprint.peak_process_bytes,
        Known::Absent(_)
    ));
    // With a delay its beginning is in no interval.
    made.manifest.options.delay_ns = Duration(STEP);
    for i in &mut made.intervals {
        (i.start_ns.0, i.end_ns.0) = (i.start_ns.0 + STEP, i.end_ns.0 + STEP);
    }
    let found = made.analyse();
    assert_eq!(found.processes.len(), 1);
    let Known::Absent(why) = found.footprint.peak_process_bytes else {
        panic!("{:?}", found.footprint.peak_process_bytes);
    };
    assert!(why.contains("before the recording began"), "{why}");
}
