//! The page is decoded again, from its contract alone, and compared with what went in.

use std::fs;
use std::io::Read;
use std::path::Path;

use base64::Engine;
use flate2::read::ZlibDecoder;
use serde_json::Value;
use varve_analyse::{
    Analysis, FindingId, Group, Known, MachineFacts, ObjectUse, PhaseUse, Remainder, Reuse, Tail,
    ThreadShare, ThreadUse, Together, Touched, TraceFacts, Usage, Writes,
};
use varve_compare::{Run, diff};
use varve_model::{
    Address, Bytes, Cpu, Duration, Interval, ObjectId, ObjectKind, Page, Pages, Pid, Tid, Time,
    TouchSource,
};
use varve_objects::Layer;
use varve_report::html::{HtmlReport, MAX_PAGE_BYTES, from_trace, types, write_diff, write_html};
use varve_report::map::Map;
use varve_trace::tables::{
    FaultRow, IntervalRow, MappingRow, ObjectRow, ProcessRow, ThreadRow, TouchRow,
};
use varve_trace::{
    Clock, Completeness, Features, IntervalChoice, Machine, Manifest, Options, Overhead, State,
    Target, Trace, TraceWriter, write_table,
};

pub(crate) struct Decoded {
    pub(crate) json: Value,
    columns: Vec<u8>,
    page: String,
}

impl Decoded {
    pub(crate) fn of(page: Vec<u8>) -> Decoded {
        let page = String::from_utf8(page).unwrap();
        let data = page
            .split_once("id=\"payload\">")
            .unwrap()
            .1
            .split_once('<')
            .unwrap()
            .0;
        let packed = base64::engine::general_purpose::STANDARD
            .decode(data)
            .unwrap();
        let mut raw = Vec::new();
        ZlibDecoder::new(&packed[..]).read_to_end(&mut raw).unwrap();
        let length = u32::from_le_bytes(raw[..4].try_into().unwrap()) as usize;
        let json = serde_json::from_slice(&raw[4..4 + length]).unwrap();
        Decoded {
            json,
            columns: raw[4 + length..].to_vec(),
            page,
        }
    }

    pub(crate) fn bytes(&self, column: &Value, width: usize) -> &[u8] {
        let offset = column["offset"].as_u64().unwrap() as usize;
        &self.columns[offset..offset + width * column["count"].as_u64().unwrap() as usize]
    }

    pub(crate) fn sums(&self, column: &Value) -> Vec<i64> {
        let mut sum = 0;
        let deltas = self.bytes(column, 4).chunks(4);
        deltas
            .map(|d| {
                sum += i64::from(i32::from_le_bytes(d.try_into().unwrap()));
                sum
            })
            .collect()
    }

    pub(crate) fn words(&self, column: &Value) -> Vec<u16> {
        self.bytes(column, 2)
            .chunks(2)
            .map(|w| u16::from_le_bytes(w.try_into().unwrap()))
            .collect()
    }

    /// How often the page ends a script.
    pub(crate) fn scripts(&self) -> usize {
        self.page.matches("</script>").count()
    }

    pub(crate) fn lane(&self, title: &str) -> &Value {
        let lanes = self.json["lanes"].as_array().unwrap();
        lanes
            .iter()
            .find(|l| l["title"] == title)
            .unwrap_or_else(|| panic!("no lane {title}"))
    }
}

pub(crate) fn page_of(report: HtmlReport) -> Decoded {
    let mut out = Vec::new();
    let size = write_html(report, &mut out).unwrap();
    assert_eq!(size.page.0, out.len() as u64);
    assert!(size.page <= MAX_PAGE_BYTES);
    Decoded::of(out)
}

#[test]
fn the_types_of_the_page_are_those_of_the_data() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../web/src/payload.gen.ts");
    if std::env::var_os("VARVE_WRITE_TYPES").is_some() {
        fs::write(path, types()).unwrap();
    }
    let committed = fs::read_to_string(path).unwrap_or_default();
    assert!(
        committed == types(),
        "web/src/payload.gen.ts is older than the Rust types; hint: make types"
    );
}

fn phase(name: &str, spans: Vec<(u64, u64)>) -> PhaseUse {
    let is_event = spans.iter().all(|(from, to)| from == to);
    let not_counted = || Known::Absent("not counted".to_owned());
    PhaseUse {
        name: name.into(),
        kind: if is_event { "event" } else { "phase" }.into(),
        times: spans.len() as u64,
        open: 0,
        first_ns: Time(spans[0].0),
        total_ns: Duration(spans.iter().map(|(from, to)| to - from).sum()),
        processes: 1,
        threads: 1,
        intervals: 1,
        touched_pages: not_counted(),
        peak_working_set_pages: not_counted(),
        mean_working_set_pages: not_counted(),
        spans: spans.iter().map(|&(a, b)| Time(a)..Time(b)).collect(),
    }
}

fn manifest() -> Manifest {
    Manifest {
        format: "varve-trace".into(),
        version: 1,
        varve: "0.1.0".into(),
        state: State::Finished,
        backend: varve_model::Backend::Scan,
        capabilities: varve_model::Capability::RECORDED.into(),
        recorder_pid: None,
        target: Target {
            command: vec!["./prog".into(), "</script><b>".into()],
            ..Target::default()
        },
        options: Options {
            interval: IntervalChoice::Fixed(Duration(100)),
            follow: true,
            delay_ns: Duration(0),
            min_object_bytes: Bytes(4096),
            max_hold_ns: None,
            thp_never: false,
            without: vec![],
        },
        features: Features::default(),
        machine: Machine {
            kernel: "6.12".into(),
            architecture: "x86_64".into(),
            cpu: "test".into(),
            cpus: 2,
            memory_bytes: Bytes(1 << 30),
            nodes: None,
        },
        clock: Clock {
            start_ns: Time(1_000_000),
            end_ns: Time(41_000_000),
            start_unix_ns: 0,
            unit: Default::default(),
        },
        completeness: Completeness {
            complete: true,
            statement: String::new(),
        },
        overhead: Overhead::default(),
        losses: [("reclaim".to_owned(), 0)].into(),
        samples: None,
        traps: None,
        operations: None,
        modules: vec![],
        checksums: Default::default(),
        notes: vec![],
    }
}

/// What the page takes from an analysis of the trace below.
fn analysis(intervals: &[IntervalRow]) -> Analysis {
    let objects = [
        (1, "[anon]", ObjectKind::Mapping, 0x100, 32),
        (2, "young", ObjectKind::Heap, 0x108, 8),
        (3, "old", ObjectKind::Heap, 0x108, 4),
    ];
    let object = |(id, name, kind, page, pages): (u64, &str, ObjectKind, u64, u64)| ObjectUse {
        reads: None,
        writes: None,
        object: ObjectId(id),
        name: name.into(),
        kind,
        site: None,
        pid: Pid(1),
        reserved: false,
        touch_share: Some(0.25),
        processes: vec![],
        address: Some(Address(page * 4096)),
        bytes: Some(Bytes(pages * 4096)),
        pool: false,
        born_ns: Some(Time(0)),
        died_ns: None,
        born_tid: None,
        usage: Usage {
            touched: Together(Some(Touched {
                touched_pages: Pages(3),
                touched_bytes: Bytes(pages * 4096),
                page_touches: 3,
                reuse: Reuse {
                    once: Pages(2),
                    twice: Pages(1),
                    more: Pages(0),
                },
                ..Touched::default()
            })),
            faulted: Together::default(),
        },
        first_touch_tid: None,
        threads: Some(vec![ThreadShare {
            pid: Pid(1),
            tid: Tid(2),
            pages: Pages(1),
        }]),
    };
    let group = |o: &ObjectUse| Group {
        name: o.name.clone(),
        kind: o.kind,
        site: None,
        objects: 1,
        processes: vec![],
        threads: o.threads.clone(),
        bytes: o.bytes,
        peak_bytes: o.bytes,
        died: Some(0),
        median_life_ns: None,
        untouched_objects: Some(0),
        touched_pages_over_lives: o.usage.touched.get().map(|t| t.touched_pages),
        touch_share: o.touch_share,
        usage: o.usage,
    };
    let thread = |tid, name: &str| ThreadUse {
        pid: Pid(1),
        tid: Tid(tid),
        name: name.into(),
        faults: 1,
        first_touches: Pages(1),
    };
    Analysis {
        exact: None,
        trace: TraceFacts {
            complete: true,
            incomplete: [].into(),
            statement: "Everything.".into(),
            state: State::Finished,
            losses: [].into(),
            backend: varve_model::Backend::Scan,
            capabilities: varve_model::Capability::RECORDED.into(),
            hold: String::new(),
            intervals: Known::Exact(intervals.len() as u64),
            duration_ns: Duration(40_000_000),
            paused_ns: Duration(0),
            offset_ns: None,
            whole_ns: Duration(0),
            delay_ns: Duration(0),
            start_ns: Time(1_000_000),
            start_unix_ns: Known::default(),
            interval_ns: None,
            interval_asked: false,
            interval_accesses: None,
            median_interval_ns: Known::Exact(Duration(1_000_000)),
            shortest_interval_ns: Known::Exact(Duration(1_000_000)),
            longest_interval_ns: Known::Exact(Duration(1_000_000)),
            command: vec!["./prog".into(), "</script><b>".into()],
            attached: false,
            exit_code: None,
            varve: "0.1.0".into(),
            machine: Known::Exact(MachineFacts {
                kernel: "6.12".into(),
                architecture: "x86_64".into(),
                cpu: "test".into(),
                cpus: 2,
                memory_bytes: Bytes(1 << 30),
                nodes: None,
            }),
            traps: None,
            selected: None,
            clock_unit: Default::default(),
            touch_rows: Known::Exact(5),
            stray_rows: Known::Exact(0),
        },
        overhead: Known::default(),
        footprint: varve_analyse::Footprint::default(),
        reuse: Known::Exact(Reuse::default()),
        working_set: Known::Exact(vec![]),
        sources: Known::Exact(vec![]),
        writes: Known::Exact(Writes::Unknown),
        processes: vec![],
        object_sources: vec![],
        threads: Known::Exact(vec![thread(1, "main"), thread(2, "worker")]),
        objects: objects.map(object).into(),
        omitted: varve_analyse::Omitted::default(),
        phases: Vec::new(),
        groups: objects.map(object).iter().map(group).collect(),
        unowned: Known::Exact(Remainder {
            touched_pages: Pages(2),
            page_touches: 2,
        }),
        shared: Known::Exact(Remainder::default()),
        own_memory: Known::Exact(Remainder::default()),
        samples: None,
        counts: None,
        tail: Known::Exact(Tail::default()),
        contradictions: vec![],
        findings: vec![varve_analyse::Finding {
            id: FindingId::NeverTouched,
            title: String::new(),
            evidence: String::new(),
            action: String::new(),
            advice: String::new(),
            objects: vec![ObjectId(2)],
        }],
        sharing: None,
        unknown: vec![],
        unknown_files: Vec::new(),
    }
}

#[test]
fn a_trace_becomes_cells() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.varve");
    let mut writer = TraceWriter::create(&path, &manifest()).unwrap();
    let ms = 1_000_000_u64;
    let intervals: Vec<_> = (0..40_u32)
        .map(|i| IntervalRow {
            interval: Interval(i),
            start_ns: Time((1 + u64::from(i)) * ms),
            end_ns: Time((2 + u64::from(i)) * ms),
            held_ns: Duration(10_000),
            longest_hold_ns: Duration(10_000),
            longest_stop_ns: Duration(0),
            holds: 1,
            overlap_ns: Duration(0),
            resident_pages: 100,
            mappings: 0,
            processes: 1,
            threads: 2,
            recorder_cpu_ns: Duration(20_000),
        })
        .collect();
    let touch = |interval, page, pages, source| TouchRow {
        interval: Interval(interval),
        pid: Pid(1),
        page: Page(page),
        pages,
        page_bytes: 4096,
        written: None,
        source,
    };
    let object =
        |id, name: &str, kind, page: u64, pages: u64, born: u64, died: Option<u64>| ObjectRow {
            object: ObjectId(id),
            pid: Pid(1),
            kind,
            name: name.into(),
            site: None,
            address: Address(page * 4096),
            bytes: Bytes(pages * 4096),
            born_ns: Time(born * ms),
            died_ns: died.map(|d| Time(d * ms)),
            tid: None,
            pool: false,
            layer: Layer::of(kind, false).number(),
            continues: None,
        };
    writer.append(&intervals).unwrap();
    writer
        .append(&[
            touch(0, 0x100, 4, TouchSource::Scan),
            touch(0, 0x102, 1, TouchSource::Vanish),
            touch(5, 0x108, 8, TouchSource::Scan),
            touch(30, 0x108, 8, TouchSource::Scan),
            touch(30, 0x900, 2, TouchSource::Scan),
        ])
        .unwrap();
    writer
        .append(&[
            object(1, "[anon]", ObjectKind::Mapping, 0x100, 32, 0, None),
            object(2, "young", ObjectKind::Heap, 0x108, 8, 2, Some(20)),
            object(3, "old", ObjectKind::Heap, 0x108, 4, 25, None),
        ])
        .unwrap();
    let thread = |tid, name: &str| ThreadRow {
        pid: Pid(1),
        tid: Tid(tid),
        name: name.into(),
        born_ns: Time(0),
        died_ns: None,
    };
    writer
        .append(&[thread(1, "main"), thread(2, "worker")])
        .unwrap();
    let fault = |at, tid, page: u64| FaultRow {
        time_ns: Time(at),
        pid: Pid(1),
        tid: Tid(tid),
        cpu: Cpu(0),
        ip: Address(0),
        address: Address(page * 4096 + 8),
        write: None,
        kernel: false,
    };
    writer
        .append(&[
            fault(ms + 5, 1, 0x100),
            fault(6 * ms + 5, 2, 0x108),
            fault(6 * ms + 6, 1, 0x108),
        ])
        .unwrap();

    write_table::<MappingRow>(writer.folder(), &[]).unwrap();
    write_table::<ProcessRow>(writer.folder(), &[]).unwrap();

    let mut analysis = analysis(&intervals);
    let end = intervals.last().unwrap().end_ns.0;
    let long = vec![(2 * ms, 4 * ms), (6 * ms, end + ms)];
    analysis.phases = vec![
        phase("load <b>", long),
        phase("later", vec![(end + 1, end + ms)]),
    ];
    // The page has room for so many, the longest; the first event is over before the first interval.
    analysis
        .phases
        .extend((0..30).map(|i| phase(&format!("short {i}"), vec![(9 * ms + i, 9 * ms + i + 1)])));
    analysis
        .phases
        .extend((0..30).map(|i| phase(&format!("event {i}"), vec![(i * ms, i * ms)])));
    let mut last = 0.0;
    let trace = Trace::open(&path).unwrap();
    let map = Map::of(&trace, &analysis, |share| last = share).unwrap();
    assert_eq!(last, 1.0);
    assert_eq!(
        map.working_set[0],
        Pages(4),
        "a page with two sources counts once"
    );
    assert_eq!(map.grids.unowned, 2);
    a_difference_becomes_cells(&path, &trace, &analysis, &map);
    let report = from_trace(&trace, &analysis, map).unwrap();
    let decoded = page_of(report);

    let phases = decoded.json["phases"].as_array().unwrap();
    assert_eq!(phases[0]["name"], "load <b>");
    assert_eq!(
        phases[0]["spans"],
        serde_json::json!([[1000, 3000], [5000, (end - ms) / 1000]])
    );
    let named = |prefix| {
        let has = |p: &&Value| p["name"].as_str().unwrap().starts_with(prefix);
        phases.iter().filter(has).count()
    };
    assert_eq!(
        (named("short"), named("event"), named("later")),
        (23, 24, 0)
    );
    // Seven of the short ones, five of the events: one happened before the first interval.
    assert_eq!(decoded.json["omitted_phases"], 7 + 5);
    assert_eq!(phases[47]["name"], "event 24");
    assert_eq!(phases[47]["spans"], serde_json::json!([[23_000, 23_000]]));

    assert_eq!(decoded.json["trace"]["command"], "./prog '</script><b>'");
    assert_eq!(
        decoded.page.matches("</script>").count(),
        2,
        "no text of the trace ends a script"
    );
    assert_eq!(decoded.sums(&decoded.json["interval_edges"])[40], 40_000);
    assert_eq!(decoded.sums(&decoded.json["working_set"])[30], 10);
    let touched = |lane: &Value| -> Vec<(usize, usize, u8)> {
        let width = decoded.json["bins"]["count"].as_u64().unwrap() as usize;
        let cells = decoded.bytes(&lane["coverage"], 1).iter().enumerate();
        cells
            .filter(|(_, n)| **n > 0)
            .map(|(i, n)| (i / width, i % width, *n))
            .collect()
    };
    // The mapping keeps what no object inside it holds, also after the younger one died.
    let whole = decoded.lane("[anon]");
    assert_eq!(whole["pages_per_bin"], 1);
    let at = |bins: std::ops::Range<usize>, time| bins.map(move |b| (b, time, 1));
    assert_eq!(
        touched(whole),
        at(0..4, 0).chain(at(12..16, 30)).collect::<Vec<_>>()
    );
    assert_eq!(
        touched(decoded.lane("young")),
        at(0..8, 5).collect::<Vec<_>>()
    );
    assert_eq!(
        touched(decoded.lane("old")),
        at(0..4, 30).collect::<Vec<_>>()
    );
    let young = decoded.lane("young");
    let threads = decoded.words(&young["first_thread"]);
    assert_eq!(
        (threads[0], threads[1]),
        (1, u16::MAX),
        "the first fault counts, later ones do not"
    );
    assert_eq!(decoded.words(&young["first_time"])[0], 5);
    let about = &decoded.json["findings"][0]["groups"];
    assert_eq!(about, &serde_json::json!([1]));
    assert_eq!(decoded.json["groups"][1]["name"], "young");
    assert_eq!(young["group"], 1);
    let listed = &decoded.json["objects"][1];
    assert_eq!(listed["group"], 1);
    assert_eq!(listed["first_touches"], serde_json::json!([[1, 1]]));
    assert!(listed["written_pages"].is_null());
    assert_eq!(listed["reuse"], serde_json::json!([5, 2, 1, 0]));
}

/// The same trace on both sides.
fn a_difference_becomes_cells(path: &Path, trace: &Trace, analysis: &Analysis, map: &Map) {
    let run = Run::new(path, trace, analysis).unwrap();
    let sides = std::slice::from_ref(&run);
    let found = diff(sides, sides);
    let mut out = Vec::new();
    write_diff(&found, [map, map], &mut out).unwrap();
    let page = Decoded::of(out);
    assert_eq!(page.scripts(), 2, "no text of the traces ends a script");
    assert_eq!(page.json["differences"], 0);
    assert_eq!(page.json["titles"]["touched_bytes"], "touched");
    let columns = page.json["map"]["columns"].as_u64().unwrap() as usize;
    assert_eq!(page.json["map"]["a_duration_ns"], 40_000_000);
    let lanes = page.json["map"]["lanes"].as_array().unwrap();
    assert_eq!(lanes.len(), 3);
    for lane in lanes {
        assert_eq!(
            page.bytes(&lane["a"]["heat"], 1),
            page.bytes(&lane["b"]["heat"], 1)
        );
    }
    // Eight pages that are all touched in interval 5 of 40: a column is a twelfth of an interval.
    let rows = page.json["objects"]["rows"].as_array().unwrap();
    let is_young = |lane: &&Value| rows[lane["row"].as_u64().unwrap() as usize]["a"] == "young";
    let young = &lanes.iter().find(is_young).unwrap()["a"];
    assert_eq!(
        (&young["pages"], &young["address_bins"]),
        (&8.into(), &8.into())
    );
    let heat = page.bytes(&young["heat"], 1);
    let touched = |column: usize| (0..8).all(|row| heat[row * columns + column] == 255);
    let which: Vec<usize> = (0..columns).filter(|c| touched(*c)).collect();
    assert_eq!(which, (60..72).collect::<Vec<_>>());
    assert_eq!(heat.iter().filter(|v| **v > 0).count(), 8 * 12);
}

#[test]
fn the_page_names_no_host() {
    let page = page_of(HtmlReport::default()).page;
    for scheme in ["http://", "https://", "ws://", "wss://", "//cdn"] {
        assert!(!page.contains(scheme), "the page mentions {scheme}");
    }
    assert!(page.contains("default-src 'none'"));
    let lock = fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../web/package-lock.json"
    ))
    .unwrap();
    assert!(
        !lock.contains("\"resolved\""),
        "the lock file names a registry"
    );
}
