//! A report's memory follows the pages that were touched, not the addresses over which they lie.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use varve_faults::{Stage, varve_binary};
use varve_model::{
    Address, Bytes, Duration, Interval, ObjectId, ObjectKind, Page, Pid, Time, TouchSource,
};
use varve_trace::tables::{IntervalRow, MappingRow, ObjectRow, TouchRow};
use varve_trace::{Manifest, State, Trace, TraceWriter, finish_tables, write_table};
use varve_trust::program;

/// Scattered pages, one in each 2 MiB.
const PAGES: u64 = 800_000;
const STRIDE: u64 = 512;
const FIRST: u64 = 0x0001_0000_0000;
const STEP: u64 = 50_000_000;

/// A trace of a program that touched a page here and there.
fn scattered(folder: &Path, like: &Manifest) {
    let touches = |interval| {
        let pages = (0..PAGES).filter(|page| page % 2 == interval || page % 3 == 0);
        let touch = |page| touch(interval, FIRST + page * STRIDE, Some(page % 5 == 0));
        pages.map(touch).collect()
    };
    let object = ObjectRow {
        kind: ObjectKind::Mapping,
        name: "a mapping of 1.5 TiB".into(),
        layer: 0,
        ..object(0, FIRST * 4096, PAGES * STRIDE * 4096)
    };
    trace(folder, like, 2, touches, &[object], &[]);
}

fn touch(interval: u64, page: u64, written: Option<bool>) -> TouchRow {
    TouchRow {
        interval: Interval(interval as u32),
        pid: Pid(77),
        page: Page(page),
        pages: 1,
        page_bytes: 4096,
        written,
        source: TouchSource::Scan,
    }
}

/// A heap object of the whole recording.
fn object(number: u64, address: u64, bytes: u64) -> ObjectRow {
    ObjectRow {
        object: ObjectId(number),
        pid: Pid(77),
        kind: ObjectKind::Heap,
        name: "malloc (lies.c:1, in main)".into(),
        site: None,
        address: Address(address),
        bytes: Bytes(bytes),
        born_ns: Time(0),
        died_ns: None,
        tid: None,
        pool: false,
        layer: 5,
        continues: None,
    }
}

fn trace(
    folder: &Path,
    like: &Manifest,
    intervals: u64,
    touches: impl Fn(u64) -> Vec<TouchRow>,
    objects: &[ObjectRow],
    mappings: &[MappingRow],
) {
    let mut manifest = like.clone();
    // Those of its own tables are not known yet.
    manifest.checksums.clear();
    manifest.state = State::Recording;
    let mut writer = TraceWriter::create(folder, &manifest).unwrap();
    for interval in 0..intervals {
        writer.append(&touches(interval)).unwrap();
        writer
            .append(&[IntervalRow {
                interval: Interval(interval as u32),
                start_ns: Time(interval * STEP),
                end_ns: Time((interval + 1) * STEP),
                held_ns: Duration(1000),
                longest_hold_ns: Duration(1000),
                holds: 1,
                overlap_ns: Duration(0),
                resident_pages: PAGES,
                processes: 1,
                threads: 1,
                recorder_cpu_ns: Duration(1000),
            }])
            .unwrap();
    }
    writer.append(mappings).unwrap();
    write_table(writer.folder(), objects).unwrap();
    finish_tables(writer.folder(), &mut |_| ()).unwrap();
    manifest.state = State::Finished;
    manifest.derive_completeness();
    writer.folder().write_manifest(&manifest).unwrap();
}

/// The most memory that a command had resident, in MiB.
fn peak_mib(stage: &Stage, arguments: &[&str]) -> u64 {
    let (peak, _) = succeed(stage, arguments);
    peak
}

/// The same, and the seconds of CPU that it took.
fn succeed(stage: &Stage, arguments: &[&str]) -> (u64, f64) {
    let (peak, cpu, status) = cost(stage, arguments);
    assert_eq!(status, 0, "varve {arguments:?} failed");
    (peak, cpu)
}

/// The same, and the status of a command that may fail.
fn cost(stage: &Stage, arguments: &[&str]) -> (u64, f64, i32) {
    let out = stage.path("out");
    let mut command = Command::new(varve_binary());
    command
        .args(arguments)
        .current_dir(stage.folder())
        .stdin(Stdio::null())
        .stdout(File::create(&out).unwrap())
        .process_group(0);
    #[expect(
        clippy::zombie_processes,
        reason = "wait4 below waits, and tells the peak"
    )]
    let child = command.spawn().unwrap();
    let mut status = 0;
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: both are local and large enough; the child is this function's own and is waited for once.
    let usage = unsafe {
        let pid = libc::wait4(child.id() as i32, &raw mut status, 0, usage.as_mut_ptr());
        assert_eq!(pid, child.id() as i32);
        usage.assume_init()
    };
    let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
    let cpu = seconds(usage.ru_utime) + seconds(usage.ru_stime);
    (usage.ru_maxrss as u64 / 1024, cpu, status)
}

#[test]
fn reports_of_scattered_pages_take_memory_by_the_page() {
    let stage = Stage::new();
    // The manifest of a real recording, so that this test knows nothing of what is in one.
    stage.run(stage.record(&[], &["true"])).require(0);
    let like = Trace::open(&stage.path("trace.varve")).unwrap().manifest;
    scattered(&stage.path("t.varve"), &like);
    let mut peaks = Vec::new();
    for arguments in [
        vec!["report", "t.varve"],
        vec!["report", "t.varve", "--json"],
        vec!["report", "t.varve", "--html", "t.html"],
        vec!["report", "t.varve", "--png", "t.png"],
    ] {
        let peak = peak_mib(&stage, &arguments);
        peaks.push((arguments.last().copied().unwrap_or_default(), peak));
    }
    println!("peaks in MiB: {peaks:?}");
    // 3.05 GiB were touched. A report took as much, and the page more.
    for (what, peak) in peaks {
        assert!(peak < 700, "{what} took {peak} MiB");
    }
}

/// Rows of a few bytes that list more memory than any machine has.
#[test]
fn more_pages_than_there_is_memory_for_are_refused_before_they_take_any() {
    let stage = Stage::new();
    stage.run(stage.record(&[], &["true"])).require(0);
    let like = Trace::open(&stage.path("trace.varve")).unwrap().manifest;
    let touches = |_| {
        let row = |row| TouchRow {
            pages: u32::MAX,
            ..touch(0, row * u64::from(u32::MAX), None)
        };
        (0..256).map(row).collect()
    };
    trace(&stage.path("t.varve"), &like, 1, touches, &[], &[]);
    for arguments in [
        vec!["report", "t.varve"],
        vec!["report", "t.varve", "--json"],
        vec!["report", "t.varve", "--html", "t.html"],
        vec!["report", "t.varve", "--png", "t.png"],
    ] {
        let (peak, cpu, code) = cost(&stage, &arguments);
        assert_ne!(code, 0, "{arguments:?}");
        assert!(peak < 300, "{arguments:?} took {peak} MiB");
        assert!(cpu < 5.0, "{arguments:?} took {cpu} s");
    }
}

/// Objects that a program says it has: each larger than all memory, in the place of the one before, in 128 MiB of its own.
const LIES: u64 = 1_600_000;
const LIED: u64 = 64 * STRIDE;

/// What a program's ring may bring about: objects end where others begin that lie over them.
fn lies(sizes: u64) -> Vec<ObjectRow> {
    let life = 20 * STEP / LIES;
    let lie = |number: u64| ObjectRow {
        born_ns: Time(number * life),
        died_ns: Some(Time((number + 1) * life)),
        ..object(number, FIRST * 4096 + number % LIED * 4096 + 16, sizes)
    };
    (0..LIES).map(lie).collect()
}

#[test]
fn objects_that_cannot_be_cost_a_report_little() {
    let stage = Stage::new();
    stage.run(stage.record(&[], &["true"])).require(0);
    let like = Trace::open(&stage.path("trace.varve")).unwrap().manifest;
    let mapping = MappingRow {
        pid: Pid(77),
        address: Address(FIRST * 4096),
        bytes: Bytes(LIED * 4096),
        perms: "rw-p".into(),
        offset: 0,
        path: String::new(),
        device: "00:00".into(),
        inode: 0,
        build_id: None,
        from_ns: Time(0),
        to_ns: None,
    };
    let touches = |interval: u64| {
        let pages = (0..LIED).filter(|page| page % 3 == interval % 3);
        pages
            .map(|page| touch(interval, FIRST + page, None))
            .collect()
    };
    let mut worst = Vec::new();
    // With what is mapped known and not, larger than all memory and just large.
    for (name, sizes, mapped) in [
        ("a", 1 << 60, vec![mapping.clone()]),
        ("b", 1 << 60, Vec::new()),
        ("c", 1 << 20, vec![mapping]),
    ] {
        let folder = format!("{name}.varve");
        trace(
            &stage.path(&folder),
            &like,
            20,
            touches,
            &lies(sizes),
            &mapped,
        );
        let (peak, seconds) = succeed(&stage, &["report", &folder, "--json"]);
        worst.push((name, seconds, peak));
    }
    println!("seconds and MiB: {worst:?}");
    for (name, seconds, peak) in worst {
        assert!(peak < 1024, "{name} took {peak} MiB");
        // Seconds of CPU. It took more than 170.
        assert!(seconds < 20.0, "{name} took {seconds} s");
    }
}

/// A program that makes millions of objects, each with a call stack of its own.
#[test]
fn millions_of_stacks_cost_a_recorder_little() {
    let stage = Stage::new();
    let program = program("stacks");
    let words = |depth| {
        let options = [
            "record",
            "--force",
            "-o",
            "t.varve",
            "--min-object",
            "16",
            "--",
        ];
        [&options[..], &[program.to_str().unwrap(), depth]].concat()
    };
    let (few, many) = (
        peak_mib(&stage, &words("10")),
        peak_mib(&stage, &words("21")),
    );
    println!("peaks in MiB: {few} for a thousand stacks, {many} for two million");
    let manifest = Trace::open(&stage.path("t.varve")).unwrap().manifest;
    let lost = manifest.losses.get("stacks").copied().unwrap_or(0);
    assert!(
        lost > 0 && !manifest.completeness.complete,
        "{:?}",
        manifest.losses
    );
    assert!(many < 1024, "{many} MiB");
}
