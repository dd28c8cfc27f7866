//! What `varve alloc range` prints.

use varve_alloc::range::{Figure, Range, Ranges};
use varve_model::visible;

use super::WIDTHS;
use super::page::{Page, Tone};
use super::table::{ABSENT, Align, Table};

/// The text.
pub fn render(of: &Ranges, width: usize, color: bool) -> String {
    let width = width.clamp(*WIDTHS.start(), *WIDTHS.end());
    let mut page = Page::new(width, color);
    page.wrapped(&sentence(of), Tone::Strong);
    page.heading("Figures: lowest, median, highest; lower is better");
    let mut columns = vec![
        ("figure", Align::Name),
        ("good allocators", Align::Right),
        ("all allocators", Align::Right),
    ];
    if let Some(graded) = &of.graded {
        columns.push((graded, Align::Right));
        columns.push(("in range", Align::Right));
    }
    let mut table = Table::new(&columns);
    for figure in &of.figures {
        let mut cells = vec![
            figure.name.to_owned(),
            range(figure.good),
            range(figure.all),
        ];
        if of.graded.is_some() {
            cells.push(range(figure.graded));
            cells.push(within(figure));
        }
        table.row(cells);
    }
    page.table(&table);
    page.heading("Allocators");
    let mut table = Table::new(&[
        ("allocator", Align::Name),
        ("programs", Align::Right),
        ("good for", Align::Right),
        ("time, of the best", Align::Right),
        ("peak memory, of the best", Align::Right),
    ]);
    for one in &of.allocators {
        table.row([
            visible(&one.name).into_owned(),
            one.programs.to_string(),
            one.good.to_string(),
            format!("{:.2}", one.time),
            one.peak
                .map_or_else(|| ABSENT.to_owned(), |p| format!("{p:.2}")),
        ]);
    }
    page.table(&table);
    page.text
}

/// What it is of; of a grade, what that is.
fn sentence(of: &Ranges) -> String {
    let programs = varve_analyse::format::counted(of.programs.len() as u64, "program");
    let what = format!(
        "The range of each figure over {programs}: over all allocators, and over those with which a program takes at most 20 % longer than with the best."
    );
    let Some(graded) = &of.graded else {
        return what;
    };
    let name = visible(graded);
    let own = of.allocators.iter().find(|a| a.name == *graded);
    let Some(own) = own else {
        return format!("{name} is in none of the comparisons. {what}");
    };
    let out = of
        .figures
        .iter()
        .filter(|f| f.within < f.graded.map_or(0, |g| g.count));
    let out: Vec<&str> = out.map(|f| f.name).collect();
    let out = match out.is_empty() {
        true => "No figure is beyond those of good allocators".to_owned(),
        false => format!(
            "Beyond those of good allocators, in some program: {}",
            out.join("; ")
        ),
    };
    format!(
        "{name} is good for {} of {programs}, which take {:.2} times as long with it as with the best of the others. {out}. {what}",
        own.good, own.time
    )
}

fn within(of: &Figure) -> String {
    of.graded.map_or_else(
        || ABSENT.to_owned(),
        |g| format!("{} of {}", of.within, g.count),
    )
}

fn range(of: Option<Range>) -> String {
    let Some(of) = of else {
        return ABSENT.to_owned();
    };
    let shown = |n: f64| match n {
        n if n >= 100.0 => format!("{n:.0}"),
        n if n >= 10.0 => format!("{n:.1}"),
        n => format!("{n:.2}"),
    };
    format!(
        "{}  {}  {}",
        shown(of.lowest),
        shown(of.median),
        shown(of.highest)
    )
}
