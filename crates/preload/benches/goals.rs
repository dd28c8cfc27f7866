//! What the library costs the program that it is in.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::{Bench, Reader, lines};
use varve_goals::Goals;

#[path = "../tests/preload/common/mod.rs"]
mod common;

/// Nanoseconds of CPU time that a pair of `malloc` and `free` takes more with the library than without it. The least of
/// the rounds of each counts: other programs take caches and time, and never make one quicker.
fn more_a_pair(
    (bench, program): &(Bench, PathBuf),
    rounds: usize,
    [bytes, pairs, depth]: [u32; 3],
) -> f64 {
    let command = || {
        let mut command = Command::new(program);
        command.args([bytes, pairs, depth].map(|number| number.to_string()));
        command
    };
    let cost = |output: &Output| lines(output)[0].parse::<f64>().unwrap();
    let (mut plain, mut watched) = (f64::MAX, f64::MAX);
    for _ in 0..rounds {
        plain = plain.min(cost(&command().output().unwrap()));
        let (output, rings) = bench.run(&mut command());
        assert!(rings[0].births().count() + rings[0].records.len() > 3);
        watched = watched.min(cost(&output));
    }
    watched - plain
}

fn pairs() -> (Bench, PathBuf) {
    // Large enough for the whole run, so that the library is measured and not the reader.
    let bench = Bench::new()
        .set(common::RING_BYTES, 64 << 20)
        .read_by(Reader::Late);
    let program = bench.compile("pairs", r#"
    #include <time.h>
    static double now(void) { struct timespec t; clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t); return t.tv_sec * 1e9 + t.tv_nsec; }
    __attribute__((noinline)) static void loop(size_t bytes, long pairs) {
        for (long i = 0; i < pairs; i++) { void *p = malloc(bytes); asm volatile("" :: "r"(p) : "memory"); free(p); } }
    __attribute__((noinline)) static void deep(int depth, size_t bytes, long pairs) {
        if (depth) { deep(depth - 1, bytes, pairs); asm volatile(""); } else loop(bytes, pairs); }
    int main(int count, char **names) {
        size_t bytes = atol(names[1]); long pairs = atol(names[2]); int depth = atoi(names[3]);
        deep(depth, bytes, pairs / 10);
        double begin = now(); deep(depth, bytes, pairs); say("%.1f\n", (now() - begin) / pairs); return 0;
    }"#, &[]);
    (bench, program)
}

/// Percent of births that are lost where a reader looks every millisecond at a ring of 64 KiB.
fn lost(bench: &Bench, program: &Path) -> f64 {
    let (output, rings) = bench.run(&mut Command::new(program));
    assert!(output.status.success());
    100.0 - rings[0].births().count() as f64 / 500.0
}

/// Milliseconds of a program that waits for a reader that never comes.
fn flood(bench: &Bench, program: &Path) -> f64 {
    let begin = std::time::Instant::now();
    let (output, _) = bench.run(&mut Command::new(program));
    assert!(output.status.success());
    begin.elapsed().as_secs_f64() * 1e3
}

fn main() {
    let mut goals = Goals::from_arguments("preload");
    let rounds = goals.rounds(10);
    let program = pairs();
    for (name, goal, case) in [
        ("malloc and free of 64 B", 10.0, [64, 5_000_000, 0]),
        ("malloc and free of 8 KiB", 1000.0, [8192, 200_000, 0]),
        ("the same below 20 frames", 1000.0, [8192, 200_000, 18]),
    ] {
        goals.at_most(&format!("{name}, more than without"), "ns", goal, || {
            more_a_pair(&program, rounds, case)
        });
    }
    let small = Bench::new().set(common::RING_BYTES, 65536);
    let source = "int main(void) { for (int i = 0; i < 50000; i++) free(malloc(4096)); return 0; }";
    let slow = small.compile("slow", source, &[]);
    goals.at_most("births lost with a ring of 64 KiB", "%", 20.0, || {
        let lost: Vec<f64> = (0..rounds).map(|_| lost(&small, &slow)).collect();
        varve_goals::median(&lost)
    });
    let unread = Bench::new()
        .set(common::RING_BYTES, 65536)
        .read_by(Reader::Late);
    let source = "int main(void) { for (int i = 0; i < 20000; i++) malloc(4096); return 0; }";
    let program = unread.compile("flood", source, &[]);
    goals.at_most("20,000 births without a reader", "ms", 1500.0, || {
        let took: Vec<f64> = (0..rounds).map(|_| flood(&unread, &program)).collect();
        varve_goals::median(&took)
    });
    std::process::exit(goals.finish());
}
