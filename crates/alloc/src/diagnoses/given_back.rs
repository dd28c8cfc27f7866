//! Memory that goes back to the kernel, and that the allocator takes from it again.

use varve_analyse::format;

use super::{CALLS_SHARE, Diagnosis, Found, callers_of, calls, percent};
use crate::Judgement;
use crate::bounds::Side;

/// Memory is given back to the kernel only to be taken again.
pub(super) fn storm(judgement: &Judgement) -> Found {
    let (count, time, of_cpu) = calls(judgement, &["madvise"]);
    let side = Side::all([of_cpu.side(CALLS_SHARE), Side::exact(count >= 100)]);
    if side == Side::Below {
        return None;
    }
    let share = of_cpu.share;
    let operations: u64 = judgement.operations.values().map(|o| o.count).sum();
    Some((side, Diagnosis {
        id: "madvise_storm",
        title: "it gives memory back to the kernel (madvise) again and again, and takes it anew".into(),
        evidence: format!(
            "{} of madvise within operations took {}, {} of the CPU time: one for every {} operations.{}",
            format::counted(count, "call"),
            format::duration(time),
            percent(share),
            format::count(operations / count.max(1)),
            callers_of(judgement, "madvise"),
        ),
        advice: "Let it keep what is free for longer (jemalloc: MALLOC_CONF=dirty_decay_ms:10000; mimalloc: MIMALLOC_PURGE_DELAY; glibc: M_TRIM_THRESHOLD), or take another allocator.".into(),
        share,
        share_of: "the CPU time",
        by_program: false,
    }))
}

/// Blocks are mapped and unmapped one by one, or the heap's end moves to and fro.
pub(super) fn mapping(judgement: &Judgement) -> Found {
    let (count, time, of_cpu) = calls(judgement, &["mmap", "munmap", "mremap", "brk"]);
    let side = Side::all([of_cpu.side(CALLS_SHARE), Side::exact(count >= 200)]);
    if side == Side::Below {
        return None;
    }
    let share = of_cpu.share;
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
    Some((
        side,
        Diagnosis {
            id: "needless_mapping",
            title: "it maps and unmaps memory of the kernel's again and again".into(),
            evidence: format!(
                "{} of mmap, munmap, mremap and brk within operations took {}, {} of the CPU time; each first touch of a page after that is a fault.{}",
                format::counted(count, "call"),
                format::duration(time),
                percent(share),
                callers_of(judgement, name),
            ),
            advice: advice.into(),
            share,
            share_of: "the CPU time",
            by_program: false,
        },
    ))
}
