//! What a target says of code that it generates.

#![cfg(target_arch = "x86_64")]

use std::fs;

use varve_faults::{Stage, varve_binary};

/// The report of a program that reported its code in this way.
fn report_of(kind: &str) -> String {
    let stage = Stage::new();
    let program = varve_trust::program("generated");
    let folder = stage.folder().to_owned();
    let command = [program.as_os_str(), kind.as_ref(), folder.as_os_str()];
    let ended = stage
        .run(stage.record(&["--samples", "300/s"], &command))
        .require(0);
    // The recorder reads it when it hears of the end.
    let _ = fs::remove_file(format!("/tmp/perf-{}.map", ended.text().trim()));
    let mut report = stage.command(varve_binary());
    report.args(["report", "trace.varve", "--all"]);
    let text = stage.run(report).require(0).text();
    stage.require_clean(ended.pid);
    text
}

#[test]
fn generated_code_has_the_name_that_its_program_reported() {
    // In anonymous memory, in a file of memory that is mapped twice, and in shared anonymous memory.
    for kind in ["map", "memfd", "shared"] {
        let report = report_of(kind);
        assert!(report.contains("spinning"), "{kind}: {report}");
        assert!(!report.contains("\x1b[31m"), "{kind}: {report}");
        assert!(!report.contains("no map for `perf`"), "{kind}: {report}");
    }
}

#[test]
fn links_other_files_and_others_files_are_not_read() {
    for kind in ["link", "fifo", "foreign"] {
        let report = report_of(kind);
        assert!(!report.contains("spinning"), "{kind}: {report}");
        assert!(
            report.contains("generated code (function not known)"),
            "{kind}: {report}"
        );
        assert!(report.contains("no map for `perf`"), "{kind}: {report}");
    }
}
