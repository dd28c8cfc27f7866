//! What a trace does not say, above all an imported one.

use varve_model::{Capability, Duration, ObjectKind};
use varve_trace::{IntervalChoice, Trace};

use crate::analysis::{Analysis, Group, Writes};
use crate::assemble::Tables;
use crate::format::{counted, duration};
use crate::sections::recording::why_not_preloaded;
use crate::sections::sharing::SharingSource;
use crate::stream::Pass;

/// What it means that a trace lacks something, where that leaves figures open.
const fn lacking(capability: Capability) -> Option<&'static str> {
    Some(match capability {
        Capability::Touches => "Which pages were touched, and when: the record has samples only.",
        Capability::Resident => "How many pages were resident: the record does not say.",
        Capability::Faults => "Which thread touched a page first: the record has no page faults.",
        Capability::Overhead => "What recording cost: the record does not say.",
        Capability::Machine => "The machine: the record does not say.",
        Capability::Places => {
            "Where objects lie and how large they are: the record has their names only."
        }
        Capability::Lives => "When objects came to be and ceased: the record does not say.",
        Capability::Superset
        | Capability::Writes
        | Capability::HeapObjects
        | Capability::Samples
        | Capability::Counts
        | Capability::ExactCounts
        | Capability::Traps
        | Capability::Emulated
        | Capability::AllocatorOperations
        | Capability::Marks => return None,
    })
}

/// Why something is not known of which the source is silent.
pub(crate) const NOT_SAID: &str = "the record does not say";

/// Why nobody knows what a program names that was recorded and could not know of it.
pub const MARKS_UNHEARD: &str =
    "the program could not know that somebody records (docs/marks.md says how it can)";

/// What it leaves open that a trace, or the part of it that is shown, lacks something.
fn missing(trace: &Trace, capability: Capability) -> Option<String> {
    let of_threads = trace.selection().is_some_and(|s| s.tids.is_some());
    match capability {
        Capability::Touches if of_threads => {
            Some("Which pages the chosen threads touched: touches name no thread.".to_owned())
        }
        Capability::Resident if trace.selection().is_some() => Some(
            "How many of the chosen pages were resident: it is recorded of all processes together."
                .to_owned(),
        ),
        // Other tools know nothing of marks.
        Capability::Marks if trace.manifest.has(Capability::Superset) => {
            Some(format!("Which phases the program names: {MARKS_UNHEARD}."))
        }
        other => lacking(other).map(str::to_owned),
    }
}

/// Why a figure is not known that a trace without this capability lacks, in a few words.
pub(crate) fn why_lacks(trace: &Trace, capability: Capability) -> String {
    let sentence = match trace.manifest.has(capability) {
        true => None,
        false => missing(trace, capability),
    };
    let why = sentence.as_deref().and_then(|s| s.split_once(": "));
    why.map_or(NOT_SAID, |(_, why)| why.trim_end_matches('.'))
        .to_owned()
}

/// After a fork both processes have the same pages until one of them writes. The kernel's bits are the process's, not the page's.
const COPIES: &str = "Which private pages of a forked process are copies: one that it only reads is still its parent's memory, and the \
                      trace does not say so. They count as its own, so that the memory touched is at most what the figures say.";

/// What the figures of a trace leave open. `refused` counts runs that were not entered.
pub(crate) fn unknown(trace: &Trace, tables: &Tables, pass: &Pass, refused: u64) -> Vec<String> {
    let manifest = &trace.manifest;
    let mut unknown = Vec::new();
    match pass.writes {
        Writes::Unknown if pass.rows > 0 && manifest.has(Capability::Superset) => unknown.push(
            "Whether a touch was a write: this kernel has no soft-dirty bits (`--writes on` finds out by other means).".to_owned(),
        ),
        Writes::Partly => unknown.push(
            "Whether a touch was a write is known for some touches only: written pages are at least so many.".to_owned(),
        ),
        _ => (),
    }
    let lacks = Capability::ALL.iter().filter(|c| !manifest.has(**c));
    unknown.extend(lacks.filter_map(|capability| missing(trace, *capability)));
    // Counts say which thread was first.
    let is_known = manifest.has(Capability::ExactCounts) || !manifest.has(Capability::Faults);
    if pass.faults == 0 && pass.rows > 0 && !is_known {
        unknown.push("Which thread touched a page first: the trace has no page faults.".to_owned());
    } else if manifest.target.attached {
        unknown.push(
            "Which thread first touched the pages that were there before the recording began."
                .to_owned(),
        );
    }
    if let Some(length) = manifest.options.interval.length() {
        let most = Duration(length.0.saturating_add(length.0 / 10));
        match tables.longer_than(most) {
            0 => (),
            longer => unknown.push(format!(
                "When within {}, each over a tenth longer than the {}, a page was touched: an interval ends once the recorder runs and all \
                 threads of the target stand still.",
                counted(longer, "interval"),
                match manifest.options.interval {
                    IntervalChoice::Default(_) => {
                        format!("{} that are the backend's own", duration(length))
                    }
                    _ => format!("{} asked for", duration(length)),
                }
            )),
        }
    }
    if pass.rows > 0 && tables.has_forks() {
        unknown.push(COPIES.to_owned());
    }
    if tables.objects.is_empty() && pass.rows > 0 {
        unknown.push("Whose the pages are: the trace has no objects.".to_owned());
    } else if !manifest.has(Capability::HeapObjects)
        && manifest.has(Capability::Superset)
        && pass.rows > 0
    {
        unknown.push("Objects within the heap: the recording had no source for them.".to_owned());
    }
    let stray = pass.stray_rows.saturating_add(refused);
    if stray > 0 {
        unknown.push(format!(
            "{} of touches have no place in the order of the intervals; their pages count, but in no working set.",
            counted(stray, "row")
        ));
    }
    unknown.extend(manifest.notes.iter().cloned());
    let operations = manifest.operations.iter();
    unknown.extend(operations.flat_map(|of| of.notes.iter().cloned()));
    unknown
}

/// Why no heap object is among what is shown, where a selection leaves all out of a trace that has some; none elsewhere.
pub(crate) fn heap_left_out(trace: &Trace, analysis: &Analysis) -> Option<String> {
    let selection = trace.selection()?;
    // The kernel shows the heap as a whole, `[heap]`, without the objects in it.
    let is_heap = |g: &Group| g.kind == ObjectKind::Heap && !g.name.starts_with("[heap]");
    let has_touches = analysis
        .trace
        .touch_rows
        .value()
        .is_some_and(|rows| *rows > 0);
    if !trace.manifest.has(Capability::HeapObjects)
        || !has_touches
        || analysis.groups.iter().any(is_heap)
    {
        return None;
    }
    let sources = &analysis.object_sources;
    let why = match sources.iter().all(|source| source.from != "preload") {
        _ if selection.objects.is_some() => "the chosen objects are none".to_owned(),
        true if !sources.is_empty() => {
            let mut whys = sources.iter().filter_map(|s| s.why.as_deref());
            let why = whys
                .find_map(why_not_preloaded)
                .map(|why| format!(": {why}"));
            format!(
                "the preload library reported nothing of the chosen processes{}",
                why.unwrap_or_default()
            )
        }
        _ => "none of what is chosen lies in one that the recording reported".to_owned(),
    };
    Some(format!(
        "Objects within the heap: they are absent here, because {why}."
    ))
}

/// What the samples and counts that there are do not say.
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
            "Which objects one thread has for itself, and how much threads use them: trapped accesses show who was first at \
             a page in an interval.",
        ),
        (
            samples.is_some_and(|s| s.all.reads.is_none()),
            "Whether the sampled accesses read or wrote: no sample says so.",
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
