//! To which files, and for which processes, probes are attached.

use std::collections::{HashMap, HashSet};

use varve_bpf::{Kernel, ProbeLinks};
use varve_model::Pid;

use super::allocator::{Allocator, Part};
use crate::RecordError;

/// Probes that are attached.
#[derive(Default)]
pub(super) struct Attached {
    /// For all processes.
    files: Vec<(Part, ProbeLinks)>,
    /// For one process.
    processes: HashMap<Pid, Vec<(Part, ProbeLinks)>>,
    /// Processes that have nothing but files of the first kind.
    whole: HashSet<Pid>,
}

impl Attached {
    /// Attaches what is not attached yet, to the whole file where no other process has it mapped. Whether a process got its probes by itself.
    pub(super) fn add(
        &mut self,
        kernel: &Kernel,
        found: &Allocator,
        pid: Pid,
    ) -> Result<bool, RecordError> {
        let mut is_own = false;
        let mut is_whole = true;
        for part in &found.parts {
            if part.points.is_empty() || self.files.iter().any(|(known, _)| known.is(part)) {
                continue;
            }
            let of = self.processes.entry(pid).or_default();
            if of.iter().any(|(known, _)| known.is(part)) {
                is_whole = false;
                continue;
            }
            if others_map(part, pid) {
                is_whole = false;
                is_own = true;
                of.push((part.clone(), attach(kernel, part, Some(pid))?));
            } else {
                self.files.push((part.clone(), attach(kernel, part, None)?));
            }
        }
        match is_whole {
            true => self.whole.insert(pid),
            false => self.whole.remove(&pid),
        };
        Ok(is_own)
    }

    /// Attaches to a process at once what its parent, or what it ran before, has by itself: it will most likely use the same files.
    pub(super) fn take_over(
        &mut self,
        kernel: &Kernel,
        from: Pid,
        pid: Pid,
    ) -> Result<(), RecordError> {
        let all = self.processes.get(&from).into_iter().flatten();
        let parts: Vec<Part> = all.map(|(part, _)| part.clone()).collect();
        let of = self.processes.entry(pid).or_default();
        for part in parts {
            if !of.iter().any(|(known, _)| known.is(&part)) {
                let links = attach(kernel, &part, Some(pid))?;
                of.push((part, links));
            }
        }
        Ok(())
    }

    /// Whether children of the process have its probes from their beginning on.
    pub(super) fn is_whole_file(&self, pid: Pid) -> bool {
        self.whole.contains(&pid)
    }

    /// The process has ended.
    pub(super) fn ended(&mut self, pid: Pid) {
        self.processes.remove(&pid);
        self.whole.remove(&pid);
    }

    /// Takes all probes away.
    pub(super) fn clear(&mut self) {
        self.processes.clear();
        self.files.clear();
    }
}

fn attach(kernel: &Kernel, part: &Part, whom: Option<Pid>) -> Result<ProbeLinks, RecordError> {
    Ok(kernel.attach_probes(&part.link, &part.points, whom)?)
}

/// Whether a process other than this one and those that it made has a file mapped: a probe of the whole file would make it slower, too.
fn others_map(part: &Part, whose: Pid) -> bool {
    let Ok(all) = std::fs::read_dir("/proc") else {
        return true;
    };
    let pids = all.flatten().filter_map(|entry| {
        let name = entry.file_name();
        name.to_str()?.parse().ok().map(Pid)
    });
    let mut others = pids.filter(|pid| *pid != whose);
    others.any(|pid| match varve_sys::maps(pid) {
        Ok(maps) => maps
            .iter()
            .any(|map| part.is_of(map) && !descends_from(pid, whose)),
        Err(_) => false,
    })
}

fn descends_from(pid: Pid, whose: Pid) -> bool {
    let mut at = pid;
    // Parents cannot go on for ever, but processes come and go meanwhile.
    for _ in 0..64 {
        match varve_sys::status(at) {
            Ok(status) if status.parent == whose => return true,
            Ok(status) if status.parent.0 > 1 => at = status.parent,
            _ => return false,
        }
    }
    false
}
