//! The page, the JSON and the picture of small traces.

use std::path::Path;

use tempfile::TempDir;
use varve_analyse::{AnalyseOptions, Analysis, Known, LineTime, Overhead, Section, analyse};
use varve_model::{Backend, Capability, Duration, ObjectKind};
use varve_report::export::{ExportFormat, export};
use varve_report::map::Map;
use varve_report::terminal::TerminalOptions;
use varve_report::{json, png, terminal};
use varve_trace::{ClockUnit, Trace};

use crate::made::{Kind, STEP, write};

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
    let samples = &json["samples"];
    assert_eq!(samples["time_ns"], 4_000_000_000_u64);
    assert_eq!(samples["note"]["taken"], 4000);
    let object = &samples["objects"][0];
    let read = object["time_ns"].as_u64().unwrap() - object["write_ns"].as_u64().unwrap();
    assert_eq!(read, 2_000_000_000);
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
    assert!(untouched["samples"].is_null());
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
        whole: false,
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

/// A program that ends early may have been sampled in system calls and faults only.
#[test]
fn lines_of_code_are_shown_where_no_access_is_known() {
    let line = || LineTime {
        function_line: None,
        function: Some("fill".into()),
        file: Some("/src/solver.c".into()),
        line: Some(7),
        module: None,
        samples: 3,
        time_ns: Some(Duration(3_000_000)),
        access_ns: Some(Duration(0)),
        overwritten_ns: None,
        write_ns: Some(Duration(0)),
        kernel_ns: None,
        called: None,
    };
    let text = changed(Kind::Sampled, |a| {
        let samples = a.samples.as_mut().unwrap();
        samples.all.access_ns = Some(Duration(0));
        samples.lines = vec![line()];
    });
    let part = text.split("Time at accesses (samples)").nth(1).unwrap();
    assert!(part.contains("solver.c:7, in fill"), "{part}");
}

#[test]
fn too_few_samples_are_said_not_to_tell_who_uses_what() {
    let text = changed(Kind::Sampled, |a| {
        let sharing = a.sharing.as_mut().unwrap();
        (sharing.events, sharing.enough) = (1, false);
    });
    let part = text.split("Who uses what").nth(1).unwrap();
    let part = part.split("\n\n").next().unwrap();
    assert!(part.contains("(by 1 sampled access"), "{part}");
    assert!(
        part.contains("too few to say which threads use what"),
        "{part}"
    );
    assert!(
        !part.contains("sharing") && !part.contains("parts"),
        "{part}"
    );
}

#[test]
fn the_rate_of_samples_is_said() {
    let text = page(Kind::Sampled, 120);
    assert!(
        text.contains("4,000 samples by cpu-clock at 1,000/s of each CPU:"),
        "{text}"
    );
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
            a.overhead = a.overhead.map(|o| Overhead {
                slowdown: None,
                ..*o
            });
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
        a.trace.shortest_interval_ns = Known::Exact(Duration(STEP));
        a.trace.median_interval_ns = Known::Exact(Duration(52_000_000));
        a.trace.longest_interval_ns = Known::Exact(Duration(210_000_000));
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
        a.threads = a.threads.map(|of| vec![of[0].clone(); 7]);
    });
    let times = text.split("Time at accesses").nth(1).expect("the section");
    let objects = times.split("line of code").next().expect("its table");
    assert!(
        objects.contains("  and 3 more (--all shows them)\n"),
        "{objects}"
    );
    assert!(objects.contains("steps: "), "{objects}");
    assert!(text.contains("  1 other thread: "), "{text}");
    // Who asks for all of it gets all of it.
    let folder = TempDir::new().unwrap();
    let (_, mut analysis) = write(&folder.path().join("t.varve"), Kind::Sampled);
    let samples = analysis.samples.as_mut().unwrap();
    samples.objects = vec![samples.objects[0].clone(); 9];
    let options = TerminalOptions {
        sections: vec![Section::Samples],
        whole: true,
        width: 120,
        color: false,
    };
    let text = terminal::render(&analysis, Path::new("solver.varve"), &options);
    assert_eq!(text.matches("matrix (solver.c:42").count(), 9, "{text}");
    assert!(!text.contains(" more"), "{text}");
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
            // What is left out is a part of its own, and of a name its middle.
            let said = screen.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(said.contains("; … (--section unknown)"), "{screen}");
            if kind == Kind::Complete {
                let name = "std::vector<std::pair… in ParticleSystem::reserve_all)";
                assert!(screen.contains(name), "{screen}");
            }
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

/// The JSON of a trace that lacks something.
fn json_without(capability: Capability) -> serde_json::Value {
    let folder = TempDir::new().unwrap();
    let (mut trace, _) = write(&folder.path().join("t.varve"), Kind::Complete);
    trace.manifest.capabilities.remove(&capability);
    let options = AnalyseOptions {
        max_objects: 1,
        ..AnalyseOptions::default()
    };
    let analysis = analyse(&trace, &options, &mut |_| ()).unwrap();
    full(&analysis, 80);
    serde_json::from_str(&json::render(&analysis, &[]).unwrap()).unwrap()
}

#[test]
fn what_a_trace_lacks_is_null_in_the_json() {
    let of_touches = "touched_pages touched_bytes page_touches intervals_touched first_touch_ns last_touch_ns reuse \
                      written_pages shared_page_touches huge_page_touches standing_page_touches \
                      possibly_others_page_touches cold_pages";
    let cases = [
        (
            Capability::Touches,
            "/trace",
            "intervals interval_ns median_interval_ns shortest_interval_ns longest_interval_ns touch_rows stray_rows",
        ),
        (
            Capability::Touches,
            "/processes/0",
            "touched_pages shared_pages page_touches",
        ),
        (Capability::Touches, "/objects/0", of_touches),
        (Capability::Touches, "/groups/0", of_touches),
        (
            Capability::Touches,
            "/groups/0",
            "touched_pages_over_lives untouched_objects",
        ),
        (
            Capability::Touches,
            "/groups/0/processes/0",
            "touched_pages_over_lives page_touches",
        ),
        (
            Capability::Touches,
            "/omitted",
            "touched_pages_over_lives page_touches",
        ),
        (
            Capability::Faults,
            "/objects/0",
            "first_touches faults threads",
        ),
        (
            Capability::Faults,
            "/groups/0",
            "first_touches faults threads",
        ),
        (Capability::Places, "/objects/0", "address bytes"),
        (Capability::Places, "/groups/0", "bytes peak_bytes"),
        (Capability::Places, "/omitted", "bytes"),
        (Capability::Lives, "/objects/0", "born_ns"),
        (Capability::Lives, "/groups/0", "died peak_bytes"),
    ];
    // Of all the trace itself says, but how long the first interval was to be and which pages were written.
    let unsaid = [
        "/trace/interval_ns",
        "/objects/0/written_pages",
        "/groups/0/written_pages",
    ];
    let whole = json_without(Capability::Emulated);
    for (capability, at, fields) in cases {
        let lacking = json_without(capability);
        for field in fields.split_whitespace() {
            let path = format!("{at}/{field}");
            let null = serde_json::Value::Null;
            assert_eq!(
                lacking.pointer(&path),
                Some(&null),
                "{path} without {capability:?}"
            );
            let known = whole.pointer(&path).expect(&path);
            assert!(
                !known.is_null() || unsaid.contains(&path.as_str()),
                "{path}"
            );
        }
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
