//! Sampled blocks: who allocated what lives, for how long, and what of it nobody touches.

pub(super) mod idle;
pub(super) mod sampled;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::Serialize;
use ts_rs::TS;
use varve_model::{Bytes, Duration, SiteId, Time};
use varve_trace::tables::{Frame, TouchRow};
use varve_trace::{Trace, TraceError};

use self::idle::{Idle, idle, touches};
use self::sampled::{Block, Span, pair};
use super::estimate::{Estimate, Sum};
use crate::read::Tables;

/// Stacks that are kept.
const MAX_SITES: usize = 200;
/// What lives no longer than this is short-lived.
const SHORT: Duration = Duration(1_000_000);

/// What one call stack allocated.
#[derive(Clone, Debug, Default, PartialEq, Serialize, TS)]
pub struct BlockSite {
    /// The site, in the trace: one of those with this stack.
    pub site: Option<SiteId>,
    /// Its name.
    pub label: String,
    /// The functions of its stack, the innermost first, with files and lines; `module+0xoffset` without symbols.
    pub stack: Vec<String>,
    /// Blocks that were sampled.
    pub samples: u64,
    /// All that it allocated.
    pub allocated: Estimate,
    /// What of it lived when most did; null where that is not known.
    pub at_peak: Option<Estimate>,
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
#[derive(Clone, Debug, Default, PartialEq, Serialize, TS)]
pub struct Blocks {
    /// To so many bytes one block was sampled, on average; 0: none.
    pub sample_bytes: Bytes,
    /// Blocks that were sampled.
    pub samples: u64,
    /// All that was allocated.
    pub allocated: Estimate,
    /// When most lived by the exact counts, from the beginning of the recording; of several processes to within a look at their counts. Null where
    /// `memory.uncounted` says why.
    pub peak_ns: Option<Duration>,
    /// What of the sample lived then; null likewise.
    pub at_peak: Option<Estimate>,
    /// What was never freed: what lived when its process or the recording ended.
    pub never_freed: Estimate,
    /// By call stack, those that never freed most first, then those that allocated most; at most 200.
    pub sites: Vec<BlockSite>,
}

/// The blocks that were sampled.
pub(super) struct Sampled<'a> {
    /// To so many bytes one, on average; 0: none.
    pub(super) mean: Bytes,
    pub(super) blocks: Vec<Block>,
    pub(super) span: Span<'a>,
}

impl Sampled<'_> {
    pub(super) fn read<'a>(trace: &Trace, tables: &'a Tables) -> Result<Sampled<'a>, TraceError> {
        let manifest = &trace.manifest;
        let note = manifest.operations.as_ref();
        let mean = note.map_or(Bytes(0), |note| note.sample_bytes);
        Ok(Sampled {
            mean,
            blocks: match mean {
                Bytes(0) => Vec::new(),
                _ => pair(trace.rows()?, mean),
            },
            span: Span {
                began: manifest.clock.start_ns,
                ended: super::end_of(manifest, tables),
                processes: &tables.ends,
            },
        })
    }
}

/// Figures of all sampled blocks; `knows_peak`: whether the counts say when most lived.
pub(super) fn blocks(
    trace: &Trace,
    tables: &Tables,
    sampled: &Sampled<'_>,
    knows_peak: bool,
) -> Result<Blocks, TraceError> {
    let Sampled { mean, blocks, span } = sampled;
    if *mean == Bytes(0) {
        return Ok(Blocks::default());
    }
    let touched = match trace.count::<TouchRow>()? {
        0 => None,
        _ => Some(touches(trace, blocks)?),
    };
    // The most of an estimate would be too much: it is where chance adds to it.
    let counted = || super::memory::peak(tables).unwrap_or_else(|| peak(blocks, span));
    let peak = knows_peak.then(counted);
    let lives_at_peak = |b: &Block| peak.is_some_and(|peak| span.lives(b, peak));
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
            let chosen = members.iter().filter(|(_, b)| which(b));
            Sum::of(chosen.map(|(_, b)| (b.bytes, b.weight)))
        };
        let allocated = sum(&|_| true);
        let freed = sum(&|b| b.freed.is_some());
        let short = sum(&|b| b.freed.is_some_and(|(at, _)| at - b.born < SHORT));
        let elsewhere = sum(&|b| b.freed.is_some_and(|(_, tid)| tid != b.tid));
        let site = members.first().and_then(|(_, b)| b.site);
        let labels = members.iter().map(|(_, b)| b.site);
        let labels = labels.map(|site| super::operations::label(tables, site));
        let mut quarters = [false; 4];
        for (_, block) in members.iter().filter(|(_, b)| b.freed.is_none()) {
            if let Some(one) = quarters.get_mut(span.quarter(block.born)) {
                *one = true;
            }
        }
        sites.push(BlockSite {
            site,
            label: label_of(labels),
            stack,
            samples: members.len() as u64,
            allocated: allocated.estimate(),
            at_peak: peak.map(|_| sum(&lives_at_peak).estimate()),
            never_freed: sum(&|b| b.freed.is_none()).estimate(),
            lifetime_p50_ns: lifetime(&members),
            short_lived: short.bytes / allocated.bytes.max(1.0),
            freed_elsewhere: elsewhere.bytes / freed.bytes.max(1.0),
            quarters: quarters.iter().map(|q| u32::from(*q)).sum(),
            idle: touched.as_ref().map(|touched| {
                let live = members.iter().filter(|(_, b)| b.freed.is_none());
                idle(live.map(|(at, b)| (*at, *b)), touched, span)
            }),
        });
    }
    sites.sort_by(|a, b| {
        let key = |s: &BlockSite| (s.never_freed.bytes, s.allocated.bytes);
        key(b).cmp(&key(a)).then_with(|| a.stack.cmp(&b.stack))
    });
    sites.truncate(MAX_SITES);
    let sum = |which: &dyn Fn(&Block) -> bool| {
        let chosen = blocks.iter().filter(|b| which(b));
        Sum::of(chosen.map(|b| (b.bytes, b.weight))).estimate()
    };
    Ok(Blocks {
        sample_bytes: *mean,
        samples: blocks.len() as u64,
        allocated: sum(&|_| true),
        peak_ns: peak.map(|peak| Duration(peak.0.saturating_sub(span.began.0))),
        at_peak: peak.map(|_| sum(&lives_at_peak)),
        never_freed: sum(&|b| b.freed.is_none()),
        sites,
    })
}

/// When most bytes lived, as far as the sample shows.
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
pub(super) fn stack_of(tables: &Tables, site: Option<SiteId>) -> Vec<String> {
    let frames = site.and_then(|site| tables.sites.get(&site));
    let frames = frames.map_or(&[][..], |row| row.frames.as_slice());
    frames.iter().map(frame).collect()
}

fn frame(of: &Frame) -> String {
    let name = of.function.clone().or_else(|| of.in_module());
    let name = name.unwrap_or_else(|| "unknown".to_owned());
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

/// What the blocks of one stack are called. Where lines are not known several places of a function have one stack: they are counted, and none of their
/// addresses stands for all.
fn label_of(labels: impl Iterator<Item = String>) -> String {
    let labels: BTreeSet<String> = labels.collect();
    let first = labels.first().cloned().unwrap_or_default();
    let within = match first.rsplit_once('(') {
        Some((function, place)) if place.ends_with(')') => function.trim_end(),
        _ => first
            .rsplit_once("+0x")
            .map_or(&*first, |(module, _)| module),
    };
    match labels.len() {
        0 | 1 => first,
        places => format!("{within} ({places} places)"),
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

#[cfg(test)]
mod tests {
    use varve_trace::tables::Frame;

    use super::{frame, label_of};

    #[test]
    fn code_without_symbols_has_its_offset() {
        let unnamed = Frame {
            module: Some("/usr/bin/app".to_owned()),
            offset: Some(0x11d2),
            ..Frame::default()
        };
        assert_eq!(frame(&unnamed), "app+0x11d2");
        // Functions that are known have places of their own in labels alone.
        let grow = Frame {
            function: Some("grow".to_owned()),
            ..unnamed.clone()
        };
        assert_eq!(frame(&grow), "grow");
        let nowhere = Frame {
            offset: None,
            ..unnamed
        };
        assert_eq!(frame(&nowhere), "app");
        assert_eq!(frame(&Frame::default()), "unknown");
    }

    #[test]
    fn several_places_have_no_address_of_one() {
        let said = |labels: &[&str]| label_of(labels.iter().map(|label| (*label).to_owned()));
        assert_eq!(
            said(&["grow (app+0x7)", "grow (app+0x7)"]),
            "grow (app+0x7)"
        );
        assert_eq!(
            said(&["grow (app+0x7)", "grow (app+0x9)"]),
            "grow (2 places)"
        );
        assert_eq!(said(&["app+0x7", "app+0x9", "app+0xb"]), "app (3 places)");
        assert_eq!(said(&[]), "");
    }
}
