//! What is wrong: each diagnosis names a disease that is known of allocators, its size, and what helps.
//!
//! Bounds are such that programs of each kind with a healthy allocator get none; `tests/alloc` has both.

use serde::Serialize;
use varve_analyse::format;
use varve_model::{Bytes, Duration};

use crate::Judgement;

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Diagnosis {
    /// A word that stays the same.
    pub id: &'static str,
    /// What is wrong, as a part of a sentence.
    pub title: String,
    /// How it was seen, with figures.
    pub evidence: String,
    /// What helps.
    pub advice: String,
    /// The share of CPU time, or of the most resident memory, that it costs: 0 to 1.
    pub share: f64,
    /// Whether it is the program's own doing: no other allocator helps.
    pub by_program: bool,
}

/// System calls that take so much of the CPU time are too many.
const CALLS_SHARE: f64 = 0.05;
/// Waits of so much of the time of all operations are too long ...
const WAITS_SHARE: f64 = 0.25;
/// ... where they are so much of the CPU time.
const WAITS_OF_CPU: f64 = 0.1;
/// Waste of so much of what blocks could hold is too much.
const WASTE: f64 = 0.25;
/// Memory below this is not worth a word.
const MUCH_MEMORY: u64 = 8 << 20;
/// So much more resident memory than blocks hold is too much.
const BLOWUP: f64 = 1.6;
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

pub(crate) fn diagnose(judgement: &Judgement) -> Vec<Diagnosis> {
    let mut found: Vec<Diagnosis> = [
        storm(judgement),
        mapping(judgement),
        lock(judgement),
        waste(judgement),
        kept(judgement),
        leak(judgement),
    ]
    .into_iter()
    .flatten()
    .collect();
    found.sort_by(|a, b| b.share.total_cmp(&a.share));
    found
}

/// Calls of these names: how many, how long they took without what other programs took of the CPU, and that as a share of the CPU
/// time.
fn calls(judgement: &Judgement, names: &[&str]) -> (u64, Duration, f64) {
    let of = judgement
        .syscalls
        .iter()
        .filter(|c| names.contains(&c.name.as_str()));
    let (count, ns) = of.fold((0, 0), |(n, ns), c| (n + c.count, ns + c.time_ns.0));
    let cpu = judgement.time.cpu_ns.0.max(1) as f64;
    (count, Duration(ns), ns as f64 / cpu)
}

fn percent(share: f64) -> String {
    format::percent((share * 1e6) as u64, 1_000_000)
}

fn most_of(judgement: &Judgement, name: &str) -> String {
    let call = judgement.syscalls.iter().find(|c| c.name == name);
    call.and_then(|c| c.sites.first())
        .map_or_else(String::new, |(site, _)| {
            format!(" Most of them come from {site}.")
        })
}

/// Memory is given back to the kernel only to be taken again.
fn storm(judgement: &Judgement) -> Option<Diagnosis> {
    let (count, time, share) = calls(judgement, &["madvise"]);
    if share < CALLS_SHARE || count < 100 {
        return None;
    }
    let operations: u64 = judgement.operations.values().map(|o| o.count).sum();
    Some(Diagnosis {
        id: "madvise_storm",
        title: "it gives memory back to the kernel (madvise) again and again, and takes it anew".into(),
        evidence: format!(
            "{} of madvise within operations took {}, {} of the CPU time: one for every {} operations.{}",
            format::counted(count, "call"),
            format::duration(time),
            percent(share),
            format::count(operations / count.max(1)),
            most_of(judgement, "madvise"),
        ),
        advice: "Let it keep what is free for longer (jemalloc: MALLOC_CONF=dirty_decay_ms:10000; mimalloc: MIMALLOC_PURGE_DELAY; glibc: M_TRIM_THRESHOLD), or take another allocator.".into(),
        share,
        by_program: false,
    })
}

/// Blocks are mapped and unmapped one by one, or the heap's end moves to and fro.
fn mapping(judgement: &Judgement) -> Option<Diagnosis> {
    let (count, time, share) = calls(judgement, &["mmap", "munmap", "mremap", "brk"]);
    if share < CALLS_SHARE || count < 200 {
        return None;
    }
    // Who only ever takes more needs it.
    let (taken, _, _) = calls(judgement, &["mmap"]);
    let (given, _, _) = calls(judgement, &["munmap"]);
    let (moved, _, _) = calls(judgement, &["brk"]);
    let brk = judgement.syscalls.iter().find(|c| c.name == "brk");
    let trimmed = brk.map_or(0, |brk| brk.by_frees);
    let to_and_fro = given * 2 >= taken && given >= 100 || trimmed >= 100;
    if !to_and_fro {
        return None;
    }
    let name = match moved > taken + given {
        true => "brk",
        false => "munmap",
    };
    let advice = match judgement.trace.allocator.as_str() {
        "glibc" => {
            "Raise the bounds from which glibc maps and trims: MALLOC_MMAP_THRESHOLD_=1073741824 MALLOC_TRIM_THRESHOLD_=4294967296 in the environment, or keep such blocks instead of freeing them."
        }
        _ => {
            "Keep such blocks instead of freeing them, or take an allocator that keeps large blocks."
        }
    };
    Some(Diagnosis {
        id: "needless_mapping",
        title: "it maps and unmaps memory of the kernel's again and again".into(),
        evidence: format!(
            "{} of mmap, munmap, mremap and brk within operations took {}, {} of the CPU time; each first touch of a page after that is a fault.{}",
            format::counted(count, "call"),
            format::duration(time),
            percent(share),
            most_of(judgement, name),
        ),
        advice: advice.into(),
        share,
        by_program: false,
    })
}

/// Threads wait for each other.
fn lock(judgement: &Judgement) -> Option<Diagnosis> {
    let waited = judgement.time.waited_ns;
    // What others' programs take of the CPUs is no wait for a lock, and not the operations' time.
    let queued = judgement.time.queued_ns;
    let all = judgement
        .time
        .operations_ns
        .0
        .saturating_sub(queued.0)
        .max(1) as f64;
    let of_cpu = waited.0 as f64 / judgement.time.cpu_ns.0.max(1) as f64;
    if (waited.0 as f64) / all < WAITS_SHARE || of_cpu < WAITS_OF_CPU {
        return None;
    }
    let (count, _, _) = calls(
        judgement,
        &["futex", "sched_yield", "nanosleep", "clock_nanosleep"],
    );
    let threads = judgement.threads.iter().filter(|t| t.count > 100).count() as u64;
    Some(Diagnosis {
        id: "lock",
        title: "its threads wait for each other's locks".into(),
        evidence: format!(
            "{} allocate; their operations waited {} in {} (futex, sched_yield, nanosleep), {} for each second of CPU time.{}",
            format::counted(threads, "thread"),
            format::duration(waited),
            format::counted(count, "system call"),
            format::duration(Duration((of_cpu * 1e9) as u64)),
            most_of(judgement, "futex"),
        ),
        advice: "Take an allocator with caches for each thread (jemalloc, mimalloc, tcmalloc), or have each thread reuse its own blocks.".into(),
        share: of_cpu.min(1.0),
        by_program: false,
    })
}

/// Blocks are much larger than what was asked for.
fn waste(judgement: &Judgement) -> Option<Diagnosis> {
    let memory = &judgement.memory;
    let wasted = memory.peak_usable_bytes.0 - memory.peak_requested_bytes.0;
    if memory.internal_fragmentation < WASTE || wasted < MUCH_MEMORY {
        return None;
    }
    let worst = judgement
        .classes
        .iter()
        .max_by_key(|c| c.usable_bytes.0 - c.requested_bytes.0.min(c.usable_bytes.0));
    let worst = worst.map_or_else(String::new, |class| {
        let mean = class.requested_bytes.0 / class.count.max(1);
        format!(
            " Most is lost in blocks of up to {}, for which {} were asked for on average.",
            format::bytes(class.bytes),
            format::bytes(Bytes(mean))
        )
    });
    Some(Diagnosis {
        id: "size_class_waste",
        title: "its blocks are much larger than what the program asks for".into(),
        evidence: format!(
            "At the peak the program had asked for {} and got blocks of {}: {} of that is lost.{worst}",
            format::bytes(memory.peak_requested_bytes),
            format::bytes(memory.peak_usable_bytes),
            percent(memory.internal_fragmentation),
        ),
        advice: "Ask for sizes that its classes have, or take an allocator with finer classes."
            .into(),
        share: wasted as f64
            / memory
                .peak_heap_resident_bytes
                .map_or(memory.peak_usable_bytes.0, |r| r.0)
                .max(1) as f64,
        by_program: false,
    })
}

/// Much memory is resident that is no block's.
fn kept(judgement: &Judgement) -> Option<Diagnosis> {
    let memory = &judgement.memory;
    let resident = memory.peak_heap_resident_bytes?.0;
    let kept = memory.kept_bytes?.0;
    if kept < MUCH_MEMORY {
        return None;
    }
    let peak = memory.peak_usable_bytes.0.max(1);
    if (kept + peak) as f64 / peak as f64 >= BLOWUP && resident as f64 / peak as f64 >= BLOWUP {
        return Some(Diagnosis {
            id: "blowup",
            title: "it takes much more memory than the program ever has in use".into(),
            evidence: format!(
                "{} of its memory were resident, {:.1} times the {} of all blocks at the peak: what some threads free others do not get.",
                format::bytes(Bytes(resident)),
                resident as f64 / peak as f64,
                format::bytes(Bytes(peak)),
            ),
            advice: "Take an allocator that gives freed blocks back to all threads, or limit its heaps (glibc: MALLOC_ARENA_MAX=2).".into(),
            share: (resident - peak) as f64 / resident as f64,
            by_program: false,
        });
    }
    if memory.mostly_kept? >= LONG && memory.mostly_kept_ns? >= LONG_AGO {
        return Some(Diagnosis {
            id: "idle_cache",
            title: "it keeps memory that the program freed long ago".into(),
            evidence: format!(
                "In {} of the time more than half of its resident memory was no block's: {} at the most.",
                percent(memory.mostly_kept?),
                format::bytes(Bytes(kept)),
            ),
            advice: "Have it give free memory back: malloc_trim(0) with glibc, or an allocator that does so by itself (jemalloc with background_thread:true, mimalloc).".into(),
            share: kept as f64 / resident.max(1) as f64,
            by_program: false,
        });
    }
    None
}

/// What is allocated throughout the run, never freed and never touched again is lost. That it is needed nobody can exclude, but nobody
/// has needed it since.
fn leak(judgement: &Judgement) -> Option<Diagnosis> {
    let blocks = &judgement.blocks;
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
    let peak = blocks.at_peak.bytes.0.max(1);
    let share = bytes as f64 / peak as f64;
    if bytes < MUCH_MEMORY || share < LEAK_SHARE {
        return None;
    }
    lost.sort_by_key(|s| std::cmp::Reverse(s.never_freed.bytes));
    let most = lost.first()?;
    let blocks: u64 = lost.iter().map(|s| s.never_freed.blocks).sum();
    let error: u64 = lost
        .iter()
        .map(|s| s.never_freed.error_bytes.0.pow(2))
        .sum();
    Some(Diagnosis {
        id: "leak",
        title: "memory is allocated throughout the run, never freed, and left alone: a leak, or a store that nobody reads".into(),
        evidence: format!(
            "{} ± {} in about {}, {} of what lived at the peak, was never freed; of what is old enough nothing was touched later than a tenth of a second after it was allocated. Most of it: {}.",
            format::bytes(Bytes(bytes)),
            format::bytes(Bytes(error.isqrt())),
            format::counted(blocks, "block"),
            percent(share.min(1.0)),
            most.label,
        ),
        advice: "Free it where its last user ends; `varve alloc report --folded never-freed` has the call stacks. This is the program's, and no other allocator helps.".into(),
        share: share.min(1.0),
        by_program: true,
    })
}
