//! What is the same whatever the order within intervals: when the pages of an interval were touched before.

use super::Histogram;
use crate::stream::{Slot, Stream};

const NEVER: u32 = u32::MAX;

/// When the pages that are touched in an interval were touched before.
pub struct PriorTouches {
    /// The interval of each slot's last touch.
    last: Vec<u32>,
    /// Touches of the open interval by the interval of the touch before.
    counts: Vec<u32>,
    /// The intervals that have such.
    used: Vec<u32>,
    fresh: u64,
    by_interval: Vec<(u32, u64)>,
}

/// The touches of an interval.
#[derive(Clone, Copy, Debug)]
pub struct Prior<'a> {
    /// Touches that are the first of a page's life.
    pub fresh: u64,
    /// The others, by the interval of the page's touch before, in ascending order.
    pub by_interval: &'a [(u32, u64)],
}

impl PriorTouches {
    /// Nothing was touched.
    pub fn new(stream: &Stream) -> PriorTouches {
        PriorTouches {
            last: vec![NEVER; stream.slots() as usize],
            counts: vec![0; stream.intervals().len()],
            used: Vec::new(),
            fresh: 0,
            by_interval: Vec::new(),
        }
    }

    /// The interval of the last touch of a slot; None where it was not touched in this life.
    pub fn last(&self, slot: Slot) -> Option<u32> {
        Some(self.last[slot as usize]).filter(|&l| l != NEVER)
    }

    /// Slots are touched in an interval, each once.
    #[inline]
    pub fn touch(&mut self, first: Slot, end: Slot, interval: u32) {
        for last in &mut self.last[first as usize..end as usize] {
            let before = std::mem::replace(last, interval);
            match self.counts.get_mut(before as usize) {
                None => self.fresh += 1,
                Some(count) => {
                    if *count == 0 {
                        self.used.push(before);
                    }
                    *count += 1;
                }
            }
        }
    }

    /// A page is given back; says when it was touched last.
    pub fn free(&mut self, slot: Slot) -> Option<u32> {
        let last = std::mem::replace(&mut self.last[slot as usize], NEVER);
        Some(last).filter(|&l| l != NEVER)
    }

    /// Ends an interval.
    pub fn close(&mut self) -> Prior<'_> {
        self.used.sort_unstable();
        self.by_interval.clear();
        for last in self.used.drain(..) {
            let count = std::mem::take(&mut self.counts[last as usize]);
            self.by_interval.push((last, count.into()));
        }
        Prior {
            fresh: std::mem::take(&mut self.fresh),
            by_interval: &self.by_interval,
        }
    }
}

/// Stack distances in any order: at least and at most so many other pages were touched since.
#[derive(Clone, Debug, Default)]
pub struct Bounds {
    /// Pages that live, by the interval of their last touch.
    alive: Sums,
    /// The same with those that were given back, which took the room of others before.
    ever: Sums,
    /// Other pages touched in the intervals between the two touches alone.
    pub at_least: Histogram,
    /// And in the two intervals themselves.
    pub at_most: Histogram,
}

/// Numbers by interval, as a Fenwick tree.
#[derive(Clone, Debug, Default)]
struct Sums {
    tree: Vec<u64>,
    plain: Vec<u64>,
}

impl Sums {
    fn new(intervals: usize) -> Sums {
        Sums {
            tree: vec![0; intervals + 1],
            plain: vec![0; intervals],
        }
    }

    fn add(&mut self, interval: u32, by: i64) {
        let of = &mut self.plain[interval as usize];
        *of = of.wrapping_add_signed(by);
        let mut i = interval as usize + 1;
        while i < self.tree.len() {
            self.tree[i] = self.tree[i].wrapping_add_signed(by);
            i += i & i.wrapping_neg();
        }
    }

    /// The sum of those before an interval.
    fn before(&self, interval: u32) -> u64 {
        let (mut sum, mut i) = (0, interval as usize);
        while i > 0 {
            sum += self.tree[i];
            i &= i - 1;
        }
        sum
    }
}

impl Bounds {
    /// Nothing was touched.
    pub fn new(stream: &Stream) -> Bounds {
        let intervals = stream.intervals().len();
        Bounds {
            alive: Sums::new(intervals),
            ever: Sums::new(intervals),
            ..Bounds::default()
        }
    }

    /// A page that was touched last in that interval is given back.
    pub fn free(&mut self, last: u32) {
        self.alive.add(last, -1);
    }

    /// Ends an interval of which it is known when its pages were touched before.
    pub fn close(&mut self, interval: u32, fresh: u64, prior: &[(u32, u64)]) {
        let (alive, ever) = (self.alive.before(interval), self.ever.before(interval));
        // Pages of this interval that were touched before that one, or never.
        let mut earlier = fresh;
        for &(last, touches) in prior {
            let between = alive - self.alive.before(last + 1);
            self.at_least.add(between, touches);
            let since = ever - self.ever.before(last) - 1;
            self.at_most.add(since + earlier, touches);
            earlier += touches;
        }
        for sums in [&mut self.alive, &mut self.ever] {
            for &(last, touches) in prior {
                sums.add(last, -(touches as i64));
            }
            sums.add(interval, earlier as i64);
        }
    }
}
