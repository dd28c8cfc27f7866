//! Programs with a limit of their address space, or of their data, do what they do alone, and the report says what was not counted.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::support::{Recorded, compiled, folded, record, record_until, varve, workload};

/// A program that sets a limit itself, or is given one, and needs nearly all that it leaves; with a second thread that has allocated and waits.
const PROGRAM: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static int waiting[2];
static int begun[2];

static void *wait(void *ignored) {
    char *volatile block = malloc(100);
    (void)!write(begun[1], "", 1);
    (void)!read(waiting[0], (char[1]){0}, 1);
    free(block);
    return ignored;
}

int main(int count, char **words) {
    unsigned long limit = strtoul(words[1], NULL, 10) << 20;
    unsigned long wanted = strtoul(words[2], NULL, 10);
    int threads = atoi(words[3]);
    pthread_t thread;
    if (pipe(waiting) || pipe(begun)) return 3;
    if (threads) {
        if (pthread_create(&thread, NULL, wait, NULL)) return 4;
        (void)!read(begun[0], (char[1]){0}, 1);
    }
    for (int i = 0; i < 10000; i++) {
        char *volatile block = malloc(i % 1000 + 1);
        free(block);
    }
    struct rlimit set = {limit, limit};
    int resource = count == 5 && !strcmp(words[4], "data") ? RLIMIT_DATA : RLIMIT_AS;
    if (limit && setrlimit(resource, &set)) return 5;
    /* Blocks of 1 MiB, each a mapping of its own. */
    for (unsigned long i = 0; i < wanted; i++) {
        char *volatile block = malloc(1 << 20);
        if (!block) {
            printf("refused\n");
            return 6;
        }
        *block = 1;
    }
    for (int i = 0; i < 10000; i++) {
        char *volatile block = malloc(i % 1000 + 1);
        if (!block) return 7;
        free(block);
    }
    if (threads) {
        (void)!write(waiting[1], "", 1);
        if (pthread_join(thread, NULL)) return 8;
    }
    printf("had all\n");
    return 0;
}
"#;

fn limited(folder: &Path) -> PathBuf {
    compiled(folder, "limited", PROGRAM, &["-pthread"])
}

/// The first line of the report as text.
fn first_line(of: &Recorded) -> String {
    let report = Command::new(varve())
        .args(["alloc", "report"])
        .arg(of.folder.path().join("t.varve"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&report.stdout).into_owned();
    text.lines().next().unwrap_or_default().to_owned()
}

fn limited_processes(of: &Recorded) -> u64 {
    let about = &of.judgement["trace"];
    let number = about["limited_processes"].as_u64().unwrap();
    assert_eq!(number > 0, about["limited"].is_string(), "{about}");
    number
}

/// Figures of what lives, and of what follows from that.
const LIVE: [&str; 11] = [
    "peak_requested_bytes",
    "peak_usable_bytes",
    "peak_ns",
    "end_requested_bytes",
    "end_blocks",
    "internal_fragmentation",
    "peak_heap_resident_bytes",
    "blowup",
    "kept_bytes",
    "mostly_kept",
    "mostly_kept_ns",
];

/// Nothing is said of what lived, and why.
fn assert_unknown(of: &Value, why: &str) {
    let memory = &of["memory"];
    for figure in LIVE {
        assert!(memory[figure].is_null(), "{figure}: {memory}");
    }
    assert_eq!(memory["uncounted"], why, "{memory}");
    assert_eq!(memory["unknown"], why, "{memory}");
    assert!(of["pages"].is_null(), "{}", of["pages"]);
    assert!(of["blocks"]["at_peak"].is_null() && of["blocks"]["peak_ns"].is_null());
    assert_eq!(of["processes"][0]["peak_requested_bytes"], Value::Null);
    let diagnoses = of["diagnoses"].as_array().unwrap();
    let of_memory = ["size_class_waste", "blowup", "idle_cache", "sparse_pages"];
    for diagnosis in diagnoses {
        let id = diagnosis["id"].as_str().unwrap();
        assert!(!of_memory.contains(&id), "{diagnosis}");
    }
    let verdict = &of["verdict"];
    assert!(verdict["memory_share"].is_null(), "{verdict}");
    let sentence = verdict["sentence"].as_str().unwrap();
    // A disease that times show is one all the same.
    match verdict["answer"].as_str() {
        Some("unknown") => assert!(sentence.contains(why), "{sentence}"),
        answer => assert_eq!(answer, Some("yes"), "{sentence}"),
    }
}

/// Why it is not known where the program got back what counting had.
const TO_THE_END: &str = "operations were not counted to the end";

/// Records it, and compares what it says and how it ends with the run alone.
fn as_alone(command: &[&str]) -> Recorded {
    let alone = Command::new(command[0])
        .args(&command[1..])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let recorded = record(&[], command);
    assert_eq!(
        recorded.output.status.code(),
        alone.status.code(),
        "{command:?}: {}",
        String::from_utf8_lossy(&recorded.output.stderr)
    );
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let expected = text(&alone.stdout) + &text(&alone.stderr);
    assert_eq!(recorded.said(), expected, "{command:?}");
    recorded
}

/// `ulimit -v` in KiB, from what a program hardly needs to more than any takes. The boundary between those where operations are counted and
/// those where they are not is the program's size away from 2 GiB.
#[test]
fn limits_that_are_there_at_the_beginning() {
    let program = workload("alloc_work");
    let churn = format!("exec {} churn 1 300 20000", program.display());
    for (kib, is_counted) in [
        (64 << 10, false),
        (128 << 10, false),
        (256 << 10, false),
        (1 << 20, false),
        (3 << 20, true),
        (16 << 20, true),
        (1 << 30, true),
    ] {
        let script = format!("ulimit -v {kib}; {churn}");
        let recorded = as_alone(&["sh", "-c", &script]);
        let mallocs = recorded.count("malloc");
        let line = first_line(&recorded);
        if is_counted {
            assert!(mallocs >= 20_000, "{kib}: {mallocs}");
            assert_eq!(recorded.judgement["trace"]["lost"], 0, "{kib}");
        } else {
            assert!(mallocs < 20_000, "{kib}: {mallocs}");
            assert_eq!(limited_processes(&recorded), 1, "{kib}");
            assert!(line.contains("limit of the address space"), "{kib}: {line}");
            let sentence = recorded.judgement["verdict"]["sentence"].as_str().unwrap();
            assert!(!sentence.contains("Too few"), "{kib}: {sentence}");
        }
    }
}

/// Without a limit nothing is said of one.
#[test]
fn no_limit_is_no_loss() {
    let program = workload("alloc_work");
    let recorded = as_alone(&[program.to_str().unwrap(), "churn", "1", "300", "20000"]);
    assert_eq!(limited_processes(&recorded), 0);
    assert!(!first_line(&recorded).contains("limit of the address space"));
}

/// The program gets what the library has reserved back as it sets the limit: 96 of 160 MiB are less than a reservation of the library's.
#[test]
fn a_limit_that_the_program_sets_itself() {
    let folder = tempfile::tempdir().unwrap();
    let program = limited(folder.path());
    // A second thread has an arena of 64 or 128 MiB.
    for (limit, wanted, threads) in [("160", "96", "0"), ("400", "96", "1")] {
        let recorded = as_alone(&[program.to_str().unwrap(), limit, wanted, threads]);
        assert_eq!(limited_processes(&recorded), 1, "{threads}");
        // What was counted before stays, and is not all.
        let mallocs = recorded.count("malloc");
        assert!((10_000..20_000).contains(&mallocs), "{mallocs}");
        assert_unknown(&recorded.judgement, TO_THE_END);
    }
}

/// Of a limit that lets operations be counted the program gets the rest too, when it asks for it.
#[test]
fn a_program_that_comes_to_its_limit() {
    let folder = tempfile::tempdir().unwrap();
    let program = limited(folder.path());
    for (kib, wanted, threads) in [(3u64 << 20, 2900, 0), (4 << 20, 3700, 1)] {
        let script = format!(
            "ulimit -v {kib}; exec {} 0 {wanted} {threads}",
            program.display()
        );
        let recorded = as_alone(&["sh", "-c", &script]);
        assert!(recorded.said().contains("had all"), "{}", recorded.said());
        assert_eq!(limited_processes(&recorded), 1, "{threads}");
        let mallocs = recorded.count("malloc");
        assert!(mallocs >= 10_000, "{mallocs}");
    }
}

/// RLIMIT_DATA counts private memory that is writable, as the shadow is. A program that sets it itself gets all back.
#[test]
fn a_limit_of_data_that_the_program_sets_itself() {
    let folder = tempfile::tempdir().unwrap();
    let program = limited(folder.path());
    for threads in ["0", "1"] {
        let command = [program.to_str().unwrap(), "128", "96", threads, "data"];
        let recorded = as_alone(&command);
        assert!(recorded.said().contains("had all"), "{}", recorded.said());
        assert_eq!(limited_processes(&recorded), 1, "{threads}");
        let mallocs = recorded.count("malloc");
        assert!((10_000..20_000).contains(&mallocs), "{mallocs}");
        assert_unknown(&recorded.judgement, TO_THE_END);
    }
}

/// Where it is there at the beginning, operations are counted if it leaves room for that, and the program has the rest when it asks for it.
#[test]
fn limits_of_data_that_are_there_at_the_beginning() {
    let folder = tempfile::tempdir().unwrap();
    let program = limited(folder.path());
    for (mebibytes, wanted, is_counted) in
        [(128u64, 96, false), (1024, 990, false), (3072, 3000, true)]
    {
        let script = format!(
            "ulimit -d {}; exec {} 0 {wanted} 0",
            mebibytes << 10,
            program.display()
        );
        let recorded = as_alone(&["sh", "-c", &script]);
        assert!(recorded.said().contains("had all"), "{}", recorded.said());
        assert_eq!(limited_processes(&recorded), 1, "{mebibytes}");
        assert!(
            first_line(&recorded).contains("`ulimit -d`"),
            "{mebibytes}: {}",
            first_line(&recorded)
        );
        let mallocs = recorded.count("malloc");
        assert_eq!(mallocs >= 10_000, is_counted, "{mebibytes}: {mallocs}");
    }
}

/// Allocates blocks of 1 MiB, each a mapping of its own and a GiB away from the one before, and waits for the end of its input; or has a child that
/// allocates some more wait for that.
const SCATTERED: &str = r#"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static char *volatile kept[64];
static int count;

static void keep(int blocks) {
    for (int i = 0; i < blocks; i++) {
        kept[count] = memset(malloc(1 << 20), 1, 1 << 20);
        count++;
    }
}

static void reserve(size_t bytes) {
    if (mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) == MAP_FAILED) abort();
}

static int wait_for_end(void) {
    char byte;
    while (read(0, &byte, 1) > 0) continue;
    return 0;
}

int main(int number, char **words) {
    int blocks = atoi(words[1]);
    for (int i = 0; i < 1000; i++) {
        char *volatile block = malloc(i + 1);
        free(block);
    }
    /* What lies free between libraries. */
    for (int i = 0; i < 64; i++) reserve((1 << 20) + 4096);
    for (int i = 0; i < blocks; i++) {
        keep(1);
        reserve(1ul << 30);
    }
    if (number == 2) return wait_for_end();
    if (!fork()) {
        keep(8);
        return wait_for_end();
    }
    wait(NULL);
    return 0;
}
"#;

/// Records it below a limit of its data of 2,400 MiB, until this much is resident. The limit leaves room to note what lies in a few spans of 1 GiB.
fn scattered(words: &str, mebibytes: u64) -> Recorded {
    let folder = tempfile::tempdir().unwrap();
    let options = ["-w", "-fno-builtin"];
    let program = compiled(folder.path(), "scattered", SCATTERED, &options);
    let limit = 2400 << 10;
    let script = format!("ulimit -d {limit}; exec {} {words}", program.display());
    let recorded = record_until(&[], &["sh", "-c", &script], "it is resident", |found| {
        let resident = found["memory"]["peak_resident_bytes"].as_u64();
        resident >= Some(mebibytes << 20)
    });
    assert_eq!(recorded.output.status.code(), Some(0));
    recorded
}

/// Why it is not known what lives; most of the 20 blocks were not noted, and perhaps some of the child's.
fn not_noted(of: &Recorded) -> String {
    let memory = &of.judgement["memory"];
    let why = memory["uncounted"].as_str().expect("blocks were not noted");
    let (number, rest) = why.split_once(' ').unwrap();
    assert_eq!(rest, "operations were not counted");
    let number: u64 = number.parse().unwrap();
    assert!((10..=28).contains(&number), "{number}");
    assert!(of.judgement["trace"]["lost"].as_u64() >= Some(number));
    why.to_owned()
}

/// Of blocks that cannot be noted it is not known what lives: the few others are no measure of what is resident.
#[test]
fn blocks_that_cannot_be_noted_are_not_left_out() {
    let recorded = scattered("20", 19);
    let found = &recorded.judgement;
    let why = not_noted(&recorded);
    assert_unknown(found, &why);
    assert!(recorded.count("malloc") >= 1020);
    assert!(found["operations"]["malloc"]["fresh"].is_null());
    let report = Command::new(varve())
        .args(["alloc", "report"])
        .arg(recorded.folder.path().join("t.varve"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&report.stdout).into_owned();
    assert!(text.contains(&format!("not known: {why}")), "{text}");
    // A block of 1 MiB is sampled six times in seven.
    let (rows, errors) = folded(&recorded, "peak");
    assert!(rows.is_empty() && errors.contains(&why), "{errors}");
    let (rows, _) = folded(&recorded, "never-freed");
    assert!(!rows.is_empty());
    // The negative control: there is room for one.
    let recorded = scattered("1", 0);
    assert!(recorded.judgement["memory"]["uncounted"].is_null());
    assert!((1 << 20..2 << 20).contains(&recorded.memory("peak_requested_bytes")));
}

/// A child has the blocks of its parent, of which some were not noted: what it counts is no more than a part of what lives.
#[test]
fn what_a_parent_has_not_noted_its_child_does_not_know() {
    let recorded = scattered("20 fork", 26);
    let found = &recorded.judgement;
    assert_unknown(found, &not_noted(&recorded));
    let processes = found["processes"].as_array().unwrap();
    assert_eq!(processes.len(), 2, "{processes:?}");
    let unknown = processes
        .iter()
        .filter(|process| process["peak_requested_bytes"].is_null());
    assert_eq!(unknown.count(), 2, "{processes:?}");
}
