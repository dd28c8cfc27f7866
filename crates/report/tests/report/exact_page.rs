//! The page of a trace whose accesses were counted.

use std::io::Read;

use base64::Engine;
use flate2::read::ZlibDecoder;
use serde_json::Value;
use varve_analyse::{AnalyseOptions, analyse};
use varve_model::{
    Address, Bytes, Duration, Interval, ObjectId, ObjectKind, Page, Pid, Tid, Time, TouchSource,
};
use varve_report::html::{from_trace, write_html};
use varve_report::map::Map;
use varve_trace::tables::{CountRow, IntervalRow, ObjectRow, ThreadRow, TouchRow};
use varve_trace::{Manifest, State, Trace, TraceWriter, finish_tables, write_table};

/// What the page says of the trace.
fn payload(page: &[u8]) -> Value {
    let page = std::str::from_utf8(page).unwrap();
    let (_, data) = page.split_once("id=\"payload\">").unwrap();
    let (data, _) = data.split_once('<').unwrap();
    let packed = base64::engine::general_purpose::STANDARD.decode(data);
    let mut raw = Vec::new();
    ZlibDecoder::new(&packed.unwrap()[..])
        .read_to_end(&mut raw)
        .unwrap();
    let length = u32::from_le_bytes(raw[..4].try_into().unwrap()) as usize;
    serde_json::from_slice(&raw[4..4 + length]).unwrap()
}

fn manifest() -> Manifest {
    let text = serde_json::json!({
        "format": "varve-trace", "version": 1, "varve": "0.1.0", "state": "finished", "backend": "exact",
        "capabilities": ["touches", "resident", "faults", "overhead", "machine", "places", "lives", "superset", "marks", "heap_objects", "counts", "exact_counts", "emulated"],
        "target": {"command": ["./prog"], "pid": 1, "attached": false, "exit_code": 0},
        "options": {"interval": {"fixed": 1_000_000}, "follow": true, "delay_ns": 0, "min_object_bytes": 4096, "thp_never": false, "without": []},
        "features": {"writes": null, "page_flags": true, "hold": "cgroup", "objects": "preload", "vanish": null},
        "machine": {"kernel": "6.12", "architecture": "x86_64", "cpu": "test", "cpus": 2, "memory_bytes": 1_u64 << 30},
        "clock": {"start_ns": 0, "end_ns": 1_000_000, "start_unix_ns": 0, "unit": "nanoseconds"},
        "completeness": {"complete": true, "statement": ""},
        "overhead": {"held_ns": 0, "first_accesses_ns": 0, "samples_ns": 0, "objects_ns": 0, "reports_ns": 0, "contention_ns": 0, "recorder_cpu_ns": 0, "recorder_peak_bytes": 0},
        "losses": {},
        "modules": [], "checksums": {}, "notes": [],
    });
    serde_json::from_value(text).unwrap()
}

#[test]
fn counts_know_who_was_first_where_no_page_fault_tells() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.varve");
    let before = manifest();
    let mut during = before.clone();
    during.state = State::Recording;
    let mut writer = TraceWriter::create(&path, &during).unwrap();
    let object = |id, name: &str, page: u64| ObjectRow {
        object: ObjectId(id),
        pid: Pid(1),
        kind: ObjectKind::Heap,
        name: name.into(),
        site: None,
        address: Address(page * 4096),
        bytes: Bytes(4 * 4096),
        born_ns: Time(0),
        died_ns: None,
        tid: None,
        pool: false,
        layer: 5,
        continues: None,
    };
    let count = |tid, page, first| CountRow {
        interval: Interval(0),
        pid: Pid(1),
        tid: Some(Tid(tid)),
        page: Page(page),
        reads: 5,
        writes: 0,
        first: Some(first),
    };
    let thread = |tid| ThreadRow {
        pid: Pid(1),
        tid: Tid(tid),
        name: format!("t{tid}"),
        born_ns: Time(0),
        died_ns: None,
    };
    let interval = IntervalRow {
        interval: Interval(0),
        start_ns: Time(0),
        end_ns: Time(1_000_000),
        held_ns: Duration(0),
        longest_hold_ns: Duration(0),
        longest_stop_ns: Duration(0),
        holds: 0,
        overlap_ns: Duration(0),
        resident_pages: 0,
        mappings: 0,
        processes: 1,
        threads: 2,
        recorder_cpu_ns: Duration(0),
    };
    let touch = TouchRow {
        interval: Interval(0),
        pid: Pid(1),
        page: Page(0x100),
        pages: 12,
        page_bytes: 4096,
        written: None,
        source: TouchSource::Exact,
    };
    writer.append(&[interval]).unwrap();
    writer.append(&[touch]).unwrap();
    // Of one name two objects count as one: who was first in which is not known.
    let names = [
        (1, "alone", 0x100),
        (2, "twice", 0x104),
        (3, "twice", 0x108),
    ];
    writer.append(&[thread(1), thread(2)]).unwrap();
    writer
        .append(&[
            count(1, 0x100, true),
            count(2, 0x100, false),
            count(2, 0x101, true),
            count(2, 0x102, true),
            count(2, 0x104, true),
            count(2, 0x108, true),
        ])
        .unwrap();
    write_table(
        writer.folder(),
        &names.map(|(id, name, page)| object(id, name, page)),
    )
    .unwrap();
    finish_tables(writer.folder(), &mut |_| ()).unwrap();
    writer.folder().write_manifest(&before).unwrap();
    let trace = Trace::open(&path).unwrap();
    let analysis = analyse(&trace, &AnalyseOptions::default(), &mut |_| ()).unwrap();
    let map = Map::of(&trace, &analysis, |_| ()).unwrap();
    let mut page = Vec::new();
    write_html(from_trace(&trace, &analysis, map).unwrap(), &mut page).unwrap();
    let got = payload(&page);
    let of = |tid: u64| {
        let all = got["threads"].as_array().unwrap();
        all.iter().position(|t| t["tid"] == tid).unwrap() as u64
    };
    let listed = |name: &str| {
        let all = got["objects"].as_array().unwrap();
        let is = |o: &&serde_json::Value| {
            let group = o["group"].as_u64().unwrap() as usize;
            got["groups"][group]["name"] == name
        };
        all.iter().find(is).unwrap()
    };
    let alone = listed("alone");
    assert_eq!(
        alone["first_touches"],
        serde_json::json!([[of(2), 2], [of(1), 1]])
    );
    assert_eq!(listed("twice")["first_touches"], serde_json::json!([]));
}
