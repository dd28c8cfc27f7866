//! Which thread touched pages first.

use varve_analyse::{Analysis, format};
use varve_model::visible;

use super::chart;
use super::page::Page;

/// Threads that are shown.
pub(super) const THREADS: usize = 6;

pub(super) fn write(page: &mut Page, a: &Analysis) {
    let threads = a.threads.items();
    let all: u64 = threads.iter().map(|t| t.first_touches.0).sum();
    if all == 0 {
        return;
    }
    let shown = page.rows(THREADS);
    page.heading("First touch by thread (page faults)");
    for t in threads.iter().take(shown) {
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
    if threads.len() > shown {
        let rest: u64 = threads.iter().skip(shown).map(|t| t.first_touches.0).sum();
        page.line(&format!(
            "  {}: {} (--all shows them)",
            format::counted((threads.len() - shown) as u64, "other thread"),
            format::counted(rest, "page")
        ));
    }
}
