//! Sampled blocks against programs that know what they allocated, kept and lost.

use serde_json::Value;

use crate::support::{Recorded, record, varve, workload};

/// Sampled often enough for errors of a few percent.
const OFTEN: [&str; 4] = ["--sample-every", "16KiB", "--pages", "on"];
const ROUNDS: u64 = 60;
/// As `alloc_work.c` has them.
const LOST: u64 = 1000 * 300 * ROUNDS;
const BRIEF: u64 = 1000 * 1000 * ROUNDS;

fn of_program(options: &[&str], work: &[&str]) -> Recorded {
    let program = workload("alloc_work");
    record(options, &[&[program.to_str().unwrap()], work].concat())
}

fn leaking(reads: &str) -> Recorded {
    of_program(&OFTEN, &["leak", &ROUNDS.to_string(), reads])
}

/// The site with this function in its stack.
fn site<'a>(of: &'a Recorded, function: &str) -> &'a Value {
    let sites = of.judgement["blocks"]["sites"].as_array().unwrap();
    let has = |site: &&Value| {
        let stack = site["stack"].as_array().unwrap();
        stack
            .iter()
            .any(|f| f.as_str().unwrap().starts_with(function))
    };
    sites
        .iter()
        .find(has)
        .unwrap_or_else(|| panic!("{sites:#?}"))
}

/// An estimate is as far from the truth as its error says; that is of 95 %, and here three deviations are allowed.
fn is_about(estimate: &Value, truth: u64) {
    let bytes = estimate["bytes"].as_u64().unwrap();
    let error = estimate["error_bytes"].as_u64().unwrap();
    assert!(
        bytes.abs_diff(truth) * 2 <= error * 3,
        "{estimate} and {truth}"
    );
    assert!(
        bytes.abs_diff(truth) <= truth / 10,
        "{estimate} and {truth}"
    );
}

#[test]
fn what_is_lost_is_found_with_its_size_and_its_stack() {
    let recorded = leaking("0");
    assert_eq!(recorded.diseases(), ["leak"]);
    let lost = site(&recorded, "lose");
    is_about(&lost["allocated"], LOST);
    is_about(&lost["never_freed"], LOST);
    assert_eq!(lost["quarters"], 4);
    let stack = lost["stack"].as_array().unwrap();
    let names: Vec<&str> = stack.iter().map(|f| f.as_str().unwrap()).collect();
    assert!(names[0].starts_with("lose (alloc_work.c:"), "{names:?}");
    assert!(
        names.iter().any(|n| n.starts_with("leak (alloc_work.c:")),
        "{names:?}"
    );
    assert!(
        names.iter().any(|n| n.starts_with("main (alloc_work.c:")),
        "{names:?}"
    );
    // What is lost is left alone as soon as it is old enough to tell.
    let idle = lost["idle"]["left_alone"].as_u64().unwrap();
    assert!(idle >= LOST * 6 / 10, "{lost}");

    let brief = site(&recorded, "use_briefly");
    is_about(&brief["allocated"], BRIEF);
    assert!(brief["never_freed"]["bytes"] == 0, "{brief}");
    assert!(brief["short_lived"].as_f64().unwrap() > 0.9, "{brief}");
    assert!(brief["freed_elsewhere"].as_f64().unwrap() == 0.0, "{brief}");
}

/// The negative control: the same blocks are kept, and read again and again.
#[test]
fn what_is_kept_and_used_is_no_leak() {
    let recorded = leaking("1");
    let none: [String; 0] = [];
    assert_eq!(recorded.diseases(), none);
    let kept = site(&recorded, "lose");
    is_about(&kept["never_freed"], LOST);
    assert!(
        kept["idle"]["left_alone"].as_u64().unwrap() < LOST / 10,
        "{kept}"
    );
    assert!(
        kept["idle"]["second"].as_u64().unwrap() > LOST * 8 / 10,
        "{kept}"
    );
}

/// Where pages are not recorded nobody knows what is idle, and nothing is called a leak.
#[test]
fn without_pages_there_are_sizes_and_no_idle_bytes() {
    let recorded = of_program(&OFTEN[..2], &["leak", "20", "0"]);
    assert!(recorded.diseases().is_empty());
    let lost = site(&recorded, "lose");
    is_about(&lost["never_freed"], LOST / ROUNDS * 20);
    assert!(lost["idle"].is_null());
}

#[test]
fn blocks_that_others_free() {
    let recorded = of_program(&OFTEN[..2], &["pipe", "400", "400"]);
    let made = site(&recorded, "pipe_through");
    assert!(made["freed_elsewhere"].as_f64().unwrap() > 0.95, "{made}");
}

#[test]
fn nothing_is_sampled_where_that_is_asked_for() {
    let recorded = of_program(&["--sample-every", "off"], &["churn", "1", "300", "20000"]);
    assert_eq!(recorded.judgement["blocks"]["samples"], 0);
    assert_eq!(
        recorded.judgement["blocks"]["sites"]
            .as_array()
            .unwrap()
            .len(),
        0
    );
}

/// Flame graphs are drawn of these lines: the outermost function first, bytes last.
#[test]
fn folded_stacks_have_the_bytes_of_the_report() {
    let recorded = leaking("0");
    let folded = std::process::Command::new(varve())
        .args(["alloc", "report", "--folded", "never-freed"])
        .arg(recorded.folder.path().join("t.varve"))
        .output()
        .unwrap();
    let text = String::from_utf8(folded.stdout).unwrap();
    let line = text.lines().find(|l| l.contains(";lose (")).unwrap();
    let (stack, bytes) = line.rsplit_once(' ').unwrap();
    let place = |function| stack.find(function).unwrap();
    assert!(place("main (") < place("leak (") && place("leak (") < place("lose ("));
    let of = site(&recorded, "lose");
    assert_eq!(bytes, of["never_freed"]["bytes"].to_string());
}
