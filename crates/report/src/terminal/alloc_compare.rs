//! What `varve alloc compare` prints.

use std::collections::BTreeSet;

use varve_alloc::compare::{Comparison, Ratio};
use varve_model::visible;

use super::WIDTHS;
use super::page::{Page, Tone};
use super::table::{ABSENT, Align, Table};

/// A difference of this much is marked.
const DRAMATIC: f64 = 0.2;

/// An interval whose end is so many times its beginning says nothing.
const WIDE: f64 = 4.0;

/// The text.
pub fn render(of: &Comparison, width: usize, color: bool) -> String {
    let width = width.clamp(*WIDTHS.start(), *WIDTHS.end());
    let mut page = Page::new(width, color);
    page.wrapped(&of.advice, Tone::Strong);
    if let Some(start) = &of.start {
        page.gap();
        let command = of.command.join(" ");
        page.labelled("start it by", Tone::Plain, &format!("{start}{command}"));
    }
    let own = of.allocators.iter().find(|a| a.library.is_none());
    page.heading(&format!(
        "Ratios to {}, of {} runs each; * marks those that are 20 % off or more and whose range leaves out 1",
        own.map_or("the program's own", |a| a.name.as_str()),
        of.rounds
    ));
    let has_metric = of.allocators.iter().any(|a| a.metric.is_some());
    let mut columns = vec![
        ("allocator", Align::Name),
        ("time", Align::Right),
        ("CPU time", Align::Right),
        ("peak memory", Align::Right),
        ("mean memory", Align::Right),
    ];
    if has_metric {
        columns.push(("metric", Align::Right));
    }
    let mut table = Table::new(&columns);
    for one in of.allocators.iter().filter(|a| a.failed.is_none()) {
        let mut cells = vec![
            one.name.clone(),
            ratio(one.wall),
            ratio(one.cpu),
            ratio(one.peak),
            ratio(one.mean),
        ];
        if has_metric {
            cells.push(ratio(one.metric));
        }
        table.row(cells);
    }
    page.table(&table);
    let explained: Vec<_> = of.allocators.iter().filter(|a| !a.why.is_empty()).collect();
    if !explained.is_empty() {
        page.heading("Why");
        for one in explained {
            page.labelled(&one.name, Tone::Plain, &one.why.join("; "));
        }
    }
    if let Some(line) = left_out(of) {
        page.gap();
        page.line(&visible(&line));
    }
    page.text
}

/// What is not in the tables, and why, on one line; none where all is there.
fn left_out(of: &Comparison) -> Option<String> {
    let failed = of.allocators.iter().filter_map(|one| {
        let why = one.failed.as_ref()?;
        Some(format!("{} ({why})", one.name))
    });
    let mut parts: Vec<String> = failed.collect();
    // Where nothing can be recorded the reason is always the same.
    let mut unrecorded: Vec<(&str, Vec<&str>)> = Vec::new();
    for one in of.allocators.iter().filter(|one| one.failed.is_none()) {
        let Some(why) = one.unrecorded.as_deref() else {
            continue;
        };
        match unrecorded.iter_mut().find(|(known, _)| *known == why) {
            Some((_, names)) => names.push(&one.name),
            None => unrecorded.push((why, vec![&one.name])),
        }
    }
    parts.extend(
        unrecorded
            .iter()
            .map(|(why, names)| format!("the recording of {} ({why})", listed(names))),
    );
    let unreached: BTreeSet<&str> = of
        .allocators
        .iter()
        .filter(|one| one.failed.is_none())
        .flat_map(|one| one.unreached.iter().map(String::as_str))
        .collect();
    let mut sentences = Vec::new();
    if !parts.is_empty() {
        sentences.push(format!("Left out: {}.", parts.join(", ")));
    }
    if !unreached.is_empty() {
        let programs: Vec<&str> = unreached.into_iter().collect();
        sentences.push(format!(
            "These kept their own allocator in all runs: {}.",
            programs.join(", ")
        ));
    }
    (!sentences.is_empty()).then(|| sentences.join(" "))
}

/// `a`, `a and b`, `a, b and c`.
fn listed(names: &[&str]) -> String {
    match names.split_last() {
        Some((last, others @ [_, ..])) => format!("{} and {last}", others.join(", ")),
        _ => names.concat(),
    }
}

fn ratio(of: Option<Ratio>) -> String {
    let Some(of) = of else {
        return ABSENT.to_owned();
    };
    let mark = if of.differs(DRAMATIC) { "*" } else { "" };
    match of.interval {
        Some((low, high)) if high > low * WIDE => format!("{:.2} (unsure)", of.ratio),
        Some((low, high)) if (high - low) > 0.005 => {
            format!("{:.2} ({low:.2}-{high:.2}){mark}", of.ratio)
        }
        _ => format!("{:.2}{mark}", of.ratio),
    }
}
