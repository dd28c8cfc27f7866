//! Which programs a load puts into the kernel: the verifier takes its time with each, in which the target does not begin.

use std::os::fd::AsRawFd;

use varve_bpf::{LoadOptions, TrackFlags, VanishHooks};

use crate::common::{PAGE, Puppet, kernel_with, map, write_all};

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
                pages: asked,
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
                "walk_process",
                "look_at_pages",
                "task_reaping",
                "fault_user",
                "sample_clock",
                "thread_switch",
                "operation_clock",
                "allocator_entered",
            ] {
                assert_eq!(all.contains(&name), asked, "{vanish:?}: {name}");
            }
            assert!(all.contains(&"process_exit") && !all.contains(&"page_aged"));
            assert_eq!(
                all.contains(&"call_enter"),
                !all.contains(&"lock_asked"),
                "{all:?}"
            );
        }
    }
}

/// Nobody looks at pages there, so that what others take of a tracked process's is no loss.
#[test]
fn without_pages_none_can_be_taken() {
    for vanish in [VanishHooks::Locks, VanishHooks::Calls] {
        let options = LoadOptions {
            vanish,
            pages: false,
            ..LoadOptions::default()
        };
        let Some(mut kernel) = kernel_with(&options) else {
            return;
        };
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(4 * PAGE).unwrap();
        let fd = file.as_file().as_raw_fd();
        let mut puppet = Puppet::new(move |stage| {
            let base = map(4, libc::MAP_SHARED, fd);
            write_all(base, 4);
            stage.step(base);
        });
        puppet.wait_step();
        let flags = TrackFlags::DEFAULT.without(TrackFlags::VANISH);
        kernel.track(puppet.pid, flags).unwrap();
        file.as_file().set_len(0).unwrap();
        std::fs::File::create(file.path()).unwrap();
        assert!(kernel.walk(puppet.pid, &mut |_| ()).is_err());
        puppet.finish();
        assert_eq!(kernel.dropped().unwrap().vanish_walks, 0, "{vanish:?}");
    }
}
