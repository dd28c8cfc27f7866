//! The first screen: what the program used, what is hot, and what to do. It fits a window of 40 lines.

use std::path::Path;

use varve_analyse::{Analysis, FindingId, HotBy, Overview, format};
use varve_model::{Bytes, Capability};
use varve_trace::ClockUnit;

use super::chart;
use super::page::{Page, Tone};
use super::recording;
use super::table::{Align, Table};
use crate::words::{grouped, quoted_path, span};

/// Findings that are shown.
const FINDINGS: usize = 5;
/// Lines of the chart, without its axis.
const CHART: usize = 3;

/// Writes it.
pub(super) fn write(page: &mut Page, a: &Analysis, folder: &Path) {
    let overview = Overview::of(a);
    recording::brief(page, a);
    used(page, a, &overview);
    hot(page, &overview);
    findings(page, a, &overview);
    if !overview.unknown.is_empty() {
        page.clipped("not known", Tone::Plain, &overview.unknown.join("; "));
    }
    let of = quoted_path(folder);
    page.clipped(
        "more",
        Tone::Faint,
        &format!("varve report {of} --section findings,objects; --section help; --html page.html"),
    );
}

fn used(page: &mut Page, a: &Analysis, o: &Overview) {
    if !a.trace.has(Capability::Touches) || a.trace.intervals == 0 {
        return;
    }
    page.heading("Memory used");
    let bytes = |b: &Bytes| format::bytes(*b);
    let pages = a.reuse.pages().0;
    let often = match a.trace.intervals {
        0 | 1 => String::new(),
        _ => format!(
            ": {} in one interval only, {} in three or more",
            format::percent(a.reuse.once.0, pages),
            format::percent(a.reuse.more.0, pages)
        ),
    };
    page.clipped(
        "touched",
        Tone::Plain,
        &format!("{}{often}", o.touched.words(bytes)),
    );
    let mut parts = vec![format!(
        "{} in an interval on average, {} at most",
        o.mean_working_set.words(bytes),
        o.peak_working_set.words(bytes)
    )];
    if o.peak_resident.value().is_some() {
        let of = match a.processes.len() {
            0 | 1 => String::new(),
            n => format!(", summed over {n} processes"),
        };
        parts.push(format!(
            "resident {} at most{of}",
            o.peak_resident.words(bytes)
        ));
    }
    page.clipped("working set", Tone::Plain, &parts.join("; "));
    // Ticks of unknown length are no axis that a person could read, and one interval is no course of time.
    if a.trace.clock_unit != ClockUnit::Ticks && a.working_set.len() > 1 {
        let label = |length| span(a, length);
        let (start, width) = (a.trace.start_ns, page.width);
        for line in chart::area(&a.working_set, start, (width, CHART), &label) {
            page.line(&line);
        }
    }
}

fn hot(page: &mut Page, o: &Overview) {
    if o.hot.is_empty() {
        return;
    }
    page.heading(&format!("Hot, by {}", o.hot_by.words()));
    let mut table = Table::new(&[
        ("object", Align::Name),
        ("kind", Align::Left),
        ("touched", Align::Right),
        ("share", Align::Right),
    ])
    .one_line_each();
    let bytes = |b: &Bytes| format::bytes(*b);
    for object in &o.hot {
        table.row([
            grouped(&object.name, object.objects),
            object.kind.as_str().to_owned(),
            object.touched.words(bytes),
            format::share(object.share),
        ]);
    }
    page.table(&table);
    if o.hot_lines.is_empty() {
        return;
    }
    let of = match o.hot_by {
        HotBy::Samples => "share",
        _ => "time",
    };
    let mut table =
        Table::new(&[("line of code", Align::Name), (of, Align::Right)]).one_line_each();
    for line in &o.hot_lines {
        table.row([line.place.clone(), format::share(line.share)]);
    }
    page.table(&table);
}

fn findings(page: &mut Page, a: &Analysis, o: &Overview) {
    page.heading("What to do");
    if a.trace.intervals == 0 && a.samples.is_none() {
        page.line("The recording has no intervals: nothing can be said of it.");
        return;
    }
    if o.findings.is_empty() {
        page.line("No findings: nothing stands out.");
    }
    let shown = match o.findings.len() {
        n if n > FINDINGS => FINDINGS - 1,
        n => n,
    };
    for finding in &o.findings[..shown] {
        let tone = match finding.id {
            FindingId::Incomplete => Tone::Bad,
            _ => Tone::Notice,
        };
        let of = match &finding.object {
            Some(name) if !finding.title.contains(name) => format!(" ({name})"),
            _ => String::new(),
        };
        page.marked(tone, finding.action, &format!("{}{of}", finding.title));
    }
    if o.findings.len() > shown {
        page.line(&format!(
            "  and {} (--section findings)",
            format::counted((o.findings.len() - shown) as u64, "other finding")
        ));
    }
}
