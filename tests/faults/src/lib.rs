//! Faults: what a recording leaves behind when everything that can go wrong does.
//!
//! A [`Stage`] is one test's own folder and the processes that it starts, all of which carry a mark in
//! their environment: whatever is left when the stage goes is ended, thawed and removed, and nothing
//! else is touched. [`Stage::leftovers`] tells what a recorder left.

mod leftovers;
mod programs;
mod stage;
mod stat;
mod trace;

pub use leftovers::{
    cgroup_of, cgroup_root, is_frozen, marked_processes, recorder_cgroups, ring_folders,
    socket_folder, watchdogs,
};
pub use programs::compiled;
pub use stage::{
    Ended, MARK, Running, Stage, TRAPPED, actor, build, can_trap, monotonic_ns, patiently,
    varve_binary,
};
pub use stat::{Stat, stat};
pub use trace::{Contents, check_trace, intervals_by_part};
