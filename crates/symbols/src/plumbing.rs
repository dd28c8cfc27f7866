//! Which frames of an allocation's stack belong to the allocator, and which one is the author's.

use crate::symbolize::Frame;

/// Modules that allocate on others' behalf.
const MODULES: &[&str] = &[
    "libc.so",
    "libc-2.",
    "libstdc++.so",
    "libc++.so",
    "libc++abi.so",
    "libgomp.so",
    "libomp.so",
    "libiomp",
    "ld-linux",
    "ld-musl",
    "libpthread",
    "libjemalloc",
    "libtcmalloc",
    "libmimalloc",
    "libvarve_",
    "libgfortran.so",
    "libm.so",
    "libasan",
    "librt.so",
    "[vdso]",
    "[kernel]",
];

/// Functions that allocate on others' behalf, by their whole name without parameters.
const FUNCTIONS: &[&str] = &[
    "malloc",
    "calloc",
    "realloc",
    "reallocarray",
    "memalign",
    "aligned_alloc",
    "posix_memalign",
    "valloc",
    "pvalloc",
    "free",
    "cfree",
    "mmap",
    "mmap64",
    "mremap",
    "munmap",
    "brk",
    "sbrk",
    "strdup",
    "strndup",
    "asprintf",
    "vasprintf",
    "getline",
    "morecore",
    "__default_morecore",
    "__glibc_morecore",
    "__sbrk",
    "__brk",
    "__mremap",
    "sysmalloc",
    "_int_malloc",
    "operator new",
    "operator new[]",
    "__libc_malloc",
    "__libc_calloc",
    "__rust_alloc",
    "__rust_alloc_zeroed",
    "__rust_realloc",
    "__rdl_alloc",
    "__rg_alloc",
    "exchange_malloc",
    "rust_alloc",
    "clone",
    "clone3",
    "pthread_create",
    "std::make_unique",
    "std::make_unique_for_overwrite",
    "std::make_shared",
    "std::allocate_shared",
    "g_malloc",
    "g_malloc0",
    "g_realloc",
    "g_new",
    "g_slice_alloc",
    "av_malloc",
    "PyMem_Malloc",
    "PyObject_Malloc",
];

/// Namespaces and types whose every member is plumbing: the containers of the standard libraries.
const PREFIXES: &[&str] = &[
    "__gnu_cxx::",
    "std::allocator",
    "std::__",
    "std::vector<",
    "std::_",
    "std::basic_string<",
    "std::deque<",
    "std::map<",
    "std::unordered_map<",
    "std::unordered_set<",
    "std::set<",
    "std::list<",
    "std::pair<",
    "std::unique_ptr<",
    "std::shared_ptr<",
    "std::make_unique",
    "std::make_shared",
    "std::allocate_",
    "std::construct_at",
    "std::uninitialized_",
    "std::valarray<",
    "std::array<",
    "std::function<",
    "std::fill",
    "std::copy",
    "std::move",
    "std::thread",
    "std::pmr::",
    "operator new",
    "alloc::",
    "<alloc::",
    "core::",
    "<core::",
    "hashbrown::",
    "<hashbrown::",
    "std::collections::",
    "std::alloc::",
    "std::sys::",
    "std::rt::",
    "<T as alloc::",
    "__interceptor_",
    "__rustc::",
    "__varve",
    "_Znwm",
    "je_",
    "mi_",
    "tc_",
    "do_mmap",
    "__mmap",
    "<std::",
    "alloc_traits",
];

/// True where the frame only passes on somebody else's wish for memory.
pub(crate) fn is_plumbing(frame: &Frame) -> bool {
    if frame
        .module
        .as_deref()
        .is_some_and(|module| MODULES.iter().any(|known| module.starts_with(known)))
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
    FUNCTIONS.contains(&function)
        || PREFIXES.iter().any(|prefix| function.starts_with(prefix))
        || is_wrapper(function)
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
        ] {
            assert!(is_plumbing(&frame("app", function)), "{function}");
        }
        assert!(is_plumbing(&frame("libgomp.so.1", "GOMP_parallel")));
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
