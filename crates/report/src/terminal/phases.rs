//! The phases that the program names.

use varve_analyse::{Analysis, PhaseUse, format};
use varve_model::visible;

use super::page::{Page, Tone};

/// Phases that are shown.
const PHASES: usize = 12;
/// Letters of a name.
const NAME: usize = 28;

pub(super) fn write(page: &mut Page, a: &Analysis) {
    if a.phases.is_empty() {
        return;
    }
    let shown = page.rows(PHASES);
    page.heading("Phases that the program names");
    page.line(&format!(
        "  {:<NAME$}{:>9}{:>11}{:>12}{:>12}{:>12}",
        "", "times", "time", "touched", "at most", "mean"
    ));
    for phase in a.phases.iter().take(shown) {
        page.line(&row(phase));
    }
    if a.phases.len() > shown {
        let rest = format::counted((a.phases.len() - shown) as u64, "other name");
        page.line(&format!("  {rest} (--all shows them)"));
    }
    let open: u64 = a.phases.iter().map(|p| p.open).sum();
    if open > 0 {
        let note = format!(
            "{}: counted up to the end of its thread, its program or the recording.",
            format::counted(open, "phase that the program did not end")
        );
        page.wrapped(&note, Tone::Faint);
    }
    page.wrapped(
        "touched: distinct memory of all threads in the intervals that overlap with the phase; at most and mean: of one such interval. An interval in \
         which a phase begins or ends counts to both sides. The time is the sum over threads.",
        Tone::Faint,
    );
}

fn row(phase: &PhaseUse) -> String {
    let name: String = visible(&phase.name).to_string();
    let name = match name.chars().count() > NAME - 1 {
        true => name.chars().take(NAME - 2).chain(['…']).collect(),
        false => name,
    };
    if phase.kind != "phase" {
        return format!("  {name:<NAME$}{:>9}      event", phase.times);
    }
    let memory = |pages: &varve_analyse::Known<varve_model::Pages>| {
        let text = pages.value().map(|p| format::pages_size(*p));
        text.unwrap_or_else(|| "–".to_owned())
    };
    format!(
        "  {name:<NAME$}{:>9}{:>11}{:>12}{:>12}{:>12}",
        phase.times,
        format::duration(phase.total_ns),
        memory(&phase.touched_pages),
        memory(&phase.peak_working_set_pages),
        memory(&phase.mean_working_set_pages)
    )
}
