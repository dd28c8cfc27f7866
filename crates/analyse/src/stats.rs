//! What is known of objects, threads and pages while the fold runs.

use crate::analysis::Reuse;

pub(crate) const WRITTEN: u8 = 1;
pub(crate) const FAULTED: u8 = 2;
pub(crate) const TAIL: u8 = 4;
/// The interval of what was never touched.
pub(crate) const NEVER: u32 = u32::MAX;

/// What the fold found out about an object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stats {
    pub(crate) touched: u64,
    pub(crate) touches: u64,
    pub(crate) shared: u64,
    pub(crate) huge: u64,
    pub(crate) standing: u64,
    /// Touches of its pages, each divided by the objects that lie on the page, in parts of [`SHARE`].
    pub(crate) divided: u128,
    /// Page touches that others may have made.
    pub(crate) possibly: u64,
    pub(crate) written: u64,
    pub(crate) cold: u64,
    pub(crate) first_touches: u64,
    /// Page faults in it, while it was there.
    pub(crate) faults: u64,
    pub(crate) reuse: Reuse,
    pub(crate) first_thread: u32,
    /// Entries of it in [`Fold::shared_pages`].
    pub(crate) shared_pages: u32,
    /// It is memory of the recorder.
    pub(crate) own: bool,
}

/// Into so many parts a touch is divided: sums of whole numbers do not depend on the order in which chunks are looked at.
pub(crate) const SHARE: u128 = 720_720;

impl Stats {
    pub(crate) fn new(own: bool) -> Stats {
        Stats {
            touched: 0,
            touches: 0,
            shared: 0,
            divided: 0,
            huge: 0,
            standing: 0,
            possibly: 0,
            written: 0,
            cold: 0,
            first_touches: 0,
            faults: 0,
            reuse: Reuse::default(),
            first_thread: NEVER,
            shared_pages: 0,
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
pub(crate) struct SharedPage {
    pub(crate) count: u32,
    pub(crate) flags: u8,
}

/// What a page was to an object in the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Closed {
    pub(crate) touched: bool,
    pub(crate) written: bool,
    pub(crate) cold: bool,
}

/// Counts a page of an object whose life, or whose recording, is over.
pub(crate) fn close(stats: &mut Stats, known: SharedPage, lives: bool) -> Closed {
    match known.count {
        0 => return Closed::default(),
        1 => stats.reuse.once.0 += 1,
        2 => stats.reuse.twice.0 += 1,
        _ => stats.reuse.more.0 += 1,
    }
    let closed = Closed {
        touched: true,
        written: known.flags & WRITTEN != 0,
        cold: lives && known.flags & TAIL == 0,
    };
    stats.touched += 1;
    stats.written += u64::from(closed.written);
    stats.cold += u64::from(closed.cold);
    closed
}
