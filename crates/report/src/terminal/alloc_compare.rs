//! What `varve alloc compare` prints.

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
        "Ratios to {}, of {} runs each; * marks those that are 20 % off or more for sure",
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
    for one in &of.allocators {
        if let Some(why) = &one.failed {
            page.item(&format!("{} was left out: {}", one.name, visible(why)));
        }
    }
    let explained: Vec<_> = of.allocators.iter().filter(|a| !a.why.is_empty()).collect();
    if !explained.is_empty() {
        page.heading("Why");
        for one in explained {
            page.labelled(&one.name, Tone::Plain, &one.why.join("; "));
        }
    }
    page.text
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
