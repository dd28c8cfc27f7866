//! snmalloc as a library to preload: the C library's allocation functions are those of `snmalloc-sys`.
//!
//! Nothing of Rust's runs in a program: each function is a jump to snmalloc's own. Its thread-local state lies in the static TLS block, so
//! that reaching it never allocates; it takes no lock that a forked child could wait for, and gives a thread's memory to others as the
//! thread ends. `operator new` and `delete` of libstdc++ and libc++ call these functions.
#![cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]

use std::arch::global_asm;
use std::ffi::{c_int, c_void};

use snmalloc_sys as _;

// The compiler's stack unwinder, which Rust's standard library refers to: a preloaded library must not bring libgcc_s into programs
// that do not have it.
#[link(name = "gcc_eh", kind = "static", modifiers = "+whole-archive,-bundle")]
unsafe extern "C" {}

// What C++ calls to have an object of a thread destroyed as it ends. libstdc++'s does the same on glibc, and must not be brought in.
#[cfg(target_arch = "x86_64")]
global_asm!(
    ".globl __cxa_thread_atexit",
    ".hidden __cxa_thread_atexit",
    ".type __cxa_thread_atexit, @function",
    "__cxa_thread_atexit:",
    "jmp __cxa_thread_atexit_impl@PLT"
);
#[cfg(target_arch = "aarch64")]
global_asm!(
    ".globl __cxa_thread_atexit",
    ".hidden __cxa_thread_atexit",
    ".type __cxa_thread_atexit, %function",
    "__cxa_thread_atexit:",
    "b __cxa_thread_atexit_impl"
);

/// The C library's functions, each of them snmalloc's under the name with `sn_` in front.
macro_rules! functions {
    ($($name:ident as $own:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*) => {
        unsafe extern "C" {
            $(fn $own($($argument: $type),*) $(-> $result)?;)*
        }

        $(
            /// The C library's function of this name.
            ///
            /// # Safety
            /// As its manual says.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $type),*) $(-> $result)? {
                // SAFETY: snmalloc's function has the contract of the C library's, which the caller keeps.
                unsafe { $own($($argument),*) }
            }
        )*
    };
}

functions! {
    malloc as sn_malloc(size: usize) -> *mut c_void;
    calloc as sn_calloc(count: usize, size: usize) -> *mut c_void;
    realloc as sn_realloc(block: *mut c_void, size: usize) -> *mut c_void;
    reallocarray as sn_reallocarray(block: *mut c_void, count: usize, size: usize) -> *mut c_void;
    aligned_alloc as sn_aligned_alloc(alignment: usize, size: usize) -> *mut c_void;
    posix_memalign as sn_posix_memalign(place: *mut *mut c_void, alignment: usize, size: usize) -> c_int;
    memalign as sn_memalign(alignment: usize, size: usize) -> *mut c_void;
    valloc as sn_valloc(size: usize) -> *mut c_void;
    pvalloc as sn_pvalloc(size: usize) -> *mut c_void;
    malloc_usable_size as sn_malloc_usable_size(block: *mut c_void) -> usize;
    free as sn_free(block: *mut c_void);
    cfree as sn_cfree(block: *mut c_void);
    free_sized as sn_free_sized(block: *mut c_void, size: usize);
    free_aligned_sized as sn_free_aligned_sized(block: *mut c_void, alignment: usize, size: usize);
}
