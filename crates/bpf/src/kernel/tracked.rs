//! Which processes the programs follow

use std::collections::HashSet;
use std::os::fd::{AsFd, OwnedFd};

use varve_model::{Pid, Time};

use crate::abi::{Exempt, FilterArgs, HeldGroup, Tracked};
use crate::raw;

/// The tracked processes: those that the recorder named and what they made since, up to the moment at
/// which the kernel forgets each
#[derive(Debug)]
pub struct TrackedProcesses {
    pub(super) map: OwnedFd,
    pub(super) group: OwnedFd,
    pub(super) filters: Option<OwnedFd>,
}

impl TrackedProcesses {
    /// All of them, in no order; what comes or goes meanwhile may be in it or not
    pub fn list(&self) -> Vec<Pid> {
        keys(&self.map).into_iter().collect()
    }

    /// When what a tracked process runs began: the time of its last exec, or else of its fork; none for a process
    /// that is not tracked, or has ended
    pub fn image(&self, pid: Pid) -> Option<Time> {
        let entry: Tracked = raw::map_lookup(self.map.as_fd(), pid.0).ok()?;
        (entry.dead == 0).then_some(Time(entry.image))
    }

    /// Whether a hold may end a process, tracked or not, or spoil its wait: a wait with a time limit that a hold interrupts goes on by
    /// `restart_syscall`, for which a filter of a thread's system calls (seccomp) may have another answer than to let it through. False where the
    /// kernel does not show that, and of a process that is gone
    pub fn dies_of_holds(&self, pid: Pid) -> bool {
        let mut args = FilterArgs {
            pid: pid.0,
            ..Default::default()
        };
        let ran = self.filters.as_ref();
        let ran = ran.is_some_and(|program| raw::run(program.as_fd(), &mut args).is_ok());
        ran && args.forbids_restart != 0
    }

    /// Counts from now on how often the freezer of the cgroup with this inode number lets go
    pub fn watch_group(&self, id: u64) {
        // Where this fails the count stays as it is
        let _ = raw::map_update(self.group.as_fd(), 0, &HeldGroup { id, thaws: 0 });
    }

    /// How often it did; a kernel without the tracepoint counts nothing
    pub fn thaws(&self) -> u64 {
        raw::map_lookup::<HeldGroup>(self.group.as_fd(), 0).map_or(0, |group| group.thaws)
    }
}

/// The processes that are not tracked because each may be the fault handler of one that is, by way of which those are
/// made ([`TrackFlags::HANDLERS`])
#[derive(Debug)]
pub struct ExemptProcesses {
    pub(super) map: OwnedFd,
}

impl ExemptProcesses {
    /// All of them with the times at which they were made, in no order
    pub fn list(&self) -> Vec<(Pid, Time)> {
        let found = keys(&self.map).into_iter();
        found
            .filter_map(|pid| Some((pid, self.since(pid)?)))
            .collect()
    }

    /// When such a process was made; none for others
    pub fn since(&self, pid: Pid) -> Option<Time> {
        let entry: Exempt = raw::map_lookup(self.map.as_fd(), pid.0).ok()?;
        Some(Time(entry.made))
    }
}

/// The keys of a map of processes
fn keys(map: &OwnedFd) -> HashSet<Pid> {
    let mut found = HashSet::new();
    let mut key = None;
    // Where an entry goes meanwhile the kernel begins anew; the bound is for safety
    for _ in 0..1 << 20 {
        key = raw::map_next_key(map.as_fd(), key);
        match key {
            Some(pid) => found.insert(Pid(pid)),
            None => break,
        };
    }
    found
}
