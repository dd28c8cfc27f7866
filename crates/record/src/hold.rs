//! What holds the target still: the cgroup freezer, or ptrace where there is none.

use std::cell::RefCell;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration as Wait;

use varve_bpf::TrackedProcesses;
use varve_model::Pid;
use varve_sys::{Cgroup, Frozen, Held, PidFd, Standby};

use crate::stale::PREFIX;
use crate::{RecordError, TargetChoice};

/// How the target is to be held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldChoice {
    /// A cgroup of the recorder's own, and its freezer.
    Cgroup,
    /// Every thread is stopped by ptrace.
    Ptrace,
}

impl HoldChoice {
    /// Its name on the command line and in manifests.
    pub const fn word(self) -> &'static str {
        match self {
            HoldChoice::Cgroup => "cgroup",
            HoldChoice::Ptrace => "ptrace",
        }
    }

    /// The freezer where it can be used for this target, else ptrace, and why the freezer cannot.
    pub fn detect(target: &TargetChoice) -> (HoldChoice, Option<RecordError>) {
        if !rustix::process::geteuid().is_root() {
            // Neither would do; the recording will say so.
            return (HoldChoice::Cgroup, None);
        }
        let beside = match target {
            TargetChoice::Command(_) => Pid(std::process::id()),
            TargetChoice::Attach(pid) if PidFd::open(*pid).is_ok() => *pid,
            TargetChoice::Attach(_) => return (HoldChoice::Cgroup, None),
        };
        // As the recorder will name its own, so that a killed one's is cleaned up.
        let name = format!("{PREFIX}{}", std::process::id());
        let tried = Cgroup::of(beside).and_then(|parent| Cgroup::create(&parent, &name));
        match tried {
            Ok(_) => (HoldChoice::Cgroup, None),
            Err(why) => (HoldChoice::Ptrace, Some(why.into())),
        }
    }
}

/// Holds the processes of a recording.
pub(crate) enum Hold {
    Cgroup(Cgroup),
    Ptrace {
        tracked: Arc<TrackedProcesses>,
        /// What will hold next.
        standby: RefCell<Option<Standby>>,
        held: RefCell<Option<Held>>,
        /// Tells other recorders that the target is recorded.
        _lock: Option<File>,
    },
}

impl Hold {
    /// By ptrace: the processes that the kernel's part tracks.
    pub(crate) fn by_ptrace(tracked: TrackedProcesses, root: Pid) -> Hold {
        Hold::Ptrace {
            tracked: Arc::new(tracked),
            standby: RefCell::new(Standby::start().ok()),
            held: RefCell::new(None),
            _lock: varve_sys::lock(Path::new(&format!("/proc/{root}"))).ok(),
        }
    }

    /// The processes of the recording that have not ended.
    pub(crate) fn processes(&self) -> Result<Vec<Pid>, RecordError> {
        match self {
            Hold::Cgroup(cgroup) => Ok(cgroup.processes()?),
            Hold::Ptrace { tracked, .. } => Ok(living(tracked)),
        }
    }

    /// Takes a process in that was there before the recording.
    pub(crate) fn add(&self, pid: Pid) -> Result<(), RecordError> {
        match self {
            Hold::Cgroup(cgroup) => Ok(cgroup.add(pid)?),
            // What is tracked is held.
            Hold::Ptrace { .. } => Ok(()),
        }
    }

    /// Stops everything; call [`Hold::thaw`] whatever comes of it. `meanwhile` is called again and again
    /// while it comes about.
    pub(crate) fn freeze(
        &self,
        limit: Wait,
        meanwhile: impl FnMut(),
    ) -> Result<Frozen, RecordError> {
        match self {
            Hold::Cgroup(cgroup) => Ok(cgroup.freeze(limit, meanwhile)?),
            Hold::Ptrace {
                tracked,
                standby,
                held,
                ..
            } => {
                let tracked = Arc::clone(tracked);
                let ready = match standby.replace(None) {
                    Some(standby) => standby,
                    None => Standby::start()?,
                };
                let new = ready.hold(move || living(&tracked), limit, meanwhile)?;
                let frozen = if new.is_some() {
                    Frozen::Still
                } else {
                    Frozen::NotYet
                };
                held.replace(new);
                Ok(frozen)
            }
        }
    }

    /// Lets everything run.
    pub(crate) fn thaw(&self) -> Result<(), RecordError> {
        match self {
            Hold::Cgroup(cgroup) => cgroup.thaw()?,
            Hold::Ptrace { standby, held, .. } => {
                drop(held.replace(None));
                standby.replace(Standby::start().ok());
            }
        }
        Ok(())
    }

    /// Whether everything stands still at this moment.
    pub(crate) fn is_frozen(&self) -> Result<bool, RecordError> {
        match self {
            Hold::Cgroup(cgroup) => Ok(cgroup.is_frozen()?),
            // Nobody else can let it go.
            Hold::Ptrace { held, .. } => Ok(held.borrow().is_some()),
        }
    }

    /// The cgroup's folder.
    pub(crate) fn path(&self) -> Option<&Path> {
        match self {
            Hold::Cgroup(cgroup) => Some(cgroup.path()),
            Hold::Ptrace { .. } => None,
        }
    }
}

/// Whether another recorder holds this process by ptrace.
pub(crate) fn is_held_by_another(pid: Pid) -> bool {
    varve_sys::is_locked(Path::new(&format!("/proc/{pid}")))
}

fn living(tracked: &TrackedProcesses) -> Vec<Pid> {
    let mut pids = tracked.list();
    // A process whose first thread has ended lives on in the others.
    let lives = |s: varve_sys::ProcStatus| !matches!(s.state, 'Z' | 'X') || s.threads > 1;
    pids.retain(|pid| varve_sys::status(*pid).is_ok_and(lives));
    pids.sort_unstable();
    pids
}
