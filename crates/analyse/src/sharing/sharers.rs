//! Which of the tables of a trace say who shares what.

use std::collections::HashMap;

use varve_model::{SampleSource, Time};
use varve_trace::tables::{CountRow, FaultRow, SampleRow};
use varve_trace::{Absent, Trace, TraceError};

use super::build::{Builder, Setting};
use super::{SharingSource, SharingUse, WeightUnit};
use crate::analysis::ThreadShare;
use crate::assemble::Tables;
use crate::samples::SampleUse;

/// Who shares what, by whatever the trace has.
pub(crate) struct Sharers<'a> {
    pub(crate) counts: Option<Builder<'a>>,
    pub(crate) samples: Option<Builder<'a>>,
    /// Where there is nothing better.
    pub(crate) faults: Option<Builder<'a>>,
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
            has_places: !trace.manifest.absent.contains(&Absent::Places),
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
        let faults = match counts + samples {
            0 => trace.count::<FaultRow>()?,
            _ => 0,
        };
        Ok(Sharers {
            counts: builder(SharingSource::Counts, WeightUnit::Accesses, counts),
            samples: builder(SharingSource::Samples, unit, samples),
            faults: builder(SharingSource::Faults, WeightUnit::Pages, faults),
        })
    }

    /// The best that said anything.
    pub(crate) fn finish(
        self,
        firsts: &HashMap<u32, Vec<ThreadShare>>,
        samples: Option<&SampleUse>,
    ) -> Option<SharingUse> {
        let finish = |builder: Option<Builder<'_>>, weight: &str| builder?.finish(firsts, weight);
        finish(self.counts, "Every access counts once.")
            .or_else(|| finish(self.samples, samples.map_or("", |s| s.weight.as_str())))
            .or_else(|| {
                let sentence =
                    "A page fault is the first touch of a page. Who used it later is not known.";
                finish(self.faults, sentence)
            })
    }
}
