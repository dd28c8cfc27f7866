//! Sampled blocks: who allocated what lives, for how long, and what of it nobody touches.
//!
//! A block of `s` bytes is sampled with the probability `p = 1 - exp(-s / m)`, so one that was stands for `1 / p` blocks (Horvitz
//! and Thompson's estimator); the variance of a sum of `x / p` over what was sampled is estimated by the sum of `(1 - p) (x / p)²`.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;
use varve_model::{Bytes, Duration, PAGE_BYTES, Pid, SiteId, Tid, Time};
use varve_trace::tables::{Frame, IntervalRow, ProcessRow, SampledBlockRow, TouchRow};
use varve_trace::{Trace, TraceError};

use crate::read::Tables;

/// Stacks that are kept.
const MAX_SITES: usize = 200;
/// What lives no longer than this is short-lived.
pub(crate) const SHORT: Duration = Duration(1_000_000);

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

#[derive(Clone, Copy, Default)]
struct Sum {
    bytes: f64,
    variance: f64,
    blocks: f64,
}

impl Sum {
    fn add(&mut self, block: &Block) {
        let stands_for = block.bytes as f64 * block.weight;
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
    let clock = manifest.clock;
    let touched = match trace.count::<TouchRow>()? {
        0 => None,
        _ => Some(last_touches(trace, &blocks)?),
    };
    let peak = peak(&blocks);
    let lives_at_peak = |b: &Block| b.born <= peak && b.freed.is_none_or(|(freed, _)| freed > peak);
    let mut groups: BTreeMap<Vec<String>, Vec<usize>> = BTreeMap::new();
    let mut stacks: HashMap<Option<SiteId>, Vec<String>> = HashMap::new();
    for (at, block) in blocks.iter().enumerate() {
        let stack = stacks
            .entry(block.site)
            .or_insert_with(|| stack_of(tables, block.site));
        groups.entry(stack.clone()).or_default().push(at);
    }
    let mut sites: Vec<BlockSite> = Vec::new();
    for (stack, members) in groups {
        let members: Vec<(usize, &Block)> = members
            .into_iter()
            .filter_map(|at| Some((at, blocks.get(at)?)))
            .collect();
        let sum = |which: &dyn Fn(&Block) -> bool| {
            let mut sum = Sum::default();
            members
                .iter()
                .filter(|(_, b)| which(b))
                .for_each(|(_, b)| sum.add(b));
            sum
        };
        let allocated = sum(&|_| true);
        let freed = sum(&|b| b.freed.is_some());
        let short = sum(&|b| b.freed.is_some_and(|(at, _)| at - b.born < SHORT));
        let elsewhere = sum(&|b| b.freed.is_some_and(|(_, tid)| tid != b.tid));
        let site = members.first().and_then(|(_, b)| b.site);
        let quarter = |time: Time| {
            let all = (clock.end_ns - clock.start_ns).0.max(1);
            (4 * (time - clock.start_ns).0 / all).min(3) as u32
        };
        let mut quarters = [false; 4];
        for (_, block) in members.iter().filter(|(_, b)| b.freed.is_none()) {
            if let Some(one) = quarters.get_mut(quarter(block.born) as usize) {
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
                idle(
                    live.map(|(at, b)| (*b, touched.get(at))),
                    tables,
                    manifest_span(trace),
                )
            }),
        });
    }
    sites.sort_by(|a, b| {
        let key = |s: &BlockSite| (s.never_freed.bytes, s.allocated.bytes);
        key(b).cmp(&key(a)).then_with(|| a.stack.cmp(&b.stack))
    });
    sites.truncate(MAX_SITES);
    let sum = |which: &dyn Fn(&Block) -> bool| {
        let mut sum = Sum::default();
        blocks.iter().filter(|b| which(b)).for_each(|b| sum.add(b));
        sum.estimate()
    };
    Ok(Blocks {
        sample_bytes: mean,
        samples: blocks.len() as u64,
        allocated: sum(&|_| true),
        peak_ns: peak - clock.start_ns,
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
fn peak(blocks: &[Block]) -> Time {
    let mut changes: Vec<(Time, f64)> = Vec::new();
    for block in blocks {
        let bytes = block.bytes as f64 * block.weight;
        changes.push((block.born, bytes));
        changes.extend(block.freed.map(|(at, _)| (at, -bytes)));
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
        Some((at - b.born, b.bytes as f64 * b.weight))
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

/// When the recording began and ended.
fn manifest_span(trace: &Trace) -> (Time, Time) {
    (trace.manifest.clock.start_ns, trace.manifest.clock.end_ns)
}

/// Of each block that was never freed, when each of its pages was touched last after it was allocated; 0: never.
fn last_touches(trace: &Trace, blocks: &[Block]) -> Result<HashMap<usize, Vec<Time>>, TraceError> {
    let mut ends: HashMap<u32, Time> = HashMap::new();
    for row in trace.rows::<IntervalRow>()? {
        ends.insert(row.interval.0, row.end_ns);
    }
    let mut of: HashMap<Pid, Vec<(u64, u64, usize)>> = HashMap::new();
    let mut found: HashMap<usize, Vec<Time>> = HashMap::new();
    for (at, block) in blocks.iter().enumerate().filter(|(_, b)| b.freed.is_none()) {
        let (first, last) = pages(block);
        of.entry(block.pid).or_default().push((first, last, at));
        found.insert(at, vec![Time(0); (last - first + 1) as usize]);
    }
    for list in of.values_mut() {
        list.sort_unstable();
    }
    for batch in trace.batches::<TouchRow>()? {
        for row in batch? {
            let Some(list) = of.get(&row.pid) else {
                continue;
            };
            let Some(&time) = ends.get(&row.interval.0) else {
                continue;
            };
            let (from, to) = (row.page.0, row.page.0 + u64::from(row.pages));
            // Blocks do not overlap: they are in the order of their last pages, too.
            let begin = list.partition_point(|(_, last, _)| *last < from);
            for (first, last, at) in list
                .iter()
                .skip(begin)
                .take_while(|(first, ..)| *first < to)
            {
                let Some((block, times)) = blocks.get(*at).zip(found.get_mut(at)) else {
                    continue;
                };
                if time < block.born {
                    continue;
                }
                let (low, high) = (from.max(*first) - first, to.min(last + 1) - first);
                for one in times.iter_mut().take(high as usize).skip(low as usize) {
                    *one = time.max(*one);
                }
            }
        }
    }
    Ok(found)
}

fn pages(block: &Block) -> (u64, u64) {
    let last = block.address.saturating_add(block.bytes - 1);
    (block.address / PAGE_BYTES, last / PAGE_BYTES)
}

/// Sorts the bytes of blocks by when they were touched last.
fn idle<'a>(
    live: impl Iterator<Item = (&'a Block, Option<&'a Vec<Time>>)>,
    tables: &Tables,
    (began, ended): (Time, Time),
) -> Idle {
    const SECOND: u64 = 1_000_000_000;
    const SETTLED: u64 = SECOND / 10;
    let mut sums = [0.0f64; 6];
    for (block, times) in live {
        let end = tables
            .ends
            .get(&block.pid)
            .map_or(ended, |at| ended.min(*at));
        let is_old = (end - block.born).0 > (ended - began).0 / 4;
        let (first, _) = pages(block);
        for (page, time) in (first..).zip(times.into_iter().flatten()) {
            let low = block.address.max(page * PAGE_BYTES);
            let high = (block.address + block.bytes).min((page + 1) * PAGE_BYTES);
            let bytes = high.saturating_sub(low) as f64 * block.weight;
            let which = match (end - *time).0 {
                _ if *time == Time(0) => 4,
                ago if ago < SECOND => 0,
                ago if ago < 10 * SECOND => 1,
                ago if ago < 60 * SECOND => 2,
                _ => 3,
            };
            sums[which] += bytes;
            if is_old && (*time - block.born).0 < SETTLED {
                sums[5] += bytes;
            }
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

/// When processes ended.
pub(crate) fn ends(processes: &[ProcessRow]) -> HashMap<Pid, Time> {
    let ended = processes.iter().filter_map(|p| Some((p.pid, p.died_ns?)));
    ended.collect()
}
