//! Memory that operations give back to the kernel, and what of it comes again: programs that know it.

use serde_json::Value;

use crate::support::{Recorded, compiled, record};

/// A program that does one of these with blocks that are mappings of their own, in single pages but for the last.
const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { PAGE = 4096, TIMES = 20 };
#define MIB (1ul << 20)

static char *page_of(void *at) {
    return (char *)((uintptr_t)at & ~(uintptr_t)(PAGE - 1));
}

/* Fills a block, frees it, and goes on as another program that does the same. */
static int chain(char **words, int left) {
    char number[16], *volatile block = malloc(16 * MIB);
    memset(block, 1, 16 * MIB);
    free(block);
    if (left <= 1) return 0;
    snprintf(number, sizeof(number), "%d", left - 1);
    execl(words[0], words[0], words[1], number, NULL);
    return 3;
}

/* Fills a block and empties it by itself, beside blocks that it hardly touches. */
static int arena(void) {
    char *volatile kept = malloc(16 * MIB);
    for (int i = 0; i < TIMES; i++) {
        memset(kept, 1, 16 * MIB);
        if (madvise(page_of(kept) + PAGE, 16 * MIB - PAGE, MADV_DONTNEED)) return 3;
        char *volatile block = malloc(16 * MIB);
        *block = 1;
        free(block);
    }
    return 0;
}

static void permit(int number, siginfo_t *info, void *context) {
    (void)number;
    (void)context;
    if (mprotect(page_of(info->si_addr), PAGE, PROT_READ | PROT_WRITE)) _exit(4);
}

/* Forbids the access to a block that was filled, again and again, and permits it page by page. */
static int forbid(void) {
    struct sigaction action = {.sa_sigaction = permit, .sa_flags = SA_SIGINFO};
    char *volatile block = malloc(8 * MIB);
    char *first = page_of(block);
    sigaction(SIGSEGV, &action, NULL);
    for (int i = 0; i <= TIMES; i++) {
        for (size_t at = PAGE; at <= 8 * MIB; at += PAGE) ((volatile char *)first)[at] = i;
        if (i < TIMES && mprotect(first + PAGE, 8 * MIB, PROT_NONE)) return 3;
    }
    free(block);
    return 0;
}

/* Has the kernel read into fresh blocks. */
static int reads(void) {
    int zeroes = open("/dev/zero", O_RDONLY);
    for (int i = 0; i < TIMES; i++) {
        char *volatile block = malloc(96 * MIB);
        if (read(zeroes, block, 96 * MIB) != (ssize_t)(96 * MIB)) return 3;
        free(block);
    }
    return 0;
}

/* Fills and frees a block of huge pages. */
static int huge(void) {
    for (int i = 0; i < TIMES; i++) {
        char *volatile block = malloc(96 * MIB);
        madvise(page_of(block), 96 * MIB, MADV_HUGEPAGE);
        memset(block, 1, 96 * MIB);
        free(block);
    }
    return 0;
}

int main(int count, char **words) {
    const char *what = words[1];
    mallopt(M_MMAP_THRESHOLD, MIB);
    if (!strcmp(what, "huge")) return huge();
    prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
    if (!strcmp(what, "chain")) return chain(words, atoi(words[2]));
    if (!strcmp(what, "arena")) return arena();
    if (!strcmp(what, "forbid")) return forbid();
    if (!strcmp(what, "reads")) return reads();
    return count;
}
"#;

const PAGE: u64 = 4096;
const MIB: u64 = 1 << 20;
const TIMES: u64 = 20;

fn recorded(words: &[&str]) -> Recorded {
    let folder = tempfile::tempdir().unwrap();
    let program = compiled(folder.path(), "gives", PROGRAM, &["-fno-builtin"]);
    let command = [&[program.to_str().unwrap()], words].concat();
    let found = record(&[], &command);
    let said = &found.output;
    assert_eq!(said.status.code(), Some(0), "{words:?}: {said:?}");
    found
}

fn figure(of: &Value, name: &str) -> u64 {
    of[name].as_u64().unwrap_or_else(|| panic!("{name}: {of}"))
}

/// Bytes of first touches that found no room in the ring: how many they are is known.
fn lost(of: &Recorded) -> u64 {
    figure(&of.judgement["trace"], "lost") * PAGE
}

/// Nothing came again, and nothing is left open.
fn comes_once(of: &Recorded) {
    let given = &of.judgement["given_back"];
    assert_eq!(figure(given, "again_bytes"), 0, "{given}");
    assert!(given["unknown"].is_null(), "{given}");
    let none: [String; 0] = [];
    assert_eq!(of.diseases(), none, "{}", of.judgement["diagnoses"]);
}

/// Five programs, one after the other in one process, fill their memory once each. Added up they touch five times the peak of one.
#[test]
fn programs_of_one_process_are_no_program_again() {
    const PROGRAMS: u64 = 5;
    let found = recorded(&["chain", "5"]);
    comes_once(&found);
    let given = figure(&found.judgement["given_back"], "bytes");
    let least = PROGRAMS * 16 * MIB;
    // Each block has a page more, and the C library gives back some pages at the end of a program.
    let seen = least - lost(&found)..=least + PROGRAMS * MIB;
    assert!(seen.contains(&given), "{given}, in truth {least}");
}

/// First touches are twenty times the block, and so are addresses that were unmapped: but that was other memory.
#[test]
fn what_the_program_empties_itself_is_not_given_back() {
    let found = recorded(&["arena"]);
    comes_once(&found);
    let given = &found.judgement["given_back"];
    let addresses = figure(given, "address_bytes");
    assert!(addresses >= TIMES * 16 * MIB, "{given}");
    assert!(figure(given, "bytes") < MIB, "{given}");
    let behind = figure(&found.judgement["faults"], "behind") * PAGE;
    assert!(behind + lost(&found) >= TIMES * 15 * MIB, "{behind}");
}

/// The kernel says of a page that may not be accessed that it is not there: 43,008 page faults, and 2,048 first touches.
#[test]
fn pages_that_may_not_be_accessed_are_touched_once() {
    let found = recorded(&["forbid"]);
    comes_once(&found);
    let faults = &found.judgement["faults"];
    let pages = 8 * MIB / PAGE;
    let outside = figure(faults, "outside");
    assert!(outside >= (TIMES + 1) * pages, "{faults}");
    // What the C library touches of its heap is among them.
    let lost = (lost(&found) / PAGE).min(pages);
    let touched = pages - lost..pages + 10;
    assert!(touched.contains(&figure(faults, "behind")), "{faults}");
}

/// The page faults are the kernel's, in `read`: what they took is not known, and is not nothing.
#[test]
fn the_time_of_page_faults_within_read_is_not_known() {
    let found = recorded(&["reads"]);
    let given = &found.judgement["given_back"];
    let (again, least) = (figure(given, "again_bytes"), (TIMES - 1) * 96 * MIB);
    let seen = least - lost(&found)..=least + 2 * TIMES * PAGE;
    assert!(seen.contains(&again), "{again}, in truth {least}");
    assert!(given["again"].is_null(), "{given}");
    let why = given["unknown"]["why"].as_str().unwrap();
    assert!(why.contains("read"), "{given}");
    let faults = &found.judgement["faults"];
    assert!(faults["behind_share"].is_null(), "{faults}");
    let by_kernel = figure(faults, "behind_by_kernel") * PAGE;
    assert!(by_kernel + lost(&found) >= TIMES * 96 * MIB, "{faults}");
    let none: [String; 0] = [];
    assert_eq!(found.diseases(), none, "{}", found.judgement["diagnoses"]);
}

/// A page fault brings 2 MiB where the machine has huge pages: that is counted in bytes, and its time is known. Where it has none the pages are small.
#[test]
fn huge_pages_come_again() {
    let found = recorded(&["huge"]);
    let given = &found.judgement["given_back"];
    let all = TIMES * 96 * MIB;
    // Of each call a batch of the counter is left out, and of the peak what the CPUs hold back: more on larger machines.
    let rest = 5 * 96 * MIB;
    let seen = all - rest..=all + 2 * TIMES * PAGE;
    assert!(seen.contains(&figure(given, "bytes")), "{given}");
    let came = all - rest..all;
    assert!(came.contains(&figure(given, "again_bytes")), "{given}");
    assert!(given["again"]["share"].is_f64(), "{given}");
    assert!(given["unknown"].is_null(), "{given}");
}
