//! What an allocator's functions are called, and where their arguments are.

use varve_bpf::ProbedCall;
use varve_preload_abi::operations::Operation;

/// A function of an allocator.
#[derive(Clone, Copy, Debug)]
pub(super) struct Named {
    pub(super) name: &'static str,
    pub(super) call: ProbedCall,
    /// Whether an exception may leave it, which cannot pass a return address that is not the function's own.
    pub(super) throws: bool,
}

/// Arguments are counted from 1; 0: there is none.
const fn named(name: &'static str, operation: Operation, size: u8, old: u8) -> Named {
    const fn argument(which: u8) -> Option<u8> {
        if which == 0 { None } else { Some(which) }
    }
    Named {
        name,
        call: ProbedCall {
            operation: operation as u8,
            size: argument(size),
            times: None,
            old: argument(old),
            stores: false,
            announces: false,
            headers: false,
        },
        throws: false,
    }
}

const fn multiplied(mut of: Named, by: u8) -> Named {
    of.call.times = Some(by);
    of
}

const fn storing(mut of: Named) -> Named {
    of.call.stores = true;
    of
}

const fn throwing(mut of: Named) -> Named {
    of.throws = true;
    of
}

use Operation as O;

/// The C library's names; of several that are one function the first counts.
pub(super) const FUNCTIONS: [Named; 14] = [
    named("malloc", O::Malloc, 1, 0),
    multiplied(named("calloc", O::Calloc, 1, 0), 2),
    named("realloc", O::Realloc, 2, 1),
    multiplied(named("reallocarray", O::ReallocArray, 2, 1), 3),
    named("aligned_alloc", O::AlignedAlloc, 2, 0),
    storing(named("posix_memalign", O::PosixMemalign, 3, 0)),
    named("memalign", O::Memalign, 2, 0),
    named("valloc", O::Valloc, 1, 0),
    named("pvalloc", O::Pvalloc, 1, 0),
    named("malloc_usable_size", O::UsableSize, 0, 0),
    named("malloc_trim", O::Trim, 0, 0),
    named("free", O::Free, 0, 1),
    named("free_sized", O::FreeSized, 0, 1),
    named("free_aligned_sized", O::FreeSized, 0, 1),
];

/// Further names behind a prefix: jemalloc's, and mimalloc's.
pub(super) const FURTHER: [Named; 13] = [
    named("mallocx", O::Malloc, 1, 0),
    named("rallocx", O::Realloc, 2, 1),
    named("dallocx", O::Free, 0, 1),
    named("sdallocx", O::FreeSized, 0, 1),
    named("zalloc", O::Calloc, 1, 0),
    named("malloc_small", O::Malloc, 1, 0),
    named("zalloc_small", O::Calloc, 1, 0),
    named("malloc_aligned", O::AlignedAlloc, 1, 0),
    named("zalloc_aligned", O::AlignedAlloc, 1, 0),
    named("realloc_aligned", O::Realloc, 2, 1),
    named("free_size", O::FreeSized, 0, 1),
    named("free_size_aligned", O::FreeSized, 0, 1),
    named("free_aligned", O::Free, 0, 1),
];

/// Prefixes under which allocators are linked into programs, and the allocators.
pub(super) const PREFIXES: [(&str, &str); 4] = [
    ("_rjem_", "jemalloc"),
    ("je_", "jemalloc"),
    ("mi_", "mimalloc"),
    ("tc_", "tcmalloc"),
];

/// Operators of C++.
pub(super) const OPERATORS: [Named; 20] = [
    throwing(named("_Znwm", O::New, 1, 0)),
    named("_ZnwmRKSt9nothrow_t", O::New, 1, 0),
    throwing(named("_ZnwmSt11align_val_t", O::NewAligned, 1, 0)),
    named("_ZnwmSt11align_val_tRKSt9nothrow_t", O::NewAligned, 1, 0),
    throwing(named("_Znam", O::NewArray, 1, 0)),
    named("_ZnamRKSt9nothrow_t", O::NewArray, 1, 0),
    throwing(named("_ZnamSt11align_val_t", O::NewAligned, 1, 0)),
    named("_ZnamSt11align_val_tRKSt9nothrow_t", O::NewAligned, 1, 0),
    named("_ZdlPv", O::Delete, 0, 1),
    named("_ZdlPvm", O::Delete, 0, 1),
    named("_ZdlPvRKSt9nothrow_t", O::Delete, 0, 1),
    named("_ZdlPvSt11align_val_t", O::Delete, 0, 1),
    named("_ZdlPvmSt11align_val_t", O::Delete, 0, 1),
    named("_ZdlPvSt11align_val_tRKSt9nothrow_t", O::Delete, 0, 1),
    named("_ZdaPv", O::DeleteArray, 0, 1),
    named("_ZdaPvm", O::DeleteArray, 0, 1),
    named("_ZdaPvRKSt9nothrow_t", O::DeleteArray, 0, 1),
    named("_ZdaPvSt11align_val_t", O::DeleteArray, 0, 1),
    named("_ZdaPvmSt11align_val_t", O::DeleteArray, 0, 1),
    named("_ZdaPvSt11align_val_tRKSt9nothrow_t", O::DeleteArray, 0, 1),
];

/// What only glibc's allocator has beside it: its blocks have their sizes before them. Other allocators stand in for some of its names, for these none.
pub(super) const OF_GLIBC: [&str; 2] = ["__libc_mallopt", "_int_malloc"];

/// Names by which an allocator that has the C library's names is known.
pub(super) const KNOWN_BY: [(&str, &str); 4] = [
    ("mallctl", "jemalloc"),
    ("tc_malloc", "tcmalloc"),
    ("mi_malloc", "mimalloc"),
    ("__malloc_donate", "musl"),
];

/// Whether a name of a symbol is one that is looked for.
pub(super) fn is_wanted(name: &str) -> bool {
    let plain = PREFIXES
        .iter()
        .find_map(|(prefix, _)| name.strip_prefix(prefix));
    FUNCTIONS.iter().any(|f| f.name == name)
        || OPERATORS.iter().any(|f| f.name == name)
        || OF_GLIBC.contains(&name)
        || KNOWN_BY.iter().any(|(known, _)| *known == name)
        || plain.is_some_and(|plain| FUNCTIONS.iter().chain(&FURTHER).any(|f| f.name == plain))
}
