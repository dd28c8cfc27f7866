//! When the pages of blocks were touched last.

use std::collections::HashMap;

use serde::Serialize;
use ts_rs::TS;
use varve_model::{Bytes, Duration, Pid, Time};
use varve_trace::tables::{IntervalRow, TouchRow};
use varve_trace::{Trace, TraceError};

use super::sampled::{Block, Span};

/// When the pages of blocks that were never freed were touched last, before the end: each byte in one of these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, TS)]
pub struct Idle {
    /// In the last second.
    pub second: Bytes,
    /// Not in that, but in the last 10 s.
    pub ten_seconds: Bytes,
    /// Not in those, but in the last 60 s.
    pub minute: Bytes,
    /// Longer ago.
    pub longer: Bytes,
    /// Never since they were allocated.
    pub never: Bytes,
    /// Not since the interval that a block's first tenth of a second lies in, and for a quarter of the recording at least.
    pub left_alone: Bytes,
}

/// When the pages of a block that were touched after it was allocated were touched last: the numbers of intervals, a chunk for so many
/// pages, so that a large block that is hardly touched takes little.
type Touched = HashMap<u64, Box<[u32; CHUNK as usize]>>;
const CHUNK: u64 = 256;
/// Chunks at most: those of a tebibyte.
const MAX_CHUNKS: usize = 1 << 20;
/// No interval has this number.
const NOT_TOUCHED: u32 = u32::MAX;

/// Beginnings and ends of intervals.
pub(crate) struct Intervals(Vec<(Time, Time)>);

impl Intervals {
    pub(crate) fn read(trace: &Trace) -> Result<Intervals, TraceError> {
        let mut found: Vec<(Time, Time)> = Vec::new();
        for row in trace.rows::<IntervalRow>()? {
            // They have no gaps.
            if row.interval.0 as usize == found.len() {
                found.push((row.start_ns, row.end_ns));
            }
        }
        Ok(Intervals(found))
    }

    pub(crate) fn get(&self, interval: u32) -> (Time, Time) {
        self.0.get(interval as usize).copied().unwrap_or_default()
    }
}

/// Which band of [`Idle`] a time lies in that is so long ago, from 0: up to one, ten and sixty seconds, and longer.
pub(crate) fn band(ago: Duration) -> usize {
    const SECOND: u64 = 1_000_000_000;
    match ago.0 {
        ago if ago < SECOND => 0,
        ago if ago < 10 * SECOND => 1,
        ago if ago < 60 * SECOND => 2,
        _ => 3,
    }
}

/// The touches of those blocks that were never freed.
pub(crate) struct Touches {
    of: HashMap<usize, Touched>,
    intervals: Intervals,
}

/// A block that lives: its first and last page, and which it is.
type Live = (u64, u64, usize);

/// The blocks of each process that were never freed, by address.
fn live_blocks(blocks: &[Block]) -> HashMap<Pid, Vec<Live>> {
    let mut of: HashMap<Pid, Vec<(u64, usize)>> = HashMap::new();
    for (at, block) in blocks.iter().enumerate().filter(|(_, b)| b.freed.is_none()) {
        of.entry(block.pid).or_default().push((block.address, at));
    }
    let sorted = of.into_iter().map(|(pid, mut list)| {
        list.sort_unstable();
        let mut end = 0;
        let mut live: Vec<Live> = Vec::with_capacity(list.len());
        for (address, at) in list {
            // Blocks do not overlap: of a damaged trace, or a target that lies, one is taken.
            let Some(block) = blocks.get(at).filter(|_| address >= end) else {
                continue;
            };
            end = address.saturating_add(block.bytes);
            let (first, last) = block.pages();
            live.push((first, last, at));
        }
        (pid, live)
    });
    sorted.collect()
}

pub(crate) fn touches(trace: &Trace, blocks: &[Block]) -> Result<Touches, TraceError> {
    let live = live_blocks(blocks);
    let mut found = Touches {
        of: HashMap::new(),
        intervals: Intervals::read(trace)?,
    };
    let mut chunks = 0;
    for batch in trace.batches::<TouchRow>()? {
        for row in batch? {
            let Some(list) = live.get(&row.pid) else {
                continue;
            };
            let (_, time) = found.intervals.get(row.interval.0);
            let (from, to) = (row.page.0, row.page.0.saturating_add(u64::from(row.pages)));
            let begin = list.partition_point(|(_, last, _)| *last < from);
            let here = list
                .iter()
                .skip(begin)
                .take_while(|(first, ..)| *first < to);
            for (first, last, at) in here {
                if blocks.get(*at).is_none_or(|block| time < block.born) {
                    continue;
                }
                if chunks >= MAX_CHUNKS {
                    break;
                }
                let touched = found.of.entry(*at).or_default();
                chunks -= touched.len();
                for page in from.max(*first)..to.min(*last + 1) {
                    let chunk = touched
                        .entry(page / CHUNK)
                        .or_insert_with(|| Box::new([NOT_TOUCHED; CHUNK as usize]));
                    if let Some(interval) = chunk.get_mut((page % CHUNK) as usize) {
                        *interval = match *interval {
                            NOT_TOUCHED => row.interval.0,
                            before => before.max(row.interval.0),
                        };
                    }
                }
                chunks += touched.len();
            }
        }
    }
    Ok(found)
}

/// Sorts the bytes of blocks by when they were touched last.
pub(crate) fn idle<'a>(
    live: impl Iterator<Item = (usize, &'a Block)>,
    touches: &Touches,
    span: &Span<'_>,
) -> Idle {
    const SETTLED: Duration = Duration(100_000_000);
    let mut sums = [0.0f64; 6];
    for (at, block) in live {
        let end = span.end_of(block.pid);
        let is_old = |since: Time| (end - since).0 > (span.ended - span.began).0 / 4;
        let mut never = block.bytes;
        let chunks = touches.of.get(&at).into_iter().flatten();
        let pages = chunks.flat_map(|(chunk, intervals)| {
            let numbered = (chunk * CHUNK..).zip(intervals.iter());
            numbered.filter(|(_, interval)| **interval != NOT_TOUCHED)
        });
        for (page, interval) in pages {
            let (began, time) = touches.intervals.get(*interval);
            let part = block.part(page);
            let bytes = part.end.saturating_sub(part.start);
            never = never.saturating_sub(bytes);
            let bytes = bytes as f64 * block.weight;
            sums[band(end - time)] += bytes;
            // When within the interval it was touched nobody knows: the time begins at its end.
            if is_old(time) && began - block.born < SETTLED {
                sums[5] += bytes;
            }
        }
        let never = never as f64 * block.weight;
        sums[4] += never;
        if is_old(block.born) {
            sums[5] += never;
        }
    }
    let [second, ten_seconds, minute, longer, never, left_alone] = sums.map(|b| Bytes(b as u64));
    Idle {
        second,
        ten_seconds,
        minute,
        longer,
        never,
        left_alone,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::blocks::sampled::tests::block;

    #[test]
    fn blocks_that_overlap_are_left_out() {
        let blocks = [
            block(1 << 30, 8 << 20),
            // Within the one before.
            block((1 << 30) + 4096, 1 << 40),
            block(1 << 40, 1),
        ];
        let live = live_blocks(&blocks);
        let pages: Vec<(u64, u64)> = live[&Pid(1)].iter().map(|b| (b.0, b.1)).collect();
        assert_eq!(pages, [(1 << 18, (1 << 18) + 2047), (1 << 28, 1 << 28)]);
    }

    /// Bytes of a block, born at the beginning of ten seconds and touched last in the first of these intervals, that were left alone.
    fn left_alone(intervals: Vec<(Time, Time)>) -> u64 {
        let processes = HashMap::new();
        let span = Span {
            began: Time(0),
            ended: Time(10_000_000_000),
            processes: &processes,
        };
        let blocks = [block(4096, 100)];
        let mut touched = Touched::new();
        touched.insert(0, Box::new([0; CHUNK as usize]));
        let touches = Touches {
            of: HashMap::from([(0, touched)]),
            intervals: Intervals(intervals),
        };
        idle(blocks.iter().enumerate(), &touches, &span)
            .left_alone
            .0
    }

    #[test]
    fn what_may_have_been_touched_late_in_a_long_interval_was_not_left_alone() {
        let upto = |end: u64| (Time(0), Time(end * 1_000_000_000));
        assert_eq!(left_alone(vec![upto(1)]), 100);
        assert_eq!(left_alone(vec![upto(9)]), 0);
        assert_eq!(left_alone(vec![upto(10)]), 0);
    }
}
