//! Who records a process: locks on `/proc/PID`, which other recorders see.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use varve_model::Pid;
use varve_sys::Cgroup;

use crate::leftovers::recorder_above;

/// Descriptors are few: beyond this many processes the parents' locks must do.
const MAX_CLAIMS: usize = 256;
/// Longer lines of parents are no lines.
const MAX_PARENTS: u32 = 1 << 16;

/// The locks of a recording.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    locks: HashMap<Pid, File>,
}

impl Claims {
    /// Claims these processes, and lets go of all others.
    pub(crate) fn refresh(&mut self, pids: &[Pid]) {
        self.locks.retain(|pid, _| pids.binary_search(pid).is_ok());
        let most = MAX_CLAIMS.min(crate::target::preflight::spare_files() / 4);
        for pid in pids {
            // Refused while somebody looks whether it is locked: the next boundary tries again.
            if self.locks.len() < most
                && !self.locks.contains_key(pid)
                && let Ok(lock) = varve_sys::lock(&folder(*pid))
            {
                self.locks.insert(*pid, lock);
            }
        }
    }
}

/// A recorder that records a process already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recorder {
    /// This process.
    Known(Pid),
    /// One that cannot be seen from here.
    Hidden,
}

/// Who records this process, or one of its parents, and so it.
pub(crate) fn recorder_of(pid: Pid) -> Option<Recorder> {
    // Without cgroups nobody is in a recorder's.
    let above = Cgroup::of(pid).ok().as_deref().and_then(recorder_above);
    if let Some(recorder) = above {
        return Some(Recorder::Known(recorder));
    }
    let mut at = pid;
    for _ in 0..MAX_PARENTS {
        let path = folder(at);
        if varve_sys::is_locked(&path) {
            return Some(varve_sys::locker(&path).map_or(Recorder::Hidden, Recorder::Known));
        }
        match varve_sys::status(at) {
            Ok(status) if status.parent.0 > 1 => at = status.parent,
            _ => break,
        }
    }
    None
}

fn folder(pid: Pid) -> PathBuf {
    Path::new("/proc").join(pid.to_string())
}
