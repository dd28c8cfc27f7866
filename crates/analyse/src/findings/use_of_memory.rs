//! Memory that is not used, not any more, or not for long.

use std::collections::HashSet;

use varve_model::{Bytes, Duration, ObjectKind, PageRange};

use super::news::{is_little, is_runtimes};
use super::{FEW_INTERVALS, Facts, MIB, MIN_FOR_TAIL, WORTH, finding, list};
use crate::analysis::*;
use crate::format;

/// Allocated memory of which at least a quarter and 1 MiB was never touched, or which was touched only when it was new:
/// within 5 % of its life, of at least 20 intervals, after its birth; of runtimes and of little memory nothing is said, nor of what libraries map for
/// themselves and never touch. Only objects that lived for two intervals, were
/// born in the recording or before, have no others within, and were not touched by others possibly.
pub(super) fn never_touched(f: &Facts<'_>) -> Option<Finding> {
    if f.tables.is_window {
        return None;
    }
    let asked = || {
        let objects = f.analysis.objects.iter().filter(|o| f.is_asked_for(o));
        let objects = objects.filter_map(|o| Some((o, o.usage.touched.get()?, f.life(o)?)));
        objects.filter(|(_, touched, life)| {
            life.0 >= f.interval.0.saturating_mul(2) && touched.possibly_others_page_touches == 0
        })
    };
    let untouched = asked().filter(|(o, ..)| !f.from_libraries.contains(&o.object));
    let untouched = untouched.filter_map(|(o, touched, _)| {
        let pages = PageRange::of_bytes(o.address?, o.bytes?).count;
        let rest = pages.0.saturating_sub(touched.touched_pages.0);
        let bytes = Bytes(o.bytes?.0.saturating_sub(touched.touched_bytes.0));
        (bytes >= WORTH && rest.saturating_mul(4) >= pages.0).then_some((o, bytes.0))
    });
    let (never, mut objects, never_bytes) = list(untouched);
    let stale = asked().filter_map(|(o, touched, life)| {
        let used = touched.last_touch_ns? - f.since(o)?;
        let early =
            used.0 <= (life.0 / 20).max(f.interval.0) && life.0 >= FEW_INTERVALS * f.interval.0;
        let bytes = touched.touched_bytes;
        (f.long() && early && bytes >= WORTH).then_some((o, bytes.0))
    });
    let (new, more, new_bytes) = list(stale);
    objects.extend(more);
    objects.dedup();
    if is_little(f.analysis, never_bytes.saturating_add(new_bytes)) {
        return None;
    }
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
                "{} were touched only when they were new",
                format::bytes(Bytes(new_bytes))
            ),
            format!("{ONLY_NEW}: {new}."),
        ),
        (never_bytes, new_bytes) => (
            format!(
                "{} were allocated and never touched, {} only when they were new",
                format::bytes(Bytes(never_bytes)),
                format::bytes(Bytes(new_bytes))
            ),
            format!("Never touched: {never}. {ONLY_NEW}: {new}."),
        ),
    };
    if !f.analysis.trace.has_all_pages() {
        evidence += " The trace is incomplete: some may have been touched unseen.";
    }
    if f.analysis.trace.attached {
        evidence += " What happened before the recording began is not known.";
    }
    let mut advice = Vec::new();
    if never_bytes > 0 {
        advice.push(
            "Untouched pages take address space, and no memory unless they were touched before the recording: where they are a \
             reserve, nothing needs to be done; else allocate as much as is used, when it is used.",
        );
    }
    if new_bytes > 0 {
        advice.push(
            "What was filled and not used again can be released after its first use, be made when it is needed, or lie in slower \
             memory.",
        );
    }
    let found = finding(
        FindingId::NeverTouched,
        title,
        evidence,
        &advice.join(" "),
        objects,
    );
    Some(match never_bytes {
        0 => Finding {
            action: "release it after its first use".to_owned(),
            ..found
        },
        _ => found,
    })
}

/// What is said of memory that was touched only when it was new.
const ONLY_NEW: &str = "Touched in the first twentieth of their life and not later";

/// At least 10 s and 40 intervals of recording; objects alive at its end of which at least 1 MiB and 10 % of the
/// touched pages were not touched in its last quarter; 4 MiB in all.
pub(super) fn cold_tail(f: &Facts<'_>) -> Option<Finding> {
    let trace = &f.analysis.trace;
    if trace.duration_ns < MIN_FOR_TAIL || *trace.intervals.value()? < 2 * FEW_INTERVALS {
        return None;
    }
    let cold = f.analysis.objects.iter().filter(|o| f.is_news(o));
    let cold = cold.filter_map(|o| {
        let of = o.usage.touched.get()?;
        let (cold, touched) = (of.cold_pages, of.touched_pages);
        let bytes = cold.bytes();
        (bytes >= WORTH && cold.0.saturating_mul(10) >= touched.0).then_some((o, bytes.0))
    });
    let (names, objects, bytes) = list(cold);
    if bytes < 4 * MIB {
        return None;
    }
    // Pages that several of them lie on count once.
    let tail = f.analysis.tail.value()?;
    let bytes = bytes.min(tail.cold_pages.bytes().0);
    let tail = format::duration(tail.duration_ns);
    let all = f.analysis.footprint.touched_pages.or_zero().bytes().0;
    let title = format!(
        "{} were touched before, but not in the last {tail}",
        format::bytes(Bytes(bytes))
    );
    let evidence = format!(
        "{} of all memory touched: {names}.",
        format::percent(bytes, all)
    );
    let advice = "It can be released or compressed, or lie in slower memory, unless a later phase of the program needs it again.";
    Some(finding(
        FindingId::ColdTail,
        title,
        evidence,
        advice,
        objects,
    ))
}

/// Objects that lived for 20 intervals, with at least 4 MiB touched, 90 % of the pages in one interval only; and not
/// only when they were new, which is `never-touched`. What others possibly touched counts as touched again.
pub(super) fn touched_once(f: &Facts<'_>) -> Option<Finding> {
    if !f.long() || f.tables.is_window {
        return None;
    }
    let once = f.analysis.objects.iter().filter(|o| f.is_news(o));
    let once = once.filter_map(|o| {
        let touched = o.usage.touched.get()?;
        let bytes = touched.touched_bytes;
        let once = touched.reuse.once.0;
        let once = once.saturating_sub(touched.possibly_others_page_touches);
        let mostly = once.saturating_mul(10) >= touched.touched_pages.0.saturating_mul(9);
        let life = f.life(o)?.0;
        let used = touched.last_touch_ns? - f.since(o)?;
        let later = used.0 > (life / 20).max(f.interval.0) || !f.is_asked_for(o);
        (mostly && later && bytes.0 >= 4 * MIB && life >= FEW_INTERVALS * f.interval.0)
            .then_some((o, bytes.0))
    });
    let (names, objects, bytes) = list(once);
    if objects.is_empty() {
        return None;
    }
    let title = format!(
        "{} lie in objects whose pages were touched in one interval only",
        format::bytes(Bytes(bytes))
    );
    let evidence = format!("So were at least 90 % of the pages of: {names}.");
    let advice = "Data that is gone through once gains nothing from caches or fast memory. Do all that is to be done with a piece \
                  while it is cached, release what is done with, or place it in slower memory.";
    Some(finding(
        FindingId::TouchedOnce,
        title,
        evidence,
        advice,
        objects,
    ))
}

/// A group whose objects live briefly, with the figures that show it.
struct Churned<'a> {
    group: &'a Group,
    died: u64,
    life: Duration,
    bytes: Bytes,
    peak: Bytes,
    faults: u64,
}

/// At least 1,000 deaths at one site for each process that has objects of it, half of them within 10 intervals of birth, and 64 MiB in all, ten times what
/// lived at once; and a page fault for each life on average: where the allocator gives out the same memory again, a short life
/// costs next to nothing. Pools of small objects do not count.
pub(super) fn churn(f: &Facts<'_>) -> Option<Finding> {
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
        .filter_map(|g| {
            let churned = Churned {
                group: g,
                died: g.died?,
                life: g.median_life_ns?,
                bytes: g.bytes?,
                peak: g.peak_bytes?,
                faults: g.usage.faulted.get()?.faults,
            };
            (churned.died / (g.processes.len() as u64).max(1) >= 1000
                && churned.life.0 <= 10 * f.interval.0
                && churned.bytes.0 >= 64 * MIB
                && churned.bytes.0 / 10 >= churned.peak.0
                && churned.faults >= g.objects
                && matches!(g.kind, ObjectKind::Heap | ObjectKind::Mapping)
                && !pools.contains(g.name.as_str())
                && !is_runtimes(&g.name, g.site.as_deref()))
            .then_some(churned)
        })
        .max_by_key(|churned| churned.died)?;
    let group = worst.group;
    let title = format!(
        "{} of one allocation site lived briefly, {} in all",
        format::counted(worst.died, "object"),
        format::bytes(worst.bytes)
    );
    let evidence = format!(
        "{}: {} objects, median life {}, {} allocated in all, {} at once; {}, {:.1} for each object.",
        group.name,
        format::count(group.objects),
        format::duration(worst.life),
        format::bytes(worst.bytes),
        format::bytes(worst.peak),
        format::counted(worst.faults, "page fault"),
        worst.faults as f64 / group.objects.max(1) as f64
    );
    let advice = "Each new object pays for page faults and for zeroing its pages. Keep one buffer and use it again, or have the \
                  allocator keep freed memory (glibc: M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of mallopt).";
    let objects = f
        .analysis
        .objects
        .iter()
        .filter(|o| o.name == group.name && o.kind == group.kind);
    Some(finding(
        FindingId::Churn,
        title,
        evidence,
        advice,
        objects.map(|o| o.object).take(100).collect(),
    ))
}
