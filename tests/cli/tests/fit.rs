//! `varve fit` on programs whose accesses are known. It limits memory and swaps, which takes root, and a kernel with zram.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn known() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../workloads/bin/known");
    let path = path.canonicalize().expect("make -C workloads");
    path.to_str().expect("a path").to_owned()
}

fn fit(options: &[&str], program: &[&str]) -> Output {
    varve_cli_tests::varve()
        .arg("fit")
        .args(options)
        .arg("--")
        .args(program)
        .output()
        .expect("varve runs")
}

fn found(options: &[&str], program: &[&str]) -> Value {
    let mut all = vec!["--zram", "512MiB", "--json", "-n", "1"];
    all.extend(options);
    let output = fit(&all, program);
    let said = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {said}"))
}

/// Swap devices, zram devices and cgroups of this program's.
fn left() -> String {
    let swaps = std::fs::read_to_string("/proc/swaps").expect("swaps");
    let list = Command::new("find")
        .args(["/sys/fs/cgroup", "-maxdepth", "6", "-name", "varve-tier-*"])
        .output()
        .expect("find");
    format!("{swaps}{}", String::from_utf8_lossy(&list.stdout))
}

/// Pages read, predicted and counted by the kernel, under the limit with the kernel alone.
fn reads(of: &Value) -> (f64, f64) {
    let runs = of["runs"].as_array().expect("runs");
    let run = runs
        .iter()
        .find(|r| r["way"] == "kernel" && r["memory"] == of["limit"])
        .expect("a run under the limit");
    assert_eq!(
        (&run["out_of_memory"], &run["too_slow"]),
        (&0.into(), &0.into()),
        "{run}"
    );
    let figure = |name: &str| {
        run[name]
            .as_f64()
            .unwrap_or_else(|| panic!("{name}: {run}"))
    };
    (figure("predicted_reads"), figure("reads"))
}

#[test]
fn pages_that_are_read_again_are_predicted_and_others_are_not() {
    if !Path::new("/sys/class/zram-control").exists() {
        eprintln!("this kernel has no zram: nothing was tested");
        return;
    }
    let before = left();
    // 12,288 pages round and round, of which about 8,000 fit.
    let scan = found(&["--memory", "32MiB"], &[&known(), "scan", "48", "5"]);
    let (predicted, counted) = reads(&scan);
    assert!(counted > 10_000.0, "{counted}");
    let many = counted;
    // Where an interval of the recording reached over a round, which the command says, what is predicted is the least to be expected.
    let notes = scan["notes"].as_array().expect("notes");
    let is_least = notes.iter().any(|note| {
        let note = note.as_str().unwrap_or_default();
        note.contains("within an interval of the recording")
    });
    let ratio = predicted / counted;
    assert!(
        ratio < 1.3 && (ratio > 0.7 || is_least),
        "{predicted} predicted, {counted} counted: {notes:?}"
    );
    // The control: as much memory under the same limit, most of which is never used again.
    let hot = found(&["--memory", "32MiB"], &[&known(), "hot", "8", "40", "12"]);
    let (predicted, counted) = reads(&hot);
    assert!(
        predicted < many / 10.0 && counted < many / 10.0,
        "{predicted} predicted, {counted} counted; {many} where pages are read again"
    );
    assert_eq!(left(), before);
}

#[test]
fn what_is_missing_is_said_and_a_program_that_fails_is_its_own() {
    let failing = fit(&["--zram", "64MiB"], &["false"]);
    let said = String::from_utf8_lossy(&failing.stderr);
    assert_eq!(failing.status.code(), Some(3), "{said}");
    assert!(said.contains("exit code 1"), "{said}");
    let absent = fit(&["--zram", "64MiB"], &["/nowhere/program"]);
    let said = String::from_utf8_lossy(&absent.stderr);
    assert_eq!(absent.status.code(), Some(2), "{said}");
    assert!(said.contains("/nowhere/program"), "{said}");
    let small = fit(&["--zram", "4MiB"], &[&known(), "scan", "32", "1"]);
    let said = String::from_utf8_lossy(&small.stderr);
    // Another swap device of the machine's may have room.
    if small.status.code() == Some(2) {
        assert!(said.contains("of swap are free"), "{said}");
    }
}
