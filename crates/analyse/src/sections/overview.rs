//! The first screen of a report: what a program used, what is hot, and what to do.

use std::collections::HashMap;

use serde::Serialize;
use varve_model::{Bytes, ObjectId, ObjectKind, Pages};

use crate::Known;
use crate::analysis::{Analysis, FindingId, Group, Touched};
use crate::format;
use crate::sections::samples::EventSamples;
use crate::sections::unknown_files;

/// Objects and lines of code that are listed.
const OBJECTS: usize = 5;
const LINES: usize = 3;
/// Samples of known accesses from which on they say what is hot.
const ENOUGH_SAMPLES: u64 = 100;

/// The first screen.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Overview {
    /// Memory touched, each page once.
    pub touched: Known<Bytes>,
    /// Memory resident at the end of an interval, at most, summed over the processes.
    pub peak_resident: Known<Bytes>,
    /// Memory of one process resident at any time, at most, as the kernel counts it.
    pub peak_process: Known<Bytes>,
    /// Memory touched in an interval, on average.
    pub mean_working_set: Known<Bytes>,
    /// The same, at most.
    pub peak_working_set: Known<Bytes>,
    /// Memory touched that lies in no known object.
    pub unowned: Known<Bytes>,
    /// What shares of `hot` are of.
    pub hot_by: HotBy,
    /// The samples that `hot` rests on; null where it rests on something else.
    pub hot_samples: Option<u64>,
    /// The hottest objects, those of one name together.
    pub hot: Vec<HotObject>,
    /// The share of the time at accesses whose address is gone, 0 to 1, where it is worth a word: which objects these accesses
    /// concern is not known. Null where it is small, or samples have no weight in time.
    pub gone: Option<f64>,
    /// The hottest lines of code; empty where no sample says.
    pub hot_lines: Vec<HotLine>,
    /// What shares of `hot_lines` are of: time, or samples.
    pub lines_by: HotBy,
    /// The samples that `hot_lines` rests on.
    pub line_samples: u64,
    /// The event that these are samples of, where the source names one: of several, the one with the most. Null else.
    pub line_event: Option<String>,
    /// Each finding in a line, without those that are notes.
    pub findings: Vec<Headline>,
    /// Findings that say how far the others reach and stand at the end: few intervals, where anything else can be said.
    pub notes: Vec<Headline>,
    /// What is not known, in a few words each.
    pub unknown: Vec<String>,
}

/// What says how hot an object is: the best that the trace has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HotBy {
    /// Counts of every access.
    Accesses,
    /// Samples whose weight is time.
    Time,
    /// Samples.
    Samples,
    /// Pages touched, summed over the intervals.
    PageTouches,
}

impl HotBy {
    /// In words.
    pub const fn as_str(self) -> &'static str {
        match self {
            HotBy::Accesses => "accesses",
            HotBy::Time => "time at accesses",
            HotBy::Samples => "samples of accesses",
            HotBy::PageTouches => "pages touched, summed over intervals",
        }
    }
}

/// A hot object, or several of one name.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HotObject {
    /// The name.
    pub name: String,
    /// What it is.
    pub kind: ObjectKind,
    /// How many have that name.
    pub objects: u64,
    /// The most that lived at once; where they were allocated on several ways, summed over these.
    pub bytes: Known<Bytes>,
    /// What was touched of them, summed likewise.
    pub touched: Known<Bytes>,
    /// Their share, 0 to 1.
    pub share: f64,
}

/// A hot line of code.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HotLine {
    /// The file and line, or what is known instead.
    pub place: String,
    /// Its share, 0 to 1.
    pub share: f64,
}

/// A finding in a line.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Headline {
    /// Which rule found it.
    pub id: FindingId,
    /// What to do.
    pub action: String,
    /// What was found.
    pub title: String,
    /// The object that it is about most.
    pub object: Option<String>,
}

impl Overview {
    /// What an analysis says in short.
    pub fn of(a: &Analysis) -> Overview {
        let f = &a.footprint;
        let bytes = |pages: &Known<Pages>| pages.map(|p| p.bytes());
        let (hot_by, hot) = hot(a);
        let hot_lines = hot_lines(a);
        let says_more = says_more(a, &hot, &hot_lines);
        let is_note = |h: &Headline| says_more && h.id == FindingId::ShortRecording;
        let (notes, findings) = headlines(a).into_iter().partition(is_note);
        Overview {
            touched: bytes(&f.touched_pages),
            peak_resident: bytes(&f.peak_resident_pages),
            peak_process: f.peak_process_bytes.clone(),
            mean_working_set: bytes(&f.mean_working_set_pages),
            peak_working_set: bytes(&f.peak_working_set_pages),
            unowned: a.unowned.map(|rest| rest.touched_pages.bytes()),
            hot_by,
            hot_samples: match hot_by {
                HotBy::Time | HotBy::Samples => a.samples.as_ref().map(|s| s.with_object),
                HotBy::Accesses | HotBy::PageTouches => None,
            },
            hot,
            gone: gone(a),
            hot_lines,
            lines_by: match &a.samples {
                Some(samples) if samples.all.time_ns.is_some() => HotBy::Time,
                _ => HotBy::Samples,
            },
            line_samples: match (line_event(a), &a.samples) {
                (Some(event), _) => event.samples,
                (None, Some(samples)) => samples.all.samples,
                (None, None) => 0,
            },
            line_event: line_event(a).map(|event| event.event.clone()),
            findings,
            notes,
            unknown: unknown_files::topics(&a.unknown_files)
                .into_iter()
                .chain(topics(&a.unknown))
                .collect(),
        }
    }
}

/// What was found of objects: their numbers and weights, and the weight of all.
type Weights = (HotBy, Vec<(ObjectId, u64)>, u64);

fn weights(a: &Analysis) -> Option<Weights> {
    if let (Some(counts), Some(_)) = (&a.counts, &a.exact) {
        let of = counts.objects.iter();
        let of = of.map(|o| (o.object, o.accesses.sum())).collect();
        return Some((HotBy::Accesses, of, counts.all.sum()));
    }
    let samples = a.samples.as_ref()?;
    if samples.with_object < ENOUGH_SAMPLES {
        return None;
    }
    let of = samples.objects.iter();
    Some(match samples.all.at_accesses() {
        Some(all) => {
            let of = of.map(|o| (o.object, o.sampled.access_ns.unwrap_or_default().0));
            (HotBy::Time, of.collect(), all.0)
        }
        None => {
            let of = of.map(|o| (o.object, o.sampled.samples));
            (HotBy::Samples, of.collect(), samples.accesses())
        }
    })
}

/// The share of the time at accesses whose address is gone, where it could change which object is the hottest.
fn gone(a: &Analysis) -> Option<f64> {
    a.samples.as_ref()?.all.gone()
}

/// Whether there is more to say than that the run was short.
fn says_more(a: &Analysis, hot: &[HotObject], lines: &[HotLine]) -> bool {
    !hot.is_empty() || !lines.is_empty() || a.findings.len() > 1
}

/// Whether a finding is a note at most: that the run was short is no news where there is more to say.
pub fn is_note(a: &Analysis, id: FindingId) -> bool {
    id == FindingId::ShortRecording && says_more(a, &hot(a).1, &hot_lines(a))
}

fn hot(a: &Analysis) -> (HotBy, Vec<HotObject>) {
    let Some((by, weights, all)) = weights(a) else {
        let groups = a.groups.iter();
        let touches = groups.filter_map(|g| Some(((g.name.as_str(), g.kind), g.touch_share?)));
        let objects = hottest(a, touches);
        return (HotBy::PageTouches, objects);
    };
    let of: HashMap<ObjectId, Name<'_>> = a
        .objects
        .iter()
        .map(|o| (o.object, (o.name.as_str(), o.kind)))
        .collect();
    let named = weights.into_iter();
    let all = all.max(1) as f64;
    let named = named.filter_map(|(object, weight)| Some((*of.get(&object)?, weight as f64 / all)));
    (by, hottest(a, named))
}

/// Objects of one name and kind are one to a person, also where they were allocated on several ways.
type Name<'a> = (&'a str, ObjectKind);

/// The hottest names, by their shares.
fn hottest<'a>(a: &'a Analysis, shares: impl Iterator<Item = (Name<'a>, f64)>) -> Vec<HotObject> {
    let mut sums: HashMap<Name<'_>, f64> = HashMap::new();
    for (name, share) in shares {
        *sums.entry(name).or_default() += share;
    }
    let mut sums: Vec<_> = sums.into_iter().filter(|(_, share)| *share > 0.0).collect();
    sums.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    sums.truncate(OBJECTS);
    let hot = sums.into_iter();
    hot.map(|(name, share)| hot_object(a, name, share))
        .collect()
}

fn hot_object(a: &Analysis, name: Name<'_>, share: f64) -> HotObject {
    let groups = || {
        a.groups
            .iter()
            .filter(|g| (g.name.as_str(), g.kind) == name)
    };
    let known = |bytes: Option<u64>, all: bool| match bytes {
        Some(bytes) => Known::of(Bytes(bytes), all),
        None => Known::Absent("the trace does not say".to_owned()),
    };
    // Where lives are not known, they may all have lived at once.
    let size = |g: &Group| Some(g.bytes?.min(g.peak_bytes.unwrap_or(g.bytes?)).0);
    let bytes = groups().map(size).sum();
    let touched = |g: &Group| Some(g.usage.touched.get()?.touched_pages.bytes().0);
    let touched: Option<u64> = groups().map(touched).sum();
    let all = a.footprint.touched_pages.value().map(|p| p.bytes().0);
    let touched = touched.zip(all).map(|(touched, all)| touched.min(all));
    let is_bound = |g: &Group| g.usage.touched.get().is_some_and(Touched::is_bound);
    let is_whole = a.trace.has_all_of_objects() && !groups().any(is_bound);
    HotObject {
        name: name.0.to_owned(),
        kind: name.1,
        objects: groups().map(|g| g.objects).sum(),
        bytes: known(bytes, true),
        touched: known(touched, is_whole),
        share,
    }
}

/// The event whose lines are shown: samples of several have no sum.
fn line_event(a: &Analysis) -> Option<&EventSamples> {
    let samples = a.samples.as_ref().filter(|s| s.all.time_ns.is_none())?;
    samples.events.first()
}

fn hot_lines(a: &Analysis) -> Vec<HotLine> {
    if let Some(event) = line_event(a) {
        let places = event.places.iter().take(LINES);
        return places
            .map(|p| HotLine {
                place: p.place.clone(),
                share: p.share,
            })
            .collect();
    }
    let Some(samples) = &a.samples else {
        return Vec::new();
    };
    if let Some(all) = samples.all.time_ns {
        let lines = samples.lines.iter().take(LINES);
        let share = |time: u64| time as f64 / all.0.max(1) as f64;
        return lines
            .map(|l| HotLine {
                place: l.place(),
                share: share(l.time_ns.unwrap_or_default().0),
            })
            .collect();
    }
    let places = samples.places.iter().take(LINES);
    places
        .map(|p| HotLine {
            place: p.place.clone(),
            share: p.sampled.samples as f64 / samples.all.samples.max(1) as f64,
        })
        .collect()
}

fn headlines(a: &Analysis) -> Vec<Headline> {
    let names: HashMap<ObjectId, &str> = a
        .objects
        .iter()
        .map(|o| (o.object, o.name.as_str()))
        .collect();
    let findings = a.findings.iter().map(|f| Headline {
        id: f.id,
        action: f.action.clone(),
        title: f.title.clone(),
        object: f
            .objects
            .first()
            .and_then(|o| names.get(o))
            .map(|n| (*n).to_owned()),
    });
    findings.collect()
}

/// Words with which sentences begin that say what is not known; others are remarks.
const QUESTIONS: [&str; 9] = [
    "Whether ", "Which ", "Where ", "When ", "Whose ", "What ", "How ", "Objects ", "The ",
];

/// The sentences in a few words each; remarks are counted.
fn topics(sentences: &[String]) -> Vec<String> {
    let (mut remarks, mut topics) = (0, Vec::new());
    for sentence in sentences {
        let question = QUESTIONS.iter().any(|q| sentence.starts_with(q));
        match sentence.split_once(": ") {
            Some((topic, _)) if question => {
                let mut letters = topic.chars();
                let first = letters.next().map(|c| c.to_ascii_lowercase());
                topics.extend(first.map(|c| format!("{c}{}", letters.as_str())));
            }
            _ => remarks += 1,
        }
    }
    if remarks > 0 {
        topics.push(format::counted(remarks, "remark"));
    }
    topics
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_a_few_words() {
        let sentences = [
            "Whether a touch was a write: this kernel has no soft-dirty bits.",
            "5 intervals were made longer, so that each thread had its turn.",
        ];
        assert_eq!(
            topics(&sentences.map(str::to_owned)),
            ["whether a touch was a write", "1 remark"]
        );
    }
}
