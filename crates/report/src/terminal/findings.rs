//! What stands out, and what is not known.

use varve_analyse::{Analysis, FindingId};

use super::page::{Page, Tone};

/// Why nothing can be said, where that is so.
pub(super) fn silence(a: &Analysis) -> Option<&'static str> {
    match (a.trace.intervals.value(), &a.samples) {
        (Some(0), None) => Some("The recording has no intervals: nothing can be said of it."),
        (None, None) => {
            Some("Touches are not known, and there are no samples: nothing can be said of them.")
        }
        _ => None,
    }
}

pub(super) fn write(page: &mut Page, a: &Analysis) {
    page.heading("Findings");
    match silence(a) {
        Some(why) => page.wrapped(why, Tone::Plain),
        None if a.findings.is_empty() => page.wrapped("Nothing stands out.", Tone::Plain),
        None => (),
    }
    for finding in &a.findings {
        let tone = match finding.id {
            FindingId::Incomplete => Tone::Bad,
            _ => Tone::Notice,
        };
        page.finding(
            finding.id.as_str(),
            tone,
            &finding.title,
            &finding.evidence,
            &finding.advice,
        );
    }
}
