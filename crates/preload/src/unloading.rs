//! Libraries that are unloaded: where their code lay, for those that no look from outside has found.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use varve_preload_abi::{Event, MAX_FRAMES};

use crate::process::{attached, emit};
use crate::{sys, thread};

/// Libraries whose end is told without a limit, and how long it is then not told again: a program may load and unload one
/// all the time.
const MAX_UNLOADS: u32 = 64;
const UNLOADS_EVERY_NS: u64 = 10_000_000;
static UNLOADS: AtomicU32 = AtomicU32::new(0);
static UNLOADED_AT: AtomicU64 = AtomicU64::new(0);

/// Tells where the code of a library lies that is about to be unloaded. It makes no system call: a program that has confined
/// itself may unload libraries.
pub(crate) fn tell(library: &Unloading<'_>) {
    let now = sys::now_ns();
    let before = UNLOADED_AT.load(Ordering::Relaxed);
    if UNLOADS.load(Ordering::Relaxed) >= MAX_UNLOADS && now < before + UNLOADS_EVERY_NS {
        return;
    }
    UNLOADS.fetch_add(1, Ordering::Relaxed);
    UNLOADED_AT.store(now, Ordering::Relaxed);
    let mut words = [0u64; MAX_FRAMES];
    // A path that is longer tells nobody which file it is.
    let Some(path) = words.get_mut(..library.path.len().div_ceil(8)) else {
        return;
    };
    for (word, bytes) in path.iter_mut().zip(library.path.chunks(8)) {
        let mut whole = [0; 8];
        whole[..bytes.len()].copy_from_slice(bytes);
        *word = u64::from_ne_bytes(whole);
    }
    let thread = thread::current();
    thread.enter(|_| {
        if let Some(ring) = attached() {
            let event = Event::Unloads {
                start: library.code.start,
                end: library.code.end,
                offset: library.offset,
                path,
            };
            emit(&ring, thread, now, 0, event);
        }
    });
}

/// A library that is about to be unloaded.
pub(crate) struct Unloading<'a> {
    /// Where its code lies.
    pub(crate) code: Range<u64>,
    /// Where that is in the file.
    pub(crate) offset: u64,
    /// The file, as the loader was asked for it.
    pub(crate) path: &'a [u8],
}
