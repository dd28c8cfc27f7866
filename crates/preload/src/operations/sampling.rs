//! Sampled blocks: one to so many bytes of allocations, with the stack that allocated it and its end.
//!
//! Each byte is as likely as any other to be the one at which a block is sampled (a Poisson process over the bytes that a thread
//! allocates, as in tcmalloc), so that a block of `s` bytes is sampled with the probability `1 - exp(-s / mean)`.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::thread::{self, Thread};
use crate::{events, sys};

/// Bytes from one sampled block to the next, on average; 0: none is sampled.
static MEAN: AtomicU64 = AtomicU64::new(0);
/// Where nothing is sampled, it is looked again after so much.
const FAR: i64 = 1 << 60;

/// The settings were read.
pub(crate) fn set_mean(bytes: u64) {
    MEAN.store(bytes.min(1 << 40), Ordering::Relaxed);
}

/// A block that is sampled, to be reported.
#[derive(Clone, Copy)]
pub(crate) struct Sampled {
    address: u64,
    bytes: u64,
    /// Nanoseconds.
    since: u64,
}

impl Sampled {
    #[cold]
    #[inline(never)]
    pub(crate) fn report(self) {
        events::sampled(self.address, self.bytes, self.since);
    }
}

/// A block was allocated; whether it is sampled. Asked before the block counts as alive: a peak that it makes is no earlier than itself.
#[inline(always)]
pub(crate) fn allocated(object: *mut c_void, bytes: usize) -> Option<Sampled> {
    let thread = thread::current();
    let left = thread
        .until_sample
        .get()
        .saturating_sub_unsigned(bytes as u64);
    thread.until_sample.set(left);
    match left < 0 {
        true => is_due(thread, object, bytes),
        false => None,
    }
}

#[cold]
#[inline(never)]
fn is_due(thread: &Thread, object: *mut c_void, bytes: usize) -> Option<Sampled> {
    let mean = MEAN.load(Ordering::Relaxed);
    if mean == 0 {
        thread.until_sample.set(FAR);
        return None;
    }
    if thread.sample_random.get() == 0 {
        // The thread's first: nothing was drawn yet.
        thread
            .sample_random
            .set(u64::from(thread.tid()) << 32 | 0x9e37_79b9);
        let first = distance(thread, mean).saturating_sub_unsigned(bytes as u64);
        if first >= 0 {
            thread.until_sample.set(first);
            return None;
        }
    }
    thread.until_sample.set(distance(thread, mean));
    (!object.is_null()).then(|| Sampled {
        address: object as u64,
        bytes: bytes as u64,
        since: sys::now_ns(),
    })
}

/// The number after another one, neither of them 0 (Marsaglia, Xorshift RNGs, 2003).
pub(super) fn next_random(mut random: u64) -> u64 {
    random ^= random << 13;
    random ^= random >> 7;
    random ^ random << 17
}

/// How many bytes to the next one: exponentially distributed.
fn distance(thread: &Thread, mean: u64) -> i64 {
    let random = next_random(thread.sample_random.get());
    thread.sample_random.set(random);
    (minus_log2(random | 1) * std::f64::consts::LN_2 * mean as f64) as i64
}

/// The negative binary logarithm of a number between 0 and 1, in units of 2^-64, to 0.001; without the C library's, which is
/// in a library of its own.
fn minus_log2(of: u64) -> f64 {
    let zeros = of.leading_zeros();
    let rest = (of << zeros << 1) as f64 / 18_446_744_073_709_551_616.0;
    // The cubic that meets log2(1 + x) at both ends.
    let log = rest * (1.424_9 + rest * (-0.582_1 + rest * 0.157_2));
    f64::from(zeros) + 1.0 - log
}
