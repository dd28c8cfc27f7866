//! A report's memory follows the pages that were touched, not the addresses over which they lie.

pub(crate) mod traces;

use std::path::Path;

use varve_faults::Stage;
use varve_model::ObjectKind;
use varve_trace::tables::ObjectRow;
use varve_trace::{Manifest, Trace};
use varve_trust::program;

use traces::{FIRST, cost, lying, more_than_memory, object, real_manifest, touch, trace};

/// Scattered pages, one in each 2 MiB.
const PAGES: u64 = 800_000;
const STRIDE: u64 = 512;

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

/// The most memory that a command had resident, in MiB.
fn peak_mib(stage: &Stage, arguments: &[&str]) -> u64 {
    let (peak, _, status) = cost(stage, arguments);
    assert_eq!(status, 0, "varve {arguments:?} failed");
    peak
}

#[test]
fn reports_of_scattered_pages_take_memory_by_the_page() {
    let stage = Stage::new();
    let like = real_manifest(&stage);
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
    let like = real_manifest(&stage);
    more_than_memory(&stage.path("t.varve"), &like);
    for arguments in [
        vec!["report", "t.varve"],
        vec!["report", "t.varve", "--json"],
        vec!["report", "t.varve", "--html", "t.html"],
        vec!["report", "t.varve", "--png", "t.png"],
    ] {
        let (peak, _, code) = cost(&stage, &arguments);
        assert_ne!(code, 0, "{arguments:?}");
        assert!(peak < 300, "{arguments:?} took {peak} MiB");
    }
}

#[test]
fn objects_that_cannot_be_cost_a_report_little() {
    let stage = Stage::new();
    let like = real_manifest(&stage);
    let mut worst = Vec::new();
    // With what is mapped known and not, larger than all memory and just large.
    for (name, sizes, is_mapped) in [
        ("a.varve", 1 << 60, true),
        ("b.varve", 1 << 60, false),
        ("c.varve", 1 << 20, true),
    ] {
        lying(&stage.path(name), &like, sizes, is_mapped);
        let peak = peak_mib(&stage, &["report", name, "--json"]);
        worst.push((name, peak));
    }
    println!("MiB: {worst:?}");
    for (name, peak) in worst {
        assert!(peak < 1024, "{name} took {peak} MiB");
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
