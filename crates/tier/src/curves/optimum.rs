//! The fewest slow touches that are possible, as whoever knows the future would have them.
//!
//! Belady (1966) with the right to let a page pass by, at the resolution of intervals. Between two touches of a page, in intervals
//! `a` and `b`, either its memory is kept for it all the time, or its touch in `b` is slow. To keep as many as possible where no
//! more than C can be kept at once is to choose intervals for C machines: taking them by their ends, each for the machine that
//! became free last before its beginning, is optimal (Faigle and Nawijn 1995; Carlisle and Lloyd 1995). That needs no look
//! into the future, and machines differ by when they became free alone, so that it costs nothing by page.

use super::PriorTouches;
use crate::model::Model;
use crate::replay::{Outcome, Owned};
use crate::stream::Stream;

/// For each interval, machines that are free since then; where there are any, as bits of three levels.
struct FreeSince {
    machines: Vec<u64>,
    levels: [Vec<u64>; 3],
}

impl FreeSince {
    fn new(intervals: usize) -> FreeSince {
        let words = |n: usize| vec![0; n.div_ceil(64)];
        let (a, b) = (intervals.div_ceil(64), intervals.div_ceil(64 * 64));
        FreeSince {
            machines: vec![0; intervals],
            levels: [words(intervals), words(a), words(b)],
        }
    }

    fn add(&mut self, since: usize, machines: u64) {
        self.machines[since] += machines;
        let mut at = since;
        for level in &mut self.levels {
            level[at / 64] |= 1 << (at % 64);
            at /= 64;
        }
    }

    fn take(&mut self, since: usize, machines: u64) {
        self.machines[since] -= machines;
        if self.machines[since] > 0 {
            return;
        }
        let mut at = since;
        for level in &mut self.levels {
            level[at / 64] &= !(1 << (at % 64));
            if level[at / 64] != 0 {
                break;
            }
            at /= 64;
        }
    }

    /// The last at or before `until` since when any is free.
    fn last(&self, until: usize) -> Option<usize> {
        // Bits up to and with `at` of its word.
        let below = |level: &[u64], at: usize| {
            let bits = level[at / 64] << (63 - at % 64);
            (bits != 0).then(|| at - bits.leading_zeros() as usize)
        };
        let highest =
            |level: &[u64], word: usize| word * 64 + 63 - level[word].leading_zeros() as usize;
        let [fine, middle, coarse] = &self.levels;
        if let Some(found) = below(fine, until) {
            return Some(found);
        }
        let word = (until / 64).checked_sub(1)?;
        if let Some(word) = below(middle, word) {
            return Some(highest(fine, word));
        }
        let block = (word / 64).checked_sub(1)?;
        let block = match below(coarse, block) {
            Some(block) => block,
            None => {
                let before = (0..block / 64).rev().find(|&w| coarse[w] != 0)?;
                highest(coarse, before)
            }
        };
        Some(highest(fine, highest(middle, block)))
    }
}

/// What is kept in a memory of a size.
pub struct Keeper {
    free: FreeSince,
    /// Touches that found their page gone, so far.
    pub slow: u64,
    /// Those that found it.
    pub kept: u64,
}

impl Keeper {
    /// A memory of so many pages, for so many intervals.
    pub fn new(pages: u64, intervals: usize) -> Keeper {
        let mut free = FreeSince::new(intervals.max(1));
        if pages > 0 {
            free.add(0, pages);
        }
        Keeper {
            free,
            slow: 0,
            kept: 0,
        }
    }

    /// So many pages were touched in interval `last` and then in `now`, of the intervals in ascending order: says how many of
    /// them were kept in between.
    pub fn keep(&mut self, last: u32, now: u32, pages: u64) -> u64 {
        let mut left = pages;
        while left > 0 {
            let Some(since) = self.free.last(last as usize) else {
                break;
            };
            let take = left.min(self.free.machines[since]);
            self.free.take(since, take);
            self.free.add(now as usize, take);
            left -= take;
        }
        self.slow += left;
        self.kept += pages - left;
        pages - left
    }
}

/// What the optimum makes of a stream with a fastest tier of so many pages. Of pages that are alike (touched in the same two intervals)
/// those with lower addresses are kept. Its moves are those that its choice makes at the least; its time is the least that any
/// policy can take.
pub fn outcome(stream: &Stream, model: &Model, pages: u64) -> Outcome {
    const NEVER: u32 = u32::MAX;
    let slots = stream.slots() as usize;
    let mut outcome = Outcome {
        slow_by_group: vec![0; stream.groups.len()],
        ..Outcome::default()
    };
    let mut groups = PriorTouches::new(stream);
    let mut keeper = Keeper::new(pages, stream.intervals().len());
    let mut owned = Owned::new(stream);
    let mut last = vec![NEVER; slots];
    let mut in_fastest = vec![false; slots];
    let mut kept = vec![0_u64; stream.intervals().len()];
    let mut freed = stream.freed.iter().peekable();
    for interval in 0..stream.intervals().len() {
        while let Some(change) = freed.next_if(|c| c.interval as usize <= interval) {
            for slot in change.first..change.end {
                groups.free(slot);
                last[slot as usize] = NEVER;
            }
        }
        owned.go_to(interval);
        for run in stream.runs(interval) {
            groups.touch(run.first, run.end, interval as u32);
        }
        for &(before, touches) in groups.close().by_interval {
            kept[before as usize] = keeper.keep(before, interval as u32, touches);
        }
        for run in stream.runs(interval) {
            for slot in run.first as usize..run.end as usize {
                let before = std::mem::replace(&mut last[slot], interval as u32);
                let was_in = std::mem::replace(&mut in_fastest[slot], true);
                let Some(left) = kept.get_mut(before as usize) else {
                    outcome.found[0] += 1;
                    continue;
                };
                if *left > 0 {
                    *left -= 1;
                    outcome.found[0] += 1;
                    outcome.promoted += u64::from(!was_in);
                } else {
                    outcome.found[1] += 1;
                    outcome.slow_by_group[owned.group[slot] as usize] += 1;
                    outcome.demoted += u64::from(was_in);
                    in_fastest[slot] = false;
                }
            }
        }
    }
    let extra = model.least_extra(stream, pages, keeper.slow);
    outcome.modelled_ns = model.run(stream, extra);
    outcome
}
