//! Which frames of an allocation's stack belong to an allocator, and which one is the author's.

use varve_model::{CLibrary, c_library, is_recorders};

use crate::arenas::{
    ARENAS, MALLOC_ARENA, MALLOC_ARENA_FUNCTIONS, RUNTIME_FUNCTIONS, RUNTIME_MODULES,
};
use crate::families::{FAMILIES, Family};
use crate::symbolize::Frame;

/// What a mapping is called that an allocator or a runtime made for itself.
pub(crate) fn arena(frames: &[Frame]) -> Option<&'static str> {
    let of = |frame: &Frame| {
        let (module, function) = (frame.module.as_deref(), frame.function.as_deref());
        let is_malloc = module.and_then(c_library) == Some(CLibrary::Library)
            && starts(function, MALLOC_ARENA_FUNCTIONS);
        if is_malloc {
            return Some(MALLOC_ARENA);
        }
        let found = ARENAS.iter().find(|arena| {
            starts(module, arena.modules)
                || (is_in(module, arena.only_in) && starts(function, arena.functions))
        });
        found.map(|arena| arena.name)
    };
    // Behind the first frame that belongs to nobody's allocator it is the author's wish.
    for frame in frames {
        if let Some(arena) = of(frame) {
            return Some(arena);
        }
        if !is_plumbing(frame) {
            return None;
        }
    }
    None
}

/// Whether a module is one of these, where there are any.
fn is_in(module: Option<&str>, modules: &[&str]) -> bool {
    modules.is_empty() || starts(module, modules)
}

fn starts(name: Option<&str>, beginnings: &[&str]) -> bool {
    name.is_some_and(|name| beginnings.iter().any(|b| name.starts_with(b)))
}

/// Whether a frame belongs to the runtime of a language.
pub(crate) fn is_runtime(frame: &Frame) -> bool {
    starts(frame.module.as_deref(), RUNTIME_MODULES)
        || starts(frame.function.as_deref(), RUNTIME_FUNCTIONS)
}

/// True where the frame only passes on somebody else's wish for memory.
pub(crate) fn is_plumbing(frame: &Frame) -> bool {
    let of_file = |family: &Family| {
        let file = frame.file.as_deref();
        file.is_some_and(|file| family.files.iter().any(|known| file.ends_with(known)))
    };
    let module = frame.module.as_deref();
    let is_below = module.is_some_and(|m| c_library(m).is_some() || is_recorders(m));
    if is_below
        || FAMILIES
            .iter()
            .any(|family| starts(module, family.modules) || of_file(family))
    {
        return true;
    }
    let Some(function) = frame.function.as_deref() else {
        return false;
    };
    // Templates are demangled with their return type at times.
    let function = function
        .trim_start_matches("void ")
        .trim_start_matches("void* ");
    FAMILIES.iter().any(|family| {
        is_in(module, family.only_in)
            && (family.functions.contains(&function) || starts(Some(function), family.prefixes))
    }) || is_wrapper(function)
        || frame.file.as_deref().is_some_and(is_library_header)
}

/// Frames inlined from the standard library's headers, whatever their function.
fn is_library_header(file: &str) -> bool {
    file.contains("/include/c++/") || file.starts_with("/rustc/") || file.contains("/rustlib/src/")
}

/// `xmalloc`, `safe_calloc`, `my_alloc_or_die`, `checkedRealloc`: a name that is an allocation and a qualifier.
fn is_wrapper(function: &str) -> bool {
    let name = function.rsplit("::").next().unwrap_or(function);
    let lower = name.to_ascii_lowercase();
    let bare = lower.trim_start_matches('_');
    for core in [
        "malloc", "calloc", "realloc", "memalign", "strdup", "zalloc",
    ] {
        let Some(position) = bare.find(core) else {
            continue;
        };
        let before = bare[..position].trim_end_matches('_');
        let after = bare[position + core.len()..].trim_start_matches('_');
        let qualifier = |word: &str| {
            matches!(
                word,
                "" | "x"
                    | "xx"
                    | "my"
                    | "safe"
                    | "s"
                    | "z"
                    | "e"
                    | "checked"
                    | "check"
                    | "must"
                    | "do"
                    | "sys"
                    | "mem"
                    | "ck"
                    | "util"
                    | "or_die"
                    | "array"
                    | "aligned"
                    | "n"
                    | "0"
                    | "wrapper"
                    | "impl"
                    | "internal"
                    | "huge"
                    | "page"
                    | "numa"
                    | "posix"
                    | "or_abort"
                    | "zero"
                    | "fatal"
                    | "try"
            )
        };
        if qualifier(before) && qualifier(after) {
            return true;
        }
    }
    matches!(
        bare,
        "xnew"
            | "alloc_or_die"
            | "aligned_malloc"
            | "allocate_or_die"
            | "checked_alloc"
            | "safe_alloc"
            | "xalloc"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(module: &str, function: &str) -> Frame {
        Frame {
            module: Some(module.to_owned()),
            function: Some(function.to_owned()),
            ..Frame::default()
        }
    }

    #[test]
    fn allocators_and_containers_are_plumbing() {
        for function in [
            "malloc",
            "xmalloc",
            "safe_calloc",
            "xrealloc",
            "operator new[]",
            "std::vector<double, std::allocator<double> >::resize",
            "__gnu_cxx::new_allocator<int>::allocate",
            "alloc::raw_vec::RawVec<T,A>::with_capacity_in",
            "std::make_unique<int []>",
            "memory::xcalloc",
            "aligned_malloc",
            "zmalloc_usable",
            "ngx_memalign",
            "v8::base::OS::Allocate",
            "av_mallocz",
            "gpgrt_malloc",
            "runtime.sysMmap",
            "je_arena_malloc",
        ] {
            assert!(is_plumbing(&frame("app", function)), "{function}");
        }
        assert!(is_plumbing(&frame("libgomp.so.1", "GOMP_parallel")));
        for (module, function) in [
            ("postgres", "AllocSetContextCreateInternal"),
            ("postgres", "palloc"),
            ("libjvm.so", "os::pd_commit_memory_or_exit"),
            ("cc1plus", "ggc_internal_alloc"),
            ("libpython3.12.so.1.0", "_PyObject_Malloc"),
        ] {
            assert!(is_plumbing(&frame(module, function)), "{function}");
            assert!(!is_plumbing(&frame("app", function)), "{function}");
        }
    }

    #[test]
    fn every_family_says_whose_it_is() {
        for family in FAMILIES {
            assert!(family.of.len() > 3);
            let names = [
                family.modules,
                family.functions,
                family.prefixes,
                family.files,
            ];
            assert!(
                names.concat().iter().all(|name| name.len() > 2),
                "{}",
                family.of
            );
        }
    }

    #[test]
    fn memory_of_an_allocator_is_not_that_of_whoever_was_first() {
        let none = Frame {
            module: Some("libjemalloc.so.2".into()),
            ..Frame::default()
        };
        let first = frame("libgpg-error.so.0", "constructor");
        assert_eq!(arena(&[none, first]), Some("jemalloc arena"));
        let heap = ["os::pd_commit_memory", "HeapRegionManager::expand", "main"];
        let heap = heap.map(|function| frame("libjvm.so", function));
        assert_eq!(arena(&heap), Some("Java heap and its collector's tables"));
        let own = [
            "os::pd_commit_memory",
            "G1CMMarkStack::resize",
            "G1CollectedHeap::initialize",
        ];
        assert_eq!(
            arena(&own.map(|function| frame("libjvm.so", function))),
            None
        );
        let net = ["VIRTUALReserveMemory", "VirtualAlloc", "WKS::virtual_alloc"];
        let net = net.map(|function| frame("libcoreclr.so", function));
        assert_eq!(arena(&net), Some(".NET heap and its collector's tables"));
        assert_eq!(
            arena(&[frame("libc.so.6", "mmap"), frame("app", "setup")]),
            None
        );
    }

    #[test]
    fn the_authors_functions_are_not() {
        for function in [
            "setup",
            "Solver::allocate_grid",
            "main",
            "node_new",
            "mallocate_everything",
            "stdx::f",
            "copy_matrix",
        ] {
            assert!(!is_plumbing(&frame("app", function)), "{function}");
        }
    }
}
