//! What a pair of malloc and free costs with and without the library, interleaved.

use std::process::Command;

use crate::common::{Bench, lines};

/// Rounds that a busy machine is given.
const MAX_ROUNDS: u32 = 25;

/// Nanoseconds of CPU time per pair, the best of several rounds each: plain, then watched. There are five, and more as long as they
/// differ by more than is allowed: other programs take caches and time, and never make one quicker.
fn pair(
    bench: &Bench,
    program: &std::path::Path,
    bytes: u32,
    pairs: u32,
    depth: u32,
    allowed: f64,
) -> (f64, f64) {
    let command = || {
        let mut command = Command::new(program);
        command.args([bytes, pairs, depth].map(|number| number.to_string()));
        command
    };
    let (mut plain, mut watched) = (f64::MAX, f64::MAX);
    for round in 1..=MAX_ROUNDS {
        let cost = |output: &std::process::Output| lines(output)[0].parse::<f64>().unwrap();
        plain = plain.min(cost(&command().output().unwrap()));
        let (output, rings) = bench.run(&mut command());
        assert!(rings[0].births().count() + rings[0].records.len() > 3);
        watched = watched.min(cost(&output));
        if round >= 5 && watched - plain < allowed {
            break;
        }
    }
    (plain, watched)
}

#[test]
fn nanoseconds_per_pair() {
    // Large enough for the whole run, so that the library is measured and not the reader.
    let bench = Bench::new()
        .set(crate::common::RING_BYTES, 64 << 20)
        .without_reader();
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
    let cases = [
        ("64 B", 64, 5_000_000, 0, 10.0),
        ("8 KiB", 8192, 200_000, 0, 1000.0),
        ("8 KiB, 20 frames", 8192, 200_000, 18, 1000.0),
    ];
    for (name, bytes, pairs, depth, allowed) in cases {
        // Twice the target: shared machines are noisy.
        let allowed = 2.0 * allowed;
        let (plain, watched) = pair(&bench, &program, bytes, pairs, depth, allowed);
        let more = watched - plain;
        println!(
            "{name}: {plain:.1} ns without, {watched:.1} ns with the library: +{more:.1} ns a pair"
        );
        assert!(more < allowed, "{name}: +{more:.1} ns");
    }
}
