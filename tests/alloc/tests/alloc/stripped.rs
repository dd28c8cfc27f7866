//! Code without symbols has offsets, which `addr2line` names with a copy that has them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{folded, record};

/// Each block is larger than what one is sampled of, so that all are, and their bytes are exact.
const PROGRAM: &str = "\
#include <stdlib.h>
static void *volatile kept[96];
static void first(int i) {
    kept[i] = malloc(1 << 20);
}
static void second(int i) {
    kept[i] = malloc(2 << 20);
}
int main(void) {
    for (int i = 0; i < 32; i++) first(i);
    for (int i = 32; i < 96; i++) second(i);
    return 0;
}
";
/// Function, line of its call of `malloc`, line of its own call in `main`, and bytes that it never freed.
const CALLS: [(&str, u32, u32, u64); 2] =
    [("first", 4, 10, 32 << 20), ("second", 7, 11, 128 << 20)];

fn run(command: &mut Command) -> String {
    let done = command.output().unwrap();
    assert!(done.status.success(), "{command:?}: {done:?}");
    String::from_utf8(done.stdout).unwrap()
}

/// The program with its symbols, and a copy without.
fn programs(folder: &Path, options: &[&str]) -> (PathBuf, PathBuf) {
    let [source, whole, bare] = ["calls.c", "whole", "bare"].map(|name| folder.join(name));
    std::fs::write(&source, PROGRAM).unwrap();
    let mut compiler = Command::new("gcc");
    run(compiler
        .args(["-O0", "-g"])
        .args(options)
        .arg("-o")
        .args([&whole, &source]));
    run(Command::new("strip")
        .arg("-s")
        .arg("-o")
        .args([&bare, &whole]));
    (whole, bare)
}

/// What `addr2line` calls a frame of the copy without symbols, by the one that has them: function and line. None for frames of other files.
fn resolved(whole: &Path, frame: &str) -> Option<(String, u32)> {
    let offset = frame.strip_prefix("bare+")?;
    let mut tool = Command::new("addr2line");
    let said = run(tool.arg("-f").arg("-e").arg(whole).arg(offset));
    let (function, place) = said.trim_end().split_once('\n').unwrap();
    let place = place.split_whitespace().next().unwrap();
    let line = place
        .rsplit_once(':')
        .and_then(|(_, line)| line.parse().ok());
    Some((function.to_owned(), line.unwrap_or(0)))
}

#[test]
fn frames_of_a_stripped_program_resolve_with_a_copy_that_has_symbols() {
    const OPTIONS: [&str; 4] = ["--sample-every", "8KiB", "--time-every", "1"];
    for options in [&["-pie", "-fPIE"][..], &["-no-pie", "-fno-pie"]] {
        let folder = tempfile::tempdir().unwrap();
        let (whole, bare) = programs(folder.path(), options);
        let recorded = record(&OPTIONS, &[bare.to_str().unwrap()]);
        let (rows, _) = folded(&recorded, "never-freed");
        let mut found: BTreeMap<Vec<(String, u32)>, u64> = BTreeMap::new();
        for (stack, bytes) in &rows {
            let frames = stack.split(';').filter_map(|frame| resolved(&whole, frame));
            let mut frames: Vec<_> = frames.collect();
            // What begins the program calls `main` by the C library.
            frames.retain(|(function, _)| function != "_start");
            *found.entry(frames).or_default() += bytes;
        }
        for (function, line, of_main, bytes) in CALLS {
            let stack = [("main", of_main), (function, line)];
            let stack = stack.map(|(name, line)| (name.to_owned(), line));
            let weight = found.get(stack.as_slice());
            assert_eq!(weight, Some(&bytes), "{options:?}: {found:#?} {rows:#?}");
        }
        // Callers of operations have one frame.
        let (callers, _) = folded(&recorded, "time");
        let callers = callers
            .iter()
            .filter_map(|(frame, _)| resolved(&whole, frame));
        let callers: Vec<_> = callers.collect();
        for (function, line, ..) in CALLS {
            let caller = (function.to_owned(), line);
            assert!(callers.contains(&caller), "{options:?}: {callers:?}");
        }
        // The negative control: where symbols are known there is no offset.
        let recorded = record(&OPTIONS, &[whole.to_str().unwrap()]);
        let (rows, _) = folded(&recorded, "never-freed");
        let named =
            |(stack, _): &&(String, u64)| stack.contains(";main (calls.c:10);first (calls.c:4)");
        assert_eq!(rows.iter().filter(named).count(), 1, "{rows:#?}");
    }
}
