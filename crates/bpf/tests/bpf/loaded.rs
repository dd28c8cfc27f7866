//! Which programs a load puts into the kernel: the verifier takes its time with each, in which the target does not begin.

use varve_bpf::{LoadOptions, VanishHooks};

use crate::common::kernel_with;

/// What is loaded, and what of that hangs on nothing and is not run either
fn loaded(options: &LoadOptions) -> Option<(Vec<&'static str>, Vec<&'static str>)> {
    let all = kernel_with(options)?.programs().unwrap();
    let idle = all.iter().filter(|p| !p.runs).map(|p| p.name).collect();
    Some((all.iter().map(|p| p.name).collect(), idle))
}

#[test]
fn programs_that_nobody_runs_are_not_loaded() {
    for vanish in [VanishHooks::Locks, VanishHooks::Calls] {
        for asked in [false, true] {
            let options = LoadOptions {
                vanish,
                faults: asked,
                samples: asked,
                waits: asked,
                operations: asked,
                probes: asked,
                ..LoadOptions::default()
            };
            let Some((all, idle)) = loaded(&options) else {
                return;
            };
            assert!(idle.is_empty(), "{vanish:?}, {asked}: {idle:?}");
            for name in [
                "fault_user",
                "sample_clock",
                "thread_switch",
                "operation_clock",
                "allocator_entered",
            ] {
                assert_eq!(all.contains(&name), asked, "{vanish:?}: {name}");
            }
            assert!(all.contains(&"walk_process") && !all.contains(&"page_aged"));
            assert_eq!(
                all.contains(&"call_enter"),
                !all.contains(&"lock_asked"),
                "{all:?}"
            );
        }
    }
}
