//! How full the allocator's pages are, what keeps nearly empty ones, and which blocks share cache lines.

use varve_alloc::{Fill, HeapPages, Judgement, LastTouch};
use varve_analyse::format;
use varve_model::Bytes;

use super::alloc::percent;
use super::alloc_blocks::estimate;
use super::page::{Page, Tone};
use super::table::{ABSENT, Align, Table};

/// What is less is not worth a table.
const MIN_PINNED: u64 = 1 << 20;

pub(super) fn render(page: &mut Page, of: &Judgement, rows: usize) {
    if let Some(pages) = &of.pages {
        fill(page, pages);
        pinned_by(page, pages, rows);
    }
    lines(page, of);
    choice(page, of);
}

fn share(part: Bytes, of: Bytes) -> String {
    format::percent(part.0, of.0)
}

fn fill(page: &mut Page, pages: &HeapPages) {
    let Fill {
        resident_bytes: all,
        live_bytes,
        empty_bytes,
        pinned_bytes,
        ..
    } = pages.peak;
    page.labelled(
        "its pages",
        Tone::Plain,
        &format!(
            "when most was resident blocks had {} of it; {} was free on pages with blocks, {} on pages without. Blocks fill {:.0} % of the cache lines that they touch{}",
            share(live_bytes, all),
            share(pinned_bytes, all),
            share(empty_bytes, all),
            pages.peak.line_use() * 100.0,
            match pages.peak.shared_pages {
                0 => String::new(),
                1 => ". 1 page has blocks of several threads".to_owned(),
                shared => format!(". {} pages have blocks of several threads", format::count(shared)),
            }
        ),
    );
}

fn pinned_by(page: &mut Page, pages: &HeapPages, rows: usize) {
    let then = &pages.sparsest;
    if then.sparse_pinned_bytes.0 < MIN_PINNED {
        return;
    }
    page.heading("Nearly empty pages");
    page.wrapped(
        &format!(
            "After {} blocks filled {} to a quarter at most: {} of {} resident was free there and could not be given back.",
            format::duration(then.time_ns),
            format::counted(then.sparse_pages, "page"),
            format::bytes(then.sparse_pinned_bytes),
            format::bytes(then.resident_bytes),
        ),
        Tone::Plain,
    );
    if pages.pinned_by.is_empty() {
        page.wrapped(
            "No block on them was sampled: `varve alloc record --sample-every 16KiB` takes more.",
            Tone::Notice,
        );
        return;
    }
    let mut table = Table::new(&[
        ("kept by blocks of", Align::Name),
        ("keep", Align::Right),
        ("sampled", Align::Right),
        ("half no older than", Align::Right),
        ("pages touched", Align::Left),
    ]);
    for by in pages.pinned_by.iter().take(rows) {
        table.row([
            by.label.clone(),
            estimate(&by.pinned),
            format::count(by.samples),
            format::duration(by.age_p50_ns),
            by.touched
                .as_ref()
                .map_or_else(|| ABSENT.to_owned(), touched),
        ]);
    }
    page.table(&table);
}

/// When most of it was touched last.
fn touched(of: &LastTouch) -> String {
    let parts = [
        (of.second, "in the last second"),
        (of.ten_seconds, "1 to 10 s before"),
        (of.minute, "10 to 60 s before"),
        (of.longer, "longer before, or never"),
    ];
    let all = Bytes(parts.iter().map(|(bytes, _)| bytes.0).sum());
    match parts.iter().max_by_key(|(bytes, _)| *bytes) {
        Some((bytes, when)) if all.0 > 0 => format!("{} {when}", share(*bytes, all)),
        _ => ABSENT.to_owned(),
    }
}

/// Where the largest part of some blocks came from, as a sentence of its own.
fn came_from(sites: &[(String, u64)], all: u64) -> String {
    sites.first().map_or_else(String::new, |(name, part)| {
        let which = format::largest_part(*part, all, "Most of them");
        format!(". {which} came from {name}")
    })
}

fn choice(page: &mut Page, of: &Judgement) {
    let Some(far) = of.choice.far else {
        return;
    };
    let from = came_from(&of.choice.sites, of.choice.far_blocks);
    page.heading("Choice of free blocks");
    page.labelled(
        "small ones",
        Tone::Plain,
        &format!(
            "{} ± {} of {} that were allocated soon after others of their size had been freed lie 64 KiB and more away from these and from the block before{from}",
            percent(far.share),
            percent(far.error),
            format::counted(of.choice.blocks, "sampled block"),
        ),
    );
}

fn lines(page: &mut Page, of: &Judgement) {
    let lines = &of.lines;
    if lines.blocks == 0 {
        return;
    }
    page.heading("Cache lines with blocks of several threads");
    let from = came_from(&lines.sites, lines.blocks);
    page.labelled(
        "blocks",
        Tone::Plain,
        &format!(
            "{} began on a line with a block of another thread, {} of all: {} by the allocator alone (active), {} in memory that was freed for another thread (passive){from}",
            format::count(lines.blocks),
            percent(lines.share),
            format::count(lines.active),
            format::count(lines.passive),
        ),
    );
    let text = match &lines.confirmed {
        None => {
            "not known: there are no samples, or too few, to say whether their threads meet there"
                .to_owned()
        }
        Some(found) if found.lines == 0 => {
            "samples found none where threads use different bytes and write".to_owned()
        }
        Some(found) => format!(
            "samples found {} where threads use different bytes and write, with {} of the time at accesses",
            format::counted(found.lines, "line"),
            percent(found.share)
        ),
    };
    page.labelled("use", Tone::Plain, &text);
}
