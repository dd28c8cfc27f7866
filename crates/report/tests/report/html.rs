//! The page is decoded again, from its contract alone, and compared with what went in.

use std::fs;
use std::io::Read;

use base64::Engine;
use flate2::read::ZlibDecoder;
use serde_json::Value;
use varve_analyse::{
    Analysis, FindingId, Group, Known, MachineFacts, ObjectUse, Remainder, Reuse, Tail,
    ThreadShare, ThreadUse, TraceFacts, Usage, Writes,
};
use varve_model::{
    Address, Bytes, Cpu, Duration, Interval, ObjectId, ObjectKind, Page, PageRange, Pages, Pid,
    Tid, Time, TouchSource,
};
use varve_objects::{Layer, Span};
use varve_report::html::{HtmlReport, MAX_PAGE_BYTES, from_trace, types, write_html};
use varve_report::map::{GridPass, Map, Placement, Site};
use varve_trace::tables::{
    FaultRow, IntervalRow, MappingRow, ObjectRow, ProcessRow, ThreadRow, TouchRow,
};
use varve_trace::{
    Clock, Completeness, Features, IntervalChoice, Machine, Manifest, Options, Overhead, State,
    Target, Trace, TraceWriter, write_table,
};

struct Decoded {
    json: Value,
    columns: Vec<u8>,
    page: String,
}

impl Decoded {
    fn of(page: Vec<u8>) -> Decoded {
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

    fn bytes(&self, column: &Value, width: usize) -> &[u8] {
        let offset = column["offset"].as_u64().unwrap() as usize;
        &self.columns[offset..offset + width * column["count"].as_u64().unwrap() as usize]
    }

    fn sums(&self, column: &Value) -> Vec<i64> {
        let mut sum = 0;
        let deltas = self.bytes(column, 4).chunks(4);
        deltas
            .map(|d| {
                sum += i64::from(i32::from_le_bytes(d.try_into().unwrap()));
                sum
            })
            .collect()
    }

    fn words(&self, column: &Value) -> Vec<u16> {
        self.bytes(column, 2)
            .chunks(2)
            .map(|w| u16::from_le_bytes(w.try_into().unwrap()))
            .collect()
    }

    fn lane(&self, title: &str) -> &Value {
        let lanes = self.json["lanes"].as_array().unwrap();
        lanes
            .iter()
            .find(|l| l["title"] == title)
            .unwrap_or_else(|| panic!("no lane {title}"))
    }
}

fn page_of(report: HtmlReport) -> Decoded {
    let mut out = Vec::new();
    let size = write_html(report, &mut out).unwrap();
    assert_eq!(size.page.0, out.len() as u64);
    assert!(size.page <= MAX_PAGE_BYTES);
    Decoded::of(out)
}

fn placement(site: u32, first: u64, pages: u64) -> Placement {
    Placement {
        site,
        pid: Pid(1),
        layer: Layer::HEAP,
        address: Address(first * 4096),
        bytes: Bytes(pages * 4096),
        place: (Pid(1), Address(first * 4096)),
        born: Time(0),
        died: None,
    }
}

fn site(name: &str, touches: u64) -> Site {
    Site {
        name: name.to_owned(),
        kind: ObjectKind::Heap,
        objects: 1,
        touches,
        possibly: 0,
    }
}

/// An empty map of objects that each are one part.
fn pass<'a>(
    placements: &[Placement],
    sites: &[Site],
    spans: &'a [Span],
    intervals: usize,
) -> GridPass<'a> {
    let of: Vec<u32> = (0..spans.len() as u32).collect();
    GridPass::new(placements, sites, (spans, &of), intervals)
}

#[test]
fn the_largest_noise_still_fits() {
    // Nothing compresses worse: every page of 4 GiB at random, over ten minutes.
    let placements: Vec<_> = (0..64)
        .map(|i| placement(i, 0x10_0000 + u64::from(i) * 20_000, 16_384))
        .collect();
    let sites: Vec<_> = (0..64).map(|i| site(&format!("noise {i}"), 1)).collect();
    let spans: Vec<_> = placements.iter().map(Placement::span).collect();
    let intervals = 12_000_u32;
    let mut pass = pass(&placements, &sites, &spans, intervals as usize);
    let mut dice = 88_172_645_463_325_252_u64;
    for i in 0..intervals {
        pass.begin(
            Interval(i),
            Time(u64::from(i) * 50),
            Time(u64::from(i + 1) * 50),
        );
        for p in &placements {
            for _ in 0..12 {
                dice ^= dice << 13;
                dice ^= dice >> 7;
                dice ^= dice << 17;
                let first = Page(p.address.page().0 + dice % 16_000);
                pass.touch(
                    p.pid,
                    PageRange {
                        first,
                        count: Pages(1 + (dice >> 20) % 300),
                    },
                );
            }
        }
    }
    let report = HtmlReport {
        map: Map {
            grids: pass.finish(),
            edges: (0..=u64::from(intervals)).map(|i| Time(i * 50)).collect(),
            working_set: vec![Pages(1); intervals as usize],
            ..Map::default()
        },
        ..HtmlReport::default()
    };
    let mut out = Vec::new();
    let size = write_html(report, &mut out).unwrap();
    assert!(
        size.coarsened > 0,
        "this noise must not fit as it is, or the test shows nothing"
    );
    assert!(size.page <= MAX_PAGE_BYTES, "{size:?}");
    assert!(
        size.page.0 > 1_000_000,
        "coarsened more than needed: {size:?}"
    );
    let decoded = Decoded::of(out);
    assert_eq!(decoded.json["lanes"].as_array().unwrap().len(), 64);
}

fn in_lanes(placements: &[Placement], sites: &[Site], runs: &[(u64, u64)]) -> Decoded {
    let spans: Vec<_> = placements.iter().map(Placement::span).collect();
    let mut pass = pass(placements, sites, &spans, 4);
    pass.begin(Interval(0), Time(0), Time(10));
    for &(first, count) in runs {
        let run = PageRange {
            first: Page(first),
            count: Pages(count),
        };
        pass.touch(Pid(1), run);
    }
    page_of(HtmlReport {
        map: Map {
            grids: pass.finish(),
            edges: (0..5).map(Time).collect(),
            working_set: vec![Pages(0); 4],
            ..Map::default()
        },
        ..HtmlReport::default()
    })
}

#[test]
fn the_hottest_sites_have_lanes_and_the_rest_and_the_untouched_share_theirs() {
    let placements: Vec<_> = (0..200)
        .map(|i| placement(i, 0x1000 + u64::from(i) * 3, 2))
        .collect();
    // The last 60 are not touched; of those that are, later ones are hotter.
    let sites: Vec<_> = (0..200)
        .map(|i| site(&format!("o{i}"), if i < 140 { 1 + i } else { 0 }))
        .collect();
    let runs: Vec<_> = placements[..140]
        .iter()
        .map(|p| (p.address.page().0, 3))
        .collect();
    let decoded = in_lanes(&placements, &sites, &runs);
    let lanes = decoded.json["lanes"].as_array().unwrap();
    assert_eq!(lanes.len(), 96 + 2);
    assert_eq!(lanes[0]["title"], "o139");
    assert_eq!(lanes[0]["group"], 139);
    let rest = decoded.lane("other heap objects");
    assert_eq!((&rest["objects"], &rest["pages"]), (&44.into(), &88.into()));
    assert!(rest["group"].is_null());
    let untouched = decoded.lane("60 objects without touches");
    assert_eq!(untouched["pages"], 120);
    assert_eq!(decoded.bytes(&untouched["heat"], 1), [0; 4]);
    let unknown = decoded.json["unknown"][0].as_str().unwrap();
    assert!(
        unknown.contains("140 page touches"),
        "the page between two objects belongs to none"
    );
}

#[test]
fn a_page_of_several_objects_of_a_site_is_one_page_of_its_lane() {
    // Two small objects on one page, one that lies on it and the next, and one far away; then the first again, later.
    let on = |address: u64, bytes| Placement {
        address: Address(address),
        bytes: Bytes(bytes),
        place: (Pid(1), Address(address)),
        ..placement(0, 0, 0)
    };
    let placements = [
        on(0x10_0000, 64),
        on(0x10_0100, 64),
        on(0x10_0ff0, 64),
        on(0x20_0000, 64),
        on(0x10_0000, 64),
    ];
    let sites = [Site {
        objects: 5,
        ..site("node", 3)
    }];
    let decoded = in_lanes(&placements, &sites, &[(0x100, 2), (0x200, 1)]);
    let lane = decoded.lane("node");
    assert_eq!((&lane["pages"], &lane["objects"]), (&3.into(), &5.into()));
    let segments = serde_json::json!([
        {"pid": 1, "lane_page": 0, "page": 0x100, "pages": 2},
        {"pid": 1, "lane_page": 2, "page": 0x200, "pages": 1},
    ]);
    assert_eq!(lane["segments"], segments);
    let coverage: u64 = decoded
        .bytes(&lane["coverage"], 1)
        .iter()
        .map(|&n| u64::from(n))
        .sum();
    assert_eq!(coverage, 3, "each page was touched once");
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
            min_object_bytes: Bytes(4096),
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
        modules: vec![],
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
        processes: vec![],
        address: Address(page * 4096),
        bytes: Bytes(pages * 4096),
        touched_bytes: Bytes(pages * 4096),
        pool: false,
        born_ns: Time(0),
        died_ns: None,
        born_tid: None,
        usage: Usage {
            touched_pages: Pages(3),
            reuse: Reuse {
                once: Pages(2),
                twice: Pages(1),
                more: Pages(0),
            },
            ..Usage::default()
        },
        first_touch_tid: None,
        threads: vec![ThreadShare {
            pid: Pid(1),
            tid: Tid(2),
            pages: Pages(1),
        }],
    };
    let group = |o: &ObjectUse| Group {
        name: o.name.clone(),
        kind: o.kind,
        site: None,
        objects: 1,
        processes: vec![],
        threads: o.threads.clone(),
        bytes: o.bytes,
        touched_bytes: o.touched_bytes,
        peak_bytes: o.bytes,
        died: 0,
        median_life_ns: None,
        untouched_objects: 0,
        touched_pages_over_lives: o.usage.touched_pages,
        usage: Usage {
            page_touches: 3,
            ..o.usage
        },
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
            statement: "Everything.".into(),
            state: State::Finished,
            losses: [].into(),
            backend: varve_model::Backend::Scan,
            capabilities: varve_model::Capability::RECORDED.into(),
            hold: String::new(),
            intervals: intervals.len() as u64,
            duration_ns: Duration(40_000_000),
            start_ns: Time(1_000_000),
            start_unix_ns: Known::default(),
            interval_ns: None,
            interval_accesses: None,
            median_interval_ns: Duration(1_000_000),
            shortest_interval_ns: Duration(1_000_000),
            longest_interval_ns: Duration(1_000_000),
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
            touch_rows: 5,
            stray_rows: 0,
        },
        overhead: Known::default(),
        footprint: varve_analyse::Footprint::default(),
        reuse: Reuse::default(),
        working_set: vec![],
        sources: vec![],
        writes: Writes::Unknown,
        processes: vec![],
        object_sources: vec![],
        threads: vec![thread(1, "main"), thread(2, "worker")],
        objects: objects.map(object).into(),
        omitted: varve_analyse::Omitted::default(),
        groups: objects.map(object).iter().map(group).collect(),
        unowned: Remainder {
            touched_pages: Pages(2),
            page_touches: 2,
        },
        shared: Remainder::default(),
        own_memory: Remainder::default(),
        samples: None,
        counts: None,
        tail: Tail::default(),
        contradictions: vec![],
        findings: vec![varve_analyse::Finding {
            id: FindingId::NeverTouched,
            title: String::new(),
            evidence: String::new(),
            advice: String::new(),
            objects: vec![ObjectId(2)],
        }],
        sharing: None,
        unknown: vec![],
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
            resident_pages: 100,
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

    let analysis = analysis(&intervals);
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
    let report = from_trace(&trace, &analysis, map).unwrap();
    let decoded = page_of(report);

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
