//! Memory that several processes map is one object, and its pages count once.

use serde_json::Value;
use varve_faults::Stage;
use varve_trust::program;

use crate::reports::{number, objects_with, recorded};

/// What `programs/memory.c` shares: 8 MiB.
const PAGES: u64 = 2048;
const USERS: u64 = 4;

/// Pages of an object that only a flag shows in some interval, which others may have set: the page counts there as touched by nobody,
/// and the report says how often that was. It happens where an interval ends while they are touched.
fn possibly(object: &Value) -> u64 {
    number(object, "possibly_others_page_touches")
}

/// Records four processes that touch one memory in turn, mapped at four addresses.
fn four_users(kind: &str) {
    let stage = Stage::new();
    let program = program("memory");
    let report = recorded(
        &stage,
        &["--interval", "50ms"],
        &[program.to_str().unwrap(), "share", kind],
    );
    let large = objects_with(&report, |o| number(o, "bytes") >= PAGES * 4096);
    let buffers: Vec<&Value> = large
        .into_iter()
        .filter(|o| number(o, "touched_pages") + possibly(o) >= PAGES)
        .collect();
    assert_eq!(buffers.len(), 1, "{kind}: {buffers:#?}");
    let buffer = buffers[0];
    let possibly = possibly(buffer);
    assert!(number(buffer, "touched_pages") <= PAGES, "{buffer:#}");
    let users = buffer["processes"].as_array().unwrap();
    assert_eq!(users.len() as u64, USERS, "{users:#?}");
    let by_all: u64 = users.iter().map(|u| number(u, "touched_pages")).sum();
    assert!(by_all + possibly >= USERS * PAGES, "{buffer:#}");
    for user in users {
        assert!(user["first_touch_tid"].is_u64(), "{user}");
    }
    // Each process touched all of it, once: together they used it four times.
    assert!(
        number(&buffer["reuse"], "more") + possibly >= PAGES,
        "{buffer:#}"
    );
    let once = report["findings"].as_array().unwrap();
    let once = once.iter().find(|f| f["id"] == "touched-once");
    assert!(once.is_none(), "{once:?}");
    let footprint = &report["footprint"];
    let (memory, sum) = (
        number(footprint, "touched_pages"),
        number(footprint, "touched_pages_per_process"),
    );
    let shared = (USERS - 1) * PAGES;
    assert!(memory + shared <= sum + possibly, "{memory} and {sum}");
    assert!(memory < 2 * PAGES, "{memory}");
    // Five processes have some 400 pages each of their own; the memory would count four times.
    let resident = number(footprint, "peak_resident_pages");
    assert!((PAGES..PAGES * 3).contains(&resident), "{resident}");
}

#[test]
fn a_memfd_at_four_addresses() {
    four_users("memfd");
}

#[test]
fn a_segment_of_system_v_at_four_addresses() {
    four_users("sysv");
}

#[test]
fn a_shared_file_at_four_addresses() {
    four_users("file");
}

#[test]
fn shared_memory_without_a_name() {
    four_users("anonymous");
}

#[test]
fn copies_of_a_fork_are_memory_of_their_own() {
    let stage = Stage::new();
    let program = program("memory");
    let report = recorded(
        &stage,
        &["--interval", "50ms"],
        &[program.to_str().unwrap(), "copies"],
    );
    let own = objects_with(&report, |o| {
        number(o, "bytes") == PAGES * 4096 && number(o, "touched_pages") + possibly(o) >= PAGES
    });
    assert_eq!(own.len(), 3, "{own:#?}");
    let possibly: u64 = own.iter().map(|o| possibly(o)).sum();
    let touched = number(&report["footprint"], "touched_pages");
    assert!(touched + possibly >= 3 * PAGES, "{touched}, {own:#?}");
}

#[test]
fn stacks_say_whose_they_are() {
    let stage = Stage::new();
    let program = program("memory");
    let report = recorded(
        &stage,
        &["--interval", "50ms"],
        &[program.to_str().unwrap(), "copies"],
    );
    let stacks = objects_with(&report, |o| o["kind"] == "stack");
    assert!(stacks.len() >= 3, "{stacks:#?}");
    for stack in stacks {
        let name = stack["name"].as_str().unwrap();
        let whose = format!(" {} (memory", stack["pid"]);
        assert!(name.contains(&whose), "{name}");
    }
}

#[test]
fn children_that_soon_end_have_the_objects_of_their_parents() {
    let stage = Stage::new();
    let script = "for i in $(seq 100); do (:); done";
    let report = recorded(&stage, &["--interval", "200ms"], &["bash", "-c", script]);
    let all = number(&report["footprint"], "touched_pages");
    let nobody = number(&report["unowned"], "touched_pages");
    // It was four pages of five.
    assert!(nobody * 10 < all, "{nobody} of {all} pages are nobody's");
}
