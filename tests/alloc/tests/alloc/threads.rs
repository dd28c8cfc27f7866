//! What the allocator does for a thread that is new: the system calls of its first operation, and the memory that it gets.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::support::{Recorded, compiled, record, so_far, varve, wait_for};

/// `THREADS BLOCKS BYTES [fork]`: so many threads have so many blocks of so many bytes each, all at once, with `fork` first in a child. It says its number
/// and where the memory of the threads' arenas begins, and waits for the end of its input.
const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX = 64 };
/* glibc's HEAP_MAX_SIZE, to which the memory of an arena is aligned, and NON_MAIN_ARENA, the flag of its blocks */
#define HEAP (64ul << 20)
#define OTHER_ARENA 4

static pthread_barrier_t all_have, all_may_end;
static char *first[MAX];
static int threads, blocks;
static size_t bytes;

static void *work(void *number) {
    for (int i = 0; i < blocks; i++) {
        char *volatile block = malloc(bytes);
        if (!block) abort();
        memset(block, 1, bytes);
        if (!i) first[(long)number] = block;
    }
    pthread_barrier_wait(&all_have);
    pthread_barrier_wait(&all_may_end);
    return NULL;
}

static int find_arenas(unsigned long *found) {
    int count = 0;
    for (int i = 0; i < threads; i++) {
        unsigned long start = (unsigned long)first[i] & ~(HEAP - 1);
        int j = 0;
        if (!(((size_t *)first[i])[-1] & OTHER_ARENA)) continue;
        while (j < count && found[j] != start) j++;
        if (j == count) found[count++] = start;
    }
    return count;
}

static void run(void) {
    pthread_t all[MAX];
    unsigned long arenas[MAX];
    char text[4096];
    int used, count;
    pthread_barrier_init(&all_have, NULL, threads + 1);
    pthread_barrier_init(&all_may_end, NULL, threads + 1);
    for (long i = 0; i < threads; i++)
        if (pthread_create(&all[i], NULL, work, (void *)i)) abort();
    pthread_barrier_wait(&all_have);
    count = find_arenas(arenas);
    used = sprintf(text, "arenas %d", getpid());
    for (int i = 0; i < count; i++) used += sprintf(text + used, " %lx", arenas[i]);
    text[used++] = '\n';
    if (write(2, text, used) != used) abort();
    while (read(0, text, sizeof(text)) > 0);
    pthread_barrier_wait(&all_may_end);
    for (int i = 0; i < threads; i++) pthread_join(all[i], NULL);
}

int main(int count, char **words) {
    if (count < 4) return 2;
    threads = atoi(words[1]), blocks = atoi(words[2]), bytes = atol(words[3]);
    if (count > 4) {
        pid_t child = fork();
        if (!child) {
            run();
            _exit(0);
        }
        waitpid(child, NULL, 0);
    }
    run();
    return 0;
}
"#;

/// One block of a thread, with which its arena need not grow.
const SMALL: [&str; 3] = ["8", "1", "1000"];
/// Three of each thread, 2.4 MB in all, for which their arenas grow.
const LARGE: [&str; 3] = ["8", "3", "100000"];
const LARGE_BYTES: u64 = 8 * 3 * 100_000;

fn program(folder: &Path, options: &[&str]) -> PathBuf {
    let options = [&["-pthread"], options].concat();
    compiled(folder, "arenas", PROGRAM, &options)
}

/// Where arenas begin, of which a line says so, and which process that is.
fn arenas(line: &str) -> Option<(String, Vec<u64>)> {
    let mut words = line.strip_prefix("arenas ")?.split_whitespace();
    let pid = words.next()?.to_owned();
    let starts = words.map(|word| u64::from_str_radix(word, 16).unwrap());
    Some((pid, starts.collect()))
}

/// How many arenas all processes had.
fn all_arenas(of: &Recorded) -> u64 {
    let said = of.said();
    let found = said.lines().filter_map(arenas);
    found.map(|(_, starts)| starts.len() as u64).sum()
}

/// glibc maps each arena once and makes its beginning accessible once (`mprotect`), within the first operation of the thread that gets it.
fn assert_all_are_charged(recorded: &Recorded, what: &str) {
    assert_eq!(recorded.output.status.code(), Some(0), "{what}");
    let truth = all_arenas(recorded);
    assert!(truth > 1, "{what}: {truth}");
    assert_eq!(recorded.calls("mprotect"), truth, "{what}");
    let mapped = recorded.calls("mmap");
    assert!(mapped >= truth, "{what}: {mapped}, in truth {truth}");
}

#[test]
fn the_first_operation_of_a_thread_is_charged() {
    let folder = tempfile::tempdir().unwrap();
    let program = program(folder.path(), &[]);
    let command = [&[program.to_str().unwrap()], &SMALL[..]].concat();
    for options in [&[][..], &["--pages", "on"]] {
        let recorded = record(options, &command);
        assert_all_are_charged(&recorded, &format!("{options:?}"));
        // The main thread's first operations move the end of the heap.
        assert!(recorded.calls("brk") > 0);
    }
}

#[test]
fn so_is_that_of_a_forked_childs_threads() {
    let folder = tempfile::tempdir().unwrap();
    let program = program(folder.path(), &[]);
    let command = [&[program.to_str().unwrap()], &SMALL[..], &["fork"]].concat();
    let recorded = record(&[], &command);
    let said = recorded.said();
    assert_eq!(said.lines().filter_map(arenas).count(), 2, "{said}");
    assert_all_are_charged(&recorded, "fork");
}

/// Probes count in a program that loads no libraries.
#[test]
fn so_is_that_of_a_probed_thread() {
    let folder = tempfile::tempdir().unwrap();
    let program = program(folder.path(), &["-static"]);
    let command = [&[program.to_str().unwrap()], &SMALL[..]].concat();
    let recorded = record(&[], &command);
    assert!(recorded.judgement["trace"]["probe_ns"].is_u64());
    assert_all_are_charged(&recorded, "probes");
}

/// Resident bytes of the heap and of the mappings in which arenas begin, as the kernel's smaps has them.
fn resident(pid: &str, arenas: &[u64]) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
    let (mut sum, mut is_wanted) = (0, false);
    for line in text.lines() {
        let bounds = line.split(' ').next().and_then(|word| word.split_once('-'));
        let number = |text| u64::from_str_radix(text, 16).ok();
        if let Some((from, to)) = bounds.and_then(|(from, to)| number(from).zip(number(to))) {
            is_wanted = line.ends_with("[heap]") || arenas.iter().any(|at| (from..to).contains(at));
        } else if let Some(rest) = line.strip_prefix("Rss:").filter(|_| is_wanted) {
            let kb: u64 = rest.trim().strip_suffix(" kB").unwrap().parse().unwrap();
            sum += kb * 1024;
        }
    }
    sum
}

/// While all threads wait with their blocks, the kernel says what is resident of their arenas.
#[test]
fn the_memory_of_threads_arenas_is_known() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("t.varve");
    let program = program(folder.path(), &[]);
    let mut recorder = Command::new(varve())
        .args(["alloc", "record", "--pages", "off", "-o"])
        .arg(&trace)
        .arg("--")
        .arg(&program)
        .args(LARGE)
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(recorder.stderr.take().unwrap());
    let mut line = String::new();
    let (pid, starts) = loop {
        line.clear();
        assert_ne!(said.read_line(&mut line).unwrap(), 0, "it ended");
        if let Some(found) = arenas(&line) {
            break found;
        }
    };
    let truth = resident(&pid, &starts);
    assert!(truth > LARGE_BYTES, "{truth}");
    // It is looked several times a second.
    let peak = |of: &Value| of["memory"]["peak_heap_resident_bytes"].as_u64();
    wait_for(&trace, "it is looked", |of| peak(of) >= Some(truth));
    drop(recorder.stdin.take());
    std::io::copy(&mut said, &mut std::io::sink()).unwrap();
    assert!(recorder.wait().unwrap().success());
    let judgement = so_far(&trace).expect("the trace is read");
    let memory = &judgement["memory"];
    assert!(memory["unknown"].is_null(), "{memory}");
    let found = peak(&judgement).unwrap();
    assert!(
        (truth..=truth + (64 << 10)).contains(&found),
        "{found}, in truth {truth}"
    );
    let used = memory["peak_usable_bytes"].as_u64().unwrap();
    assert!((LARGE_BYTES..found).contains(&used), "{used} of {found}");
}
