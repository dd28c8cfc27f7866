//! `varve alloc compare` and `varve alloc range` on runs of a real program.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use crate::support::{varve, workload};

fn run(words: &[&str]) -> Output {
    let mut command = Command::new(varve());
    command.arg("alloc").args(words).output().unwrap()
}

fn compared(work: &[&str], to: &Path) {
    let program = workload("alloc_work");
    let options = [
        "compare",
        "-n",
        "2",
        "--allocators",
        "jemalloc,tcmalloc",
        "--json",
        "--",
    ];
    let ended = run(&[&options[..], &[program.to_str().unwrap()], work].concat());
    assert!(
        ended.status.success(),
        "{}",
        String::from_utf8_lossy(&ended.stderr)
    );
    std::fs::write(to, ended.stdout).unwrap();
}

#[test]
fn the_range_of_two_comparisons_and_a_grade() {
    let folder = tempfile::tempdir().unwrap();
    let [small, large] = ["small.json", "large.json"].map(|name| folder.path().join(name));
    compared(&["churn", "1", "200", "200000"], &small);
    compared(&["churn", "2", "40000", "20000"], &large);
    let files = [small.to_str().unwrap(), large.to_str().unwrap()];
    let range = |options: &[&str]| {
        let ended = run(&[&["range"], &files[..], options].concat());
        assert!(
            ended.status.success(),
            "{}",
            String::from_utf8_lossy(&ended.stderr)
        );
        String::from_utf8(ended.stdout).unwrap()
    };
    let found: Value = serde_json::from_str(&range(&["--json"])).unwrap();
    assert_eq!(found["schema"], "varve-alloc-range/1");
    let names = |of: &Value| {
        let all = of["allocators"].as_array().unwrap().iter();
        let mut names: Vec<String> = all
            .map(|a| a["name"].as_str().unwrap().to_owned())
            .collect();
        names.sort();
        names
    };
    assert_eq!(names(&found), ["glibc", "jemalloc", "tcmalloc"]);
    let of = |found: &Value, name: &str| {
        let all = found["figures"].as_array().unwrap();
        all.iter().find(|f| f["name"] == name).unwrap().clone()
    };
    // Two programs under three allocators; the best of each program is 1, and the good ones lie near it.
    let time = of(&found, "time, of the best");
    assert_eq!(time["all"]["count"], 6);
    assert_eq!(time["all"]["lowest"], 1.0);
    assert!(time["good"]["highest"].as_f64().unwrap() <= 1.2, "{time}");
    // The recorded runs are in it whose time is known: a busy machine may have taken the CPU of too many that were timed.
    let known = |path: &PathBuf| {
        let compared: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let all = compared["allocators"].as_array().unwrap().iter();
        all.filter(|a| a["judgement"]["time"]["operations_ns"].is_u64())
            .count()
    };
    let known: usize = [&small, &large].into_iter().map(known).sum();
    let operations = of(&found, "ns an operation");
    assert_eq!(operations["all"]["count"], known);
    let lowest = operations["all"]["lowest"].as_f64();
    assert!(known == 0 || lowest > Some(1.0), "{operations}");

    let graded: Value = serde_json::from_str(&range(&["--grade", "glibc", "--json"])).unwrap();
    let time = of(&graded, "time, of the best");
    assert_eq!(
        (&time["all"]["count"], &time["graded"]["count"]),
        (&4.into(), &2.into())
    );
    let shown = range(&["--grade", "glibc"]);
    assert!(shown.starts_with("glibc is good for "), "{shown}");
    assert!(
        shown.contains("good allocators") && shown.contains("in range"),
        "{shown}"
    );
}

#[test]
fn what_is_no_comparison_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let other = folder.path().join("other.json");
    std::fs::write(
        &other,
        r#"{"schema": "varve-alloc/1", "command": [], "allocators": []}"#,
    )
    .unwrap();
    let path = other.to_str().unwrap();
    for (words, said) in [
        (&["range", path][..], "has the schema varve-alloc/1"),
        (&["range", "/nowhere.json"], "cannot read /nowhere.json"),
        (&["range", "/proc/self/maps"], "is no comparison"),
    ] {
        let ended = run(words);
        let errors = String::from_utf8_lossy(&ended.stderr);
        assert!(!ended.status.success() && errors.contains(said), "{errors}");
        assert!(
            errors.contains("hint: give what `varve alloc compare"),
            "{errors}"
        );
    }
    std::fs::write(
        &other,
        r#"{"schema": "varve-alloc-compare/1", "command": [], "allocators": []}"#,
    )
    .unwrap();
    let ended = run(&["range", path, "--grade", "new"]);
    let errors = String::from_utf8_lossy(&ended.stderr);
    assert!(
        errors.contains("none of these comparisons has an allocator called new"),
        "{errors}"
    );
}
