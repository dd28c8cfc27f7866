//! How much memory was used, and when.

use varve_analyse::{Analysis, Remainder, format};
use varve_model::TouchSource;

use super::chart;
use super::page::{Page, Tone};
use super::table::ABSENT;

pub(super) fn write(page: &mut Page, a: &Analysis) {
    let f = &a.footprint;
    let (Some(&touched), Some(&reuse)) = (f.touched_pages.value(), a.reuse.value()) else {
        return;
    };
    page.heading("Footprint");
    let several = a.processes.len() > 1;
    let mut parts = vec![format!(
        "{} touched ({})",
        format::pages_size(touched),
        format::counted(touched.0, "page")
    )];
    if let (Some(resident), false) = (f.peak_resident_pages.value(), several) {
        parts.push(format!(
            "{} resident at most at an interval's end",
            format::pages_size(*resident)
        ));
    }
    if let (Some(peak), false) = (kernels_peak(a), several) {
        parts.push(format!("{peak} at any time, as the kernel counts it"));
    }
    page.wrapped(&parts.join(", "), Tone::Plain);
    if several {
        page.wrapped(&per_process(a), Tone::Plain);
    }
    let pages = reuse.pages().0;
    for (name, part) in [
        ("in 1 interval", reuse.once),
        ("in 2 intervals", reuse.twice),
        ("in 3 or more", reuse.more),
    ] {
        let share = part.0 as f64 / pages.max(1) as f64;
        page.line(&format!(
            "  touched {name:<15}{:>7}  {:>9}  {}",
            format::percent(part.0, pages),
            format::pages_size(part),
            chart::bar(share, 30)
        ));
    }
    let rests = [
        (&a.unowned, "belong to no known object"),
        (&a.shared, "are shared by several objects and count in each"),
        (
            &a.own_memory,
            "are Varve's own in the target, in no other figure",
        ),
    ];
    for (rest, what) in rests {
        if let Some(rest) = rest.value().filter(|rest| **rest != Remainder::default()) {
            page.line(&format!(
                "  {}, {}, {what}",
                format::counted(rest.touched_pages.0, "page"),
                format::pages_size(rest.touched_pages)
            ));
        }
    }
    for s in a.sources.items() {
        let why = match s.source {
            TouchSource::Sticky => {
                "bits that cannot be cleared: they count from their first touch on"
            }
            TouchSource::Pinned => "pinned for direct access: they count while pinned",
            _ => continue,
        };
        page.wrapped(
            &format!(
                "  up to {} per interval are {why}",
                format::counted(s.peak_pages.0, "page")
            ),
            Tone::Plain,
        );
    }
    let possibly = f.possibly_others_pages.value();
    if let Some((&pages, &touches @ 1..)) = possibly.zip(f.possibly_others_page_touches.value()) {
        page.wrapped(
            &format!(
                "  possibly touched by others: {}, {}, in {}: pages of shared files and memory known only by a flag that other \
                 processes set too; they are in no other figure",
                format::counted(pages.0, "page"),
                format::pages_size(pages),
                format::counted(touches, "page touch")
                    .replace("touchs", "touches"),
            ),
            Tone::Plain,
        );
    }
}

/// What the processes touched and had, where a page that several use counts in each.
fn per_process(a: &Analysis) -> String {
    let f = &a.footprint;
    let mut text = format!(
        "summed over {} processes, where a page that several use counts in each: {} touched",
        format::count(a.processes.len() as u64),
        f.touched_pages_per_process
            .value()
            .map_or(ABSENT.to_owned(), |pages| format::pages_size(*pages))
    );
    if let Some(resident) = f.peak_resident_pages.value() {
        text += &format!(
            ", {} resident at most at an interval's end",
            format::pages_size(*resident)
        );
    }
    if let Some(peak) = kernels_peak(a) {
        text += &format!(
            "; {peak} resident at most in one of them at any time, as the kernel counts it"
        );
    }
    text
}

/// The most resident memory of one process.
fn kernels_peak(a: &Analysis) -> Option<String> {
    let peak = &a.footprint.peak_process_bytes;
    peak.value()?;
    Some(peak.text(|bytes| format::bytes(*bytes)))
}
