//! Where an object should lie, by which threads use which parts of it.

use std::collections::{BTreeMap, HashMap, HashSet};

use varve_model::{Bytes, ObjectId};

use super::{Facts, MIB, WORTH, finding, list};
use crate::analysis::*;
use crate::format;
use crate::sections::sharing::{ObjectSharing, SharingPart, SharingSource, SharingUse, WeightUnit};

/// Parts that a thread must be seen in to scan an object; each is several of [`crate::Ranges`].
const PARTS: u32 = 16;
/// Events from which on a thread that uses all parts alike is seen in 98 of 100 of them: 1 - (15/16)^64.
const SCAN_EVENTS: u64 = 64;
/// Samples of which a share is known to 1.5 percent.
const SPLIT_EVENTS: u64 = 400;
/// Writes of an object that is only read but for its making: a twentieth of the weight.
const READ_ONLY: u64 = 20;

/// Objects that these rules speak of. The rules by first touch alone leave them out: more is known of them.
pub(super) fn reported(found: &[Finding]) -> HashSet<ObjectId> {
    let ids = [
        FindingId::ParallelFirstTouch,
        FindingId::Interleave,
        FindingId::Replicate,
    ];
    let of = found.iter().filter(|f| ids.contains(&f.id));
    of.flat_map(|f| f.objects.iter().copied()).collect()
}

/// Objects of at least 1 MiB, with at least 64 first touches and, of samples, 64 events, 95 % of the first touches by one thread, of which other threads use parts
/// of their own: in each part the heaviest thread has 90 % of the weight or more, on average; at least two threads have a
/// tenth of it each, and the first toucher not more than three quarters.
pub(super) fn parallel_first_touch(f: &Facts<'_>) -> Option<Finding> {
    let (sharing, by_id) = used(f)?;
    let mut who: BTreeMap<u32, u64> = BTreeMap::new();
    let mut shares: Vec<String> = Vec::new();
    let fits = sharing.objects.iter().filter_map(|o| {
        let of = *by_id.get(&o.object)?;
        let first: u64 = o.threads.iter().filter_map(|t| Some(t.first_pages?.0)).sum();
        let (tid, own) = (o.first_tid?, o.own_share?);
        let one = o.threads.iter().find(|t| t.tid == tid);
        let pages = one.and_then(|t| t.first_pages).map_or(0, |p| p.0);
        // A thread that made an object and never used it is not among its threads.
        let maker = of.threads.as_ref().and_then(|threads| threads.first());
        let (pages, first) = match maker.zip(of.usage.faulted.get()) {
            Some((share, faulted)) if pages == 0 && share.tid == tid => (share.pages.0, faulted.first_touches.0),
            _ => (pages, first),
        };
        let bytes = of.bytes?;
        let sure = sharing.source == SharingSource::Counts || o.events >= SCAN_EVENTS;
        let users = o.threads.iter().filter(|t| t.weight.saturating_mul(10) >= o.weight);
        let its = one.map_or(0, |t| t.weight);
        (bytes >= WORTH
            && sure
            && o.ranges.count >= 8
            && first >= 64
            && pages.saturating_mul(20) >= first.saturating_mul(19)
            && own >= 0.9
            && users.count() >= 2
            && its.saturating_mul(4) <= o.weight.saturating_mul(3))
        .then(|| {
            *who.entry(tid.0).or_default() += 1;
            if shares.len() < super::NAMES {
                shares.push(format!(
                    "{}: thread {tid} touched {} of the pages first and has {} of the use; each part is {:.0} % one \
                     thread's, {}",
                    o.name,
                    format::percent(pages, first),
                    format::percent(its, o.weight),
                    100.0 * own,
                    parts(sharing, o)
                ));
            }
            (of, bytes.0)
        })
    });
    let (_, objects, bytes) = list(fits);
    let (tid, _) = who.into_iter().max_by_key(|(_, n)| *n)?;
    let title = format!(
        "{} were first touched by thread {tid}, and other threads use them, each a part of its own",
        format::bytes(Bytes(bytes))
    );
    let evidence = format!("{}. {}", shares.join("; "), sharing.weight);
    let advice = "First touch places a page on the node of the thread that touches it first. Initialise the object in \
                  parallel, each thread the part that it uses later, and keep threads on their CPUs.";
    Some(finding(
        FindingId::ParallelFirstTouch,
        title,
        evidence,
        advice,
        objects,
    ))
}

/// Objects of at least 1 MiB that at least two threads scan: each has 64 events in it, is seen in nine of ten of its parts,
/// and has at least half its fair share; together they have 90 % of the weight, and no part is one thread's.
/// Some of them write it.
pub(super) fn interleave(f: &Facts<'_>) -> Option<Finding> {
    let (title, evidence, objects) = scanned(f, false)?;
    let advice = "No memory node is right for it: spread its pages over the nodes (numactl --interleave, mbind with \
                  MPOL_INTERLEAVE), so that no memory controller serves all threads.";
    Some(finding(
        FindingId::Interleave,
        title,
        evidence,
        advice,
        objects,
    ))
}

/// The same where at most a twentieth of the weight writes: it is read-only after initialisation.
pub(super) fn replicate(f: &Facts<'_>) -> Option<Finding> {
    let (title, evidence, objects) = scanned(f, true)?;
    let advice = "It is read-only after initialisation: give each memory node a copy of its own if it is small, else \
                  interleave it over the nodes.";
    Some(finding(
        FindingId::Replicate,
        title,
        evidence,
        advice,
        objects,
    ))
}

fn scanned(f: &Facts<'_>, read_only: bool) -> Option<(String, String, Vec<ObjectId>)> {
    let (sharing, by_id) = used(f)?;
    let (mut most, mut all, mut shown) = (0, 0_u64, Vec::new());
    let fits = sharing.objects.iter().filter_map(|o| {
        let of = *by_id.get(&o.object)?;
        let size = of.bytes?;
        let writes = o.writes?;
        let is_read_only = writes.saturating_mul(READ_ONLY) <= o.weight;
        let scanning = scanners(o);
        let together: u64 = scanning.iter().map(|t| t.weight).sum();
        let fair = scanning
            .iter()
            .all(|t| t.weight.saturating_mul(2 * scanning.len() as u64) >= together);
        (size >= WORTH
            && is_read_only == read_only
            && scanning.len() >= 2
            && fair
            && together.saturating_mul(10) >= o.weight.saturating_mul(9)
            && o.own_share.is_none_or(|own| own < 0.75))
        .then(|| {
            most = most.max(scanning.len());
            if shown.len() < super::NAMES {
                let spread: Vec<String> = scanning
                    .iter()
                    .take(4)
                    .map(|t| format!("{} by {}", format::percent(t.weight, o.weight), t.tid))
                    .collect();
                shown.push(format!(
                    "{}: {}; {} of it writes",
                    o.name,
                    spread.join(", "),
                    format::percent(writes, o.weight)
                ));
            }
            all = all.saturating_add(size.0);
            let touched = of.usage.touched.get().map(|t| t.touched_bytes);
            (of, touched.unwrap_or(size).0)
        })
    });
    let (_, objects, touched) = list(fits);
    if objects.is_empty() {
        return None;
    }
    let verb = if read_only { "read" } else { "read and write" };
    let bytes = |n| format::bytes(Bytes(n));
    let what = match touched < all {
        true => format!("what was touched, {} of {}", bytes(touched), bytes(all)),
        false => bytes(all),
    };
    let title = format!("{most} threads {verb} all of {what}");
    let evidence = format!("{}. {}", shown.join("; "), sharing.weight);
    Some((title, evidence, objects))
}

/// Threads that use all of an object.
fn scanners(o: &ObjectSharing) -> Vec<&SharingPart> {
    if o.ranges.count < PARTS {
        return Vec::new();
    }
    let part = |range: u32| range * PARTS / o.ranges.count;
    let mut seen: HashMap<u32, HashSet<u32>> = HashMap::new();
    let mut used: HashSet<u32> = HashSet::new();
    for cell in &o.ranges.cells {
        seen.entry(cell.thread)
            .or_default()
            .insert(part(cell.range));
        used.insert(part(cell.range));
    }
    let all = |t: &&SharingPart| {
        let parts = seen.get(&t.thread).map_or(0, HashSet::len);
        t.events >= SCAN_EVENTS && used.len() >= 12 && parts * 10 >= used.len() * 9
    };
    o.threads.iter().filter(all).collect()
}

/// Objects of at least 4 MiB of which a quarter of the parts or less have 90 % of the weight, while at least half of
/// their pages were touched; of samples, with 400 of them at least.
pub(super) fn split_hot_cold(f: &Facts<'_>) -> Option<Finding> {
    let (sharing, by_id) = used(f)?;
    let mut shown = Vec::new();
    let fits = sharing.objects.iter().filter_map(|o| {
        let of = *by_id.get(&o.object)?;
        let touched = of.usage.touched.get()?.touched_pages.bytes();
        let size = of.bytes?;
        let sure = sharing.source == SharingSource::Counts || o.events >= SPLIT_EVENTS;
        if size.0 < 4 * MIB || touched.0.saturating_mul(2) < size.0 || !sure {
            return None;
        }
        let (hot, weight) = hottest(o)?;
        (hot * 4 <= o.ranges.count).then(|| {
            let bytes = (u64::from(hot) * o.ranges.pages.bytes().0).min(size.0);
            if shown.len() < super::NAMES {
                shown.push(format!(
                    "{}: {}{} of the use is in {} of {}",
                    o.name,
                    format::percent(weight, o.weight),
                    error(sharing, weight, o),
                    format::bytes(Bytes(bytes)),
                    format::bytes(size)
                ));
            }
            (of, size.0 - bytes)
        })
    });
    let (_, objects, cold) = list(fits);
    if objects.is_empty() {
        return None;
    }
    let title = format!(
        "{} are hardly used, in objects of which a small part is hot",
        format::bytes(Bytes(cold))
    );
    let evidence = format!("{}. {}", shown.join("; "), sharing.weight);
    let advice = "Split what is used often from what is not, into objects of their own: the hot part then fits fast \
                  memory and large pages, and the cold part can lie on a slower tier.";
    Some(finding(
        FindingId::SplitHotCold,
        title,
        evidence,
        advice,
        objects,
    ))
}

/// How many parts have 90 % of the weight, and what they have.
fn hottest(o: &ObjectSharing) -> Option<(u32, u64)> {
    let mut by_range: BTreeMap<u32, u64> = BTreeMap::new();
    for cell in &o.ranges.cells {
        *by_range.entry(cell.range).or_default() += cell.weight;
    }
    let all: u64 = by_range.values().sum();
    let mut weights: Vec<u64> = by_range.into_values().collect();
    weights.sort_unstable_by(|a, b| b.cmp(a));
    let (mut sum, mut count) = (0_u64, 0);
    for weight in weights {
        sum += weight;
        count += 1;
        if sum.saturating_mul(10) >= all.saturating_mul(9) {
            return (all > 0).then_some((count, sum));
        }
    }
    None
}

/// The standard error of a share, where it comes from samples: ` ± 1.5 %`.
fn error(sharing: &SharingUse, part: u64, o: &ObjectSharing) -> String {
    match sharing.unit {
        WeightUnit::Accesses => String::new(),
        _ => {
            let share = part as f64 / o.weight.max(1) as f64;
            let error = (share * (1.0 - share) / o.events.max(1) as f64).sqrt();
            format!(" ± {:.1} %", 100.0 * error)
        }
    }
}

/// `40 % by 12, 38 % by 13`
fn parts(sharing: &SharingUse, o: &ObjectSharing) -> String {
    let shown: Vec<String> = o
        .threads
        .iter()
        .take(4)
        .map(|t| {
            let share = format::percent(t.weight, o.weight);
            format!("{share}{} by {}", error(sharing, t.weight, o), t.tid)
        })
        .collect();
    shown.join(", ")
}

/// Who uses what, where more is known than first touches and first accesses, of which neither shows how much a thread uses
/// a part nor whether it only reads; with the objects by their numbers.
fn used<'a>(f: &Facts<'a>) -> Option<(&'a SharingUse, HashMap<ObjectId, &'a ObjectUse>)> {
    let sharing = f.analysis.sharing.as_ref()?;
    let objects = f.analysis.objects.iter().filter(|o| f.is_news(o));
    let firsts = [SharingSource::Faults, SharingSource::Traps];
    (!firsts.contains(&sharing.source)).then(|| (sharing, objects.map(|o| (o.object, o)).collect()))
}
