//! What is written as the recording goes, and its end.

use varve_model::{Duration, Loss, Time};
use varve_sys::{cpu_time, monotonic_now};

use super::{End, Recorder};
use crate::RecordError;
use crate::probes::Ending;
use crate::state::tables;

/// How long the end of a recording may take to hold the target once more.
const END_WITHIN: Duration = Duration(600_000_000);

impl Recorder<'_> {
    /// Leaves an emulated target that was interrupted twice, as a recorder that is killed does.
    pub(super) fn leave(&self, signal: i32) -> ! {
        (self.options.tell)(&format!(
            "interrupted twice: process {} goes on, and what was counted of it until then is in {}, as of a recorder that was killed",
            self.target.pid,
            self.options.output.path.display()
        ));
        std::process::exit(128 + signal)
    }

    /// The last interval: whatever still runs is read once more and let go.
    /// `start` is where the last interval began, unless nothing is recorded at the moment.
    pub(super) fn end(
        &mut self,
        end: End,
        began: Time,
        start: Option<Time>,
    ) -> Result<(), RecordError> {
        if let (End::TargetEnded, Some(child)) = (end, &mut self.target.child) {
            let _ = child.try_wait();
        }
        if let (true, Some(start)) = (self.is_timed(), start) {
            self.close_last(start)?;
        } else if self.is_timed() {
            self.drain()?;
            self.discard(monotonic_now());
        } else {
            self.drain()?;
            self.manifest.clock.end_ns = monotonic_now();
            self.manifest.overhead.recorder_cpu_ns = cpu_time() - self.cpu_began;
        }
        let mut ending = Ending {
            state: &mut self.events.state,
            writer: &mut self.writer,
            began,
            ended: self.manifest.clock.end_ns,
            root: self.target.pid,
        };
        let mut probes = self.events.probes.iter_mut();
        probes.try_for_each(|probe| probe.end(&mut ending))
    }

    fn close_last(&mut self, start: Time) -> Result<(), RecordError> {
        let began = monotonic_now();
        while monotonic_now() - began < END_WITHIN {
            if self.close(start, true, true)?.is_some() {
                return Ok(());
            }
        }
        // It cannot be held, so its last interval cannot be read.
        let tables = &mut self.events.state.tables;
        tables.lost(monotonic_now(), Loss::LastInterval, 1);
        Ok(())
    }

    /// Counts programs that the kernel did not run; asking takes many system calls.
    pub(super) fn count_skipped(&mut self) -> Result<(), RecordError> {
        if self.is_timed() {
            let skipped = self.kernel.skipped()?;
            let tables = &mut self.events.state.tables;
            tables.lost_in_all(monotonic_now(), Loss::SkippedPrograms, skipped);
        }
        Ok(())
    }

    pub(super) fn flush(&mut self) -> Result<(), RecordError> {
        self.manifest.overhead.recorder_peak_bytes = varve_sys::own_peak_bytes();
        let (state, probes) = (&mut self.events.state, &mut self.events.probes);
        let now = monotonic_now();
        let lost = [
            (Loss::Stacks, state.stacks.lost),
            (Loss::InheritedObjects, state.objects.not_inherited),
        ];
        for (kind, total) in lost {
            state.tables.lost_in_all(now, kind, total);
        }
        for probe in probes.iter_mut() {
            probe.describe(&mut self.manifest);
        }
        let (writer, manifest) = (&mut self.writer, &mut self.manifest);
        self.writing.during(|| {
            tables::flush(state, writer, |writer| {
                probes.iter_mut().try_for_each(|p| p.write(writer))
            })?;
            manifest.losses = state.tables.totals();
            manifest.derive_completeness();
            Ok(writer.folder().write_manifest(manifest)?)
        })
    }
}
