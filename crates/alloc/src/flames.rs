//! Flame graphs: what call stacks weigh, in the page and as folded stacks.

use serde::Serialize;
use ts_rs::TS;
use varve_model::{Bytes, Duration};

use crate::{BlockSite, Blocks, Estimate, Idle, Judgement, SiteFigures};

/// What the widths of a flame graph are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, TS)]
#[serde(rename_all = "kebab-case")]
pub enum Measure {
    /// Bytes that were allocated.
    Allocated,
    /// Bytes that lived when most did.
    Peak,
    /// Bytes that were never freed.
    NeverFreed,
    /// Blocks that were allocated.
    Count,
    /// Nanoseconds within operations, by caller: of these one frame is known.
    Time,
    /// Bytes that were never freed and have not been touched for long.
    Idle,
}

impl Measure {
    /// All of them.
    pub const ALL: [Measure; 6] = [
        Measure::Allocated,
        Measure::Peak,
        Measure::NeverFreed,
        Measure::Count,
        Measure::Time,
        Measure::Idle,
    ];

    /// Its name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Measure::Allocated => "allocated",
            Measure::Peak => "peak",
            Measure::NeverFreed => "never-freed",
            Measure::Count => "count",
            Measure::Time => "time",
            Measure::Idle => "idle",
        }
    }
}

/// The rows of a flame graph.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, TS)]
pub struct FlameGraph {
    /// What their weights are.
    pub measure: Measure,
    /// Of idle bytes: nobody has touched them for so long; null of all else.
    pub idle_for_ns: Option<Duration>,
    /// What has a weight.
    pub stacks: Vec<FlameStack>,
}

/// A row of a flame graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, TS)]
pub struct FlameStack {
    /// Which of `blocks.sites` it is, or of `sites` where it is about time; null: all that these lists leave out, and callers whose time is not known.
    pub row: Option<u32>,
    /// Bytes, blocks or nanoseconds.
    pub weight: u64,
    /// With 95 % confidence it is no further off than this; null where that is not known.
    pub error: Option<u64>,
}

/// What is known of a flame graph. None where the trace does not say it: no block was sampled, pages were not recorded, or it is not known when most lived.
#[must_use]
pub fn flame_graph(judgement: &Judgement, measure: Measure) -> Option<FlameGraph> {
    let mut idle_for_ns = None;
    let stacks = match measure {
        Measure::Allocated => of_blocks(judgement, bytes, |of| of.allocated, |of| of.allocated)?,
        Measure::Peak => {
            judgement.blocks.at_peak?;
            of_blocks(
                judgement,
                bytes,
                |of| of.at_peak.unwrap_or_default(),
                |of| of.at_peak.unwrap_or_default(),
            )?
        }
        Measure::NeverFreed => {
            of_blocks(judgement, bytes, |of| of.never_freed, |of| of.never_freed)?
        }
        Measure::Count => of_blocks(judgement, count, |of| of.allocated, |of| of.allocated)?,
        Measure::Time => of_time(judgement),
        Measure::Idle => {
            let (idle_for, stacks) = idle(judgement)?;
            idle_for_ns = Some(idle_for);
            stacks
        }
    };
    Some(FlameGraph {
        measure,
        idle_for_ns,
        stacks: stacks.into_iter().filter(|s| s.weight > 0).collect(),
    })
}

impl FlameGraph {
    /// The frames of one of its rows, the outermost first.
    #[must_use]
    pub fn frames<'a>(&self, judgement: &'a Judgement, of: &FlameStack) -> Vec<&'a str> {
        let row = of.row.map(|row| row as usize);
        if self.measure == Measure::Time {
            let site = row.and_then(|row| judgement.sites.get(row));
            return vec![site.map_or("(other callers)", |site| &site.label)];
        }
        match row.and_then(|row| judgement.blocks.sites.get(row)) {
            None => vec!["(other call stacks)"],
            Some(site) if site.stack.is_empty() => vec!["(unknown caller)"],
            Some(site) => site.stack.iter().rev().map(String::as_str).collect(),
        }
    }
}

/// Which figure of an estimate is meant, and its error.
type Figure = fn(Estimate) -> (u64, u64);

const fn bytes(of: Estimate) -> (u64, u64) {
    (of.bytes.0, of.error_bytes.0)
}

const fn count(of: Estimate) -> (u64, u64) {
    (of.blocks, of.error_blocks)
}

fn of_blocks(
    judgement: &Judgement,
    figure: Figure,
    part: fn(&BlockSite) -> Estimate,
    whole: fn(&Blocks) -> Estimate,
) -> Option<Vec<FlameStack>> {
    let blocks = &judgement.blocks;
    if blocks.sample_bytes == Bytes(0) {
        return None;
    }
    let mut stacks: Vec<FlameStack> = Vec::new();
    let (mut sum, mut variance, mut samples) = (0_u64, 0.0_f64, 0_u64);
    for (row, site) in (0..).zip(&blocks.sites) {
        let (weight, error) = figure(part(site));
        (sum, samples) = (sum + weight, samples + site.samples);
        variance += (error as f64).powi(2);
        stacks.push(FlameStack {
            row: Some(row),
            weight,
            error: Some(error),
        });
    }
    // The list has the stacks that matter most.
    if samples < blocks.samples {
        let (weight, error) = figure(whole(blocks));
        let rest = ((error as f64).powi(2) - variance).max(0.0).sqrt();
        stacks.push(FlameStack {
            row: None,
            weight: weight.saturating_sub(sum),
            error: Some(rest as u64),
        });
    }
    Some(stacks)
}

fn of_time(judgement: &Judgement) -> Vec<FlameStack> {
    let sites = &judgement.sites;
    let time = |site: &SiteFigures| site.time_ns.map_or(0, |time| time.0);
    let mut stacks: Vec<FlameStack> = (0..)
        .zip(sites)
        .map(|(row, site)| FlameStack {
            row: Some(row),
            weight: time(site),
            error: site
                .time_error
                .map(|error| (error * time(site) as f64) as u64),
        })
        .collect();
    let listed: u64 = sites.iter().map(|s| s.count).sum();
    let all: u64 = judgement.operations.values().map(|o| o.count).sum();
    if listed < all || sites.iter().any(|site| site.time_ns.is_none()) {
        let sum: u64 = sites.iter().map(time).sum();
        let of_all = &judgement.time;
        let all_ns = of_all.operations_ns.unwrap_or(of_all.operations_least_ns);
        stacks.push(FlameStack {
            row: None,
            weight: all_ns.0.saturating_sub(sum),
            error: None,
        });
    }
    stacks
}

/// Idle bytes: those of some bands.
type Band = fn(&Idle) -> u64;

/// Bytes that nobody has touched for the longest time that the figures distinguish: of a run that was shorter, or where nothing is idle for
/// that long, for a shorter time.
fn idle(judgement: &Judgement) -> Option<(Duration, Vec<FlameStack>)> {
    let second = |n: u64| Duration(n * 1_000_000_000);
    let bands: [(Duration, Band); 3] = [
        (second(60), |of| of.longer.0 + of.never.0),
        (second(10), |of| of.minute.0 + of.longer.0 + of.never.0),
        (second(1), |of| {
            of.ten_seconds.0 + of.minute.0 + of.longer.0 + of.never.0
        }),
    ];
    let sites = &judgement.blocks.sites;
    if sites.iter().all(|site| site.idle.is_none()) {
        return None;
    }
    let stacks = |bytes: Band| -> Vec<FlameStack> {
        let of = |(row, site): (u32, &BlockSite)| FlameStack {
            row: Some(row),
            weight: site.idle.as_ref().map_or(0, bytes),
            error: None,
        };
        (0..).zip(sites).map(of).collect()
    };
    let mut shortest = None;
    for (idle_for, bytes) in bands {
        let found = stacks(bytes);
        let is_there =
            judgement.trace.duration_ns >= idle_for && found.iter().any(|s| s.weight > 0);
        shortest = Some((idle_for, found));
        if is_there {
            break;
        }
    }
    shortest
}

#[cfg(test)]
pub(crate) mod tests;
