//! How little memory a program needs, and what it costs: run time against a limit of its memory, from a trace.
//!
//! What a limit costs are pages that are read again and pages that are written; neither first touches nor pages of files that
//! are in memory anyway. Their number follows from the touches, by the kernel's reclaim ([`paged`]), by LRU and by the optimum of
//! [`crate::curves`]; their price is measured on the machine and given here.

mod reclaim;
mod report;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use serde::Serialize;
use varve_model::{Bytes, Duration, PAGE_BYTES};

pub use reclaim::{Paged, paged};
pub use report::{FIT_SCHEMA, Fit, FitRuns, FitWay, limit_files};

use crate::curves::curves;
use crate::knapsack;
use crate::model::Model;
use crate::objects::worth;
use crate::spec::Tiers;
use crate::stream::Stream;

/// What moving a page between memory and swap costs here, nanoseconds of the thread that needs it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct PagePrices {
    /// Reading one, in any order.
    pub read_ns: f64,
    /// Reading one whose neighbour was read just before.
    pub near_read_ns: f64,
    /// Finding one to leave, and writing it.
    pub write_ns: f64,
}

impl PagePrices {
    fn of(&self, paged: &Paged) -> f64 {
        let far = paged.reads - paged.near_reads;
        far as f64 * self.read_ns
            + paged.near_reads as f64 * self.near_read_ns
            + paged.writes as f64 * self.write_ns
    }
}

/// What a run without a limit took.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Unlimited {
    /// Run time.
    pub wall_ns: Duration,
    /// Threads that ran at once, on average; 1 at the least.
    pub parallel: f64,
    /// The most memory that counted at once.
    pub peak: Bytes,
    /// Memory that counts for the limit and is in no page of the trace: the kernel's own for the program.
    pub fixed: Bytes,
}

/// Run time under one way to choose which pages leave.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Predicted {
    /// Pages that move.
    pub paged: Paged,
    /// Modelled run time.
    pub wall_ns: Duration,
    /// Over that without a limit, less 1.
    pub slowdown: f64,
}

/// One size of memory.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FitPoint {
    /// The limit.
    pub memory: Bytes,
    /// Of the most that counted without one.
    pub share: f64,
    /// By the kernel's own reclaim.
    pub kernel: Predicted,
    /// With planned objects kept in memory, and the kernel's reclaim for the rest.
    pub planned: Predicted,
    /// Memory of the objects that are kept.
    pub kept: Bytes,
    /// By LRU: page reads.
    pub lru_reads: u64,
    /// By the optimum: page reads. No choice has fewer.
    pub optimum_reads: u64,
    /// Share of the run's intervals in which more is touched than fits. There pages may be needed more than once in an interval, which the
    /// trace does not show: times are then the least that is to be expected.
    pub unresolved: f64,
}

/// Shares of a memory that planned objects may take: what is left is for everything else.
const KEPT_SHARES: [f64; 2] = [0.6, 0.85];
/// From this share of intervals on, a point's times are bounds.
pub const MAX_UNRESOLVED: f64 = 0.02;

impl FitPoint {
    /// Whether times are the least that is to be expected.
    pub fn is_bound(&self) -> bool {
        self.unresolved > MAX_UNRESOLVED
    }
}

/// Pages of the trace that fit into a limit.
fn room(memory: Bytes, run: &Unlimited) -> u64 {
    memory.0.saturating_sub(run.fixed.0) / PAGE_BYTES
}

/// Draws the curve for limits of memory, in their order.
pub fn fit(
    stream: &Stream,
    run: &Unlimited,
    prices: &PagePrices,
    memories: &[Bytes],
    threads: usize,
    progress: &(dyn Fn(f64) + Sync),
) -> Vec<FitPoint> {
    let rooms: Vec<u64> = memories.iter().map(|m| room(*m, run)).collect();
    let drawn = curves(stream, &rooms);
    let items = values(stream);
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let points: Vec<Mutex<Option<FitPoint>>> = memories.iter().map(|_| Mutex::new(None)).collect();
    thread::scope(|scope| {
        for _ in 0..threads.clamp(1, memories.len().max(1)) {
            scope.spawn(|| {
                while let Some((at, slot)) = {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    points.get(at).map(|slot| (at, slot))
                } {
                    let memory = memories[at];
                    let point = FitPoint {
                        lru_reads: drawn.lru.beyond(rooms[at]),
                        optimum_reads: drawn.optimum[at],
                        ..point(stream, run, prices, memory, &items)
                    };
                    *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(point);
                    let done = done.fetch_add(1, Ordering::Relaxed) + 1;
                    progress(done as f64 / memories.len() as f64);
                }
            });
        }
    });
    let taken =
        |of: Mutex<Option<FitPoint>>| of.into_inner().unwrap_or_else(PoisonError::into_inner);
    points.into_iter().filter_map(taken).collect()
}

/// What groups are worth where each touch counts once.
fn values(stream: &Stream) -> Vec<knapsack::Item> {
    // Which tiers they are does not matter to the order.
    let tiers: Option<Tiers> = ["fast=1GiB,80ns", "slow=inf,5us"]
        .iter()
        .map(|t| t.parse().ok())
        .collect::<Option<Vec<_>>>()
        .and_then(|tiers| Tiers::new(tiers).ok());
    let Some(tiers) = tiers else {
        return Vec::new();
    };
    let model = Model::new(&tiers, stream, crate::Basis::Touches);
    worth(stream, &model, 1).swap_remove(0).items
}

fn point(
    stream: &Stream,
    run: &Unlimited,
    prices: &PagePrices,
    memory: Bytes,
    items: &[knapsack::Item],
) -> FitPoint {
    let room = room(memory, run);
    let predicted = |paged: Paged| {
        let extra = prices.of(&paged) / run.parallel.max(1.0);
        let wall = run.wall_ns.0 as f64 + extra;
        Predicted {
            paged,
            wall_ns: Duration(wall as u64),
            slowdown: extra / (run.wall_ns.0 as f64).max(1.0),
        }
    };
    let kernel = predicted(paged(stream, room, &[]));
    let mut best = (kernel, 0);
    if kernel.paged.reads + kernel.paged.writes > 0 {
        for share in KEPT_SHARES {
            let most = (room as f64 * share) as u64;
            let taken = knapsack::greedy(items, most).taken;
            let pages = items.iter().zip(&taken).filter(|(_, taken)| **taken);
            let pages: u64 = pages.map(|(item, _)| item.size).sum();
            let found = predicted(paged(stream, room, &taken));
            if found.paged.stuck == 0 && found.wall_ns < best.0.wall_ns {
                best = (found, pages);
            }
        }
    }
    let intervals = stream.intervals();
    let beyond = intervals.iter().filter(|i| i.touches > room).count();
    FitPoint {
        memory,
        share: memory.0 as f64 / run.peak.0.max(1) as f64,
        kernel,
        planned: best.0,
        kept: Bytes(best.1 * PAGE_BYTES),
        lru_reads: 0,
        optimum_reads: 0,
        unresolved: beyond as f64 / intervals.len().max(1) as f64,
    }
}

/// The least memory from which on, up to the whole, a curve stays within a slowdown. None where the last point is not.
pub fn least_memory(
    points: &[FitPoint],
    slowdown: f64,
    of: impl Fn(&FitPoint) -> Predicted,
) -> Option<Bytes> {
    let mut points: Vec<&FitPoint> = points.iter().collect();
    points.sort_by_key(|p| std::cmp::Reverse(p.memory));
    let fits = points.iter().take_while(|p| {
        let predicted = of(p);
        predicted.slowdown <= slowdown && predicted.paged.stuck == 0
    });
    fits.last().map(|p| p.memory)
}
