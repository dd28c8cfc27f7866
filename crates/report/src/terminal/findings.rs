//! What stands out, and what is not known.

use varve_analyse::{Analysis, FindingId};

use super::page::{Page, Tone};

pub(super) fn write(page: &mut Page, a: &Analysis) {
    page.heading("Findings");
    if a.trace.intervals == 0 && a.samples.is_none() {
        page.wrapped(
            "The recording has no intervals: nothing can be said of it.",
            Tone::Plain,
        );
    }
    if a.findings.is_empty() && (a.trace.intervals > 0 || a.samples.is_some()) {
        page.wrapped("Nothing stands out.", Tone::Plain);
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
