//! Sampled blocks: who allocated what lives, for how long, and what of it nobody touches.
//!
//! A block of `s` bytes is sampled with the probability `p = 1 - exp(-s / m)`, so one that was stands for `1 / p` blocks (Horvitz
//! and Thompson's estimator); the variance of a sum of `x / p` over what was sampled is estimated by the sum of `(1 - p) (x / p)²`.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;
use varve_model::{Bytes, Duration, PAGE_BYTES, Pid, SiteId, Tid, Time};
use varve_trace::tables::{Frame, IntervalRow, SampledBlockRow, TouchRow};
use varve_trace::{Trace, TraceError};

use crate::read::Tables;

/// Stacks that are kept.
const MAX_SITES: usize = 200;
/// What lives no longer than this is short-lived.
const SHORT: Duration = Duration(1_000_000);

/// A number of bytes that was found by sampling.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Estimate {
    /// Bytes.
    pub bytes: Bytes,
    /// With 95 % confidence they are no further off than this.
    pub error_bytes: Bytes,
    /// Blocks.
    pub blocks: u64,
}

/// When the pages of blocks that were never freed were touched last, before the end: each byte in one of these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
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
    /// Since their first tenth of a second; of blocks that are older than a quarter of the recording.
    pub left_alone: Bytes,
}

/// What one call stack allocated.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BlockSite {
    /// The site, in the trace: one of those with this stack.
    pub site: Option<SiteId>,
    /// Its name.
    pub label: String,
    /// The functions of its stack, the innermost first, with files and lines.
    pub stack: Vec<String>,
    /// Blocks that were sampled.
    pub samples: u64,
    /// All that it allocated.
    pub allocated: Estimate,
    /// What of it lived when most did.
    pub at_peak: Estimate,
    /// What of it was never freed.
    pub never_freed: Estimate,
    /// Half of what was freed lived no longer, by bytes; null where nothing was.
    pub lifetime_p50_ns: Option<Duration>,
    /// The share of its bytes that lived for less than a millisecond.
    pub short_lived: f64,
    /// The share of what was freed that another thread freed.
    pub freed_elsewhere: f64,
    /// In how many of the recording's quarters it allocated some that was never freed.
    pub quarters: u32,
    /// When what was never freed was touched last; null where pages were not recorded.
    pub idle: Option<Idle>,
}

/// All sampled blocks.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Blocks {
    /// To so many bytes one block was sampled, on average; 0: none.
    pub sample_bytes: Bytes,
    /// Blocks that were sampled.
    pub samples: u64,
    /// All that was allocated.
    pub allocated: Estimate,
    /// When most lived, from the beginning of the recording.
    pub peak_ns: Duration,
    /// What lived then.
    pub at_peak: Estimate,
    /// What was never freed: what lived when its process or the recording ended.
    pub never_freed: Estimate,
    /// By call stack, those that never freed most first, then those that allocated most; at most 200.
    pub sites: Vec<BlockSite>,
}

/// Addresses of programs are lower.
const MAX_ADDRESS: u64 = 1 << 57;

/// A sampled block.
struct Block {
    pid: Pid,
    tid: Tid,
    site: Option<SiteId>,
    address: u64,
    bytes: u64,
    /// How many blocks it stands for.
    weight: f64,
    born: Time,
    freed: Option<(Time, Tid)>,
}

impl Block {
    /// How many bytes it stands for.
    fn stands_for(&self) -> f64 {
        self.bytes as f64 * self.weight
    }

    /// The first byte behind it.
    fn end(&self) -> u64 {
        self.address.saturating_add(self.bytes)
    }
}

#[derive(Clone, Copy, Default)]
struct Sum {
    bytes: f64,
    variance: f64,
    blocks: f64,
}

impl Sum {
    fn of<'a>(blocks: impl Iterator<Item = &'a Block>) -> Sum {
        let mut sum = Sum::default();
        blocks.for_each(|block| sum.add(block));
        sum
    }

    fn add(&mut self, block: &Block) {
        let stands_for = block.stands_for();
        self.bytes += stands_for;
        self.variance += (1.0 - 1.0 / block.weight) * stands_for * stands_for;
        self.blocks += block.weight;
    }

    fn estimate(self) -> Estimate {
        Estimate {
            bytes: Bytes(self.bytes as u64),
            error_bytes: Bytes((1.96 * self.variance.sqrt()) as u64),
            blocks: self.blocks as u64,
        }
    }
}

/// Figures of all sampled blocks.
pub(crate) fn blocks(trace: &Trace, tables: &Tables) -> Result<Blocks, TraceError> {
    let manifest = &trace.manifest;
    let mean = manifest.operations.unwrap_or_default().sample_bytes;
    if mean == Bytes(0) {
        return Ok(Blocks::default());
    }
    let blocks = pair(trace.rows()?, mean);
    let span = Span {
        began: manifest.clock.start_ns,
        ended: super::end_of(manifest, tables),
        processes: &tables.ends,
    };
    let touched = match trace.count::<TouchRow>()? {
        0 => None,
        _ => Some(touches(trace, &blocks)?),
    };
    let peak = peak(&blocks, &span);
    let lives_at_peak = |b: &Block| span.lives(b, peak);
    let mut groups: BTreeMap<Vec<String>, Vec<(usize, &Block)>> = BTreeMap::new();
    let mut stacks: HashMap<Option<SiteId>, Vec<String>> = HashMap::new();
    for (at, block) in blocks.iter().enumerate() {
        let stack = stacks
            .entry(block.site)
            .or_insert_with(|| stack_of(tables, block.site));
        groups.entry(stack.clone()).or_default().push((at, block));
    }
    let mut sites: Vec<BlockSite> = Vec::new();
    for (stack, members) in groups {
        let sum = |which: &dyn Fn(&Block) -> bool| {
            Sum::of(members.iter().map(|(_, b)| *b).filter(|b| which(b)))
        };
        let allocated = sum(&|_| true);
        let freed = sum(&|b| b.freed.is_some());
        let short = sum(&|b| b.freed.is_some_and(|(at, _)| at - b.born < SHORT));
        let elsewhere = sum(&|b| b.freed.is_some_and(|(_, tid)| tid != b.tid));
        let site = members.first().and_then(|(_, b)| b.site);
        let mut quarters = [false; 4];
        for (_, block) in members.iter().filter(|(_, b)| b.freed.is_none()) {
            if let Some(one) = quarters.get_mut(span.quarter(block.born)) {
                *one = true;
            }
        }
        sites.push(BlockSite {
            site,
            label: super::operations::label(tables, site),
            stack,
            samples: members.len() as u64,
            allocated: allocated.estimate(),
            at_peak: sum(&lives_at_peak).estimate(),
            never_freed: sum(&|b| b.freed.is_none()).estimate(),
            lifetime_p50_ns: lifetime(&members),
            short_lived: short.bytes / allocated.bytes.max(1.0),
            freed_elsewhere: elsewhere.bytes / freed.bytes.max(1.0),
            quarters: quarters.iter().map(|q| u32::from(*q)).sum(),
            idle: touched.as_ref().map(|touched| {
                let live = members.iter().filter(|(_, b)| b.freed.is_none());
                idle(live.map(|(at, b)| (*at, *b)), touched, &span)
            }),
        });
    }
    sites.sort_by(|a, b| {
        let key = |s: &BlockSite| (s.never_freed.bytes, s.allocated.bytes);
        key(b).cmp(&key(a)).then_with(|| a.stack.cmp(&b.stack))
    });
    sites.truncate(MAX_SITES);
    let sum =
        |which: &dyn Fn(&Block) -> bool| Sum::of(blocks.iter().filter(|b| which(b))).estimate();
    Ok(Blocks {
        sample_bytes: mean,
        samples: blocks.len() as u64,
        allocated: sum(&|_| true),
        peak_ns: peak - span.began,
        at_peak: sum(&lives_at_peak),
        never_freed: sum(&|b| b.freed.is_none()),
        sites,
    })
}

/// Makes blocks of their beginnings and ends.
fn pair(mut rows: Vec<SampledBlockRow>, mean: Bytes) -> Vec<Block> {
    // Rows of one process are in order; a free and the next beginning at the same address may have the same time.
    rows.sort_by_key(|row| row.time_ns);
    let mut live: HashMap<(Pid, u64), usize> = HashMap::new();
    let mut blocks: Vec<Block> = Vec::new();
    for row in rows {
        let key = (row.pid, row.address.0);
        let is_absurd = row.bytes.0 > MAX_ADDRESS || row.address.0 > MAX_ADDRESS - row.bytes.0;
        // A target that lies, or a damaged table.
        if is_absurd {
            continue;
        }
        if row.freed {
            if let Some(block) = live.remove(&key).and_then(|at| blocks.get_mut(at)) {
                block.freed = Some((row.time_ns, row.tid));
            }
            continue;
        }
        let chance = -(-(row.bytes.0 as f64) / mean.0 as f64).exp_m1();
        let before = live.insert(key, blocks.len());
        // What was there is gone: its end was lost, or the process has run another program since.
        if let Some(block) = before.and_then(|at| blocks.get_mut(at)) {
            block.freed = Some((row.time_ns, row.tid));
        }
        blocks.push(Block {
            pid: row.pid,
            tid: row.tid,
            site: row.site,
            address: row.address.0,
            bytes: row.bytes.0,
            // Of a block without a byte nobody asks.
            weight: 1.0 / chance.max(1e-12),
            born: row.time_ns,
            freed: None,
        });
    }
    blocks.retain(|block| block.bytes > 0);
    blocks
}

/// When most bytes lived.
fn peak(blocks: &[Block], span: &Span<'_>) -> Time {
    let mut changes: Vec<(Time, f64)> = Vec::new();
    for block in blocks {
        let bytes = block.stands_for();
        changes.extend([(block.born, bytes), (span.end(block), -bytes)]);
    }
    changes.sort_by(|a, b| a.0.cmp(&b.0).then(b.1.total_cmp(&a.1)));
    let (mut now, mut most, mut when) = (0.0, 0.0, Time(0));
    for (time, change) in changes {
        now += change;
        if now > most {
            (most, when) = (now, time);
        }
    }
    when
}

/// The functions of a stack, the innermost first.
fn stack_of(tables: &Tables, site: Option<SiteId>) -> Vec<String> {
    let frames = site.and_then(|site| tables.sites.get(&site));
    let frames = frames.map_or(&[][..], |row| row.frames.as_slice());
    frames.iter().map(frame).collect()
}

fn frame(of: &Frame) -> String {
    let function = of.function.as_deref();
    let module = of
        .module
        .as_deref()
        .map(|m| m.rsplit('/').next().unwrap_or(m));
    let name = function.or(module).unwrap_or("unknown").to_owned();
    match (&of.file, of.line) {
        (Some(file), Some(line)) => {
            format!(
                "{name} ({}:{line})",
                file.rsplit('/').next().unwrap_or(file)
            )
        }
        _ => name,
    }
}

/// How long half of the bytes that were freed lived at most.
fn lifetime(members: &[(usize, &Block)]) -> Option<Duration> {
    let freed = members.iter().filter_map(|(_, b)| {
        let (at, _) = b.freed?;
        Some((at - b.born, b.stands_for()))
    });
    let mut freed: Vec<(Duration, f64)> = freed.collect();
    freed.sort_by_key(|(lived, _)| *lived);
    let half = freed.iter().map(|(_, bytes)| bytes).sum::<f64>() / 2.0;
    let mut sum = 0.0;
    for (lived, bytes) in freed {
        sum += bytes;
        if sum >= half {
            return Some(lived);
        }
    }
    None
}

/// When the recording began and ended, and its processes.
struct Span<'a> {
    began: Time,
    ended: Time,
    processes: &'a HashMap<Pid, Time>,
}

impl Span<'_> {
    /// When what a process had was given back at the latest.
    fn end_of(&self, pid: Pid) -> Time {
        let own = self.processes.get(&pid).copied();
        own.map_or(self.ended, |at| self.ended.min(at))
    }

    /// When a block was freed, or given back with its process.
    fn end(&self, block: &Block) -> Time {
        block
            .freed
            .map_or_else(|| self.end_of(block.pid), |(freed, _)| freed)
    }

    /// Whether a block lived at a time.
    fn lives(&self, block: &Block, at: Time) -> bool {
        let end = self.end(block);
        // What was never freed lived to the end of the recording.
        block.born <= at && (end > at || block.freed.is_none() && end >= at)
    }

    /// Which quarter of the recording a time lies in, from 0.
    fn quarter(&self, time: Time) -> usize {
        let all = (self.ended - self.began).0.max(1);
        (4 * (time - self.began).0 / all).min(3) as usize
    }
}

/// When the pages of a block that were touched after it was allocated were touched last: the numbers of intervals, a chunk for so many
/// pages, so that a large block that is hardly touched takes little.
type Touched = HashMap<u64, Box<[u32; CHUNK as usize]>>;
const CHUNK: u64 = 256;
/// Chunks at most: those of a tebibyte.
const MAX_CHUNKS: usize = 1 << 20;
/// No interval has this number.
const NOT_TOUCHED: u32 = u32::MAX;

/// The touches of those blocks that were never freed, and when intervals ended.
struct Touches {
    of: HashMap<usize, Touched>,
    ends: Vec<Time>,
}

impl Touches {
    fn end(&self, interval: u32) -> Time {
        self.ends.get(interval as usize).copied().unwrap_or(Time(0))
    }
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
            let (first, last) = pages(block);
            live.push((first, last, at));
        }
        (pid, live)
    });
    sorted.collect()
}

fn touches(trace: &Trace, blocks: &[Block]) -> Result<Touches, TraceError> {
    let mut ends: Vec<Time> = Vec::new();
    for row in trace.rows::<IntervalRow>()? {
        // They have no gaps.
        if row.interval.0 as usize == ends.len() {
            ends.push(row.end_ns);
        }
    }
    let live = live_blocks(blocks);
    let mut found = Touches {
        of: HashMap::new(),
        ends,
    };
    let mut chunks = 0;
    for batch in trace.batches::<TouchRow>()? {
        for row in batch? {
            let Some(list) = live.get(&row.pid) else {
                continue;
            };
            let time = found.end(row.interval.0);
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

fn pages(block: &Block) -> (u64, u64) {
    (block.address / PAGE_BYTES, (block.end() - 1) / PAGE_BYTES)
}

/// Sorts the bytes of blocks by when they were touched last.
fn idle<'a>(
    live: impl Iterator<Item = (usize, &'a Block)>,
    touches: &Touches,
    span: &Span<'_>,
) -> Idle {
    const SECOND: u64 = 1_000_000_000;
    const SETTLED: u64 = SECOND / 10;
    let mut sums = [0.0f64; 6];
    for (at, block) in live {
        let end = span.end_of(block.pid);
        let is_old = (end - block.born).0 > (span.ended - span.began).0 / 4;
        let mut never = block.bytes;
        let chunks = touches.of.get(&at).into_iter().flatten();
        let pages = chunks.flat_map(|(chunk, intervals)| {
            let numbered = (chunk * CHUNK..).zip(intervals.iter());
            numbered.filter(|(_, interval)| **interval != NOT_TOUCHED)
        });
        for (page, interval) in pages {
            let time = touches.end(*interval);
            let low = block.address.max(page * PAGE_BYTES);
            let high = block.end().min((page + 1) * PAGE_BYTES);
            let bytes = high.saturating_sub(low);
            never = never.saturating_sub(bytes);
            let bytes = bytes as f64 * block.weight;
            let which = match (end - time).0 {
                ago if ago < SECOND => 0,
                ago if ago < 10 * SECOND => 1,
                ago if ago < 60 * SECOND => 2,
                _ => 3,
            };
            sums[which] += bytes;
            if is_old && (time - block.born).0 < SETTLED {
                sums[5] += bytes;
            }
        }
        let never = never as f64 * block.weight;
        sums[4] += never;
        if is_old {
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
    use varve_model::Address;

    use super::*;

    fn row(time: u64, address: u64, bytes: u64, freed: bool) -> SampledBlockRow {
        SampledBlockRow {
            time_ns: Time(time),
            pid: Pid(1),
            tid: Tid(1),
            freed,
            address: Address(address),
            bytes: Bytes(bytes),
            site: None,
        }
    }

    #[test]
    fn a_block_stands_for_as_many_as_its_chance_says() {
        let mean = Bytes(1000);
        let blocks = pair(
            vec![row(1, 4096, 1000, false), row(2, 4096, 1000, true)],
            mean,
        );
        // 1 - 1/e of the blocks that are as large as the mean are sampled.
        assert!((blocks[0].weight - 1.0 / (1.0 - (-1.0f64).exp())).abs() < 1e-12);
        assert_eq!(blocks[0].freed.map(|(at, _)| at), Some(Time(2)));
        let mut sum = Sum::default();
        let large = pair(vec![row(1, 4096, 1 << 40, false)], mean);
        sum.add(&large[0]);
        let estimate = sum.estimate();
        assert_eq!(
            (estimate.bytes, estimate.error_bytes),
            (Bytes(1 << 40), Bytes(0))
        );
    }

    #[test]
    fn absurd_blocks_are_left_out() {
        let rows = vec![
            row(1, 4096, 1 << 62, false),
            row(1, u64::MAX, 4096, false),
            row(1, 4096, 0, false),
            row(1, 1 << 30, 8 << 20, false),
            // Within the one before.
            row(2, (1 << 30) + 4096, 1 << 40, false),
            row(3, 1 << 40, 1, false),
        ];
        let blocks = pair(rows, Bytes(512 << 10));
        assert_eq!(blocks.len(), 3);
        let live = live_blocks(&blocks);
        let pages: Vec<(u64, u64)> = live[&Pid(1)].iter().map(|b| (b.0, b.1)).collect();
        assert_eq!(pages, [(1 << 18, (1 << 18) + 2047), (1 << 28, 1 << 28)]);
    }

    #[test]
    fn what_its_process_has_given_back_does_not_live() {
        let processes = HashMap::from([(Pid(1), Time(50))]);
        let span = Span {
            began: Time(0),
            ended: Time(100),
            processes: &processes,
        };
        let mut rows = vec![row(10, 4096, 100, false), row(60, 8192, 40, false)];
        rows[1].pid = Pid(2);
        let blocks = pair(rows, Bytes(1));
        assert!(span.lives(&blocks[0], Time(49)) && !span.lives(&blocks[0], Time(60)));
        assert!(span.lives(&blocks[1], Time(100)));
        assert_eq!(peak(&blocks, &span), Time(10));
    }
}
