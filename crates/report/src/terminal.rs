//! The text that `varve report` prints: a first screen, or the sections that were asked for.

mod access_time;
pub mod alloc;
mod alloc_blocks;
pub mod alloc_compare;
mod alloc_pages;
pub mod alloc_range;
mod alloc_tables;
mod chart;
pub mod check;
mod counts;
pub mod diff;
mod findings;
pub mod fit;
mod footprint;
mod objects;
mod overview;
mod page;
mod phases;
mod processes;
mod recording;
mod samples;
mod sharing;
mod table;
mod threads;
pub mod tier;
pub mod tier_verify;
mod unknown;
mod working_set;

use std::path::Path;
use varve_analyse::{Analysis, Known, Section};
use varve_model::Capability;

use crate::text::quoted_path;
pub use page::wrap;
use page::{Page, Tone};

/// Narrower pages cannot be read, wider ones neither.
const WIDTHS: std::ops::RangeInclusive<usize> = 60..=120;

/// What is to be shown, and how.
#[derive(Clone, Debug)]
pub struct TerminalOptions {
    /// The sections; none: the first screen.
    pub sections: Vec<Section>,
    /// Whether tables have all their rows, and not the first ones.
    pub whole: bool,
    /// Columns, 60 to 120.
    pub width: usize,
    /// Whether with ANSI colours.
    pub color: bool,
}

/// The text. `folder` is where the trace is.
pub fn render(analysis: &Analysis, folder: &Path, options: &TerminalOptions) -> String {
    let width = options.width.clamp(*WIDTHS.start(), *WIDTHS.end());
    let mut page = Page::new(width, options.color);
    page.whole = options.whole;
    if options.sections.is_empty() {
        overview::write(&mut page, analysis, folder);
        return page.text;
    }
    let is_whole = options.sections.contains(&Section::Recording);
    if !is_whole {
        recording::head(&mut page, analysis);
    }
    for section in &options.sections {
        let before = page.text.len();
        write(&mut page, analysis, folder, *section);
        // Whoever asked for everything does not ask why there is no more.
        if page.text.len() == before && !is_whole {
            page.gap();
            page.labelled(section.name(), Tone::Plain, &nothing_of(analysis, *section));
        }
    }
    if is_whole {
        page.gap();
        let next = format!(
            "next: `varve report {} --html page.html` draws the map of time and addresses; --json gives all numbers",
            quoted_path(folder)
        );
        page.wrapped(&next, Tone::Faint);
    }
    page.text
}

/// What is said of a section that has nothing to show.
fn nothing_of(a: &Analysis, section: Section) -> String {
    let text = match section {
        Section::Unknown => "nothing that the trace should say is missing",
        Section::Samples => "the trace has no samples",
        Section::Counts => "accesses were not counted",
        Section::Sharing => "no thread of an access is known",
        Section::Phases if !a.trace.has(Capability::Marks) => {
            return format!("not known: {}", varve_analyse::MARKS_UNHEARD);
        }
        Section::Phases => "the program names none",
        Section::Threads => "the trace has no page faults of these threads",
        _ => "the trace has none of that",
    };
    text.to_owned()
}

fn write(page: &mut Page, a: &Analysis, folder: &Path, section: Section) {
    let some = |count: &Known<u64>| count.value().is_some_and(|count| *count > 0);
    let has_touches = some(&a.trace.intervals) || some(&a.trace.touch_rows);
    match section {
        Section::Overview => overview::write(page, a, folder),
        Section::Recording => recording::what_ran(page, a),
        Section::Footprint if has_touches => footprint::write(page, a),
        Section::WorkingSet if has_touches => working_set::write(page, a),
        Section::Objects if has_touches => objects::write(page, a),
        Section::Objects => objects::without_touches(page, a),
        Section::Phases => phases::write(page, a),
        Section::Processes => processes::write(page, a),
        Section::Threads => threads::write(page, a),
        Section::Samples => samples::write(page, a),
        Section::Counts => counts::write(page, a),
        Section::Sharing => sharing::write(page, a),
        Section::Findings => findings::write(page, a),
        Section::Unknown => unknown::write(page, a, folder),
        Section::Footprint | Section::WorkingSet => (),
    }
}
