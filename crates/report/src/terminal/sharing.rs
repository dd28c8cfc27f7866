//! Who uses what: objects by their threads, and what threads go through.

use std::collections::BTreeMap;

use varve_analyse::{
    Analysis, ObjectSharing, SharingSource, SharingThread, SharingUse, WeightUnit, format,
};
use varve_model::{Pages, Tid};
use varve_trace::ClockUnit;

use super::page::{Page, Tone};
use super::table::{Align, Table};
use crate::text::grouped;

/// Objects that are shown.
const OBJECTS: usize = 8;
/// Threads whose flow is shown, and phases of each.
const THREADS: usize = 4;
const PHASES: usize = 6;
/// Columns of the picture of an object's parts.
const PARTS: usize = 16;
/// Events of a part from which on it is called one thread's.
const SURE_EVENTS: u64 = 8;
/// A letter for each of the first threads; the others have none of their own.
const LETTERS: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";

/// What is said where there are next to no samples.
const TOO_FEW: &str =
    "These are too few to say which threads use what: record longer, or with more --samples.";

/// Nothing where only first touches are known: these are reported elsewhere.
pub(super) fn write(page: &mut Page, a: &Analysis) {
    let Some(sharing) = a.sharing.as_ref() else {
        return;
    };
    if sharing.source == SharingSource::Faults || sharing.objects.is_empty() {
        return;
    }
    page.heading(&format!("Who uses what (by {})", source(sharing)));
    if !sharing.enough {
        page.line(TOO_FEW);
        return;
    }
    page.wrapped(&sharing.weight, Tone::Faint);
    let firsts = sharing.source == SharingSource::Traps;
    let mut table = Table::new(&[
        ("object", Align::Name),
        ("size", Align::Right),
        (if firsts { "firsts" } else { "use" }, Align::Right),
        ("writes", Align::Right),
        ("sharing", Align::Left),
        ("first by", Align::Right),
        ("never by", Align::Left),
        ("parts", Align::Left),
    ]);
    for o in sharing.objects.iter().take(page.rows(OBJECTS)) {
        table.row([
            grouped(&o.name, o.objects),
            format::bytes(o.bytes),
            format::percent(o.weight, sharing.total),
            o.writes
                .map_or("-".to_owned(), |w| format::percent(w, o.weight)),
            o.class.map_or("-".to_owned(), |c| c.as_str().to_owned()),
            o.first_tid.map_or("-".to_owned(), |t| t.to_string()),
            o.never_touched_by.as_deref().map_or("-".to_owned(), few),
            parts(o),
        ]);
    }
    page.table(&table);
    page.more(sharing.objects.len(), OBJECTS, sharing.omitted_objects);
    legend(page, sharing, firsts);
    flows(page, a, sharing);
}

/// What the letters of the parts mean: each that stands there, and no other.
fn legend(page: &mut Page, sharing: &SharingUse, firsts: bool) {
    let objects = sharing.objects.iter().take(page.rows(OBJECTS));
    let shown: String = objects.map(parts).collect();
    if shown.is_empty() {
        return;
    }
    let has = |c: char| shown.contains(c);
    let lettered = sharing.threads.iter().zip(LETTERS.chars());
    let lettered = lettered.filter(|(_, letter)| has(*letter) || has(letter.to_ascii_lowercase()));
    let mut signs: Vec<String> = lettered
        .map(|(t, letter)| format!("{letter} {}", named(t)))
        .collect();
    if has('?') {
        signs.push("? one of the other threads".to_owned());
    }
    if has('.') {
        signs.push(". nobody".to_owned());
    }
    page.wrapped(
        &format!(
            "parts, from the first address to the last, by the thread that {} each most{} (a small letter: less than nine \
             tenths of it, or hardly seen): {}",
            if firsts { "was first in" } else { "uses" },
            if firsts { " often" } else { "" },
            signs.join(", ")
        ),
        Tone::Faint,
    );
}

fn source(sharing: &SharingUse) -> String {
    match (sharing.source, sharing.unit) {
        (SharingSource::Counts, _) => "counts of accesses".to_owned(),
        (SharingSource::Traps, _) => {
            let firsts = format::count(sharing.events);
            format!("trapped accesses: {firsts} times the first to a page in an interval")
        }
        (_, WeightUnit::Nanoseconds) => format!("{}, weighted by time", sampled(sharing.events)),
        _ => sampled(sharing.events),
    }
}

fn sampled(accesses: u64) -> String {
    match accesses {
        1 => "1 sampled access".to_owned(),
        n => format!("{} sampled accesses", format::count(n)),
    }
}

/// `12, 13 and 4 more`
fn few(tids: &[Tid]) -> String {
    let shown: Vec<String> = tids.iter().take(2).map(Tid::to_string).collect();
    match tids.len() {
        0 => String::new(),
        1 | 2 => shown.join(", "),
        n => format!("{} threads", format::count(n as u64)),
    }
}

/// The page by thread distribution, in a word: which thread uses each part most.
fn parts(o: &ObjectSharing) -> String {
    let count = (o.ranges.count as usize).min(PARTS);
    if count < 2 || o.ranges.pages == Pages(0) {
        return String::new();
    }
    let mut by_part = vec![(0_u64, BTreeMap::<u32, u64>::new()); count];
    for cell in &o.ranges.cells {
        let part = cell.range as usize * count / o.ranges.count as usize;
        by_part[part].0 += cell.events;
        *by_part[part].1.entry(cell.thread).or_default() += cell.weight;
    }
    let letter = |(events, of): &(u64, BTreeMap<u32, u64>)| {
        let sum: u64 = of.values().sum();
        let Some((&thread, &most)) = of.iter().max_by_key(|(_, w)| **w) else {
            return '.';
        };
        let letter = LETTERS.chars().nth(thread as usize).unwrap_or('?');
        match *events >= SURE_EVENTS && most.saturating_mul(10) >= sum.saturating_mul(9) {
            true => letter,
            false => letter.to_ascii_lowercase(),
        }
    };
    by_part.iter().map(letter).collect()
}

fn flows(page: &mut Page, a: &Analysis, sharing: &SharingUse) {
    let Some(axis) = sharing.axis else { return };
    if a.trace.clock_unit != ClockUnit::Nanoseconds {
        return;
    }
    let name = |id| {
        let found = sharing.objects.iter().find(|o| o.object == id);
        found.map_or("another object", |o| short(&o.name))
    };
    page.gap();
    page.wrapped(
        match sharing.source {
            SharingSource::Traps => {
                "What the threads go through, by the object of most of their first accesses"
            }
            _ => "What the threads go through, by the object used most",
        },
        Tone::Plain,
    );
    let with_phases = sharing.threads.iter().filter(|t| !t.phases.is_empty());
    let with_phases: Vec<_> = with_phases.collect();
    for thread in with_phases.iter().take(page.rows(THREADS)) {
        // A thread that had to wait for a CPU comes back to what it did: that is no new phase for a person.
        let mut phases: Vec<_> = thread.phases.iter().collect();
        phases.dedup_by_key(|p| name(p.object));
        let mut steps: Vec<String> = phases
            .iter()
            .take(page.rows(PHASES))
            .map(|p| {
                format!(
                    "from {} {}",
                    format::duration(p.from_ns - axis.start_ns),
                    name(p.object)
                )
            })
            .collect();
        match phases.len().saturating_sub(page.rows(PHASES)) {
            0 => (),
            more => steps.push(format!("and {more} more")),
        }
        page.wrapped(
            &format!("  {}: {}", named(thread), steps.join(", ")),
            Tone::Plain,
        );
    }
    page.more(with_phases.len(), THREADS, 0);
}

fn named(thread: &SharingThread) -> String {
    match thread.name.is_empty() {
        true => thread.tid.to_string(),
        false => format!("{} ({})", thread.name, thread.tid),
    }
}

/// A name without its place.
fn short(name: &str) -> &str {
    name.rsplit_once(" (").map_or(name, |(name, _)| name)
}
