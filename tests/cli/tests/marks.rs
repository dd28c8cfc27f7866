//! Phases that programs name: what a trace and a report say of programs whose phases and accesses are known.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn run(arguments: &[&str], folder: &Path) -> Output {
    let output = varve_cli_tests::varve()
        .args(arguments)
        .current_dir(folder)
        .output();
    output.expect("varve runs")
}

/// Builds a program with the header.
fn build(folder: &Path, file: &str, source: &str, flags: &[&str]) -> String {
    let compiler = if file.ends_with(".c") { "cc" } else { "c++" };
    let (path, built) = (folder.join(file), folder.join(format!("{file}.bin")));
    std::fs::write(&path, source).expect("a file");
    let done = Command::new(compiler)
        .args(["-g", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread"])
        .arg(format!("-I{ROOT}/cpp/include"))
        .args(flags)
        .arg("-o")
        .arg(&built)
        .arg(&path)
        .status();
    assert!(done.expect("a compiler").success());
    built.to_string_lossy().into_owned()
}

/// Records a program; its exit code and what its report says.
fn recorded(folder: &Path, command: &[&str]) -> (Option<i32>, Value) {
    recorded_with(folder, &["--interval", "50ms"], command)
}

fn recorded_with(folder: &Path, options: &[&str], command: &[&str]) -> (Option<i32>, Value) {
    let trace = folder.join("t.varve");
    // What was recorded here before has intervals of its own.
    if trace.exists() {
        std::fs::remove_dir_all(&trace).expect("no older trace");
    }
    let mut record = varve_cli_tests::varve();
    record.args(["record", "-o", "t.varve"]).args(options);
    // Where every access is counted an interval is some accesses, and none ends while a program waits.
    if !options.contains(&"exact") {
        record.env(TRACE, "t.varve");
    }
    record.arg("--").args(command).current_dir(folder);
    let output = record.output().expect("varve runs");
    let report = report(folder, &[]);
    (output.status.code(), report)
}

/// Names the trace whose intervals a program waits for.
const TRACE: &str = "VARVE_TEST_TRACE";

/// What `an_interval_ends` of [`TOUCH`] does.
fn wait_for_an_interval() {
    let Some(trace) = std::env::var_os(TRACE) else {
        return;
    };
    let flushed = || varve_truth::flushed(Path::new(&trace), "intervals");
    let (before, began) = (flushed(), std::time::Instant::now());
    while flushed() < before + 3 {
        assert!(began.elapsed().as_secs() < 300, "no interval ends");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

fn report(folder: &Path, more: &[&str]) -> Value {
    let output = run(&[&["report", "t.varve", "--json"], more].concat(), folder);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {error}"))
}

fn phase<'a>(report: &'a Value, name: &str) -> &'a Value {
    let phases = report["phases"].as_array().expect("a list");
    let found = phases.iter().find(|p| p["name"] == name);
    found.unwrap_or_else(|| panic!("no phase {name}: {phases:#?}"))
}

fn number(value: &Value) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("no number: {value}"))
}

fn notes(folder: &Path) -> String {
    let manifest = std::fs::read(folder.join("t.varve/manifest.json")).expect("a manifest");
    let manifest: Value = serde_json::from_slice(&manifest).expect("JSON");
    manifest["notes"].to_string()
}

/// What programs have in common. Which pages a phase touched is known by intervals: where the pages of two phases must be
/// told apart, an interval ends between them.
const TOUCH: &str = concat!(
    r#"
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#ifdef MARKED
#include <varve/mark.h>
#else
#define varve_begin(name)
#define varve_end(name)
#define varve_mark(name)
#endif
#define MAYBE __attribute__((unused)) static
MAYBE char *map(unsigned long pages)
{
    return (char *)mmap(0, pages << 12, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}
MAYBE void touch(char *at, unsigned long pages)
{
    for (int round = 0; round < 6; round++) {
        for (unsigned long i = 0; i < pages; i++)
            ((volatile char *)at)[i << 12] = 1;
        usleep(40000);
    }
}
"#,
    include_str!("../../trust/programs/intervals.h")
);

const PHASES: &str = r#"
int main(void)
{
    char *a = map(3000), *b = map(1000);
    an_interval_ends(getenv("VARVE_TEST_TRACE"));
    madvise(a, 3000 << 12, MADV_NOHUGEPAGE);
    madvise(b, 1000 << 12, MADV_NOHUGEPAGE);
    varve_begin("load");
    touch(a, 3000);
    varve_end("load");
    an_interval_ends(getenv("VARVE_TEST_TRACE"));
    varve_mark("half");
    for (int i = 0; i < 2; i++) {
        varve_begin("solve");
        varve_begin("inner");
        touch(b, 1000);
        varve_end("inner");
        varve_end("solve");
    }
    puts("done");
    return 7;
}
"#;

/// The program's own pages beside those of the phase: stack, libraries.
const OTHER: u64 = 400;

fn has_known_phases(report: &Value) {
    let load = phase(report, "load");
    let touched = number(&load["touched_pages"]);
    assert!((3000..3000 + OTHER).contains(&touched), "{load}");
    assert!(number(&load["total_ns"]) >= 240_000_000, "{load}");
    assert_eq!((number(&load["times"]), number(&load["open"])), (1, 0));
    for name in ["solve", "inner"] {
        let solve = phase(report, name);
        let touched = number(&solve["touched_pages"]);
        assert!((1000..1000 + OTHER).contains(&touched), "{solve}");
        assert_eq!((number(&solve["times"]), number(&solve["open"])), (2, 0));
    }
    let half = phase(report, "half");
    assert_eq!(
        (&half["kind"], &half["touched_pages"]),
        (&"event".into(), &Value::Null)
    );
}

#[test]
fn the_pages_of_each_phase_are_those_that_it_touches() {
    let folder = tempfile::tempdir().expect("a folder");
    let source = format!("#define MARKED\n{TOUCH}{PHASES}");
    for flags in [&["-std=gnu99"][..], &["-static"], &["-no-pie", "-fno-pie"]] {
        let program = build(folder.path(), "phases.c", &source, flags);
        let (code, report) = recorded(folder.path(), &[&program]);
        assert_eq!(code, Some(7));
        has_known_phases(&report);
    }
    // One phase alone, in a report, a check and a comparison.
    let load = report(folder.path(), &["--phase", "load"]);
    let solve = report(folder.path(), &["--phase", "solve"]);
    let pages = |r: &Value| number(&r["footprint"]["touched_pages"]);
    assert!((3000..3000 + OTHER).contains(&pages(&load)));
    assert!((1000..1000 + OTHER).contains(&pages(&solve)));
    assert_eq!(pages(&load), number(&phase(&load, "load")["touched_pages"]));
    let checked = |phase: &str| {
        let budget = [
            "check",
            "t.varve",
            "--expect-exit",
            "7",
            "--max-touched",
            "8MiB",
        ];
        run(&[&budget[..], &["--phase", phase]].concat(), folder.path())
    };
    assert_eq!(checked("solve").status.code(), Some(0));
    assert_eq!(checked("load").status.code(), Some(1));
    let same = run(
        &["diff", "t.varve", "t.varve", "--phase", "solve"],
        folder.path(),
    );
    assert!(same.status.success());
    let none = run(&["report", "t.varve", "--phase", "lo"], folder.path());
    let error = String::from_utf8_lossy(&none.stderr).into_owned();
    assert!(
        error.contains("no phase `lo`") && error.contains("`load`"),
        "{error}"
    );
}

/// The emulator answers the call by which a program makes a mark: its plugin makes it once more.
#[test]
fn phases_of_a_program_whose_every_access_is_counted() {
    let folder = tempfile::tempdir().expect("a folder");
    let source = format!("#define MARKED\n{TOUCH}{PHASES}");
    let exact = ["--backend", "exact", "--interval-accesses", "256"];
    for flags in [&["-std=gnu99"][..], &["-static"], &["-no-pie", "-fno-pie"]] {
        let program = build(folder.path(), "phases.c", &source, flags);
        let (code, report) = recorded_with(folder.path(), &exact, &[&program]);
        assert_eq!(code, Some(7));
        has_known_phases(&report);
    }
    // Children, and what is run by another program.
    let program = build(folder.path(), "phases.c", &source, &[]);
    let both = format!("{program} & {program}; wait");
    let (_, report) = recorded_with(folder.path(), &["--backend", "exact"], &["sh", "-c", &both]);
    assert_eq!(number(&phase(&report, "load")["times"]), 2);
    assert_eq!(number(&phase(&report, "half")["times"]), 2);
}

#[test]
fn a_program_without_marks_has_no_phases_and_one_without_a_recorder_does_the_same() {
    let folder = tempfile::tempdir().expect("a folder");
    let plain = build(folder.path(), "plain.c", &format!("{TOUCH}{PHASES}"), &[]);
    let (code, report) = recorded(folder.path(), &[&plain]);
    assert_eq!(
        (code, report["phases"].as_array().map(Vec::len)),
        (Some(7), Some(0))
    );
    let marked = format!("#define MARKED\n{TOUCH}{PHASES}");
    let marked = build(folder.path(), "marked.c", &marked, &[]);
    let alone = |program: &str| Command::new(program).output().expect("it runs");
    let (a, b) = (alone(&plain), alone(&marked));
    assert_eq!((a.status, a.stdout), (b.status, b.stdout));
}

#[test]
fn a_scope_of_cpp_is_a_phase() {
    let folder = tempfile::tempdir().expect("a folder");
    let main = r#"
int main()
{
    char *a = map(2000);
    madvise(a, 2000 << 12, MADV_NOHUGEPAGE);
    an_interval_ends(getenv("VARVE_TEST_TRACE"));
    try {
        varve::phase outer("outer");
        varve::phase load("load");
        touch(a, 2000);
        throw 1;
    } catch (int) {
    }
    an_interval_ends(getenv("VARVE_TEST_TRACE"));
    varve::phase rest("rest");
}
"#;
    let source = format!("#define MARKED\n{TOUCH}{main}");
    for standard in ["-std=c++11", "-std=c++20"] {
        let program = build(folder.path(), "scope.cpp", &source, &[standard]);
        let (_, report) = recorded(folder.path(), &[&program]);
        for name in ["outer", "load"] {
            let phase = phase(&report, name);
            assert_eq!(number(&phase["open"]), 0);
            let touched = number(&phase["touched_pages"]);
            assert!((2000..2000 + OTHER).contains(&touched), "{phase}");
        }
        assert!(number(&phase(&report, "rest")["touched_pages"]) < OTHER);
    }
}

/// `--no-preload` adds nothing to the environment; who sets the variable himself is heard.
#[test]
fn who_sets_the_variable_is_heard() {
    let folder = tempfile::tempdir().expect("a folder");
    let marked = format!("#define MARKED\n{TOUCH}{PHASES}");
    let marked = build(folder.path(), "marked.c", &marked, &[]);
    let phases = |command: &[&str]| {
        let options = ["record", "--force", "--no-preload", "-o", "t.varve", "--"];
        let output = run(&[&options[..], command].concat(), folder.path());
        assert_eq!(output.status.code(), Some(7));
        report(folder.path(), &[])["phases"]
            .as_array()
            .map(Vec::len)
    };
    assert_eq!(phases(&[&marked]), Some(0));
    // Nobody could hear marks: that there are none is not known.
    let said = |more: &[&str]| {
        let output = run(&[&["report", "t.varve"], more].concat(), folder.path());
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    };
    let section = said(&["--section", "phases"]);
    assert!(section.contains("not known: "), "{section}");
    assert!(section.contains("docs/marks.md"), "{section}");
    let refused = said(&["--phase", "load"]);
    assert!(refused.contains("docs/marks.md"), "{refused}");
    let unknown = report(folder.path(), &[])["unknown"].to_string();
    assert!(
        unknown.contains("Which phases the program names"),
        "{unknown}"
    );
    let (_, deaf) = recorded(folder.path(), &["true"]);
    assert!(
        !deaf["unknown"]
            .to_string()
            .contains("phases the program names")
    );
    assert!(said(&["--section", "phases"]).contains("the program names none"));
    assert_eq!(phases(&["env", "VARVE_MARKS=1", &marked]), Some(4));
}

/// Does nothing in a test; recorded, it is the program.
#[test]
fn the_rust_program() {
    if std::env::var_os("VARVE_MARKS_TEST").is_none() {
        return;
    }
    let mut pages = vec![0_u8; 2000 << 12];
    wait_for_an_interval();
    let load = varve_mark::phase(c"load");
    for round in 0..6 {
        pages
            .iter_mut()
            .step_by(4096)
            .for_each(|byte| *byte = round);
        std::thread::sleep(std::time::Duration::from_millis(40));
    }
    std::hint::black_box(&pages);
    drop(load);
    varve_mark::event(c"loaded");
    let _rest = varve_mark::phase(c"rest");
}

#[test]
fn a_guard_of_rust_is_a_phase() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = std::env::current_exe().expect("a path");
    let program = program.to_string_lossy().into_owned();
    let command = [
        "env",
        "VARVE_MARKS_TEST=1",
        &program,
        "--exact",
        "the_rust_program",
    ];
    let (code, report) = recorded(folder.path(), &command);
    assert_eq!(code, Some(0));
    let touched = number(&phase(&report, "load")["touched_pages"]);
    assert!((1999..2001 + 2 * OTHER).contains(&touched), "{touched}");
    assert_eq!(number(&phase(&report, "loaded")["times"]), 1);
    assert_eq!(number(&phase(&report, "rest")["open"]), 0);
}

#[test]
fn threads_have_phases_of_their_own() {
    let folder = tempfile::tempdir().expect("a folder");
    let main = r#"
#include <pthread.h>
static void *work(void *at)
{
    (void)at;
    varve_begin("outer");
    for (int i = 0; i < 10; i++) {
        varve_begin("inner");
        varve_begin("inner");
        usleep(1000);
        varve_end("inner");
        varve_end("inner");
    }
    varve_end("outer");
    varve_begin("left");
    return 0;
}
int main(void)
{
    pthread_t threads[200];
    for (int i = 0; i < 200; i++)
        if (pthread_create(&threads[i], 0, work, 0))
            return 1;
    for (int i = 0; i < 200; i++)
        pthread_join(threads[i], 0);
    varve_end("never begun");
    return 0;
}
"#;
    let source = format!("#define MARKED\n{TOUCH}{main}");
    let program = build(folder.path(), "threads.c", &source, &[]);
    let (code, report) = recorded(folder.path(), &[&program]);
    assert_eq!(code, Some(0));
    for (name, times, open) in [("outer", 200, 0), ("inner", 4000, 0), ("left", 200, 200)] {
        let phase = phase(&report, name);
        let is = ["times", "open", "threads"].map(|field| number(&phase[field]));
        assert_eq!(is, [times, open, 200], "{name}");
    }
    assert!(notes(folder.path()).contains("1 end of a phase is left out"));
}

#[test]
fn phases_end_with_what_runs_and_are_not_its_childrens() {
    let folder = tempfile::tempdir().expect("a folder");
    let main = r#"
#include <signal.h>
#include <sys/wait.h>
int main(int n, char **words)
{
    if (n > 1) {
        varve_mark("runs next");
        return 0;
    }
    varve_begin("forks");
    if (!fork()) {
        varve_begin("child");
        execl(words[0], words[0], "again", (char *)0);
    }
    if (!fork()) {
        varve_begin("killed");
        raise(SIGKILL);
    }
    while (wait(0) > 0)
        ;
    varve_mark("both are gone");
    return 0;
}
"#;
    let source = format!("#define MARKED\n{TOUCH}{main}");
    let program = build(folder.path(), "forks.c", &source, &[]);
    let (code, report) = recorded(folder.path(), &[&program]);
    assert_eq!(code, Some(0));
    for name in ["forks", "child", "killed"] {
        let phase = phase(&report, name);
        let is = ["times", "open", "processes"].map(|field| number(&phase[field]));
        assert_eq!(is, [1, 1, 1], "{name}");
    }
    let first = |name: &str| number(&phase(&report, name)["first_ns"]);
    let end = |name: &str| first(name) + number(&phase(&report, name)["total_ns"]);
    assert!(end("child") <= first("runs next"), "{report}");
    assert!(end("killed") <= first("both are gone"), "{report}");
    assert!(end("forks") >= first("both are gone"), "{report}");
}

#[test]
fn hostile_names_are_bounded_and_shown_harmlessly() {
    let folder = tempfile::tempdir().expect("a folder");
    let main = r#"
int main(void)
{
    static char large[1 << 20], name[32];
    memset(large, 'x', sizeof(large) - 1);
    varve_begin(large);
    varve_end(large);
    varve_begin("\033[31mred\n\xff");
    varve_end("\033[31mred\n\xff");
    varve_begin("");
    varve_end("");
    varve_begin(0);
    for (int i = 0; i < 1000000; i++) {
        sprintf(name, "name %d", i);
        varve_mark(name);
    }
    return 3;
}
"#;
    let source = format!("#define MARKED\n{TOUCH}{main}");
    let program = build(folder.path(), "names.c", &source, &[]);
    let (code, report) = recorded(folder.path(), &[&program]);
    assert_eq!(code, Some(3));
    let phases = report["phases"].as_array().expect("a list");
    assert!(phases.len() <= 4096, "{}", phases.len());
    let large = phase(&report, &"x".repeat(128));
    assert_eq!((number(&large["times"]), number(&large["open"])), (1, 0));
    assert_eq!(number(&phase(&report, "")["times"]), 1);
    let notes = notes(folder.path());
    assert!(
        notes.contains("a recording keeps 4,096 different names"),
        "{notes}"
    );
    assert!(notes.contains("longer than 128 bytes"), "{notes}");
    // A million system calls take their time, and the trace says so.
    assert!(notes.contains("each is a system call"), "{notes}");
    let shown = run(
        &["report", "t.varve", "--section", "phases", "--all"],
        folder.path(),
    );
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(text.contains("red") && !text.contains('\x1b'), "{text}");
}
