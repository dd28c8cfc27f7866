//! What a session waits for, and what it watches out for.

use std::os::fd::AsFd;

use varve_bpf::Kernel;
use varve_model::{Pid, Time};
use varve_sys::{PidFd, Signals, Trigger, Waiter};
use varve_trace::tables::CounterRow;

use super::{RING, SIGNAL, Session, TARGET};
use crate::RecordError;
use crate::backend::Harvest;
use crate::reclaim::reclaim;

impl Session<'_> {
    /// Counts what the kernel may have hidden from us in this interval.
    pub(super) fn watch_losses(&mut self, now: Time, harvest: &Harvest) {
        if harvest.failures > 0 {
            self.intake
                .output
                .lost(now, "unreadable_tables", harvest.failures);
        }
        let reclaim = reclaim();
        if let (Some(before), Some(after)) = (self.reclaim_before, reclaim)
            && after > before
        {
            // Reclaim takes accessed bits and leaves no trace of them.
            self.intake
                .output
                .lost(now, "reclaim_scanned_pages", (after - before) as u64);
            self.intake.output.counters.push(CounterRow {
                time_ns: now,
                node: None,
                name: "pgscan".into(),
                value: after,
            });
        }
        self.reclaim_before = reclaim;
    }
}

/// What a recording waits for.
pub(super) fn waiter(
    ended: &PidFd,
    signals: &Signals,
    kernel: &Kernel,
) -> Result<Waiter, RecordError> {
    let watched = || -> std::io::Result<Waiter> {
        let waiter = Waiter::new()?;
        // Once: others of its processes may live on for long.
        waiter.add(ended.as_fd(), TARGET, Trigger::Edge)?;
        waiter.add(signals.as_fd(), SIGNAL, Trigger::Level)?;
        waiter.add(kernel.event_fd(), RING, Trigger::Edge)?;
        Ok(waiter)
    };
    watched().map_err(RecordError::system("wait for the target"))
}

/// What is recorded of a program that runs already, and how to end that.
pub(super) fn attached(pid: Pid, follow: bool) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let name = match name.trim_end() {
        "" => String::new(),
        name => format!(" ({})", varve_model::visible(name)),
    };
    let children = match follow {
        true => " with its children",
        false => ", without its children",
    };
    format!(
        "recording process {pid}{name}{children}; Ctrl-C or the end of the process ends the recording"
    )
}
