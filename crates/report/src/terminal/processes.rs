//! Processes, and which threads touched pages first.

use varve_analyse::{Analysis, ProcessUse, format};
use varve_model::{Bytes, Pages};

use super::page::Page;
use super::table::{ABSENT, Align, Table};

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
        ("resident, peak", Align::Right),
        ("exit", Align::Right),
    ])
    // Command lines may be pages long.
    .one_line_each();
    let mut most: Vec<_> = a.processes.iter().collect();
    let pages = |p: &ProcessUse| p.touched.get().map(|t| t.touched_pages);
    let shared = |p: &ProcessUse| p.touched.get().map(|t| t.shared_pages);
    let size = |pages: Option<Pages>| pages.map_or(ABSENT.to_owned(), format::pages_size);
    most.sort_by_key(|p| (std::cmp::Reverse(pages(p)), p.pid));
    for p in most.iter().take(page.rows(PROCESSES)) {
        let command = match p.command.is_empty() {
            true => "(unknown)".to_owned(),
            false => p.command.clone(),
        };
        table.row([
            command,
            p.pid.to_string(),
            p.threads.to_string(),
            size(pages(p)),
            size(shared(p)),
            match p.peak_resident.value() {
                Some(_) => p.peak_resident.text(|b: &Bytes| format::bytes(*b)),
                None => ABSENT.to_owned(),
            },
            p.exit_code.map_or("-".to_owned(), |c| c.to_string()),
        ]);
    }
    page.table(&table);
    page.more(most.len(), PROCESSES, 0);
}
