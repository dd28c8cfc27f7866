//! What is wrong: each diagnosis names a disease that is known of allocators, its size, and what helps.
//!
//! Bounds are such that programs of each kind with a healthy allocator get none; `tests/alloc` has both. What was measured with an error
//! must lie above its bound by more than that: else it is not known, which is said.

mod advice;
pub(crate) mod given_back;
mod lock;

use serde::Serialize;
use ts_rs::TS;
use varve_analyse::format;
use varve_model::{Bytes, Duration};

use crate::bounds::Side;
use crate::figures::{CONFIDENCE, Timing, allocates};
use crate::{Judgement, Share};

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Serialize, TS)]
pub struct Diagnosis {
    /// A word that stays the same.
    pub id: &'static str,
    /// What is wrong, as a part of a sentence.
    pub title: String,
    /// How it was seen, with figures.
    pub evidence: String,
    /// What helps.
    pub advice: String,
    /// What it costs, as a share: 0 to 1.
    pub share: f64,
    /// Of what that is a share.
    pub share_of: &'static str,
    /// Whether it is the program's own doing: no other allocator helps.
    pub by_program: bool,
}

/// System calls that take so much of the CPU time are too many.
const CALLS_SHARE: f64 = 0.05;
/// A block of so many bytes is large.
const LARGE: Bytes = Bytes(32 << 10);
/// An allocation that only finds memory takes no longer.
const SLOW: Duration = Duration(1_000);
/// Of fewer that were timed nothing is said.
const FEW_TIMED: u64 = 30;
/// Waste of so much of what blocks could hold is too much.
const WASTE: f64 = 0.25;
/// Memory below this is not worth a word.
const MUCH_MEMORY: u64 = 8 << 20;
/// So much more resident memory than blocks hold is too much.
const BLOWUP: f64 = 1.6;
/// So much of the resident memory on pages that are nearly empty is worth a word.
const SPARSE: f64 = 0.25;
/// So much of the time at accesses on lines that threads share falsely is ...
const SHARED_TIME: f64 = 0.02;
/// ... where at least this share of such lines has blocks that came to lie beside another thread's.
const SHARED_LINES: f64 = 0.5;
/// So much of what was reused lies far from what was used before ...
const SCATTERED: f64 = 0.5;
/// ... where so many blocks were looked at ...
const FEW_CHOICES: u64 = 100;
/// ... and so many are allocated in a second of CPU time.
const OFTEN: f64 = 10_000.0;
/// What leaks is allocated in so many quarters of the run ...
const LEAKING_QUARTERS: u32 = 3;
/// ... and sampled so often ...
const LEAKING_SAMPLES: u64 = 8;
/// ... and so much of it is never freed.
const LEAKED: f64 = 0.95;
/// So much of what lives at the peak is worth a word.
const LEAK_SHARE: f64 = 0.1;
/// Of so much of the run ...
const LONG: f64 = 0.3;
/// ... and so long is long.
const LONG_AGO: Duration = Duration(500_000_000);

/// What seems to be wrong, and on which side of its bounds it lies: not below.
type Found = Option<(Side, Diagnosis)>;

/// What is wrong, and what seems to be and is not known; each with the costliest first.
pub(crate) fn diagnose(judgement: &Judgement) -> (Vec<Diagnosis>, Vec<Diagnosis>) {
    let mut found: Vec<(Side, Diagnosis)> = [
        given_back::storm(judgement),
        given_back::mapping(judgement),
        lock::lock(judgement),
        slow_large(judgement),
        waste(judgement),
        kept(judgement),
        sparse(judgement),
        false_sharing(judgement),
        random(judgement),
        leak(judgement),
    ]
    .into_iter()
    .flatten()
    .collect();
    found.sort_by(|(_, a), (_, b)| b.share.total_cmp(&a.share));
    let (sure, unsure): (Vec<_>, Vec<_>) =
        (found.into_iter()).partition(|(side, _)| *side == Side::Above);
    let without_sides = |found: Vec<(Side, Diagnosis)>| found.into_iter().map(|(_, d)| d).collect();
    (without_sides(sure), without_sides(unsure))
}

/// Calls of these names: how many, how long they took without what other programs took of the CPU, and that as a share of the CPU
/// time.
fn calls(judgement: &Judgement, names: &[&str]) -> (u64, Duration, Share) {
    let of = judgement
        .syscalls
        .iter()
        .filter(|c| names.contains(&c.name.as_str()));
    let (count, ns) = of.fold((0, 0), |(n, ns), c| (n + c.count, ns + c.time_ns.0));
    (count, Duration(ns), judgement.time.of_cpu(ns))
}

/// Calls of a name: how many, and how many of them within operations that free.
fn calls_within_frees(judgement: &Judgement, name: &str) -> (u64, u64) {
    let call = judgement.syscalls.iter().find(|c| c.name == name);
    call.map_or((0, 0), |call| (call.count, call.by_frees))
}

fn percent(share: f64) -> String {
    format::percent((share * 1e6) as u64, 1_000_000)
}

/// Which caller made the largest part of the calls of a name.
fn callers_of(judgement: &Judgement, name: &str) -> String {
    let call = judgement.syscalls.iter().find(|c| c.name == name);
    call.map_or_else(String::new, |call| {
        came_from(&call.sites, call.count, "Most of these calls")
    })
}

/// Where the largest part of what is counted came from, the first of `sites`; nothing where that is not known.
fn came_from(sites: &[(String, u64)], whole: u64, most: &str) -> String {
    sites.first().map_or_else(String::new, |(site, part)| {
        format!(
            " {} came from {site}.",
            format::largest_part(*part, whole, most)
        )
    })
}

/// Large blocks take the allocator long by itself.
fn slow_large(judgement: &Judgement) -> Found {
    let large = judgement.classes.iter().filter(|c| c.bytes >= LARGE);
    let (mut count, mut timing) = (0, Timing::default());
    for class in large.filter(|c| c.timed > 0) {
        count += class.count;
        timing.merge(&class.timing);
    }
    // A long operation may have waited for a CPU, or for the kernel: clocks know how much of it ran in the allocator.
    let cpu = judgement.time.cpu_ns.0.max(1) as f64;
    let samples = judgement.time.samples;
    let allocating = judgement.time.allocating_ns?.0 as f64 / cpu;
    let allocating = Share::of((allocating * samples as f64).round() as u64, samples)?;
    let (time, timed) = (timing.total(&timing), timing.timed);
    let by_timing = judgement.time.of_cpu(time.ns as u64);
    let by_timing = Share {
        share: by_timing.share,
        error: by_timing.error
            + match time.error() {
                Some(error) => error / cpu,
                // Where that is not known, they vary by about as much as they are long.
                None => by_timing.share * CONFIDENCE / (timed.max(1) as f64).sqrt(),
            },
    };
    let share = by_timing.share.min(allocating.share);
    let least = |of: Share| of.share - of.error;
    let of_cpu = Share {
        share,
        error: share - least(by_timing).min(least(allocating)),
    };
    let mean_of = |share: f64| share * cpu / count.max(1) as f64;
    let each = Share {
        share: mean_of(share),
        error: mean_of(of_cpu.error),
    };
    let side = Side::all([
        of_cpu.side(CALLS_SHARE),
        each.side(SLOW.0 as f64),
        Side::exact(timed >= FEW_TIMED),
    ]);
    if side == Side::Below {
        return None;
    }
    let mean = Duration(each.share as u64);
    Some((side, Diagnosis {
        id: "slow_large",
        title: "it takes long to allocate large blocks".into(),
        evidence: format!(
            "{} of {} and more took {} each outside of the kernel, {} of the CPU time (made of {} that were timed; calloc and realloc are not among them).",
            format::counted(count, "block"),
            format::bytes(LARGE),
            format::duration(mean),
            percent(share),
            format::count(timed),
        ),
        advice: "See that it does not clear or check what it gives out (its options), keep large blocks instead of freeing them, or take another allocator.".into(),
        share,
        share_of: "the CPU time",
        by_program: false,
    }))
}

/// Blocks are much larger than what was asked for.
fn waste(judgement: &Judgement) -> Found {
    let memory = &judgement.memory;
    let (usable, lost) = (memory.peak_usable_bytes?, memory.internal_fragmentation?);
    let requested = memory.peak_requested_bytes?;
    let wasted = usable.0 - requested.0;
    if lost < WASTE || wasted < MUCH_MEMORY {
        return None;
    }
    let lost_in = |class: &crate::ClassFigures| {
        let usable = class.usable_bytes.unwrap_or_default();
        usable.0.saturating_sub(class.requested_bytes.0)
    };
    let worst = judgement.classes.iter().max_by_key(|c| lost_in(c));
    let of_all = judgement.classes.iter().map(lost_in).sum();
    let worst = worst.map_or_else(String::new, |class| {
        let mean = class.requested_bytes.0 / class.count.max(1);
        format!(
            " {} of what allocations lost was in blocks of up to {}, for which {} were asked for on average.",
            format::largest_part(lost_in(class), of_all, "Most"),
            format::bytes(class.bytes),
            format::bytes(Bytes(mean))
        )
    });
    Some((
        Side::Above,
        Diagnosis {
            id: "size_class_waste",
            title: "its blocks are much larger than what the program asks for".into(),
            evidence: format!(
                "At the peak the program had asked for {} and got blocks of {}: {} of that is lost.{worst}",
                format::bytes(requested),
                format::bytes(usable),
                percent(lost),
            ),
            advice: "Ask for sizes that its classes have, or take an allocator with finer classes."
                .into(),
            share: wasted as f64
                / memory
                    .peak_heap_resident_bytes
                    .map_or(usable.0, |r| r.0)
                    .max(1) as f64,
            share_of: "the resident memory",
            by_program: false,
        },
    ))
}

/// Much memory is resident that is no block's.
fn kept(judgement: &Judgement) -> Found {
    let memory = &judgement.memory;
    let resident = memory.peak_heap_resident_bytes?.0;
    let kept = memory.kept_bytes?.0;
    if kept < MUCH_MEMORY {
        return None;
    }
    let peak = memory.peak_usable_bytes?.0.max(1);
    if (kept + peak) as f64 / peak as f64 >= BLOWUP && resident as f64 / peak as f64 >= BLOWUP {
        return Some((
            Side::Above,
            Diagnosis {
                id: "blowup",
                title: "it takes much more memory than the program ever has in use".into(),
                evidence: format!(
                    "{} of its memory were resident, {:.1} times the {} of all blocks at the peak: what some threads free others do not get.",
                    format::bytes(Bytes(resident)),
                    resident as f64 / peak as f64,
                    format::bytes(Bytes(peak)),
                ),
                advice: advice::to_share(judgement).into(),
                share: (resident - peak) as f64 / resident as f64,
                share_of: "the resident memory",
                by_program: false,
            },
        ));
    }
    if memory.mostly_kept? >= LONG && memory.mostly_kept_ns? >= LONG_AGO {
        return Some((
            Side::Above,
            Diagnosis {
                id: "idle_cache",
                title: "it keeps memory that the program freed long ago".into(),
                evidence: format!(
                    "In {} of the time more than half of its resident memory was no block's: {} at the most.",
                    percent(memory.mostly_kept?),
                    format::bytes(Bytes(kept)),
                ),
                advice: advice::to_give_back(judgement),
                share: kept as f64 / resident.max(1) as f64,
                share_of: "the resident memory",
                by_program: false,
            },
        ));
    }
    None
}

/// Pages that cannot be given back for a few blocks on each.
fn sparse(judgement: &Judgement) -> Found {
    let pages = judgement.pages.as_ref()?;
    let then = &pages.sparsest;
    let pinned = then.sparse_pinned_bytes;
    let share = pinned.0 as f64 / then.resident_bytes.0.max(1) as f64;
    if pinned.0 < MUCH_MEMORY || share < SPARSE {
        return None;
    }
    let most = pages.pinned_by.first().filter(|by| by.pinned.bytes.0 > 0);
    let by = most.map_or_else(String::new, |by| {
        format!(
            " {} was kept by blocks of {}: {} ± {}, half of that by blocks of the last {}.",
            format::largest_part(by.pinned.bytes.0, pinned.0, "Most of it"),
            by.label,
            format::bytes(by.pinned.bytes),
            format::bytes(by.pinned.error_bytes),
            format::duration(by.age_p50_ns),
        )
    });
    Some((Side::Above, Diagnosis {
        id: "sparse_pages",
        title: "a few blocks on each page keep much free memory resident".into(),
        evidence: format!(
            "At {} the blocks on {} filled a quarter of each at most: {} free that cannot be given back, {} of the resident memory.{by}",
            format::duration(then.time_ns),
            format::counted(then.sparse_pages, "page"),
            format::bytes(pinned),
            percent(share),
        ),
        advice: "Allocate what lives long apart from what is freed soon: from an arena or pool of its own, or before the rest. Allocators differ in how they mix lifetimes: `varve alloc compare` shows it.".into(),
        share,
        share_of: "the resident memory",
        by_program: false,
    }))
}

/// Threads that write to different blocks on one cache line.
fn false_sharing(judgement: &Judgement) -> Found {
    let lines = &judgement.lines;
    let confirmed = lines.confirmed.as_ref()?;
    let of_time = Share {
        share: confirmed.share,
        error: confirmed.error,
    };
    let has_blocks = lines.blocks as f64 >= SHARED_LINES * confirmed.lines as f64;
    let side = Side::all([of_time.side(SHARED_TIME), Side::exact(has_blocks)]);
    if side == Side::Below {
        return None;
    }
    // Of what lies on the confirmed lines the names are known; of the others who allocated most.
    let whose = match confirmed.names.as_slice() {
        [] => came_from(&lines.sites, lines.blocks, "Most such blocks"),
        names => format!(" On them lie: {}.", names.join("; ")),
    };
    let how = match lines.active >= lines.passive {
        true => "the allocator gave parts of one line to several threads by itself",
        false => "threads reused what they had freed for others",
    };
    Some((side, Diagnosis {
        id: "false_sharing",
        title: "blocks of several threads lie on the same cache lines, and the threads write there".into(),
        evidence: format!(
            "{} came to lie on a line with a block of another thread ({} active, {} passive): {how}. Samples found {} where threads use different bytes, with {} of the time at accesses.{whose}",
            format::counted(lines.blocks, "block"),
            format::count(lines.active),
            format::count(lines.passive),
            format::counted(confirmed.lines, "line"),
            percent(confirmed.share.min(1.0)),
        ),
        advice: "Take an allocator with heaps for each thread (jemalloc, mimalloc, tcmalloc), or ask for whole lines: aligned_alloc(64, ...) with sizes that are multiples of 64.".into(),
        share: confirmed.share.min(1.0),
        share_of: "the time at accesses",
        by_program: false,
    }))
}

/// Blocks that the caches and the TLB hold are free, and others are given out.
fn random(judgement: &Judgement) -> Found {
    let choice = &judgement.choice;
    let far = choice.far.filter(|_| choice.blocks >= FEW_CHOICES)?;
    let allocations = judgement
        .operations
        .iter()
        .filter(|(name, _)| allocates(name));
    let allocations: u64 = allocations.map(|(_, of)| of.count).sum();
    // At the bound they take all of the CPU time.
    let time_of_all = judgement
        .time
        .of_cpu((allocations as f64 / OFTEN * 1e9) as u64);
    let side = Side::all([far.side(SCATTERED), time_of_all.side(1.0)]);
    if side == Side::Below {
        return None;
    }
    let from = came_from(&choice.sites, choice.far_blocks, "Most of the far ones");
    Some((side, Diagnosis {
        id: "random_choice",
        title: "it gives out free blocks from all over the heap, as if at random, and not those that were used last".into(),
        evidence: format!(
            "Of {} that a thread allocated soon after it had freed others of their size, {} ± {} lay 64 KiB and more away from these and from the block that it had allocated before: they are in no cache and no TLB when they are used.{from}",
            format::counted(choice.blocks, "sampled block"),
            percent(far.share),
            percent(far.error),
        ),
        advice: "Some allocators do so for safety (DieHarder). Where that is not wanted, take one that gives out what was freed last (glibc, jemalloc, tcmalloc, mimalloc), or keep such blocks instead of freeing them.".into(),
        share: far.share,
        share_of: "the small blocks that are reused",
        by_program: false,
    }))
}

/// What is allocated throughout the run, never freed and never touched again is lost. That it is needed nobody can exclude, but nobody
/// has needed it since.
fn leak(judgement: &Judgement) -> Found {
    let blocks = &judgement.blocks;
    let at_peak = blocks.at_peak?;
    let is_lost = |site: &&crate::BlockSite| {
        let (all, kept) = (site.allocated.bytes.0, site.never_freed.bytes.0);
        let idle = site.idle.map_or(0, |idle| idle.left_alone.0);
        site.quarters >= LEAKING_QUARTERS
            && site.samples >= LEAKING_SAMPLES
            && kept as f64 >= LEAKED * all as f64
            // Of blocks that came evenly three quarters are older than a quarter of the run.
            && idle as f64 >= 0.6 * kept as f64
    };
    let mut lost: Vec<&crate::BlockSite> = blocks.sites.iter().filter(is_lost).collect();
    let bytes: u64 = lost.iter().map(|s| s.never_freed.bytes.0).sum();
    let peak = at_peak.bytes.0.max(1);
    let share = bytes as f64 / peak as f64;
    let error: u64 = lost
        .iter()
        .map(|s| s.never_freed.error_bytes.0.pow(2))
        .sum();
    let error = error.isqrt();
    let of_peak = Share {
        share,
        error: (error as f64 + share * at_peak.error_bytes.0 as f64) / peak as f64,
    };
    let in_all = Share {
        share: bytes as f64,
        error: error as f64,
    };
    let side = Side::all([of_peak.side(LEAK_SHARE), in_all.side(MUCH_MEMORY as f64)]);
    if side == Side::Below {
        return None;
    }
    lost.sort_by_key(|s| std::cmp::Reverse(s.never_freed.bytes));
    let most = lost.first()?;
    let blocks: u64 = lost.iter().map(|s| s.never_freed.blocks).sum();
    Some((side, Diagnosis {
        id: "leak",
        title: "memory is allocated throughout the run, never freed, and left alone: a leak, or a store that nobody reads".into(),
        evidence: format!(
            "{} ± {} in about {}, {} of what lived at the peak, was never freed; of what is old enough nothing was touched later than a tenth of a second after it was allocated. {} came from {}.",
            format::bytes(Bytes(bytes)),
            format::bytes(Bytes(error)),
            format::counted(blocks, "block"),
            percent(share.min(1.0)),
            format::largest_part(most.never_freed.bytes.0, bytes, "Most of it"),
            most.label,
        ),
        advice: "Free it where its last user ends; `varve alloc report --folded never-freed` has the call stacks. This is the program's, and no other allocator helps.".into(),
        share: share.min(1.0),
        share_of: "the memory at the peak",
        by_program: true,
    }))
}

#[cfg(test)]
mod tests {
    use super::came_from;

    #[test]
    fn a_caller_of_less_than_half_is_not_most() {
        let sites = [("grow".to_owned(), 31), ("shrink".to_owned(), 30)];
        let said = |whole| came_from(&sites, whole, "Most of them");
        assert_eq!(said(100), " The largest part (31 %) came from grow.");
        assert_eq!(said(61), " Most of them came from grow.");
        assert_eq!(came_from(&[], 0, "Most of them"), "");
    }
}
