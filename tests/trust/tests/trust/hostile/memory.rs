//! A report's memory follows the pages that were touched, not the addresses over which they lie.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use varve_faults::{Stage, varve_binary};
use varve_model::{
    Address, Bytes, Duration, Interval, ObjectId, ObjectKind, Page, Pid, Time, TouchSource,
};
use varve_trace::tables::{IntervalRow, ObjectRow, TouchRow};
use varve_trace::{Manifest, State, Trace, TraceWriter, finish_tables, write_table};

/// Scattered pages, one in each 2 MiB.
const PAGES: u64 = 800_000;
const STRIDE: u64 = 512;
const FIRST: u64 = 0x0001_0000_0000;
const STEP: u64 = 50_000_000;

/// A trace of a program that touched a page here and there.
fn scattered(folder: &Path, like: &Manifest) {
    let mut manifest = like.clone();
    manifest.state = State::Recording;
    let mut writer = TraceWriter::create(folder, &manifest).unwrap();
    for interval in 0..2_u64 {
        let pages = (0..PAGES).filter(|page| page % 2 == interval || page % 3 == 0);
        let rows: Vec<TouchRow> = pages
            .map(|page| TouchRow {
                interval: Interval(interval as u32),
                pid: Pid(77),
                page: Page(FIRST + page * STRIDE),
                pages: 1,
                page_bytes: 4096,
                written: Some(page % 5 == 0),
                source: TouchSource::Scan,
            })
            .collect();
        writer.append(&rows).unwrap();
        writer
            .append(&[IntervalRow {
                interval: Interval(interval as u32),
                start_ns: Time(interval * STEP),
                end_ns: Time((interval + 1) * STEP),
                held_ns: Duration(1000),
                resident_pages: PAGES,
                processes: 1,
                threads: 1,
                recorder_cpu_ns: Duration(1000),
            }])
            .unwrap();
    }
    let object = ObjectRow {
        object: ObjectId(0),
        pid: Pid(77),
        kind: ObjectKind::Mapping,
        name: "a mapping of 1.5 TiB".into(),
        site: None,
        address: Address(FIRST * 4096),
        bytes: Bytes(PAGES * STRIDE * 4096),
        born_ns: Time(0),
        died_ns: None,
        tid: None,
        pool: false,
        layer: 0,
        continues: None,
    };
    write_table(writer.folder(), &[object]).unwrap();
    finish_tables(writer.folder(), &mut |_| ()).unwrap();
    manifest.state = State::Finished;
    manifest.settle();
    writer.folder().write_manifest(&manifest).unwrap();
}

/// The most memory that a command had resident, in MiB.
fn peak_mib(stage: &Stage, arguments: &[&str]) -> u64 {
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
    assert_eq!(status, 0, "varve {arguments:?} failed");
    usage.ru_maxrss as u64 / 1024
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
