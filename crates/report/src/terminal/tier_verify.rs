//! What `varve tier verify` prints.

use varve_analyse::format;
use varve_model::{Duration, Pages, visible};
use varve_tier::{Verified, VerifiedRun};

use super::WIDTHS;
use super::page::{Page, Tone};
use super::table::{ABSENT, Align, Table};

/// The text.
pub fn render(of: &Verified, width: usize, color: bool) -> String {
    let width = width.clamp(*WIDTHS.start(), *WIDTHS.end());
    let mut page = Page::new(width, color);
    page.whole = true;
    page.wrapped(&headline(of), Tone::Strong);
    if !of.places.is_empty() {
        page.heading("Places");
        let mut table = Table::new(&[
            ("object", Align::Name),
            ("tier", Align::Left),
            ("size", Align::Right),
            ("looks", Align::Right),
            ("near", Align::Right),
            ("least", Align::Right),
            ("right", Align::Right),
        ]);
        let share = |of: Option<f64>| of.map_or_else(|| ABSENT.to_owned(), format::share);
        for place in &of.places {
            table.row(vec![
                visible(&place.name).into_owned(),
                visible(&place.tier).into_owned(),
                format::pages_size(Pages(place.peak_pages)),
                format::count(place.looks),
                share(place.share_near),
                share(place.least_share_near),
                share(place.share_right),
            ]);
        }
        page.table(&table);
    }
    if !of.planned.is_empty() || !of.unplanned.is_empty() {
        page.heading("Runs");
        let mut table = Table::new(&[
            ("", Align::Name),
            ("run time", Align::Right),
            ("major faults", Align::Right),
            ("exit code", Align::Right),
        ]);
        let of_planned = of.planned.iter().map(|r| ("as planned", r));
        for (name, run) in of_planned.chain(of.unplanned.iter().map(|r| ("without", r))) {
            table.row(row(name, run));
        }
        page.table(&table);
    }
    page.heading("What these figures are");
    page.item("Near is in memory, or on the node of the tier, as the kernel says of each page that was ever touched; right is where the plan says. What yields may be anywhere.");
    for note in &of.notes {
        page.item(note);
    }
    page.text
}

fn row(name: &str, run: &VerifiedRun) -> Vec<String> {
    vec![
        name.to_owned(),
        format::duration(Duration(run.wall_ns)),
        format::count(run.major_faults),
        run.exit_code.to_string(),
    ]
}

fn headline(of: &Verified) -> String {
    let right = of.share_right.map_or_else(
        || "Nothing was seen of what the plan places.".to_owned(),
        |share| {
            format!(
                "{} of planned pages were where they should be.",
                format::share(share)
            )
        },
    );
    let worth = of.change.map_or_else(String::new, |c| {
        let faults = c.major_faults.map_or_else(String::new, |f| {
            format!(", and has {f:.2} times the major faults")
        });
        format!(
            " As planned the program takes {:.2} times the run time that it takes without{faults}.",
            c.wall
        )
    });
    right + &worth
}
