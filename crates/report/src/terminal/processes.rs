//! Processes, and which threads touched pages first.

use varve_analyse::{Analysis, format};

use super::page::Page;
use super::table::{Align, Table};

/// Processes that are shown.
const PROCESSES: usize = 5;

pub(super) fn write(page: &mut Page, a: &Analysis) {
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
