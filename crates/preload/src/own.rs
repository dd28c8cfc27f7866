//! What this library, and what is linked into it, needs of a C library.
//!
//! The library imports no function: it is loaded by C libraries that lack what it would name, and no other library can put itself in
//! front of what it calls while it works. So each name that it or Rust's standard library refers to is defined here, hidden from all
//! other modules. What only the C library knows is asked of the C library itself, at the place where its own symbol table has it.

use std::arch::{asm, global_asm};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::transmute;
use std::ops::Range;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, AtomicI64, AtomicPtr, AtomicU8, AtomicU32, Ordering};

use crate::loader::{self, Whose};
use crate::modules::FoundObject;
use crate::symbols::Symbols;
use crate::sys;

/// Defines hidden symbols that jump to functions of this module.
macro_rules! hidden {
    ($($name:literal => $function:path;)*) => {
        $(global_asm!(
            concat!(".pushsection .text.own.", $name, ",\"ax\",@progbits"),
            concat!(".hidden ", $name),
            concat!(".globl ", $name),
            concat!(".type ", $name, ", @function"),
            concat!($name, ":"),
            "jmp {function}",
            concat!(".size ", $name, ", . - ", $name),
            ".popsection",
            function = sym $function,
        );)*
    };
}

hidden! {
    "abort" => abort;
    "clock_gettime" => clock_gettime;
    "__errno_location" => errno_location;
    "dl_iterate_phdr" => dl_iterate_phdr;
    "_dl_find_object" => find_own_object;
    "gettid" => thread_id;
    "pthread_self" => thread_self;
}

/// Defines hidden symbols that do nothing and give one value.
macro_rules! constant {
    ($value:literal: $($name:literal)*) => {
        $(global_asm!(
            concat!(".pushsection .text.own.", $name, ",\"ax\",@progbits"),
            concat!(".hidden ", $name),
            concat!(".globl ", $name),
            concat!(".type ", $name, ", @function"),
            concat!($name, ":"),
            concat!("mov rax, ", $value),
            "ret",
            concat!(".size ", $name, ", . - ", $name),
            ".popsection",
        );)*
    };
}

// The locks of the unwinder's list of registered frames, which is empty; values of threads that have destructors, of which there are none.
constant! { "0": "pthread_mutex_lock" "pthread_mutex_unlock" "__pthread_key_create" "__cxa_thread_atexit_impl" }
// The unwinder fills its table of registers itself where this fails; whoever comes meanwhile fills it with the same.
constant! { "-1": "pthread_once" }
// Rust's standard library asks these for the backtrace of a panic's message, of which there is none.
constant! { "0": "getcwd" "getenv" "realpath" }
constant! { "-1": "open64" "close" "fstat64" "stat64" "statx" "lseek64" "readlink" "pthread_key_create" "pthread_key_delete" "pthread_setspecific" }

global_asm!(
    ".pushsection .bss.own,\"aw\",@nobits",
    ".hidden environ",
    ".globl environ",
    ".type environ, @object",
    ".size environ, 8",
    ".hidden __dso_handle",
    ".globl __dso_handle",
    ".type __dso_handle, @object",
    ".size __dso_handle, 8",
    ".balign 8",
    "environ:",
    ".zero 8",
    "__dso_handle:",
    ".zero 8",
    ".popsection",
);

// All of the library's variables of threads lie in one block, at a distance from the thread pointer that is the same for all threads:
// see `thread`. The argument is a module's number, which is this one's, and an offset in that block.
global_asm!(
    ".pushsection .text.own.tls,\"ax\",@progbits",
    ".hidden __tls_get_addr",
    ".globl __tls_get_addr",
    ".type __tls_get_addr, @function",
    "__tls_get_addr:",
    "mov rax, qword ptr fs:[0]",
    "add rax, qword ptr [rip + varve_preload_thread@GOTTPOFF]",
    "lea rcx, [varve_preload_thread@DTPOFF]",
    "sub rax, rcx",
    "add rax, qword ptr [rdi + 8]",
    "ret",
    ".size __tls_get_addr, . - __tls_get_addr",
    ".popsection",
);

crate::memory::functions!("memcpy" "memmove" "memset" "memcmp" "bcmp" "strlen");

/// Functions of the C library itself, of which each is looked up once. Where it has one only once another part of it is loaded, which is so before
/// glibc 2.34, that is asked for again.
macro_rules! of_the_c_library {
    ($($name:ident as $symbol:literal ($($argument:ident: $type:ty),*) -> $result:ty, else $fallback:expr;)*) => {
        #[allow(non_upper_case_globals)]
        mod found {
            use std::ffi::c_void;
            use std::ptr::null_mut;
            use std::sync::atomic::AtomicPtr;
            $(pub(super) static $name: AtomicPtr<c_void> = AtomicPtr::new(null_mut());)*
        }

        $(
            /// As the C library's, or what this library has in its place.
            ///
            /// # Safety
            /// As for the C library's.
            pub(crate) unsafe fn $name($($argument: $type),*) -> $result {
                let function = find(&found::$name, $symbol);
                if function.is_null() {
                    return $fallback;
                }
                // SAFETY: the C library's function of this name has this type; the arguments are the caller's.
                unsafe {
                    let function: unsafe extern "C" fn($($type),*) -> $result = transmute(function);
                    function($($argument),*)
                }
            }
        )*

        fn look_up_all() {
            $(
                let at = loader::look_up(Whose::CLibrary, $symbol);
                found::$name.store(at, Ordering::Relaxed);
            )*
        }
    };
}

of_the_c_library! {
    errno as c"__errno_location" () -> *mut c_int, else NO_ERRNO.as_ptr();
    auxiliary_value as c"getauxval" (kind: libc::c_ulong) -> libc::c_ulong, else 0;
    iterate_phdr as c"dl_iterate_phdr" (callback: PhdrCallback, data: *mut c_void) -> c_int, else 0;
    dlinfo as c"dlinfo" (handle: *mut c_void, request: c_int, to: *mut c_void) -> c_int, else -1;
    pthread_getattr_np as c"pthread_getattr_np" (thread: libc::pthread_t, attributes: *mut libc::pthread_attr_t) -> c_int, else libc::ENOSYS;
    pthread_attr_getstack as c"pthread_attr_getstack" (attributes: *const libc::pthread_attr_t, low: *mut *mut c_void, bytes: *mut usize) -> c_int, else libc::ENOSYS;
    pthread_attr_getguardsize as c"pthread_attr_getguardsize" (attributes: *const libc::pthread_attr_t, bytes: *mut usize) -> c_int, else libc::ENOSYS;
    pthread_attr_destroy as c"pthread_attr_destroy" (attributes: *mut libc::pthread_attr_t) -> c_int, else libc::ENOSYS;
}

/// What `dl_iterate_phdr` calls for each module.
pub(crate) type PhdrCallback =
    Option<unsafe extern "C" fn(*mut libc::dl_phdr_info, usize, *mut c_void) -> c_int>;

const UNKNOWN: u8 = 0;
const LOOKING: u8 = 1;
const KNOWN: u8 = 2;
static PROGRESS: AtomicU8 = AtomicU8::new(UNKNOWN);

/// Stands in for `errno` where there is no C library that has one.
static NO_ERRNO: AtomicI32 = AtomicI32::new(0);

/// A function of the C library, or null.
fn find(place: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let found = place.load(Ordering::Relaxed);
    if !found.is_null() {
        return found;
    }
    if PROGRESS.load(Ordering::Acquire) == UNKNOWN {
        resolve();
        return place.load(Ordering::Relaxed);
    }
    let goes_round = [c"dl_iterate_phdr", c"__errno_location"].contains(&name);
    if goes_round || PROGRESS.load(Ordering::Acquire) == LOOKING {
        return null_mut();
    }
    let found = loader::later(Whose::CLibrary, name);
    place.store(found, Ordering::Relaxed);
    found
}

/// An address in the C library's code, or 0.
pub(crate) fn some_code_of_the_c_library() -> u64 {
    find(&found::errno, c"__errno_location") as u64
}

/// Looks all functions up, once, while the program begins.
#[cold]
pub(crate) fn resolve() {
    let first = PROGRESS.compare_exchange(UNKNOWN, LOOKING, Ordering::AcqRel, Ordering::Acquire);
    if first.is_err() {
        return;
    }
    look_up_all();
    ENVIRONMENT.store(
        loader::look_up(Whose::First, c"environ").cast(),
        Ordering::Relaxed,
    );
    PROGRESS.store(KNOWN, Ordering::Release);
    // SAFETY: takes an integer.
    let vdso = unsafe { auxiliary_value(libc::AT_SYSINFO_EHDR) };
    // SAFETY: the kernel's own module, where there is one.
    CLOCK.store(unsafe { clock_of(vdso) }, Ordering::Release);
}

static ENVIRONMENT: AtomicPtr<*mut *mut c_char> = AtomicPtr::new(null_mut());

/// The program's list of variables: C strings up to a null pointer. Null where it has none, or the C library has not begun.
///
/// # Safety
/// Nothing changes the list meanwhile.
pub(crate) unsafe fn environment() -> *mut *mut c_char {
    if PROGRESS.load(Ordering::Acquire) == UNKNOWN {
        resolve();
    }
    // SAFETY: the C library's variable, where it has it.
    unsafe { ENVIRONMENT.load(Ordering::Relaxed).as_ref() }.map_or(null_mut(), |list| *list)
}

/// The kernel's `clock_gettime`, which needs no system call.
static CLOCK: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// Finds it in the module that the kernel maps into each process (vdso(7)); null where there is none.
///
/// # Safety
/// The address of an ELF header in memory, of a module that stays, or 0.
unsafe fn clock_of(vdso: u64) -> *mut c_void {
    // SAFETY: as the caller promises.
    unsafe {
        let Some(header) = (vdso as *const libc::Elf64_Ehdr).as_ref() else {
            return null_mut();
        };
        let table = (vdso + header.e_phoff) as *const libc::Elf64_Phdr;
        let headers = std::slice::from_raw_parts(table, usize::from(header.e_phnum));
        let Some(dynamic) = headers.iter().find(|h| h.p_type == libc::PT_DYNAMIC) else {
            return null_mut();
        };
        let section = (vdso + dynamic.p_vaddr) as *const [u64; 2];
        let entries = dynamic.p_memsz as usize / 16;
        Symbols::read(vdso, section, entries, |_, _| {})
            .define(c"__vdso_clock_gettime")
            .unwrap_or(null_mut())
    }
}

/// As the C library's.
unsafe extern "C" fn clock_gettime(clock: libc::clockid_t, time: *mut libc::timespec) -> c_int {
    let function = CLOCK.load(Ordering::Relaxed);
    // SAFETY: the caller's arguments; the kernel's function of this name has this type.
    unsafe {
        if function.is_null() {
            if PROGRESS.load(Ordering::Acquire) == UNKNOWN {
                resolve();
            }
            let arguments = [clock as usize, time as usize, 0, 0, 0, 0];
            return sys::call(libc::SYS_clock_gettime, arguments) as c_int;
        }
        let function: unsafe extern "C" fn(libc::clockid_t, *mut libc::timespec) -> c_int =
            transmute(function);
        function(clock, time)
    }
}

/// How far the process's clock is ahead of the machine's, nanoseconds.
static AHEAD: AtomicI64 = AtomicI64::new(0);

/// Finds out how far that is. For a process that may open files.
pub(crate) fn learn_clock() {
    AHEAD.store(varve_preload_abi::clock::ahead_ns(), Ordering::Relaxed);
}

/// The machine's time, by what the process read from its clock; both in nanoseconds.
#[inline]
pub(crate) fn of_machine(own_ns: u64) -> u64 {
    own_ns.wrapping_sub(AHEAD.load(Ordering::Relaxed).cast_unsigned())
}

unsafe extern "C" fn errno_location() -> *mut c_int {
    // SAFETY: gives the address of a variable of the thread.
    unsafe { errno() }
}

/// How often the loader was asked for its list, which no other library can count. It can be looked up.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub(crate) static varve_preload_lists_read: AtomicU32 = AtomicU32::new(0);

/// As the C library's.
///
/// # Safety
/// As for the C library's.
pub(crate) unsafe extern "C" fn dl_iterate_phdr(
    callback: PhdrCallback,
    data: *mut c_void,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        varve_preload_lists_read.fetch_add(1, Ordering::Relaxed);
        iterate_phdr(callback, data)
    }
}

extern "C" fn thread_id() -> libc::pid_t {
    sys::thread_id().cast_signed()
}

/// The thread as the C library's functions know it.
pub(crate) extern "C" fn thread_self() -> libc::pthread_t {
    let thread: libc::pthread_t;
    // SAFETY: the third word of a thread's block points to the block (the x86-64 ABI of the GNU C library).
    unsafe { asm!("mov {0}, qword ptr fs:[16]", out(reg) thread, options(nostack, readonly)) };
    thread
}

extern "C" fn abort() -> ! {
    loop {
        let (pid, tid) = (sys::process_id() as usize, sys::thread_id() as usize);
        let default = [0usize; 4];
        let action = [
            libc::SIGABRT as usize,
            default.as_ptr() as usize,
            0,
            8,
            0,
            0,
        ];
        let only = 1u64 << (libc::SIGABRT - 1);
        let unblock = [
            libc::SIG_UNBLOCK as usize,
            &raw const only as usize,
            0,
            8,
            0,
            0,
        ];
        // SAFETY: words that live for the calls.
        unsafe {
            sys::call(libc::SYS_rt_sigaction, action);
            sys::call(libc::SYS_rt_sigprocmask, unblock);
            sys::call(
                libc::SYS_tgkill,
                [pid, tid, libc::SIGABRT as usize, 0, 0, 0],
            );
            sys::call(libc::SYS_exit_group, [127, 0, 0, 0, 0, 0]);
        }
    }
}

unsafe extern "C" {
    /// The bounds of this library, from the linker.
    static __ehdr_start: u8;
    static _end: u8;
}

/// Where this library lies.
pub(crate) fn bounds() -> Range<u64> {
    &raw const __ehdr_start as u64..&raw const _end as u64
}

/// The unwinder that is linked into this library looks for its tables: panics unwind within the library only.
unsafe extern "C" fn find_own_object(address: *const u8, to: *mut FoundObject) -> c_int {
    // SAFETY: the linker's own symbols; the first page of this library has its headers; the caller's struct has this layout.
    unsafe {
        let own = bounds();
        if !own.contains(&(address as u64)) {
            return -1;
        }
        let start = own.start as *const u8;
        let header = &*start.cast::<libc::Elf64_Ehdr>();
        let table = start
            .add(header.e_phoff as usize)
            .cast::<libc::Elf64_Phdr>();
        let headers = std::slice::from_raw_parts(table, usize::from(header.e_phnum));
        let Some(tables) = headers.iter().find(|h| h.p_type == libc::PT_GNU_EH_FRAME) else {
            return -1;
        };
        to.write(FoundObject {
            flags: 0,
            map_start: start,
            map_end: own.end as *const u8,
            link_map: std::ptr::null(),
            eh_frame_hdr: start.add(tables.p_vaddr as usize),
            reserved: [0; 7],
        });
    }
    0
}
