//! `operator new` and `operator delete`.
//!
//! The operators of the C++ library do the work, exceptions included: they pass through frames that have nothing to drop. A library
//! that was loaded for itself alone has its C++ library out of sight of others: which operators it finds is known by module.

use std::ffi::{CStr, c_void};
use std::mem::transmute;
use std::ptr::null_mut;
use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};

use varve_preload_abi::AllocKind;
use varve_preload_abi::operations::Operation;

use super::is_off;
use crate::heap::{allocate, entry, release};
use crate::{modules, real, scope};

type Pointer = *mut c_void;

/// The operators, by the names that compilers give them.
const NAMES: [&CStr; 20] = [
    c"_Znwm",
    c"_ZnwmRKSt9nothrow_t",
    c"_ZnwmSt11align_val_t",
    c"_ZnwmSt11align_val_tRKSt9nothrow_t",
    c"_Znam",
    c"_ZnamRKSt9nothrow_t",
    c"_ZnamSt11align_val_t",
    c"_ZnamSt11align_val_tRKSt9nothrow_t",
    c"_ZdlPv",
    c"_ZdlPvm",
    c"_ZdlPvRKSt9nothrow_t",
    c"_ZdlPvSt11align_val_t",
    c"_ZdlPvmSt11align_val_t",
    c"_ZdlPvSt11align_val_tRKSt9nothrow_t",
    c"_ZdaPv",
    c"_ZdaPvm",
    c"_ZdaPvRKSt9nothrow_t",
    c"_ZdaPvSt11align_val_t",
    c"_ZdaPvmSt11align_val_t",
    c"_ZdaPvSt11align_val_tRKSt9nothrow_t",
];

/// The operators of what was loaded with the program, which all callers find; null where there is none, or not known yet.
static FOR_ALL: [AtomicPtr<c_void>; NAMES.len()] =
    [const { AtomicPtr::new(null_mut()) }; NAMES.len()];

/// What the code of one module finds. Written by one thread at a time; who reads it while it is written sees an odd version,
/// or another one afterwards.
struct Known {
    version: AtomicU32,
    /// Of [`modules::epoch`]: after that the module may be another.
    epoch: AtomicU32,
    start: AtomicU64,
    end: AtomicU64,
    operators: [AtomicPtr<c_void>; NAMES.len()],
}

const KNOWN: usize = 256;
static MODULES: [Known; KNOWN] = [const {
    Known {
        version: AtomicU32::new(0),
        epoch: AtomicU32::new(0),
        start: AtomicU64::new(0),
        end: AtomicU64::new(0),
        operators: [const { AtomicPtr::new(null_mut()) }; NAMES.len()],
    }
}; KNOWN];
/// How many of them are used, and where the next one goes when all are.
static USED: AtomicUsize = AtomicUsize::new(0);
static NEXT: AtomicUsize = AtomicUsize::new(0);
static IS_WRITTEN: AtomicBool = AtomicBool::new(false);

/// The operator that code at an address would call; null where it finds none.
#[inline]
fn operator(which: usize, site: u64) -> *mut c_void {
    let for_all = FOR_ALL[which].load(Ordering::Relaxed);
    if !for_all.is_null() {
        return for_all;
    }
    operator_of_module(which, site)
}

fn operator_of_module(which: usize, site: u64) -> *mut c_void {
    /// The module of the last call of a thread: most calls of one operator come from one module.
    static LAST: AtomicUsize = AtomicUsize::new(0);
    let epoch = modules::epoch();
    let last = LAST.load(Ordering::Relaxed);
    if let Some(found) = MODULES[last].read(epoch, site, which) {
        return found;
    }
    let used = USED.load(Ordering::Acquire);
    for (index, module) in MODULES[..used].iter().enumerate() {
        if let Some(found) = module.read(epoch, site, which) {
            LAST.store(index, Ordering::Relaxed);
            return found;
        }
    }
    look_up(which, site, epoch)
}

impl Known {
    fn read(&self, epoch: u32, site: u64, which: usize) -> Option<*mut c_void> {
        let version = self.version.load(Ordering::Acquire);
        let is_it = self.epoch.load(Ordering::Relaxed) == epoch
            && (self.start.load(Ordering::Relaxed)..self.end.load(Ordering::Relaxed))
                .contains(&site);
        if !is_it || version & 1 != 0 {
            return None;
        }
        let found = self.operators[which].load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        (self.version.load(Ordering::Relaxed) == version).then_some(found)
    }

    /// Only one thread at a time calls this.
    fn write(&self, epoch: u32, findings: &scope::Findings) {
        let version = self.version.load(Ordering::Relaxed);
        self.version
            .store(version.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        self.epoch.store(epoch, Ordering::Relaxed);
        self.start.store(findings.module.start, Ordering::Relaxed);
        self.end.store(findings.module.end, Ordering::Relaxed);
        for (place, definition) in self.operators.iter().zip(&findings.definitions) {
            place.store(definition.function, Ordering::Relaxed);
        }
        self.version
            .store(version.wrapping_add(2), Ordering::Release);
    }
}

#[cold]
fn look_up(which: usize, site: u64, epoch: u32) -> *mut c_void {
    let findings = scope::look_up(site, &NAMES);
    for (place, definition) in FOR_ALL.iter().zip(&findings.definitions) {
        if definition.for_all {
            place.store(definition.function, Ordering::Relaxed);
        }
    }
    // While a library is closed nothing is kept: what lies there may be gone before the epoch says so.
    let is_certain = !findings.module.is_empty() && !modules::is_closing();
    if is_certain && !IS_WRITTEN.swap(true, Ordering::Acquire) {
        let used = USED.load(Ordering::Relaxed);
        let old = |module: &&Known| module.epoch.load(Ordering::Relaxed) != epoch;
        match MODULES[..used].iter().find(old) {
            Some(module) => module.write(epoch, &findings),
            None if used < KNOWN => {
                MODULES[used].write(epoch, &findings);
                USED.store(used + 1, Ordering::Release);
            }
            None => {
                let next = NEXT.fetch_add(1, Ordering::Relaxed) % KNOWN;
                MODULES[next].write(epoch, &findings);
            }
        }
        IS_WRITTEN.store(false, Ordering::Release);
    }
    findings.definitions[which].function
}

/// In a forked child: a thread that does not exist here may have been writing.
pub(crate) fn recover_after_fork() {
    if IS_WRITTEN.swap(false, Ordering::AcqRel) {
        for module in &MODULES {
            if module.version.load(Ordering::Relaxed) & 1 != 0 {
                module.end.store(0, Ordering::Relaxed);
                module.version.fetch_add(1, Ordering::Release);
            }
        }
    }
}

macro_rules! news {
    ($($name:ident $counted:ident $operation:ident ($($argument:ident),*), $site:literal, $stack:literal;)*) => {
        $(
            /// # Safety
            /// As for the operator of this name.
            unsafe extern "C-unwind" fn $counted(bytes: usize, $($argument: usize,)* site: u64, stack: u64) -> Pointer {
                const WHICH: usize = which(concat!(stringify!($name), "\0"));
                let next = operator(WHICH, site);
                let real = move || {
                    if next.is_null() {
                        // SAFETY: an ordinary allocation; nobody is there to throw.
                        return unsafe { real::get().malloc(bytes) };
                    }
                    // SAFETY: an operator of this name has this type; the caller's arguments.
                    unsafe {
                        let next: unsafe extern "C-unwind" fn(usize $(, $argument: usize)*) -> Pointer = transmute(next);
                        next(bytes $(, $argument)*)
                    }
                };
                // It calls malloc, which reports the object.
                if is_off() && !next.is_null() {
                    return real();
                }
                let call = (Operation::$operation, site, stack);
                allocate(call, bytes, AllocKind::Malloc, real)
            }
            entry! { $name => $counted, $site, $stack; }
        )*
    };
}

macro_rules! deletes {
    ($($name:ident $counted:ident $operation:ident ($($argument:ident),*), $site:literal, $stack:literal;)*) => {
        $(
            /// # Safety
            /// As for the operator of this name.
            unsafe extern "C-unwind" fn $counted(object: Pointer, $($argument: usize,)* site: u64, stack: u64) {
                const WHICH: usize = which(concat!(stringify!($name), "\0"));
                let next = operator(WHICH, site);
                let call = (Operation::$operation, site, stack);
                release(call, object, move || {
                    if next.is_null() {
                        // SAFETY: the caller's block.
                        return unsafe { real::get().free(object) };
                    }
                    // SAFETY: an operator of this name has this type; the caller's arguments.
                    unsafe {
                        let next: unsafe extern "C-unwind" fn(Pointer $(, $argument: usize)*) = transmute(next);
                        next(object $(, $argument)*);
                    }
                });
            }
            entry! { $name => $counted, $site, $stack; }
        )*
    };
}

/// The number of a name.
const fn which(name: &str) -> usize {
    let mut which = 0;
    loop {
        if is_same(NAMES[which].to_bytes_with_nul(), name.as_bytes()) {
            return which;
        }
        which += 1;
    }
}

const fn is_same(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    let mut at = 0;
    while at < a.len() {
        if a[at] != b[at] {
            return false;
        }
        at += 1;
    }
    true
}

news! {
    _Znwm new_plain New (), "rsi", "rdx";
    _ZnwmRKSt9nothrow_t new_nothrow New (tag), "rdx", "rcx";
    _ZnwmSt11align_val_t new_aligned NewAligned (alignment), "rdx", "rcx";
    _ZnwmSt11align_val_tRKSt9nothrow_t new_aligned_nothrow NewAligned (alignment, tag), "rcx", "r8";
    _Znam new_array NewArray (), "rsi", "rdx";
    _ZnamRKSt9nothrow_t new_array_nothrow NewArray (tag), "rdx", "rcx";
    _ZnamSt11align_val_t new_array_aligned NewAligned (alignment), "rdx", "rcx";
    _ZnamSt11align_val_tRKSt9nothrow_t new_array_aligned_nothrow NewAligned (alignment, tag), "rcx", "r8";
}

deletes! {
    _ZdlPv delete Delete (), "rsi", "rdx";
    _ZdlPvm delete_sized Delete (bytes), "rdx", "rcx";
    _ZdlPvRKSt9nothrow_t delete_nothrow Delete (tag), "rdx", "rcx";
    _ZdlPvSt11align_val_t delete_aligned Delete (alignment), "rdx", "rcx";
    _ZdlPvmSt11align_val_t delete_sized_aligned Delete (bytes, alignment), "rcx", "r8";
    _ZdlPvSt11align_val_tRKSt9nothrow_t delete_aligned_nothrow Delete (alignment, tag), "rcx", "r8";
    _ZdaPv delete_array DeleteArray (), "rsi", "rdx";
    _ZdaPvm delete_array_sized DeleteArray (bytes), "rdx", "rcx";
    _ZdaPvRKSt9nothrow_t delete_array_nothrow DeleteArray (tag), "rdx", "rcx";
    _ZdaPvSt11align_val_t delete_array_aligned DeleteArray (alignment), "rdx", "rcx";
    _ZdaPvmSt11align_val_t delete_array_sized_aligned DeleteArray (bytes, alignment), "rcx", "r8";
    _ZdaPvSt11align_val_tRKSt9nothrow_t delete_array_aligned_nothrow DeleteArray (alignment, tag), "rcx", "r8";
}
