//! What `varve fit` prints.

use varve_analyse::format;
use varve_model::{Bytes, visible};
use varve_tier::fit::{Fit, FitPoint, FitRuns, FitWay, Predicted, limit_files};

use super::WIDTHS;
use super::chart::bar;
use super::page::{Page, Tone};
use super::table::{ABSENT, Align, Table};

/// Columns of a bar; a full one is a run that takes twice as long, or longer.
const BAR: usize = 20;
/// Points of the curve that are shown besides the limits that were tried.
const POINTS: usize = 10;

/// The text.
pub fn render(of: &Fit, width: usize, color: bool) -> String {
    let mut page = Page::new(width.clamp(*WIDTHS.start(), *WIDTHS.end()), color);
    let tone = match of.holds {
        Some(true) => Tone::Good,
        Some(false) => Tone::Bad,
        None => Tone::Notice,
    };
    page.wrapped(&visible(&headline(of)), tone);
    curve(&mut page, of);
    runs(&mut page, of);
    if let Some(limit) = of.limit.filter(|_| of.holds != Some(false)) {
        page.heading("The limit, for others");
        for (name, text) in limit_files(limit, of.unlimited.peak) {
            let lines = text.lines().filter(|l| !l.starts_with('#'));
            let text: Vec<&str> = lines.map(str::trim).collect();
            page.item(&format!("{name}: {}", text.join("; ")));
        }
    }
    page.heading("What these figures are");
    page.item(&format!(
        "Predicted times are the run without a limit and what pages cost that move: {} to read one from {} ({} where its neighbour came just before) and {} to write one, measured here with {}; {} at once.",
        nanoseconds(of.prices.read_ns),
        visible(&of.swap),
        nanoseconds(of.prices.near_read_ns),
        nanoseconds(of.prices.write_ns),
        match of.sampled_pages {
            0 => "made-up pages".to_owned(),
            n => format!("{} of the program", format::counted(n, "page")),
        },
        format::counted(of.unlimited.parallel.round() as u64, "thread"),
    ));
    for note in &of.notes {
        page.item(note);
    }
    page.text
}

fn nanoseconds(of: f64) -> String {
    format::duration(varve_model::Duration(of as u64))
}

/// A slowdown in words.
fn more(slowdown: f64) -> String {
    match slowdown {
        s if s.abs() < 0.001 => "the same time".to_owned(),
        s if s < 0.0 => format!("{} less time", format::share(-s)),
        s if s <= 1.0 => format!("{} more time", format::share(s)),
        s => format!("{:.1} times the time", s + 1.0),
    }
}

fn headline(of: &Fit) -> String {
    let whole = format::bytes(of.unlimited.peak);
    let Some(limit) = of.limit else {
        return format!(
            "No limit below {whole}, which the program uses, would keep it within {} more time.",
            of.asked_slowdown.map_or_else(String::new, format::share)
        );
    };
    let small = format::bytes(limit);
    let first = match of.best() {
        Some(best) => {
            let how = match best.way {
                FitWay::Planned => " with its plan",
                _ => "",
            };
            format!(
                "Runs in {small} of {whole} at {}{how}",
                more(best.slowdown.unwrap_or(0.0))
            )
        }
        None if of.holds.is_none() => {
            format!("{small} of {whole} would do by the model; no run was made under that limit")
        }
        None => format!("Does not run in {small} of {whole}: {}", why(of)),
    };
    let needs = match (of.kernel_needs, of.asked_slowdown) {
        (Some(needs), Some(asked)) if needs != limit => format!(
            "; the kernel alone needs {} for at most {} more{}",
            format::bytes(needs),
            format::share(asked),
            match measured(of, needs) {
                Some(slowdown) => format!(" (measured: {})", more(slowdown)),
                None => " (predicted)".to_owned(),
            }
        ),
        _ => String::new(),
    };
    let asked = match (of.holds, of.asked_slowdown) {
        (Some(false), Some(asked)) if of.best().is_some() => {
            format!(". That is more than the {} asked for", format::share(asked))
        }
        _ => String::new(),
    };
    format!("{first}{needs}{asked}.")
}

/// Why nothing came to its end.
fn why(of: &Fit) -> &'static str {
    let at = of
        .runs
        .iter()
        .filter(|r| r.memory == of.limit && of.limit.is_some());
    match at.clone().any(|r| r.out_of_memory > 0) {
        true => "it ran out of memory",
        false => "it took more than 10 times as long, and was ended",
    }
}

fn measured(of: &Fit, memory: Bytes) -> Option<f64> {
    let found = of
        .runs
        .iter()
        .find(|r| r.memory == Some(memory) && r.way == FitWay::Kernel);
    found.filter(|r| r.works())?.slowdown
}

fn curve(page: &mut Page, of: &Fit) {
    page.heading("Run time against memory, predicted");
    let mut table = Table::new(&[
        ("memory", Align::Name),
        ("", Align::Right),
        ("kernel alone", Align::Right),
        ("with a plan", Align::Right),
        ("", Align::Left),
        ("pages read", Align::Right),
        ("LRU", Align::Right),
        ("optimum", Align::Right),
    ]);
    let every = of.curve.len().div_ceil(POINTS).max(1);
    let tried = |p: &FitPoint| of.runs.iter().any(|r| r.memory == Some(p.memory));
    let shown = of.curve.iter().rev().enumerate();
    for (_, point) in shown.filter(|(i, p)| i % every == 0 || tried(p)) {
        let mark = if Some(point.memory) == of.limit {
            " (tried)"
        } else {
            ""
        };
        let least = if point.is_bound() { "≥ " } else { "" };
        table.row([
            format!("{}{mark}", format::bytes(point.memory)),
            format::share(point.share),
            format!("{least}{}", slowdown(&point.kernel)),
            format!("{least}{}", slowdown(&point.planned)),
            bar(point.planned.slowdown, BAR),
            format::count(point.kernel.paged.reads),
            format::count(point.lru_reads),
            format::count(point.optimum_reads),
        ]);
    }
    page.table(&table);
}

fn slowdown(of: &Predicted) -> String {
    match (of.paged.stuck > 0, of.slowdown) {
        (true, _) => "no memory".to_owned(),
        (false, s) if s >= 9.0 => "> 10 x".to_owned(),
        (false, s) => increase(s),
    }
}

/// A share above 100 % is a number of times.
fn increase(of: f64) -> String {
    match of {
        s if s >= 1.0 => format!("{:.1} x", s + 1.0),
        s if s < 0.0 => format!("-{}", format::share(-s)),
        s => format!("+{}", format::share(s)),
    }
}

fn runs(page: &mut Page, of: &Fit) {
    page.heading("Measured, by turns");
    let mut table = Table::new(&[
        ("limit", Align::Name),
        ("", Align::Left),
        ("runs", Align::Right),
        ("median", Align::Right),
        ("more", Align::Right),
        ("predicted", Align::Right),
        ("pages read", Align::Right),
        ("predicted", Align::Right),
        ("waited", Align::Right),
    ]);
    for run in &of.runs {
        table.row(row(run));
    }
    page.table(&table);
}

fn row(run: &FitRuns) -> [String; 9] {
    let absent = || ABSENT.to_owned();
    let share = |s: Option<f64>| s.map_or_else(absent, format::share);
    let more = |s: Option<f64>| s.map_or_else(absent, increase);
    let count = |n: Option<u64>| n.map_or_else(absent, format::count);
    let is_whole = run.way == FitWay::Unlimited;
    [
        run.memory.map_or_else(|| "none".to_owned(), format::bytes),
        match run.way {
            FitWay::Unlimited => String::new(),
            FitWay::Kernel => "kernel alone".to_owned(),
            FitWay::Planned => "with the plan".to_owned(),
        },
        run.wall_ns.len().to_string(),
        match run.median_ns {
            _ if run.out_of_memory > 0 => "out of memory".to_owned(),
            _ if run.too_slow > 0 => "> 10 times".to_owned(),
            median => median.map_or_else(absent, format::duration),
        },
        if is_whole {
            absent()
        } else {
            more(run.slowdown)
        },
        more(run.predicted_slowdown),
        if is_whole { absent() } else { count(run.reads) },
        count(run.predicted_reads),
        share(run.stalled_share),
    ]
}
