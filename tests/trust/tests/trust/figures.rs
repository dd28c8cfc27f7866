//! Figures that cannot be: parts above their whole, memory that counts twice, touches of what cannot be touched.

use varve_faults::Stage;
use varve_trust::program;

use crate::reports::{number, objects_with, recorded};

const MIB: u64 = 256;

fn run(mode: &str) -> serde_json::Value {
    let stage = Stage::new();
    let program = program("memory");
    recorded(
        &stage,
        &["--interval", "50ms"],
        &[program.to_str().unwrap(), mode],
    )
}

#[test]
fn what_grows_and_moves_counts_once() {
    let report = run("grow");
    let large = objects_with(&report, |o| number(o, "touched_pages") >= 4 * MIB);
    assert_eq!(large.len(), 1, "{large:#?}");
    assert_eq!(number(large[0], "touched_pages"), 32 * MIB);
    assert_eq!(number(large[0], "bytes"), 32 * MIB * 4096);
    let all = number(&report["footprint"], "touched_pages");
    assert!((32 * MIB..36 * MIB).contains(&all), "{all}");
}

#[test]
fn ten_thousand_short_lives_are_no_more_than_the_memory() {
    let report = run("lives");
    let all = number(&report["footprint"], "touched_pages");
    let touches = number(&report["footprint"], "page_touches");
    let groups = report["groups"].as_array().unwrap();
    let lives = groups.iter().max_by_key(|g| number(g, "objects")).unwrap();
    assert!(number(lives, "objects") >= 10_000, "{lives:#}");
    assert!(number(lives, "touched_pages") <= all, "{lives:#}");
    assert!(number(lives, "page_touches") <= touches, "{lives:#}");
    let over_lives = number(lives, "touched_pages_over_lives");
    assert!(over_lives > number(lives, "touched_pages"), "{lives:#}");
}

#[test]
fn a_reservation_shows_only_what_was_touched() {
    let report = run("reserve");
    let reserved = objects_with(&report, |o| o["reserved"] == true);
    assert!(!reserved.is_empty());
    for object in reserved {
        assert_eq!(number(object, "touched_pages"), 0, "{object:#}");
    }
    let used = objects_with(&report, |o| number(o, "bytes") == 256 << 10);
    let touched: u64 = used.iter().map(|o| number(o, "touched_pages")).sum();
    assert_eq!(touched, 8 * 64, "{used:#?}");
    let findings = report["findings"].as_array().unwrap();
    let never = findings.iter().find(|f| f["id"] == "never-touched");
    assert!(never.is_none(), "{never:?}");
}
