//! Which of the tables of a trace say who shares what.

use std::collections::HashMap;

use varve_model::{Capability, SampleSource, Time};
use varve_trace::tables::{CountRow, FaultRow, SampleRow};
use varve_trace::{Manifest, Trace, TraceError};

use super::build::{Builder, Setting};
use super::{SharingSource, SharingUse, WeightUnit};
use crate::analysis::ThreadShare;
use crate::assemble::Tables;
use crate::fold::Faulted;
use crate::sections::samples::SampleUse;

/// Who shares what, by whatever the trace has.
pub(crate) struct Sharers<'a> {
    pub(crate) counts: Option<Builder<'a>>,
    pub(crate) samples: Option<Builder<'a>>,
    /// Of a trace whose first accesses were trapped, or samples that are such accesses.
    traps: Option<Builder<'a>>,
    /// What these are, a sentence.
    of_traps: String,
    /// Where there is nothing better.
    faults: Option<Builder<'a>>,
}

impl<'a> Sharers<'a> {
    pub(crate) fn new(
        trace: &Trace,
        tables: &'a Tables,
        start: Time,
        end: Time,
    ) -> Result<Sharers<'a>, TraceError> {
        let setting = Setting {
            tables,
            has_places: trace.manifest.has(Capability::Places),
            start,
            end,
        };
        let (counts, samples) = (trace.count::<CountRow>()?, trace.count::<SampleRow>()?);
        let by_clock = trace
            .manifest
            .samples
            .is_some_and(|note| note.source == SampleSource::CpuClock);
        let unit = match by_clock {
            true => WeightUnit::Nanoseconds,
            false => WeightUnit::Samples,
        };
        let builder = |source, unit, events: u64| {
            (events > 0).then(|| Builder::new(setting, source, unit, events))
        };
        // Of samples of memory it turns out only later whether they know any access.
        let has_traps = trace.manifest.has(Capability::Traps);
        let in_faults = has_traps && trace.manifest.has(Capability::Faults);
        let (faults, traps) = match (in_faults, counts, samples) {
            (true, 0, _) => (0, trace.count::<FaultRow>()?),
            (_, 0, 0) => (trace.count::<FaultRow>()?, 0),
            _ => (0, 0),
        };
        // Of a trace without page faults, samples are what was trapped.
        let samples = match has_traps && !in_faults {
            true => builder(SharingSource::Traps, WeightUnit::FirstAccesses, samples),
            false => builder(SharingSource::Samples, unit, samples),
        };
        Ok(Sharers {
            counts: builder(SharingSource::Counts, WeightUnit::Accesses, counts),
            samples,
            traps: builder(SharingSource::Traps, WeightUnit::FirstAccesses, traps),
            of_traps: of_traps(&trace.manifest),
            faults: builder(SharingSource::Faults, WeightUnit::Pages, faults),
        })
    }

    /// A page fault: of the object that holds its address, and of the object whose page it touched first, if it did.
    pub(crate) fn fault(&mut self, row: &FaultRow, faulted: Faulted) {
        if let Some(traps) = &mut self.traps {
            traps.trap(row, faulted.within);
        }
        if let (Some(faults), Some(first)) = (&mut self.faults, faulted.first) {
            faults.fault(row, first);
        }
    }

    /// The best that said anything.
    pub(crate) fn finish(
        self,
        firsts: &HashMap<u32, Vec<ThreadShare>>,
        samples: Option<&SampleUse>,
    ) -> Option<SharingUse> {
        let finish = |builder: Option<Builder<'_>>, weight: &str| builder?.finish(firsts, weight);
        let of_samples = match samples {
            Some(_) if self.samples.as_ref().is_some_and(Builder::is_of_traps) => &self.of_traps,
            Some(samples) => &samples.weight,
            None => "",
        };
        finish(self.counts, "Every access counts once.")
            .or_else(|| finish(self.samples, of_samples))
            .or_else(|| finish(self.traps, &self.of_traps))
            .or_else(|| {
                let sentence =
                    "A page fault is the first touch of a page. Who used it later is not known.";
                finish(self.faults, sentence)
            })
    }
}

/// What a trapped access is and what it does not say.
fn of_traps(manifest: &Manifest) -> String {
    let mut sentence = "Each is the first access to a page in an interval, by any thread; who used the page later in it is not \
                        seen: different threads in different intervals prove sharing, nothing proves that a thread is alone \
                        or only reads, and the numbers are neither times nor counts of accesses."
        .to_owned();
    if manifest.has(Capability::Faults) {
        sentence += " Of memory that cannot be moved (files, shared memory) only first touches are among them.";
    }
    if let Some(traps) = manifest.traps.filter(|t| t.budget.is_some()) {
        sentence += &format!(
            " Besides first touches, {:.1} % of the pages were trapped, chosen at random.",
            100.0 * traps.sampling_rate
        );
    }
    sentence
}
