//! Probes: processes that run already, and allocators within executables. What is counted is what the programs are called with.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::support::{record, varve, workload};

/// A program that waits for a line before it does what it is called with, and for another one before it ends.
struct Program {
    child: Child,
    said: BufReader<std::process::ChildStdout>,
}

impl Program {
    fn start(path: &Path, arguments: &[&str]) -> Program {
        let mut child = Command::new(path)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        let mut program = Program { child, said };
        assert_eq!(program.line(), "ready\n");
        program
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.said.read_line(&mut line).unwrap();
        line
    }

    fn go(&mut self) {
        let input = self.child.stdin.as_mut().unwrap();
        input.write_all(b"\n").unwrap();
    }

    /// Does what it is called with.
    fn work(&mut self) {
        self.go();
        assert_eq!(self.line(), "done\n");
    }

    fn end(&mut self) -> Option<i32> {
        self.go();
        self.child.wait().unwrap().code()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A recorder that is attached.
struct Recorder {
    child: Child,
    said: BufReader<ChildStderr>,
    folder: TempDir,
    text: String,
}

impl Recorder {
    fn attach(to: &Program, options: &[&str]) -> Recorder {
        let folder = tempfile::tempdir().unwrap();
        let mut child = Command::new(varve())
            .args(["alloc", "record", "-o"])
            .arg(folder.path().join("t.varve"))
            .args(match options.contains(&"--pages") {
                true => &[][..],
                false => &["--pages", "off"],
            })
            .args(options)
            .args(["-p", &to.child.id().to_string()])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stderr.take().unwrap());
        let mut recorder = Recorder {
            child,
            said,
            folder,
            text: String::new(),
        };
        // It counts before it says so.
        while !recorder.text.contains("recording process") {
            let read = recorder.said.read_line(&mut recorder.text).unwrap();
            assert!(read > 0, "{}", recorder.text);
        }
        recorder
    }

    fn signal(&self, name: &str) {
        let signal = Command::new("kill")
            .args([&format!("-{name}"), &self.child.id().to_string()])
            .status();
        assert!(signal.unwrap().success());
    }

    /// What it wrote, once it has ended.
    fn judgement(&mut self) -> Value {
        self.said.read_to_string(&mut self.text).unwrap();
        let ended = self.child.wait().unwrap();
        assert!(ended.success(), "{ended}: {}", self.text);
        report(&self.folder.path().join("t.varve"))
    }
}

fn report(trace: &Path) -> Value {
    let mut report = Command::new(varve());
    let printed = report.args(["alloc", "report", "--json"]).arg(trace);
    let printed = printed.output().unwrap();
    let errors = String::from_utf8_lossy(&printed.stderr);
    assert!(printed.status.success(), "{errors}");
    serde_json::from_slice(&printed.stdout).unwrap()
}

fn count(of: &Value, operation: &str) -> u64 {
    of["operations"][operation]["count"].as_u64().unwrap_or(0)
}

/// What `counts N` does.
fn assert_counts(of: &Value, n: u64) {
    // The C++ library allocates each exception.
    let expected = [
        ("malloc", n + 7),
        ("calloc", n),
        ("realloc", n),
        ("posix_memalign", n),
        ("free", 3 * n + 7),
        ("new[]", n + 7),
        ("delete[]", n),
    ];
    for (operation, expected) in expected {
        assert_eq!(
            count(of, operation),
            expected,
            "{operation}: {}",
            of["operations"]
        );
    }
    let operations = &of["operations"];
    assert_eq!(operations["new[]"]["failed"], 7);
    let requested = |operation: &str| operations[operation]["requested_bytes"].as_u64();
    let blocks: u64 = (0..n).map(|i| 100 + i % 32).sum();
    let exceptions = requested("malloc").unwrap() - blocks;
    assert!(
        exceptions.is_multiple_of(7) && exceptions < 7 * 1000,
        "{exceptions}"
    );
    assert_eq!(requested("calloc"), Some(200 * n));
    assert_eq!(requested("realloc"), Some(3000 * n));
    assert_eq!(requested("posix_memalign"), Some(500 * n));
    assert_eq!(requested("free"), Some(blocks + exceptions + 3500 * n));
    assert_eq!(requested("new[]"), requested("delete[]"));
    assert_eq!(of["trace"]["lost"], 0);
}

#[test]
fn a_process_that_runs_already_is_counted_exactly_from_then_on() {
    const N: u64 = 3000;
    let mut program = Program::start(&workload("alloc_attached"), &["counts", "3000"]);
    let mut recorder = Recorder::attach(&program, &[]);
    program.work();
    // Exceptions pass as ever, or this is not its own code.
    assert_eq!(program.end(), Some(0));
    let found = recorder.judgement();
    assert_counts(&found, N);
    assert_eq!(found["trace"]["attached"], true);
    assert!(found["trace"]["probe_ns"].as_u64().unwrap() > 0);
    assert!(recorder.text.contains("µs longer"), "{}", recorder.text);
    assert_eq!(found["memory"]["end_blocks"], 0);
    // What was mapped before nobody saw.
    assert!(found["memory"]["unknown"].is_string());
}

/// The library's counts of the same program, which begins before it does something, and those of the same program with its allocator in itself.
#[test]
fn probes_count_what_the_library_counts() {
    const N: u64 = 2000;
    let lines = |command: &Path| {
        let trace = tempfile::tempdir().unwrap();
        let mut recorder = Command::new(varve())
            .args(["alloc", "record", "--pages", "off", "-o"])
            .arg(trace.path().join("t.varve"))
            .arg("--")
            .arg(command)
            .args(["counts", "2000"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        recorder.stdin.take().unwrap().write_all(b"\n\n").unwrap();
        assert_eq!(recorder.wait().unwrap().code(), Some(0));
        report(&trace.path().join("t.varve"))
    };
    let library = lines(&workload("alloc_attached"));
    let probes = lines(&workload("alloc_attached_static"));
    assert!(library["trace"]["probe_ns"].is_null());
    assert!(probes["trace"]["probe_ns"].is_u64());
    // Both begin before `main`, and their loaders allocate a little.
    for operation in [
        "malloc",
        "calloc",
        "realloc",
        "posix_memalign",
        "free",
        "delete[]",
    ] {
        let (by_library, by_probes) = (count(&library, operation), count(&probes, operation));
        assert!(
            by_library.abs_diff(by_probes) < 60,
            "{operation}: {by_library} {by_probes}"
        );
        assert!(by_probes >= N, "{operation}: {by_probes}");
    }
    // The library does not see operators end that throw.
    assert_eq!(count(&library, "new[]"), N);
    assert_eq!(count(&probes, "new[]"), N + 7);
    let usable = |of: &Value, name: &str| of["operations"][name]["usable_bytes"].as_u64().unwrap();
    for operation in ["posix_memalign", "new[]", "delete[]"] {
        assert_eq!(
            usable(&library, operation),
            usable(&probes, operation),
            "{operation}"
        );
    }
    assert_eq!(probes["trace"]["allocator"], "glibc");
}

/// Without its name a function has no probe, and only that is missing.
#[test]
fn a_function_without_a_probe_is_not_counted() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("nameless");
    let stripped = Command::new("objcopy")
        .args([
            "--strip-symbol=realloc",
            "--strip-symbol=__libc_realloc",
            "--strip-symbol=__realloc",
        ])
        .arg(workload("alloc_attached_static"))
        .arg(&program)
        .status();
    assert!(stripped.unwrap().success());
    let mut program = Program::start(&program, &["counts", "500"]);
    let mut recorder = Recorder::attach(&program, &[]);
    program.work();
    assert_eq!(program.end(), Some(0));
    let found = recorder.judgement();
    assert_eq!(count(&found, "realloc"), 0);
    assert_eq!(count(&found, "calloc"), 500);
    assert_eq!(count(&found, "posix_memalign"), 500);
}

#[test]
fn blocks_that_were_there_before_are_unknown() {
    let mut program = Program::start(&workload("alloc_attached"), &["before", "400"]);
    let mut recorder = Recorder::attach(&program, &[]);
    program.work();
    assert_eq!(program.end(), Some(0));
    let found = recorder.judgement();
    assert_eq!((count(&found, "malloc"), count(&found, "free")), (400, 400));
    let memory = &found["memory"];
    assert_eq!(memory["end_blocks"], 400);
    assert_eq!(memory["end_requested_bytes"], 400_000);
    assert_eq!(memory["peak_requested_bytes"], 400_000);
}

#[test]
fn threads_that_allocate_at_once_are_counted_exactly_by_probes() {
    let mut program = Program::start(&workload("alloc_attached"), &["threads", "8", "1500"]);
    let mut recorder = Recorder::attach(&program, &[]);
    program.work();
    assert_eq!(program.end(), Some(0));
    let found = recorder.judgement();
    // The C library's own: what a thread needs, and what is freed at its end.
    let extra = count(&found, "malloc").checked_sub(8 * 1500).unwrap();
    assert!(extra < 20, "{extra}");
    let extra = count(&found, "free").checked_sub(8 * 1500).unwrap();
    assert!(extra < 8 * 25, "{extra}");
    let threads = found["threads"].as_array().unwrap();
    let whole = threads.iter().filter(|t| t["count"].as_u64() >= Some(3000));
    assert_eq!(whole.count(), 8, "{threads:#?}");
    assert!(found["operations"]["malloc"]["parallel"].as_u64() > Some(1000));
    assert_eq!(found["trace"]["lost"], 0);
}

/// No other process has the file: its probes are there for a child's first instruction.
#[test]
fn a_child_is_counted_from_its_beginning() {
    // Other tests run the program as well, so that its file is this one's alone. Another process writes it: a file that is open for writing in
    // a child of this one cannot be executed.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("own");
    let copied = Command::new("cp")
        .arg(workload("alloc_attached_static"))
        .arg(&file)
        .status();
    assert!(copied.unwrap().success());
    let mut program = Program::start(&file, &["fork", "2000"]);
    let mut recorder = Recorder::attach(&program, &[]);
    program.work();
    assert_eq!(program.end(), Some(0));
    let found = recorder.judgement();
    assert_eq!(count(&found, "malloc"), 1 + 2 * 2000);
    // The child frees a block of its parent's, and knows its size.
    assert_eq!(count(&found, "free"), 2 + 2 * 2000);
    let blocks: u64 = (0..2000).map(|i| 100 + i % 32).sum();
    let freed = found["operations"]["free"]["requested_bytes"].as_u64();
    assert_eq!(freed, Some(2 * (777 + blocks)));
    assert_eq!(found["processes"].as_array().unwrap().len(), 2);
}

#[test]
fn a_program_that_ends_while_it_is_attached_to() {
    let mut program = Program::start(&workload("alloc_attached"), &["exit", "1234"]);
    let mut recorder = Recorder::attach(&program, &[]);
    assert_eq!(program.end(), Some(5));
    let found = recorder.judgement();
    assert_eq!(count(&found, "malloc"), 1234);
    assert_eq!(found["memory"]["end_blocks"], 1234);
}

/// The kernel takes the probes away with the recorder, whatever ends it.
#[test]
fn a_recorder_that_ends_leaves_its_target_alone() {
    for signal in ["KILL", "INT"] {
        let mut program = Program::start(&workload("alloc_attached"), &["counts", "1000"]);
        let mut recorder = Recorder::attach(&program, &[]);
        recorder.signal(signal);
        if signal == "INT" {
            let found = recorder.judgement();
            assert_eq!(found["operations"].as_object().unwrap().len(), 0, "{found}");
        } else {
            recorder.child.wait().unwrap();
        }
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", program.child.id())).unwrap();
        program.work();
        assert_eq!(program.end(), Some(0), "{signal}: {maps}");
    }
}

#[test]
fn a_recording_with_a_duration_ends_by_itself() {
    let mut program = Program::start(&workload("alloc_attached"), &["counts", "1000"]);
    let mut recorder = Recorder::attach(&program, &["--duration", "1s"]);
    let found = recorder.judgement();
    assert_eq!(found["operations"].as_object().unwrap().len(), 0, "{found}");
    program.work();
    assert_eq!(program.end(), Some(0));
}

#[test]
fn a_recording_with_pages() {
    let mut program = Program::start(&workload("alloc_attached"), &["counts", "1000"]);
    let mut recorder = Recorder::attach(&program, &["--pages", "on"]);
    program.work();
    recorder.signal("INT");
    let found = recorder.judgement();
    assert_counts(&found, 1000);
    assert_eq!(program.end(), Some(0));
    let touched = Command::new(varve())
        .args(["report", "--json"])
        .arg(recorder.folder.path().join("t.varve"))
        .output()
        .unwrap();
    let touched: Value = serde_json::from_slice(&touched.stdout).unwrap();
    assert!(touched["footprint"]["touched_pages"].as_u64() > Some(0));
}

#[test]
fn an_allocator_behind_a_prefix() {
    let program = workload("alloc_prefixed");
    let recorded = record(&[], &[program.to_str().unwrap(), "1500"]);
    assert_eq!(
        (recorded.count("malloc"), recorded.count("free")),
        (1500, 1500)
    );
    let errors = String::from_utf8_lossy(&recorded.output.stderr);
    assert!(errors.contains("je_malloc"), "{errors}");
    // How large its blocks are it does not say.
    assert!(recorded.judgement["operations"]["malloc"]["usable_bytes"].is_null());
    assert!(recorded.judgement["memory"]["internal_fragmentation"].is_null());
    assert_eq!(recorded.judgement["trace"]["allocator"], "jemalloc");
}

fn stripped(of: &Path, folder: &TempDir) -> PathBuf {
    let program = folder.path().join("stripped");
    let strip = Command::new("strip")
        .arg("-o")
        .arg(&program)
        .arg(of)
        .status();
    assert!(strip.unwrap().success());
    program
}

#[test]
fn what_cannot_be_counted_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let nameless = stripped(&workload("alloc_attached_static"), &folder);
    let mut waiting = Program::start(&nameless, &["counts", "10"]);
    let trace = folder.path().join("t.varve");
    let tried = Command::new(varve())
        .args(["alloc", "record", "--pages", "off", "-o"])
        .arg(&trace)
        .arg("-p")
        .arg(waiting.child.id().to_string())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&tried.stderr);
    assert!(
        errors.contains("has no symbols") && errors.contains("hint:"),
        "{errors}"
    );
    assert_eq!(tried.status.code(), Some(125));
    assert!(!trace.exists());
    waiting.work();
    assert_eq!(waiting.end(), Some(0));
    let program = workload("alloc_attached_static");
    let tried = Command::new(varve())
        .args(["alloc", "record", "--allocator", "jemalloc", "-o"])
        .arg(&trace)
        .arg("--")
        .arg(program)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&tried.stderr);
    assert!(errors.contains("allocator in itself"), "{errors}");
}
