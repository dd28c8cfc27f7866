//! Processes that cannot be counted are named, and nothing is said of what they did.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{Recorded, compiled, record, varve, workload};

/// The fields of a report beside `schema`, `trace` and `verdict`.
const FIGURES: [&str; 18] = [
    "diagnoses",
    "undecided",
    "operations",
    "time",
    "times",
    "syscalls",
    "mmap_lock",
    "faults",
    "given_back",
    "memory",
    "pages",
    "lines",
    "choice",
    "sites",
    "blocks",
    "classes",
    "threads",
    "processes",
];

const PROGRAM: &str = r#"
#include <stdlib.h>
int main(void) {
    for (int i = 0; i < 10000; i++) {
        char *volatile block = malloc(i % 1000 + 1);
        free(block);
    }
    return 0;
}
"#;

/// A program that loads no libraries and has no symbols.
fn without_libraries(folder: &Path) -> PathBuf {
    alone(folder, &["-static", "-s"])
}

fn alone(folder: &Path, options: &[&str]) -> PathBuf {
    compiled(folder, "alone", PROGRAM, options)
}

fn report(of: &Recorded) -> String {
    let report = Command::new(varve())
        .args(["alloc", "report"])
        .arg(of.folder.path().join("t.varve"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&report.stdout).into_owned();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn a_stripped_program_without_libraries_has_no_zeros() {
    let folder = tempfile::tempdir().unwrap();
    let program = without_libraries(folder.path());
    let recorded = record(&[], &[program.to_str().unwrap()]);
    let about = &recorded.judgement["trace"];
    assert_eq!(about["uncounted_processes"], 1, "{about}");
    let text = report(&recorded);
    let uncounted =
        "Allocator operations of 1 process were not counted: alone (it loads no libraries).";
    assert!(text.starts_with(uncounted), "{text}");
    assert!(text.contains("linked without -s, not stripped"), "{text}");
    assert!(
        text.ends_with("is not known: operations were not counted."),
        "{text}"
    );
    let fields = recorded.judgement.as_object().unwrap();
    let verdict = &fields["verdict"];
    assert_eq!(verdict["answer"], "unknown");
    for share in ["time_share", "time_share_error", "memory_share"] {
        assert!(verdict[share].is_null(), "{verdict}");
    }
    for figures in FIGURES {
        // It panics where there is no such field.
        assert!(fields[figures].is_null(), "{figures}: {fields:?}");
    }
    let known: Vec<&String> = fields.keys().collect();
    assert_eq!(known.len(), FIGURES.len() + 3, "{known:?}");
    // Call stacks are figures, too.
    let folded = Command::new(varve())
        .args(["alloc", "report", "--folded", "time"])
        .arg(recorded.folder.path().join("t.varve"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&folded.stderr).into_owned();
    assert!(!folded.status.success() && folded.stdout.is_empty());
    assert!(
        said.contains("operations were not counted") && said.contains("hint:"),
        "{said}"
    );
}

/// The same program with its symbols is counted: its figures are there.
#[test]
fn a_program_without_libraries_that_has_symbols_has_figures() {
    let folder = tempfile::tempdir().unwrap();
    let program = alone(folder.path(), &["-static"]);
    let recorded = record(&[], &[program.to_str().unwrap()]);
    let fields = recorded.judgement.as_object().unwrap();
    // These two are null of it for reasons of their own.
    let figures = FIGURES
        .iter()
        .filter(|f| !["pages", "mmap_lock"].contains(f));
    for figures in figures {
        assert!(!fields[*figures].is_null(), "{figures}: {fields:?}");
    }
    assert!(recorded.count("malloc") >= 10_000);
}

/// The parent is counted; of its children one is not, and one has no library in its environment.
#[test]
fn children_that_are_not_counted_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let (alone, counted) = (without_libraries(folder.path()), workload("alloc_work"));
    let script = format!(
        "{0}; {0}; env -i {1} churn 1 300 200; {1} churn 1 300 20000",
        alone.display(),
        counted.display()
    );
    let recorded = record(&[], &["sh", "-c", &script]);
    let text = report(&recorded);
    assert!(
        text.starts_with("Allocator operations of 3 processes were not counted: 2 of alone"),
        "{text}"
    );
    assert!(
        text.contains("alloc_work (LD_PRELOAD was dropped)"),
        "{text}"
    );
    assert!(recorded.count("malloc") >= 20_000);
    // The negative control.
    let whole = record(
        &[],
        &[counted.to_str().unwrap(), "churn", "1", "300", "20000"],
    );
    assert_eq!(whole.judgement["trace"]["uncounted_processes"], 0);
    assert!(whole.judgement["trace"]["uncounted"].is_null());
    assert!(report(&whole).contains("Size classes"));
}
