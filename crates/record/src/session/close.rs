//! The end of an interval: what was read becomes rows.

use varve_model::{Bytes, Interval, Time};
use varve_sys::cpu_time;
use varve_trace::Overhead;
use varve_trace::tables::IntervalRow;

use super::Session;
use crate::RecordError;
use crate::backend::{Backend, Boundary, Harvest};
use crate::runs::append_runs;
use crate::scan::Scan;
use crate::traps::{self, Servants};

impl Session<'_> {
    /// Closes the interval that began at `start`; also says how many pages were cleared.
    pub(super) fn close(
        &mut self,
        scan: &mut Scan<'_>,
        start: Time,
        last: bool,
    ) -> Result<Option<(Boundary, u64)>, RecordError> {
        let mut harvest = Harvest::default();
        let Some(boundary) = scan.close_interval(&mut harvest)? else {
            return Ok(None);
        };
        if let Some(servants) = &scan.servants {
            for (pid, aside) in servants.asides() {
                let known = self.intake.world.aside.entry(pid).or_default();
                known.extend(aside);
            }
        }
        self.intake.boundary = Some(boundary.end);
        self.intake.released = Some(boundary.next_start);
        self.drain(scan)?;
        self.intake.boundary = None;
        self.intake.world.refresh_maps(boundary.next_start);
        self.intake.settle_inheritance();
        let mut cleared = 0;
        for (pid, regions) in &mut harvest.regions {
            let owner = self.intake.world.owner_of_memory(*pid);
            if let Some(writes) = &self.intake.writes {
                regions.iter_mut().for_each(|r| writes.judge(owner, r));
            }
            if self.intake.waits_for_exec_of == Some(*pid) {
                continue;
            }
            if let Some(servants) = &scan.servants {
                servants.hide(owner, regions);
            }
            let from = self.intake.output.touches.len();
            cleared += regions
                .iter()
                .map(|r| u64::from(r.touched_count()))
                .sum::<u64>();
            append_runs(
                &mut self.intake.output.touches,
                self.interval,
                owner,
                regions,
                self.writes,
                None,
                self.intake.trapped.as_ref().map(|t| &t.0),
            );
            if let Some(servants) = &mut scan.servants {
                traps::count(&mut servants.note, &self.intake.output.touches[from..]);
            }
        }
        self.intake.write_vanished(self.interval, self.writes);
        if let Some((now, next)) = &mut self.intake.trapped {
            *now = std::mem::take(next);
            now.armed = scan.servants.as_ref().map(Servants::armed);
        }
        if let Some(servants) = scan.servants.as_mut().filter(|_| last) {
            servants.settle();
            if servants.killed > 0 {
                self.manifest.notes.push(format!(
                    "Somebody ended {} fault handlers that had moved pages: those were brought back, and from then on no access of those processes trapped.",
                    servants.killed
                ));
            }
        }
        self.manifest.traps = scan.servants.as_ref().map(|s| s.note);
        if let Some(writes) = &mut self.intake.writes {
            writes.boundary(&harvest.protected, &harvest.regions);
        }
        self.held = self.held + boundary.held;
        if let Some(servants) = &mut scan.servants {
            servants.held(boundary.held);
        }
        self.watch_losses(boundary.next_start, &harvest);
        let cpu = cpu_time();
        self.intake.output.intervals.push(IntervalRow {
            interval: self.interval,
            start_ns: start,
            end_ns: boundary.end,
            held_ns: boundary.held,
            resident_pages: harvest.resident_pages,
            processes: harvest.spaces.len() as u32,
            threads: self.intake.world.threads() as u32,
            recorder_cpu_ns: cpu - self.cpu_before,
        });
        self.manifest.overhead = Overhead {
            held_ns: self.held,
            recorder_cpu_ns: self.manifest.overhead.recorder_cpu_ns + (cpu - self.cpu_before),
            recorder_peak_bytes: Bytes(0),
        };
        self.manifest.clock.end_ns = boundary.end;
        self.cpu_before = cpu;
        self.interval = Interval(self.interval.0 + 1);
        self.manifest.features.hold = scan.hold.word();
        if last && scan.unheld_boundaries > 0 {
            self.manifest.notes.push(format!(
                "Some process could not be held still at {}: a debugger had it, or somebody moved it while it was held.",
                boundaries(scan.unheld_boundaries)
            ));
        }
        if last && scan.prolonged > 0 {
            self.manifest.notes.push(format!(
                "The target did not stand still in time at {}; those intervals are longer.",
                boundaries(scan.prolonged)
            ));
        }
        Ok(Some((boundary, cleared)))
    }
}

fn boundaries(number: u64) -> String {
    match number {
        1 => "1 boundary".to_owned(),
        more => format!("{more} boundaries"),
    }
}
