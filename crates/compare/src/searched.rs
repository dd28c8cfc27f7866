//! Which findings a trace can show at all.

use varve_analyse::{Analysis, FEW_INTERVALS, FindingId, MIN_FOR_TAIL, SharingSource, format};
use varve_model::Capability;

/// The findings that a trace cannot show, each with the reason.
pub(crate) fn cannot(a: &Analysis) -> Vec<(FindingId, String)> {
    let all = FindingId::ALL.iter();
    all.filter_map(|id| Some((*id, why_not(*id, a)?))).collect()
}

fn why_not(id: FindingId, a: &Analysis) -> Option<String> {
    let lacks = |capability, what: &str| {
        let has = a.trace.capabilities.contains(&capability);
        (!has).then(|| format!("{id} cannot be found: the trace has no {what}"))
    };
    let intervals = *a.trace.intervals.value().unwrap_or(&0);
    let is_few = |least: u64| {
        (intervals < least).then(|| {
            format!("{id} cannot be found: the recording has {intervals} intervals, and {least} are the least for it")
        })
    };
    let touches = || lacks(Capability::Touches, "touches");
    // A part of the time says nothing of what was touched outside of it.
    let window = || {
        let is_window = a.trace.offset_ns.is_some();
        is_window.then(|| format!("{id} cannot be found in a part of the time of a trace"))
    };
    let accesses = |without: &[SharingSource]| {
        let known = a.sharing.as_ref().filter(|s| !without.contains(&s.source));
        match known {
            Some(_) => None,
            None => Some(format!(
                "{id} cannot be found: no accesses with their threads are known (samples, traps or counts)"
            )),
        }
    };
    match id {
        FindingId::Incomplete | FindingId::ShortRecording => None,
        FindingId::Sticky | FindingId::HugePages => touches(),
        FindingId::NeverTouched => touches().or_else(window),
        FindingId::Churn => touches().or_else(|| lacks(Capability::Lives, "lives of objects")),
        FindingId::SingleFirstTouch | FindingId::ScannedByAll => {
            lacks(Capability::Faults, "page faults")
        }
        FindingId::TouchedOnce => touches().or_else(window).or_else(|| is_few(FEW_INTERVALS)),
        FindingId::ColdTail => touches().or_else(|| {
            let is_short = a.trace.duration_ns < MIN_FOR_TAIL;
            is_short
                .then(|| {
                    let least = format::duration(MIN_FOR_TAIL);
                    format!("{id} cannot be found: the recording is shorter than {least}")
                })
                .or_else(|| is_few(2 * FEW_INTERVALS))
        }),
        FindingId::FalseSharing | FindingId::TrueSharing | FindingId::PageFalseSharing => {
            accesses(&[])
        }
        FindingId::ParallelFirstTouch
        | FindingId::Interleave
        | FindingId::Replicate
        | FindingId::SplitHotCold => accesses(&[SharingSource::Faults, SharingSource::Traps]),
    }
}
