//! Which thread writes which record at the moment: what a thread leaves half-written by its end, another one gives up.

use std::sync::atomic::{AtomicU32, Ordering};

use varve_preload_abi::{Reservation, RingWriter};

use crate::sys;
use crate::thread::Thread;

/// Threads that are followed at the same time. What more of them leave behind stays until the program ends.
const THREADS: usize = 4096;
static ALL: [Reservation; THREADS] = [const { Reservation::new() }; THREADS];
/// That of all others.
static OTHERS: Reservation = Reservation::new();
/// How many of them have been used.
static USED: AtomicU32 = AtomicU32::new(0);
/// Where a new thread looks for one, and at how many.
static NEXT: AtomicU32 = AtomicU32::new(0);
const LOOKED_AT: u32 = 8;
/// Every so many records of a thread it looks for what others have left.
const LOOK_EVERY: u32 = 64;

/// The calling thread's.
#[inline]
pub(crate) fn of(thread: &Thread, ring: &RingWriter) -> &'static Reservation {
    let tid = thread.tid();
    let number = thread.reservation.get();
    let records = thread.records.get().wrapping_add(1);
    thread.records.set(records);
    if records.is_multiple_of(LOOK_EVERY) {
        give_up_for_others(ring);
    }
    match ALL.get((number as usize).wrapping_sub(1)) {
        Some(own) if own.tid() == tid => own,
        _ => claim(thread, tid, ring),
    }
}

#[cold]
fn claim(thread: &Thread, tid: u32, ring: &RingWriter) -> &'static Reservation {
    let used = all().len();
    let is_taken = |index: &usize| {
        let of = &ALL[*index];
        let before = of.tid();
        let is_mine = (before == 0 || sys::is_gone(before)) && of.claim(before, tid);
        if is_mine {
            ring.give_up(before, of, all());
        }
        is_mine
    };
    // Where a thread is gone, as many have ended in programs that make them all the time; few are looked at.
    let first = NEXT.fetch_add(LOOKED_AT, Ordering::Relaxed) as usize;
    let again = (first..first + LOOKED_AT as usize).filter(|_| used > 0);
    let found = again
        .map(|index| index % used)
        .find(is_taken)
        .or_else(|| (used..THREADS).take(LOOKED_AT as usize).find(is_taken));
    let Some(index) = found else {
        return &OTHERS;
    };
    USED.fetch_max(index as u32 + 1, Ordering::AcqRel);
    thread.reservation.set(index as u32 + 1);
    &ALL[index]
}

/// Those that have been used.
fn all() -> &'static [Reservation] {
    &ALL[..(USED.load(Ordering::Acquire) as usize).min(THREADS)]
}

/// Gives up what the calling thread has left by a jump.
pub(crate) fn give_up_own(thread: &Thread, ring: &RingWriter) {
    let own = of(thread, ring);
    if !std::ptr::eq(own, &raw const OTHERS) {
        ring.give_up(thread.tid(), own, all());
    }
}

/// Gives up what threads that are gone have left.
pub(crate) fn give_up_for_others(ring: &RingWriter) {
    ring.give_up_for_others(all(), sys::is_gone);
}

/// In a forked child, which has a ring of its own.
pub(crate) fn recover_after_fork() {
    let used = (USED.swap(0, Ordering::AcqRel) as usize).min(THREADS);
    ALL[..used].iter().for_each(Reservation::reset);
}
