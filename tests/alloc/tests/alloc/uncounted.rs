//! Processes that cannot be counted are named, and nothing is said of what they did.

use std::os::unix::fs::PermissionsExt;
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
    assert_eq!(about["uncounted_command"], true, "{about}");
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

/// What `env` begins with is counted, and not what it becomes: the reason is what it did to the environment, and no verdict rests on its own operations.
#[test]
fn what_took_the_library_away_is_said() {
    let (program, other) = (workload("alloc_work"), workload("libsick_none.so"));
    let replaces = format!("LD_PRELOAD={}", other.display());
    let behind = "LD_PRELOAD in the environment of varve itself";
    let first = "nothing between takes LD_PRELOAD from its environment";
    for (env, reason, hint) in [
        (&[&*replaces][..], "LD_PRELOAD was replaced", behind),
        (&["LD_PRELOAD="][..], "LD_PRELOAD was removed", first),
        (&["-u", "LD_PRELOAD"][..], "LD_PRELOAD was removed", first),
        (&["-i"][..], "its environment was cleared", first),
        (&["-i", "A=1"][..], "LD_PRELOAD was removed", first),
    ] {
        let work = [program.to_str().unwrap(), "churn", "1", "300", "20000"];
        let command = [&["env"][..], env, &work[..]].concat();
        require_uncounted(&record(&[], &command), reason, hint);
    }
    // The remedy of what is replaced.
    let options = ["--allocator", other.to_str().unwrap()];
    let work = [program.to_str().unwrap(), "churn", "1", "300", "20000"];
    let counted = record(&options, &work);
    assert_eq!(counted.judgement["trace"]["uncounted_command"], false);
    assert!(counted.count("malloc") >= 20_000);
}

/// Its file belongs to another user, whose rights it gains.
#[test]
fn a_program_that_gains_rights_is_said_to() {
    const NOBODY: u32 = 65534;
    let folder = tempfile::tempdir().unwrap();
    let program = alone(folder.path(), &[]);
    std::os::unix::fs::chown(&program, Some(NOBODY), Some(NOBODY)).unwrap();
    let mode = std::fs::Permissions::from_mode(0o4755);
    std::fs::set_permissions(&program, mode).unwrap();
    // As the command itself it is refused.
    let run = format!("exec {}", program.display());
    let recorded = record(&[], &["sh", "-c", &run]);
    require_uncounted(&recorded, "it gained rights by its file", "(-p)");
}

fn require_uncounted(recorded: &Recorded, reason: &str, hint: &str) {
    let about = &recorded.judgement["trace"];
    assert_eq!(about["uncounted_processes"], 1, "{reason}: {about}");
    assert_eq!(about["uncounted_command"], true, "{reason}: {about}");
    let said = about["uncounted"].as_str().unwrap();
    assert!(said.contains(&format!("({reason})")), "{said}");
    assert!(said.contains(hint), "{said}");
    let verdict = &recorded.judgement["verdict"];
    assert_eq!(verdict["answer"], "unknown", "{reason}");
    let sentence = verdict["sentence"].as_str().unwrap();
    assert!(
        sentence.ends_with("is not known: operations were not counted."),
        "{reason}: {sentence}"
    );
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
        text.contains("alloc_work (its environment was cleared)"),
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
