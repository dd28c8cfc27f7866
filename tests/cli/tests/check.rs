//! `varve check` and `varve diff` of programs that are recorded: what they say, and with which exit code they end.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

fn varve() -> Command {
    let mut command = varve_cli_tests::varve();
    command.env_remove("CLICOLOR_FORCE");
    command
}

fn run(arguments: &[&str], folder: &Path) -> Output {
    let output = varve().args(arguments).current_dir(folder).output();
    output.expect("varve runs")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A program with two allocations, whose sizes in MiB are its arguments. The first lines move its functions.
fn program(folder: &Path, name: &str, first_lines: usize) -> String {
    let source = folder.join("sizes.c");
    let text = "\n".repeat(first_lines)
        + r#"#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static char *grid, *rest;
static void setup(size_t a, size_t b)
{
    grid = malloc(a << 20);
    rest = malloc(b << 20);
}
int main(int n, char **words)
{
    setup(atoi(words[1]), atoi(words[2]));
    for (int i = 0; i < 4; i++) {
        memset(grid, i, (size_t)atoi(words[1]) << 20);
        usleep(60000);
    }
    rest[0] = 1;
    return n > 3 ? atoi(words[3]) : 0;
}
"#;
    std::fs::write(&source, text).expect("a file");
    let built = folder.join(name);
    let done = Command::new("cc")
        .args(["-g", "-O1", "-o"])
        .arg(&built)
        .arg(&source)
        .status();
    assert!(done.expect("a compiler").success());
    built.to_string_lossy().into_owned()
}

fn record(folder: &Path, trace: &str, command: &[&str]) {
    let options = ["record", "--interval", "50ms", "-o", trace, "--"];
    let output = run(&[&options[..], command].concat(), folder);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn budgets_of_a_trace_have_exit_codes_and_evidence() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path();
    let program = program(at, "sizes", 0);
    record(at, "t.varve", &[&program, "24", "8"]);
    let code = |arguments: &[&str]| {
        let output = run(&[&["check", "t.varve"][..], arguments].concat(), at);
        (output.status.code(), said(&output))
    };
    let (holds, text) = code(&["--max-touched", "40MiB", "--max-object", "grid=25MiB"]);
    assert_eq!(holds, Some(0), "{text}");
    let (broken, text) = code(&["--max-touched", "16MiB"]);
    assert_eq!(broken, Some(1), "{text}");
    assert!(
        text.starts_with("broken ") && text.contains("grid (sizes.c:7, in setup)"),
        "{text}"
    );
    let (unknown, text) = code(&["--max-object", "nobody=1MiB"]);
    assert_eq!(unknown, Some(2), "{text}");
    assert!(text.starts_with("not judged "), "{text}");
    let (both, _) = code(&["--max-object", "nobody=1MiB", "--max-touched", "16MiB"]);
    assert_eq!(both, Some(1));
    let (finding, text) = code(&["--no-finding", "never-touched"]);
    assert_eq!(finding, Some(1), "{text}");
    let (none, _) = code(&[]);
    assert_eq!(none, Some(2), "there is nothing to judge");
    let missing = run(&["check", "no-such.varve", "--max-touched", "1MiB"], at);
    assert_eq!(missing.status.code(), Some(2));
}

/// What is wrong is said before anything is judged: a budget that nobody meant is never passed.
#[test]
fn budgets_that_nobody_can_have_meant_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path();
    let program = program(at, "sizes", 0);
    record(at, "t.varve", &[&program, "2", "1"]);
    let refused = |arguments: &[&str], word: &str| {
        let output = run(&[&["check", "t.varve"][..], arguments].concat(), at);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
        assert!(error.contains(word), "{arguments:?}: {error}");
    };
    refused(&["--max-held", "5"], "5%");
    refused(&["--max-held", "200%"], "100%");
    let growth = ["--baseline", "t.varve", "--max-growth", "5"];
    refused(&growth, "500 %");
    refused(&["--max-touched", "1GiB", "-n", "2"], "-n is for a command");
    refused(&["--max-touched", "1GiB", "--keep", "k"], "--keep is for");
    for (text, word) in [
        ("\nmax-tuched = 3", "line 2: unknown field `max-tuched`"),
        (
            "max-page-touches = -5",
            "max-page-touches: give a whole number",
        ),
        ("max-held = 5", "max-held: give a share"),
        ("max-touched = [1]", "give a number, or a text"),
    ] {
        std::fs::write(at.join("memory.toml"), text).expect("a file");
        refused(&["--budget", "memory.toml"], word);
    }
    let fifo = Command::new("mkfifo").arg(at.join("fifo")).status();
    assert!(fifo.expect("mkfifo").success());
    refused(&["--budget", "fifo"], "not a regular file");
}

/// A page that two of them share is touched once; an object has no more of its pages than lies in it.
#[test]
fn objects_of_a_name_are_judged_by_what_they_touch_together() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path();
    let source = r#"
#include <stdlib.h>
static char table[2 << 20];
static char *volatile blocks[64];
int main(void)
{
    for (int i = 0; i < 64; i++)
        *(blocks[i] = malloc(600 << (i % 2))) = 1;
    for (unsigned i = 0; i < sizeof(table); i += 64)
        ((volatile char *)table)[i] = 1;
    return 0;
}
"#;
    std::fs::write(at.join("small.c"), source).expect("a file");
    let built = at.join("small");
    let mut compiler = Command::new("cc");
    let done = compiler
        .args(["-g", "-O1", "-o"])
        .arg(&built)
        .arg(at.join("small.c"));
    assert!(done.status().expect("a compiler").success());
    let options = ["record", "--min-object", "1", "-o", "t.varve", "--"];
    let recorded = run(
        &[&options[..], &[built.to_str().expect("a path")]].concat(),
        at,
    );
    assert!(recorded.status.success());
    let report = run(&["report", "t.varve", "--json"], at);
    let report: serde_json::Value = serde_json::from_slice(&report.stdout).expect("JSON");
    let touched = report["footprint"]["touched_pages"]
        .as_u64()
        .expect("pages")
        << 12;
    let figure = |name: &str| {
        let budget = format!("{name}=1GiB");
        let output = run(&["check", "t.varve", "--json", "--max-object", &budget], at);
        let found: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        found["budgets"][0]["values"][0].as_f64().expect("a figure") as u64
    };
    assert_eq!(figure("table"), 2 << 20);
    assert!(figure("*") <= touched, "{} of {touched}", figure("*"));
    let listed = report["objects"].as_array().expect("a list").iter();
    let sum: u64 = listed
        .map(|o| o["touched_pages"].as_u64().unwrap_or(0) << 12)
        .sum();
    assert!(
        sum > touched,
        "objects that share pages: {sum} of {touched}"
    );
}

/// The folder to keep traces in may be somebody else's.
#[test]
fn what_the_program_prints_is_its_owners_alone_and_follows_no_link() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path();
    std::fs::create_dir(at.join("kept")).expect("a folder");
    std::fs::write(at.join("victim"), "whole").expect("a file");
    std::os::unix::fs::symlink(at.join("victim"), at.join("kept/run-1.log")).expect("a link");
    let check = [
        "check",
        "--max-touched",
        "1GiB",
        "--keep",
        "kept",
        "--",
        "echo",
        "secret",
    ];
    let refused = run(&check, at);
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(2), "{error}");
    assert!(
        error.contains("run-1.log: it is a symbolic link"),
        "{error}"
    );
    let victim = std::fs::read_to_string(at.join("victim")).expect("a file");
    assert_eq!(victim, "whole");
    std::fs::remove_file(at.join("kept/run-1.log")).expect("the link goes");
    for _ in 0..2 {
        assert_eq!(run(&check, at).status.code(), Some(0), "new, then replaced");
    }
    let log = std::fs::symlink_metadata(at.join("kept/run-1.log")).expect("a log");
    assert!(log.is_file());
    assert_eq!(log.permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_file_of_budgets_a_baseline_and_junit() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path();
    let program = program(at, "sizes", 0);
    record(at, "before.varve", &[&program, "16", "1"]);
    record(at, "after.varve", &[&program, "24", "1"]);
    let file = "max-touched = \"40MiB\"\nbaseline = \"before.varve\"\nmax-growth = { touched_bytes = \"10%\" }\n[objects.grid]\nmax-live = \"64MiB\"\n";
    std::fs::write(at.join("memory.toml"), file).expect("a file");
    let check = [
        "check",
        "--budget",
        "memory.toml",
        "--junit",
        "memory.xml",
        "--json",
    ];
    let output = run(&[&check[..], &["after.varve"]].concat(), at);
    assert_eq!(output.status.code(), Some(1));
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(found["schema"], "varve-check/1");
    let outcomes: Vec<&str> = found["budgets"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|b| b["outcome"].as_str())
        .collect();
    assert_eq!(outcomes, ["holds", "holds", "broken"]);
    let xml = std::fs::read_to_string(at.join("memory.xml")).expect("the file");
    assert!(
        xml.contains("tests=\"4\"")
            && xml.contains("failures=\"1\"")
            && xml.contains("errors=\"0\""),
        "{xml}"
    );
    assert!(xml.contains("grid (sizes.c:7, in setup)"), "{xml}");
    // The same program keeps to what it was.
    let output = run(&["check", "--budget", "memory.toml", "before.varve"], at);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    std::fs::write(at.join("wrong.toml"), "max-touchd = 1").expect("a file");
    let output = run(&["check", "--budget", "wrong.toml", "before.varve"], at);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn a_command_is_recorded_and_its_own_failure_is_told_apart() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path();
    let program = program(at, "sizes", 0);
    let budget = [
        "check",
        "-n",
        "2",
        "--max-touched",
        "40MiB",
        "--keep",
        "kept",
        "--",
    ];
    let output = run(&[&budget[..], &[&program, "8", "1"]].concat(), at);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(at.join("kept/run-2.varve").is_dir());
    let output = run(&[&budget[..], &[&program, "8", "1", "7"]].concat(), at);
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    assert!(said(&output).contains("exit code 7"), "{}", said(&output));
    let expecting = [
        "check",
        "--expect-exit",
        "7",
        "--max-touched",
        "40MiB",
        "--",
    ];
    let output = run(&[&expecting[..], &[&program, "8", "1", "7"]].concat(), at);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let output = run(
        &["check", "--max-touched", "40MiB", "--", "no-such-program"],
        at,
    );
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
}

#[test]
fn builds_whose_lines_moved_are_compared_by_site() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path();
    let first = program(at, "first", 0);
    record(at, "a.varve", &[&first, "8", "1"]);
    let second = program(at, "second", 9);
    record(at, "b.varve", &[&second, "12", "1"]);
    let beside = run(&["diff", "a.varve", "a.varve"], at);
    assert!(
        said(&beside).contains("differ in nothing"),
        "{}",
        said(&beside)
    );
    let turned = ["diff", "a.varve", "b.varve", "--", "b.varve", "a.varve"];
    let beside = said(&run(&turned, at));
    assert!(beside.contains("differ in nothing"), "{beside}");
    // What is given twice is no second run.
    let twice = ["diff", "a.varve", "a.varve", "--", "b.varve"];
    let refused = run(&twice, at);
    assert_eq!(refused.status.code(), Some(2), "{}", said(&refused));
    let errors = String::from_utf8_lossy(&refused.stderr);
    let reason = "a.varve and a.varve are the same recording, which counts once";
    assert!(errors.contains(reason), "{errors}");
    let drawn = run(&["diff", "a.varve", "b.varve", "--html", "page.html"], at);
    assert_eq!(drawn.status.code(), Some(0), "{}", said(&drawn));
    assert!(drawn.stdout.is_empty());
    let errors = String::from_utf8_lossy(&drawn.stderr);
    assert!(errors.contains("wrote page.html"), "{errors}");
    let mode = std::fs::metadata(at.join("page.html"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600, "as closed as its traces");
    let output = run(&["diff", "a.varve", "b.varve", "--json"], at);
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let grid = found["objects"]
        .as_array()
        .expect("a list")
        .iter()
        .find(|o| o["a"].as_str().is_some_and(|n| n.starts_with("grid")))
        .expect("the grid");
    assert_eq!(grid["a"], "grid (sizes.c:7, in setup)");
    assert_eq!(grid["b"], "grid (sizes.c:16, in setup)");
    assert_eq!(grid["match"], "moved");
    let touched = grid["figures"]
        .as_array()
        .expect("figures")
        .iter()
        .find(|f| f["measure"] == "touched_bytes")
        .expect("touched");
    let change = touched["change"].as_f64().expect("a number");
    assert!(
        (change - f64::from(4 << 20)).abs() < f64::from(1 << 16),
        "{change}"
    );
}

/// `docs/check.md` names every option that the help does, and the help those of the document.
#[test]
fn the_document_and_the_help_name_the_same_options() {
    let folder = tempfile::tempdir().expect("a folder");
    let options = |text: &str| {
        let words = text.split(|c: char| !(c.is_ascii_lowercase() || c == '-'));
        let mut all: Vec<String> = words
            .filter(|w| w.starts_with("--") && w.len() > 3)
            .map(str::to_owned)
            .collect();
        all.sort();
        all.dedup();
        all
    };
    let help = said(&run(&["check", "--help"], folder.path()));
    let document = include_str!("../../../docs/check.md");
    let known = ["--help".to_owned(), "--runs".to_owned()];
    for option in options(&help).iter().filter(|o| !known.contains(o)) {
        assert!(
            options(document).contains(option),
            "{option} is not in the document"
        );
    }
    for option in options(document) {
        assert!(
            options(&help).contains(&option),
            "{option} is not in the help"
        );
    }
}
