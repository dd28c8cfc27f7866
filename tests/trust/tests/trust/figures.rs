//! Figures that cannot be: parts above their whole, memory that counts twice, touches of what cannot be touched.

use std::collections::HashSet;

use varve_faults::Stage;
use varve_model::Bytes;
use varve_trace::Trace;
use varve_trace::tables::{MappingRow, ObjectRow, ProcessRow, TouchRow};
use varve_trust::program;

use crate::reports::{number, objects_with, recorded};

const MIB: u64 = 256;

fn run(mode: &str) -> serde_json::Value {
    let stage = Stage::new();
    let program = program("memory");
    recorded(
        &stage,
        &["--interval", "50ms"],
        &[program.to_str().unwrap(), mode],
    )
}

#[test]
fn what_grows_and_moves_counts_once() {
    let report = run("grow");
    let large = objects_with(&report, |o| number(o, "touched_pages") >= 4 * MIB);
    assert_eq!(large.len(), 1, "{large:#?}");
    assert_eq!(number(large[0], "touched_pages"), 32 * MIB);
    assert_eq!(number(large[0], "bytes"), 32 * MIB * 4096);
    let all = number(&report["footprint"], "touched_pages");
    assert!((32 * MIB..36 * MIB).contains(&all), "{all}");
}

#[test]
fn ten_thousand_short_lives_are_no_more_than_the_memory() {
    let report = run("lives");
    let all = number(&report["footprint"], "touched_pages");
    let touches = number(&report["footprint"], "page_touches");
    let groups = report["groups"].as_array().unwrap();
    let lives = groups.iter().max_by_key(|g| number(g, "objects")).unwrap();
    assert!(number(lives, "objects") >= 10_000, "{lives:#}");
    assert!(number(lives, "touched_pages") <= all, "{lives:#}");
    assert!(number(lives, "page_touches") <= touches, "{lives:#}");
    let over_lives = number(lives, "touched_pages_over_lives");
    assert!(over_lives > number(lives, "touched_pages"), "{lives:#}");
}

#[test]
fn a_reservation_shows_only_what_was_touched() {
    let report = run("reserve");
    let reserved = objects_with(&report, |o| o["reserved"] == true);
    assert!(!reserved.is_empty());
    for object in reserved {
        assert_eq!(number(object, "touched_pages"), 0, "{object:#}");
    }
    let used = objects_with(&report, |o| number(o, "bytes") == 256 << 10);
    let touched: u64 = used.iter().map(|o| number(o, "touched_pages")).sum();
    assert_eq!(touched, 8 * 64, "{used:#?}");
    let findings = report["findings"].as_array().unwrap();
    let never = findings.iter().find(|f| f["id"] == "never-touched");
    assert!(never.is_none(), "{never:?}");
}

/// Heard of by the library, and by the kernel alone.
#[test]
fn what_is_unmapped_ends_then() {
    for options in [&[][..], &["--no-preload"]] {
        let stage = Stage::new();
        let program = program("unmaps");
        let ended = stage.run(stage.record(options, &[&program])).require(0);
        let times: Vec<u64> = ended
            .text()
            .split_whitespace()
            .map(|t| t.parse().unwrap())
            .collect();
        let [second, third] = [times[0]..=times[1], times[2]..=times[3]];
        let trace = Trace::open(&stage.path("trace.varve")).unwrap();
        let objects: Vec<ObjectRow> = trace.rows().unwrap();
        // The kernel's list of mappings, which is read between intervals, lies below what is known by a call.
        let called = |o: &&ObjectRow| o.layer == 2;
        let of = |mebibytes: u64| {
            let sized = |o: &&ObjectRow| o.bytes == Bytes(mebibytes << 20);
            let found: Vec<&ObjectRow> = objects.iter().filter(called).filter(sized).collect();
            assert_eq!(found.len(), 1, "{options:?} {mebibytes}: {found:?}");
            found[0]
        };
        let died = |mebibytes| of(mebibytes).died_ns.map(|t| t.0);
        assert!(died(7).is_some_and(|t| second.contains(&t)), "{options:?}");
        assert!(died(11).is_some_and(|t| third.contains(&t)), "{options:?}");
        assert!(died(5).is_none_or(|t| t > times[3]), "{options:?}");
        for rest in [2, 3] {
            let part = of(rest);
            assert_eq!(part.continues, Some(of(11).object), "{options:?} {rest}");
            assert!(third.contains(&part.born_ns.0), "{options:?} {rest}");
            assert!(part.died_ns.is_none_or(|t| t.0 > times[3]), "{options:?}");
        }
    }
}

/// A shell makes them with `vfork`: until they run their program, their memory is the shell's.
#[test]
fn programs_of_a_moment_have_their_own_mappings_and_leave_none_to_the_shell() {
    let stage = Stage::new();
    let many = "i=0; while [ $i -lt 400 ]; do /bin/true; i=$((i+1)); done";
    let ended = stage.run(stage.record(&["--interval", "50ms"], &["sh", "-c", many]));
    ended.require(0);
    let trace = Trace::open(&stage.path("trace.varve")).unwrap();
    let processes: Vec<ProcessRow> = trace.rows().unwrap();
    assert_eq!(processes.len(), 401);
    let mappings: Vec<MappingRow> = trace.rows().unwrap();
    let is_true = |m: &&MappingRow| m.path.ends_with("/true");
    let owners: HashSet<_> = mappings.iter().filter(is_true).map(|m| m.pid).collect();
    // Not the one of the lowest id: ids begin again when they have reached their limit.
    let ids: HashSet<_> = processes.iter().map(|p| p.pid).collect();
    let mut roots = processes.iter().filter(|p| !ids.contains(&p.parent));
    let (shell, other) = (roots.next().unwrap(), roots.next());
    assert!(other.is_none(), "{other:?}");
    assert!(!owners.contains(&shell.pid), "{shell:?}");
    assert_eq!(owners.len(), 400);
    // Nor is what they touch before they begin: a shell has a few megabytes.
    let touches: Vec<TouchRow> = trace.rows().unwrap();
    let of_shell = touches.iter().filter(|t| t.pid == shell.pid);
    let pages: HashSet<u64> = of_shell
        .flat_map(|t| t.page.0..t.page.0 + u64::from(t.pages))
        .collect();
    assert!(pages.len() < 2048, "{} pages", pages.len());
}

/// Nobody looks at such a program in time: what it is the kernel said when it began.
#[test]
fn programs_of_a_moment_have_the_names_of_their_files() {
    let stage = Stage::new();
    std::os::unix::fs::symlink("/usr/bin/true", stage.path("linked")).unwrap();
    std::fs::copy("/usr/bin/true", stage.path("copied")).unwrap();
    let many = "for i in $(seq 100); do ./copied; ./linked; $PWD/linked; sh -c 'exec true'; done";
    let ended = stage.run(stage.record(&["--interval", "50ms"], &["bash", "-c", many]));
    ended.require(0);
    let trace = Trace::open(&stage.path("trace.varve")).unwrap();
    let processes: Vec<ProcessRow> = trace.rows().unwrap();
    let folder = stage.folder().canonicalize().unwrap();
    let [copied, linked] = ["copied", "linked"].map(|n| folder.join(n).display().to_string());
    let count = |exe: &str, file: Option<&str>| {
        let named = processes
            .iter()
            .filter(|p| p.exe == exe && p.file.as_deref() == file);
        named.count()
    };
    assert_eq!(count(&copied, None), 100);
    assert_eq!(count(&linked, Some("/usr/bin/true")), 100);
    // Whose relative path led there is not known where nobody could look at its folder.
    let relative = count("./linked", Some("/usr/bin/true"));
    assert_eq!(relative + count("/usr/bin/true", None), 200);
}

/// What a program says of itself before it ends, KiB: `ru_maxrss` of `getrusage`, and `VmHWM`, which is of its own memory alone.
fn said_peaks(stage: &Stage, mib: &str) -> (u64, u64) {
    let said = std::fs::read_to_string(stage.path(&format!("peak-{mib}"))).unwrap();
    let mut numbers = said.split_whitespace().map(|n| n.parse().unwrap());
    (numbers.next().unwrap(), numbers.next().unwrap())
}

fn bytes_of(row: &ProcessRow) -> Option<u64> {
    row.peak_resident_bytes.map(|bytes| bytes.0)
}

/// Memory that comes and goes within an interval is in no end of one. It is more than the recorder has, a copy of which the program was
/// before it began.
#[test]
fn the_peak_of_resident_memory_is_the_kernels() {
    let stage = Stage::new();
    let program = program("peaks");
    let report = recorded(
        &stage,
        &["--interval", "10s"],
        &[program.to_str().unwrap(), "256"],
    );
    let (usage, _) = said_peaks(&stage, "256");
    assert!(usage >= 256 << 10, "{usage}");
    let footprint = &report["footprint"];
    assert_eq!(footprint["peak_process_bytes"]["exact"], usage << 10);
    assert_eq!(report["overview"]["peak_process"]["exact"], usage << 10);
    let processes = report["processes"].as_array().unwrap();
    assert_eq!(processes.len(), 1, "{processes:#?}");
    assert_eq!(processes[0]["peak_resident"]["exact"], usage << 10);
    let at_ends = footprint["peak_resident_pages"].as_u64();
    assert!(at_ends.is_none_or(|pages| pages < 256 * MIB), "{at_ends:?}");
}

/// `ru_maxrss` goes on over exec, and is the first program's for both.
#[test]
fn a_program_has_no_peak_of_the_one_before_it() {
    let stage = Stage::new();
    let program = program("peaks");
    recorded(
        &stage,
        &["--interval", "10s"],
        &[program.to_str().unwrap(), "256", "16"],
    );
    let (first, _) = said_peaks(&stage, "256");
    let (second, own) = said_peaks(&stage, "16");
    assert_eq!(second, first);
    assert!((16 << 10..256 << 10).contains(&own), "{own}");
    let trace = Trace::open(&stage.path("trace.varve")).unwrap();
    let processes: Vec<ProcessRow> = trace.rows().unwrap();
    let last = processes.iter().max_by_key(|p| p.born_ns).unwrap();
    assert!(last.command.ends_with(" 16"), "{last:?}");
    match &last.peak_resident_why {
        None => assert_eq!(bytes_of(last), Some(own << 10)),
        Some(why) => assert_eq!((why.as_str(), bytes_of(last)), ("earlier", None)),
    }
    let before = processes.iter().filter(|p| p.command.ends_with(" 256 16"));
    let peaks: Vec<_> = before.map(bytes_of).collect();
    assert_eq!(peaks, [Some(first << 10)]);
}
