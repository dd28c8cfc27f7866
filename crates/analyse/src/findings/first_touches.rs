//! Which threads touched memory first: by page faults.

use std::collections::{BTreeMap, HashMap, HashSet};

use varve_model::{Bytes, ObjectKind, Pid, Time};

use super::news::is_little;
use super::{Facts, WORTH, finding, list};
use crate::analysis::*;
use crate::format;

/// Samples of a recording from which on they say which threads do something, and those of a thread that does.
const ENOUGH_SAMPLES: u64 = 100;
const MIN_SAMPLES: u64 = 5;

/// Objects of at least 1 MiB touched, used in two intervals or more on average, with at least 64 first touches by page
/// faults, for nine tenths of the pages that are not huge, 95 % of them by one thread, while another thread of the process that
/// has something to do lived for half the object's time. Static data, heap and mappings; the evidence is page faults: a scan does not say who used the pages later.
pub(super) fn single_first_touch(f: &Facts<'_>) -> Option<Finding> {
    let mut lives: HashMap<Pid, Vec<(u32, Time, Time)>> = HashMap::new();
    for t in &f.tables.threads {
        let died = t.died_ns.unwrap_or(f.end);
        lives
            .entry(t.pid)
            .or_default()
            .push((t.tid.0, t.born_ns, died));
    }
    let working = working(f.analysis);
    let works = |pid, tid| working.as_ref().is_none_or(|w| w.contains(&(pid, tid)));
    let others = |o: &ObjectUse, tid: u32| {
        let born = f.since(o)?;
        let died = o.died_ns.unwrap_or(f.end).min(f.end);
        let beside = |&&(other, from, to): &&(u32, Time, Time)| {
            other != tid
                && works(o.pid, other)
                && (to.min(died) - from.max(born)).0 >= (died - born).0 / 2
        };
        Some(lives.get(&o.pid)?.iter().filter(beside).count() as u64)
    };
    let mut threads = (u64::MAX, 0_u64);
    let mut who: BTreeMap<u32, u64> = BTreeMap::new();
    let unreported = |o: &&ObjectUse| !f.reported.contains(&o.object);
    let single = f
        .analysis
        .objects
        .iter()
        .filter(unreported)
        .filter_map(|o| {
            let data = matches!(
                o.kind,
                ObjectKind::Static | ObjectKind::Heap | ObjectKind::Mapping
            );
            let (touched, faulted) = (o.usage.touched.get()?, o.usage.faulted.get()?);
            let (share, all) = (o.threads.as_ref()?.first()?, faulted.first_touches.0);
            let bytes = touched.touched_pages.bytes();
            // One fault fills a whole huge page; of other pages, most must have been seen to come.
            let seen = touched.huge_page_touches > 0
                || all.saturating_mul(10) >= touched.touched_pages.0.saturating_mul(9);
            let fits = data
                && seen
                && f.is_news(o)
                && bytes >= WORTH
                && all >= 64
                && touched.heat() >= 2.0;
            if !fits || share.pages.0.saturating_mul(20) < all.saturating_mul(19) {
                return None;
            }
            let beside = others(o, share.tid.0)?;
            (beside > 0).then(|| {
                threads = (threads.0.min(beside), threads.1.max(beside));
                *who.entry(share.tid.0).or_default() += share.pages.0;
                (o, bytes.0)
            })
        });
    let (names, objects, bytes) = list(single);
    let (&tid, _) = who.iter().max_by_key(|(_, pages)| **pages)?;
    if is_little(f.analysis, bytes) {
        return None;
    }
    let ran = match threads {
        (least, most) if least == most => format::counted(most, "other thread"),
        (least, most) => format!("{least} to {most} other threads"),
    };
    let title = match who.len() {
        1 => format!(
            "Thread {tid} alone touched {} first, while {ran} ran",
            format::bytes(Bytes(bytes))
        ),
        _ => format!(
            "{} were touched first by one thread each, while {ran} ran",
            format::bytes(Bytes(bytes))
        ),
    };
    let evidence =
        format!("By page faults: {names}. A scan cannot show which threads use the pages later.");
    let advice = "On a machine with several memory nodes such pages all lie on the node of that thread. Initialise the \
                  data in parallel, with the threads that use it, or interleave it.";
    Some(finding(
        FindingId::SingleFirstTouch,
        title,
        evidence,
        advice,
        objects,
    ))
}

/// The threads that do a hundredth of the work or more, by samples; none where there are too few to say. Helpers that sleep
/// are no reason to initialise anything in parallel.
fn working(analysis: &Analysis) -> Option<HashSet<(Pid, u32)>> {
    let samples = analysis.samples.as_ref()?;
    let all = samples.all.samples;
    let share = |s: u64| s >= MIN_SAMPLES && s.saturating_mul(100) >= all;
    let threads = samples.threads.iter();
    (all >= ENOUGH_SAMPLES).then(|| {
        threads
            .filter(|t| share(t.sampled.samples))
            .map(|t| (t.pid, t.tid.0))
            .collect()
    })
}

/// Objects of at least 1 MiB touched whose pages were faulted in by every thread of the process that faulted at all, at
/// least three, each with at least half its fair share.
pub(super) fn scanned_by_all(f: &Facts<'_>) -> Option<Finding> {
    let mut faulting: HashMap<Pid, u64> = HashMap::new();
    for t in f
        .analysis
        .threads
        .items()
        .iter()
        .filter(|t| t.first_touches.0 > 0)
    {
        *faulting.entry(t.pid).or_default() += 1;
    }
    let mut most = 0;
    let unreported = |o: &&ObjectUse| !f.reported.contains(&o.object);
    let all = f
        .analysis
        .objects
        .iter()
        .filter(unreported)
        .filter_map(|o| {
            let (touched, faulted) = (o.usage.touched.get()?, o.usage.faulted.get()?);
            let shares = o.threads.as_ref()?;
            let (threads, bytes) = (shares.len() as u64, touched.touched_pages.bytes());
            let least = shares.last()?.pages.0;
            let fair = least.saturating_mul(2 * threads) >= faulted.first_touches.0;
            let everyone = threads >= 3 && faulting.get(&o.pid) == Some(&threads);
            (everyone && fair && bytes >= WORTH).then(|| {
                most = threads.max(most);
                (o, bytes.0)
            })
        });
    let (names, objects, bytes) = list(all);
    if objects.is_empty() {
        return None;
    }
    let title = format!(
        "All {most} threads touched {} first, in about equal shares",
        format::bytes(Bytes(bytes))
    );
    let evidence = format!("By page faults: {names}. A scan cannot show later accesses by thread.");
    let advice = "Good where each thread goes on with the pages that it touched first; where all threads read all of \
                  it, interleave it over the nodes or give each node a copy.";
    Some(finding(
        FindingId::ScannedByAll,
        title,
        evidence,
        advice,
        objects,
    ))
}
