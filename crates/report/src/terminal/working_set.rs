//! The working set over time.

use varve_analyse::{Analysis, format};
use varve_trace::ClockUnit;

use super::chart;
use super::page::{Page, Tone};
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
    page.wrapped(
        &format!(
            "per interval: {} on average, {} at most",
            format::pages_size(a.footprint.mean_working_set_pages.or_zero()),
            format::pages_size(a.footprint.peak_working_set_pages.or_zero())
        ),
        Tone::Plain,
    );
}
