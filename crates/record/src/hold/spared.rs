//! Processes that are not held, as that would end them.

use std::collections::HashSet;

use varve_model::Pid;

/// Those of which a filter of system calls does not let a wait go on that a hold interrupts
/// ([`varve_bpf::TrackedProcesses::dies_of_holds`]): they run on.
#[derive(Debug, Default)]
pub(super) struct Spared {
    /// How many there are in the hold that is under way.
    now: u64,
    known: HashSet<Pid>,
    /// The names of the first.
    names: Vec<String>,
}

impl Spared {
    const NAMED: usize = 4;

    /// Notes who runs on in the hold that is under way.
    pub(super) fn note(&mut self, pids: &[Pid]) {
        self.now = pids.len() as u64;
        for pid in pids {
            if self.known.insert(*pid) && self.names.len() < Spared::NAMED {
                self.names.push(varve_sys::named(*pid));
            }
        }
    }

    /// The hold is over; how many ran on in it.
    pub(super) fn take(&mut self) -> u64 {
        std::mem::take(&mut self.now)
    }

    /// Whether there was any.
    pub(super) fn is_any(&self) -> bool {
        !self.known.is_empty()
    }

    /// What people should know.
    pub(super) fn describe(&self) -> Option<String> {
        let (which, more) = match self.known.len() {
            0 => return None,
            1 => ("A process", ""),
            count if count > self.names.len() => ("Processes", ", ..."),
            _ => ("Processes", ""),
        };
        let names = self.names.join(", ");
        Some(format!(
            "{which} ran on while the target was held ({names}{more}): a filter of system calls (seccomp) without restart_syscall ends whoever waits with a time limit as a hold is over. Accesses between reading and clearing may be missing there."
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_named_once_and_counted_in_each_hold() {
        let mut spared = Spared::default();
        assert!(!spared.is_any() && spared.describe().is_none());
        let own = Pid(std::process::id());
        for _ in 0..2 {
            spared.note(&[own]);
            assert_eq!(spared.take(), 1);
        }
        assert_eq!(spared.take(), 0);
        let said = spared.describe().unwrap();
        assert!(said.starts_with("A process ran on"), "{said}");
        assert_eq!(said.matches(&varve_sys::named(own)).count(), 1);
        // Numbers that no process has.
        let many: Vec<Pid> = (0..10).map(|at| Pid(u32::MAX - at)).collect();
        spared.note(&many);
        assert_eq!(spared.take(), 10);
        let said = spared.describe().unwrap();
        assert!(said.contains(", ...)"), "{said}");
    }
}
