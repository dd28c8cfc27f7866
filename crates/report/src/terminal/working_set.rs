//! The working set over time.

use varve_analyse::{Analysis, Known, format};
use varve_model::Pages;
use varve_trace::ClockUnit;

use super::chart;
use super::page::{Page, Tone};
use super::table::ABSENT;
use crate::text::span;

pub(super) fn write(page: &mut Page, a: &Analysis) {
    if a.working_set.items().is_empty() {
        return;
    }
    page.heading("Working set over time");
    // Ticks of unknown length are no axis that a person could read.
    if a.trace.clock_unit != ClockUnit::Ticks {
        let label = |length| span(a, length);
        for line in chart::area(
            a.working_set.items(),
            a.trace.start_ns,
            (page.width, chart::HEIGHT),
            &label,
        ) {
            page.line(&line);
        }
    }
    let size = |pages: &Known<Pages>| {
        let pages = pages.value();
        pages.map_or(ABSENT.to_owned(), |pages| format::pages_size(*pages))
    };
    page.wrapped(
        &format!(
            "per interval: {} on average, {} at most",
            size(&a.footprint.mean_working_set_pages),
            size(&a.footprint.peak_working_set_pages)
        ),
        Tone::Plain,
    );
}
