//! Samples of forked children that end before anybody has looked at their memory.

#![cfg(target_arch = "x86_64")]

use std::collections::HashMap;

use varve_faults::Stage;
use varve_model::{Loss, ObjectId, Pid, SampleMode};
use varve_trace::Trace;
use varve_trace::tables::{ObjectRow, SampleRow};

const CHILDREN: usize = 20;

/// Of each child that works for so long: its samples in user space, and how many of them name the array.
fn samples_of_children(milliseconds: &str) -> Vec<(usize, usize)> {
    let stage = Stage::new();
    let program = varve_trust::program("forked");
    let count = CHILDREN.to_string();
    let command = [program.as_os_str(), count.as_ref(), milliseconds.as_ref()];
    // One interval: no boundary has a child looked at.
    let options = ["--samples", "1000/s", "--interval", "60s"];
    let ended = stage.run(stage.record(&options, &command)).require(0);
    stage.require_clean(ended.pid);
    let children: Vec<Pid> = ended
        .text()
        .lines()
        .map(|line| Pid(line.parse().expect("a number")))
        .collect();
    assert_eq!(children.len(), CHILDREN);
    let trace = Trace::open(&stage.path("trace.varve")).expect("a trace");
    let objects = trace.rows::<ObjectRow>().expect("objects");
    let objects: HashMap<ObjectId, ObjectRow> =
        objects.into_iter().map(|o| (o.object, o)).collect();
    let samples = trace.rows::<SampleRow>().expect("samples");
    println!("{:?}", trace.manifest.samples);
    let of = |child: Pid| {
        let own = samples.iter().filter(|s| s.pid == child);
        let own: Vec<_> = own.filter(|s| s.mode == Some(SampleMode::User)).collect();
        let names_array = |sample: &&&SampleRow| {
            let object = sample.object.and_then(|object| objects.get(&object));
            object.is_some_and(|o| o.pid == child && o.name.starts_with("worked"))
        };
        (own.len(), own.iter().filter(names_array).count())
    };
    children.into_iter().map(of).collect()
}

/// A pass over the array takes 20 us or more, and the system call that follows 1 us or less: of the samples in user space at most one
/// in ten is outside of the loop, whose every instruction has its access named. More than half of 30 are outside with a probability
/// of 3.7e-9, more than half of 50, as many as 50 ms have, with one of 1.1e-13 (binomial): in one of 20 children with one of 7.4e-8 at most.
/// A child of fewer than 30 says nothing by itself.
#[test]
fn samples_of_children_that_end_soon_name_what_they_access() {
    let found = samples_of_children("50");
    let all: usize = found.iter().map(|(all, _)| all).sum();
    assert!(all >= 200, "{found:?}");
    for (all, named) in found.iter().filter(|(all, _)| *all >= 30) {
        assert!(named * 2 >= *all, "{found:?}");
    }
    let named: usize = found.iter().map(|(_, named)| named).sum();
    assert!(named * 2 >= all, "{found:?}");
}

/// They are over before the mappings of a new process are looked at. The bound is that above, of all children together.
#[test]
fn samples_of_children_that_end_at_once_name_what_they_access() {
    let found = samples_of_children("5");
    let (all, named) = found
        .iter()
        .fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    assert!(all >= 30, "{found:?}");
    assert!(named * 2 >= all, "{found:?}");
}

/// Below another root there is no way to the recorder: the child's objects are missing, and nothing else is said to be: where the
/// machine's reclaim took no accessed bits meanwhile, the pages are complete.
#[test]
fn a_child_below_another_root_lacks_its_objects() {
    let stage = Stage::new();
    let below = stage.path("below");
    std::fs::create_dir(&below).expect("a folder");
    let program = varve_trust::program("jailed");
    let command = [program.as_os_str(), below.as_os_str()];
    let ended = stage.run(stage.record(&[], &command)).require(7);
    stage.require_clean(ended.pid);
    let trace = Trace::open(&stage.path("trace.varve")).expect("a trace");
    let lost = |name: &str| trace.manifest.losses.get(name).copied().unwrap_or(0);
    let losses = &trace.manifest.losses;
    assert_eq!(lost("unheard_processes"), 1, "{losses:?}");
    assert_eq!(lost("preload_records"), 0, "{losses:?}");
    let statement = &trace.manifest.completeness.statement;
    let of_objects = "bjects or call stacks may be missing";
    let begins = match lost(Loss::ReclaimScannedPages.as_str()) {
        0 => "Objects or call stacks may be missing, while the pages are complete: heap objects of",
        _ => "Some accesses may be missing: ",
    };
    assert!(statement.starts_with(begins), "{statement}");
    assert!(statement.contains(of_objects), "{statement}");
    let closing = format!("INCOMPLETE: {statement}");
    assert!(ended.stderr.contains(&closing), "{}", ended.stderr);
}
