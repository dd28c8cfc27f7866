//! The first screen: what the program used, what is hot, and what to do. It fits a window of 40 lines.

use std::path::Path;

use varve_analyse::{Analysis, FindingId, HotBy, Known, Overview, format};
use varve_model::{Bytes, Capability};
use varve_trace::ClockUnit;

use super::chart;
use super::findings::silence;
use super::page::{Page, Tone};
use super::recording;
use super::table::{Align, Table};
use crate::text::{grouped, quoted_path, span};

/// Lines of a window that the first screen fits.
const LINES: usize = 40;
/// Samples below which a share is a guess: its standard error is 5 % of the whole and more.
const FEW_SAMPLES: u64 = 100;
/// What the parts of the screen may take: as much as the window has room for.
#[derive(Clone, Copy)]
pub(super) struct Room {
    /// Lines of a statement of the head, and of each of a few more.
    pub(super) statement: usize,
    /// Lines of what is not known.
    unknown: usize,
    /// Lines of a finding.
    finding: usize,
    /// Findings that are shown.
    findings: usize,
    /// Lines of the chart, without its axis.
    chart: usize,
    /// Whether names that a line does not hold go on in the next one.
    names: bool,
}

/// The most room first. Lines of statements and findings are those of whole sentences: one that is longer takes some more.
const ROOMS: [Room; 5] = [
    room([9, 12, 3, 5, 3], true),
    room([4, 6, 2, 5, 3], true),
    room([2, 3, 1, 5, 3], false),
    room([1, 1, 1, 5, 2], false),
    room([1, 1, 1, 3, 2], false),
];

const fn room(lines: [usize; 5], names: bool) -> Room {
    let [statement, unknown, finding, findings, chart] = lines;
    Room {
        statement,
        unknown,
        finding,
        findings,
        chart,
        names,
    }
}

/// Writes it, each part whole if the window has room for that.
pub(super) fn write(page: &mut Page, a: &Analysis, folder: &Path) {
    let overview = Overview::of(a);
    for (i, room) in ROOMS.iter().enumerate() {
        let mut whole = page.another();
        all(&mut whole, a, &overview, folder, room);
        if whole.text.lines().count() <= LINES || i + 1 == ROOMS.len() {
            page.text += &whole.text;
            return;
        }
    }
}

fn all(page: &mut Page, a: &Analysis, overview: &Overview, folder: &Path, room: &Room) {
    recording::brief(page, a, room.statement);
    used(page, a, overview, room);
    hot(page, overview, room);
    if !a.trace.has(Capability::Touches) && a.samples.is_none() && a.counts.is_none() {
        page.gap();
        page.wrapped(
            "The trace has neither touched pages nor samples of what is shown.",
            Tone::Plain,
        );
    }
    findings(page, a, overview, room);
    if !overview.unknown.is_empty() {
        let (unknown, more) = (overview.unknown.join("; "), " (--section unknown)");
        page.labelled_list("not known", Tone::Plain, &unknown, more, room.unknown);
    }
    for note in &overview.notes {
        let text = format!("{}: {}", note.title, note.action);
        page.labelled_within("note", Tone::Plain, &text, room.finding);
    }
    let of = quoted_path(folder);
    page.labelled_within(
        "more",
        Tone::Faint,
        &format!("varve report {of} --section findings,objects; --section help; --html page.html"),
        room.statement,
    );
}

fn used(page: &mut Page, a: &Analysis, o: &Overview, room: &Room) {
    let (Some(reuse), Some(unowned)) = (a.reuse.value(), a.unowned.value()) else {
        return;
    };
    let Some(&intervals @ 1..) = a.trace.intervals.value() else {
        return;
    };
    page.heading("Memory used");
    let bytes = |b: &Bytes| format::bytes(*b);
    let pages = reuse.pages().0;
    let mut parts = Vec::new();
    if intervals > 1 {
        parts.push(format!(
            "{} in one interval only, {} in three or more",
            format::percent(reuse.once.0, pages),
            format::percent(reuse.more.0, pages)
        ));
    }
    // A twentieth is worth a word.
    if unowned.touched_pages.0.saturating_mul(20) >= pages && pages > 0 {
        parts.push(format!(
            "{} of it belongs to no known object",
            format::percent(unowned.touched_pages.0, pages)
        ));
    }
    let more = match parts.is_empty() {
        true => String::new(),
        false => format!(": {}", parts.join("; ")),
    };
    page.labelled_within(
        "touched",
        Tone::Plain,
        &format!("{}{more}", o.touched.text(bytes)),
        room.statement,
    );
    let mut parts = vec![format!(
        "{} in an interval on average, {} at most",
        o.mean_working_set.text(bytes),
        o.peak_working_set.text(bytes)
    )];
    parts.extend(resident(a, o));
    let parts = parts.join("; ");
    page.labelled_within("working set", Tone::Plain, &parts, room.statement);
    // Ticks of unknown length are no axis that a person could read, and one interval is no course of time.
    if a.trace.clock_unit != ClockUnit::Ticks && a.working_set.items().len() > 1 {
        let label = |length| span(a, length);
        let (start, width) = (a.trace.start_ns, page.width);
        for line in chart::area(a.working_set.items(), start, (width, room.chart), &label) {
            page.line(&line);
        }
    }
}

/// How much was resident: of one process what the kernel counts, where that is exact, and else what the intervals say too.
fn resident(a: &Analysis, o: &Overview) -> Vec<String> {
    let bytes = |b: &Bytes| format::bytes(*b);
    let is_one = a.processes.len() <= 1;
    let mut parts = Vec::new();
    let is_all = is_one && matches!(o.peak_process, Known::Exact(_));
    if let Some(resident) = o.peak_resident.value().filter(|_| !is_all) {
        let of = match is_one {
            true => "",
            false => ", summed over the processes that live then",
        };
        parts.push(format!(
            "resident {} at most at an interval's end{of}",
            bytes(resident)
        ));
    }
    if o.peak_process.value().is_some() {
        let peak = o.peak_process.text(bytes);
        parts.push(match is_one {
            true => format!("resident {peak} at most, as the kernel counts it"),
            false => format!("{peak} resident at most in one process, as the kernel counts it"),
        });
    }
    parts
}

/// ` (457 samples)`, and a warning where there are few.
fn resting_on(samples: u64) -> String {
    let of = format::counted(samples, "sample");
    match samples < FEW_SAMPLES {
        true => format!("only {of}: shares are rough"),
        false => of,
    }
}

fn hot(page: &mut Page, o: &Overview, room: &Room) {
    objects(page, o, room);
    if let Some(gone) = o.gone {
        let share = format::share(gone);
        page.wrapped(
            &format!(
                "{share} of the time at accesses is at loads that replaced their own address, as steps of lists do: their objects are not known."
            ),
            Tone::Faint,
        );
    }
    lines(page, o, room);
}

/// The table with a line for each row where there is no room for more.
fn fitted(table: Table, room: &Room) -> Table {
    match room.names {
        true => table,
        false => table.one_line_each(),
    }
}

fn objects(page: &mut Page, o: &Overview, room: &Room) {
    if o.hot.is_empty() {
        return;
    }
    let of = o.hot_samples.map(|n| format!(" ({})", resting_on(n)));
    let of = of.unwrap_or_default();
    page.heading(&format!("Hot, by {}{of}", o.hot_by.as_str()));
    let table = Table::new(&[
        ("object", Align::Name),
        ("kind", Align::Left),
        ("touched", Align::Right),
        ("share", Align::Right),
    ]);
    let mut table = fitted(table, room);
    let bytes = |b: &Bytes| format::bytes(*b);
    for object in &o.hot {
        table.row([
            grouped(&object.name, object.objects),
            object.kind.as_str().to_owned(),
            object.touched.text(bytes),
            format::share(object.share),
        ]);
    }
    page.table(&table);
}

fn lines(page: &mut Page, o: &Overview, room: &Room) {
    if o.hot_lines.is_empty() {
        return;
    }
    if o.hot.is_empty() {
        page.heading("Hot");
    }
    let of = match o.lines_by {
        HotBy::Time => "time",
        _ => "share",
    };
    let resting = resting_on(o.line_samples);
    let head = match &o.line_event {
        Some(event) => format!("line of code, by {event} ({resting})"),
        None => format!("line of code ({resting})"),
    };
    let table = Table::new(&[(head.as_str(), Align::Name), (of, Align::Right)]);
    let mut table = fitted(table, room);
    for line in &o.hot_lines {
        table.row([line.place.clone(), format::share(line.share)]);
    }
    page.table(&table);
}

fn findings(page: &mut Page, a: &Analysis, o: &Overview, room: &Room) {
    page.heading("What to do");
    if let Some(why) = silence(a) {
        page.line(why);
        return;
    }
    if o.findings.is_empty() {
        page.line("No findings: nothing stands out.");
    }
    let shown = match o.findings.len() {
        n if n > room.findings => room.findings - 1,
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
        page.marked(
            tone,
            &finding.action,
            &format!("{}{of}", finding.title),
            room.finding,
        );
    }
    if o.findings.len() > shown {
        page.line(&format!(
            "  and {} (--section findings)",
            format::counted((o.findings.len() - shown) as u64, "other finding")
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::resting_on;

    #[test]
    fn few_samples_are_said_to_be_few() {
        assert_eq!(resting_on(3), "only 3 samples: shares are rough");
        assert_eq!(resting_on(1_632), "1,632 samples");
    }
}
