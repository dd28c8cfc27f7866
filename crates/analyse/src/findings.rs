//! The rules: what stands out in a trace, from which thresholds on, and what to do about it.
//!
//! A rule speaks only where the trace supports it. Every rule has a test that makes it speak and one that keeps it
//! silent, in `tests/findings.rs`.

mod contention;
pub(crate) mod finding;
mod first_touches;
mod news;
mod placement;
mod trust;
mod use_of_memory;

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap, HashSet};

use varve_model::{Bytes, Duration, ObjectId, ObjectKind, Pid, Time};
use varve_objects::LOADERS;

use contention::{false_sharing_lines, false_sharing_pages, true_sharing};
use first_touches::{scanned_by_all, single_first_touch};
use placement::{interleave, parallel_first_touch, replicate, split_hot_cold};
use trust::{huge_pages, incomplete, short_recording, standing};
use use_of_memory::{churn, cold_tail, never_touched, touched_once};

use crate::Known;
use crate::analysis::*;
use crate::assemble::Tables;
use crate::format;

/// Memory below this is not worth a sentence.
const MIB: u64 = 1 << 20;
const WORTH: Bytes = Bytes(MIB);
/// Nothing is said of time in recordings of fewer intervals.
pub const FEW_INTERVALS: u64 = 20;
/// Of what is no longer used nothing is said in shorter recordings, nor in those of less than twice [`FEW_INTERVALS`].
pub const MIN_FOR_TAIL: Duration = Duration(10_000_000_000);
/// Names that a sentence lists.
const NAMES: usize = 3;

/// All findings that are news, most important first. What only helps where there are several memory nodes is left out
/// where the machine is not known to have them, unless it is asked for.
pub(crate) fn find(analysis: &Analysis, tables: &Tables, for_numa: bool) -> Vec<Finding> {
    let mut found = by_rules(analysis, tables);
    let has_nodes = for_numa
        || analysis
            .trace
            .machine
            .value()
            .and_then(|m| m.nodes)
            .is_some_and(|n| n > 1);
    found.retain(|f| has_nodes || !news::needs_nodes(f.id));
    found
}

fn by_rules(analysis: &Analysis, tables: &Tables) -> Vec<Finding> {
    let facts = Facts::new(analysis, tables);
    let by_use = rules_by_use(&facts);
    // Without touches nothing is known of what they show; what samples show does not need them.
    let trace = &analysis.trace;
    let some = |count: &Known<u64>| count.value().is_some_and(|count| *count > 0);
    if !some(&trace.touch_rows) && !some(&trace.intervals) {
        return incomplete(analysis).into_iter().chain(by_use).collect();
    }
    let facts = Facts {
        reported: placement::reported(&by_use),
        ..facts
    };
    // A part of a long recording is no short recording.
    let short = short_recording(analysis).filter(|_| !tables.is_window);
    let mut found: Vec<Finding> = incomplete(analysis).into_iter().collect();
    found.extend(by_use);
    let rules: [Rule; 7] = [
        never_touched,
        cold_tail,
        single_first_touch,
        scanned_by_all,
        touched_once,
        churn,
        standing,
    ];
    found.extend(rules.iter().filter_map(|rule| rule(&facts)));
    found.extend(huge_pages(analysis));
    // Nothing can be done about it where the program ends by itself.
    found.extend(short);
    found
}

type Rule = fn(&Facts<'_>) -> Option<Finding>;

/// What the threads of accesses show.
fn rules_by_use(facts: &Facts<'_>) -> Vec<Finding> {
    let rules: [Rule; 7] = [
        false_sharing_lines,
        true_sharing,
        parallel_first_touch,
        interleave,
        replicate,
        split_hot_cold,
        false_sharing_pages,
    ];
    rules.iter().filter_map(|rule| rule(facts)).collect()
}

/// What several rules ask for.
struct Facts<'a> {
    analysis: &'a Analysis,
    tables: &'a Tables,
    interval: Duration,
    end: Time,
    /// Objects with others inside, whose own pages do not follow from their size.
    outer: HashSet<ObjectId>,
    /// Processes whose memory a runtime's collector manages.
    collected: HashSet<Pid>,
    /// Mappings that a library made.
    from_libraries: HashSet<ObjectId>,
    /// Objects of which is known which threads use them later, so that first touches are no news.
    reported: HashSet<ObjectId>,
}

impl<'a> Facts<'a> {
    fn new(analysis: &'a Analysis, tables: &'a Tables) -> Facts<'a> {
        Facts {
            analysis,
            tables,
            interval: analysis.trace.median_interval_ns.or_zero().max(Duration(1)),
            end: Time(
                analysis
                    .trace
                    .start_ns
                    .0
                    .saturating_add(analysis.trace.duration_ns.0),
            ),
            outer: outer(tables),
            collected: news::collected(tables),
            from_libraries: news::from_libraries(tables),
            reported: HashSet::new(),
        }
    }

    /// When an object came to be, or the recording began; none where nobody knows.
    fn since(&self, o: &ObjectUse) -> Option<Time> {
        Some(o.born_ns?.max(self.analysis.trace.start_ns))
    }

    /// How long an object lived in the recording.
    fn life(&self, o: &ObjectUse) -> Option<Duration> {
        Some(o.died_ns.unwrap_or(self.end).min(self.end) - self.since(o)?)
    }

    /// The program asked for this memory, and all of its pages are its own.
    fn is_asked_for(&self, o: &ObjectUse) -> bool {
        let asked = match o.kind {
            ObjectKind::Heap => !o.pool,
            // Reserving address space asks for no memory.
            ObjectKind::Mapping => o.site.is_some() && !o.reserved && o.name != LOADERS,
            ObjectKind::Static | ObjectKind::Stack | ObjectKind::File | ObjectKind::Recorder => {
                false
            }
        };
        asked && !self.outer.contains(&o.object) && self.is_news(o)
    }

    /// A person wants to hear how this is used: it is no memory of a runtime, nor of the loader.
    fn is_news(&self, o: &ObjectUse) -> bool {
        let is_runtimes = o.kind == ObjectKind::Mapping && self.collected.contains(&o.pid);
        !is_runtimes && news::is_news(o)
    }

    fn long(&self) -> bool {
        let intervals = self.analysis.trace.intervals.value();
        intervals.is_some_and(|intervals| *intervals >= FEW_INTERVALS)
    }
}

/// Objects on which others lie, in whole or in part, whenever that was: pages there are the others'.
fn outer(tables: &Tables) -> HashSet<ObjectId> {
    let mut by_process: HashMap<Pid, Vec<(u64, u64, u32, ObjectId)>> = HashMap::new();
    for o in &tables.objects {
        let end = o.address.0.saturating_add(o.bytes.0);
        by_process
            .entry(o.pid)
            .or_default()
            .push((o.address.0, end, o.layer, o.object));
    }
    let mut outer = HashSet::new();
    for list in by_process.values_mut() {
        list.sort_unstable();
        // Inner ones that begin in an object are next to it in the order of addresses.
        let mut open: Vec<(u64, u32, ObjectId)> = Vec::new();
        for &(start, end, layer, object) in &*list {
            open.retain(|&(open_end, ..)| open_end > start);
            for &(_, open_layer, open_object) in &open {
                match open_layer.cmp(&layer) {
                    Ordering::Less => outer.insert(open_object),
                    // A block that is larger than what the allocator took from the kernel at once covers several of these.
                    Ordering::Greater => outer.insert(object),
                    Ordering::Equal => continue,
                };
            }
            if open.len() < 64 {
                open.push((end, layer, object));
            }
        }
    }
    outer
}

/// Names with sizes, the largest first: `a (1 MiB), b (4 x, 3 MiB) and 5 more`.
fn list<'a>(parts: impl Iterator<Item = (&'a ObjectUse, u64)>) -> (String, Vec<ObjectId>, u64) {
    let mut names: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    let (mut objects, mut sum) = (Vec::new(), 0_u64);
    let mut parts: Vec<_> = parts.collect();
    parts.sort_by_key(|(o, bytes)| (std::cmp::Reverse(*bytes), o.object));
    for (o, bytes) in parts {
        let name = match o.processes.len() {
            0 | 1 => o.name.clone(),
            n => format!("{}, shared by {n} processes", o.name),
        };
        let entry = names.entry(name).or_default();
        entry.0 += 1;
        entry.1 = entry.1.saturating_add(bytes);
        sum = sum.saturating_add(bytes);
        if objects.len() < 100 {
            objects.push(o.object);
        }
    }
    let mut names: Vec<_> = names.into_iter().collect();
    names.sort_by(|a, b| b.1.1.cmp(&a.1.1).then_with(|| a.0.cmp(&b.0)));
    let shown: Vec<String> = names
        .iter()
        .take(NAMES)
        .map(|(name, (count, bytes))| match count {
            1 => format!("{name}: {}", format::bytes(Bytes(*bytes))),
            _ => format!(
                "{name}: {} in {} objects",
                format::bytes(Bytes(*bytes)),
                format::count(*count)
            ),
        })
        .collect();
    let mut text = shown.join("; ");
    if names.len() > NAMES {
        text += &format!("; and {} more", format::count((names.len() - NAMES) as u64));
    }
    (text, objects, sum)
}

fn finding(
    id: FindingId,
    title: String,
    evidence: String,
    advice: &str,
    objects: Vec<ObjectId>,
) -> Finding {
    Finding {
        id,
        title,
        evidence,
        action: id.action().to_owned(),
        advice: advice.to_owned(),
        objects,
    }
}
