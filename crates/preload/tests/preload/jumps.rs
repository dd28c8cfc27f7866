//! Signal handlers that jump out of the library, and threads that end within it: what they held is found again.

use std::collections::HashSet;
use std::process::Command;

use varve_preload_abi::RING_NAME;

use crate::common::{Bench, RING_BYTES, Ring, lines};

/// The program finds its ring and takes the right to write away from part of it: the library faults within a record, and the
/// handler jumps away.
const JUMPS: &str = r#"
#include <setjmp.h>
#include <time.h>
static char *ring; static size_t ring_bytes;
static __thread sigjmp_buf out;
static int jumps;

static void find_ring(void) {
    FILE *maps = fopen("/proc/self/maps", "r"); char line[512]; unsigned long from, to;
    while (fgets(line, sizeof line, maps))
        if (strstr(line, RING_NAME) && sscanf(line, "%lx-%lx", &from, &to) == 2) { ring = (char *)from; ring_bytes = to - from; }
    fclose(maps);
    if (!ring) exit(2);
}
static unsigned long field(int at) { return __atomic_load_n((unsigned long *)(ring + at), __ATOMIC_ACQUIRE); }
enum { HEAD = 128, TAIL = 384, DATA = 4096 };
static void protect(char *from, char *to, int how) {
    if (from < to && syscall(SYS_mprotect, from, to - from, how)) _exit(3);
}
static void on_fault(int number, siginfo_t *info, void *context) {
    char *at = info->si_addr;
    if (at < ring || at >= ring + ring_bytes) _exit(4);
    protect(ring + DATA, ring + ring_bytes, PROT_READ | PROT_WRITE);
    jumps++;
    siglongjmp(out, 1);
}
/* Waits until the reader has all. */
static int all_is_read(void) {
    time_t end = time(NULL) + 60;
    while (field(HEAD) != field(TAIL)) { if (time(NULL) > end) return 0; sched_yield(); }
    return 1;
}
/* The first page that the next record touches, or the one after it. */
static void jump_away(int next) {
    size_t bytes = ring_bytes - DATA;
    if (sigsetjmp(out, 1)) return;
    if (!next) { protect(ring + DATA, ring + ring_bytes, PROT_READ); free(malloc(8192)); _exit(5); }
    for (;;) {
        size_t at = field(HEAD) & (bytes - 1);
        char *page = ring + DATA + ((at + 4096) & ~4095ul);
        if (page < ring + ring_bytes) protect(page, page + 4096, PROT_READ);
        free(malloc(8192));
        protect(ring + DATA, ring + ring_bytes, PROT_READ | PROT_WRITE);
    }
}
static void *in_thread(void *next) { jump_away(next != 0); return NULL; }
static void report(int count) {
    for (int i = 0; i < count; i++) born("Malloc", malloc(10000 + i), 10000 + i);
}
int main(int count, char **words) {
    int threads = words[1][0] == 't', next = words[1][1] == 'n';
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &action, NULL);
    report(1);
    find_ring();
    for (int i = 0; i < 40; i++) {
        if (threads) {
            pthread_t thread; pthread_create(&thread, NULL, in_thread, next ? &next : NULL); pthread_join(thread, NULL);
        } else jump_away(next);
        report(100);
        if (!all_is_read()) return 6;
    }
    return jumps == 40 ? 0 : 7;
}
"#;

/// Runs it; what the program says that it has is reported, with where it was asked for, and what was left is counted.
fn jumps(how: &str) {
    // It comes to the ring's end several times.
    let bench = Bench::new().set(RING_BYTES, 64 << 10);
    let name = format!("-DRING_NAME=\"{RING_NAME}\"");
    let program = bench.compile("jumps", JUMPS, &[&name]);
    let (output, rings) = bench.run(Command::new(program).arg(how));
    assert!(output.status.success(), "{:?}", output.status);
    let ring: &Ring = &rings[0];
    assert_eq!(ring.losses.dropped, 0);
    assert!((1..=40).contains(&ring.unfinished), "{}", ring.unfinished);
    let reported: HashSet<String> = ring.heap_lines().into_iter().collect();
    let said = lines(&output);
    assert_eq!(said.len(), 4001);
    let missing: Vec<&String> = said.iter().filter(|l| !reported.contains(*l)).collect();
    assert!(missing.is_empty(), "{missing:?}");
    let large = ring.births().filter(|(_, _, bytes)| *bytes >= 10_000);
    let without = large.filter(|(record, ..)| record.site == 0).count();
    assert_eq!(without, 0, "births without a call stack");
}

#[test]
fn a_thread_that_jumps_away_goes_on() {
    jumps("mf");
}

#[test]
fn a_thread_that_jumps_away_within_a_record_goes_on() {
    jumps("mn");
}

#[test]
fn threads_that_jump_away_and_end_keep_nothing() {
    jumps("tf");
}

#[test]
fn threads_that_jump_away_within_a_record_and_end_keep_nothing() {
    jumps("tn");
}
