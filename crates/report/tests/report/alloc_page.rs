//! The allocator's part of the page, of a trace whose operations and blocks are known.

use std::path::Path;

use serde_json::{Value, json};
use varve_analyse::{AnalyseOptions, analyse};
use varve_model::{Address, Bytes, Capability, Duration, Pid, SiteId, Tid, Time};
use varve_report::html::{View, from_trace};
use varve_report::map::Map;
use varve_trace::tables::{Frame, OperationRow, SampledBlockRow, SiteRow};
use varve_trace::{
    OperationsNote, Selection, State, Trace, TraceWriter, finish_tables, write_table,
};

use crate::html::{Decoded, page_of};
use crate::made::{self, Kind};

const MIB: u64 = 1 << 20;
const HOSTILE: &str = "</script><script>alert(1)</script>\u{1b}[31m\u{202e}";

/// What C++ makes of a few nested types.
fn template() -> String {
    format!(
        "deep<{}int{}>::grow",
        "pair<int, ".repeat(1000),
        ">".repeat(1000)
    )
}

fn site(site: u32, functions: &[&str]) -> SiteRow {
    let frame = |function: &&str| Frame {
        function: Some((*function).to_owned()),
        file: Some("/src/a.cpp".into()),
        line: Some(7),
        address: Address(1),
        ..Frame::default()
    };
    SiteRow {
        site: SiteId(site),
        label: functions
            .first()
            .map_or_else(String::new, |f| (*f).to_owned()),
        frames: functions.iter().map(frame).collect(),
    }
}

/// Two stacks: one never freed 3 MiB, the other freed its 5 MiB.
fn write(folder: &Path, with_pages: bool) -> Trace {
    let mut end = made::manifest(Kind::Complete);
    end.capabilities.insert(Capability::AllocatorOperations);
    end.operations = Some(OperationsNote {
        every: 64,
        sample_bytes: Bytes(1024),
        ..OperationsNote::default()
    });
    let mut during = end.clone();
    during.state = State::Recording;
    let mut writer = TraceWriter::create(folder, &during).unwrap();
    if with_pages {
        made::rows(&mut writer, Kind::Complete);
    }
    let operation = |operation: &'static str, count: u64, bytes: u64| OperationRow {
        time_ns: Time(1000),
        pid: Pid(42),
        tid: Tid(42),
        operation: operation.into(),
        class_bytes: Some(Bytes(MIB)),
        site: Some(SiteId(0)),
        count,
        reallocated: 0,
        requested_bytes: Bytes(bytes),
        usable_bytes: Some(Bytes(bytes)),
        fresh: Some(count),
        parallel: 0,
        timed: 10,
        timed_ns: Duration(1000),
        timed_norm_ns: Some(Duration(320)),
    };
    writer
        .append(&[
            operation("malloc", 800, 8 * MIB),
            operation("free", 500, 5 * MIB),
        ])
        .unwrap();
    let block = |at: u64, freed: bool, site: Option<u32>| SampledBlockRow {
        time_ns: Time(2000 + at + u64::from(freed) * 1_000_000_000),
        pid: Pid(42),
        tid: Tid(42),
        freed,
        address: Address((1 << 40) + at * MIB),
        bytes: Bytes(MIB),
        site: site.map(SiteId),
    };
    let mut blocks: Vec<SampledBlockRow> = (0..3).map(|i| block(i, false, Some(1))).collect();
    blocks.extend((3..8).map(|i| block(i, false, Some(2))));
    blocks.extend((3..8).map(|i| block(i, true, None)));
    writer.append(&blocks).unwrap();
    finish_tables(writer.folder(), &mut |_| ()).unwrap();
    let deep = template();
    let sites = [
        site(0, &[HOSTILE]),
        site(1, &[HOSTILE, &deep, "main"]),
        site(2, &["brief", "main"]),
    ];
    write_table(writer.folder(), &sites).unwrap();
    writer.folder().write_manifest(&end).unwrap();
    Trace::open(folder).unwrap()
}

fn page(trace: &Trace) -> Decoded {
    let analysis = analyse(trace, &AnalyseOptions::default(), &mut |_| ()).unwrap();
    let map = Map::of(trace, &analysis, |_| ()).unwrap();
    page_of(from_trace(trace, &analysis, map).unwrap())
}

fn flame<'a>(of: &'a Value, measure: &str) -> Option<&'a Value> {
    let all = of["flames"].as_array().unwrap();
    all.iter().find(|f| f["measure"] == measure)
}

#[test]
fn a_trace_of_operations_has_its_allocators_part() {
    let folder = tempfile::tempdir().unwrap();
    let decoded = page(&write(&folder.path().join("t.varve"), true));
    let alloc = &decoded.json["alloc"];
    assert_eq!(decoded.json["opens"], "pages");
    assert_eq!(alloc["judgement"]["operations"]["malloc"]["count"], 800);
    let kept = flame(alloc, "never-freed").unwrap();
    // The list has stacks that never freed most first.
    assert_eq!(
        kept["stacks"],
        json!([{"row": 0, "weight": 3 * MIB, "error": 0}])
    );
    let all = flame(alloc, "allocated").unwrap()["stacks"]
        .as_array()
        .unwrap();
    let weights: Vec<u64> = all.iter().map(|s| s["weight"].as_u64().unwrap()).collect();
    assert_eq!(weights, [3 * MIB, 5 * MIB]);
    let time = flame(alloc, "time").unwrap()["stacks"].as_array().unwrap();
    // Ten of 800 and of 500 operations were timed, with a deviation of 16.33 ns each: 2.262 (Student, nine degrees of freedom) times the root of
    // 16.33² · (800 · 790 + 500 · 490) / 10.
    assert_eq!(
        json!(time),
        json!([{"row": 0, "weight": 130_000, "error": 10_938}])
    );
    // Nothing was touched where the blocks lie, in a recording of 20 s.
    let idle = flame(alloc, "idle").unwrap();
    assert_eq!(idle["idle_for_ns"], 10_000_000_000_u64);
    assert_eq!(idle["stacks"][0]["weight"], 3 * MIB);
}

#[test]
fn names_of_the_program_are_harmless() {
    let folder = tempfile::tempdir().unwrap();
    let decoded = page(&write(&folder.path().join("t.varve"), true));
    let stack = decoded.json["alloc"]["judgement"]["blocks"]["sites"][0]["stack"]
        .as_array()
        .unwrap();
    let names: Vec<&str> = stack.iter().map(|n| n.as_str().unwrap()).collect();
    assert!(
        names[0].starts_with("</script><script>alert(1)</script>\\x1b[31m\\u{202e}"),
        "{}",
        names[0]
    );
    assert_eq!(names[1].chars().count(), 601, "{}", names[1]);
    assert!(names[1].starts_with("deep<pair<int, ") && names[1].ends_with(">>::grow (a.cpp:7)"));
    assert_eq!(names[2], "main (a.cpp:7)");
    assert_eq!(decoded.scripts(), 2, "no text of the trace ends a script");
}

/// Without pages nobody knows what is idle, and the page has no graph of it.
#[test]
fn a_trace_without_pages_has_no_idle_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let decoded = page(&write(&folder.path().join("t.varve"), false));
    let alloc = &decoded.json["alloc"];
    assert!(flame(alloc, "idle").is_none());
    assert!(flame(alloc, "peak").is_some());
}

#[test]
fn a_part_of_a_trace_says_nothing_of_the_allocator() {
    let folder = tempfile::tempdir().unwrap();
    let trace = write(&folder.path().join("t.varve"), true);
    let unknown = |of: &Decoded| of.json["unknown"].to_string();
    assert!(!unknown(&page(&trace)).contains("allocator"));
    let chosen = trace.part(Selection {
        pids: Some([Pid(42)].into()),
        description: "process 42".into(),
        ..Selection::default()
    });
    let decoded = page(&chosen);
    assert!(decoded.json["alloc"].is_null());
    assert!(unknown(&decoded).contains("What the allocator did in the chosen part"));
    // The negative control: what has no operations has no such part, and misses nothing.
    let plain = tempfile::tempdir().unwrap();
    let (trace, _) = made::write(&plain.path().join("t.varve"), Kind::Complete);
    let decoded = page(&trace);
    assert!(decoded.json["alloc"].is_null() && !unknown(&decoded).contains("allocator"));
}

#[test]
fn a_page_opens_where_its_maker_says() {
    let folder = tempfile::tempdir().unwrap();
    let trace = write(&folder.path().join("t.varve"), true);
    let analysis = analyse(&trace, &AnalyseOptions::default(), &mut |_| ()).unwrap();
    let map = Map::of(&trace, &analysis, |_| ()).unwrap();
    let mut report = from_trace(&trace, &analysis, map).unwrap();
    report.opens = View::Allocator;
    assert_eq!(page_of(report).json["opens"], "allocator");
}
