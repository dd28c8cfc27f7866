//! How full the pages of the allocator are with blocks that live, and which blocks keep those that are nearly empty.
//!
//! How full pages are is known of each page ([`HeapPagesRow`]). Which blocks lie on nearly empty ones ([`SparsePagesRow`]) is known of those that were
//! sampled: the free memory of such a page is divided among its blocks by their bytes, and that of all pages among call stacks.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;
use ts_rs::TS;
use varve_model::{Bytes, Duration, PAGE_BYTES, Pid, SiteId, Time};
use varve_trace::tables::{HeapPagesRow, SparsePagesRow, TouchRow};
use varve_trace::{Trace, TraceError};

use super::blocks::idle::{Intervals, band};
use super::blocks::sampled::Block;
use super::blocks::{Sampled, stack_of};
use super::estimate::{Estimate, Sum};
use super::operations;
use crate::read::Tables;

/// Looks that are kept of a run.
const MAX_LOOKS: usize = 512;
/// Stacks that are kept.
const MAX_SITES: usize = 50;
/// Pages that are full up to this are sparse, in eighths.
const SPARSE_EIGHTHS: u32 = 2;
/// Bytes of a cache line.
const LINE_BYTES: u64 = 64;

/// How full the resident pages of what the allocator has mapped are, at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, TS)]
pub struct Fill {
    /// When, from the beginning of the recording.
    pub time_ns: Duration,
    /// Resident memory of what the allocator has mapped.
    pub resident_bytes: Bytes,
    /// What of it is in blocks that live, each rounded up to 16 bytes.
    pub live_bytes: Bytes,
    /// What of it is on pages without a block: it could be given back.
    pub empty_bytes: Bytes,
    /// What of it is free on pages with a block: external fragmentation.
    pub pinned_bytes: Bytes,
    /// The part of that on sparse pages, which blocks fill to a quarter at most.
    pub sparse_pinned_bytes: Bytes,
    /// Sparse pages.
    pub sparse_pages: u64,
    /// Bytes of cache lines with a part of a block.
    pub line_bytes: Bytes,
    /// Pages with blocks that several threads allocated, at least.
    pub shared_pages: u64,
}

impl Fill {
    fn add(&mut self, row: &HeapPagesRow) {
        let bytes = row.pages.saturating_mul(PAGE_BYTES);
        let live = row.live_bytes.0.min(bytes);
        self.resident_bytes.0 = self.resident_bytes.0.saturating_add(bytes);
        self.live_bytes.0 = self.live_bytes.0.saturating_add(live);
        self.line_bytes.0 = self
            .line_bytes
            .0
            .saturating_add(row.lines.saturating_mul(LINE_BYTES));
        self.shared_pages = self.shared_pages.saturating_add(row.shared_pages);
        if row.eighths == 0 {
            self.empty_bytes.0 = self.empty_bytes.0.saturating_add(bytes);
            return;
        }
        self.pinned_bytes.0 = self.pinned_bytes.0.saturating_add(bytes - live);
        if row.eighths <= SPARSE_EIGHTHS {
            self.sparse_pinned_bytes.0 = self.sparse_pinned_bytes.0.saturating_add(bytes - live);
            self.sparse_pages = self.sparse_pages.saturating_add(row.pages);
        }
    }

    /// The share of the cache lines with a part of a block that blocks fill.
    #[must_use]
    pub fn line_use(&self) -> f64 {
        (self.live_bytes.0 as f64 / self.line_bytes.0.max(1) as f64).min(1.0)
    }
}

/// When pages were touched last, before a moment: each free byte on them in one of these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, TS)]
pub struct LastTouch {
    /// In the last second.
    pub second: Bytes,
    /// Not in that, but in the last 10 s.
    pub ten_seconds: Bytes,
    /// Not in those, but in the last 60 s.
    pub minute: Bytes,
    /// Longer ago, or never while it was recorded.
    pub longer: Bytes,
}

/// Blocks of one call stack on sparse pages.
#[derive(Clone, Debug, PartialEq, Serialize, TS)]
pub struct Pinning {
    /// The site, in the trace: one of those with this stack.
    pub site: Option<SiteId>,
    /// Its name.
    pub label: String,
    /// The functions of its stack, the innermost first, with files and lines; `module+0xoffset` without symbols.
    pub stack: Vec<String>,
    /// Blocks that were sampled.
    pub samples: u64,
    /// Free memory that they keep resident.
    pub pinned: Estimate,
    /// Half of that is kept by blocks that are no older.
    pub age_p50_ns: Duration,
    /// When the pages were touched last; null where pages were not recorded.
    pub touched: Option<LastTouch>,
}

/// Pages of the allocator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, TS)]
pub struct HeapPages {
    /// When most was resident.
    pub peak: Fill,
    /// When most was free on sparse pages.
    pub sparsest: Fill,
    /// By call stack, what kept sparse pages then; at most 50.
    pub pinned_by: Vec<Pinning>,
    /// Over time; at most 512 moments.
    pub over_time: Vec<Fill>,
}

/// Of less nothing is said: the first blocks of a process come before its mappings are seen.
const LITTLE: Bytes = Bytes(1 << 20);

/// What looks at the pages of a process found.
pub(super) type Fills = BTreeMap<Time, Fill>;

/// All looks at the process with the most memory.
pub(super) fn fills(tables: &Tables, of: Option<Pid>, start: Time) -> Fills {
    let mut looks = Fills::new();
    for row in tables.pages.iter().filter(|row| Some(row.pid) == of) {
        let fill = looks.entry(row.time_ns).or_default();
        fill.time_ns = row.time_ns - start;
        fill.add(row);
    }
    looks
}

/// Pages of a process; none where nobody looked, or it is little.
pub(super) fn pages(
    trace: &Trace,
    tables: &Tables,
    sampled: &Sampled<'_>,
    (of, looks): (Option<Pid>, Fills),
) -> Result<Option<HeapPages>, TraceError> {
    let Some(pid) = of else { return Ok(None) };
    let peak = looks.values().max_by_key(|fill| fill.resident_bytes);
    let Some(peak) = peak.filter(|fill| fill.resident_bytes >= LITTLE) else {
        return Ok(None);
    };
    let sparse: Vec<SparsePagesRow> = trace.rows()?;
    let sparse: Vec<SparsePagesRow> = sparse.into_iter().filter(|row| row.pid == pid).collect();
    // Of all looks this one's pages are known.
    let then = sparse.first().map(|row| row.time_ns);
    let sparsest = then.and_then(|time| looks.get(&time));
    let most = looks.values().max_by_key(|fill| fill.sparse_pinned_bytes);
    let step = looks.len().div_ceil(MAX_LOOKS).max(1);
    Ok(Some(HeapPages {
        peak: *peak,
        sparsest: sparsest.or(most).copied().unwrap_or_default(),
        pinned_by: match then {
            Some(time) => pinned_by(trace, tables, sampled, &Sparse::of(sparse, pid, time))?,
            None => Vec::new(),
        },
        over_time: looks.into_values().step_by(step).collect(),
    }))
}

/// Sparse pages of a process, and when they were that.
struct Sparse {
    pid: Pid,
    time: Time,
    /// By page.
    runs: Vec<SparsePagesRow>,
}

impl Sparse {
    fn of(mut runs: Vec<SparsePagesRow>, pid: Pid, time: Time) -> Sparse {
        runs.sort_by_key(|run| run.page);
        Sparse { pid, time, runs }
    }

    /// Free memory on all of them.
    fn free(&self) -> Bytes {
        let free = |run: &SparsePagesRow| {
            let of_page = PAGE_BYTES.saturating_sub(u64::from(run.live_bytes));
            u64::from(run.pages) * of_page
        };
        Bytes(self.runs.iter().map(free).fold(0, u64::saturating_add))
    }

    /// Bytes of blocks on a page, where it is sparse.
    fn live(&self, page: u64) -> Option<u64> {
        let behind = self.runs.partition_point(|run| run.page.0 <= page);
        let run = self.runs.get(behind.checked_sub(1)?)?;
        (page - run.page.0 < u64::from(run.pages)).then_some(u64::from(run.live_bytes))
    }

    /// The sparse pages that a block lies on, with the free memory of each that it keeps.
    fn pinned(&self, block: &Block) -> Vec<(u64, f64)> {
        let (first, last) = block.pages();
        // Only at its ends: what it fills is not sparse.
        let mut pages = vec![first];
        if last != first {
            pages.push(last);
        }
        let part = |page: u64| {
            let live = self.live(page)?;
            let part = block.part(page);
            // Rounded as all that lives.
            let own = (part.end.div_ceil(16) - part.start / 16) * 16;
            let share = own as f64 / live.max(own) as f64;
            Some((page, share * PAGE_BYTES.saturating_sub(live) as f64))
        };
        pages.into_iter().filter_map(part).collect()
    }
}

/// What one call stack keeps.
#[derive(Default)]
struct Group {
    sum: Sum,
    samples: u64,
    site: Option<SiteId>,
    /// Ages, and the bytes that they stand for.
    ages: Vec<(Duration, f64)>,
    /// Pages, likewise.
    pages: Vec<(u64, f64)>,
}

fn pinned_by(
    trace: &Trace,
    tables: &Tables,
    sampled: &Sampled<'_>,
    sparse: &Sparse,
) -> Result<Vec<Pinning>, TraceError> {
    let mut groups: BTreeMap<Vec<String>, Group> = BTreeMap::new();
    let live = sampled
        .blocks
        .iter()
        .filter(|block| block.pid == sparse.pid && sampled.span.lives(block, sparse.time));
    for block in live {
        let pages = sparse.pinned(block);
        let bytes: f64 = pages.iter().map(|(_, bytes)| bytes).sum();
        if pages.is_empty() {
            continue;
        }
        let group = groups.entry(stack_of(tables, block.site)).or_default();
        group.sum.add(bytes, block.weight);
        group.samples += 1;
        group.site = group.site.or(block.site);
        group
            .ages
            .push((sparse.time - block.born, bytes * block.weight));
        let weighted = pages.into_iter().map(|(page, b)| (page, b * block.weight));
        group.pages.extend(weighted);
    }
    let touched = match trace.count::<TouchRow>()? {
        0 => None,
        _ => {
            let pages = groups
                .values()
                .flat_map(|g| g.pages.iter().map(|(p, _)| *p));
            Some(last_touches(trace, sparse, pages.collect())?)
        }
    };
    let mut all = Sum::default();
    groups.values().for_each(|group| all.add_sum(group.sum));
    let mut found: Vec<Pinning> = groups
        .into_iter()
        .map(|(stack, group)| Pinning {
            site: group.site,
            label: operations::label(tables, group.site),
            stack,
            samples: group.samples,
            pinned: group.sum.part_of(sparse.free(), all),
            age_p50_ns: median(group.ages),
            touched: touched.as_ref().map(|times| {
                let scale = sparse.free().0 as f64 / all.bytes.max(1.0);
                sort_by_touch(&group.pages, times, sparse.time, scale)
            }),
        })
        .collect();
    found.sort_by(|a, b| {
        b.pinned
            .bytes
            .cmp(&a.pinned.bytes)
            .then_with(|| a.stack.cmp(&b.stack))
    });
    found.truncate(MAX_SITES);
    Ok(found)
}

/// The age up to which half of the bytes are.
fn median(mut ages: Vec<(Duration, f64)>) -> Duration {
    ages.sort_by_key(|(age, _)| *age);
    let half = ages.iter().map(|(_, bytes)| bytes).sum::<f64>() / 2.0;
    let mut sum = 0.0;
    let reached = ages.iter().find(|(_, bytes)| {
        sum += bytes;
        sum >= half
    });
    reached.map_or(Duration(0), |(age, _)| *age)
}

/// When these pages were touched last before they were found sparse.
fn last_touches(
    trace: &Trace,
    sparse: &Sparse,
    mut pages: Vec<u64>,
) -> Result<HashMap<u64, Time>, TraceError> {
    pages.sort_unstable();
    pages.dedup();
    let intervals = Intervals::read(trace)?;
    let mut found: HashMap<u64, Time> = HashMap::new();
    for batch in trace.batches::<TouchRow>()? {
        for row in batch? {
            let (start, end) = intervals.get(row.interval.0);
            if row.pid != sparse.pid || start > sparse.time {
                continue;
            }
            let (from, to) = (row.page.0, row.page.0.saturating_add(u64::from(row.pages)));
            let begin = pages.partition_point(|page| *page < from);
            for page in pages.iter().skip(begin).take_while(|page| **page < to) {
                let last = found.entry(*page).or_default();
                *last = (*last).max(end.min(sparse.time));
            }
        }
    }
    Ok(found)
}

fn sort_by_touch(
    pages: &[(u64, f64)],
    times: &HashMap<u64, Time>,
    then: Time,
    scale: f64,
) -> LastTouch {
    let mut sums = [0.0f64; 4];
    for (page, bytes) in pages {
        // What was never touched was not for longest.
        let last = times.get(page).copied().unwrap_or_default();
        sums[band(then - last)] += bytes * scale;
    }
    let [second, ten_seconds, minute, longer] = sums.map(|bytes| Bytes(bytes as u64));
    LastTouch {
        second,
        ten_seconds,
        minute,
        longer,
    }
}

#[cfg(test)]
mod tests {
    use varve_model::Page;

    use super::*;
    use crate::figures::blocks::sampled::tests::block;

    #[test]
    fn free_memory_of_a_page_is_its_blocks_by_their_bytes() {
        let run = |page, pages, live_bytes| SparsePagesRow {
            time_ns: Time(5),
            pid: Pid(1),
            page: Page(page),
            pages,
            live_bytes,
        };
        let sparse = Sparse::of(vec![run(7, 1, 1024), run(2, 2, 64)], Pid(1), Time(5));
        assert_eq!(sparse.live(1), None);
        assert_eq!(sparse.live(3), Some(64));
        assert_eq!(sparse.live(4), None);
        // Alone on a page, half of one, and over the end of a page that is full.
        assert_eq!(sparse.pinned(&block(2 * 4096, 64)), [(2, 4032.0)]);
        assert_eq!(sparse.pinned(&block(3 * 4096 + 8, 24)), [(3, 2016.0)]);
        assert_eq!(
            sparse.pinned(&block(7 * 4096 - 4096, 4096 + 512)),
            [(7, 1536.0)]
        );
        assert_eq!(sparse.pinned(&block(5 * 4096, 64)), []);
    }

    #[test]
    fn classes_of_pages_add_up() {
        let row = |eighths, pages, live| HeapPagesRow {
            time_ns: Time(1),
            pid: Pid(1),
            eighths,
            pages,
            live_bytes: Bytes(live),
            lines: live / 32,
            shared_pages: u64::from(pages == 1),
        };
        let mut fill = Fill::default();
        for row in [row(0, 2, 0), row(2, 1, 1000), row(8, 1, 4096)] {
            fill.add(&row);
        }
        assert_eq!(fill.resident_bytes, Bytes(4 * 4096));
        assert_eq!(fill.shared_pages, 2);
        assert_eq!(fill.empty_bytes, Bytes(2 * 4096));
        assert_eq!(fill.pinned_bytes, Bytes(3096));
        assert_eq!(fill.sparse_pinned_bytes, Bytes(3096));
        let all = fill.live_bytes.0 + fill.empty_bytes.0 + fill.pinned_bytes.0;
        assert_eq!(all, fill.resident_bytes.0);
        assert!((fill.line_use() - 0.5).abs() < 0.02);
    }
}
