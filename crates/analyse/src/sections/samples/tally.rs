//! Samples, summed.

use std::collections::BTreeMap;

use varve_model::{Duration, Resolved, SampleMode};
use varve_trace::tables::SampleRow;

use super::{Latency, Sampled};

/// Counts while they grow.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    pub(super) samples: u64,
    reads: u64,
    writes: u64,
    known: u64,
    latencies: BTreeMap<u32, u64>,
    /// Samples with a weight in time.
    timed: u64,
    time: u64,
    access: u64,
    overwritten: u64,
    write: u64,
    call: u64,
    kernel: u64,
}

impl Tally {
    pub(super) fn add(&mut self, row: &SampleRow) {
        self.samples += 1;
        self.known += u64::from(row.address.is_some());
        match row.write {
            Some(true) => self.writes += 1,
            Some(false) => self.reads += 1,
            None => (),
        }
        if let Some(cycles) = row.latency_cycles {
            *self.latencies.entry(rounded(cycles)).or_default() += 1;
        }
        let Some(weight) = row.weight_ns else { return };
        self.timed += 1;
        self.time += weight.0;
        if row.address.is_some() {
            self.access += weight.0;
        }
        if row.resolved == Some(Resolved::Overwritten) {
            self.overwritten += weight.0;
        }
        if row.write == Some(true) {
            self.write += weight.0;
        }
        if row.mode == Some(SampleMode::Call) {
            self.call += weight.0;
        }
        if matches!(row.mode, Some(SampleMode::Call | SampleMode::Trap)) {
            self.kernel += weight.0;
        }
    }

    /// Adds what another counted.
    pub(super) fn merge(&mut self, other: &Tally) {
        for (sum, more) in [
            (&mut self.samples, other.samples),
            (&mut self.reads, other.reads),
            (&mut self.writes, other.writes),
            (&mut self.known, other.known),
            (&mut self.timed, other.timed),
            (&mut self.time, other.time),
            (&mut self.access, other.access),
            (&mut self.overwritten, other.overwritten),
            (&mut self.write, other.write),
            (&mut self.call, other.call),
            (&mut self.kernel, other.kernel),
        ] {
            *sum += more;
        }
        for (cycles, count) in &other.latencies {
            *self.latencies.entry(*cycles).or_default() += count;
        }
    }

    pub(super) fn done(&self) -> Sampled {
        let known = self.reads + self.writes > 0;
        Sampled {
            samples: self.samples,
            reads: known.then_some(self.reads),
            writes: known.then_some(self.writes),
            latency_cycles: self.latency(),
            time_ns: self.weight(self.time),
            access_ns: self.weight(self.access),
            overwritten_ns: self.weight(self.overwritten),
            write_ns: self.weight(self.write),
            call_ns: self.weight(self.call),
        }
    }

    /// The time in the kernel; none where samples have no weight in time.
    pub(super) fn kernel(&self) -> Option<Duration> {
        self.weight(self.kernel)
    }

    fn weight(&self, sum: u64) -> Option<Duration> {
        (self.timed > 0).then_some(Duration(sum))
    }

    /// Samples whose access is known.
    pub(super) const fn with_address(&self) -> u64 {
        self.known
    }

    pub(super) fn latency(&self) -> Option<Latency> {
        let samples: u64 = self.latencies.values().sum();
        let (max, _) = self.latencies.last_key_value()?;
        let at = |share: f64| {
            let rank = ((samples as f64 * share).ceil() as u64).max(1);
            let mut sum = 0;
            let mut all = self.latencies.iter();
            all.find(|(_, count)| {
                sum += **count;
                sum >= rank
            })
            .map_or(*max, |(cycles, _)| *cycles)
        };
        Some(Latency {
            samples,
            median: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            max: *max,
        })
    }
}

/// Ten significant bits.
fn rounded(cycles: u32) -> u32 {
    let spare = (32 - cycles.leading_zeros()).saturating_sub(10);
    cycles >> spare << spare
}
