//! How many touches would find their page in the slow memory, against the size of the fast one.
//!
//! Within an interval the order of touches is not known. What is counted is therefore defined so:
//!
//! - A *touch* is a page in an interval in which it was accessed, however often.
//! - The first touch of a page's life is never slow by itself: the page is made where there is room.
//! - [`Distances`] (LRU) takes the touches of an interval in the order of addresses, each page once. Beside that stand bounds that hold
//!   for every order: [`Bounds`].
//! - [`optimum`] knows the future, and pages that it keeps from one interval to the next are at hand whatever the order there.
//!   It is the smallest number of slow touches that any placement can have which holds no more pages than fit at the end of each
//!   interval, and fetches a page only when it is touched; whoever fetches one without a touch has its data come from the slow
//!   memory just the same, and is charged as for a slow touch.

mod distances;
mod groups;
pub mod optimum;

pub use distances::{Distances, Histogram};
pub use groups::{Bounds, PriorTouches};

use crate::stream::Stream;

/// Everything that one pass over a stream says about all sizes of memory.
#[derive(Clone, Debug, Default)]
pub struct Curves {
    /// LRU, touches of an interval in the order of addresses.
    pub lru: Histogram,
    /// LRU in any order, at least and at most.
    pub bounds: Bounds,
    /// For each of the sizes that were asked for: the optimum.
    pub optimum: Vec<u64>,
}

/// Draws the curves; the optimum for each of `sizes`, in pages.
pub fn curves(stream: &Stream, sizes: &[u64]) -> Curves {
    let mut groups = PriorTouches::new(stream);
    let mut distances = Distances::new(stream.slots());
    let mut bounds = Bounds::new(stream);
    let mut keepers: Vec<optimum::Keeper> = sizes
        .iter()
        .map(|&pages| optimum::Keeper::new(pages, stream.intervals().len()))
        .collect();
    let mut freed = stream.freed.iter().peekable();
    for interval in 0..stream.intervals().len() {
        while let Some(change) = freed.next_if(|c| c.interval as usize <= interval) {
            for slot in change.first..change.end {
                distances.free(slot);
                if let Some(last) = groups.free(slot) {
                    bounds.free(last);
                }
            }
        }
        for run in stream.runs(interval) {
            distances.touch(run.first, run.end);
            groups.touch(run.first, run.end, interval as u32);
        }
        let prior = groups.close();
        bounds.close(interval as u32, prior.fresh, prior.by_interval);
        for keeper in &mut keepers {
            for &(last, touches) in prior.by_interval {
                keeper.keep(last, interval as u32, touches);
            }
        }
    }
    Curves {
        lru: distances.histogram,
        bounds,
        optimum: keepers.iter().map(|k| k.slow).collect(),
    }
}

#[cfg(test)]
mod tests;
