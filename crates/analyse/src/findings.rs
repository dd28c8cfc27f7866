//! The rules: what stands out in a trace, from which thresholds on, and what to do about it.
//!
//! A rule speaks only where the trace supports it. Every rule has a test that makes it speak and one that keeps it
//! silent, in `tests/findings.rs`.

use std::collections::{BTreeMap, HashMap, HashSet};

use varve_model::{
    Bytes, Duration, ObjectId, ObjectKind, PageRange, Pages, Pid, Time, TouchSource,
};

use crate::analysis::*;
use crate::assemble::Tables;
use crate::format;

/// Memory below this is not worth a sentence.
const MIB: u64 = 1 << 20;
const WORTH: Bytes = Bytes(MIB);
/// Nothing is said of time in recordings of fewer intervals.
const FEW_INTERVALS: u64 = 20;
/// Names that a sentence lists.
const NAMES: usize = 3;

/// All findings, most important first.
pub(crate) fn find(analysis: &Analysis, tables: &Tables) -> Vec<Finding> {
    if analysis.trace.touch_rows == 0 && analysis.trace.intervals == 0 {
        return incomplete(analysis).into_iter().collect();
    }
    let facts = Facts::new(analysis, tables);
    let rules: [fn(&Facts<'_>) -> Option<Finding>; 9] = [
        |f| incomplete(f.analysis),
        |f| short_recording(f.analysis),
        never_touched,
        cold_tail,
        single_first_touch,
        scanned_by_all,
        touched_once,
        churn,
        standing,
    ];
    let mut found: Vec<Finding> = rules.iter().filter_map(|rule| rule(&facts)).collect();
    found.extend(huge_pages(analysis));
    found
}

/// What several rules ask for.
struct Facts<'a> {
    analysis: &'a Analysis,
    tables: &'a Tables,
    interval: Duration,
    end: Time,
    /// Objects with others inside, whose own pages cannot be told from their size.
    outer: HashSet<ObjectId>,
}

impl<'a> Facts<'a> {
    fn new(analysis: &'a Analysis, tables: &'a Tables) -> Facts<'a> {
        Facts {
            analysis,
            tables,
            interval: analysis.trace.median_interval_ns.max(Duration(1)),
            end: Time(
                analysis
                    .trace
                    .start_ns
                    .0
                    .saturating_add(analysis.trace.duration_ns.0),
            ),
            outer: outer(tables),
        }
    }

    fn life(&self, o: &ObjectUse) -> Duration {
        o.died_ns.unwrap_or(self.end).min(self.end) - o.born_ns.max(self.analysis.trace.start_ns)
    }

    /// The program asked for this memory, and all of its pages are its own.
    fn is_asked_for(&self, o: &ObjectUse) -> bool {
        let asked = match o.kind {
            ObjectKind::Heap => !o.pool,
            ObjectKind::Mapping => o.site.is_some(),
            ObjectKind::Static | ObjectKind::Stack | ObjectKind::File => false,
        };
        asked && !self.outer.contains(&o.object)
    }

    fn long(&self) -> bool {
        self.analysis.trace.intervals >= FEW_INTERVALS
    }
}

/// Objects within which others lie, whenever that was.
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
                if open_layer < layer {
                    outer.insert(open_object);
                }
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
    let mut names: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    let (mut objects, mut sum) = (Vec::new(), 0_u64);
    let mut parts: Vec<_> = parts.collect();
    parts.sort_by_key(|(o, bytes)| (std::cmp::Reverse(*bytes), o.object));
    for (o, bytes) in parts {
        let entry = names.entry(&o.name).or_default();
        entry.0 += 1;
        entry.1 = entry.1.saturating_add(bytes);
        sum = sum.saturating_add(bytes);
        if objects.len() < 100 {
            objects.push(o.object);
        }
    }
    let mut names: Vec<_> = names.into_iter().collect();
    names.sort_by_key(|(name, (_, bytes))| (std::cmp::Reverse(*bytes), *name));
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
        advice: advice.to_owned(),
        objects,
    }
}

/// Any loss counter above zero, or a recording that did not end.
fn incomplete(analysis: &Analysis) -> Option<Finding> {
    let trace = &analysis.trace;
    if trace.complete {
        return None;
    }
    let losses: Vec<String> = trace
        .losses
        .iter()
        .map(|(kind, count)| format!("{kind}: {}", format::count(*count)))
        .collect();
    let evidence = match losses.is_empty() {
        true => trace.statement.clone(),
        false => format!("Losses: {}.", losses.join(", ")),
    };
    let title = "The trace is incomplete: some accesses may be missing".to_owned();
    let advice = "Take what was not seen as unknown, not as unused. Record again with a longer --interval, or run \
                  `varve doctor` to see what this machine lacks.";
    Some(finding(
        FindingId::Incomplete,
        title,
        evidence,
        advice,
        Vec::new(),
    ))
}

/// Fewer than 20 intervals.
fn short_recording(analysis: &Analysis) -> Option<Finding> {
    let intervals = analysis.trace.intervals;
    if intervals >= FEW_INTERVALS {
        return None;
    }
    let evidence = format!(
        "{} in {}: hot and cold, early and late can hardly be told apart.",
        format::counted(intervals, "interval"),
        format::duration(analysis.trace.duration_ns)
    );
    let title = "The recording is short".to_owned();
    let advice = "Record a longer run, or with a shorter --interval.";
    Some(finding(
        FindingId::ShortRecording,
        title,
        evidence,
        advice,
        Vec::new(),
    ))
}

/// Allocated memory of which at least a quarter and 1 MiB was never touched, or which was touched only when it was new:
/// within 5 % of its life, of at least 20 intervals, after its birth. Only objects that lived for two intervals, were
/// born in the recording or before, and have no others within.
fn never_touched(f: &Facts<'_>) -> Option<Finding> {
    let asked = || {
        f.analysis
            .objects
            .iter()
            .filter(|o| f.is_asked_for(o) && f.life(o).0 >= 2 * f.interval.0)
    };
    let untouched = asked().filter_map(|o| {
        let pages = PageRange::of_bytes(o.address, o.bytes).count;
        let rest = pages.0.saturating_sub(o.usage.touched_pages.0);
        let bytes = Pages(rest).bytes();
        (bytes >= WORTH && rest.saturating_mul(4) >= pages.0).then_some((o, bytes.0))
    });
    let (never, mut objects, never_bytes) = list(untouched);
    let stale = asked().filter_map(|o| {
        let life = f.life(o);
        let used = o.usage.last_touch_ns? - o.born_ns.max(f.analysis.trace.start_ns);
        let early =
            used.0 <= (life.0 / 20).max(f.interval.0) && life.0 >= FEW_INTERVALS * f.interval.0;
        let bytes = o.usage.touched_pages.bytes();
        (f.long() && early && bytes >= WORTH).then_some((o, bytes.0))
    });
    let (new, more, new_bytes) = list(stale);
    objects.extend(more);
    objects.dedup();
    let (title, mut evidence) = match (never_bytes, new_bytes) {
        (0, 0) => return None,
        (never_bytes, 0) => (
            format!(
                "{} were allocated and never touched",
                format::bytes(Bytes(never_bytes))
            ),
            format!("Never touched: {never}."),
        ),
        (0, new_bytes) => (
            format!(
                "{} were touched only when new",
                format::bytes(Bytes(new_bytes))
            ),
            format!("Touched only after their birth: {new}."),
        ),
        (never_bytes, new_bytes) => (
            format!(
                "{} were allocated and never touched, {} only when new",
                format::bytes(Bytes(never_bytes)),
                format::bytes(Bytes(new_bytes))
            ),
            format!("Never touched: {never}. Touched only after their birth: {new}."),
        ),
    };
    if !f.analysis.trace.complete {
        evidence += " The trace is incomplete: some may have been touched unseen.";
    }
    if f.analysis.trace.attached {
        evidence += " What happened before the recording began is not known.";
    }
    let advice = "Allocate less, or when it is needed. Memory that is filled once and never read again can be \
                  released, or lie on the slowest tier.";
    Some(finding(
        FindingId::NeverTouched,
        title,
        evidence,
        advice,
        objects,
    ))
}

/// At least 10 s and 40 intervals of recording; objects alive at its end of which at least 1 MiB and 10 % of the
/// touched pages were not touched in its last quarter; 4 MiB in all.
fn cold_tail(f: &Facts<'_>) -> Option<Finding> {
    let trace = &f.analysis.trace;
    if trace.duration_ns.0 < 10_000_000_000 || trace.intervals < 2 * FEW_INTERVALS {
        return None;
    }
    let cold = f.analysis.objects.iter().filter_map(|o| {
        let (cold, touched) = (o.usage.cold_pages, o.usage.touched_pages);
        let bytes = cold.bytes();
        (bytes >= WORTH && cold.0.saturating_mul(10) >= touched.0).then_some((o, bytes.0))
    });
    let (names, objects, bytes) = list(cold);
    if bytes < 4 * MIB {
        return None;
    }
    let tail = format::duration(f.analysis.tail.duration_ns);
    let all = f.analysis.footprint.touched_pages.bytes().0;
    let title = format!(
        "{} were cold for the last {tail}",
        format::bytes(Bytes(bytes))
    );
    let evidence = format!(
        "{} of all memory touched. {names}.",
        format::percent(bytes, all)
    );
    let advice = "A candidate for a slower tier, for compression or for release, unless a later phase needs it.";
    Some(finding(
        FindingId::ColdTail,
        title,
        evidence,
        advice,
        objects,
    ))
}

/// Objects of at least 1 MiB touched, used in two intervals or more on average, with at least 64 first touches by page
/// faults, 95 % of them by one thread, while another thread of the process lived for half the object's time. Static
/// data, heap and mappings; the evidence is page faults: a scan does not tell who used the pages later.
fn single_first_touch(f: &Facts<'_>) -> Option<Finding> {
    let mut lives: HashMap<Pid, Vec<(u32, Time, Time)>> = HashMap::new();
    for t in &f.tables.threads {
        let died = t.died_ns.unwrap_or(f.end);
        lives
            .entry(t.pid)
            .or_default()
            .push((t.tid.0, t.born_ns, died));
    }
    let others = |o: &ObjectUse, tid: u32| {
        let (born, died) = (
            o.born_ns.max(f.analysis.trace.start_ns),
            o.died_ns.unwrap_or(f.end).min(f.end),
        );
        let beside = |&&(other, from, to): &&(u32, Time, Time)| {
            other != tid && (to.min(died) - from.max(born)).0 >= (died - born).0 / 2
        };
        lives
            .get(&o.pid)
            .map_or(0, |l| l.iter().filter(beside).count())
    };
    let mut threads = (u64::MAX, 0_u64);
    let mut who: BTreeMap<u32, u64> = BTreeMap::new();
    let single = f.analysis.objects.iter().filter_map(|o| {
        let data = matches!(
            o.kind,
            ObjectKind::Static | ObjectKind::Heap | ObjectKind::Mapping
        );
        let (share, all) = (o.threads.first()?, o.usage.first_touches.0);
        let bytes = o.usage.touched_pages.bytes();
        let fits = data && bytes >= WORTH && all >= 64 && o.usage.heat() >= 2.0;
        if !fits || share.pages.0.saturating_mul(20) < all.saturating_mul(19) {
            return None;
        }
        let beside = others(o, share.tid.0) as u64;
        (beside > 0).then(|| {
            threads = (threads.0.min(beside), threads.1.max(beside));
            *who.entry(share.tid.0).or_default() += share.pages.0;
            (o, bytes.0)
        })
    });
    let (names, objects, bytes) = list(single);
    let (&tid, _) = who.iter().max_by_key(|(_, pages)| **pages)?;
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
    let evidence = format!(
        "By page faults: {names}. Which threads use the pages later, a scan does not tell."
    );
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

/// Objects of at least 1 MiB touched whose pages were faulted in by every thread of the process that faulted at all, at
/// least three, each with at least half its fair share.
fn scanned_by_all(f: &Facts<'_>) -> Option<Finding> {
    let mut faulting: HashMap<Pid, u64> = HashMap::new();
    for t in f.analysis.threads.iter().filter(|t| t.first_touches.0 > 0) {
        *faulting.entry(t.pid).or_default() += 1;
    }
    let mut most = 0;
    let all = f.analysis.objects.iter().filter_map(|o| {
        let (threads, bytes) = (o.threads.len() as u64, o.usage.touched_pages.bytes());
        let least = o.threads.last()?.pages.0;
        let fair = least.saturating_mul(2 * threads) >= o.usage.first_touches.0;
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
        "All {most} threads touched {} first in equal shares",
        format::bytes(Bytes(bytes))
    );
    let evidence =
        format!("By page faults: {names}. Later accesses by thread a scan does not tell.");
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

/// Objects that lived for 20 intervals, with at least 4 MiB touched, 90 % of the pages in one interval only; and not
/// only when they were new, which is `never-touched`.
fn touched_once(f: &Facts<'_>) -> Option<Finding> {
    if !f.long() {
        return None;
    }
    let once = f.analysis.objects.iter().filter_map(|o| {
        let bytes = o.usage.touched_pages.bytes();
        let mostly =
            o.usage.reuse.once.0.saturating_mul(10) >= o.usage.touched_pages.0.saturating_mul(9);
        let life = f.life(o).0;
        let used = o.usage.last_touch_ns? - o.born_ns.max(f.analysis.trace.start_ns);
        let later = used.0 > (life / 20).max(f.interval.0) || !f.is_asked_for(o);
        (mostly && later && bytes.0 >= 4 * MIB && life >= FEW_INTERVALS * f.interval.0)
            .then_some((o, bytes.0))
    });
    let (names, objects, bytes) = list(once);
    if objects.is_empty() {
        return None;
    }
    let title = format!(
        "{} lie in objects whose pages were touched once",
        format::bytes(Bytes(bytes))
    );
    let evidence = format!("At least 90 % of the pages in one interval only: {names}.");
    let advice = "Streamed data gains nothing from fast memory or from caches: process it in pieces that are used \
                  again, release the pages behind, or place it on a slower tier.";
    Some(finding(
        FindingId::TouchedOnce,
        title,
        evidence,
        advice,
        objects,
    ))
}

/// At least 1,000 deaths at one site, half of them within 10 intervals of birth, and 64 MiB in all, ten times what
/// lived at once. Pools of small objects do not count.
fn churn(f: &Facts<'_>) -> Option<Finding> {
    let pools: HashSet<&str> = f
        .analysis
        .objects
        .iter()
        .filter(|o| o.pool)
        .map(|o| o.name.as_str())
        .collect();
    let worst = f
        .analysis
        .groups
        .iter()
        .filter(|g| {
            g.died >= 1000
                && g.median_life_ns.is_some_and(|l| l.0 <= 10 * f.interval.0)
                && g.bytes.0 >= 64 * MIB
                && g.bytes.0 / 10 >= g.peak_bytes.0
                && matches!(g.kind, ObjectKind::Heap | ObjectKind::Mapping)
                && !pools.contains(g.name.as_str())
        })
        .max_by_key(|g| g.died)?;
    let title = format!(
        "{} lived briefly, {} of them at one site",
        format::counted(worst.died, "object"),
        format::bytes(worst.bytes)
    );
    let evidence = format!(
        "{}: {} objects, median life {}, {} allocated in all, {} at once.",
        worst.name,
        format::count(worst.objects),
        worst
            .median_life_ns
            .map(format::duration)
            .unwrap_or_default(),
        format::bytes(worst.bytes),
        format::bytes(worst.peak_bytes)
    );
    let advice = "Keep one buffer and use it again, or raise the allocator's threshold so that it keeps the pages: \
                  each new life pays page faults and zeroing.";
    let objects = f
        .analysis
        .objects
        .iter()
        .filter(|o| o.name == worst.name && o.kind == worst.kind);
    Some(finding(
        FindingId::Churn,
        title,
        evidence,
        advice,
        objects.map(|o| o.object).take(100).collect(),
    ))
}

/// Pages that count in every interval whether used or not make at least 10 % of all page touches.
fn standing(f: &Facts<'_>) -> Option<Finding> {
    let of = |source| f.analysis.sources.iter().find(move |s| s.source == source);
    let (sticky, pinned) = (of(TouchSource::Sticky), of(TouchSource::Pinned));
    let touches = sticky
        .into_iter()
        .chain(pinned)
        .map(|s| s.page_touches)
        .sum::<u64>();
    let all = f
        .analysis
        .sources
        .iter()
        .map(|s| s.page_touches)
        .sum::<u64>();
    if touches == 0 || touches.saturating_mul(10) < all {
        return None;
    }
    let mut parts = Vec::new();
    if let Some(s) = sticky {
        parts.push(format!("up to {} whose accessed bit the kernel cannot clear (hugetlb, zero page, device memory)", format::counted(s.peak_pages.0, "page")));
    }
    if let Some(s) = pinned {
        parts.push(format!(
            "up to {} pinned for direct access",
            format::counted(s.peak_pages.0, "page")
        ));
    }
    let title = format!(
        "{} of the page touches cannot be told from standing still",
        format::percent(touches, all)
    );
    let evidence = format!("In each interval: {}.", parts.join("; "));
    let advice = "Read the working set as an upper bound. Page faults still tell who touched these pages first.";
    let objects = f
        .analysis
        .objects
        .iter()
        .filter(|o| o.usage.standing_page_touches > 0);
    Some(finding(
        FindingId::Sticky,
        title,
        evidence,
        advice,
        objects.map(|o| o.object).take(100).collect(),
    ))
}

/// Huge pages make at least 10 % of all page touches. Whether they are bloated cannot be told: they have one accessed
/// bit each.
fn huge_pages(analysis: &Analysis) -> Option<Finding> {
    let (huge, all) = (
        analysis.footprint.huge_page_touches,
        analysis.footprint.page_touches,
    );
    if huge == 0 || huge.saturating_mul(10) < all {
        return None;
    }
    let mut largest: Vec<&ObjectUse> = analysis
        .objects
        .iter()
        .filter(|o| o.usage.huge_page_touches > 0)
        .collect();
    largest.sort_by_key(|o| (std::cmp::Reverse(o.usage.huge_page_touches), o.object));
    let names: Vec<&str> = largest
        .iter()
        .take(NAMES)
        .map(|o| o.name.as_str())
        .collect();
    let lie = match names.is_empty() {
        true => String::new(),
        false => format!(" They lie in {}.", names.join(", ")),
    };
    let title = format!(
        "{} of the page touches are huge pages, at their own size",
        format::percent(huge.min(all), all)
    );
    let evidence = format!(
        "A touch of one byte of a huge page counts all of it: how much of each is used is unknown.{lie}"
    );
    let advice = "Record once with --thp=never to see 4 KiB pages.";
    let objects = largest.iter().map(|o| o.object).take(100).collect();
    Some(finding(
        FindingId::HugePages,
        title,
        evidence,
        advice,
        objects,
    ))
}
