//! The page, the JSON and the picture of small traces.

use std::path::Path;

use tempfile::TempDir;
use varve_analyse::{AnalyseOptions, Analysis, Section, analyse};
use varve_model::{
    Address, Backend, Bytes, Capability, Cpu, Duration, Interval, ObjectId, ObjectKind, Page, Pid,
    Resolved, SampleMode, SampleSource, SiteId, Tid, Time, TouchSource,
};
use varve_report::export::{ExportFormat, export};
use varve_report::map::Map;
use varve_report::terminal::TerminalOptions;
use varve_report::{json, png, terminal};
use varve_trace::tables::{
    FaultRow, IntervalRow, ObjectRow, SampleRow, SiteRow, ThreadRow, TouchRow,
};
use varve_trace::{
    ClockUnit, Manifest, SamplesNote, State, Trace, TraceWriter, finish_tables, write_table,
};

const STEP: u64 = 50_000_000;

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Kind {
    Complete,
    Incomplete,
    Empty,
    WithoutFaults,
    Imported,
    Sampled,
}

fn manifest(kind: Kind) -> Manifest {
    let text = serde_json::json!({
        "format": "varve-trace", "version": 1, "varve": "0.1.0",
        "state": if kind == Kind::Incomplete { "recovered" } else { "finished" },
        "backend": if kind == Kind::Imported { "import/damon" } else { "scan" },
        "capabilities": if kind == Kind::Imported { serde_json::json!(["touches", "places", "lives"]) } else { serde_json::json!(["touches", "resident", "faults", "overhead", "machine", "places", "lives", "superset", "heap_objects"]) },
        "target": {"command": ["./solver", "--grid", "64"], "pid": 42, "attached": false, "exit_code": 0},
        "options": {"interval": {"fixed": STEP}, "follow": true, "delay_ns": 0, "min_object_bytes": 4096, "thp_never": false, "without": []},
        "features": {"writes": null, "page_flags": true, "hold": "cgroup", "objects": "preload"},
        "machine": {"kernel": "6.12.48", "architecture": "x86_64", "cpu": "Some CPU", "cpus": 2, "memory_bytes": 8_u64 << 30, "nodes": 2},
        "clock": {"start_ns": 0, "end_ns": 400 * STEP, "start_unix_ns": 1_773_480_413_000_000_000_u64, "unit": "nanoseconds"},
        "completeness": {"complete": false, "statement": if kind == Kind::Imported { "Imported: some pages were touched." } else { "" }},
        "overhead": {"held_ns": 0, "recorder_cpu_ns": 0, "recorder_peak_bytes": 50 << 20},
        "losses": if kind == Kind::Incomplete { serde_json::json!({"ring_overflow": 17}) } else { serde_json::json!({}) },
        "modules": [], "notes": [],
    });
    let mut manifest: Manifest = serde_json::from_value(text).unwrap();
    assert_ne!(manifest.state, State::Recording);
    if kind == Kind::Sampled {
        let mut note = SamplesNote::new(SampleSource::CpuClock, 1000);
        (note.taken, note.behind) = (4000, 4000);
        manifest.samples = Some(note);
    }
    manifest.settle();
    manifest
}

pub(crate) fn write(folder: &Path, kind: Kind) -> (Trace, Analysis) {
    let end = manifest(kind);
    let mut during = end.clone();
    during.state = State::Recording;
    let mut writer = TraceWriter::create(folder, &during).unwrap();
    if kind != Kind::Empty {
        rows(&mut writer, kind);
    }
    finish_tables(writer.folder(), &mut |_| ()).unwrap();
    writer.folder().write_manifest(&end).unwrap();
    let trace = Trace::open(folder).unwrap();
    let analysis = analyse(&trace, &AnalyseOptions::default(), &mut |_| ()).unwrap();
    (trace, analysis)
}

fn rows(writer: &mut TraceWriter, kind: Kind) {
    let intervals: Vec<IntervalRow> = (0..400_u32)
        .map(|i| IntervalRow {
            interval: Interval(i),
            start_ns: Time(u64::from(i) * STEP),
            end_ns: Time((u64::from(i) + 1) * STEP - 300_000),
            held_ns: Duration(300_000),
            resident_pages: 9000,
            processes: 1,
            threads: 3,
            recorder_cpu_ns: Duration(800_000),
        })
        .collect();
    let touch = |i: u32, page: u64, pages: u64| TouchRow {
        interval: Interval(i),
        pid: Pid(42),
        page: Page(page),
        pages: pages as u32,
        page_bytes: 4096,
        written: None,
        source: TouchSource::Scan,
    };
    let mut touches = Vec::new();
    for i in 0..400_u32 {
        let wave = (f64::from(i) / 25.0).sin() * 800.0 + 1000.0;
        touches.push(touch(i, 0x10000, wave as u64));
        if i < 150 {
            touches.push(touch(i, 0x20000 + u64::from(i) * 20, 40));
        }
        touches.push(touch(i, 0x40000, 3));
    }
    let object = |id: u64, kind: ObjectKind, name: &str, page: u64, pages: u64| ObjectRow {
        object: ObjectId(id),
        pid: Pid(42),
        kind,
        name: name.into(),
        site: (kind == ObjectKind::Heap).then_some(SiteId(0)),
        address: Address(page * 4096 + 64),
        bytes: Bytes(pages * 4096 - 64),
        born_ns: Time(1000),
        died_ns: None,
        tid: Some(Tid(42)),
        pool: false,
        layer: if kind == ObjectKind::Heap { 5 } else { 6 },
        continues: None,
    };
    let objects = [
        object(
            1,
            ObjectKind::Heap,
            "matrix (solver.c:42, in setup)",
            0x10000,
            2000,
        ),
        object(
            2,
            ObjectKind::Heap,
            "std::vector<std::pair<unsigned long, Particle>> particles (simulation/particles.cpp:1207, in ParticleSystem::reserve_all)",
            0x20000,
            3100,
        ),
        object(
            3,
            ObjectKind::Heap,
            "spare (solver.c:50, in setup)",
            0x30000,
            2048,
        ),
        object(4, ObjectKind::Static, "table", 0x50000, 16),
    ];
    let thread = |tid: u32| ThreadRow {
        pid: Pid(42),
        tid: Tid(tid),
        name: if tid == 42 {
            "solver".into()
        } else {
            format!("worker-{tid}")
        },
        born_ns: Time(0),
        died_ns: None,
    };
    let fault = |i: u64, page: u64| FaultRow {
        time_ns: Time(i * STEP + 9),
        pid: Pid(42),
        tid: Tid(if page < 0x20000 {
            42
        } else {
            43 + (page % 2) as u32
        }),
        cpu: Cpu(0),
        ip: Address(1),
        address: Address(page * 4096),
        write: None,
        kernel: false,
    };
    let mut faults: Vec<FaultRow> = (0..1800).map(|p| fault(0, 0x10000 + p)).collect();
    faults.extend((0..3000).map(|p| fault(p / 20, 0x20000 + p)));
    writer.append(&intervals).unwrap();
    writer.append(&touches).unwrap();
    if !matches!(kind, Kind::WithoutFaults | Kind::Imported) {
        writer.append(&faults).unwrap();
        writer
            .append(&[thread(42), thread(43), thread(44)])
            .unwrap();
    }
    if kind == Kind::Sampled {
        writer.append(&samples()).unwrap();
    }
    write_table(writer.folder(), &objects).unwrap();
    let site = SiteRow {
        site: SiteId(0),
        label: "solver.c:42, in setup".into(),
        frames: vec![],
    };
    write_table(writer.folder(), &[site]).unwrap();
}

/// Each worker uses a half of the matrix, which thread 42 touched first.
fn samples() -> Vec<SampleRow> {
    let sample = |i: u64| {
        let (worker, step) = (i % 2, i / 2 % 1000);
        SampleRow {
            time_ns: Time(i * 5_000_000),
            pid: Pid(42),
            tid: Some(Tid(43 + worker as u32)),
            cpu: Some(Cpu(0)),
            ip: Some(Address(0x1000)),
            address: Some(Address(
                (0x10000 + 1 + worker * 998 + step * 997 % 998) * 4096,
            )),
            bytes: Some(Bytes(8)),
            write: Some(i % 4 < 2),
            object: Some(ObjectId(1)),
            source: SampleSource::CpuClock,
            latency_cycles: None,
            level: None,
            resolved: Some(Resolved::Behind),
            mode: Some(SampleMode::User),
            weight_ns: Some(Duration(1_000_000)),
            site: Some(SiteId(0)),
        }
    };
    (0..4000).map(sample).collect()
}

#[test]
fn samples_say_who_uses_what() {
    let text = page(Kind::Sampled, 100);
    let part = text.split("Who uses what").nth(1).expect("the section");
    assert!(
        part.contains("not for a number of accesses"),
        "the weight: {part}"
    );
    // The part in the middle is of both.
    assert!(part.contains("AAAAAAAaBBBBBBBB"), "{part}");
    assert!(text.contains("[parallel-first-touch]"), "{text}");

    let folder = TempDir::new().unwrap();
    let (_, analysis) = write(&folder.path().join("t.varve"), Kind::Sampled);
    let json: serde_json::Value =
        serde_json::from_str(&json::render(&analysis, &[]).unwrap()).unwrap();
    let (samples, times) = (&json["samples"], &json["access_time"]);
    // One reading, two names.
    for field in ["time_ns", "access_ns", "unowned_ns"] {
        assert_eq!(samples[field], times[field], "{field}");
    }
    assert_eq!(times["time_ns"], 4_000_000_000_u64);
    assert_eq!(times["taken"], 4000);
    assert_eq!(samples["note"]["taken"], 4000);
    let (one, other) = (&samples["objects"][0], &times["objects"][0]);
    assert_eq!(one["write_ns"], other["write_ns"]);
    assert_eq!(one["steps"], other["steps"]);
    assert_eq!(other["read_ns"], 2_000_000_000_u64);
    let sharing = &json["sharing"];
    assert_eq!(sharing["unit"], "nanoseconds");
    assert_eq!(sharing["objects"][0]["class"], "many_writers");
    assert_eq!(sharing["objects"][0]["first_tid"], 42);
    let untouched = json::render(
        &write(&folder.path().join("u.varve"), Kind::Complete).1,
        &[],
    )
    .unwrap();
    let untouched: serde_json::Value = serde_json::from_str(&untouched).unwrap();
    assert!(untouched["samples"].is_null() && untouched["access_time"].is_null());
    assert_eq!(untouched["sharing"]["source"], "faults");
}

#[test]
fn trapped_accesses_say_who_uses_what_and_what_they_do_not() {
    let folder = TempDir::new().unwrap();
    let (mut trace, _) = write(&folder.path().join("t.varve"), Kind::Complete);
    trace.manifest.backend = Backend::Fault;
    trace.manifest.capabilities.insert(Capability::Traps);
    let analysis = analyse(&trace, &AnalyseOptions::default(), &mut |_| ()).unwrap();
    let text = full(&analysis, 120);
    let part = text.split("Who uses what").nth(1).expect("the section");
    assert!(
        part.contains("(by trapped accesses: 4,800 times the first"),
        "{part}"
    );
    assert!(part.contains("neither times nor counts"), "{part}");
    assert!(
        part.contains("firsts") && part.contains("was first in"),
        "{part}"
    );
    assert!(!part.contains("private"), "{part}");
    let json: serde_json::Value =
        serde_json::from_str(&json::render(&analysis, &[]).unwrap()).unwrap();
    assert_eq!(json["sharing"]["source"], "traps");
    assert_eq!(json["sharing"]["unit"], "first_accesses");
}

fn shown(analysis: &Analysis, sections: &[Section], width: usize, color: bool) -> String {
    let options = TerminalOptions {
        sections: sections.to_vec(),
        width,
        color,
    };
    terminal::render(analysis, Path::new("solver.varve"), &options)
}

/// Every section.
fn full(analysis: &Analysis, width: usize) -> String {
    shown(analysis, &Section::ALL[1..], width, false)
}

/// The page of a trace that is a little other than those that are written here.
pub(crate) fn changed(kind: Kind, change: impl Fn(&mut Analysis)) -> String {
    let folder = TempDir::new().unwrap();
    let (_, mut analysis) = write(&folder.path().join("t.varve"), kind);
    change(&mut analysis);
    full(&analysis, 120)
}

#[test]
fn trapped_accesses_are_exported_before_samples() {
    let folder = TempDir::new().unwrap();
    let (mut trace, _) = write(&folder.path().join("t.varve"), Kind::Sampled);
    let sources = |trace: &Trace| {
        let mut csv = Vec::new();
        export(trace, ExportFormat::Csv, &mut csv).unwrap();
        let text = String::from_utf8(csv).unwrap();
        let rows = text.lines().skip(1);
        rows.map(|row| row.split(',').nth(4).unwrap().to_owned())
            .collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!(sources(&trace), ["cpu-clock".to_owned()].into());
    trace.manifest.backend = Backend::Fault;
    trace.manifest.capabilities.insert(Capability::Traps);
    assert_eq!(sources(&trace), ["page_fault".to_owned()].into());
    // Each is in the object that holds its address at its time; those of the first moment were before all objects.
    let mut folded = Vec::new();
    export(&trace, ExportFormat::Folded, &mut folded).unwrap();
    let text = String::from_utf8(folded).unwrap();
    let of = |name: &str| {
        let lines = text.lines().filter(|line| line.contains(name));
        let counts = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
        counts.sum::<u64>()
    };
    assert_eq!(of("particles"), 2980, "{text}");
    assert_eq!(of("no known object"), 1820, "{text}");
}

#[test]
fn a_counted_run_is_not_said_to_be_held_or_cut_by_cost() {
    let counted = |accesses| {
        changed(Kind::Complete, |a| {
            a.trace.backend = Backend::Exact;
            a.trace
                .capabilities
                .extend([Capability::ExactCounts, Capability::Emulated]);
            (a.trace.interval_ns, a.trace.interval_accesses) = (None, Some(accesses));
        })
    };
    let whole = counted(0);
    assert!(
        whole.contains("intervals (the whole run), backend exact"),
        "{whole}"
    );
    assert!(
        whole.contains(
            "cost        the program ran in an emulator, many times slower than by itself"
        ),
        "{whole}"
    );
    assert!(
        !whole.contains("target held") && !whole.contains("by cost"),
        "{whole}"
    );
    assert!(counted(20_000_000).contains("intervals of 20,000,000 accesses"));
}

#[test]
fn intervals_that_became_longer_are_not_said_to_be_as_asked() {
    let page = changed(Kind::Complete, |a| {
        a.trace.shortest_interval_ns = Duration(STEP);
        a.trace.median_interval_ns = Duration(52_000_000);
        a.trace.longest_interval_ns = Duration(210_000_000);
    });
    let page = page.split_whitespace().collect::<Vec<_>>().join(" ");
    let said = "400 intervals of 50 ms to 210 ms (median 52 ms; asked for 50 ms)";
    assert!(page.contains(said), "{page}");
}

#[test]
fn an_attached_program_has_no_heap_objects_but_those_that_are_known() {
    let said = |name: &str| {
        changed(Kind::Complete, |a| {
            a.trace.attached = true;
            a.objects.truncate(1);
            (a.objects[0].kind, a.objects[0].name) = (ObjectKind::Heap, name.into());
        })
    };
    let of = |page: String| page.contains("made since");
    assert!(!of(said("[heap], small objects")));
    assert!(of(said("malloc (a.c:1, in f)")));
}

#[test]
fn a_clock_that_counts_accesses_is_no_time() {
    let text = changed(Kind::Complete, |a| a.trace.clock_unit = ClockUnit::Accesses);
    let chart = text
        .split("Working set over time")
        .nth(1)
        .expect("the section");
    let chart = chart.split("Hottest objects").next().expect("its end");
    assert!(
        chart.contains(" 0 accesses ") && !chart.contains(" s\n"),
        "{chart}"
    );
}

#[test]
fn a_thread_that_comes_back_to_its_object_is_in_one_phase() {
    let text = changed(Kind::Sampled, |a| {
        let threads = &mut a.sharing.as_mut().expect("sharing").threads;
        let phases = &mut threads[0].phases;
        assert_eq!(phases.len(), 1);
        phases.extend(phases.repeat(20));
    });
    let flow = text
        .split("What the threads go through")
        .nth(1)
        .expect("the flows");
    let first = flow.lines().nth(1).expect("a thread");
    assert_eq!(first.matches("from ").count(), 1, "{first}");
    assert!(!first.contains("more"), "{first}");
}

#[test]
fn tables_say_what_they_leave_out() {
    let text = changed(Kind::Sampled, |a| {
        let samples = a.samples.as_mut().expect("samples");
        samples.objects = vec![samples.objects[0].clone(); 9];
        a.threads = vec![a.threads[0].clone(); 7];
    });
    let times = text.split("Time at accesses").nth(1).expect("the section");
    let objects = times.split("line of code").next().expect("its table");
    assert!(objects.contains("  and 3 more\n"), "{objects}");
    assert!(objects.contains("steps: "), "{objects}");
    assert!(text.contains("  1 other thread: "), "{text}");
}

/// A first screen, which fits a window.
pub(crate) fn first_screen(analysis: &Analysis, width: usize) -> String {
    let screen = shown(analysis, &[], width, false);
    assert!(screen.lines().count() <= 40, "{screen}");
    for line in screen.lines() {
        assert!(line.chars().count() <= width, "{line}");
    }
    screen
}

#[test]
fn the_first_screen_says_what_was_used_what_is_hot_and_what_to_do() {
    let folder = TempDir::new().unwrap();
    let (_, analysis) = write(&folder.path().join("t.varve"), Kind::Sampled);
    insta::assert_snapshot!(first_screen(&analysis, 100));
}

#[test]
fn the_first_screen_fits_whatever_there_is() {
    let folder = TempDir::new().unwrap();
    for (i, kind) in [
        Kind::Complete,
        Kind::Incomplete,
        Kind::Empty,
        Kind::WithoutFaults,
        Kind::Imported,
    ]
    .into_iter()
    .enumerate()
    {
        let (_, mut analysis) = write(&folder.path().join(format!("{i}.varve")), kind);
        for width in [80, 120] {
            first_screen(&analysis, width);
        }
        // As much of everything as there can be.
        analysis.trace.command = vec!["a long command".into(); 100];
        analysis.contradictions = vec!["this is more than all of it".into(); 30];
        analysis.unknown = vec!["Whether it is so: nobody says.".into(); 30];
        if let Some(finding) = analysis.findings.first().cloned() {
            analysis.findings = vec![finding; 30];
            let screen = first_screen(&analysis, 80);
            assert!(screen.contains("and 26 other findings"), "{screen}");
        }
    }
}

#[test]
fn sections_are_shown_by_themselves() {
    let folder = TempDir::new().unwrap();
    let (_, analysis) = write(&folder.path().join("t.varve"), Kind::Complete);
    let text = shown(&analysis, &[Section::Objects, Section::Counts], 100, false);
    assert!(text.contains("Hottest objects") && !text.contains("Findings"));
    assert!(
        text.contains("counts      accesses were not counted"),
        "{text}"
    );
    let json: serde_json::Value =
        serde_json::from_str(&json::render(&analysis, &[Section::Findings]).unwrap()).unwrap();
    let fields: Vec<&str> = json
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    assert_eq!(fields, ["findings", "schema"]);
}

fn page(kind: Kind, width: usize) -> String {
    let folder = TempDir::new().unwrap();
    let (_, analysis) = write(&folder.path().join("t.varve"), kind);
    let page = full(&analysis, width);
    for line in page.lines() {
        assert!(
            line.chars().count() <= width,
            "{} columns: {line}",
            line.chars().count()
        );
    }
    assert!(!page.contains('\u{1b}'));
    page
}

#[test]
fn a_complete_trace() {
    insta::assert_snapshot!(page(Kind::Complete, 100));
}

#[test]
fn an_incomplete_trace_says_so() {
    let page = page(Kind::Incomplete, 80);
    assert!(page.contains("INCOMPLETE") && page.contains("ring_overflow: 17"));
    insta::assert_snapshot!(page);
}

#[test]
fn an_empty_trace() {
    insta::assert_snapshot!(page(Kind::Empty, 80));
}

#[test]
fn a_trace_without_faults() {
    let page = page(Kind::WithoutFaults, 80);
    assert!(!page.contains("First touch by thread"));
    insta::assert_snapshot!(page);
}

#[test]
fn an_imported_trace_lacks_what_its_source_does_not_say() {
    let page = page(Kind::Imported, 80);
    assert!(!page.contains("First touch by thread"));
    insta::assert_snapshot!(page);
}

#[test]
fn colour_changes_no_letter() {
    let folder = TempDir::new().unwrap();
    let (_, analysis) = write(&folder.path().join("t.varve"), Kind::Complete);
    let coloured = shown(&analysis, &Section::ALL, 80, true);
    let mut plain = String::new();
    let mut letters = coloured.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\u{1b}' => drop(letters.by_ref().find(|c| *c == 'm')),
            letter => plain.push(letter),
        }
    }
    assert_ne!(plain, coloured);
    assert_eq!(plain, shown(&analysis, &Section::ALL, 80, false));
}

#[test]
fn the_json_has_the_fields_that_others_rely_on() {
    let folder = TempDir::new().unwrap();
    let (_, analysis) = write(&folder.path().join("t.varve"), Kind::Complete);
    let value: serde_json::Value =
        serde_json::from_str(&json::render(&analysis, &[]).unwrap()).unwrap();
    assert_eq!(value["schema"], "varve-report/1");
    for path in [
        "/trace/complete",
        "/trace/backend",
        "/trace/intervals",
        "/trace/duration_ns",
        "/trace/losses",
        "/overhead/held_ns",
        "/overhead/recorder_cpu_ns",
        "/footprint/touched_pages",
        "/footprint/peak_resident_pages",
        "/working_set/0/start_ns",
        "/working_set/0/pages",
        "/objects/0/name",
        "/objects/0/kind",
        "/objects/0/site",
        "/objects/0/bytes",
        "/objects/0/touched_pages",
        "/objects/0/page_touches",
        "/objects/0/first_touch_tid",
        "/objects/0/threads/0/tid",
        "/findings/0/id",
        "/findings/0/title",
        "/findings/0/evidence",
        "/findings/0/advice",
    ] {
        let field = value.pointer(path);
        assert!(field.is_some_and(|v| !v.is_null()), "{path}");
    }
    assert_eq!(value["trace"]["intervals"], 400);
    assert_eq!(value["overhead"]["held_ns"], 400 * 300_000);
    let described = include_str!("../../../../docs/report-json.md");
    for field in value
        .as_object()
        .unwrap()
        .keys()
        .chain(value["objects"][0].as_object().unwrap().keys())
    {
        let named =
            described.contains(&format!("`{field}")) || described.contains(&format!("{field}`"));
        assert!(named, "docs/report-json.md does not describe `{field}`");
    }
}

#[test]
fn pictures_are_pngs_even_of_nothing() {
    for kind in [Kind::Complete, Kind::Empty] {
        let folder = TempDir::new().unwrap();
        let (trace, analysis) = write(&folder.path().join("t.varve"), kind);
        let mut bytes = Vec::new();
        let map = Map::of(&trace, &analysis, |_| ()).unwrap();
        png::render(&analysis, &map, &mut bytes, &Default::default()).unwrap();
        assert_eq!(&bytes[1..4], b"PNG");
        assert!(bytes.len() > 5000);
    }
}
