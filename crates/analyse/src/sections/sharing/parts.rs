//! From the sums of one object to what is said of it: its parts, its first threads, and whether it is shared.

use std::collections::BTreeMap;

use varve_model::{Page, PageRange, Pages, Tid};
use varve_trace::tables::ObjectRow;

use super::build::ObjectSums;
use super::{ENOUGH, RANGES, RangeCell, Ranges, SharingClass, SharingPart, SharingSource};
use crate::analysis::ThreadShare;

/// Events of a part of an object from which on it is said whose it is.
const MIN_IN_PART: u64 = 8;

/// The part of an object that a page is in.
pub(super) fn range_of(row: &ObjectRow, page: Page) -> Option<u32> {
    let pages = PageRange::of_bytes(row.address, row.bytes);
    let at = page.0.checked_sub(pages.first.0)?;
    // At most RANGES.
    (at < pages.count.0).then(|| (at / pages.count.0.div_ceil(RANGES)) as u32)
}

pub(super) fn ranges(row: &ObjectRow, sums: &ObjectSums, at: impl Fn(u32) -> u32) -> Ranges {
    if sums.ranges.is_empty() {
        return Ranges::default();
    }
    let count = PageRange::of_bytes(row.address, row.bytes).count.0;
    let pages = count.div_ceil(RANGES).max(1);
    Ranges {
        count: count.div_ceil(pages) as u32,
        pages: Pages(pages),
        cells: sums
            .ranges
            .iter()
            .filter(|(_, of)| of.events > 0)
            .map(|(&(range, thread), of)| RangeCell {
                range,
                thread: at(thread),
                events: of.events,
                weight: of.weight,
                writes: of.writes,
            })
            .collect(),
    }
}

/// Pages first touched, by thread: by counts where these show it, else by page faults.
pub(super) fn first_pages<'a>(
    sums: &ObjectSums,
    faults: impl Iterator<Item = &'a ThreadShare>,
) -> Option<BTreeMap<Tid, u64>> {
    let counted = sums.gathered.threads();
    let known: BTreeMap<Tid, u64> = counted.iter().map(|t| (t.tid, t.first_pages.0)).collect();
    if known.values().any(|pages| *pages > 0) {
        return Some(known);
    }
    let mut known: BTreeMap<Tid, u64> = BTreeMap::new();
    for share in faults {
        *known.entry(share.tid).or_default() += share.pages.0;
    }
    (!known.is_empty()).then_some(known)
}

/// Private or shared, as far as the source shows; `events` are those of the object.
pub(super) fn class_of(
    source: SharingSource,
    threads: &[SharingPart],
    known: bool,
    events: u64,
) -> Option<SharingClass> {
    match source {
        SharingSource::Counts => Some(class(threads, known)),
        SharingSource::Samples => Some(class_of_samples(threads, known, events)),
        SharingSource::Traps => class_of_firsts(threads, known),
        SharingSource::Faults => None,
    }
}

fn class(threads: &[SharingPart], known: bool) -> SharingClass {
    let writers = threads.iter().filter(|t| t.writes > 0).count();
    match (threads.len(), known, writers) {
        (0 | 1, ..) => SharingClass::Private,
        (_, false, _) => SharingClass::Shared,
        (_, _, 0) => SharingClass::ReadOnly,
        (_, _, 1) => SharingClass::OneWriter,
        _ => SharingClass::ManyWriters,
    }
}

/// What samples show: of few of them follows who uses an object and writes it, and not who does not.
fn class_of_samples(threads: &[SharingPart], known: bool, events: u64) -> SharingClass {
    match class(threads, known) {
        SharingClass::Private | SharingClass::ReadOnly | SharingClass::OneWriter
            if events < ENOUGH =>
        {
            SharingClass::TooFew
        }
        class => class,
    }
}

/// What is known of the first accesses to pages: one thread may not be alone, and one that was seen to read may also write.
fn class_of_firsts(threads: &[SharingPart], known: bool) -> Option<SharingClass> {
    match class(threads, known) {
        SharingClass::Private => None,
        SharingClass::ManyWriters => Some(SharingClass::ManyWriters),
        _ => Some(SharingClass::Shared),
    }
}

/// Parts are put together until they have twice [`MIN_IN_PART`] events each on average.
pub(super) fn own_share(sums: &ObjectSums) -> Option<f64> {
    let parts = (sums.all.events / (2 * MIN_IN_PART)).clamp(1, RANGES);
    let mut by_thread: BTreeMap<(u64, u32), (u64, u64)> = BTreeMap::new();
    for (&(range, thread), of) in &sums.ranges {
        let sum = by_thread
            .entry((u64::from(range) * parts / RANGES, thread))
            .or_default();
        sum.0 += of.events;
        sum.1 += of.weight;
    }
    let mut by_part: BTreeMap<u64, (u64, u64, u64)> = BTreeMap::new();
    for ((part, _), (events, weight)) in by_thread {
        let sum = by_part.entry(part).or_default();
        sum.0 += events;
        sum.1 += weight;
        sum.2 = weight.max(sum.2);
    }
    let known = by_part.values().filter(|(n, ..)| *n >= MIN_IN_PART);
    let (weight, most) = known.fold((0, 0), |sum, of| (sum.0 + of.1, sum.1 + of.2));
    (weight > 0 && weight.saturating_mul(2) >= sums.all.weight).then(|| most as f64 / weight as f64)
}
