//! Traces that a program can bring about to have a report take much, and what that takes.

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

/// The first page of them all.
pub(crate) const FIRST: u64 = 0x0001_0000_0000;
const STEP: u64 = 50_000_000;

/// The manifest of a real recording, so that tests know nothing of what is in one.
pub(crate) fn real_manifest(stage: &Stage) -> Manifest {
    stage.run(stage.record(&[], &["true"])).require(0);
    Trace::open(&stage.path("trace.varve"))
        .expect("a trace")
        .manifest
}

pub(crate) fn touch(interval: u64, page: u64, written: Option<bool>) -> TouchRow {
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
pub(crate) fn object(number: u64, address: u64, bytes: u64) -> ObjectRow {
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

pub(crate) fn trace(
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
    let mut writer = TraceWriter::create(folder, &manifest).expect("a trace");
    for interval in 0..intervals {
        writer.append(&touches(interval)).expect("a trace");
        writer
            .append(&[IntervalRow {
                interval: Interval(interval as u32),
                start_ns: Time(interval * STEP),
                end_ns: Time((interval + 1) * STEP),
                held_ns: Duration(1000),
                longest_hold_ns: Duration(1000),
                longest_stop_ns: Duration(0),
                holds: 1,
                overlap_ns: Duration(0),
                resident_pages: 800_000,
                mappings: 0,
                processes: 1,
                threads: 1,
                recorder_cpu_ns: Duration(1000),
            }])
            .expect("a trace");
    }
    writer.append(mappings).expect("a trace");
    write_table(writer.folder(), objects).expect("a trace");
    finish_tables(writer.folder(), &mut |_| ()).expect("a trace");
    manifest.state = State::Finished;
    manifest.derive_completeness();
    writer.folder().write_manifest(&manifest).expect("a trace");
}

/// The most memory that a command had resident, in MiB, the seconds of CPU that it took, and its status.
pub(crate) fn cost(stage: &Stage, arguments: &[&str]) -> (u64, f64, i32) {
    let out = stage.path("out");
    let mut command = Command::new(varve_binary());
    command
        .args(arguments)
        .current_dir(stage.folder())
        .stdin(Stdio::null())
        .stdout(File::create(&out).expect("a file for output"))
        .process_group(0);
    #[expect(
        clippy::zombie_processes,
        reason = "wait4 below waits, and tells the peak"
    )]
    let child = command.spawn().expect("varve runs");
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

/// A trace of a few rows that list more memory than any machine has.
pub(crate) fn more_than_memory(folder: &Path, like: &Manifest) {
    let touches = |_| {
        let row = |row| TouchRow {
            pages: u32::MAX,
            ..touch(0, row * u64::from(u32::MAX), None)
        };
        (0..256).map(row).collect()
    };
    trace(folder, like, 1, touches, &[], &[]);
}

/// Objects that a program says it has: each larger than all memory, in the place of the one before, in 128 MiB of its own.
const LIES: u64 = 1_600_000;
const LIED: u64 = 64 * 512;

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

/// A trace of a program that says such things: objects of so many bytes, where what is mapped is known or not.
pub(crate) fn lying(folder: &Path, like: &Manifest, sizes: u64, is_mapped: bool) {
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
    let mapped: &[MappingRow] = if is_mapped { &[mapping] } else { &[] };
    trace(folder, like, 20, touches, &lies(sizes), mapped);
}
