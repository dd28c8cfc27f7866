//! What a trace cannot say, or says too much of.

use std::collections::BTreeSet;

use varve_model::{Capability, Duration, Loss, LossPart, TouchSource};

use super::{FEW_INTERVALS, Facts, NAMES, finding};
use crate::analysis::*;
use crate::format;

/// Any loss counter above zero, or a recording that did not end.
pub(super) fn incomplete(analysis: &Analysis) -> Option<Finding> {
    let trace = &analysis.trace;
    // What other tools recorded is never called complete, and its statement says why.
    if trace.complete || (!trace.has(Capability::Superset) && trace.losses.is_empty()) {
        return None;
    }
    let losses: Vec<String> = trace
        .losses
        .iter()
        .map(|(kind, count)| format!("{kind}: {}", format::count(*count)))
        .collect();
    let evidence = match losses.is_empty() {
        true => trace.statement.clone(),
        false => format!("Losses: {}.", losses.join(", ")),
    };
    // A trace that promises no pages lacks what its losses say.
    let parts: BTreeSet<LossPart> = match trace.has(Capability::Superset) {
        true => trace.incomplete.clone(),
        false => trace.losses.keys().map(|kind| LossPart::of(kind)).collect(),
    };
    let missing: Vec<&str> = parts.iter().map(|part| part.what()).collect();
    let title = format!(
        "The trace is incomplete: {} may be missing{}",
        missing.join(" and "),
        match trace.has_all_pages() {
            true => ", while the pages are complete",
            false => "",
        }
    );
    let cautions: Vec<&str> = parts.iter().map(|part| caution(*part)).collect();
    let remedies = remedies(trace);
    let advice = match remedies.is_empty() {
        true => cautions.join(" "),
        false => format!(
            "{} To have all of it: {}.",
            cautions.join(" "),
            remedies.join("; ")
        ),
    };
    let found = finding(FindingId::Incomplete, title, evidence, &advice, Vec::new());
    let action = remedies.first().map(|first| (*first).to_owned());
    Some(Finding {
        action: action.unwrap_or(found.action),
        ..found
    })
}

/// How to read what a trace has of a part in which something may be missing.
const fn caution(part: LossPart) -> &'static str {
    match part {
        LossPart::Pages => "Take what was not seen as unknown, not as unused.",
        LossPart::Objects => {
            "Pages of no known object may belong to one that is missing, and pages of a known one to another."
        }
        LossPart::Operations => "Take counts of allocator operations as lower bounds.",
    }
}

/// What to do about the losses of a trace, each once, in the order in which [`Loss`] names them.
fn remedies(trace: &TraceFacts) -> Vec<&'static str> {
    let mut remedies = Vec::new();
    for loss in Loss::ALL {
        let remedy = loss.remedy();
        if trace.losses.contains_key(loss.as_str()) && !remedies.contains(&remedy) {
            remedies.push(remedy);
        }
    }
    remedies
}

/// So few pages that count whether used or not matter to nobody.
const FEW_STANDING: u64 = 16;

/// The share of what was permitted from which on intervals are as long as they are for its sake.
const USED: f64 = 0.7;
/// More than this is not suggested as an overhead, percent.
const MAX_SUGGESTED: u64 = 50;
/// What `--interval` can be at least.
const MIN_INTERVAL: Duration = Duration(10_000_000);

/// Fewer than 20 intervals. What helps is a longer run, or shorter ones: unless their length was asked for, or the program was over before
/// even the shortest had been enough.
pub(super) fn short_recording(analysis: &Analysis) -> Option<Finding> {
    let intervals = *analysis.trace.intervals.value()?;
    let trace = &analysis.trace;
    // One that was to be one interval is as long as it was to be.
    let is_whole = trace.interval_accesses == Some(0);
    if intervals >= FEW_INTERVALS || is_whole || !trace.has(Capability::Superset) {
        return None;
    }
    let evidence = format!(
        "{} in {}: that is too few to separate hot from cold, and early from late.",
        format::counted(intervals, "interval"),
        format::duration(trace.duration_ns)
    );
    // Intervals of the backend's own length are longer than that by the time in which the program waited for trapped accesses. Shorter ones
    // would be longer by as much, so that this time makes no more of them.
    let divided = match trace.interval_ns {
        Some(length) => Duration(length.0.saturating_mul(intervals)).min(trace.duration_ns),
        None => trace.duration_ns,
    };
    // Not even the shortest intervals would be enough.
    let is_too_short = |length: Duration| length.0 < MIN_INTERVAL.0 * FEW_INTERVALS;
    let is_brief = is_too_short(trace.duration_ns);
    let option = match trace.interval_accesses {
        Some(_) => Some("a smaller --interval-accesses".to_owned()),
        None if trace.interval_asked || is_too_short(divided) => None,
        None => match needed_overhead(analysis, intervals) {
            Needed::Interval => Some(shorter_interval(divided)),
            Needed::Overhead(percent) => Some(format!("--overhead {percent}%")),
            Needed::TooMuch => None,
        },
    };
    let title = match is_brief {
        true => "The recording is short",
        false => "The intervals are few",
    };
    let enough = trace.duration_ns.0 as f64 * FEW_INTERVALS as f64 / intervals.max(1) as f64;
    let enough = format::duration(rounded_up(enough));
    let has_ended = trace.exit_code.is_some() && !trace.attached;
    let action = match (option, has_ended) {
        // A program that was recorded to its end cannot be recorded longer.
        (None, true) if is_brief => "give the program more to do".to_owned(),
        (None, true) => format!("give the program work for {enough}"),
        (None, false) if is_brief => "record longer".to_owned(),
        (None, false) => format!("record for {enough}"),
        (Some(option), true) => format!("record with {option}"),
        (Some(option), false) => format!("record for {enough}, or with {option}"),
    };
    let advice = format!("{}.", format::capitalised(&action));
    let found = finding(
        FindingId::ShortRecording,
        title.to_owned(),
        evidence,
        &advice,
        Vec::new(),
    );
    Some(Finding { action, ..found })
}

/// What makes enough intervals of the same run.
enum Needed {
    /// Shorter ones: the cost does not prevent them.
    Interval,
    /// This overhead, percent.
    Overhead(u64),
    /// More than anybody would permit.
    TooMuch,
}

/// What it takes to have [`FEW_INTERVALS`]. Where the cost makes intervals long, as many times more of them cost as many times more.
fn needed_overhead(analysis: &Analysis, intervals: u64) -> Needed {
    let cost = analysis.overhead.value().and_then(|o| o.slowdown);
    let chosen = cost.filter(|c| !c.short);
    let Some((measured, asked)) = chosen.and_then(|c| Some((c.measured, c.asked?))) else {
        return Needed::Interval;
    };
    // What was permitted and not used does not make intervals shorter.
    if measured < USED * asked {
        return Needed::Interval;
    }
    let times = FEW_INTERVALS as f64 / intervals.max(1) as f64;
    let percent = measured.max(asked) * 100.0 * times;
    match (percent / 5.0).ceil() as u64 * 5 {
        percent if percent > MAX_SUGGESTED => Needed::TooMuch,
        percent => Needed::Overhead(percent),
    }
}

/// The option with which a run of this length has [`FEW_INTERVALS`], in a round figure.
fn shorter_interval(duration: Duration) -> String {
    let most = duration.0 / 1_000_000 / FEW_INTERVALS;
    let steps = (1..).flat_map(|n| [1, 2, 5].map(|digit| digit * 10_u64.pow(n)));
    let millis = steps.take_while(|step| *step <= most).last();
    format!(
        "--interval {}ms",
        millis.unwrap_or(MIN_INTERVAL.0 / 1_000_000)
    )
}

/// A duration with one digit, or two from 10 on, at least as long.
fn rounded_up(ns: f64) -> Duration {
    let step = 10_f64.powf(ns.max(1.0).log10().floor());
    let step = if ns / step < 5.0 { step / 2.0 } else { step };
    Duration(((ns / step).ceil() * step) as u64)
}

/// Pages that count in every interval whether used or not make at least 10 % of all page touches.
pub(super) fn standing(f: &Facts<'_>) -> Option<Finding> {
    let sources = f.analysis.sources.items();
    let of = |source| sources.iter().find(|s| s.source == source);
    let (sticky, pinned) = (of(TouchSource::Sticky), of(TouchSource::Pinned));
    let both = || sticky.into_iter().chain(pinned);
    let touches: u64 = both().map(|s| s.page_touches).sum();
    let all: u64 = sources.iter().map(|s| s.page_touches).sum();
    let peak: u64 = both().map(|s| s.peak_pages.0).sum();
    // The zero page alone tells nothing.
    if peak < FEW_STANDING || touches.saturating_mul(10) < all {
        return None;
    }
    let mut parts = Vec::new();
    if let Some(s) = sticky {
        parts.push(format!("up to {} whose accessed bit the kernel cannot clear (hugetlb, zero page, device memory)", format::counted(s.peak_pages.0, "page")));
    }
    if let Some(s) = pinned {
        parts.push(format!(
            "up to {} pinned for direct access",
            format::counted(s.peak_pages.0, "page")
        ));
    }
    let title = format!(
        "{} of the page touches may be stale: the kernel cannot clear their accessed bit",
        format::percent(touches, all)
    );
    let evidence = format!("In each interval: {}.", parts.join("; "));
    let advice = "Read the working set as an upper bound. Page faults still show who touched these pages first.";
    let objects = f.analysis.objects.iter().filter(|o| {
        o.usage
            .touched
            .get()
            .is_some_and(|t| t.standing_page_touches > 0)
    });
    Some(finding(
        FindingId::Sticky,
        title,
        evidence,
        advice,
        objects.map(|o| o.object).take(100).collect(),
    ))
}

/// Huge pages make at least 10 % of all page touches. Whether they are bloated cannot be known: they have one accessed
/// bit each.
pub(super) fn huge_pages(analysis: &Analysis) -> Option<Finding> {
    let (huge, all) = (
        analysis.footprint.huge_page_touches.or_zero(),
        analysis.footprint.page_touches.or_zero(),
    );
    if huge == 0 || huge.saturating_mul(10) < all {
        return None;
    }
    let objects = analysis.objects.iter();
    let huge_of = |o: &ObjectUse| o.usage.touched.get().map(|t| t.huge_page_touches);
    let mut largest: Vec<&ObjectUse> = objects.filter(|o| huge_of(o) > Some(0)).collect();
    largest.sort_by_key(|o| (std::cmp::Reverse(huge_of(o)), o.object));
    let mut names: Vec<&str> = Vec::new();
    for o in &largest {
        if names.len() < NAMES && !names.contains(&o.name.as_str()) {
            names.push(&o.name);
        }
    }
    let lie = match names.is_empty() {
        true => String::new(),
        false => format!(" They lie in {}.", names.join(", ")),
    };
    let title = format!(
        "{} of the page touches are of huge pages, which count whole",
        format::percent(huge.min(all), all)
    );
    let evidence = format!(
        "A touch of one byte of a huge page counts all of it: how much of each is used is not known.{lie}"
    );
    let advice = "Record once with --thp=never to see 4 KiB pages.";
    let objects = largest.iter().map(|o| o.object).take(100).collect();
    Some(finding(
        FindingId::HugePages,
        title,
        evidence,
        advice,
        objects,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_suggested_is_round_and_enough() {
        let up = |ns: f64| rounded_up(ns).0;
        assert_eq!(up(10.2e9), 15_000_000_000);
        assert_eq!(up(61e9), 70_000_000_000);
        assert_eq!(up(1.2e9), 1_500_000_000);
        assert_eq!(up(0.0), 0);
        let of = |ms: u64| shorter_interval(Duration(ms * 1_000_000));
        assert_eq!(of(10_000), "--interval 500ms");
        assert_eq!(of(2_550), "--interval 100ms");
        assert_eq!(of(200), "--interval 10ms");
        assert_eq!(of(10), "--interval 10ms");
    }
}
