//! What each command says, word by word: standard output is data, standard error is messages.

use std::path::Path;
use std::process::{Command, Output};

fn varve() -> Command {
    let mut command = varve_cli_tests::varve();
    // Help is wrapped to the width of a terminal; there is none here.
    command.env_remove("COLUMNS").env_remove("CLICOLOR_FORCE");
    command
}

fn run(arguments: &[&str], folder: &Path) -> Output {
    varve()
        .args(arguments)
        .current_dir(folder)
        .output()
        .expect("varve runs")
}

/// Everything that a command says, with its code.
fn message(arguments: &[&str]) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let output = run(arguments, folder.path());
    format!(
        "exit code: {}\n--- standard output\n{}--- standard error\n{}",
        output.status.code().unwrap_or(-1),
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

#[test]
fn help() {
    insta::assert_snapshot!("help", message(&["--help"]));
    insta::assert_snapshot!("record_help", message(&["record", "--help"]));
    insta::assert_snapshot!("report_help", message(&["report", "--help"]));
    insta::assert_snapshot!("doctor_help", message(&["doctor", "--help"]));
    insta::assert_snapshot!("alloc_report_help", message(&["alloc", "report", "--help"]));
    insta::assert_snapshot!("diff_help", message(&["diff", "--help"]));
    insta::assert_snapshot!("check_help", message(&["check", "--help"]));
    insta::assert_snapshot!("recover_help", message(&["recover", "--help"]));
}

#[test]
fn usage_errors() {
    insta::assert_snapshot!("nothing", message(&[]));
    insta::assert_snapshot!("unknown_command", message(&["recrod"]));
    insta::assert_snapshot!("record_nothing", message(&["record"]));
    insta::assert_snapshot!("record_without_dashes", message(&["record", "ls"]));
    insta::assert_snapshot!("record_both", message(&["record", "-p", "1", "--", "true"]));
    insta::assert_snapshot!(
        "interval_too_short",
        message(&["record", "--interval", "1ms", "--", "true"])
    );
    insta::assert_snapshot!(
        "interval_without_unit",
        message(&["record", "--interval", "50", "--", "true"])
    );
    insta::assert_snapshot!(
        "no_share",
        message(&["record", "--overhead", "0%", "--", "true"])
    );
    insta::assert_snapshot!(
        "no_size",
        message(&["record", "--min-object", "x", "--", "true"])
    );
}

#[test]
fn refusals() {
    insta::assert_snapshot!("no_command", message(&["record", "--", "no-such-program"]));
    insta::assert_snapshot!("a_folder", message(&["record", "--", "/"]));
    insta::assert_snapshot!("no_process", message(&["record", "-p", "4000000"]));
    insta::assert_snapshot!("no_number", message(&["record", "-p", "1x"]));
    insta::assert_snapshot!(
        "no_folder_above",
        message(&["record", "-o", "no/such/x.varve", "--", "touch", "made"])
    );
    insta::assert_snapshot!("no_trace", message(&["report", "no-such.varve"]));
    insta::assert_snapshot!("check_of_nothing", message(&["check", "a.varve"]));
    insta::assert_snapshot!("diff_of_one", message(&["diff", "a.varve"]));
    insta::assert_snapshot!("diff_of_three", message(&["diff", "a", "b", "c"]));
    insta::assert_snapshot!("diff_of_none", message(&["diff", "a", "b"]));
}

#[test]
fn a_folder_above_the_trace_is_not_made() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = run(
        &["record", "-o", "no/such/x.varve", "--", "touch", "made"],
        folder.path(),
    );
    assert_eq!(output.status.code(), Some(125));
    let left = std::fs::read_dir(folder.path())
        .expect("the folder")
        .count();
    assert_eq!(left, 0, "nothing is made, and the command does not run");
}

#[test]
fn a_delay_says_when_it_is_over_and_what_follows() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = run(
        &["record", "--delay", "200ms", "--", "sleep", "0.6"],
        folder.path(),
    );
    assert_eq!(output.status.code(), Some(0));
    let said = String::from_utf8_lossy(&output.stderr);
    let line = said.lines().next().unwrap_or_default();
    assert!(
        line.starts_with("varve: the delay is over after "),
        "{said}"
    );
    assert!(line.contains("accesses are recorded from now on"), "{said}");
}

/// The loader names no loader itself, and loads what is to be preloaded nevertheless.
#[test]
fn a_program_that_is_run_by_the_loader_is_not_static() {
    let folder = tempfile::tempdir().expect("a folder");
    let loader = "/lib64/ld-linux-x86-64.so.2";
    if !Path::new(loader).exists() {
        eprintln!("skipped: no {loader} here");
        return;
    }
    let fault = ["record", "--backend", "fault", "-o", "f.varve", "--"];
    let output = run(
        &[&fault[..], &[loader, "/bin/true"]].concat(),
        folder.path(),
    );
    let said = String::from_utf8_lossy(&output.stderr);
    // Not every machine can trap at all.
    if output.status.code() != Some(0) {
        assert!(said.contains("/dev/userfaultfd"), "{said}");
    }
}

/// Nothing that could be installed or enabled would help: the hint names none.
#[test]
fn a_static_program_whose_accesses_cannot_be_trapped_misses_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("a.c"), "int main(void) { return 0; }\n").expect("a source");
    let compiled = Command::new("gcc")
        .args(["-static", "-o", "a", "a.c"])
        .current_dir(folder.path())
        .status();
    assert!(compiled.expect("gcc runs").success());
    let fault = ["record", "--backend", "fault", "-o", "f.varve", "--", "./a"];
    let output = run(&fault, folder.path());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("the program is static"), "{said}");
    let hint = said.lines().find(|line| line.starts_with("hint: "));
    assert_eq!(
        hint,
        Some("hint: `--backend scan` finds the same pages"),
        "{said}"
    );
}

/// The text with `N` for each figure and its unit, which differ from run to run.
fn without_figures(text: &str) -> String {
    let units = ["ns", "µs", "ms", "s", "%"];
    let is_unit = |word: &str| units.contains(&word.trim_end_matches([',', ':', ')', ';']));
    let line = |line: &str| {
        // What makes more intervals depends on what they cost here.
        const FEW: &str = "varve: findings: The intervals are few (";
        if line.starts_with(FEW) {
            return format!("{FEW}N)");
        }
        let mut words: Vec<String> = Vec::new();
        let mut all = line.split(' ').peekable();
        while let Some(word) = all.next() {
            let digits = word.trim_start_matches(['(', '<']);
            let is_figure = digits.starts_with(|c: char| c.is_ascii_digit());
            match all.next_if(|next| is_figure && is_unit(next)) {
                Some(_) => words.push("N".to_owned()),
                None if is_figure && digits.contains('.') => words.push("N".to_owned()),
                None => words.push(word.to_owned()),
            }
        }
        words.join(" ")
    };
    // Whether that is so differs too.
    let text = text.replace(" (too short a recording to keep to it)", "");
    // A hold that took longer than is permitted on a busy machine is said to have, and why.
    let cut = |line: String| match line.split_once("longest hold N") {
        Some((before, _)) => format!("{before}longest hold N\n"),
        None => line + "\n",
    };
    text.lines().map(line).map(cut).collect()
}

#[test]
fn a_recording_says_where_it_is_and_prints_nothing_else() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = run(
        // Long enough for its cost to be a share of something.
        &[
            "record",
            "-o",
            "t.varve",
            "--",
            "sh",
            "-c",
            "sleep 0.3; echo data",
        ],
        folder.path(),
    );
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(output.stdout, b"data\n");
    let said = String::from_utf8_lossy(&output.stderr);
    insta::assert_snapshot!("recorded", without_figures(&said));
}

#[test]
fn a_program_that_failed_is_said_to_have() {
    for (script, code, said) in [
        ("exit 3", 3, ", exit code 3\n"),
        (
            "kill -SEGV $$",
            139,
            ", exit code 139 (as of a program killed by signal 11, SIGSEGV)\n",
        ),
        ("exit 0", 0, ""),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let words = ["record", "-o", "t.varve", "--", "sh", "-c", script];
        let output = run(&words, folder.path());
        assert_eq!(output.status.code(), Some(code), "{script}");
        let printed = String::from_utf8_lossy(&output.stderr);
        let first = printed.lines().next().expect("a line").to_owned() + "\n";
        assert!(first.starts_with("varve: recorded sh: "), "{printed}");
        assert_eq!(first.contains("exit code"), code != 0, "{printed}");
        assert!(first.ends_with(said), "{printed}");
    }
}

#[test]
fn colours_are_for_terminals_that_want_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let on_a_terminal = |no_color: bool| {
        let words = format!("{:?} record -- no-such-program", varve().get_program());
        let mut script = Command::new("script");
        script
            .args(["-qec", &words, "/dev/null"])
            .env("TERM", "xterm")
            .env_remove("NO_COLOR");
        if no_color {
            script.env("NO_COLOR", "1");
        }
        let output = script
            .current_dir(folder.path())
            .output()
            .expect("script(1)");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert!(
        on_a_terminal(false).contains("\x1b["),
        "colours on a terminal"
    );
    let plain = on_a_terminal(true);
    assert!(
        plain.contains("error: ") && !plain.contains('\x1b'),
        "{plain:?}"
    );
    let piped = run(&["record", "--", "no-such-program"], folder.path());
    assert!(!piped.stderr.contains(&0x1b));
    assert!(piped.stdout.is_empty());
}

/// The commands of a report: what stands in backquotes, and the line of what there is more.
fn commands_of(report: &str) -> Vec<String> {
    // Sentences are broken where a line ends.
    let text = report.split_whitespace().collect::<Vec<_>>().join(" ");
    let quoted = text.split('`').skip(1).step_by(2).map(str::to_owned);
    let mut commands: Vec<String> = quoted.filter(|c| c.starts_with("varve ")).collect();
    if let Some((_, more)) = text.split_once(" more varve report ") {
        let mut parts = more.split("; ");
        let first = parts.next().unwrap_or("");
        let trace = first.split(" --").next().unwrap_or("");
        commands.push(format!("varve report {first}"));
        commands.extend(parts.map(|option| format!("varve report {trace} {option}")));
    }
    commands
}

#[test]
fn every_command_that_a_report_names_works() {
    let folder = tempfile::tempdir().expect("a folder");
    // Many files without debug information.
    let program = "import json, socket, sqlite3, ssl, zlib";
    let output = run(
        &["record", "-o", "t t.varve", "--", "python3", "-c", program],
        folder.path(),
    );
    assert_eq!(output.status.code(), Some(0));
    let screen = run(&["report", "t t.varve"], folder.path()).stdout;
    let all = run(&["report", "t t.varve", "--all"], folder.path()).stdout;
    let cut = "more (--all shows them)";
    let some = run(
        &["report", "t t.varve", "--section", "objects"],
        folder.path(),
    )
    .stdout;
    assert!(
        String::from_utf8_lossy(&some).contains(cut),
        "there are many objects"
    );
    assert!(
        !String::from_utf8_lossy(&all).contains(cut),
        "all are there"
    );
    let recorded = output.stderr;
    let mut tried = 0;
    for text in [screen, all, recorded] {
        for command in commands_of(&String::from_utf8_lossy(&text)) {
            let program = varve().get_program().to_string_lossy().into_owned();
            let script = command.replacen("varve", &format!("'{program}'"), 1);
            let done = Command::new("sh")
                .args(["-c", &script])
                .current_dir(folder.path())
                .output()
                .expect("sh");
            let said = String::from_utf8_lossy(&done.stderr);
            assert!(done.status.success(), "{command}: {said}");
            tried += 1;
        }
    }
    assert!(tried >= 5, "{tried}");
}
