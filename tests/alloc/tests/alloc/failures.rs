//! Operations that fail, and changes of size to nothing: each is counted as what it is, by the library and by probes, and what lived before a failure
//! lives on.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{Recorded, compiled, record};

/// Calls each entry point in ways that may be refused, in a number of rounds; says of each call how often nothing came. Which alignments are refused
/// differs between C libraries.
const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
extern void *_ZnwmRKSt9nothrow_t(size_t, const void *);
extern const char _ZSt7nothrow;
static volatile size_t nothing = 0, three = 3, few = 100, half = (size_t)1 << 33;
static volatile size_t too_much = (size_t)PTRDIFF_MAX + 1;
static void *live(void) {
    return malloc(few);
}
static void *stored(size_t alignment, size_t bytes) {
    void *block = NULL;
    return posix_memalign(&block, alignment, bytes) ? NULL : block;
}
static void *made(void) {
    return _ZnwmRKSt9nothrow_t(too_much, &_ZSt7nothrow);
}
#define TRY(name, call) do { \
    long refused = 0; \
    for (long i = 0; i < rounds; i++) { \
        void *block = (call); \
        refused += !block; \
        free(block); \
    } \
    printf("%s %ld\n", name, refused); \
} while (0)
int main(int count, char **words) {
    long rounds = atol(words[1]);
    /* The first exception of a program may allocate what stays. */
    printf("new %d\n", !made());
    TRY("malloc", malloc(too_much));
    TRY("calloc", calloc(too_much, 1));
    TRY("calloc", calloc(half, half));
    TRY("realloc", realloc(NULL, too_much));
    TRY("realloc", realloc(live(), too_much));
    TRY("reallocarray", reallocarray(NULL, half, half));
    TRY("reallocarray", reallocarray(live(), half, half));
    TRY("reallocarray", reallocarray(live(), too_much, 1));
    TRY("realloc(0)", realloc(live(), nothing));
    TRY("realloc(0)", reallocarray(live(), nothing, few));
    TRY("aligned", aligned_alloc(three, few));
    TRY("aligned", aligned_alloc(nothing, few));
    TRY("aligned", aligned_alloc(64, too_much));
    TRY("aligned", memalign(nothing, few));
    TRY("aligned", memalign(64, too_much));
    TRY("aligned", memalign(too_much + 1, few));
    TRY("posix_memalign", stored(three, few));
    TRY("posix_memalign", stored(nothing, few));
    TRY("posix_memalign", stored(64, too_much));
    TRY("valloc", valloc(too_much));
    TRY("pvalloc", pvalloc(too_much));
    TRY("pvalloc", pvalloc(nothing - few));
    TRY("new", made());
    return 0;
}
"#;

const ROUNDS: u64 = 300;
/// Blocks of a round that could not be changed and are never freed, and what was asked for each.
const LIVE: u64 = 3;
const BYTES: u64 = 100;

fn refused(folder: &Path, name: &str, options: &[&str]) -> PathBuf {
    let all = [&["-w", "-fno-builtin", "-lstdc++"], options].concat();
    compiled(folder, name, PROGRAM, &all)
}

/// How often the program got nothing, by what it called.
fn refusals(of: &Recorded) -> BTreeMap<String, u64> {
    let said = String::from_utf8_lossy(&of.output.stdout).into_owned();
    let mut found: BTreeMap<String, u64> = BTreeMap::new();
    for line in said.lines() {
        let (name, count) = line.rsplit_once(' ').unwrap();
        *found.entry(name.to_owned()).or_default() += count.parse::<u64>().unwrap();
    }
    found
}

/// Operations of these names that failed.
fn failed(of: &Recorded, names: &[&str]) -> u64 {
    let operations = &of.judgement["operations"];
    let failed = names
        .iter()
        .map(|name| operations[*name]["failed"].as_u64().unwrap_or(0));
    failed.sum()
}

/// Compares what failed with what the program got. A run without rounds shows what the libraries allocate for themselves.
fn compare(program: &Path) -> Recorded {
    let program = program.to_str().unwrap();
    let idle = record(&[], &[program, "0"]);
    let recorded = record(&[], &[program, &ROUNDS.to_string()]);
    assert_eq!(recorded.output.status.code(), Some(0));
    let mut refusals = refusals(&recorded);
    // That is no failure: the C library has freed the block.
    let freed = refusals.remove("realloc(0)");
    assert_eq!(freed, Some(2 * ROUNDS));
    let of_freed = &recorded.judgement["operations"]["realloc(0)"];
    assert_eq!(of_freed["count"].as_u64(), freed);
    assert_eq!(of_freed["requested_bytes"], 2 * ROUNDS * BYTES);
    assert_eq!(of_freed["failed"], 0);
    assert_eq!(refusals.len(), 9, "{refusals:?}");
    for (name, refused) in &refusals {
        // Some C libraries have one function for both.
        let names = match name.as_str() {
            "aligned" => vec!["aligned_alloc", "memalign"],
            name => vec![name],
        };
        assert_eq!(failed(&recorded, &names), *refused, "{name}");
        assert!(*refused >= ROUNDS, "{name}: {refused}");
    }
    for (figure, each) in [("end_blocks", 1), ("end_requested_bytes", BYTES)] {
        let live = recorded.memory(figure) - idle.memory(figure);
        assert_eq!(live, LIVE * ROUNDS * each, "{figure}");
    }
    assert_eq!(recorded.memory("unseen_frees"), 0);
    assert_eq!(recorded.judgement["trace"]["lost"], 0);
    recorded
}

#[test]
fn operations_that_fail_are_counted_as_failed() {
    let folder = tempfile::tempdir().unwrap();
    let recorded = compare(&refused(folder.path(), "refused", &[]));
    assert!(recorded.judgement["trace"]["probe_ns"].is_null());
}

/// Where the allocator is in the executable probes count.
#[test]
fn probes_count_operations_that_fail() {
    let folder = tempfile::tempdir().unwrap();
    let recorded = compare(&refused(folder.path(), "refused_static", &["-static"]));
    assert!(recorded.judgement["trace"]["probe_ns"].is_u64());
}

/// Allocates by its library, whose calls nobody sees, what it cannot change and frees itself.
const GIVER: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#ifdef LIBRARY
void *give(void) { return malloc(100); }
#else
int main(int count, char **words) {
    static volatile size_t too_much = (size_t)PTRDIFF_MAX + 1;
    void *library = dlopen(words[1], RTLD_NOW | RTLD_DEEPBIND);
    void *(*give)(void) = library ? (void *(*)(void))dlsym(library, "give") : 0;
    static void *volatile kept[5000];
    if (!give) return 1;
    for (int i = 0; i < 5000; i++) kept[i] = malloc(100);
    for (int i = 0; i < atoi(words[2]); i++) {
        void *block = give();
        if (realloc(block, too_much)) return 2;
        free(block);
    }
    return 0;
}
#endif
"#;

/// A block that was not seen allocated is no part of what lives, also where it could not be changed and is freed.
#[test]
fn what_cannot_be_changed_was_not_seen_allocated() {
    let folder = tempfile::tempdir().unwrap();
    let options = ["-w", "-fno-builtin", "-ldl"];
    let program = compiled(folder.path(), "giver", GIVER, &options);
    let library = ["-w", "-fno-builtin", "-shared", "-fPIC", "-DLIBRARY"];
    let library = compiled(folder.path(), "giver.so", GIVER, &library);
    let words = [program.to_str().unwrap(), library.to_str().unwrap()];
    let live = |rounds: &str| {
        let recorded = record(&[], &[words[0], words[1], rounds]);
        assert_eq!(recorded.output.status.code(), Some(0));
        (
            recorded.memory("end_blocks"),
            failed(&recorded, &["realloc"]),
        )
    };
    let (blocks, none) = live("0");
    assert_eq!((live("1000"), none), ((blocks, 1000), 0));
}

/// Asks for what cannot be had whatever memory there is, and then for what can.
const INVALID: &str = r#"
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/mman.h>
int main(void) {
    static volatile size_t three = 3, half = (size_t)1 << 33;
    void *block;
    if (!posix_memalign(&block, three, 100)) return 1;
    free(aligned_alloc(three, 100));
    if (calloc(half, half)) return 2;
    if (reallocarray(NULL, half, half)) return 3;
    if (mmap(NULL, 0, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED) return 4;
    for (int i = 0; i < 10000; i++) {
        char *volatile small = malloc(i % 1000 + 1);
        free(small);
    }
    return 0;
}
"#;

/// Where the address space is limited a program that is refused memory gets back what counting has, and counting ends. What is refused for its
/// arguments is no such case.
#[test]
fn what_is_refused_for_its_arguments_does_not_end_the_counting() {
    let folder = tempfile::tempdir().unwrap();
    let program = compiled(folder.path(), "invalid", INVALID, &["-w", "-fno-builtin"]);
    let script = format!("ulimit -v {}; exec {}", 3 << 20, program.display());
    let recorded = record(&[], &["sh", "-c", &script]);
    assert_eq!(recorded.output.status.code(), Some(0));
    let mallocs = recorded.count("malloc");
    assert!(mallocs >= 10_000, "{mallocs}");
    assert_eq!(failed(&recorded, &["posix_memalign"]), 1);
}

/// Asks for more than any process has addresses for, though not for more than a block may have.
const IMMENSE: &str = r#"
#include <stdlib.h>
int main(int count, char **words) {
    static volatile size_t immense = (size_t)1 << 50;
    for (int i = 0; i < atoi(words[1]); i++) {
        if (malloc(immense)) return 1;
    }
    return 0;
}
"#;

/// Calls of `mmap` that failed, as `strace` sees them.
fn refused_mappings(command: &[&str]) -> u64 {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("calls");
    let traced = Command::new("strace")
        .args(["-f", "-e", "trace=mmap", "-o"])
        .arg(&log)
        .args(command)
        .output()
        .expect("strace is installed");
    assert!(traced.status.success());
    let text = std::fs::read_to_string(&log).unwrap();
    let refused = text.lines().filter(|line| line.contains(" = -1 ENOMEM"));
    refused.count() as u64
}

#[test]
fn system_calls_that_fail_have_no_bytes() {
    const CALLS: u64 = 200;
    let folder = tempfile::tempdir().unwrap();
    let program = compiled(folder.path(), "immense", IMMENSE, &["-w", "-fno-builtin"]);
    let command = [program.to_str().unwrap(), "200"];
    let recorded = record(&[], &command);
    assert_eq!(recorded.output.status.code(), Some(0));
    assert_eq!(failed(&recorded, &["malloc"]), CALLS);
    let calls = recorded.judgement["syscalls"].as_array().unwrap();
    let figure = |name: &str, figure: &str| {
        let found = calls.iter().find(|call| call["name"] == name);
        found.map_or(0, |call| call[figure].as_u64().unwrap())
    };
    let refused = refused_mappings(&command);
    assert!(refused >= CALLS, "{refused}");
    assert_eq!(figure("mmap", "failed"), refused);
    assert!(figure("brk", "failed") >= CALLS);
    // What had come of it, had they not failed, is 200 PiB.
    for name in ["mmap", "brk"] {
        let bytes = figure(name, "bytes");
        assert!(bytes < 1 << 40, "{name}: {bytes}");
    }
}
