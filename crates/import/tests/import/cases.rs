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
        assert_eq!(
            got.samples(),
            ["5000001000 77 78 1 0x401abc 0x7e0000002000 - - - - - touch_it"],
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
