//! What `varve diff` prints.

use varve_analyse::format;
use varve_compare::{Diff, Fate, Figure, Match, Measure, Row, Side, Unit, Values, Verdict, amount};

use super::WIDTHS;
use super::page::{Page, Tone};
use super::table::{ABSENT, Align, Table};
use crate::text::command_line;

/// Rows of a table where nobody asks for all.
const FIRST: usize = 10;

/// The text.
pub fn render(of: &Diff, width: usize, color: bool, whole: bool) -> String {
    let mut page = Page::new(width.clamp(*WIDTHS.start(), *WIDTHS.end()), color);
    page.whole = whole;
    side(&mut page, "A", &of.a);
    side(&mut page, "B", &of.b);
    for note in &of.notes {
        page.labelled("note", Tone::Notice, note);
    }
    page.labelled("noise", Tone::Plain, &of.noise.statement);
    if of.differences == 0 {
        page.gap();
        page.wrapped(
            "A and B differ in nothing: all figures, objects, code and findings are the same.",
            Tone::Good,
        );
        return page.text;
    }
    program(&mut page, of);
    objects(&mut page, of);
    code(
        &mut page,
        of,
        "Functions by the time of their accesses",
        &of.functions,
    );
    if whole {
        code(
            &mut page,
            of,
            "Lines by the time of their accesses",
            &of.lines,
        );
    }
    if of.omitted.lines {
        page.wrapped(
            "A run has more lines of code than are compared: what is not among them is not known (-).",
            Tone::Faint,
        );
    }
    findings(&mut page, of);
    if of.noise.known {
        page.gap();
        page.wrapped(
            "* more than noise (q); | no run of one side lies among those of the other, which chance may do as well; ~ within noise. Figures are medians, with the least and the most where runs differ.",
            Tone::Faint,
        );
    }
    page.text
}

fn side(page: &mut Page, label: &str, of: &Side) {
    let Some(first) = of.runs.first() else { return };
    let text = match of.runs.len() {
        1 => format!(
            "{}: {}, {}",
            first.trace.display(),
            command_line(&first.command),
            format::duration(first.duration_ns)
        ),
        n => {
            let last = of.runs.last().unwrap_or(first);
            format!(
                "{n} runs, {} to {}: {}",
                first.trace.display(),
                last.trace.display(),
                command_line(&first.command)
            )
        }
    };
    let part = first.selected.as_ref().map(|part| format!(" ({part})"));
    let text = text + part.as_deref().unwrap_or_default();
    page.labelled_beginning(label, Tone::Strong, &text, 2);
}

fn program(page: &mut Page, of: &Diff) {
    page.heading("The program");
    let mut table = table_of("figure", of);
    for figure in of.program.iter().filter(|f| is_shown(f)) {
        let mut cells = vec![figure.measure.title().to_owned()];
        cells.extend(cells_of(figure, of.noise.known));
        table.row(cells);
    }
    page.table(&table);
}

/// Whether either side knows it.
fn is_shown(figure: &Figure) -> bool {
    figure.a.median.is_some() || figure.b.median.is_some()
}

fn table_of(what: &str, of: &Diff) -> Table {
    let mut columns = vec![
        (what, Align::Name),
        ("A", Align::Right),
        ("B", Align::Right),
        ("change", Align::Right),
    ];
    if of.noise.known {
        columns.push(("p", Align::Right));
        columns.push(("q", Align::Right));
        columns.push(("", Align::Left));
    }
    Table::new(&columns)
}

fn cells_of(figure: &Figure, with_noise: bool) -> Vec<String> {
    let mut cells = vec![
        values(&figure.a, figure.unit),
        values(&figure.b, figure.unit),
        change(figure),
    ];
    if with_noise {
        for chance in [figure.p, figure.q] {
            cells.push(chance.map_or(String::new(), |chance| format!("{chance:.3}")));
        }
        cells.push(mark(figure.verdict).to_owned());
    }
    cells
}

const fn mark(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::MoreThanNoise => "*",
        Verdict::Apart => "|",
        Verdict::WithinNoise => "~",
        Verdict::Same | Verdict::NoiseUnknown | Verdict::NotKnown => "",
    }
}

fn values(of: &Values, unit: Unit) -> String {
    let Some(median) = of.median else {
        return ABSENT.to_owned();
    };
    let bound = if of.at_least { "≥" } else { "" };
    let middle = format!("{bound}{}", amount(median, unit));
    match of.min.zip(of.max).filter(|(min, max)| min < max) {
        Some((min, max)) => format!("{middle} ({}-{})", amount(min, unit), amount(max, unit)),
        None => middle,
    }
}

fn change(figure: &Figure) -> String {
    let Some(change) = figure.change else {
        return ABSENT.to_owned();
    };
    if change == 0.0 {
        return match figure.verdict {
            Verdict::Same => "same".to_owned(),
            _ => "0".to_owned(),
        };
    }
    let sign = if change < 0.0 { "-" } else { "+" };
    if figure.unit == Unit::Share {
        // Percent of percent say nothing.
        return match change.abs() * 100.0 {
            points if points < 0.1 => format!("{sign}<0.1 points"),
            points => format!("{sign}{points:.1} points"),
        };
    }
    let by = amount(change.abs(), figure.unit);
    match figure.ratio {
        Some(ratio) if ratio > 0.0 => {
            let percent = (ratio - 1.0).abs() * 100.0;
            let percent = match percent {
                p if p >= 1000.0 => format!("x{ratio:.0}"),
                p if p < 0.1 => format!("{sign}<0.1 %"),
                p if p < 10.0 => format!("{sign}{p:.1} %"),
                p => format!("{sign}{p:.0} %"),
            };
            format!("{sign}{by} ({percent})")
        }
        _ => format!("{sign}{by}"),
    }
}

/// What of a row is shown: the figure that changed, most telling first.
fn telling(row: &Row) -> Option<&Figure> {
    let order = [
        Measure::Touched,
        Measure::AccessTime,
        Measure::PageTouches,
        Measure::PeakBytes,
        Measure::Bytes,
        Measure::Objects,
        Measure::Died,
        Measure::MedianLife,
    ];
    let differs = |f: &&Figure| !matches!(f.verdict, Verdict::Same | Verdict::NotKnown);
    let changed = order.iter().filter_map(|m| row.figure(*m)).filter(differs);
    let mut changed: Vec<&Figure> = changed.collect();
    // What is sure comes before what may be chance.
    changed.sort_by_key(|f| match f.verdict {
        Verdict::MoreThanNoise => 0,
        Verdict::Apart | Verdict::NoiseUnknown => 1,
        _ => 2,
    });
    changed.first().copied()
}

fn objects(page: &mut Page, of: &Diff) {
    let (mut both, mut only_a, mut only_b) = (Vec::new(), Vec::new(), Vec::new());
    for row in &of.objects {
        match (&row.a, &row.b) {
            (Some(_), None) => only_a.push(row),
            (None, Some(_)) => only_b.push(row),
            _ => both.extend(telling(row).map(|figure| (row, figure))),
        }
    }
    if of.noise.known {
        both.sort_by_key(|(_, f)| f.verdict != Verdict::MoreThanNoise);
    }
    if !both.is_empty() {
        page.heading("Objects that changed");
        let mut table = table_of("object", of);
        let shown = &both[..page.rows(FIRST).min(both.len())];
        for (row, figure) in shown {
            let mut cells = vec![format!("{}: {}", called(row), figure.measure.title())];
            cells.extend(cells_of(figure, of.noise.known));
            table.row(cells);
            if page.whole {
                others(&mut table, row, figure, of);
            }
        }
        page.table(&table);
        page.more(both.len(), FIRST, of.omitted.objects);
    }
    for (title, rows, in_a) in [
        ("Objects only in A", &only_a, true),
        ("Objects only in B", &only_b, false),
    ] {
        if !rows.is_empty() {
            only(page, title, rows, in_a);
        }
    }
}

/// The other figures of an object.
fn others(table: &mut Table, row: &Row, first: &Figure, of: &Diff) {
    let rest = row.figures.iter();
    for figure in rest.filter(|f| f.measure != first.measure && f.verdict != Verdict::Same) {
        let mut cells = vec![format!("  {}", figure.measure.title())];
        cells.extend(cells_of(figure, of.noise.known));
        table.row(cells);
    }
}

/// The name on the second side, and how it was found on the first where that says something.
fn called(row: &Row) -> String {
    let how = row.how.as_ref();
    let how = how.filter(|_| !matches!(row.matched, Some(Match::Exact | Match::Moved)));
    match how {
        Some(how) => format!("{} [{how}]", row.name()),
        None => row.name().to_owned(),
    }
}

fn only(page: &mut Page, title: &str, rows: &[&Row], in_a: bool) {
    page.heading(title);
    let mut table = Table::new(&[
        ("object", Align::Name),
        ("kind", Align::Left),
        ("touched", Align::Right),
        ("allocated", Align::Right),
        ("objects", Align::Right),
    ]);
    let shown = &rows[..page.rows(FIRST).min(rows.len())];
    for row in shown {
        let cell = |measure| {
            let figure = row.figure(measure);
            figure.map_or(ABSENT.to_owned(), |f| {
                values(if in_a { &f.a } else { &f.b }, f.unit)
            })
        };
        table.row(vec![
            row.name().to_owned(),
            row.kind.map_or("", |k| k.as_str()).to_owned(),
            cell(Measure::Touched),
            cell(Measure::Bytes),
            cell(Measure::Objects),
        ]);
    }
    page.table(&table);
    page.more(rows.len(), FIRST, 0);
}

fn code(page: &mut Page, of: &Diff, title: &str, rows: &[Row]) {
    let mut changed: Vec<(&Row, &Figure)> = rows
        .iter()
        .filter_map(|row| telling(row).map(|figure| (row, figure)))
        .collect();
    if changed.is_empty() {
        return;
    }
    if of.noise.known {
        changed.sort_by_key(|(_, f)| f.verdict != Verdict::MoreThanNoise);
    }
    page.heading(title);
    let mut table = table_of("place", of);
    for (row, figure) in &changed[..page.rows(FIRST).min(changed.len())] {
        let name = match (&row.a, &row.b) {
            (Some(_), None) => format!("{} (only in A)", row.name()),
            (None, Some(_)) => format!("{} (only in B)", row.name()),
            _ => called(row),
        };
        let mut cells = vec![name];
        cells.extend(cells_of(figure, of.noise.known));
        table.row(cells);
    }
    page.table(&table);
    page.more(changed.len(), FIRST, 0);
}

fn findings(page: &mut Page, of: &Diff) {
    let changed: Vec<_> = of
        .findings
        .iter()
        .filter(|f| f.fate != Fate::Stayed)
        .collect();
    if changed.is_empty() {
        return;
    }
    page.heading("Findings");
    let (runs_a, runs_b) = (of.a.runs.len(), of.b.runs.len());
    for found in changed {
        let text = found
            .b
            .as_deref()
            .or(found.a.as_deref())
            .unwrap_or_default();
        let (tone, word) = match found.fate {
            Fate::Came => (Tone::Bad, "came"),
            Fate::Went => (Tone::Good, "went"),
            Fate::Stayed | Fate::Wavers => (Tone::Notice, "wavers"),
        };
        let count = match (runs_a, runs_b) {
            (1, 1) => String::new(),
            _ => format!(
                " (in {} of {runs_a} runs of A, {} of {runs_b} of B)",
                found.runs.0, found.runs.1
            ),
        };
        page.labelled(word, tone, &format!("{text}{count}  [{}]", found.id));
    }
}
