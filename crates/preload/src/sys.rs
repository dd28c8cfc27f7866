//! System calls without the C library: no `errno`, no cancellation, no interposed symbol.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use std::ptr::{NonNull, null_mut};

use crate::{own, process};

/// Makes a system call; a negative result is an error number.
pub(crate) use varve_preload_abi::system_call as call;

/// Maps zeroed memory that is backed only where it is touched.
pub(crate) fn map_anonymous(bytes: usize) -> Option<NonNull<u8>> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a fresh mapping at an address of the kernel's choice touches nothing that exists.
    let result = unsafe {
        call(
            libc::SYS_mmap,
            [0, bytes, protection as usize, flags as usize, usize::MAX, 0],
        )
    };
    if result <= 0 {
        return None;
    }
    NonNull::new(result as *mut u8)
}

/// Maps a file, shared, from its start.
pub(crate) fn map_shared(descriptor: i32, bytes: usize) -> Option<NonNull<u8>> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: as for `map_anonymous`.
    let result = unsafe {
        call(
            libc::SYS_mmap,
            [
                0,
                bytes,
                protection as usize,
                libc::MAP_SHARED as usize,
                descriptor as usize,
                0,
            ],
        )
    };
    if result <= 0 {
        return None;
    }
    NonNull::new(result as *mut u8)
}

/// Unmaps memory of this library's own.
///
/// # Safety
/// Nobody uses the range any more.
pub(crate) unsafe fn unmap(address: NonNull<u8>, bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        call(
            libc::SYS_munmap,
            [address.as_ptr() as usize, bytes, 0, 0, 0, 0],
        )
    };
}

/// Gives the pages of memory of this library's own back; whether they are zeroes now. They stay where they are locked.
///
/// # Safety
/// Nobody needs what is in the range.
pub(crate) unsafe fn discard(address: *mut u8, bytes: usize) -> bool {
    let advice = libc::MADV_DONTNEED as usize;
    let arguments = [address as usize, bytes, advice, 0, 0, 0];
    // SAFETY: the caller's promise.
    unsafe { call(libc::SYS_madvise, arguments) == 0 }
}

/// Maps memory like [`map_anonymous`] at an address where nothing is, which forked children do not inherit; whether
/// that was possible.
pub(crate) fn map_at(address: u64, bytes: u64) -> bool {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags =
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    let (at, length) = (address as usize, bytes as usize);
    // SAFETY: the flag keeps the kernel from replacing what exists.
    let result = unsafe {
        call(
            libc::SYS_mmap,
            [
                at,
                length,
                protection as usize,
                flags as usize,
                usize::MAX,
                0,
            ],
        )
    };
    if result <= 0 {
        return false;
    }
    // SAFETY: advice on the memory just mapped.
    let advised = unsafe {
        call(
            libc::SYS_madvise,
            [
                result as usize,
                length,
                libc::MADV_DONTFORK as usize,
                0,
                0,
                0,
            ],
        )
    };
    // Kernels that do not know the flag take the address as a wish.
    let is_fit = result as usize == at && advised == 0;
    if !is_fit {
        // SAFETY: mapped just now, and nobody knows of it.
        unsafe { unmap_at(result as u64, bytes) };
    }
    is_fit
}

/// Unmaps memory of this library's own.
///
/// # Safety
/// Nobody uses the range any more.
pub(crate) unsafe fn unmap_at(address: u64, bytes: u64) {
    // SAFETY: the caller's promise.
    unsafe {
        call(
            libc::SYS_munmap,
            [address as usize, bytes as usize, 0, 0, 0, 0],
        )
    };
}

pub(crate) fn thread_id() -> u32 {
    // SAFETY: takes no arguments, cannot fail.
    unsafe { call(libc::SYS_gettid, [0; 6]) as u32 }
}

pub(crate) fn process_id() -> u32 {
    // SAFETY: takes no arguments, cannot fail.
    unsafe { call(libc::SYS_getpid, [0; 6]) as u32 }
}

pub(crate) fn parent_id() -> u32 {
    // SAFETY: takes no arguments, cannot fail.
    unsafe { call(libc::SYS_getppid, [0; 6]) as u32 }
}

pub(crate) fn sleep_ns(nanoseconds: i64) {
    let time = libc::timespec {
        tv_sec: 0,
        tv_nsec: nanoseconds,
    };
    // SAFETY: the pointer is to a local; the remainder is not asked for.
    unsafe {
        call(
            libc::SYS_nanosleep,
            [&raw const time as usize, 0, 0, 0, 0, 0],
        )
    };
}

/// Whether the thread runs on its alternate signal stack.
pub(crate) fn is_on_signal_stack() -> bool {
    // SAFETY: all fields may be zero.
    let mut stack: libc::stack_t = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes the struct, which lives here.
    unsafe {
        call(
            libc::SYS_sigaltstack,
            [0, &raw mut stack as usize, 0, 0, 0, 0],
        )
    };
    stack.ss_flags & libc::SS_ONSTACK != 0
}

/// Whether a thread of this process is gone, as far as that may be asked for.
pub(crate) fn is_gone(tid: u32) -> bool {
    if process::is_confined() {
        return false;
    }
    // SAFETY: signal 0 is sent to nobody.
    let result = unsafe {
        call(
            libc::SYS_tgkill,
            [process_id() as usize, tid as usize, 0, 0, 0, 0],
        )
    };
    result == -(libc::ESRCH as isize)
}

/// Signals that a thread's own instruction raises: where they are blocked, they end the program.
const FAULTS: [i32; 6] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGSYS,
];

/// Runs something without any signal that comes from elsewhere: no handler finds it half done, nor leaves it so by a jump.
pub(crate) fn without_signals<T>(work: impl FnOnce() -> T) -> T {
    if process::is_confined() {
        return work();
    }
    const BYTES: usize = 8;
    let faults = FAULTS
        .iter()
        .fold(0u64, |set, number| set | 1 << (number - 1));
    let (all, mut before) = (!faults, 0u64);
    let change = |set: *const u64, old: *mut u64| {
        let how = libc::SIG_SETMASK as usize;
        let arguments = [how, set as usize, old as usize, BYTES, 0, 0];
        // SAFETY: words that live for the call; the mask is of this thread alone.
        unsafe { call(libc::SYS_rt_sigprocmask, arguments) }
    };
    change(&raw const all, &raw mut before);
    let result = work();
    change(&raw const before, null_mut());
    result
}

pub(crate) fn yield_now() {
    // SAFETY: takes no arguments, cannot fail.
    unsafe { call(libc::SYS_sched_yield, [0; 6]) };
}

/// Whether reading the time stamp counter would end the program.
pub(crate) static CLOCK_FORBIDDEN: AtomicBool = AtomicBool::new(false);
/// The time from which on it was so, or some time before.
static LAST_TIME: AtomicU64 = AtomicU64::new(0);

/// Notes the time, for when it cannot be read any more.
pub(crate) fn note_time() {
    LAST_TIME.store(now_ns(), Ordering::Relaxed);
}

/// `CLOCK_MONOTONIC` of the machine, through the vDSO.
///
/// Under strict seccomp the kernel lets no thread read the time stamp counter (`disable_TSC`), and the
/// vDSO would end the program: the time stands still then.
#[inline]
pub(crate) fn now_ns() -> u64 {
    if CLOCK_FORBIDDEN.load(Ordering::Relaxed) {
        return LAST_TIME.load(Ordering::Relaxed);
    }
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: fills a local; with this clock and a valid pointer it neither fails nor sets errno.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    own::of_machine(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// A soft resource limit; `None` for none.
pub(crate) fn limit(resource: u32) -> Option<u64> {
    let mut limit = libc::rlimit64 {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: fills a local; sets nothing.
    let result = unsafe {
        call(
            libc::SYS_prlimit64,
            [0, resource as usize, 0, &raw mut limit as usize, 0, 0],
        )
    };
    (result == 0 && limit.rlim_cur != libc::RLIM64_INFINITY).then_some(limit.rlim_cur)
}

/// Copies as much as can be read from `address` on; returns the bytes copied.
pub(crate) fn peek(address: u64, buffer: &mut [u64]) -> usize {
    let local = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: size_of_val(buffer),
    };
    // One piece per page: the kernel copies whole pieces only up to the first that faults.
    let mut remote = [libc::iovec {
        iov_base: std::ptr::null_mut(),
        iov_len: 0,
    }; 8];
    let mut at = address;
    let end = address.saturating_add(local.iov_len as u64);
    let mut pieces = 0;
    while at < end && pieces < remote.len() {
        let next = ((at | 0xfff) + 1).min(end);
        remote[pieces] = libc::iovec {
            iov_base: at as *mut libc::c_void,
            iov_len: (next - at) as usize,
        };
        pieces += 1;
        at = next;
    }
    // SAFETY: the kernel writes into `buffer` only, and reads the remote side with checks.
    let result = unsafe {
        call(
            libc::SYS_process_vm_readv,
            [
                process_id() as usize,
                &raw const local as usize,
                1,
                remote.as_ptr() as usize,
                pieces,
                0,
            ],
        )
    };
    usize::try_from(result).unwrap_or(0)
}

/// A file that is open for reading, closed on drop.
pub(crate) struct ReadFile {
    descriptor: i32,
}

impl ReadFile {
    /// Opens it; the descriptor does not survive an exec.
    pub(crate) fn open(path: &std::ffi::CStr) -> Option<Self> {
        let at = libc::AT_FDCWD as usize;
        let flags = libc::O_RDONLY | libc::O_CLOEXEC;
        // SAFETY: the path is a C string that outlives the call.
        let descriptor = unsafe {
            call(
                libc::SYS_openat,
                [at, path.as_ptr() as usize, flags as usize, 0, 0, 0],
            )
        };
        (descriptor >= 0).then_some(Self {
            descriptor: descriptor as i32,
        })
    }

    /// The descriptor, which stays this value's.
    pub(crate) fn descriptor(&self) -> i32 {
        self.descriptor
    }

    /// Reads entries of a folder, as getdents64(2) lays them out; the number of bytes, zero at the end or on an error.
    pub(crate) fn entries(&self, buffer: &mut [u64]) -> usize {
        let (place, bytes) = (buffer.as_mut_ptr() as usize, size_of_val(buffer));
        let arguments = [self.descriptor as usize, place, bytes, 0, 0, 0];
        // SAFETY: the kernel writes at most `bytes` bytes of plain integers.
        let read = unsafe { call(libc::SYS_getdents64, arguments) };
        usize::try_from(read).unwrap_or(0)
    }

    /// Goes back to the start.
    pub(crate) fn rewind(&self) {
        let start = libc::SEEK_SET as usize;
        // SAFETY: takes integers.
        unsafe {
            call(
                libc::SYS_lseek,
                [self.descriptor as usize, 0, start, 0, 0, 0],
            )
        };
    }

    /// Reads up to the buffer's size; the number of bytes, zero at the end or on an error.
    pub(crate) fn read(&self, buffer: &mut [u64]) -> usize {
        let bytes = size_of_val(buffer);
        // SAFETY: the same memory, which any bytes may fill.
        self.read_bytes(unsafe {
            std::slice::from_raw_parts_mut(buffer.as_mut_ptr().cast::<u8>(), bytes)
        })
    }

    /// The same for bytes at any place.
    pub(crate) fn read_bytes(&self, buffer: &mut [u8]) -> usize {
        let (place, bytes) = (buffer.as_mut_ptr() as usize, buffer.len());
        let arguments = [self.descriptor as usize, place, bytes, 0, 0, 0];
        // SAFETY: the kernel writes at most `bytes` bytes.
        let read = unsafe { call(libc::SYS_read, arguments) };
        usize::try_from(read).unwrap_or(0)
    }
}

impl Drop for ReadFile {
    fn drop(&mut self) {
        // SAFETY: a descriptor of this value's own; it is not used again.
        unsafe { call(libc::SYS_close, [self.descriptor as usize, 0, 0, 0, 0, 0]) };
    }
}
