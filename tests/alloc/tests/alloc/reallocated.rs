//! Blocks that `realloc` takes from one size class and gives in another: those of each class add up.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{Recorded, compiled, record, varve};

/// Two threads do the same, in a number of rounds. Sizes lie in the middle of classes above 1 KiB, so that a rest of memory that the allocator
/// leaves to a block does not change its class.
const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
enum { A = 1400, B = 5000, C = 11000, D = 30000 };
static void *volatile kept[2][2000];
static volatile size_t too_much = SIZE_MAX - 4096, nothing = 0;
static long rounds;
static void *work(void *which) {
    void *volatile *keep = kept[(intptr_t)which];
    for (long i = 0; i < rounds; i++) {
        void *volatile block = malloc(A);
        block = realloc(block, B);
        block = realloc(block, C);
        free(block);
        keep[2 * i] = realloc(NULL, B);
        block = calloc(1, D);
        block = realloc(block, D - 100);
        keep[2 * i + 1] = reallocarray(block, 2, A / 2);
        block = malloc(C);
        if (realloc(block, too_much)) abort();
        free(block);
        block = malloc(D);
        if (realloc(block, nothing)) abort();
    }
    return NULL;
}
int main(int count, char **words) {
    pthread_t other;
    rounds = atol(words[1]);
    if (pthread_create(&other, NULL, work, (void *)1)) return 1;
    pthread_join(other, NULL);
    work((void *)0);
    return 0;
}
"#;

const THREADS: u64 = 2;
const ROUNDS: u64 = 500;

/// The largest block of a class, and what a round does with blocks of it: allocated, freed, reallocated, and what lives then.
const CLASSES: [(u64, [u64; 4]); 4] = [
    (1536, [2, 0, 1, 1]),
    (5120, [2, 0, 1, 1]),
    (12288, [2, 2, 0, 0]),
    (32768, [3, 1, 2, 0]),
];

fn sizes(folder: &Path, name: &str, options: &[&str]) -> PathBuf {
    let all = [&["-w", "-fno-builtin", "-pthread"], options].concat();
    compiled(folder, name, PROGRAM, &all)
}

/// Allocated, freed and reallocated blocks of a class.
fn class(of: &Recorded, bytes: u64) -> [u64; 3] {
    let all = of.judgement["classes"].as_array().unwrap();
    let found = all.iter().find(|class| class["bytes"] == bytes);
    let figure = |name: &str| found.map_or(0, |class| class[name].as_u64().unwrap());
    ["count", "freed", "reallocated"].map(figure)
}

/// Compares the blocks of each class with those of the rounds. A run without rounds shows the blocks of the C library, which are subtracted.
fn compare(program: &Path) -> Recorded {
    let program = program.to_str().unwrap();
    let idle = record(&[], &[program, "0"]);
    let recorded = record(&[], &[program, &ROUNDS.to_string()]);
    assert_eq!(recorded.output.status.code(), Some(0));
    for (bytes, [allocated, freed, reallocated, live]) in CLASSES {
        let (before, now) = (class(&idle, bytes), class(&recorded, bytes));
        let found: Vec<u64> = now.iter().zip(before).map(|(n, b)| n - b).collect();
        let expected = [allocated, freed, reallocated].map(|each| each * ROUNDS * THREADS);
        assert_eq!(found, expected, "blocks up to {bytes}");
        assert_eq!(found[0] - found[1] - found[2], live * ROUNDS * THREADS);
    }
    // The negative control: without the column the classes would seem to keep what has left them.
    let live: u64 = CLASSES.iter().map(|(_, [.., live])| live).sum();
    let gone: u64 = CLASSES.iter().map(|(_, [.., gone, _])| gone).sum();
    assert!(gone > live);
    let blocks = |of: &Recorded| of.memory("end_blocks");
    assert_eq!(blocks(&recorded) - blocks(&idle), live * ROUNDS * THREADS);
    assert_eq!(recorded.judgement["trace"]["lost"], 0);
    // Changes to nothing give what was asked for back, and do not fail; one in a round is refused.
    let operations = &recorded.judgement["operations"];
    let all = ROUNDS * THREADS;
    assert_eq!(operations["realloc(0)"]["count"], all);
    assert_eq!(operations["realloc(0)"]["requested_bytes"], 30_000 * all);
    assert_eq!(operations["realloc(0)"]["failed"], 0);
    assert_eq!(operations["realloc"]["failed"], all);
    recorded
}

#[test]
fn what_a_realloc_takes_leaves_its_class() {
    let folder = tempfile::tempdir().unwrap();
    let recorded = compare(&sizes(folder.path(), "sizes", &[]));
    assert!(recorded.judgement["trace"]["probe_ns"].is_null());
    let report = Command::new(varve())
        .args(["alloc", "report", "--all"])
        .arg(recorded.folder.path().join("t.varve"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&report.stdout).into_owned();
    let table = text.split("Size classes").nth(1).unwrap();
    // Blocks up to, allocated, freed, reallocated.
    let row = table
        .lines()
        .find(|line| line.trim_start().starts_with("32 KiB"));
    let cells: Vec<&str> = row.expect(table).split_whitespace().take(5).collect();
    assert_eq!(cells, ["32", "KiB", "3,000", "1,000", "2,000"], "{table}");
}

/// Where the allocator is in the executable probes count.
#[test]
fn probes_count_what_a_realloc_takes() {
    let folder = tempfile::tempdir().unwrap();
    let recorded = compare(&sizes(folder.path(), "sizes_static", &["-static"]));
    assert!(recorded.judgement["trace"]["probe_ns"].is_u64());
}
