//! What other tools recorded goes in, is read, and goes out again.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn varve(arguments: &[&str], folder: &Path) -> Output {
    varve_cli_tests::varve()
        .args(arguments)
        .current_dir(folder)
        .env_remove("COLUMNS")
        .env_remove("CLICOLOR_FORCE")
        .output()
        .expect("varve runs")
}

fn golden(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../golden/import");
    folder.join(name).display().to_string()
}

fn good(arguments: &[&str], folder: &Path) -> String {
    let output = varve(arguments, folder);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments:?}: {said}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Imports golden files as `t`.
fn import(names: &[&str]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let files: Vec<String> = names.iter().map(|n| golden(n)).collect();
    let mut arguments = vec!["import"];
    arguments.extend(files.iter().map(String::as_str));
    arguments.extend(["-o", "t"]);
    good(&arguments, folder.path());
    folder
}

fn report(folder: &Path) -> Value {
    serde_json::from_str(&good(&["report", "t", "--json"], folder)).expect("JSON")
}

#[test]
fn what_a_record_lacks_is_null_and_said() {
    let folder = import(&["intel.perf-script.txt"]);
    let json = report(folder.path());
    for path in [
        "/overhead",
        "/working_set",
        "/reuse",
        "/tail",
        "/writes",
        "/footprint/touched_pages",
        "/footprint/faults",
        "/footprint/peak_resident_pages",
        "/trace/intervals",
        "/trace/machine",
        "/trace/start_unix_ns",
        "/objects/0/touched_pages",
        "/objects/0/first_touches",
        "/groups/0/page_touches",
        "/counts",
    ] {
        assert_eq!(json.pointer(path), Some(&Value::Null), "{path}");
    }
    assert_eq!(json["trace"]["complete"], false);
    assert_eq!(json["trace"]["losses"]["perf_lost"], 5);
    let samples = &json["samples"];
    assert_eq!(
        (&samples["samples"], &samples["reads"], &samples["writes"]),
        (&3.into(), &2.into(), &1.into())
    );
    assert_eq!(samples["latency_cycles"]["max"], 310);
    assert_eq!(samples["objects"][0]["name"], "anonymous memory");
    assert_eq!(samples["objects"][0]["samples"], 2);
    assert_eq!(samples["threads"].as_array().map(Vec::len), Some(2));
    // The first screen says what is missing.
    let first = good(&["report", "t"], folder.path());
    assert!(first.contains("perf_lost: 5"), "{first}");
    let page = good(&["report", "t", "--all"], folder.path());
    assert!(
        page.contains("machine not recorded") && page.contains("cost        not recorded"),
        "{page}"
    );
    assert!(
        !page.contains("target held") && !page.contains("0 touched"),
        "{page}"
    );
    good(&["report", "t", "--html", "page.html"], folder.path());
    let objects = good(&["report", "t", "--section", "objects"], folder.path());
    assert!(
        objects.contains("/data/input") && objects.contains("is not recorded"),
        "{objects}"
    );
}

#[test]
fn what_a_record_has_is_a_number() {
    let folder = import(&["a.full.page.tabarnac.csv", "a.structs.tabarnac.csv"]);
    let json = report(folder.path());
    assert_eq!(json["counts"]["reads"], 14);
    assert_eq!(json["counts"]["writes"], 8);
    assert_eq!(json["counts"]["objects"][0]["name"], "field");
    assert_eq!(
        json["counts"]["objects"][0]["threads"]
            .as_array()
            .map(Vec::len),
        Some(2)
    );
    assert_eq!(json["footprint"]["touched_pages"], 2);
    assert_eq!(json["objects"][0]["written_pages"], 1);
    assert_eq!(json["samples"], Value::Null);
    assert_eq!(json["trace"]["clock_unit"], "ticks");
    let folder = import(&["two_targets.damon.json"]);
    let json = report(folder.path());
    assert_eq!(json["footprint"]["touched_pages"], 5);
    assert_eq!(json["sources"][0]["source"], "damon");
    assert_eq!(json["trace"]["complete"], false);
}

/// Samples of events without addresses are no accesses, have no time, and no sum over events.
#[test]
fn each_event_is_shown_by_itself() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut text = String::new();
    for (at, (event, period, function)) in [
        ("cycles", 300, "one"),
        ("cycles", 100, "two"),
        ("cache-misses", 7, "two"),
        ("cycles", 100, "two"),
    ]
    .into_iter()
    .enumerate()
    {
        text += &format!(
            "tool 77/78 [001] 5.00000{at}: {period:10} {event}:  {:16x} {function}+0x8 (/opt/tool)\n",
            0x40_1abc
        );
    }
    std::fs::write(folder.path().join("events.txt"), &text).expect("write");
    good(&["import", "events.txt", "-o", "t"], folder.path());
    let json = report(folder.path());
    let events = json["samples"]["events"].as_array().expect("events");
    let brief = |e: &Value| {
        (
            e["event"].clone(),
            e["samples"].clone(),
            e["periods"].clone(),
        )
    };
    assert_eq!(
        events.iter().map(brief).collect::<Vec<_>>(),
        [
            ("cycles".into(), 3.into(), 500.into()),
            ("cache-misses".into(), 1.into(), 7.into())
        ]
    );
    assert_eq!(events[0]["places"][0]["place"], "one");
    assert_eq!(events[0]["places"][0]["share"], 0.6);
    let first = good(&["report", "t"], folder.path());
    assert!(first.contains("line of code, by cycles"), "{first}");
    let section = good(&["report", "t", "--section", "samples"], folder.path());
    for word in [
        "cycles (3 samples, 500 of the event)",
        "cache-misses (1 sample",
    ] {
        assert!(section.contains(word), "{word}: {section}");
    }
    assert!(!section.contains("accesses"), "{section}");
}

#[test]
fn every_format_of_export_tells_the_same() {
    let folder = import(&["amd.perf-script.txt", "intel.perf-script.txt"]);
    let export = |format: &str| {
        good(
            &["export", "t", "--format", format, "-o", "-"],
            folder.path(),
        )
    };
    assert_eq!(export("csv").lines().count(), 1 + 5);
    let folded = export("folded");
    let weights = folded
        .lines()
        .map(|l| l.rsplit(' ').next().and_then(|n| n.parse::<u64>().ok()));
    assert_eq!(weights.map(|w| w.expect("a weight")).sum::<u64>(), 5);
    assert!(folded.contains("outer;inner;"), "{folded}");
    let speedscope: Value = serde_json::from_str(&export("speedscope")).expect("JSON");
    let profiles = speedscope["profiles"].as_array().expect("profiles");
    let sum = profiles
        .iter()
        .flat_map(|p| p["weights"].as_array().expect("weights"));
    assert_eq!(sum.map(|w| w.as_u64().expect("a number")).sum::<u64>(), 5);
    let firefox: Value = serde_json::from_str(&export("firefox")).expect("JSON");
    assert_eq!(firefox["threads"].as_array().map(Vec::len), Some(4));
}

/// The text that is exported is one of those that are imported.
#[test]
fn exported_text_is_imported_again() {
    let folder = import(&["intel.perf-script.txt"]);
    good(
        &["export", "t", "--format", "perf-script", "-o", "again.txt"],
        folder.path(),
    );
    let before = report(folder.path());
    good(
        &["import", "again.txt", "-o", "t", "--force"],
        folder.path(),
    );
    let after = report(folder.path());
    for field in [
        "samples",
        "reads",
        "writes",
        "latency_cycles",
        "levels",
        "with_address",
    ] {
        assert_eq!(before["samples"][field], after["samples"][field], "{field}");
    }
}

/// Names of threads are whatever a program wants.
#[test]
fn samples_come_back_as_they_were_exported() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut text = Vec::new();
    for (at, name) in [
        &b"[ET_NET 0]"[..],
        b"a;b",
        b"two  words",
        b"\xff",
        b"x 7",
        b"(paren)",
    ]
    .iter()
    .enumerate()
    {
        text.extend_from_slice(name);
        let line = format!(
            " 77/{} [001] 5.00000{at}: 1 mem-loads: {:16x}{:16x} |OP LOAD|LVL L1 hit|SNP None|TLB L1 hit|LCK No{:16} {:16x} f{at}+0x4 (/opt/app{})\n",
            78 + at,
            0x7e00_0000_2000u64,
            0x508_0021,
            at,
            0x40_1abc,
            if at % 2 == 0 { "" } else { "+0x1abc" },
        );
        text.extend_from_slice(line.as_bytes());
    }
    std::fs::write(folder.path().join("first.txt"), &text).expect("write");
    let csv = |trace: &str| {
        good(
            &["export", trace, "--format", "csv", "-o", "-"],
            folder.path(),
        )
    };
    good(&["import", "first.txt", "-o", "first"], folder.path());
    let to = [
        "export",
        "first",
        "--format",
        "perf-script",
        "-o",
        "second.txt",
    ];
    good(&to, folder.path());
    good(&["import", "second.txt", "-o", "second"], folder.path());
    let first = csv("first");
    assert_eq!(first.lines().count(), 1 + 6, "{first}");
    assert_eq!(csv("second"), first);
    let again = ["export", "second", "--format", "perf-script", "-o", "-"];
    let again = good(&again, folder.path());
    let names = [
        "[ET_NET 0]",
        "a;b",
        "two  words",
        "\u{fffd}",
        "x 7",
        "(paren)",
    ];
    for (name, line) in names.iter().zip(again.lines()) {
        let begin = format!("{name} ");
        assert!(line.trim_start().starts_with(&begin), "{name}: {line}");
    }
    let text = std::fs::read_to_string(folder.path().join("second.txt")).expect("a text");
    assert_eq!(again, text);
}

#[test]
fn errors_name_the_file_the_line_and_a_way_out() {
    let folder = tempfile::tempdir().expect("a folder");
    let failing = |arguments: &[&str]| {
        let output = varve(arguments, folder.path());
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    std::fs::write(folder.path().join("odd.txt"), "what is this\n").expect("write");
    let said = failing(&["import", "odd.txt", "-o", "t"]);
    assert!(
        said.contains("odd.txt is in no format") && said.contains("--format"),
        "{said}"
    );
    let said = failing(&["import", "odd.txt", "-o", "t", "--format", "perf-script"]);
    assert!(said.contains("odd.txt, line 1: "), "{said}");
    assert!(!folder.path().join("t").exists());
    let said = failing(&["export", "t", "--format", "csv", "-o", "-"]);
    assert!(said.contains('t'), "{said}");
}

/// The exported table alone may be whole: whoever hands it on must hear that the trace is not.
#[test]
fn a_trace_with_a_damaged_table_is_not_exported() {
    let folder = import(&["intel.perf-script.txt"]);
    let table = folder.path().join("t/touches.parquet");
    let whole = std::fs::read(&table).expect("a table");
    let export = || {
        let output = varve(
            &["export", "t", "--format", "csv", "-o", "out.csv"],
            folder.path(),
        );
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), said)
    };
    assert_eq!(export().0, Some(0));
    let fail = |what: &str| {
        let (code, said) = export();
        assert!(code == Some(1) && said.contains(what), "{code:?}: {said}");
        std::fs::remove_file(&table).expect("the table");
    };
    std::fs::write(&table, &whole[..whole.len() / 2]).expect("half a table");
    fail("damaged");
    std::os::unix::fs::symlink("losses.parquet", &table).expect("a link");
    fail("symbolic link");
    let made = Command::new("mkfifo").arg(&table).status();
    assert!(made.expect("mkfifo").success());
    fail("FIFO");
}
