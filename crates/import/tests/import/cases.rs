//! Small files of `cases`, each with one thing that was once read wrongly, lost or refused.

use std::path::Path;

use crate::common::{Imported, of_paths};
use varve_import::ImportError;
use varve_trace::tables::SiteRow;

const CASES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/import/cases");

fn case(name: &str) -> Result<Imported, ImportError> {
    of_paths(&[Path::new(CASES).join(name)], None)
}

fn good(name: &str) -> Imported {
    case(name).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn refused(name: &str) -> String {
    match case(name) {
        Err(error) => error.to_string(),
        Ok(got) => panic!("{name} was imported: {:?}", got.samples()),
    }
}

/// The module and the offset of the first frame of each site.
fn modules(of: &Imported) -> Vec<(String, Option<u64>)> {
    let sites: Vec<SiteRow> = of.trace().rows().unwrap();
    let first = |site: &SiteRow| {
        let frame = &site.frames[0];
        (frame.module.clone().unwrap_or_default(), frame.offset)
    };
    sites.iter().map(first).collect()
}

/// Whatever else `-F` has printed, the sample is the same.
#[test]
fn other_fields_change_no_field() {
    for name in [
        "bom.txt",
        "cgroup-field.txt",
        "dsoff.txt",
        "misc.txt",
        "namespaces.txt",
        "page-size-na.txt",
        "page-size.txt",
        "phys-and-page-size.txt",
        "tod.txt",
    ] {
        let got = good(name);
        let cpu = if name == "tod.txt" { "-" } else { "1" };
        assert_eq!(
            got.samples(),
            [format!(
                "5000001000 77 78 {cpu} 0x401abc 0x7e0000002000 - - - - - touch_it"
            )],
            "{name}"
        );
        let offset = (name == "dsoff.txt").then_some(0x1abc);
        assert_eq!(modules(&got), [("/opt/tool".to_owned(), offset)], "{name}");
    }
}

#[test]
fn a_symbol_that_looks_like_a_number_is_a_symbol() {
    let got = good("hex-named-function.txt");
    assert_eq!(
        got.samples(),
        [
            "5000001000 77 78 1 0x401abc 0x7e0000002000 - - - - - fade2",
            "5000002000 77 78 1 0x401abc 0x7e0000002000 - - - - - cafebabe",
        ]
    );
}

#[test]
fn latencies_are_no_instructions() {
    let got = good("ins-lat-no-symbol.txt");
    assert_eq!(
        got.samples(),
        ["5000001000 77 78 1 0x7e1111111111 0x7e0000002000 - false - 6 l1 -"]
    );
}

#[test]
fn an_arrow_separates_two_places() {
    let got = good("branch-arrow.txt");
    assert_eq!(
        got.samples(),
        ["5000001000 77 78 1 0x401abc - - - - - - one"]
    );
}

#[test]
fn what_a_tracepoint_prints_is_its_own() {
    for name in [
        "tracepoint-value-as-address.txt",
        "tracepoint-word-as-instruction.txt",
    ] {
        let said = refused(name);
        assert!(said.contains("neither address nor instruction"), "{said}");
    }
}

#[test]
fn lines_of_the_source_belong_to_their_frames() {
    let got = good("srcline.txt");
    assert_eq!(
        got.samples(),
        ["5000001000 0 78 - - 0x7e0000002000 - - - - - touch_it"]
    );
}

#[test]
fn a_program_called_x_is_not_compressed() {
    let got = good("program-named-x.txt");
    assert_eq!(
        got.samples(),
        ["5000001000 0 78 - - 0x7e0000002000 - - - - - touch_it"]
    );
}

/// Call chains print where code lies in its file.
#[test]
fn code_without_a_function_is_module_and_offset() {
    let got = good("chain-offsets-two-modules.txt");
    assert_eq!(
        got.samples(),
        [
            "5000001000 0 78 - - - - - - - - one.so+0x2abc",
            "5000002000 0 78 - - - - - - - - two.so+0x2abc",
        ]
    );
}

#[test]
fn modules_are_called_as_their_files() {
    let got = good("deleted-module.txt");
    let modules: Vec<String> = modules(&got).into_iter().map(|(name, _)| name).collect();
    assert_eq!(
        modules,
        [
            "/tmp/plug.so",
            "/memfd:jit (deleted)",
            "/opt/App (64 bit)/run"
        ]
    );
}

#[test]
fn a_text_without_times_is_refused_with_the_way_out() {
    for name in ["no-time.txt", "header-no-time.txt"] {
        let said = refused(name);
        assert!(said.contains("`perf script -F +time`"), "{said}");
    }
    let said = refused("no-symbols-no-newline.txt");
    assert!(said.contains("a last line that was cut"), "{said}");
}

#[test]
fn blanks_and_marks_are_no_data() {
    assert_eq!(
        good("lackey-trailing-blank.txt").samples(),
        [
            "0 0 - - - 0x2000 4 false - - - -",
            "1 0 - - - 0x2008 4 true - - - -",
        ]
    );
    assert_eq!(good("bom.lackey.txt").samples().len(), 4);
}

/// Half a number is another number: it is left out and counted.
#[test]
fn a_last_line_that_was_cut_is_left_out() {
    let got = good("lackey-cut-line.txt");
    assert_eq!(got.samples(), ["0 0 - - - 0x2000 4 false - - - -"]);
    let manifest = got.trace().manifest;
    assert_eq!(manifest.losses, [("cut_line".to_owned(), 1)].into());
    let statement = manifest.completeness.statement;
    assert!(!statement.contains("every access"), "{statement}");
    assert!(statement.contains("ends within a line"), "{statement}");
}

/// The touches without the numbers of their intervals.
fn touches(of: &Imported) -> Vec<String> {
    let rows = of.touches().into_iter();
    let without = |row: String| row.split_once(' ').unwrap().1.to_owned();
    rows.map(without).collect()
}

/// One lost event leaves its own snapshot incomplete and shifts no other.
#[test]
fn a_snapshot_of_which_an_event_is_missing_is_left_out() {
    let (whole, cut) = (
        good("damon-whole.txt"),
        good("damon-first-event-missing.txt"),
    );
    let all = touches(&whole);
    assert_eq!(all[0], "99900003000..100000003000 0 0x0+10 - damon");
    assert_eq!(all[1], "100000003000..100100003000 0 0xa+10 - damon");
    assert_eq!(all.len(), 6);
    assert_eq!(touches(&cut), all[1..]);
    let losses = cut.trace().manifest.losses;
    assert_eq!(losses, [("lost_snapshots".to_owned(), 1)].into());
    assert!(whole.trace().manifest.losses.is_empty());
}

/// The last event of one snapshot and the first ones of the next are missing: together they look like one.
#[test]
fn parts_of_two_snapshots_are_none() {
    let text = std::fs::read_to_string(Path::new(CASES).join("damon-whole.txt")).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let mut kept = lines.clone();
    kept.drain(4..7);
    let cut = crate::common::of_bytes(format!("{}\n", kept.join("\n")).as_bytes(), None).unwrap();
    let all = touches(&good("damon-whole.txt"));
    assert_eq!(touches(&cut), [&all[..1], &all[3..]].concat());
}

#[test]
fn a_scheme_that_is_about_to_be_applied_tells_of_regions() {
    let got = good("damos-before-apply.txt");
    assert_eq!(got.touches(), ["0 7000002000..7000002000 0 0x2+2 - damon"]);
}

#[test]
fn what_damo_makes_up_is_no_data() {
    assert_eq!(
        good("damo-fake-snapshot.txt").touches(),
        ["0 6900001000..7000001000 0 0x2+2 - damon"]
    );
    assert_eq!(
        good("damo-no-target.txt").touches(),
        ["0 7000001000..7000001000 0 0x2+2 - damon"]
    );
    assert_eq!(
        good("damo-samples-null.json").touches(),
        ["0 10..20 3 0x2+2 - damon"]
    );
}

#[test]
fn a_data_source_without_letters_is_decimal() {
    let got = good("memaxes-decimal-source.csv");
    let level = |line: String| line.split(' ').nth(10).unwrap().to_owned();
    let levels: Vec<String> = got.samples().into_iter().map(level).collect();
    assert_eq!(
        levels,
        [
            "l1",
            "l1",
            "l2",
            "l2",
            "fill_buffer",
            "fill_buffer",
            "l1",
            "l1",
            "l3",
            "l3",
            "-",
            "-"
        ]
    );
}

#[test]
fn mitos_writes_words_as_well() {
    let got = good("mitos-words.csv");
    assert_eq!(
        got.samples(),
        [
            "5000001 77 78 1 0x401abc 0x848f8c0 8 false - 9 l1 loop.c:9",
            "5000002 77 78 1 0x401abc 0x848f900 8 false - 300 local_dram loop.c:9",
        ]
    );
}
