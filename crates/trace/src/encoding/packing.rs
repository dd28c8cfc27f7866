//! How touches are cut into rows, which is free as long as the rows hold the same pages.
//!
//! Where runs are few, one row for each is smallest. Where pages are touched at random and about as
//! often as not, the start and the length of a run say much the same twice; a row for each page then
//! leaves a column of lengths that are all 1, and starts whose distances are as random as the touches
//! themselves and no more.

use std::borrow::Cow;

use crate::tables::TouchRow;

/// Rows that are looked at together.
const WINDOW: usize = 64;
/// More runs than this per page of the span make a window random; below, runs cost less than a bit
/// a page.
const RUNS_PER_PAGE: f64 = 0.1;
/// Shorter runs than this on average are single pages already.
const MIN_MEAN: f64 = 1.2;

/// The same touches in the rows that are smallest when written.
pub(crate) fn pack(rows: &[TouchRow]) -> Cow<'_, [TouchRow]> {
    if !windows(rows).any(is_random) {
        return Cow::Borrowed(rows);
    }
    let mut packed = Vec::with_capacity(rows.len() * 2);
    for window in windows(rows) {
        if !is_random(window) {
            packed.extend_from_slice(window);
            continue;
        }
        for row in window {
            if row.page_bytes != 4096 {
                packed.push(row.clone());
                continue;
            }
            packed.extend((0..row.pages).map(|page| TouchRow {
                page: varve_model::Page(row.page.0.wrapping_add(u64::from(page))),
                pages: 1,
                ..row.clone()
            }));
        }
    }
    Cow::Owned(packed)
}

/// Neighbouring rows of one process in one interval, a few at a time.
fn windows(rows: &[TouchRow]) -> impl Iterator<Item = &[TouchRow]> {
    rows.chunk_by(|a, b| (a.interval, a.pid) == (b.interval, b.pid))
        .flat_map(|rows| rows.chunks(WINDOW))
}

/// Whether the runs of a window lie in one place, many and short.
fn is_random(window: &[TouchRow]) -> bool {
    let (Some(first), Some(last)) = (window.first(), window.last()) else {
        return false;
    };
    // A window that goes back or crosses a hole is not worth more thought.
    if last.page < first.page {
        return false;
    }
    let runs = window.len() as f64;
    let touched: u64 = window.iter().map(|r| u64::from(r.pages)).sum();
    let span = (last.page.0 - first.page.0).saturating_add(u64::from(last.pages));
    // Rows that overlap or lie elsewhere would not become fewer than 4 billion pages, in a hostile trace.
    touched <= span && runs / span as f64 > RUNS_PER_PAGE && touched as f64 / runs > MIN_MEAN
}

#[cfg(test)]
mod tests {
    use varve_model::{Interval, Page, Pid, TouchSource};

    use super::*;

    fn row(page: u64, pages: u32) -> TouchRow {
        TouchRow {
            interval: Interval(1),
            pid: Pid(2),
            page: Page(page),
            pages,
            page_bytes: 4096,
            written: None,
            source: TouchSource::Scan,
        }
    }

    #[test]
    fn long_runs_stay() {
        let rows: Vec<TouchRow> = (0..200).map(|i| row(i * 100, 60)).collect();
        assert_eq!(&*pack(&rows), &rows[..]);
    }

    #[test]
    fn random_runs_become_pages_and_stay_the_same_pages() {
        let rows: Vec<TouchRow> = (0..200)
            .map(|i| row(i * 5, 1 + (i * 7 % 4) as u32))
            .collect();
        let packed = pack(&rows);
        assert!(packed.iter().all(|r| r.pages == 1));
        let pages = |rows: &[TouchRow]| -> Vec<u64> {
            rows.iter()
                .flat_map(|r| r.page.0..r.page.0 + u64::from(r.pages))
                .collect()
        };
        assert_eq!(pages(&packed), pages(&rows));
        assert_eq!(&*pack(&packed), &*packed);
    }
}
