//! What samples and counts of accesses say.

use varve_analyse::{Analysis, EventSamples, Latency, SampleUse, Sampled, format};

use super::access_time;
use super::page::{Page, Tone};
use super::table::{ABSENT, Align, Table};
use crate::text::grouped;

/// Rows of each table.
pub(super) const ROWS: usize = 8;

/// What samples say: of those with a weight in time, where the time goes.
pub(super) fn write(page: &mut Page, a: &Analysis) {
    let Some(taken) = &a.samples else { return };
    match (&taken.note, taken.all.time_ns) {
        (Some(note), Some(_)) => access_time::write(page, taken, note),
        _ => samples(page, taken),
    }
}

fn samples(page: &mut Page, s: &SampleUse) {
    page.heading(&format!("Samples ({})", format::count(s.all.samples)));
    page.wrapped(&s.weight, Tone::Faint);
    let sources: Vec<String> = s
        .sources
        .iter()
        .map(|source| format!("{} {}", format::count(source.samples), source.source))
        .collect();
    page.labelled("source", Tone::Plain, &sources.join(", "));
    // What has no address is no access: it neither reads nor writes, and nothing answers it.
    if s.with_address > 0 {
        page.labelled("reads", Tone::Plain, &split(&s.all));
        page.labelled(
            "address",
            Tone::Plain,
            &format!(
                "{} have one, {} lie in a known object",
                format::percent(s.with_address, s.all.samples),
                format::percent(s.with_object, s.all.samples)
            ),
        );
        match s.all.latency_cycles {
            Some(latency) => page.labelled("latency", Tone::Plain, &words(latency)),
            None => page.labelled("latency", Tone::Plain, "not recorded"),
        }
        levels(page, s);
    }
    // Samples of several events have no sum, unless all of them are accesses.
    let are_accesses = s.events.iter().all(|e| e.with_address > 0);
    if !are_accesses || s.events.len() > 1 {
        for event in &s.events {
            of_event(page, event);
        }
    }
    let mut table = Table::new(&[
        ("object", Align::Name),
        ("kind", Align::Left),
        ("samples", Align::Right),
        ("share", Align::Right),
        ("writes", Align::Right),
        ("median latency", Align::Right),
    ]);
    for o in s.objects.iter().take(page.rows(ROWS)) {
        table.row([
            grouped(&o.name, o.objects),
            o.kind.as_str().to_owned(),
            format::count(o.sampled.samples),
            format::percent(o.sampled.samples, s.accesses()),
            writes(&o.sampled),
            median(&o.sampled),
        ]);
    }
    shown(
        page,
        "Sampled objects",
        &table,
        s.objects.len(),
        s.omitted.objects,
    );
    if are_accesses {
        places(page, s);
    }
    if are_accesses || s.events.len() <= 1 {
        threads(page, s);
    }
}

/// Where the samples of one event lie.
fn of_event(page: &mut Page, e: &EventSamples) {
    let of = match e.periods {
        Some(periods) => format!(", {} of the event", format::count(periods)),
        None => String::new(),
    };
    let heading = format!("{} ({}{of})", e.event, format::counted(e.samples, "sample"));
    let mut table = Table::new(&[
        ("place in the code", Align::Name),
        ("samples", Align::Right),
        ("share", Align::Right),
    ]);
    for p in e.places.iter().take(page.rows(ROWS)) {
        table.row([
            p.place.clone(),
            format::count(p.samples),
            format::share(p.share),
        ]);
    }
    shown(page, &heading, &table, e.places.len(), e.omitted_places);
}

fn places(page: &mut Page, s: &SampleUse) {
    let mut table = Table::new(&[
        ("place in the code", Align::Name),
        ("samples", Align::Right),
        ("share", Align::Right),
        ("writes", Align::Right),
        ("median latency", Align::Right),
    ]);
    let places: Vec<_> = s.places.iter().take(page.rows(ROWS)).collect();
    for p in &places {
        // Several instructions of one line are distinguished.
        let is_one = places.iter().filter(|q| q.place == p.place).count() == 1;
        table.row([
            match p.ip.filter(|_| !is_one) {
                Some(ip) => format!("{} (instruction at {ip})", p.place),
                None => p.place.clone(),
            },
            format::count(p.sampled.samples),
            format::percent(p.sampled.samples, s.all.samples),
            writes(&p.sampled),
            median(&p.sampled),
        ]);
    }
    shown(
        page,
        "Sampled code",
        &table,
        s.places.len(),
        s.omitted.places,
    );
}

fn threads(page: &mut Page, s: &SampleUse) {
    let mut table = Table::new(&[
        ("thread", Align::Name),
        ("samples", Align::Right),
        ("share", Align::Right),
        ("writes", Align::Right),
        ("median latency", Align::Right),
    ]);
    for t in s.threads.iter().take(page.rows(ROWS)) {
        let name = match t.name.is_empty() {
            true => t.tid.to_string(),
            false => format!("{} ({})", t.name, t.tid),
        };
        table.row([
            name,
            format::count(t.sampled.samples),
            format::percent(t.sampled.samples, s.all.samples),
            writes(&t.sampled),
            median(&t.sampled),
        ]);
    }
    shown(
        page,
        "Sampled threads",
        &table,
        s.threads.len(),
        s.omitted.threads,
    );
}

fn levels(page: &mut Page, s: &SampleUse) {
    if s.levels.is_empty() {
        page.labelled("level", Tone::Plain, "not recorded");
        return;
    }
    let mut table = Table::new(&[
        ("answered by", Align::Name),
        ("samples", Align::Right),
        ("share", Align::Right),
        ("latency", Align::Right),
    ]);
    for level in &s.levels {
        table.row([
            level.level.as_str().replace('_', " "),
            format::count(level.samples),
            format::percent(level.samples, s.all.samples),
            level
                .latency_cycles
                .map_or(ABSENT.to_owned(), |l| format!("{} cycles", l.median)),
        ]);
    }
    page.heading("Levels of memory");
    page.table(&table);
}

pub(super) fn shown(page: &mut Page, heading: &str, table: &Table, rows: usize, omitted: u64) {
    if rows == 0 {
        return;
    }
    page.heading(heading);
    page.table(table);
    page.more(rows, ROWS, omitted);
}

fn split(sampled: &Sampled) -> String {
    match (sampled.reads, sampled.writes) {
        (Some(reads), Some(writes)) => {
            let open = sampled.samples - reads - writes;
            let open = match open {
                0 => String::new(),
                n => format!(", {} not known", format::percent(n, sampled.samples)),
            };
            format!(
                "{}, writes {}{open}",
                format::percent(reads, sampled.samples),
                format::percent(writes, sampled.samples)
            )
        }
        _ => "reads or writes, not known which".to_owned(),
    }
}

fn writes(sampled: &Sampled) -> String {
    sampled
        .writes
        .map_or(ABSENT.to_owned(), |n| format::percent(n, sampled.samples))
}

fn median(sampled: &Sampled) -> String {
    sampled
        .latency_cycles
        .map_or(ABSENT.to_owned(), |l| format!("{} cycles", l.median))
}

fn words(l: Latency) -> String {
    format!(
        "median {}, 90 % within {}, 99 % within {}, longest {} cycles",
        l.median, l.p90, l.p99, l.max
    )
}
