//! Sampled blocks against programs that know what they allocated, kept and lost.

use serde_json::{Value, json};

use crate::support::{Recorded, folded, record, varve, workload};

/// Sampled often enough for errors of a few percent, and with intervals that stay short on a busy machine.
const OFTEN: [&str; 6] = [
    "--sample-every",
    "8KiB",
    "--pages",
    "on",
    "--overhead",
    "50%",
];
const ROUNDS: u64 = 100;
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

/// The site with this function in its stack at which most blocks were allocated: what the C library allocates on its behalf, as for a thread,
/// is sampled now and then too.
fn site<'a>(of: &'a Recorded, function: &str) -> &'a Value {
    let sites = of.judgement["blocks"]["sites"].as_array().unwrap();
    let has = |site: &&Value| {
        let stack = site["stack"].as_array().unwrap();
        stack
            .iter()
            .any(|f| f.as_str().unwrap().starts_with(function))
    };
    let blocks = |site: &&Value| site["allocated"]["blocks"].as_u64();
    sites
        .iter()
        .filter(has)
        .max_by_key(blocks)
        .unwrap_or_else(|| panic!("{sites:#?}"))
}

/// An estimate is as far from the truth as its error says: that is 1.96 deviations, and three times as much is 5.9. A sum of 500 samples or
/// more is further away once in ten million times at most, and one of 2,000 once in a hundred million.
fn is_about(estimate: &Value, truth: u64) {
    let bytes = estimate["bytes"].as_u64().unwrap();
    let error = estimate["error_bytes"].as_u64().unwrap();
    assert!(bytes.abs_diff(truth) <= error * 3, "{estimate} and {truth}");
    // It is small: 1.96 / √500 of it.
    assert!(error > 0 && error <= truth / 10, "{estimate} and {truth}");
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

/// An `operator new` calls `malloc`, which is a part of it and no operation of its own.
#[test]
fn blocks_of_each_operator_new_are_sampled_once() {
    let program = workload("alloc_new");
    // Without pages, objects are not reported, which is another way.
    for options in [&OFTEN[..], &OFTEN[..2]] {
        let recorded = record(options, &[program.to_str().unwrap(), &ROUNDS.to_string()]);
        for function in [
            "by_new (",
            "by_new_array (",
            "by_aligned_new (",
            "by_new_that_does_not_throw (",
            "by_malloc (",
        ] {
            is_about(&site(&recorded, function)["allocated"], LOST);
        }
    }
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
    let options = ["--sample-every", "2KiB"];
    let recorded = of_program(&options, &["leak", "20", "0"]);
    assert!(recorded.diseases().is_empty());
    let lost = site(&recorded, "lose");
    is_about(&lost["never_freed"], LOST / ROUNDS * 20);
    assert!(lost["idle"].is_null());
}

/// The block that makes the peak is alive at the peak, and so is one that is freed before small blocks are counted together.
#[test]
fn blocks_that_make_the_peak_live_at_the_peak() {
    const FIRST: u64 = 32 << 20;
    for options in [&["--pages", "off"][..], &OFTEN[..]] {
        for (how, second) in [("large", 64 << 20), ("small", 0), ("shrunk", 0)] {
            let recorded = of_program(options, &["peaks", how]);
            let at_peak = |function| &site(&recorded, function)["at_peak"]["bytes"];
            assert_eq!(at_peak("make_first ("), FIRST, "{how} {options:?}");
            if second > 0 {
                assert_eq!(at_peak("make_second ("), second, "{how} {options:?}");
            }
        }
    }
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

#[test]
fn folded_stacks_have_the_figures_of_the_report() {
    let recorded = leaking("0");
    let weight = |measure: &str| {
        let (rows, _) = folded(&recorded, measure);
        let row = rows
            .into_iter()
            .find(|(stack, _)| stack.contains(";lose ("));
        row.unwrap_or_else(|| panic!("{measure}"))
    };
    let (stack, bytes) = weight("never-freed");
    let place = |function| stack.find(function).unwrap();
    assert!(place("main (") < place("leak (") && place("leak (") < place("lose ("));
    let of = site(&recorded, "lose");
    assert_eq!(json!(bytes), of["never_freed"]["bytes"]);
    assert_eq!(json!(weight("allocated").1), of["allocated"]["bytes"]);
    assert_eq!(json!(weight("peak").1), of["at_peak"]["bytes"]);
    // Blocks of 300 bytes are sampled rarely: their number has an error, and is about the truth.
    let (_, blocks) = weight("count");
    assert_eq!(json!(blocks), of["allocated"]["blocks"]);
    let error = of["allocated"]["error_blocks"].as_u64().unwrap();
    assert!(
        error > 0 && blocks.abs_diff(1000 * ROUNDS) <= error * 3,
        "{blocks} ± {error}"
    );
    // For how long it says; a run that others hold up is longer.
    let (_, idle) = weight("idle");
    let band = |name: &str| of["idle"][name].as_u64().unwrap();
    let longer = band("longer") + band("never");
    let (_, said) = folded(&recorded, "idle");
    let idle_for = |time: &str| said.contains(&format!("not touched in the last {time} "));
    let expected = match said.as_str() {
        _ if idle_for("60 s") => longer,
        _ if idle_for("10 s") => longer + band("minute"),
        _ if idle_for("1 s") => longer + band("minute") + band("ten_seconds"),
        _ => panic!("{said}"),
    };
    assert!(idle > 0 && idle == expected, "{idle} {of} {said}");
}

/// Time is known of callers alone: one frame each, and all of them together are what operations took.
#[test]
fn folded_time_is_of_callers() {
    let recorded = of_program(&[], &["churn", "1", "300", "20000"]);
    let (rows, _) = folded(&recorded, "time");
    assert!(
        rows.iter().all(|(stack, _)| !stack.contains(';')),
        "{rows:?}"
    );
    let sites = recorded.judgement["sites"].as_array().unwrap();
    let known: Vec<u64> = sites.iter().filter_map(|s| s["time_ns"].as_u64()).collect();
    let of_callers = rows.iter().filter(|(stack, _)| stack != "(other callers)");
    let listed: u64 = of_callers.map(|(_, ns)| ns).sum();
    assert_eq!(listed, known.iter().sum::<u64>());
    // The time of each is known with its error, or it says why not.
    for site in sites {
        let [time, error, why] = ["time_ns", "time_error", "time_unknown"].map(|f| &site[f]);
        assert_eq!(
            time.is_u64(),
            error.as_f64().is_some_and(|e| e < 1.0),
            "{site}"
        );
        assert_eq!(time.is_null(), why.is_string(), "{site}");
        assert!(site["timed"].as_u64() <= site["count"].as_u64(), "{site}");
    }
    assert!(
        !known.is_empty(),
        "20,000 operations of one caller: {sites:?}"
    );
    // Without pages nobody knows what is idle, which is said.
    let (rows, said) = folded(&recorded, "idle");
    assert!(
        rows.is_empty() && said.contains("pages were not recorded") && said.contains("hint:"),
        "{said}"
    );
}

#[test]
fn the_page_is_written() {
    let recorded = of_program(&OFTEN, &["leak", "20", "0"]);
    let page = recorded.folder.path().join("page.html");
    let written = std::process::Command::new(varve())
        .args(["alloc", "report", "--html"])
        .args([&page, &recorded.folder.path().join("t.varve")])
        .output()
        .unwrap();
    assert!(written.status.success() && written.stdout.is_empty());
    let text = std::fs::read_to_string(page).unwrap();
    assert!(text.contains("id=\"payload\"") && text.matches("</script>").count() == 2);
    assert!(!text.contains("@@VARVE"));
}
