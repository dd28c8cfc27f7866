//! Waits that the kernel does not begin anew after a stop.
//!
//! The recorder holds the program, and that ends `epoll_wait`, `semop` and their kin with `EINTR`, as SIGSTOP does
//! (signal(7)). A program that handles no signal has no reason to expect that: for it they wait on, for what is left of
//! their time. A program with a handler knows `EINTR`, and must see the one that its handler causes.

use std::ffi::c_int;
use std::ptr::null;

use crate::{own, process, real, sys};

/// Signals that the C library handles for itself, to cancel threads and to change user ids in all of them.
const INTERNAL: u64 = 1 << (32 - 1) | 1 << (33 - 1);
const LINE: &[u8] = b"\nSigCgt:\t";

/// Whether a wait that has just ended must go on: it was interrupted, a recorder is there to have done so, and it was
/// not by a handler of the program's.
pub(crate) fn was_held() -> bool {
    // SAFETY: the calling thread's own errno.
    let errno = unsafe { *own::errno() };
    errno == libc::EINTR && has_no_reason_to_expect()
}

/// Whether the program has no reason to expect interruptions, and a recorder is there that causes them.
pub(crate) fn has_no_reason_to_expect() -> bool {
    process::is_recorded()
        // Whether such a program has handlers cannot be looked up: it sees the interruption.
        && !process::is_confined()
        && handled_signals().is_some_and(|signals| signals & !INTERNAL == 0)
}

/// The signals that have handlers: bit n - 1 is signal n.
fn handled_signals() -> Option<u64> {
    let mut words = [0u64; 512];
    let count = sys::ReadFile::open(c"/proc/self/status")?.read(&mut words);
    let mut text = [0u8; size_of::<[u64; 512]>()];
    for (place, word) in text.chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.to_ne_bytes());
    }
    let text = text.get(..count)?;
    let at = text.windows(LINE.len()).position(|line| line == LINE)?;
    let digits = text.get(at + LINE.len()..)?.iter();
    let digits = digits.map_while(|digit| char::from(*digit).to_digit(16));
    Some(digits.fold(0, |sum, digit| sum << 4 | u64::from(digit)))
}

/// When a wait shall end, on the monotonic clock; none: never.
struct Deadline(Option<u64>);

impl Deadline {
    fn in_ms(timeout: c_int) -> Deadline {
        let timeout = u64::try_from(timeout).ok();
        Deadline(timeout.map(|ms| sys::now_ns().saturating_add(ms * 1_000_000)))
    }

    /// # Safety
    /// The pointer is null or points to a time.
    unsafe fn of(timeout: *const libc::timespec) -> Deadline {
        // SAFETY: as the caller says.
        let timeout = unsafe { timeout.as_ref() };
        Deadline(timeout.and_then(|t| {
            let seconds = u64::try_from(t.tv_sec).ok()?.checked_mul(1_000_000_000)?;
            let whole = seconds.checked_add(u64::try_from(t.tv_nsec).ok()?)?;
            sys::now_ns().checked_add(whole)
        }))
    }

    fn left_ns(&self) -> Option<u64> {
        Some(self.0?.saturating_sub(sys::now_ns()))
    }

    /// Rounded up: a wait may be too long, never too short.
    fn left_ms(&self) -> c_int {
        match self.left_ns() {
            Some(ns) => c_int::try_from(ns.div_ceil(1_000_000)).unwrap_or(c_int::MAX),
            None => -1,
        }
    }

    fn left(&self) -> Option<libc::timespec> {
        let ns = self.left_ns()?;
        Some(libc::timespec {
            tv_sec: (ns / 1_000_000_000) as libc::time_t,
            tv_nsec: (ns % 1_000_000_000) as libc::c_long,
        })
    }
}

/// Waits once as asked, and again for what is left of a time as long as the wait is interrupted by a hold.
fn wait_timed(
    timeout: *const libc::timespec,
    deadline: &Deadline,
    wait: impl Fn(*const libc::timespec) -> c_int,
) -> c_int {
    let mut result = wait(timeout);
    while result < 0 && was_held() {
        let left = deadline.left();
        result = wait(left.as_ref().map_or(null(), std::ptr::from_ref));
    }
    result
}

/// As the C library's.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn epoll_wait(
    epoll: c_int,
    events: *mut libc::epoll_event,
    most: c_int,
    timeout: c_int,
) -> c_int {
    let deadline = Deadline::in_ms(timeout);
    // SAFETY: the caller's arguments.
    let mut result = unsafe { real::get().epoll_wait(epoll, events, most, timeout) };
    while result < 0 && was_held() {
        // SAFETY: the same.
        result = unsafe { real::get().epoll_wait(epoll, events, most, deadline.left_ms()) };
    }
    result
}

/// As the C library's.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn epoll_pwait(
    epoll: c_int,
    events: *mut libc::epoll_event,
    most: c_int,
    timeout: c_int,
    mask: *const libc::sigset_t,
) -> c_int {
    let deadline = Deadline::in_ms(timeout);
    // SAFETY: the caller's arguments.
    let mut result = unsafe { real::get().epoll_pwait(epoll, events, most, timeout, mask) };
    while result < 0 && was_held() {
        let left = deadline.left_ms();
        // SAFETY: the same.
        result = unsafe { real::get().epoll_pwait(epoll, events, most, left, mask) };
    }
    result
}

/// As the C library's.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn epoll_pwait2(
    epoll: c_int,
    events: *mut libc::epoll_event,
    most: c_int,
    timeout: *const libc::timespec,
    mask: *const libc::sigset_t,
) -> c_int {
    // SAFETY: null or a time, as the C library asks for.
    let deadline = unsafe { Deadline::of(timeout) };
    // SAFETY: the caller's arguments.
    wait_timed(timeout, &deadline, |timeout| unsafe {
        real::get().epoll_pwait2(epoll, events, most, timeout, mask)
    })
}

/// As the C library's.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn semop(
    set: c_int,
    operations: *mut libc::sembuf,
    count: usize,
) -> c_int {
    // SAFETY: the caller's arguments.
    wait_timed(null(), &Deadline(None), |_| unsafe {
        real::get().semop(set, operations, count)
    })
}

/// As the C library's.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn semtimedop(
    set: c_int,
    operations: *mut libc::sembuf,
    count: usize,
    timeout: *const libc::timespec,
) -> c_int {
    // SAFETY: null or a time, as the C library asks for.
    let deadline = unsafe { Deadline::of(timeout) };
    // SAFETY: the caller's arguments.
    wait_timed(timeout, &deadline, |timeout| unsafe {
        real::get().semtimedop(set, operations, count, timeout)
    })
}

/// As the C library's.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sigtimedwait(
    signals: *const libc::sigset_t,
    information: *mut libc::siginfo_t,
    timeout: *const libc::timespec,
) -> c_int {
    // SAFETY: null or a time, as the C library asks for.
    let deadline = unsafe { Deadline::of(timeout) };
    // SAFETY: the caller's arguments.
    wait_timed(timeout, &deadline, |timeout| unsafe {
        real::get().sigtimedwait(signals, information, timeout)
    })
}

/// As the C library's.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sigwaitinfo(
    signals: *const libc::sigset_t,
    information: *mut libc::siginfo_t,
) -> c_int {
    // SAFETY: the caller's arguments.
    wait_timed(null(), &Deadline(None), |_| unsafe {
        real::get().sigwaitinfo(signals, information)
    })
}
