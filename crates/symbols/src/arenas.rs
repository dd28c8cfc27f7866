//! Memory that allocators and runtimes map for themselves, and which code is a runtime's.

/// Memory that an allocator or a runtime maps for all who will allocate from it: who happened to be first is not its owner.
pub(crate) struct Arena {
    /// What it is called.
    pub(crate) name: &'static str,
    /// Modules, by the beginnings of their names, all of whose mappings are such.
    pub(crate) modules: &'static [&'static str],
    /// Modules in which its functions are looked for; empty: in all.
    pub(crate) only_in: &'static [&'static str],
    /// Beginnings of functions' names.
    pub(crate) functions: &'static [&'static str],
}

/// What the C library maps for its `malloc`, and beginnings of the functions that do.
pub(crate) const MALLOC_ARENA: &str = "malloc arena";
pub(crate) const MALLOC_ARENA_FUNCTIONS: &[&str] =
    &["_int_new_arena", "alloc_new_heap", "new_heap", "arena_get2"];

const JVM: &[&str] = &["libjvm"];
const CORECLR: &[&str] = &["libcoreclr", "libclrgc"];

/// The first frame decides that is of one of them.
pub(crate) const ARENAS: &[Arena] = &[
    Arena {
        name: "jemalloc arena",
        modules: &["libjemalloc"],
        only_in: &[],
        functions: &["je_"],
    },
    Arena {
        name: "tcmalloc page heap",
        modules: &["libtcmalloc"],
        only_in: &[],
        functions: &["tcmalloc::"],
    },
    Arena {
        name: "mimalloc arena",
        modules: &["libmimalloc"],
        only_in: &[],
        functions: &["_mi_"],
    },
    Arena {
        name: "Python object arena",
        modules: &[],
        only_in: &["libpython", "python"],
        functions: &["_PyMem_ArenaAlloc", "_PyObject_Arena"],
    },
    Arena {
        name: "GCC's garbage-collected memory",
        modules: &[],
        only_in: &["cc1", "lto1", "f951"],
        functions: &["ggc_internal_alloc"],
    },
    Arena {
        name: "Java heap and its collector's tables",
        modules: &[],
        only_in: JVM,
        functions: &[
            "ReservedHeapSpace::",
            "HeapRegionManager::",
            "G1RegionToSpaceMapper::",
            "G1RegionsLargerThanCommitSizeMapper::",
            "G1RegionsSmallerThanCommitSizeMapper::",
            "G1CollectedHeap::",
            "ParallelScavengeHeap::",
            "PSOldGen::",
            "PSYoungGen::",
            "SerialHeap::",
            "GenCollectedHeap::",
            "CardTable::",
            "ShenandoahHeap::",
        ],
    },
    Arena {
        name: "Java metaspace",
        modules: &[],
        only_in: JVM,
        functions: &["metaspace::", "Metaspace::", "MetaspaceShared::"],
    },
    Arena {
        name: "Java code cache",
        modules: &[],
        only_in: JVM,
        functions: &["CodeCache::", "CodeHeap::", "ReservedCodeSpace::"],
    },
    Arena {
        name: "V8 code",
        modules: &[],
        only_in: &[],
        functions: &["v8::internal::CodeRange::"],
    },
    Arena {
        name: "JavaScript heap (V8)",
        modules: &[],
        only_in: &[],
        functions: &["v8::internal::MemoryAllocator::", "v8::internal::Heap::"],
    },
    Arena {
        name: ".NET heap and its collector's tables",
        modules: &[],
        only_in: CORECLR,
        functions: &["WKS::", "SVR::", "GCToOSInterface::"],
    },
    Arena {
        name: ".NET code and type tables",
        modules: &[],
        only_in: CORECLR,
        functions: &[
            "ExecutableMemoryAllocator::",
            "ExecutableAllocator::",
            "ExecutionManager::",
            "EEJitManager::",
            "HostCodeHeap::",
            "UnlockedLoaderHeap::",
            "LoaderHeap",
        ],
    },
    Arena {
        name: "Go heap",
        modules: &[],
        only_in: &[],
        functions: &["runtime.(*mheap).", "runtime.sysReserve", "runtime.sysMap"],
    },
];

/// Interpreters and compilers, whose own functions are not the author's where a function of their language called them.
pub(crate) const RUNTIME_MODULES: &[&str] = &["libpython", "python3", "libnode"];
pub(crate) const RUNTIME_FUNCTIONS: &[&str] = &["v8::", "node::", "Builtins_", "_PyEval_"];
