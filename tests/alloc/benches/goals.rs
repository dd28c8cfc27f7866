//! How near times are to those of the programs' own clocks.

#[allow(dead_code)]
#[path = "../tests/alloc/support.rs"]
mod support;

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use support::{Recorded, record, workload};
use varve_goals::{Goals, median};

/// A number that a program says after this word.
fn said(of: &Recorded, word: &str) -> f64 {
    let said = of.said();
    let line = said.lines().find_map(|l| l.strip_prefix(word));
    line.expect("the program says it").trim().parse().unwrap()
}

/// How far off the time of `munmap` is in percent, while 20 threads take all of the CPUs that they get.
fn munmap_on_a_busy_machine() -> f64 {
    let library = workload("libsick_mapping.so");
    let program = workload("alloc_work");
    let command = ["/usr/bin/env", "SICK_CPU=1", program.to_str().unwrap()];
    let command = [&command[..], &["churn", "1", "8000000", "600"]].concat();
    let is_over = AtomicBool::new(false);
    let recorded = std::thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| {
                while !is_over.load(Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let recorded = record(&["--allocator", library.to_str().unwrap()], &command);
        is_over.store(true, Relaxed);
        recorded
    });
    let truth = said(&recorded, "munmap ");
    let calls = recorded.judgement["syscalls"].as_array().unwrap();
    let call = calls.iter().find(|c| c["name"] == "munmap").unwrap();
    (call["time_ns"].as_f64().unwrap() - truth).abs() / truth * 100.0
}

/// How far beyond what the program knows of its sleep the waits for `mmap_lock` are, in percent.
fn waits_for_the_lock_of_mappings() -> f64 {
    let program = workload("alloc_kernel");
    let command = [program.to_str().unwrap(), "waits", "3000", "1"];
    let recorded = record(&["--time-every", "1"], &command);
    let lock = &recorded.judgement["mmap_lock"];
    let figure = |name: &str| lock[name].as_f64().unwrap();
    let found = figure("time_ns") - figure("spun_ns") + figure("others_ns");
    let (least, most) = (said(&recorded, "slept "), said(&recorded, "at most "));
    (found - found.clamp(least, most)).abs() / most * 100.0
}

/// How far off the share of CPU time in loops that wait is, in percent of it.
fn spinning() -> f64 {
    let (library, program) = (workload("libsick_spin.so"), workload("alloc_work"));
    let command = [program.to_str().unwrap(), "churn", "4", "64", "6000"];
    let recorded = record(&["--allocator", library.to_str().unwrap()], &command);
    let said = recorded.said();
    let line = said.lines().find_map(|l| l.strip_prefix("spun "));
    let (spun, all) = line.unwrap().split_once(" of ").unwrap();
    let (spun, all): (f64, f64) = (spun.parse().unwrap(), all.parse().unwrap());
    let time = &recorded.judgement["time"];
    let truth = spun / (all - time["counting_ns"].as_f64().unwrap());
    let found = time["spinning"]["share"].as_f64().unwrap();
    (found - truth).abs() / truth * 100.0
}

fn main() {
    let mut goals = Goals::from_arguments("alloc");
    let rounds = goals.rounds(5);
    let median_of = |measure: fn() -> f64| {
        let figures: Vec<f64> = (0..rounds).map(|_| measure()).collect();
        median(&figures)
    };
    goals.at_most(
        "time of munmap on a busy machine: off the thread's clock",
        "%",
        10.0,
        || median_of(munmap_on_a_busy_machine),
    );
    goals.at_most(
        "waits for mmap_lock: off the thread's clock",
        "%",
        5.0,
        || median_of(waits_for_the_lock_of_mappings),
    );
    goals.at_most(
        "share of time in loops that wait: off the threads' clocks",
        "%",
        10.0,
        || median_of(spinning),
    );
    std::process::exit(goals.finish());
}
