//! The pages of one interval.

use std::collections::BTreeMap;

use varve_model::{Page, PageRange, Pages, Pid, Time, TouchSource};

use crate::error::Trouble;
use crate::sink::Sink;

/// Pages and whether they were written.
#[derive(Default)]
pub(crate) struct PageSet {
    pages: BTreeMap<u64, bool>,
}

impl PageSet {
    pub(crate) fn add(&mut self, range: PageRange, written: bool) {
        for page in range.first.0..range.end().0 {
            *self.pages.entry(page).or_default() |= written;
        }
    }

    /// Writes an interval and its touches, and begins anew.
    pub(crate) fn flush(
        &mut self,
        sink: &mut Sink<'_>,
        pid: Pid,
        (start, end): (Time, Time),
        source: TouchSource,
    ) -> Result<(), Trouble> {
        let interval = sink.interval(start, end);
        let mut run: Option<(u64, u64, bool)> = None;
        let mut runs = Vec::new();
        for (page, written) in std::mem::take(&mut self.pages) {
            match &mut run {
                Some((_, end, w)) if *end == page && *w == written => *end += 1,
                _ => runs.extend(run.replace((page, page + 1, written))),
            }
        }
        runs.extend(run);
        for (first, end, written) in runs {
            let pages = PageRange {
                first: Page(first),
                count: Pages(end - first),
            };
            sink.touch(interval, pid, pages, Some(written), source)?;
        }
        Ok(())
    }
}
