//! What stands out, and what is not known.

use std::path::Path;

use varve_analyse::{Analysis, FindingId};

use super::page::{Page, Tone};
use crate::text::quoted_path;

pub(super) fn findings(page: &mut Page, a: &Analysis) {
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

/// More files than this of which something is not known are counted, not listed.
const MAX_FILES: usize = 3;

pub(super) fn unknown(page: &mut Page, a: &Analysis, folder: &Path) {
    if a.unknown.is_empty() {
        return;
    }
    page.heading("Not known");
    // What is said of a file begins with its path.
    let (files, rest): (Vec<&String>, Vec<&String>) =
        a.unknown.iter().partition(|s| s.starts_with('/'));
    match files.len() > MAX_FILES {
        true => page.item(&format!(
            "Names of objects or functions in {} files: `varve report {} --json --section unknown` lists them.",
            files.len(),
            quoted_path(folder)
        )),
        false => files.iter().for_each(|sentence| page.item(sentence)),
    }
    for sentence in rest {
        page.item(sentence);
    }
}
