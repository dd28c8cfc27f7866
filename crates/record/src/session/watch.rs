//! What a session waits for, and what it watches out for.

use std::os::fd::AsFd;

use varve_bpf::Kernel;
use varve_model::Time;
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
