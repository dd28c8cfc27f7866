//! What is known of objects, threads and pages while the fold runs.

use crate::analysis::Reuse;
use crate::chunks::{Dense, clear, has, set};

pub(crate) const WRITTEN: u8 = 1;
pub(crate) const FAULTED: u8 = 2;
pub(crate) const TAIL: u8 = 4;
/// The interval of what was never touched.
pub(crate) const NEVER: u32 = u32::MAX;

/// What more is known of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Marks {
    pub(crate) written: bool,
    pub(crate) huge: bool,
    pub(crate) standing: bool,
}

/// What the fold found out about an object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stats {
    pub(crate) touched: u64,
    pub(crate) touches: u64,
    pub(crate) shared: u64,
    pub(crate) huge: u64,
    pub(crate) standing: u64,
    pub(crate) written: u64,
    pub(crate) cold: u64,
    pub(crate) first_touches: u64,
    pub(crate) reuse: Reuse,
    pub(crate) first_thread: u32,
    /// Entries of it in [`Fold::aside`].
    pub(crate) aside: u32,
    /// It is memory of the recorder.
    pub(crate) own: bool,
}

impl Stats {
    pub(crate) fn new(own: bool) -> Stats {
        Stats {
            touched: 0,
            touches: 0,
            shared: 0,
            huge: 0,
            standing: 0,
            written: 0,
            cold: 0,
            first_touches: 0,
            reuse: Reuse::default(),
            first_thread: NEVER,
            aside: 0,
            own,
        }
    }
}

/// The intervals that touched an object. Every touch comes here, so that this is kept apart from [`Stats`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) intervals: u32,
    pub(crate) first: u32,
    pub(crate) last: u32,
}

impl Seen {
    pub(crate) const NOT: Seen = Seen {
        intervals: 0,
        first: NEVER,
        last: NEVER,
    };

    /// Intervals come in order. No branches: whether an object was touched in this interval already is hard to foresee.
    #[inline]
    pub(crate) fn mark(&mut self, interval: u32) {
        self.intervals += u32::from(self.last != interval);
        self.first = self.first.min(interval);
        self.last = interval;
    }
}

/// A thread of a process, by the position in [`Fold::threads`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct ThreadStats {
    pub(crate) pid: u32,
    pub(crate) tid: u32,
    pub(crate) faults: u64,
    pub(crate) first_touches: u64,
}

/// What a page is to an object that is not its only owner at the moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Aside {
    pub(crate) count: u32,
    pub(crate) flags: u8,
}

/// Counts a page of an object whose life, or whose recording, is over.
pub(crate) fn close(stats: &mut Stats, known: Aside, lives: bool) {
    match known.count {
        0 => return,
        1 => stats.reuse.once.0 += 1,
        2 => stats.reuse.twice.0 += 1,
        _ => stats.reuse.more.0 += 1,
    }
    stats.touched += 1;
    stats.written += u64::from(known.flags & WRITTEN != 0);
    stats.cold += u64::from(lives && known.flags & TAIL == 0);
}

pub(crate) fn flags(dense: &Dense, page: usize) -> u8 {
    (u8::from(has(&dense.written, page)) * WRITTEN)
        | (u8::from(has(&dense.faulted, page)) * FAULTED)
        | (u8::from(has(&dense.tail, page)) * TAIL)
}

pub(crate) fn take_flags(dense: &mut Dense, page: usize) -> u8 {
    let found = flags(dense, page);
    clear(&mut dense.written, page);
    clear(&mut dense.faulted, page);
    clear(&mut dense.tail, page);
    found
}

pub(crate) fn put_flags(dense: &mut Dense, page: usize, flags: u8) {
    for (flag, bits) in [
        (WRITTEN, &mut dense.written),
        (FAULTED, &mut dense.faulted),
        (TAIL, &mut dense.tail),
    ] {
        if flags & flag != 0 {
            set(bits, page, page + 1);
        }
    }
}
