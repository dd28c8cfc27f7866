//! Situations in which the program must not notice anything, and what is known must stay.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::support::{own_counts, record, varve, wait_for, workload};

fn report(trace: &Path) -> Option<Value> {
    let mut report = Command::new(varve());
    let printed = report.args(["alloc", "report", "--json"]).arg(trace);
    let printed = printed.output().unwrap();
    let is_read = printed.status.success();
    is_read.then(|| serde_json::from_slice(&printed.stdout).unwrap())
}

fn mallocs(judgement: &Value) -> u64 {
    judgement["operations"]["malloc"]["count"]
        .as_u64()
        .unwrap_or(0)
}

#[test]
fn libraries_that_come_and_go() {
    const ROUNDS: u64 = 300;
    let (program, plugin) = (workload("alloc_work"), workload("liballoc_plugin.so"));
    let rounds = ROUNDS.to_string();
    let command = [
        program.to_str().unwrap(),
        "plugins",
        plugin.to_str().unwrap(),
        &rounds,
    ];
    let recorded = record(&[], &command);
    assert_eq!(recorded.output.status.code(), Some(0));
    assert_eq!(own_counts(&recorded.said()), (ROUNDS, ROUNDS));
    assert_eq!(recorded.judgement["trace"]["lost"], 0);
    // The library is unloaded long before names are looked for.
    let sites = recorded.judgement["sites"].as_array().unwrap();
    let count = |function: &str| -> u64 {
        let of = sites
            .iter()
            .filter(|s| s["label"].as_str().unwrap().contains(function));
        of.map(|s| s["count"].as_u64().unwrap()).sum()
    };
    assert_eq!(count("plugin_make"), ROUNDS, "{sites:#?}");
}

/// Nothing that is preloaded can stand in front of it: probes count, and the program ends as ever.
#[test]
fn a_program_with_its_own_allocator() {
    let program = workload("alloc_own");
    let recorded = record(
        &[],
        &[program.to_str().unwrap(), "churn", "2", "300", "20000"],
    );
    assert_eq!(recorded.output.status.code(), Some(0));
    assert_eq!(own_counts(&recorded.said()), (40_000, 40_512));
    // The C library allocates for itself: threads and what it prints through.
    let (malloc, free) = (recorded.count("malloc"), recorded.count("free"));
    assert!((40_000..40_050).contains(&malloc), "{malloc}");
    assert!((40_512..40_600).contains(&free), "{free}");
    assert!(recorded.judgement["trace"]["probe_ns"].is_u64());
}

/// What was written by then is in the trace of a recorder that was killed, and the target goes on.
#[test]
fn a_recorder_that_is_killed() {
    const MALLOCS: u64 = 1 + 20_000_000 / 1000;
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("t.varve");
    let mut recorder = Command::new(varve())
        .args(["alloc", "record", "--pages", "off", "-o"])
        .arg(&trace)
        .arg("--")
        .arg(workload("alloc_work"))
        .args(["hold", "20000000", "1000"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let input = recorder.stdin.take();
    let mut lines = BufReader::new(recorder.stderr.take().unwrap()).lines();
    let said = lines.find_map(|l| l.ok().filter(|l| l.ends_with(" 0")));
    assert_eq!(
        own_counts(&said.expect("it says what it did")),
        (MALLOCS, 0)
    );
    // What is known is written every half second or so.
    wait_for(&trace, "all are written", |found| mallocs(found) >= MALLOCS);
    recorder.kill().unwrap();
    recorder.wait().unwrap();
    let found = report(&trace).expect("the trace is read");
    let own = mallocs(&found) - MALLOCS;
    assert!(own < 50, "{own} more than the program made");
    drop(input);
}

/// Tracepoints of system calls slow the whole machine: they are there while operations are recorded, and for nothing else.
#[test]
fn tracepoints_of_system_calls_are_there_for_operations_alone() {
    let traces_calls = |command: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        let mut recorder = Command::new(varve())
            .args(command)
            .arg("-o")
            .arg(folder.path().join("t.varve"))
            .args(["--", "sh", "-c", "echo begun; read line; exit 0"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let input = recorder.stdin.take();
        let mut output = BufReader::new(recorder.stdout.take().unwrap());
        output.read_line(&mut String::new()).unwrap();
        let infos = std::fs::read_dir(format!("/proc/{}/fdinfo", recorder.id())).unwrap();
        let texts = infos.map(|info| std::fs::read_to_string(info.unwrap().path()));
        let links: Vec<String> = texts
            .flatten()
            .filter(|text| text.contains("raw_tracepoint"))
            .collect();
        assert!(!links.is_empty(), "a recorder has tracepoints");
        drop(input);
        assert!(recorder.wait().unwrap().success());
        let names = ["sys_enter", "sys_exit"];
        names.map(|name| links.iter().any(|text| text.contains(name)))
    };
    assert_eq!(traces_calls(&["alloc", "record"]), [true, true]);
    assert_eq!(traces_calls(&["record"]), [false, false]);
}

/// The recorder says that there is no room; the program does not notice.
#[test]
fn a_full_disk() {
    let folder = tempfile::tempdir().unwrap();
    let script = "mount -t tmpfs -o size=136k none \"$0\" && exec \"$1\" alloc record --pages off -o \"$0/t.varve\" -- \"$2\" churn 2 300 300000";
    let ran = Command::new("unshare")
        .args(["--mount", "sh", "-c", script])
        .arg(folder.path())
        .arg(varve())
        .arg(workload("alloc_work"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(said.contains("600000 600512\n"), "{said}");
    // It ends as the program does.
    assert_eq!(ran.status.code(), Some(0), "{said}");
    assert!(
        said.contains("No space left on device") && said.contains("hint:"),
        "{said}"
    );
}
