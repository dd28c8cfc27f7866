//! Code whose file is gone or another one when the trace is put in order has the names that it had.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use varve_faults::{Stage, check_trace};
use varve_trace::Trace;
use varve_trace::tables::{ObjectRow, SiteRow};
use varve_trust::{build, program};

const BLOCK: u64 = 5 << 20;

/// A copy of the library of `leaves` in the stage's folder.
fn library(stage: &Stage) -> PathBuf {
    let built = build("leaves", &["-shared", "-fPIC", "-DLIBRARY", "-O1", "-g"]);
    let copy = stage.path("library.so");
    std::fs::copy(built, &copy).unwrap();
    copy
}

/// Records the command, which ends with 7, and gives the innermost function and line at which its block was made.
fn maker(stage: &Stage, command: &[&OsStr]) -> (Option<String>, Option<u32>) {
    stage
        .run(stage.record(&["--interval", "20ms"], command))
        .require(7);
    let folder = stage.path("trace.varve");
    check_trace(&folder).expect("a trace");
    let trace = Trace::open(&folder).unwrap();
    let objects: Vec<ObjectRow> = trace.rows().unwrap();
    let mut blocks = objects
        .iter()
        .filter(|o| (BLOCK..BLOCK + 8192).contains(&o.bytes.0) && o.site.is_some());
    let site = blocks.next().and_then(|o| o.site).expect("a block");
    let sites: Vec<SiteRow> = trace.rows().unwrap();
    let row = sites.into_iter().find(|row| row.site == site).unwrap();
    let frame = row.frames.into_iter().next().unwrap();
    (frame.function, frame.line)
}

fn leaves(stage: &Stage, library: &Path, words: &[&str], function: &str) {
    let program = program("leaves");
    let mut command = vec![program.as_os_str(), library.as_os_str()];
    command.extend(words.iter().map(OsStr::new));
    let (found, line) = maker(stage, &command);
    assert_eq!(found.as_deref(), Some(function), "{words:?}");
    assert!(line.is_some(), "{words:?}");
}

#[test]
fn a_library_that_is_unlinked_before_it_is_used() {
    let stage = Stage::new();
    leaves(&stage, &library(&stage), &["early"], "made_by_library");
}

#[test]
fn a_library_that_is_unlinked_as_its_program_ends() {
    let stage = Stage::new();
    leaves(&stage, &library(&stage), &["late"], "made_by_library");
}

#[test]
fn a_library_whose_name_another_file_takes() {
    let stage = Stage::new();
    std::fs::copy("/bin/sh", stage.path("other")).unwrap();
    let words = ["replaced", "other"];
    leaves(&stage, &library(&stage), &words, "made_by_library");
}

#[test]
fn a_program_that_is_a_file_in_memory() {
    let stage = Stage::new();
    leaves(&stage, Path::new("-"), &["memory"], "made_in_memory");
}

/// A file that is kept open would keep the file system of a target busy: for its names, or for the functions that samples fall into.
#[test]
fn a_file_system_is_unmounted_as_without_a_recording() {
    let stage = Stage::new();
    library(&stage);
    let script = format!(
        "mkdir own && mount -t tmpfs none own && cp {} own/program && mv library.so own || exit 1
        own/program own/library.so stays
        code=$?
        umount own && exit $code",
        program("leaves").display()
    );
    let command = ["unshare", "--mount", "sh", "-c", &script].map(OsStr::new);
    stage
        .run(stage.record(&["--interval", "20ms"], &command))
        .require(7);
}
