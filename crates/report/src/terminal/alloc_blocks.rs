//! Sampled blocks by call stack.

use std::collections::HashMap;

use varve_alloc::{BlockSite, Estimate, Judgement};
use varve_analyse::format;
use varve_model::{Bytes, Duration};

use super::alloc::percent;
use super::page::{Page, Tone};
use super::table::{ABSENT, Align, Table};

pub(super) fn estimate(of: &Estimate) -> String {
    match of.bytes {
        Bytes(0) => ABSENT.to_owned(),
        bytes => format!(
            "{} ± {}",
            format::bytes(bytes),
            format::bytes(of.error_bytes)
        ),
    }
}

/// The rows' places: those that would read the same have as many callers more as it takes to tell them apart.
fn places(of: &[BlockSite]) -> Vec<String> {
    let deepest = of.iter().map(|site| site.stack.len()).max().unwrap_or(0);
    let mut names: Vec<String> = of.iter().map(|site| place(site, 1)).collect();
    for depth in 2..=deepest {
        let mut times: HashMap<&str, u32> = HashMap::new();
        for name in &names {
            *times.entry(name).or_default() += 1;
        }
        let again: Vec<usize> = (0..names.len())
            .filter(|at| times[names[*at].as_str()] > 1)
            .collect();
        if again.is_empty() {
            break;
        }
        for at in again {
            names[at] = place(&of[at], depth);
        }
    }
    names
}

/// Who allocates, and so many callers: a label leaves out what wraps the allocator.
fn place(of: &BlockSite, callers: usize) -> String {
    let own = function(&of.label);
    let frames: Vec<&str> = of.stack.iter().map(|frame| function(frame)).collect();
    let place = frames.iter().rposition(|name| *name == own);
    let outer = place
        .and_then(|at| frames.get(at + 1..))
        .unwrap_or_default();
    let callers = outer.iter().take(callers);
    let names = [of.label.as_str()].into_iter().chain(callers.copied());
    names.collect::<Vec<_>>().join(" < ")
}

/// The function of a frame or a label, without its place.
fn function(name: &str) -> &str {
    let name = name.rsplit_once(", in ").map_or(name, |(_, name)| name);
    match name.rsplit_once(" (") {
        Some((function, place)) if place.ends_with(')') => function,
        _ => name,
    }
}

/// What was not touched for so long is idle.
const IDLE: Duration = Duration(1_000_000_000);
/// Of fewer sampled blocks nothing is said by call stack.
const FEW_SAMPLES: u64 = 20;

/// What lives, by the stacks that allocated it.
pub(super) fn render(page: &mut Page, of: &Judgement, rows: usize) {
    let blocks = &of.blocks;
    if blocks.sample_bytes == Bytes(0) {
        if of.trace.probe_ns.is_some() {
            page.heading("Blocks");
            page.wrapped(
                "No block was sampled: the preload library takes their call stacks, and probes count without it.",
                Tone::Faint,
            );
        }
        return;
    }
    page.heading("Blocks");
    let Some(shown) = blocks.sites.first() else {
        page.line("No block was sampled: the program allocated less than the distance from one to the next.");
        return;
    };
    page.labelled(
        "sampled",
        Tone::Faint,
        &format!(
            "{} of {}, one to {} of allocations; errors hold with 95 % confidence",
            format::counted(blocks.samples, "block"),
            match of.processes.len() {
                0 | 1 => "the process".to_owned(),
                all => format!("all {all} processes together, each up to its end"),
            },
            format::bytes(blocks.sample_bytes)
        ),
    );
    if blocks.samples < FEW_SAMPLES {
        page.wrapped(
            "That is too few for figures by call stack: take more, such as `varve alloc record --sample-every 16KiB`.",
            Tone::Notice,
        );
    }
    page.labelled("allocated", Tone::Plain, &estimate(&blocks.allocated));
    let at_peak = blocks.at_peak.zip(blocks.peak_ns);
    let at_peak = at_peak.map_or_else(
        || "not known".to_owned(),
        |(at_peak, when)| format!("{}, after {}", estimate(&at_peak), format::duration(when)),
    );
    page.labelled("at the peak", Tone::Plain, &at_peak);
    page.labelled("never freed", Tone::Plain, &estimate(&blocks.never_freed));
    if blocks.samples < FEW_SAMPLES {
        return;
    }
    let pages = shown.idle.is_some();
    let mut columns = vec![
        ("allocated by", Align::Name),
        ("in all", Align::Right),
        ("at the peak", Align::Right),
        ("never freed", Align::Right),
        ("lived", Align::Right),
        ("under 1 ms", Align::Right),
        ("freed elsewhere", Align::Right),
    ];
    // A shorter program has nothing that could be as old.
    let pages = pages && of.trace.duration_ns >= IDLE;
    if pages {
        columns.push(("untouched for 1 s", Align::Right));
    }
    let mut table = Table::new(&columns);
    let shown = &blocks.sites[..rows.min(blocks.sites.len())];
    for (site, place) in shown.iter().zip(places(shown)) {
        let mut row = vec![
            place,
            format::bytes(site.allocated.bytes),
            site.at_peak
                .map_or_else(|| ABSENT.to_owned(), |of| format::bytes(of.bytes)),
            estimate(&site.never_freed),
            site.lifetime_p50_ns
                .map_or_else(|| ABSENT.to_owned(), format::duration),
            percent(site.short_lived),
            percent(site.freed_elsewhere),
        ];
        if let Some(idle) = site.idle.filter(|_| pages) {
            let bytes = [idle.ten_seconds, idle.minute, idle.longer, idle.never];
            let bytes = Bytes(bytes.iter().map(|b| b.0).sum());
            row.push(format::bytes(bytes));
        }
        table.row(row);
    }
    page.table(&table);
    page.more(blocks.sites.len(), rows, 0);
    page.labelled(
        "columns",
        Tone::Faint,
        &format!(
            "lived: half of the bytes that were freed no longer; under 1 ms: the share of all bytes; freed elsewhere: by another thread, of what was freed{}. Whole call stacks: --json, or --folded for flame graphs.",
            match pages {
                true => "; untouched for 1 s: never freed, and not touched in the last second before the end",
                false => "",
            }
        ),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_is_named_only_where_it_is_known() {
        let site = |label: &str, stack: &[&str]| BlockSite {
            label: label.to_owned(),
            stack: stack.iter().map(|frame| (*frame).to_owned()).collect(),
            ..BlockSite::default()
        };
        let cases = [
            (
                site(
                    "list.c:81, in grow",
                    &["malloc", "grow (list.c:81)", "main (a.c:3)"],
                ),
                "list.c:81, in grow < main",
            ),
            (
                site(
                    "tree.c:9, in walk",
                    &["walk (tree.c:9)", "walk (tree.c:12)", "main"],
                ),
                "tree.c:9, in walk < main",
            ),
            // Without symbols: innermost first, below the C library's.
            (
                site(
                    "tar+0x15a3e",
                    &[
                        "__alloc_dir",
                        "tar+0x15a3e",
                        "tar+0x9c0",
                        "__libc_start_main",
                    ],
                ),
                "tar+0x15a3e < tar+0x9c0",
            ),
            (
                site("libx.so+0x7", &["malloc", "libx.so+0x7", "use (u.c:1)"]),
                "libx.so+0x7 < use",
            ),
            (site("other", &["malloc", "main"]), "other"),
        ];
        for (of, expected) in cases {
            assert_eq!(place(&of, 1), expected);
        }
    }

    #[test]
    fn rows_that_read_the_same_have_more_callers() {
        let site = |stack: &[&str]| BlockSite {
            label: "list.c:81, in grow".to_owned(),
            stack: stack.iter().map(|frame| (*frame).to_owned()).collect(),
            ..BlockSite::default()
        };
        let grow = "grow (list.c:81)";
        let sites = [
            site(&["malloc", grow, "push", "load", "main"]),
            site(&["malloc", grow, "push", "sort", "main"]),
            site(&["malloc", grow, "clone", "main"]),
        ];
        let expected = ["push < load", "push < sort", "clone"];
        let expected = expected.map(|callers| format!("list.c:81, in grow < {callers}"));
        assert_eq!(places(&sites), expected);
    }

    #[test]
    fn a_name_is_told_from_its_place() {
        let pairs = [
            ("list.c:81, in grow", "grow"),
            ("grow (prog+0x7b)", "grow"),
            ("Map::operator() (a.cpp:7)", "Map::operator()"),
            ("f(int, char) (a.cpp:7)", "f(int, char)"),
            ("prog+0x7b", "prog+0x7b"),
        ];
        for (name, expected) in pairs {
            assert_eq!(function(name), expected);
        }
    }
}
