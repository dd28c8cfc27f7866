//! The functions that this library stands in front of, found with `dlsym(RTLD_NEXT)`.
//!
//! The lookup itself may allocate. What is asked for meanwhile comes from a small static block that
//! is never given back.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::transmute;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicUsize, Ordering};

use crate::modules;
use crate::transfers::raw;

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
                        resolve();
                        function = self.$name.load(Ordering::Relaxed);
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
                // SAFETY: the name is a C string; null is a valid answer.
                let found = unsafe { libc::dlsym(libc::RTLD_NEXT, concat!($symbol, "\0").as_ptr().cast()) };
                REAL.$name.store(found, Ordering::Relaxed);
            )*
        }
    };
}

// Looking one up may allocate, for the message that there is none, and an allocator's first call maps memory. So what maps comes first, then what
// says how large a block is, which counting asks. Names that most libraries lack are not here: see [`Rare`].
real_functions! {
    mmap as "mmap" (address: Pointer, bytes: usize, protection: c_int, flags: c_int, fd: c_int, offset: i64) -> Pointer,
        else raw(libc::SYS_mmap, [address as usize, bytes, protection as usize, flags as usize, fd as usize, offset as usize]) as Pointer;
    mmap64 as "mmap64" (address: Pointer, bytes: usize, protection: c_int, flags: c_int, fd: c_int, offset: i64) -> Pointer,
        else raw(libc::SYS_mmap, [address as usize, bytes, protection as usize, flags as usize, fd as usize, offset as usize]) as Pointer;
    munmap as "munmap" (address: Pointer, bytes: usize) -> c_int,
        else raw(libc::SYS_munmap, [address as usize, bytes, 0, 0, 0, 0]) as c_int;
    mremap as "mremap" (old: Pointer, old_bytes: usize, bytes: usize, flags: c_int, address: Pointer) -> Pointer, else libc::MAP_FAILED;
    brk as "brk" (address: Pointer) -> c_int, else -1;
    sbrk as "sbrk" (increment: isize) -> Pointer, else libc::MAP_FAILED;
    malloc_usable_size as "malloc_usable_size" (object: Pointer) -> usize, else 0;
    malloc as "malloc" (bytes: usize) -> Pointer, else early(bytes, 16);
    calloc as "calloc" (count: usize, bytes: usize) -> Pointer,
        else count.checked_mul(bytes).map_or(null_mut(), |bytes| early(bytes, 16));
    realloc as "realloc" (old: Pointer, bytes: usize) -> Pointer, else early_again(old, bytes);
    reallocarray as "reallocarray" (old: Pointer, count: usize, bytes: usize) -> Pointer,
        else count.checked_mul(bytes).map_or(null_mut(), |bytes| early_again(old, bytes));
    free as "free" (old: Pointer) -> (), else Default::default();
    memalign as "memalign" (alignment: usize, bytes: usize) -> Pointer, else early(bytes, alignment);
    aligned_alloc as "aligned_alloc" (alignment: usize, bytes: usize) -> Pointer, else early(bytes, alignment);
    posix_memalign as "posix_memalign" (result: *mut Pointer, alignment: usize, bytes: usize) -> c_int, else libc::ENOMEM;
    valloc as "valloc" (bytes: usize) -> Pointer, else early(bytes, 4096);
    pvalloc as "pvalloc" (bytes: usize) -> Pointer, else early(bytes.next_multiple_of(4096), 4096);
    pthread_create as "pthread_create" (thread: *mut libc::pthread_t, attributes: *const libc::pthread_attr_t, start: StartRoutine, argument: Pointer) -> c_int, else libc::EAGAIN;
    epoll_wait as "epoll_wait" (epoll: c_int, events: *mut libc::epoll_event, most: c_int, timeout: c_int) -> c_int, else -1;
    epoll_pwait as "epoll_pwait" (epoll: c_int, events: *mut libc::epoll_event, most: c_int, timeout: c_int, mask: *const libc::sigset_t) -> c_int, else -1;
    semop as "semop" (set: c_int, operations: *mut libc::sembuf, count: usize) -> c_int, else -1;
    semtimedop as "semtimedop" (set: c_int, operations: *mut libc::sembuf, count: usize, timeout: *const libc::timespec) -> c_int, else -1;
    sigtimedwait as "sigtimedwait" (signals: *const libc::sigset_t, information: *mut libc::siginfo_t, timeout: *const libc::timespec) -> c_int, else -1;
    sigwaitinfo as "sigwaitinfo" (signals: *const libc::sigset_t, information: *mut libc::siginfo_t) -> c_int, else -1;
    epoll_pwait2 as "epoll_pwait2" (epoll: c_int, events: *mut libc::epoll_event, most: c_int, timeout: *const libc::timespec, mask: *const libc::sigset_t) -> c_int, else -1;
    read as "read" (fd: c_int, to: Pointer, bytes: usize) -> isize, else raw(libc::SYS_read, [fd as usize, to as usize, bytes, 0, 0, 0]);
    readv as "readv" (fd: c_int, pieces: *const libc::iovec, count: c_int) -> isize,
        else raw(libc::SYS_readv, [fd as usize, pieces as usize, count as usize, 0, 0, 0]);
    write as "write" (fd: c_int, from: *const c_void, bytes: usize) -> isize, else raw(libc::SYS_write, [fd as usize, from as usize, bytes, 0, 0, 0]);
    writev as "writev" (fd: c_int, pieces: *const libc::iovec, count: c_int) -> isize,
        else raw(libc::SYS_writev, [fd as usize, pieces as usize, count as usize, 0, 0, 0]);
    recv as "recv" (fd: c_int, to: Pointer, bytes: usize, flags: c_int) -> isize,
        else raw(libc::SYS_recvfrom, [fd as usize, to as usize, bytes, flags as usize, 0, 0]);
    recvfrom as "recvfrom" (fd: c_int, to: Pointer, bytes: usize, flags: c_int, from: *mut libc::sockaddr, from_bytes: *mut libc::socklen_t) -> isize,
        else raw(libc::SYS_recvfrom, [fd as usize, to as usize, bytes, flags as usize, from as usize, from_bytes as usize]);
    recv_chk as "__recv_chk" (fd: c_int, to: Pointer, bytes: usize, room: usize, flags: c_int) -> isize, else Default::default();
    recvfrom_chk as "__recvfrom_chk" (fd: c_int, to: Pointer, bytes: usize, room: usize, flags: c_int, from: *mut libc::sockaddr, from_bytes: *mut libc::socklen_t) -> isize, else Default::default();
    read_chk as "__read_chk" (fd: c_int, to: Pointer, bytes: usize, room: usize) -> isize, else Default::default();
    getrandom as "getrandom" (to: Pointer, bytes: usize, flags: u32) -> isize,
        else raw(libc::SYS_getrandom, [to as usize, bytes, flags as usize, 0, 0, 0]);
    poll as "poll" (first: *mut libc::pollfd, count: libc::nfds_t, ms: c_int) -> c_int,
        else raw(libc::SYS_poll, [first as usize, count as usize, ms as usize, 0, 0, 0]) as c_int;
    recvmsg as "recvmsg" (fd: c_int, message: *mut libc::msghdr, flags: c_int) -> isize,
        else raw(libc::SYS_recvmsg, [fd as usize, message as usize, flags as usize, 0, 0, 0]);
    send as "send" (fd: c_int, from: *const c_void, bytes: usize, flags: c_int) -> isize,
        else raw(libc::SYS_sendto, [fd as usize, from as usize, bytes, flags as usize, 0, 0]);
    sendto as "sendto" (fd: c_int, from: *const c_void, bytes: usize, flags: c_int, to: *const libc::sockaddr, to_bytes: libc::socklen_t) -> isize,
        else raw(libc::SYS_sendto, [fd as usize, from as usize, bytes, flags as usize, to as usize, to_bytes as usize]);
    sendmsg as "sendmsg" (fd: c_int, message: *const libc::msghdr, flags: c_int) -> isize,
        else raw(libc::SYS_sendmsg, [fd as usize, message as usize, flags as usize, 0, 0, 0]);
    sendfile as "sendfile" (to: c_int, from: c_int, offset: *mut libc::off_t, bytes: usize) -> isize,
        else raw(libc::SYS_sendfile, [to as usize, from as usize, offset as usize, bytes, 0, 0]);
    accept as "accept" (fd: c_int, from: *mut libc::sockaddr, bytes: *mut libc::socklen_t) -> c_int,
        else raw(libc::SYS_accept, [fd as usize, from as usize, bytes as usize, 0, 0, 0]) as c_int;
    accept4 as "accept4" (fd: c_int, from: *mut libc::sockaddr, bytes: *mut libc::socklen_t, flags: c_int) -> c_int,
        else raw(libc::SYS_accept4, [fd as usize, from as usize, bytes as usize, flags as usize, 0, 0]) as c_int;
    connect as "connect" (fd: c_int, to: *const libc::sockaddr, bytes: libc::socklen_t) -> c_int,
        else raw(libc::SYS_connect, [fd as usize, to as usize, bytes as usize, 0, 0, 0]) as c_int;
    chroot as "chroot" (path: *const c_char) -> c_int, else -1;
    setns as "setns" (descriptor: c_int, kind: c_int) -> c_int, else -1;
    unshare as "unshare" (flags: c_int) -> c_int, else -1;
    dlclose as "dlclose" (handle: Pointer) -> c_int, else -1;
    end as "_exit" (status: c_int) -> (), else Default::default();
    prctl as "prctl" (option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int, else -1;
}

impl Real {
    /// Calls the next library's function of this name, or `free` where it has none.
    ///
    /// # Safety
    /// As for that function.
    pub(crate) unsafe fn free_sized(&self, old: Pointer, bytes: usize) {
        static NEXT: Rare = Rare::new(c"free_sized");
        let next = NEXT.get();
        // SAFETY: a C library's symbol of this name has this type; the arguments are the caller's.
        unsafe {
            if next.is_null() {
                self.free(old);
            } else {
                let next: unsafe extern "C-unwind" fn(Pointer, usize) = transmute(next);
                next(old, bytes);
            }
        }
    }

    /// Calls the next library's function of this name, or `free` where it has none.
    ///
    /// # Safety
    /// As for that function.
    pub(crate) unsafe fn free_aligned_sized(&self, old: Pointer, alignment: usize, bytes: usize) {
        static NEXT: Rare = Rare::new(c"free_aligned_sized");
        let next = NEXT.get();
        // SAFETY: a C library's symbol of this name has this type; the arguments are the caller's.
        unsafe {
            if next.is_null() {
                self.free(old);
            } else {
                let next: unsafe extern "C-unwind" fn(Pointer, usize, usize) = transmute(next);
                next(old, alignment, bytes);
            }
        }
    }

    /// Where the next library's `malloc` is.
    pub(crate) fn malloc_at(&self) -> *const c_void {
        self.malloc.load(Ordering::Relaxed)
    }
}

/// A function that most libraries lack. It is looked up when it is called: the message that there is none takes memory of the
/// allocator, which a program that allocates nothing would pay for at its beginning.
struct Rare {
    name: &'static CStr,
    is_known: AtomicBool,
    found: AtomicPtr<c_void>,
}

impl Rare {
    const fn new(name: &'static CStr) -> Rare {
        Rare {
            name,
            is_known: AtomicBool::new(false),
            found: AtomicPtr::new(null_mut()),
        }
    }

    fn get(&self) -> *mut c_void {
        if !self.is_known.load(Ordering::Acquire) {
            // SAFETY: the name is a C string; null is a valid answer.
            let found =
                keeping_errno(|| unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) });
            self.found.store(found, Ordering::Relaxed);
            self.is_known.store(true, Ordering::Release);
        }
        self.found.load(Ordering::Relaxed)
    }
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
        // SAFETY: a C string; null is a valid answer.
        SYSCALL.store(
            unsafe { libc::dlsym(libc::RTLD_NEXT, c"syscall".as_ptr()) },
            Ordering::Release,
        );
    });
    PROGRESS.store(RESOLVED, Ordering::Release);
}

/// The next library's `syscall`, for the wrapper that must not have a frame of its own.
pub(crate) static SYSCALL: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// Runs something that may change `errno`, and puts it back.
pub(crate) fn keeping_errno<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: the C library's address of this thread's errno is always valid.
    unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        let result = work();
        *errno = before;
        result
    }
}

/// Sets `errno`.
pub(crate) fn set_errno(value: c_int) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = value };
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
