//! What helps against memory that goes back to the kernel, or stays: only what changes the calls that were seen, in words of the allocator that made
//! them.

use varve_analyse::format;

use super::calls_within_frees;
use crate::Judgement;
use crate::figures::TRIM;

/// A way of giving memory back that has so large a part of the calls, as one in so many, is worth a setting.
const PART: u64 = 4;

/// Calls that gave memory to the kernel, within operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Returned {
    /// `munmap` where blocks are freed.
    unmapped: u64,
    /// And elsewhere, where blocks change their size, or memory is mapped and cut to an alignment.
    cut: u64,
    /// The heap's end moved back, likewise.
    moved: u64,
    /// `madvise`: with glibc where blocks are freed, for it asks for huge pages where it allocates.
    advised: u64,
    /// All calls within `malloc_trim`.
    trimmed: u64,
}

impl Returned {
    pub(super) fn of(judgement: &Judgement) -> Returned {
        let trimmed = judgement.operations.get(TRIM).map_or(0, |of| of.syscalls);
        let (advised, by_frees) = calls_within_frees(judgement, "madvise");
        let (unmaps, unmapped) = calls_within_frees(judgement, "munmap");
        Returned {
            unmapped,
            cut: unmaps.saturating_sub(unmapped),
            moved: calls_within_frees(judgement, "brk").1,
            advised: match judgement.trace.allocator.as_str() {
                "glibc" => by_frees,
                _ => advised.saturating_sub(trimmed),
            },
            trimmed,
        }
    }

    pub(super) fn all(self) -> u64 {
        self.unmapped + self.moved + self.advised + self.trimmed
    }

    /// Whether the program has most of it done itself.
    fn is_programs(self) -> bool {
        self.trimmed > 0 && self.trimmed * 2 >= self.all() + self.cut
    }

    fn is_worth(self, part: u64) -> bool {
        part > 0 && part * PART >= self.all()
    }
}

/// Whether the program has its memory given back itself, by `malloc_trim`: no setting of the allocator changes that, and no other one.
pub(super) fn trims(judgement: &Judgement) -> bool {
    Returned::of(judgement).is_programs()
}

/// How it keeps what is free, so that it need not take it again.
pub(super) fn to_keep(judgement: &Judgement) -> String {
    let returned = Returned::of(judgement);
    if returned.is_programs() {
        return format!(
            "The program calls malloc_trim itself, {}: call it less often, or only where such memory is not needed again. Bounds and delays of the allocator change nothing in that.",
            trims_in_words(judgement)
        );
    }
    let setting = match judgement.trace.allocator.as_str() {
        "glibc" => Some(of_glibc(returned)),
        "jemalloc" => Some(of_jemalloc(judgement, returned)),
        "mimalloc" if returned.is_worth(returned.advised) => Some(
            "Let it keep what is free for longer: MIMALLOC_PURGE_DELAY=10000 in the environment (milliseconds)".to_owned(),
        ),
        "tcmalloc" if returned.is_worth(returned.advised) => Some(
            "Have it keep what is free: TCMALLOC_RELEASE_RATE=0 in the environment".to_owned(),
        ),
        "scudo" if returned.is_worth(returned.advised) => Some(
            "Have it keep what is free: SCUDO_OPTIONS=release_to_os_interval_ms=-1 in the environment".to_owned(),
        ),
        _ => None,
    };
    match setting {
        Some(setting) => format!("{setting}, or keep such blocks instead of freeing them."),
        None => {
            "Keep such blocks instead of freeing them, or take an allocator that keeps what is free."
                .to_owned()
        }
    }
}

fn of_glibc(returned: Returned) -> String {
    match returned.is_worth(returned.unmapped) {
        true => "Raise the bounds from which glibc maps and trims: MALLOC_MMAP_THRESHOLD_=1073741824 MALLOC_TRIM_THRESHOLD_=4294967296 in the environment (M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of mallopt)".to_owned(),
        false => "Raise the bound from which glibc trims: MALLOC_TRIM_THRESHOLD_=4294967296 in the environment (M_TRIM_THRESHOLD of mallopt)".to_owned(),
    }
}

/// Its delay is ten seconds where nothing else is asked for, and large blocks have none.
fn of_jemalloc(judgement: &Judgement, returned: Returned) -> String {
    let retain = match returned.is_worth(returned.unmapped) {
        true => "retain:true,",
        false => "",
    };
    // One within the program may have a prefix.
    let prefix = match judgement.trace.allocator_file.ends_with(')') {
        true => ", with the prefix of its functions where they have one, as in _RJEM_MALLOC_CONF",
        false => "",
    };
    format!(
        "Let it keep what is free for longer: MALLOC_CONF={retain}dirty_decay_ms:60000,oversize_threshold:0 in the environment{prefix}"
    )
}

/// How it gives back what is free.
pub(super) fn to_give_back(judgement: &Judgement) -> String {
    let setting = match judgement.trace.allocator.as_str() {
        "glibc" if trim_count(judgement) > 0 => {
            return format!(
                "The program calls malloc_trim {}: call it also where such memory has been freed, or take an allocator that gives it back by itself (jemalloc with background_thread:true, mimalloc).",
                trims_in_words(judgement)
            );
        }
        "glibc" => {
            "malloc_trim(0) where it has been freed, or an allocator that does so by itself (jemalloc with background_thread:true, mimalloc)"
        }
        "jemalloc" => "MALLOC_CONF=background_thread:true,dirty_decay_ms:1000 in the environment",
        "mimalloc" => "MIMALLOC_PURGE_DELAY=0 in the environment",
        "tcmalloc" => {
            "TCMALLOC_RELEASE_RATE=10 in the environment, or ReleaseFreeMemory of its MallocExtension"
        }
        _ => {
            "by its options where it has such, or an allocator that does so by itself (jemalloc with background_thread:true, mimalloc)"
        }
    };
    format!("Have it give free memory back: {setting}.")
}

fn trim_count(judgement: &Judgement) -> u64 {
    judgement.operations.get(TRIM).map_or(0, |of| of.count)
}

fn trims_in_words(judgement: &Judgement) -> String {
    format::counted(trim_count(judgement), "time")
}

/// How what some threads free comes to others.
pub(super) fn to_share(judgement: &Judgement) -> &'static str {
    match judgement.trace.allocator.as_str() {
        "glibc" => {
            "Limit its arenas: MALLOC_ARENA_MAX=2 in the environment, or take an allocator that gives freed blocks back to all threads."
        }
        "jemalloc" => {
            "Limit its arenas: MALLOC_CONF=narenas:2 in the environment, or take an allocator that gives freed blocks back to all threads."
        }
        _ => "Take an allocator that gives freed blocks back to all threads.",
    }
}

#[cfg(test)]
mod tests {
    use varve_model::{Bytes, Duration};

    use super::*;
    use crate::{CallFigures, OperationFigures, made};

    /// So many calls of each name, and how many of them within frees.
    fn judgement(allocator: &str, calls: &[(&str, u64, u64)]) -> Judgement {
        let mut of = made::judgement();
        of.trace.allocator = allocator.into();
        let call = |(name, count, by_frees): &(&str, u64, u64)| CallFigures {
            name: (*name).to_owned(),
            count: *count,
            by_frees: *by_frees,
            failed: 0,
            time_ns: Duration(0),
            queued_ns: Duration(0),
            bytes: Bytes(0),
            per_operation: 0.0,
            sites: Vec::new(),
        };
        of.syscalls = calls.iter().map(call).collect();
        of
    }

    fn trimmed(mut of: Judgement, count: u64, syscalls: u64) -> Judgement {
        let trim = OperationFigures {
            count,
            syscalls,
            ..OperationFigures::default()
        };
        of.operations.insert(TRIM.into(), trim);
        of
    }

    #[test]
    fn a_program_that_trims_itself_hears_of_no_bounds() {
        let of = trimmed(judgement("glibc", &[("madvise", 300, 0)]), 150, 300);
        let said = to_keep(&of);
        assert!(said.contains("malloc_trim itself, 150 times"), "{said}");
        assert!(trims(&of) && !said.contains("THRESHOLD"), "{said}");
        // Of memory that goes back by itself a few trims are not the cause.
        let calls = [("munmap", 300, 300), ("madvise", 4, 0)];
        let of = trimmed(judgement("glibc", &calls), 2, 4);
        assert!(!trims(&of) && to_keep(&of).contains("MALLOC_MMAP_THRESHOLD_"));
        // Nor are they where blocks change their size.
        let of = trimmed(judgement("glibc", &[("munmap", 300, 0)]), 2, 4);
        assert!(!trims(&of));
    }

    #[test]
    fn settings_are_the_allocators_own_and_change_what_was_seen() {
        let (unmaps, advises, moves) = (
            [("munmap", 300, 300)],
            [("madvise", 300, 300)],
            [("brk", 600, 300)],
        );
        for (allocator, calls, has, lacks) in [
            ("glibc", &unmaps, "MMAP_THRESHOLD_", "jemalloc"),
            ("glibc", &moves, "TRIM_THRESHOLD_", "MMAP_THRESHOLD_"),
            ("glibc", &advises, "TRIM_THRESHOLD_", "MMAP_THRESHOLD_"),
            ("jemalloc", &unmaps, "retain:true", "THRESHOLD"),
            ("jemalloc", &advises, "dirty_decay_ms", "retain"),
            ("mimalloc", &advises, "MIMALLOC_PURGE_DELAY", "THRESHOLD"),
            ("mimalloc", &unmaps, "instead of freeing", "MIMALLOC"),
            ("tcmalloc", &advises, "TCMALLOC_RELEASE_RATE", "THRESHOLD"),
            ("snmalloc", &advises, "instead of freeing", "_"),
        ] {
            let said = to_keep(&judgement(allocator, calls));
            assert!(said.contains(has), "{allocator}: {said}");
            assert!(!said.contains(lacks), "{allocator}: {said}");
        }
    }

    #[test]
    fn what_stays_is_given_back_by_the_allocators_own_means() {
        let said = |allocator| to_give_back(&judgement(allocator, &[]));
        assert!(said("glibc").contains("malloc_trim(0)"));
        assert!(said("jemalloc").contains("dirty_decay_ms") && !said("jemalloc").contains("trim"));
        assert!(said("mimalloc").contains("MIMALLOC_PURGE_DELAY=0"));
        let trims = to_give_back(&trimmed(judgement("glibc", &[]), 3, 9));
        assert!(trims.contains("calls malloc_trim 3 times"), "{trims}");
        let share = |allocator| to_share(&judgement(allocator, &[]));
        assert!(share("glibc").contains("MALLOC_ARENA_MAX"));
        assert!(!share("snmalloc").contains("MALLOC_ARENA_MAX"));
    }
}
