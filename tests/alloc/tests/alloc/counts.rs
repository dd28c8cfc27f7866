//! Counts: what programs know of themselves, what strace sees, what heaptrack adds up.

use std::collections::HashMap;
use std::process::Command;

use crate::support::{compiled, own_counts, record, workload};

/// Entry points and situations; the program prints the same as without the recorder, and each call is counted once.
#[test]
fn every_entry_point_is_counted_and_nothing_changes() {
    let program = workload("alloc_calls");
    let plain = Command::new(&program).output().unwrap();
    let recorded = record(&[], &[program.to_str().unwrap()]);
    assert_eq!(recorded.said(), String::from_utf8_lossy(&plain.stdout));
    assert_eq!(recorded.output.status.code(), Some(0));
    let exact = [
        ("aligned_alloc", 1000),
        ("memalign", 1000),
        ("valloc", 1000),
        ("pvalloc", 1000),
        ("posix_memalign", 1000),
        ("reallocarray", 1000),
        ("realloc", 1001),
        ("new", 1000 + 3),
        ("new(align)", 1000),
        // 51 threads make and end a thread-local object, the first one too.
        ("new[]", 2000 + 50),
        ("delete", 1000 + 1000),
        ("delete[]", 2000 + 50),
        ("malloc_usable_size", 1000),
    ];
    for (operation, count) in exact {
        let found = recorded.count(operation);
        // Operators that threw ended in no way that can be counted.
        let thrown = if operation == "new" { 3 } else { 0 };
        assert_eq!(found + thrown, count, "{operation}");
    }
    assert_eq!(recorded.judgement["operations"]["realloc"]["failed"], 1);
    assert_eq!(recorded.judgement["trace"]["lost"], 0);
    assert_eq!(recorded.memory("unseen_frees"), 0);
}

#[test]
fn threads_that_allocate_at_once_are_counted_exactly() {
    let program = workload("alloc_work");
    let program = program.to_str().unwrap();
    for mode in [
        &["churn", "8", "200", "30000"][..],
        &["pipe", "300", "50"],
        &["threads", "10000"],
    ] {
        let command = [&[program], mode].concat();
        let recorded = record(&[], &command);
        let (allocated, freed) = own_counts(&recorded.said());
        let found = recorded.count("malloc");
        // The C library allocates for itself: threads and what it prints through. A thread that ends frees some twenty
        // things, most of which are nothing.
        let own = found.checked_sub(allocated).expect("all are counted");
        assert!(own < 50, "{mode:?}: {found} of {allocated}");
        let found = recorded.count("free");
        let own = found.checked_sub(freed).expect("all are counted");
        let threads = if mode[0] == "threads" { 10_000 } else { 8 };
        assert!(own < 25 * threads, "{mode:?}: {found} of {freed}");
        assert_eq!(recorded.judgement["trace"]["lost"], 0, "{mode:?}");
        assert_eq!(recorded.memory("unseen_frees"), 0, "{mode:?}");
    }
}

/// Frees by its library, which is loaded as its second word says; says how often it got the block that it had freed last.
const TAKER: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef LIBRARY
void take(void *block) { free(block); }
#else
int main(int count, char **words) {
    void *library = dlopen(words[1], RTLD_NOW | (!strcmp(words[2], "deep") ? RTLD_DEEPBIND : 0));
    void (*take)(void *) = library ? (void (*)(void *))dlsym(library, "take") : 0;
    static const size_t sizes[] = {3, 8, 24, 100, 1000, 60000, 5 << 20};
    char *last = 0;
    long again = 0;
    if (!take) return 1;
    for (int i = 0; i < 7; i++) {
        for (int round = 0; round < 1000; round++) {
            char *block = malloc(sizes[i]);
            again += block == last;
            last = memset(block, 1, sizes[i]);
            take(block);
        }
    }
    printf("%ld\n", again);
    return 0;
}
#endif
"#;

#[test]
fn frees_that_nobody_sees_are_found_where_their_blocks_come_again() {
    let folder = tempfile::tempdir().unwrap();
    let program = compiled(folder.path(), "taker", TAKER, &["-ldl"]);
    let library = ["-shared", "-fPIC", "-DLIBRARY"];
    let library = compiled(folder.path(), "taker.so", TAKER, &library);
    let recorded = |how| {
        let command = [program.to_str().unwrap(), library.to_str().unwrap(), how];
        let recorded = record(&[], &command);
        let again: u64 = recorded.said().trim().parse().unwrap();
        assert!(again >= 6000, "{again}");
        (again, recorded)
    };
    let (again, deep) = recorded("deep");
    // Those that the C library allocates for itself come there, too.
    let unseen = deep.memory("unseen_frees");
    assert!((again..again + 8).contains(&unseen), "{unseen} of {again}");
    // What came at no block's address again lives on, as far as is known.
    let at_most = (1 << 20) + (7001 - again) * (5 << 20);
    assert!(deep.memory("peak_requested_bytes") < at_most, "{again}");
    let (_, plain) = recorded("plain");
    assert_eq!(plain.memory("unseen_frees"), 0);
}

/// A class has 16 bytes up to 1 KiB, and there are four to each power of two above: `malloc` of the C library rounds up to 16 and has 8 more.
#[test]
fn blocks_are_in_the_class_of_their_size() {
    let program = workload("alloc_work");
    let program = program.to_str().unwrap();
    for (size, class) in [(100, 112), (1000, 1008), (1300, 1536), (5000, 5120)] {
        let words = [2000 * size, size].map(|word: u64| word.to_string());
        let recorded = record(&[], &[program, "grow", &words[0], &words[1]]);
        let classes = recorded.judgement["classes"].as_array().unwrap();
        let found = classes.iter().find(|c| c["bytes"] == class);
        let count = found.map_or(0, |c| c["count"].as_u64().unwrap());
        // The list of the blocks is of another class, and few blocks of the C library's are of this one.
        assert!((2000..2050).contains(&count), "{size}: {classes:#?}");
    }
}

/// Each allocator that is known takes the place of the program's own: the program ends as without it, and each call is counted.
#[test]
fn programs_run_with_every_allocator() {
    let program = workload("alloc_work");
    let command = [program.to_str().unwrap(), "churn", "4", "200", "20000"];
    for (name, file) in [
        ("jemalloc", "libjemalloc"),
        ("tcmalloc", "libtcmalloc"),
        ("mimalloc", "libmimalloc"),
        ("tbb", "libtbbmalloc"),
        ("scudo", "libclang_rt.scudo"),
        ("snmalloc", "libvarve_snmalloc"),
    ] {
        let recorded = record(&["--allocator", name], &command);
        assert_eq!(recorded.output.status.code(), Some(0), "{name}");
        let from = recorded.judgement["trace"]["allocator_file"].as_str();
        assert!(from.unwrap().contains(file), "{name}: {from:?}");
        let (allocated, freed) = own_counts(&recorded.said());
        let (malloc, free) = (recorded.count("malloc"), recorded.count("free"));
        // Beside the program's, those of the C library and of the allocator's own start.
        assert!(
            (allocated..allocated + 100).contains(&malloc),
            "{name}: {malloc} of {allocated}"
        );
        assert!(
            (freed..freed + 200).contains(&free),
            "{name}: {free} of {freed}"
        );
        assert_eq!(recorded.judgement["trace"]["lost"], 0, "{name}");
    }
}

/// System calls of the allocator: `strace` of the same program, which makes few of these elsewhere.
#[test]
fn system_calls_are_those_that_strace_sees() {
    let program = workload("alloc_work");
    let program = program.to_str().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("calls");
    // Blocks beyond glibc's bound for mapping, which it raises as they are freed.
    for command in [
        &[program, "grow", "60000000", "300000"][..],
        &[program, "churn", "1", "3000", "20000"],
    ] {
        let traced = Command::new("strace")
            .args(["-f", "-o"])
            .arg(&log)
            .args(["-e", "trace=mmap,munmap,brk,madvise,mremap"])
            .args(command)
            .output()
            .expect("strace is installed");
        assert!(traced.status.success());
        let text = std::fs::read_to_string(&log).unwrap();
        let mut seen: HashMap<&str, u64> = HashMap::new();
        for line in text.lines() {
            let call = line.split_whitespace().nth(1).unwrap_or_default();
            *seen.entry(call.split('(').next().unwrap()).or_default() += 1;
        }
        let recorded = record(&[], command);
        for name in ["mmap", "munmap", "brk", "madvise", "mremap"] {
            let (theirs, ours) = (seen.get(name).copied().unwrap_or(0), recorded.calls(name));
            // The loader maps files and asks for the break once; the library adds nothing within operations.
            let of_loader = if ["mmap", "munmap", "brk"].contains(&name) {
                30
            } else {
                0
            };
            assert!(
                ours <= theirs && theirs <= ours + of_loader,
                "{command:?} {name}: {ours}, strace {theirs}"
            );
        }
    }
}

/// A number of bytes as heaptrack prints it.
fn bytes_of(figure: &str) -> f64 {
    let number: f64 = figure
        .trim_end_matches(char::is_alphabetic)
        .parse()
        .unwrap();
    let unit = match figure.chars().last().unwrap() {
        'K' => 1e3,
        'M' => 1e6,
        'G' => 1e9,
        _ => 1.0,
    };
    number * unit
}

/// Bytes and peaks, calls and what is left: heaptrack adds up the same program's.
#[test]
fn the_peak_is_that_of_heaptrack() {
    if Command::new("heaptrack").arg("--version").output().is_err() {
        eprintln!(
            "heaptrack is not installed: the peak is compared with the program's own figures alone"
        );
    }
    let program = workload("alloc_work");
    let program = program.to_str().unwrap();
    let command = [program, "phases", "50000000", "1000"];
    let recorded = record(&[], &command);
    let own = 50_000_000 / 1000 * (1000 + 8);
    let peak = recorded.memory("peak_requested_bytes");
    assert!(
        peak.abs_diff(own) < own / 1000,
        "{peak}, the program's own {own}"
    );
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("heap");
    let ran = Command::new("heaptrack")
        .arg("-o")
        .arg(&data)
        .args(command)
        .output();
    let Ok(_) = ran else { return };
    let found = std::fs::read_dir(folder.path())
        .unwrap()
        .flatten()
        .next()
        .unwrap()
        .path();
    let printed = Command::new("heaptrack_print").arg(found).output().unwrap();
    let text = String::from_utf8_lossy(&printed.stdout).into_owned();
    // The callers are printed with the largest peak first: one of them has nearly all.
    let line = text.lines().find(|l| l.contains("peak consumption from"));
    let after = line.and_then(|l| l.split(" with ").nth(1));
    let figure = after
        .and_then(|l| l.split(' ').next())
        .expect("it says the peak");
    let theirs = bytes_of(figure);
    // It prints three digits.
    assert!(
        (theirs - peak as f64).abs() < theirs / 50.0,
        "{peak}, heaptrack {figure}"
    );
    let said = |what: &str| {
        let line = text.lines().find_map(|l| l.strip_prefix(what));
        let figure = line.and_then(|l| l.split_whitespace().next());
        figure.expect(what).to_owned()
    };
    let calls: u64 = said("calls to allocation functions:").parse().unwrap();
    let operations = recorded.judgement["operations"].as_object().unwrap();
    let is_free = |name: &str| name.starts_with("free") || name.starts_with("delete");
    let allocations = operations.iter().filter(|(name, _)| !is_free(name));
    let ours: u64 = allocations
        .map(|(_, of)| of["count"].as_u64().unwrap())
        .sum();
    // Each has a handful of its own libraries' beginning.
    assert!(ours.abs_diff(calls) < 20, "{ours}, heaptrack {calls}");
    let left = bytes_of(&said("total memory leaked:"));
    let ours = recorded.memory("end_requested_bytes") as f64;
    assert!(
        (ours - left).abs() < left / 50.0,
        "{ours}, heaptrack {left}"
    );
}

/// Without the preload library nothing is counted, and with the kernel's part alone nothing is made up.
#[test]
fn what_was_not_recorded_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("t.varve");
    let ran = Command::new(crate::support::varve())
        .args(["record", "-o"])
        .arg(&trace)
        .args(["--", "true"])
        .output()
        .unwrap();
    assert!(ran.status.success());
    let report = Command::new(crate::support::varve())
        .args(["alloc", "report"])
        .arg(&trace)
        .output()
        .unwrap();
    assert!(!report.status.success());
    let said = String::from_utf8_lossy(&report.stderr).into_owned();
    assert!(
        said.contains("has no allocator operations") && said.contains("hint:"),
        "{said}"
    );
}

/// The dynamic linker would say among the program's output that it cannot load a 64-bit library.
#[test]
fn a_program_of_32_bits_is_said_to_be_one() {
    let folder = tempfile::tempdir().unwrap();
    let (source, program) = (folder.path().join("p.c"), folder.path().join("p"));
    std::fs::write(&source, "void _start(void) { for (;;) ; }").unwrap();
    let compiled = Command::new("gcc")
        .args(["-m32", "-nostdlib", "-static", "-o"])
        .args([&program, &source])
        .status();
    assert!(compiled.unwrap().success());
    let output = Command::new(crate::support::varve())
        .args(["alloc", "record", "--"])
        .arg(&program)
        .current_dir(&folder)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(said.contains("this program has 32 bits"), "{said}");
}
