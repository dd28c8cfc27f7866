//! The functions that this library stands in front of: what `dlsym(RTLD_NEXT)` would find, by the loader's own list ([`loader`]).
//!
//! What the program allocates before they are known comes from a small static block that is never given back.

use std::ffi::{CStr, c_char, c_int, c_long, c_uint, c_ulong, c_void};
use std::mem::transmute;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicUsize, Ordering};

use crate::loader::{self, Whose};
use crate::transfers::raw;
use crate::{modules, own};

type Pointer = *mut c_void;
/// A thread's start routine.
pub(crate) type StartRoutine = unsafe extern "C-unwind" fn(Pointer) -> Pointer;

const UNRESOLVED: u8 = 0;
const RESOLVING: u8 = 1;
const RESOLVED: u8 = 2;
static PROGRESS: AtomicU8 = AtomicU8::new(UNRESOLVED);

macro_rules! real_functions {
    ($($name:ident as $symbol:literal ($($argument:ident: $type:ty),*) -> $result:ty, else $fallback:expr;)*) => {
        /// The next library's functions.
        pub(crate) struct Real {
            $($name: AtomicPtr<c_void>,)*
        }

        static REAL: Real = Real { $($name: AtomicPtr::new(null_mut()),)* };

        impl Real {
            $(
                /// Calls the next library's function of this name.
                ///
                /// # Safety
                /// As for that function.
                #[inline]
                #[allow(clippy::too_many_arguments)]
                pub(crate) unsafe fn $name(&self, $($argument: $type),*) -> $result {
                    let mut function = self.$name.load(Ordering::Relaxed);
                    if function.is_null() {
                        function = look_up_one(&self.$name, $symbol);
                        if function.is_null() {
                            return $fallback;
                        }
                    }
                    // SAFETY: a C library's symbol of this name has this type; the arguments are
                    // the caller's.
                    unsafe {
                        let function: unsafe extern "C-unwind" fn($($type),*) -> $result = transmute(function);
                        function($($argument),*)
                    }
                }
            )*
        }

        fn look_up_all() {
            $(
                REAL.$name.store(loader::look_up(Whose::Next, $symbol), Ordering::Relaxed);
            )*
        }
    };
}

real_functions! {
    mmap as c"mmap" (address: Pointer, bytes: usize, protection: c_int, flags: c_int, fd: c_int, offset: i64) -> Pointer,
        else raw(libc::SYS_mmap, [address as usize, bytes, protection as usize, flags as usize, fd as usize, offset as usize]) as Pointer;
    mmap64 as c"mmap64" (address: Pointer, bytes: usize, protection: c_int, flags: c_int, fd: c_int, offset: i64) -> Pointer,
        else raw(libc::SYS_mmap, [address as usize, bytes, protection as usize, flags as usize, fd as usize, offset as usize]) as Pointer;
    munmap as c"munmap" (address: Pointer, bytes: usize) -> c_int,
        else raw(libc::SYS_munmap, [address as usize, bytes, 0, 0, 0, 0]) as c_int;
    mremap as c"mremap" (old: Pointer, old_bytes: usize, bytes: usize, flags: c_int, address: Pointer) -> Pointer, else libc::MAP_FAILED;
    brk as c"brk" (address: Pointer) -> c_int, else -1;
    sbrk as c"sbrk" (increment: isize) -> Pointer, else libc::MAP_FAILED;
    malloc_usable_size as c"malloc_usable_size" (object: Pointer) -> usize, else 0;
    malloc_trim as c"malloc_trim" (pad: usize) -> c_int, else 0;
    malloc as c"malloc" (bytes: usize) -> Pointer, else early(bytes, 16);
    calloc as c"calloc" (count: usize, bytes: usize) -> Pointer,
        else count.checked_mul(bytes).map_or(null_mut(), |bytes| early(bytes, 16));
    realloc as c"realloc" (old: Pointer, bytes: usize) -> Pointer, else early_again(old, bytes);
    reallocarray as c"reallocarray" (old: Pointer, count: usize, bytes: usize) -> Pointer,
        else count.checked_mul(bytes).map_or(null_mut(), |bytes| early_again(old, bytes));
    free as c"free" (old: Pointer) -> (), else Default::default();
    memalign as c"memalign" (alignment: usize, bytes: usize) -> Pointer, else early(bytes, alignment);
    aligned_alloc as c"aligned_alloc" (alignment: usize, bytes: usize) -> Pointer, else early(bytes, alignment);
    posix_memalign as c"posix_memalign" (result: *mut Pointer, alignment: usize, bytes: usize) -> c_int, else libc::ENOMEM;
    valloc as c"valloc" (bytes: usize) -> Pointer, else early(bytes, 4096);
    pvalloc as c"pvalloc" (bytes: usize) -> Pointer, else early(bytes.next_multiple_of(4096), 4096);
    pthread_create as c"pthread_create" (thread: *mut libc::pthread_t, attributes: *const libc::pthread_attr_t, start: StartRoutine, argument: Pointer) -> c_int, else libc::EAGAIN;
    epoll_wait as c"epoll_wait" (epoll: c_int, events: *mut libc::epoll_event, most: c_int, timeout: c_int) -> c_int, else -1;
    epoll_pwait as c"epoll_pwait" (epoll: c_int, events: *mut libc::epoll_event, most: c_int, timeout: c_int, mask: *const libc::sigset_t) -> c_int, else -1;
    semop as c"semop" (set: c_int, operations: *mut libc::sembuf, count: usize) -> c_int, else -1;
    semtimedop as c"semtimedop" (set: c_int, operations: *mut libc::sembuf, count: usize, timeout: *const libc::timespec) -> c_int, else -1;
    waitpid as c"waitpid" (pid: libc::pid_t, status: *mut c_int, options: c_int) -> libc::pid_t,
        else raw(libc::SYS_wait4, [pid as usize, status as usize, options as usize, 0, 0, 0]) as libc::pid_t;
    wait3 as c"wait3" (status: *mut c_int, options: c_int, usage: *mut libc::rusage) -> libc::pid_t,
        else raw(libc::SYS_wait4, [usize::MAX, status as usize, options as usize, usage as usize, 0, 0]) as libc::pid_t;
    wait4 as c"wait4" (pid: libc::pid_t, status: *mut c_int, options: c_int, usage: *mut libc::rusage) -> libc::pid_t,
        else raw(libc::SYS_wait4, [pid as usize, status as usize, options as usize, usage as usize, 0, 0]) as libc::pid_t;
    waitid as c"waitid" (kind: libc::idtype_t, id: libc::id_t, information: *mut libc::siginfo_t, options: c_int) -> c_int,
        else raw(libc::SYS_waitid, [kind as usize, id as usize, information as usize, options as usize, 0, 0]) as c_int;
    ptrace as c"ptrace" (request: c_uint, pid: libc::pid_t, address: Pointer, data: Pointer) -> c_long, else -1;
    sigtimedwait as c"sigtimedwait" (signals: *const libc::sigset_t, information: *mut libc::siginfo_t, timeout: *const libc::timespec) -> c_int, else -1;
    sigwaitinfo as c"sigwaitinfo" (signals: *const libc::sigset_t, information: *mut libc::siginfo_t) -> c_int, else -1;
    epoll_pwait2 as c"epoll_pwait2" (epoll: c_int, events: *mut libc::epoll_event, most: c_int, timeout: *const libc::timespec, mask: *const libc::sigset_t) -> c_int, else -1;
    read as c"read" (fd: c_int, to: Pointer, bytes: usize) -> isize, else raw(libc::SYS_read, [fd as usize, to as usize, bytes, 0, 0, 0]);
    readv as c"readv" (fd: c_int, pieces: *const libc::iovec, count: c_int) -> isize,
        else raw(libc::SYS_readv, [fd as usize, pieces as usize, count as usize, 0, 0, 0]);
    write as c"write" (fd: c_int, from: *const c_void, bytes: usize) -> isize, else raw(libc::SYS_write, [fd as usize, from as usize, bytes, 0, 0, 0]);
    writev as c"writev" (fd: c_int, pieces: *const libc::iovec, count: c_int) -> isize,
        else raw(libc::SYS_writev, [fd as usize, pieces as usize, count as usize, 0, 0, 0]);
    recv as c"recv" (fd: c_int, to: Pointer, bytes: usize, flags: c_int) -> isize,
        else raw(libc::SYS_recvfrom, [fd as usize, to as usize, bytes, flags as usize, 0, 0]);
    recvfrom as c"recvfrom" (fd: c_int, to: Pointer, bytes: usize, flags: c_int, from: *mut libc::sockaddr, from_bytes: *mut libc::socklen_t) -> isize,
        else raw(libc::SYS_recvfrom, [fd as usize, to as usize, bytes, flags as usize, from as usize, from_bytes as usize]);
    recv_chk as c"__recv_chk" (fd: c_int, to: Pointer, bytes: usize, room: usize, flags: c_int) -> isize, else Default::default();
    recvfrom_chk as c"__recvfrom_chk" (fd: c_int, to: Pointer, bytes: usize, room: usize, flags: c_int, from: *mut libc::sockaddr, from_bytes: *mut libc::socklen_t) -> isize, else Default::default();
    read_chk as c"__read_chk" (fd: c_int, to: Pointer, bytes: usize, room: usize) -> isize, else Default::default();
    getrandom as c"getrandom" (to: Pointer, bytes: usize, flags: u32) -> isize,
        else raw(libc::SYS_getrandom, [to as usize, bytes, flags as usize, 0, 0, 0]);
    poll as c"poll" (first: *mut libc::pollfd, count: libc::nfds_t, ms: c_int) -> c_int,
        else raw(libc::SYS_poll, [first as usize, count as usize, ms as usize, 0, 0, 0]) as c_int;
    recvmsg as c"recvmsg" (fd: c_int, message: *mut libc::msghdr, flags: c_int) -> isize,
        else raw(libc::SYS_recvmsg, [fd as usize, message as usize, flags as usize, 0, 0, 0]);
    send as c"send" (fd: c_int, from: *const c_void, bytes: usize, flags: c_int) -> isize,
        else raw(libc::SYS_sendto, [fd as usize, from as usize, bytes, flags as usize, 0, 0]);
    sendto as c"sendto" (fd: c_int, from: *const c_void, bytes: usize, flags: c_int, to: *const libc::sockaddr, to_bytes: libc::socklen_t) -> isize,
        else raw(libc::SYS_sendto, [fd as usize, from as usize, bytes, flags as usize, to as usize, to_bytes as usize]);
    sendmsg as c"sendmsg" (fd: c_int, message: *const libc::msghdr, flags: c_int) -> isize,
        else raw(libc::SYS_sendmsg, [fd as usize, message as usize, flags as usize, 0, 0, 0]);
    sendfile as c"sendfile" (to: c_int, from: c_int, offset: *mut libc::off_t, bytes: usize) -> isize,
        else raw(libc::SYS_sendfile, [to as usize, from as usize, offset as usize, bytes, 0, 0]);
    accept as c"accept" (fd: c_int, from: *mut libc::sockaddr, bytes: *mut libc::socklen_t) -> c_int,
        else raw(libc::SYS_accept, [fd as usize, from as usize, bytes as usize, 0, 0, 0]) as c_int;
    accept4 as c"accept4" (fd: c_int, from: *mut libc::sockaddr, bytes: *mut libc::socklen_t, flags: c_int) -> c_int,
        else raw(libc::SYS_accept4, [fd as usize, from as usize, bytes as usize, flags as usize, 0, 0]) as c_int;
    connect as c"connect" (fd: c_int, to: *const libc::sockaddr, bytes: libc::socklen_t) -> c_int,
        else raw(libc::SYS_connect, [fd as usize, to as usize, bytes as usize, 0, 0, 0]) as c_int;
    execve as c"execve" (path: *const c_char, arguments: *const *const c_char, variables: *const *const c_char) -> c_int,
        else raw(libc::SYS_execve, [path as usize, arguments as usize, variables as usize, 0, 0, 0]) as c_int;
    chroot as c"chroot" (path: *const c_char) -> c_int, else -1;
    setns as c"setns" (descriptor: c_int, kind: c_int) -> c_int, else -1;
    unshare as c"unshare" (flags: c_int) -> c_int, else -1;
    mount as c"mount" (source: *const c_char, target: *const c_char, kind: *const c_char, flags: c_ulong, data: *const c_void) -> c_int,
        else raw(libc::SYS_mount, [source as usize, target as usize, kind as usize, flags as usize, data as usize, 0]) as c_int;
    umount2 as c"umount2" (target: *const c_char, flags: c_int) -> c_int,
        else raw(libc::SYS_umount2, [target as usize, flags as usize, 0, 0, 0, 0]) as c_int;
    dlclose as c"dlclose" (handle: Pointer) -> c_int, else -1;
    end as c"_exit" (status: c_int) -> (), else Default::default();
    free_sized as c"free_sized" (old: Pointer, bytes: usize) -> (), else free(old);
    free_aligned_sized as c"free_aligned_sized" (old: Pointer, alignment: usize, bytes: usize) -> (), else free(old);
    setrlimit as c"setrlimit" (resource: u32, new: *const libc::rlimit64) -> c_int,
        else raw(libc::SYS_prlimit64, [0, resource as usize, new as usize, 0, 0, 0]) as c_int;
    setrlimit64 as c"setrlimit64" (resource: u32, new: *const libc::rlimit64) -> c_int,
        else raw(libc::SYS_prlimit64, [0, resource as usize, new as usize, 0, 0, 0]) as c_int;
    prlimit as c"prlimit" (pid: libc::pid_t, resource: u32, new: *const libc::rlimit64, old: *mut libc::rlimit64) -> c_int,
        else raw(libc::SYS_prlimit64, [pid as usize, resource as usize, new as usize, old as usize, 0, 0]) as c_int;
    prlimit64 as c"prlimit64" (pid: libc::pid_t, resource: u32, new: *const libc::rlimit64, old: *mut libc::rlimit64) -> c_int,
        else raw(libc::SYS_prlimit64, [pid as usize, resource as usize, new as usize, old as usize, 0, 0]) as c_int;
    mlockall as c"mlockall" (flags: c_int) -> c_int, else raw(libc::SYS_mlockall, [flags as usize, 0, 0, 0, 0, 0]) as c_int;
    prctl as c"prctl" (option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int, else -1;
}

impl Real {
    /// Where the next library's `malloc` is.
    pub(crate) fn malloc_at(&self) -> *const c_void {
        self.malloc.load(Ordering::Relaxed)
    }
}

/// What libraries without the newer functions have.
fn free(old: Pointer) {
    // SAFETY: what the caller of such a function gives up.
    unsafe { REAL.free(old) };
}

/// The next library's functions, looked up at their first use.
#[inline]
pub(crate) fn get() -> &'static Real {
    &REAL
}

/// Looks every function up, once. Whoever comes while that goes on gets the fallback.
#[cold]
pub(crate) fn resolve() {
    if PROGRESS
        .compare_exchange(UNRESOLVED, RESOLVING, Ordering::AcqRel, Ordering::Acquire)
        .is_err()
    {
        return;
    }
    keeping_errno(|| {
        look_up_all();
        modules::resolve();
        let syscall = loader::look_up(Whose::Next, c"syscall");
        SYSCALL.store(syscall, Ordering::Release);
    });
    PROGRESS.store(RESOLVED, Ordering::Release);
}

/// What glibc before 2.34 has in libraries that a program may load later than this one.
const MAY_COME_LATER: [&CStr; 2] = [c"pthread_create", c"dlclose"];

/// A function that was not found, or not looked for yet; null where there is none.
#[cold]
fn look_up_one(place: &AtomicPtr<c_void>, name: &CStr) -> Pointer {
    resolve();
    let found = place.load(Ordering::Relaxed);
    let is_over = PROGRESS.load(Ordering::Acquire) == RESOLVED;
    if !found.is_null() || !is_over || !MAY_COME_LATER.contains(&name) {
        return found;
    }
    let found = keeping_errno(|| loader::later(Whose::Next, name));
    place.store(found, Ordering::Relaxed);
    found
}

/// The next library's `syscall`, for the wrapper that must not have a frame of its own.
pub(crate) static SYSCALL: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// Runs something that may change `errno`, and puts it back.
pub(crate) fn keeping_errno<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: the C library's address of this thread's errno is always valid.
    unsafe {
        let errno = own::errno();
        let before = *errno;
        let result = work();
        *errno = before;
        result
    }
}

/// This thread's `errno`.
pub(crate) fn errno() -> c_int {
    // SAFETY: as above.
    unsafe { *own::errno() }
}

/// Sets `errno`.
pub(crate) fn set_errno(value: c_int) {
    // SAFETY: as above.
    unsafe { *own::errno() = value };
}

const EARLY_BYTES: usize = 64 << 10;
#[repr(align(4096))]
struct Early(std::cell::UnsafeCell<[u8; EARLY_BYTES]>);
// SAFETY: handed out in disjoint pieces.
unsafe impl Sync for Early {}
static EARLY: Early = Early(std::cell::UnsafeCell::new([0; EARLY_BYTES]));
static EARLY_USED: AtomicUsize = AtomicUsize::new(0);

/// Whether memory came from the static block, and must not reach the real `free`.
#[inline]
pub(crate) fn is_early(object: Pointer) -> bool {
    (object as usize).wrapping_sub(EARLY.0.get() as usize) < EARLY_BYTES
}

/// A zeroed piece of the static block. Its size stands in the 16 bytes before it.
#[cold]
fn early(bytes: usize, alignment: usize) -> Pointer {
    let base = EARLY.0.get().cast::<u8>();
    let mut used = EARLY_USED.load(Ordering::Relaxed);
    loop {
        let start = (used + 16).next_multiple_of(alignment.clamp(16, 4096));
        let end = start.saturating_add(bytes);
        if end > EARLY_BYTES {
            set_errno(libc::ENOMEM);
            return null_mut();
        }
        match EARLY_USED.compare_exchange(used, end, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => {
                // SAFETY: `start - 16 .. end` is within the block and this caller's alone.
                unsafe {
                    base.add(start - 16).cast::<usize>().write(bytes);
                    return base.add(start).cast();
                }
            }
            Err(other) => used = other,
        }
    }
}

/// `realloc` while the real one is not known.
#[cold]
fn early_again(old: Pointer, bytes: usize) -> Pointer {
    let fresh = early(bytes, 16);
    if !fresh.is_null() && is_early(old) {
        move_early(old, fresh, bytes);
    }
    fresh
}

/// Copies an object of the static block to a new place.
pub(crate) fn move_early(old: Pointer, fresh: Pointer, bytes: usize) {
    // SAFETY: `early` left the size in front of the object; the new place has `bytes`.
    unsafe {
        let size = old.cast::<u8>().sub(16).cast::<usize>().read();
        std::ptr::copy_nonoverlapping(old.cast::<c_char>(), fresh.cast(), size.min(bytes));
    }
}
