//! The time axis, and phases on it.

use std::collections::BTreeMap;

use varve_model::{Duration, Time};

use super::{Axis, SharingSource};

/// Bins at most; fewer where that would leave less than [`PER_BIN`] events in each on average.
const MAX_BINS: u64 = 240;
const PER_BIN: u64 = 20;
/// Events of a stretch of time that a phase is concluded from, on average.
const PER_STRETCH: u64 = 10;
/// Phases that are listed.
const MAX_PHASES: usize = 200;

/// An axis from `start` to `end` for so many events, whose times lie on a grid of at most `steps` moments.
pub(super) fn axis(start: Time, end: Time, events: u64, steps: Option<u64>) -> Option<Axis> {
    let length = (end - start).0;
    let bins = match steps {
        Some(steps) => steps.min(MAX_BINS),
        None => (events / PER_BIN).clamp(1, MAX_BINS),
    };
    (length > 0 && bins > 1).then(|| Axis {
        start_ns: start,
        bin_ns: Duration(length.div_ceil(bins)),
        bins: bins as u32,
    })
}

impl Axis {
    /// The bin of a moment; those outside count as at the end that they lie beyond.
    pub(super) fn bin(&self, time: Time) -> u32 {
        let bin = (time - self.start_ns).0 / self.bin_ns.0.max(1);
        bin.min(u64::from(self.bins) - 1) as u32
    }

    /// Where a bin begins.
    pub(super) fn begin(&self, bin: u64) -> Time {
        Time(
            self.start_ns
                .0
                .saturating_add(bin.saturating_mul(self.bin_ns.0)),
        )
    }
}

/// Whether so many events say what a thread goes through, or who uses an object when.
pub(super) fn suffices(source: SharingSource, events: u64) -> bool {
    source == SharingSource::Counts || events >= PER_STRETCH
}

/// A stretch of time with the same `what`.
pub(super) struct Phase<T> {
    pub(super) from: Time,
    pub(super) to: Time,
    pub(super) what: T,
    pub(super) weight: u64,
    pub(super) of: u64,
}

/// Divides time into phases. `cells` hold the weight by bin and key. Bins are put together until they hold enough of
/// `events`; `choose` says what a stretch is about, and the weight of that, from the weights in it, heaviest first.
pub(super) fn phases<K: Copy + Ord, T: PartialEq>(
    axis: &Axis,
    cells: impl Iterator<Item = ((u32, K), u64)>,
    events: u64,
    choose: impl Fn(&[(K, u64)], u64) -> (T, u64),
) -> Vec<Phase<T>> {
    let together = (PER_STRETCH * u64::from(axis.bins))
        .div_ceil(events.max(1))
        .max(1);
    let mut stretches: BTreeMap<u64, BTreeMap<K, u64>> = BTreeMap::new();
    for ((bin, key), weight) in cells {
        let of = stretches.entry(u64::from(bin) / together).or_default();
        *of.entry(key).or_default() += weight;
    }
    let mut phases: Vec<Phase<T>> = Vec::new();
    for (stretch, weights) in stretches {
        let all: u64 = weights.values().sum();
        let mut heaviest: Vec<(K, u64)> = weights.into_iter().collect();
        heaviest.sort_by_key(|&(key, weight)| (std::cmp::Reverse(weight), key));
        let (what, weight) = choose(&heaviest, all);
        let (from, to) = (
            axis.begin(stretch * together),
            axis.begin(((stretch + 1) * together).min(axis.bins.into())),
        );
        match phases.last_mut() {
            Some(last) if last.what == what && last.to == from => {
                last.to = to;
                last.weight += weight;
                last.of += all;
            }
            _ => phases.push(Phase {
                from,
                to,
                what,
                weight,
                of: all,
            }),
        }
    }
    phases.truncate(MAX_PHASES);
    phases
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_threads_is_a_change_of_phase() {
        let axis = axis(Time(100), Time(1100), 2000, None).unwrap();
        assert_eq!((axis.bins, axis.bin_ns), (100, Duration(10)));
        assert_eq!(axis.bin(Time(99)), 0);
        assert_eq!(axis.bin(Time(u64::MAX)), 99);
        let cells = (0..100).map(|bin| ((bin, bin / 50), 20));
        let found = phases(&axis, cells, 2000, |all, _| (all[0].0, all[0].1));
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].from, found[0].to), (Time(100), Time(600)));
        assert_eq!(
            (found[1].what, found[1].weight, found[1].of),
            (1, 1000, 1000)
        );
        // Few events: one stretch.
        let cells = (0..100).step_by(20).map(|bin| ((bin, bin / 50), 1));
        assert_eq!(phases(&axis, cells, 5, |all, _| (all[0].0, 1)).len(), 1);
    }

    #[test]
    fn no_axis_without_time() {
        assert!(axis(Time(5), Time(5), 1000, None).is_none());
        assert!(axis(Time(0), Time(5), 1000, Some(1)).is_none());
        assert!(axis(Time(0), Time(5), 10, None).is_none());
    }
}
