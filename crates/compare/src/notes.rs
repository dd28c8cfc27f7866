//! What a reader has to know of two sides before believing their figures.

use std::collections::BTreeSet;

use varve_analyse::format;
use varve_model::{Duration, LossPart};

use crate::diff::Row;
use crate::pair::Match;
use crate::place::Place;
use crate::run::Run;

/// Intervals whose lengths differ by more are not alike.
const MAX_STRETCH: f64 = 1.1;
/// Names that a sentence lists.
const NAMES: usize = 3;

/// What is unlike in the recordings themselves: a sentence each.
pub(crate) fn notes(a: &[Run], b: &[Run], objects: &[Row]) -> Vec<String> {
    let mut notes = Vec::new();
    incomplete(&mut notes, "A", a);
    incomplete(&mut notes, "B", b);
    intervals(&mut notes, a, b);
    unlike(&mut notes, a, b, "backend", |r| {
        Some(r.recording.backend.clone())
    });
    unlike(&mut notes, a, b, "machine", |r| r.recording.machine.clone());
    unlike(&mut notes, a, b, "command", |r| {
        Some(r.recording.command.join(" "))
    });
    unlike(&mut notes, a, b, "part of the trace", |r| {
        r.recording.selected.clone()
    });
    ended(&mut notes, a, b);
    builds(&mut notes, a, b);
    matches(&mut notes, objects);
    notes
}

fn incomplete(notes: &mut Vec<String>, side: &str, runs: &[Run]) {
    let lacking: Vec<&Run> = runs.iter().filter(|r| !r.recording.complete).collect();
    if let Some(first) = lacking.first() {
        let which = match (lacking.len(), runs.len()) {
            (_, 1) => format!("{side} is not complete"),
            (n, all) => format!("{n} of {all} traces of {side} are not complete"),
        };
        let has_lost = |part: LossPart| {
            lacking
                .iter()
                .any(|r| r.recording.incomplete.contains(&part))
        };
        let what = match (has_lost(LossPart::Pages), has_lost(LossPart::Objects)) {
            (true, _) => "figures of touches are lower bounds",
            (false, true) => {
                "the pages are, and figures of the touches of objects are lower bounds"
            }
            (false, false) => "pages and objects are, and no figure here depends on the rest",
        };
        notes.push(format!("{which}: {what} ({})", first.recording.statement));
    }
}

/// Working sets and page touches count by intervals.
fn intervals(notes: &mut Vec<String>, a: &[Run], b: &[Run]) {
    let all = a.iter().chain(b);
    let lengths: Vec<u64> = all
        .filter_map(|r| r.recording.median_interval_ns)
        .map(|d| d.0)
        .filter(|d| *d > 0)
        .collect();
    if let (Some(&least), Some(&most)) = (lengths.iter().min(), lengths.iter().max())
        && most as f64 > least as f64 * MAX_STRETCH
    {
        notes.push(format!(
            "intervals are not alike ({} to {}): working sets and page touches grow and shrink with them; record all with the same --interval",
            format::duration(Duration(least)),
            format::duration(Duration(most))
        ));
    }
}

/// What of the recordings is one thing on one side and another on the other.
fn unlike(
    notes: &mut Vec<String>,
    a: &[Run],
    b: &[Run],
    what: &str,
    of: impl Fn(&Run) -> Option<String>,
) {
    let all = |runs: &[Run]| runs.iter().map(&of).collect::<BTreeSet<_>>();
    let (of_a, of_b) = (all(a), all(b));
    if of_a == of_b {
        return;
    }
    let say = |of: &BTreeSet<Option<String>>| {
        let shown = of.iter().take(NAMES);
        let shown = shown.map(|v| v.clone().unwrap_or_else(|| "none".to_owned()));
        let mut text = shown.collect::<Vec<_>>().join(" and ");
        if of.len() > NAMES {
            text += &format!(" and {} more", of.len() - NAMES);
        }
        text
    };
    notes.push(format!(
        "the {what} is not the same: A has {}, B has {}",
        say(&of_a),
        say(&of_b)
    ));
}

fn ended(notes: &mut Vec<String>, a: &[Run], b: &[Run]) {
    let of = |runs: &[Run]| {
        let codes = runs.iter().map(|r| r.recording.exit_code);
        codes.collect::<BTreeSet<_>>()
    };
    if of(a) != of(b) {
        let say = |of: BTreeSet<Option<i32>>| {
            let of = of.iter().map(|code| match code {
                Some(code) => format!("exit code {code}"),
                None => "no exit code".to_owned(),
            });
            of.collect::<Vec<_>>().join(", ")
        };
        notes.push(format!(
            "the program did not end alike: A with {}, B with {}",
            say(of(a)),
            say(of(b))
        ));
    }
}

/// Which files are another build.
fn builds(notes: &mut Vec<String>, a: &[Run], b: &[Run]) {
    let of = |runs: &[Run]| {
        let all = runs.iter().flat_map(|r| &r.builds);
        let mut files: std::collections::BTreeMap<String, BTreeSet<String>> = Default::default();
        for (file, id) in all {
            files.entry(file.clone()).or_default().insert(id.clone());
        }
        files
    };
    let (of_a, of_b) = (of(a), of(b));
    for (side, files) in [("A", &of_a), ("B", &of_b)] {
        let several: Vec<&str> = files
            .iter()
            .filter(|(_, ids)| ids.len() > 1)
            .map(|(file, _)| file.as_str())
            .collect();
        if !several.is_empty() {
            notes.push(format!(
                "the traces of {side} are of several builds of {}: what differs between these counts as noise",
                list(&several)
            ));
        }
    }
    let others: Vec<&str> = of_a
        .iter()
        .filter(|(file, ids)| of_b.get(*file).is_some_and(|other| other != *ids))
        .map(|(file, _)| file.as_str())
        .collect();
    if !others.is_empty() {
        notes.push(format!(
            "other builds: {}; places are matched by function, file and the distance from the function's beginning",
            list(&others)
        ));
    }
}

fn list(names: &[&str]) -> String {
    let shown = names[..names.len().min(NAMES)].join(", ");
    match names.len() > NAMES {
        true => format!("{shown} and {} more", names.len() - NAMES),
        false => shown,
    }
}

/// How many objects were matched by something else than their names and lines.
fn matches(notes: &mut Vec<String>, objects: &[Row]) {
    for (by, what) in [
        (Match::Order, "by their order in the function"),
        (Match::Remaining, "as the last ones left in the function"),
        (Match::Name, "by name alone, in another function or file"),
    ] {
        let count = objects.iter().filter(|r| r.matched == Some(by)).count();
        if count > 0 {
            let sites = format::counted(count as u64, "site");
            notes.push(format!("{sites} matched {what}: each says so"));
        }
    }
}

/// How two places were found to be the same, where they do not have the same line.
pub(crate) fn how(by: Match, a: &Place, b: &Place) -> Option<String> {
    let line = |place: &Place| place.line.map_or("?".to_owned(), |l| l.to_string());
    let offset = |place: &Place| place.offset.map(|o| o.to_string());
    let within = match offset(a).zip(offset(b)) {
        Some((a, b)) => format!("{a} and {b} lines into the function"),
        None => format!("at {} and {}", line(a), line(b)),
    };
    match by {
        Match::Exact => None,
        Match::Moved => Some(match a.offset {
            Some(_) => format!(
                "line {} is line {} in B, as far into the function",
                line(a),
                line(b)
            ),
            None => format!("line {} is line {} in B", line(a), line(b)),
        }),
        Match::Order => Some(format!("by its order in the function: {within}")),
        Match::Remaining => Some(format!("the last one left in the function: {within}")),
        Match::Name => Some(format!(
            "by its name alone: in {} in A, in {} in B",
            whereabouts(a),
            whereabouts(b)
        )),
    }
}

fn whereabouts(place: &Place) -> String {
    match (&place.function, &place.file) {
        (Some(function), Some(file)) => format!("{function} ({file})"),
        (Some(name), None) | (None, Some(name)) => name.clone(),
        (None, None) => "a place that is not known".to_owned(),
    }
}
