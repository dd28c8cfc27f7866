//! How long the program would take: modelled, from where its accesses go.
//!
//! The recorded run is taken for one in which all memory is of the fastest tier. A touch stands for as much time as its accesses
//! took there:
//!
//! - by *touches*, for one access to each of the page's 64 cache lines, but for no more than an equal part of the interval's time;
//! - by *samples*, for the time that the samples of its page in its interval stand for.
//!
//! That time grows as the latency of the tier does which serves the accesses. Where a tier has a bandwidth, its latency rises with
//! the share of it that is used, as that of a queue does: by 1 / (1 - share), 20 times at the most. Pages that move cost what
//! moving takes. The threads that live share all of it, as many as there are CPUs at most.

use serde::Serialize;
use varve_model::{Duration, PAGE_BYTES};

use crate::frames::Moves;
use crate::spec::{MAX_TIERS, Tiers};
use crate::stream::{IntervalFacts, Stream};

/// Bytes of a cache line.
const LINE: f64 = 64.0;
/// Lines of a page.
const LINES: f64 = PAGE_BYTES as f64 / LINE;
/// The share of a bandwidth at which latencies rise no more.
const MAX_LOAD: f64 = 0.95;
/// Samples below this say nothing of pages.
pub(crate) const MIN_SAMPLES: usize = 100;

/// What the time of a run rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// Which pages were touched in which interval.
    Touches,
    /// Sampled accesses.
    Samples,
}

/// What happened in an interval.
#[derive(Clone, Copy, Debug, Default)]
pub struct Happened {
    /// Touches by the tier that served them, and whether they wrote.
    pub served: [[u64; 2]; MAX_TIERS],
    /// Pages that moved.
    pub moves: Moves,
    /// Time of CPUs that samples stand for, by the tier that served them, nanoseconds.
    pub sampled: [f64; MAX_TIERS],
}

/// The model.
#[derive(Clone, Debug)]
pub struct Model {
    /// Read and write latencies.
    latency: [[f64; 2]; MAX_TIERS],
    bandwidth: [Option<f64>; MAX_TIERS],
    move_ns: [f64; MAX_TIERS],
    tiers: usize,
    cpus: u32,
    basis: Basis,
}

impl Model {
    /// Of these tiers, for a trace.
    pub fn new(tiers: &Tiers, stream: &Stream, basis: Basis) -> Model {
        let mut model = Model {
            latency: [[1.0; 2]; MAX_TIERS],
            bandwidth: [None; MAX_TIERS],
            move_ns: [0.0; MAX_TIERS],
            tiers: tiers.all().len(),
            cpus: stream.cpus,
            basis,
        };
        for (at, tier) in tiers.all().iter().enumerate() {
            model.latency[at] = [tier.read_ns.0 as f64, tier.write_ns.0 as f64];
            model.bandwidth[at] = tier.bandwidth.map(|b| b as f64);
            model.move_ns[at] = tier.move_ns.0 as f64;
        }
        model
    }

    /// What the time rests on.
    pub fn basis(&self) -> Basis {
        self.basis
    }

    /// Threads that run at once.
    fn parallel(&self, of: &IntervalFacts) -> f64 {
        f64::from(of.threads.min(self.cpus).max(1))
    }

    /// The time for which a touch of an interval stands where there are no samples, nanoseconds.
    pub fn weight(&self, of: &IntervalFacts) -> f64 {
        let even = of.length.0 as f64 / of.touches.max(1) as f64;
        (LINES * self.latency[0][0] / self.parallel(of)).min(even)
    }

    /// What a touch of an interval is worth to the choice of objects, nanoseconds: the time for which it stands, or next to nothing
    /// beside samples, enough to tell unsampled objects apart.
    pub fn touch_worth(&self, of: &IntervalFacts) -> f64 {
        const UNSAMPLED: f64 = 1e-6;
        match self.basis {
            Basis::Touches => self.weight(of),
            Basis::Samples => self.weight(of) * UNSAMPLED,
        }
    }

    /// By how much latency rises at that many bytes in an interval.
    fn load(&self, tier: usize, bytes: f64, of: &IntervalFacts) -> f64 {
        let Some(bandwidth) = self.bandwidth[tier] else {
            return 1.0;
        };
        let could = bandwidth * of.length.seconds();
        let share = if could > 0.0 { bytes / could } else { 0.0 };
        1.0 / (1.0 - share.min(MAX_LOAD))
    }

    /// Bytes that accesses of so much time transfer: each takes the fastest tier's latency.
    fn bytes(&self, time: f64, parallel: f64) -> f64 {
        time * parallel / self.latency[0][0] * LINE
    }

    /// How much longer an interval takes, nanoseconds; less than 0 where load is taken from the fastest tier.
    pub fn extra(&self, of: &IntervalFacts, happened: &Happened) -> f64 {
        let parallel = self.parallel(of);
        let weight = self.weight(of);
        // Wall time of the accesses that each tier serves, as reads and as writes.
        let time = |tier: usize| match self.basis {
            Basis::Touches => happened.served[tier].map(|n| n as f64 * weight),
            Basis::Samples => [happened.sampled[tier] / parallel, 0.0],
        };
        let times: Vec<[f64; 2]> = (0..self.tiers).map(time).collect();
        let all: f64 = times.iter().flatten().sum();
        let before = self.load(0, self.bytes(all, parallel), of);
        let mut extra = 0.0;
        for (tier, times) in times.iter().enumerate() {
            let moved: u64 = (0..self.tiers)
                .map(|other| happened.moves[tier][other] + happened.moves[other][tier])
                .sum();
            let bytes = self.bytes(times[0] + times[1], parallel) + (moved * PAGE_BYTES) as f64;
            let load = self.load(tier, bytes, of);
            for (kind, time) in times.iter().enumerate() {
                let ratio = self.latency[tier][kind] * load / (self.latency[0][kind] * before);
                extra += time * (ratio - 1.0);
            }
        }
        for (from, row) in happened.moves.iter().enumerate() {
            for (to, &pages) in row.iter().enumerate() {
                extra += pages as f64 * self.move_ns[from].max(self.move_ns[to]) / parallel;
            }
        }
        extra
    }

    /// The least that a touch costs in an interval whose page is neither kept in the fastest tier nor new, nanoseconds.
    fn least(&self, of: &IntervalFacts) -> f64 {
        let moving = (1..self.tiers).map(|t| self.move_ns[t].max(self.move_ns[0]));
        let moving = moving.fold(f64::MAX, f64::min) / self.parallel(of);
        let ratio = |kind: usize| self.latency[1][kind] / self.latency[0][kind] - 1.0;
        let staying = self.weight(of) * ratio(0).min(ratio(1));
        moving.min(staying).max(0.0)
    }

    /// The least by which a run can take longer with a fastest tier of so many pages; `slow` is the optimum's number of slow touches.
    /// No policy can be faster under this model.
    pub fn least_extra(&self, stream: &Stream, pages: u64, slow: u64) -> f64 {
        if self.bandwidth.iter().any(Option::is_some) {
            // At best all accesses go to a tier that is as fast as the fastest without load.
            let gained = stream.intervals().iter().enumerate().map(|(i, of)| {
                let time = match self.basis {
                    Basis::Touches => of.touches as f64 * self.weight(of),
                    Basis::Samples => {
                        let first = stream
                            .samples
                            .partition_point(|s| (s.interval as usize) < i);
                        let of_interval = stream.samples[first..].iter();
                        let of_interval = of_interval.take_while(|s| s.interval as usize == i);
                        let sum: f64 = of_interval.map(|s| f64::from(s.weight_ns)).sum();
                        sum / self.parallel(of)
                    }
                };
                let load = self.load(0, self.bytes(time, self.parallel(of)), of);
                time * (1.0 / load - 1.0)
            });
            return gained.sum();
        }
        if self.basis == Basis::Samples {
            return 0.0;
        }
        let known = |of: &IntervalFacts| (of.touches - of.fresh).saturating_sub(pages) as f64;
        let by_interval: f64 = stream
            .intervals()
            .iter()
            .map(|of| known(of) * self.least(of))
            .sum();
        let with_touches = stream.intervals().iter().filter(|of| of.touches > of.fresh);
        let least = with_touches
            .map(|of| self.least(of))
            .fold(f64::MAX, f64::min);
        match slow {
            0 => by_interval,
            slow => by_interval.max(slow as f64 * least),
        }
    }

    /// The time of a run that takes so much longer than the recorded one.
    pub fn run(&self, stream: &Stream, extra: f64) -> Duration {
        Duration((stream.length().0 as f64 + extra).max(0.0) as u64)
    }
}
