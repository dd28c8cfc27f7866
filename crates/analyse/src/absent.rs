//! What a trace does not tell, above all an imported one.

use varve_trace::Absent;

use crate::analysis::Analysis;
use crate::sharing::SharingSource;

/// What it means that a trace lacks something.
pub(crate) const fn lacking(absent: Absent) -> &'static str {
    match absent {
        Absent::Touches => "Which pages were touched, and when: the record has samples only.",
        Absent::Resident => "How many pages were resident: the record does not tell.",
        Absent::Faults => "Which thread touched a page first: the record has no page faults.",
        Absent::Overhead => "What recording cost: the record does not tell.",
        Absent::Machine => "The machine: the record does not tell.",
        Absent::Places => {
            "Where objects lie and how large they are: the record has their names only."
        }
        Absent::Lives => "When objects came to be and ceased: the record does not tell.",
    }
}

/// What the samples and counts that there are do not tell.
pub(crate) fn unsaid(analysis: &Analysis) -> Vec<String> {
    let (samples, sharing) = (analysis.samples.as_ref(), analysis.sharing.as_ref());
    let counted = analysis.counts.is_some();
    let has_threads = sharing.is_some_and(|s| s.source != SharingSource::Faults);
    let rules = [
        (
            (samples.is_some() || counted) && !has_threads,
            "Which threads use and share which objects: neither samples nor counts name both.",
        ),
        (
            sharing.is_some_and(|s| s.source == SharingSource::Traps),
            "Which objects one thread has for itself, and how much threads use them: trapped accesses tell who was first at \
             a page in an interval.",
        ),
        (
            samples.is_some_and(|s| s.all.reads.is_none()),
            "Whether the sampled accesses read or wrote: no sample tells.",
        ),
        (
            samples.is_some_and(|s| s.with_address == 0),
            "Where in memory the samples were: none has an address.",
        ),
        (
            sharing.is_some_and(|s| s.source == SharingSource::Counts && s.axis.is_none()),
            match analysis.trace.interval_accesses {
                Some(_) => {
                    "When threads used objects: accesses were counted over the whole run (--interval-accesses divides it)."
                }
                None => "When threads used objects: accesses were counted over the whole run.",
            },
        ),
    ];
    let said = rules.into_iter().filter(|(lacks, _)| *lacks);
    said.map(|(_, sentence)| sentence.to_owned()).collect()
}
