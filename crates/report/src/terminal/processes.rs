//! Processes, and which threads touched pages first.

use varve_analyse::{Analysis, format};
use varve_model::visible;

use super::chart;
use super::page::Page;
use super::table::{Align, Table};

/// Threads that are shown.
pub(super) const THREADS: usize = 6;
/// Processes that are shown.
const PROCESSES: usize = 5;

pub(super) fn processes(page: &mut Page, a: &Analysis) {
    if a.processes.is_empty() {
        return;
    }
    page.heading(&format!("Processes ({})", a.processes.len()));
    let mut table = Table::new(&[
        ("process", Align::Name),
        ("pid", Align::Right),
        ("threads", Align::Right),
        ("touched", Align::Right),
        ("shared", Align::Right),
        ("exit", Align::Right),
    ])
    // Command lines may be pages long.
    .one_line_each();
    let mut most: Vec<_> = a.processes.iter().collect();
    most.sort_by_key(|p| (std::cmp::Reverse(p.touched_pages), p.pid));
    for p in most.iter().take(PROCESSES) {
        let command = match p.command.is_empty() {
            true => "(unknown)".to_owned(),
            false => p.command.clone(),
        };
        table.row([
            command,
            p.pid.to_string(),
            p.threads.to_string(),
            format::pages_size(p.touched_pages),
            format::pages_size(p.shared_pages),
            p.exit_code.map_or("-".to_owned(), |c| c.to_string()),
        ]);
    }
    page.table(&table);
    if most.len() > PROCESSES {
        page.line(&format!("  and {} more", most.len() - PROCESSES));
    }
}

pub(super) fn threads(page: &mut Page, a: &Analysis) {
    let threads = a.threads.items();
    let all: u64 = threads.iter().map(|t| t.first_touches.0).sum();
    if all == 0 {
        return;
    }
    page.heading("First touch by thread (page faults)");
    for t in threads.iter().take(THREADS) {
        let name = match t.name.is_empty() {
            true => t.tid.to_string(),
            false => format!("{} ({})", visible(&t.name), t.tid),
        };
        page.line(&format!(
            "  {name:<26}{:>7}  {:>15}  {}",
            format::percent(t.first_touches.0, all),
            format::counted(t.first_touches.0, "page"),
            chart::bar(t.first_touches.0 as f64 / all as f64, 24)
        ));
    }
    if threads.len() > THREADS {
        let rest: u64 = threads
            .iter()
            .skip(THREADS)
            .map(|t| t.first_touches.0)
            .sum();
        page.line(&format!(
            "  {}: {}",
            format::counted((threads.len() - THREADS) as u64, "other thread"),
            format::counted(rest, "page")
        ));
    }
}
