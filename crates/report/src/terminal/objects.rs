//! The hottest and the coldest objects.

use varve_analyse::{Analysis, Group, Touched, format};
use varve_model::{Bytes, ObjectKind};
use varve_objects::RECORDERS;
use varve_trace::ClockUnit;

use super::page::{Page, Tone};
use super::table::{ABSENT, Align, Table};
use crate::text::grouped;

/// Rows of the table of the hottest objects.
pub(super) const HOTTEST: usize = 8;
/// Rows of the table of the coldest objects.
const COLDEST: usize = 5;

pub(super) fn write(page: &mut Page, a: &Analysis) {
    if a.groups.is_empty() {
        return;
    }
    let is_touched = |touched: &Touched| touched.touched_pages.0 > 0;
    let mut hottest: Vec<(&Group, &Touched)> =
        with_touches(a).filter(|(_, t)| is_touched(t)).collect();
    hottest.sort_by(|a, b| share_of(b.0).total_cmp(&share_of(a.0)));
    page.heading("Hottest objects");
    let shown = &hottest[..page.rows(HOTTEST).min(hottest.len())];
    // Of what is used again and again for another object the sum over lives is another figure.
    let has_lives = shown
        .iter()
        .any(|(g, t)| g.touched_pages_over_lives > Some(t.touched_pages));
    let mut columns = vec![
        ("object", Align::Name),
        ("kind", Align::Left),
        ("size", Align::Right),
        ("touched", Align::Right),
    ];
    if has_lives {
        columns.push(("over lives", Align::Right));
    }
    columns.extend([("heat", Align::Right), ("of touches", Align::Right)]);
    let mut table = Table::new(&columns);
    for (g, t) in shown {
        let mut row = vec![
            named(g),
            g.kind.as_str().to_owned(),
            size(g).map_or(ABSENT.to_owned(), format::bytes),
            touched(t),
        ];
        if has_lives {
            let lives = g.touched_pages_over_lives;
            row.push(lives.map_or(ABSENT.to_owned(), format::pages_size));
        }
        row.push(format!("{:.1}", t.heat()));
        row.push(format::share(share_of(g)));
        table.row(row);
    }
    if let Some(own) = a.own_memory.value().filter(|own| own.touched_pages.0 > 0) {
        let mut row = vec![
            RECORDERS.to_owned(),
            ObjectKind::Recorder.as_str().to_owned(),
            ABSENT.to_owned(),
            format::bytes(own.touched_pages.bytes()),
        ];
        row.resize(columns.len(), ABSENT.to_owned());
        table.row(row);
    }
    page.table(&table);
    page.more(hottest.len(), HOTTEST, 0);
    page.wrapped(&legend(has_lives, shown), Tone::Faint);
    coldest(page, a);
}

/// The largest objects of a trace that does not say which pages were touched.
pub(super) fn without_touches(page: &mut Page, a: &Analysis) {
    if a.groups.is_empty() {
        return;
    }
    page.heading("Largest objects");
    let mut largest: Vec<&Group> = a.groups.iter().collect();
    largest.sort_by(|a, b| size(b).cmp(&size(a)).then_with(|| a.name.cmp(&b.name)));
    let mut table = Table::new(&[
        ("object", Align::Name),
        ("kind", Align::Left),
        ("size", Align::Right),
    ]);
    for g in largest.iter().take(page.rows(HOTTEST)) {
        table.row([
            named(g),
            g.kind.as_str().to_owned(),
            size(g).map_or(ABSENT.to_owned(), format::bytes),
        ]);
    }
    page.table(&table);
    page.more(largest.len(), HOTTEST, 0);
    let text = "which of their pages were touched is not recorded; samples of them, where there are any, are in --section samples";
    page.wrapped(text, Tone::Faint);
}

/// The share of all page touches.
fn share_of(g: &Group) -> f64 {
    g.touch_share.unwrap_or_default()
}

/// What there was of a group at one time, at most; where lives are not known, all of it.
fn size(g: &Group) -> Option<Bytes> {
    Some(g.bytes?.min(g.peak_bytes.unwrap_or(g.bytes?)))
}

/// The groups of which touches are known.
fn with_touches(a: &Analysis) -> impl Iterator<Item = (&Group, &Touched)> {
    let groups = a.groups.iter();
    groups.filter_map(|g| Some((g, g.usage.touched.get()?)))
}

/// What was touched of a group, marked where that is a lower bound.
fn touched(t: &Touched) -> String {
    let mark = if t.is_bound() { "≥" } else { "" };
    format!("{mark}{}", format::bytes(t.touched_bytes))
}

/// What the mark says.
const BOUND: &str =
    "; ≥: at least, as of some pages only a flag is known that other processes set too";

/// What the columns say.
fn legend(has_lives: bool, shown: &[(&Group, &Touched)]) -> String {
    let mut text = "heat: in how many intervals a touched page was touched, on average".to_owned();
    if has_lives {
        text += "; size: of all that there were at one time, at most; over lives: the pages touched of each object, summed: a \
                 page counts whole in each object that lay on it, so that the sum may exceed the size";
    }
    text += "; of touches: of all pages touched, summed over the intervals";
    if shown.iter().any(|(_, t)| t.shared_page_touches > 0) {
        text += "; a page that several objects lie on is divided among them";
    }
    let several = |g: &Group| g.objects == 1 && g.processes.len() > 1;
    if shown.iter().any(|(g, _)| several(g)) && shown.iter().any(|(g, _)| g.objects > 1) {
        text += "; ×2: two objects of that name; 2 processes: one object that both map";
    }
    if shown.iter().any(|(_, t)| t.is_bound()) {
        text += BOUND;
    }
    text
}

/// The objects that waited longest at the end, largest first: those that a slower tier would hold.
fn coldest(page: &mut Page, a: &Analysis) {
    let mut cold: Vec<_> = with_touches(a)
        .filter(|(_, t)| t.cold_pages.0 >= 16)
        .collect();
    cold.sort_by_key(|(_, t)| std::cmp::Reverse(t.cold_pages));
    let has_time = a.trace.clock_unit == ClockUnit::Nanoseconds;
    let is_long = a.trace.intervals.value().is_some_and(|n| *n >= 8);
    if cold.is_empty() || !is_long || !has_time {
        return;
    }
    let Some(tail) = a.tail.value() else { return };
    page.heading(&format!(
        "Objects with cold pages (touched before, but not in the last {})",
        format::duration(tail.duration_ns)
    ));
    let mut table = Table::new(&[
        ("object", Align::Name),
        ("kind", Align::Left),
        ("touched", Align::Right),
        ("cold", Align::Right),
        ("last touch", Align::Right),
    ]);
    let shown = &cold[..page.rows(COLDEST).min(cold.len())];
    for (g, t) in shown {
        let last = t
            .last_touch_ns
            .map(|t| t - a.trace.start_ns)
            .unwrap_or_default();
        table.row([
            named(g),
            g.kind.as_str().to_owned(),
            touched(t),
            format::bytes(t.cold_pages.bytes().min(t.touched_bytes)),
            format!("at {}", format::duration(last)),
        ]);
    }
    page.table(&table);
    page.more(cold.len(), COLDEST, 0);
    let mut legend = "last touch: of any of its pages, cold or not".to_owned();
    if shown.iter().any(|(_, t)| t.is_bound()) {
        legend += BOUND;
    }
    page.wrapped(&legend, Tone::Faint);
}

/// The name of a group, with how many objects it has, or how many processes share the one.
fn named(g: &Group) -> String {
    match (g.objects, g.processes.len() as u64) {
        (1, n) if n > 1 => format!("{}, {} processes", g.name, format::count(n)),
        (n, _) => grouped(&g.name, n),
    }
}
