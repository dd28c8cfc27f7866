//! `--interval auto`: as short as the permitted overhead allows.

use std::io;
use std::time::Instant;

use varve_model::{Duration, PAGE_BYTES, Pid};
use varve_sys::ClearRefs;

/// The shortest interval that `auto` chooses.
pub(crate) const MIN_INTERVAL: Duration = Duration(10_000_000);
/// The longest.
pub(crate) const MAX_INTERVAL: Duration = Duration(60_000_000_000);

/// What the recorder's work on one interval cost the target.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    /// How long the target was held.
    pub(crate) held: Duration,
    /// CPU time of the recorder while the target ran.
    pub(crate) recorder_cpu: Duration,
    /// 4 KiB pages, or huge pages, whose accessed bits were cleared.
    pub(crate) cleared: u64,
}

/// Chooses the next interval.
#[derive(Debug)]
pub(crate) struct Budget {
    overhead: f64,
    /// What the first access to a page after a clear costs more, nanoseconds.
    first_access: f64,
    cpus: f64,
    /// Smoothed cost of an interval, nanoseconds.
    cost: Option<f64>,
}

impl Budget {
    pub(crate) fn new(overhead: f64, first_access: f64, cpus: u32) -> Budget {
        Budget {
            overhead: overhead.clamp(0.001, 1.0),
            first_access,
            cpus: f64::from(cpus.max(1)),
            cost: None,
        }
    }

    /// The interval after one that cost this much.
    pub(crate) fn next(&mut self, cost: Cost) -> Duration {
        let spread = |ns: f64| ns / self.cpus;
        let now = cost.held.0 as f64
            + spread(cost.recorder_cpu.0 as f64)
            + spread(cost.cleared as f64 * self.first_access);
        // A rise counts at once, a fall is believed slowly: the budget is a limit, not a mean.
        let smooth = match self.cost {
            Some(before) if now < before => before * 0.8 + now * 0.2,
            _ => now,
        };
        self.cost = Some(smooth);
        let wanted = smooth / self.overhead;
        Duration(wanted.clamp(MIN_INTERVAL.0 as f64, MAX_INTERVAL.0 as f64) as u64)
    }
}

/// Measures on this process what the first access to a page after clear and flush costs more than
/// another, nanoseconds: the walk of the page tables, the setting of the bit, and on a virtual machine
/// what the hypervisor adds.
pub(crate) fn measure_first_access() -> io::Result<f64> {
    const PAGES: usize = 512;
    let page = PAGE_BYTES as usize;
    let mut memory = vec![1u8; (PAGES + 1) * page];
    let mut clear = ClearRefs::open(Pid(std::process::id()))?;
    let mut best = f64::MAX;
    for _ in 0..3 {
        let sweep = |memory: &mut [u8]| {
            let began = Instant::now();
            for i in 0..PAGES {
                memory[i * page] = std::hint::black_box(memory[i * page].wrapping_add(1));
            }
            began.elapsed().as_nanos() as f64
        };
        sweep(&mut memory);
        let warm = sweep(&mut memory);
        clear.clear_accessed()?;
        clear.flush()?;
        let cold = sweep(&mut memory);
        best = best.min((cold - warm).max(0.0) / PAGES as f64);
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(held_us: u64) -> Cost {
        Cost {
            held: Duration(held_us * 1000),
            recorder_cpu: Duration(0),
            cleared: 0,
        }
    }

    #[test]
    fn the_interval_keeps_the_cost_under_the_budget() {
        let mut budget = Budget::new(0.03, 0.0, 2);
        assert_eq!(budget.next(cost(3000)), Duration(100_000_000));
        assert_eq!(budget.next(cost(6000)), Duration(200_000_000));
        assert!(budget.next(cost(10)) > Duration(100_000_000));
        for _ in 0..100 {
            budget.next(cost(10));
        }
        assert_eq!(budget.next(cost(10)), MIN_INTERVAL);
    }

    #[test]
    fn first_accesses_count() {
        let mut budget = Budget::new(0.03, 300.0, 2);
        let next = budget.next(Cost {
            held: Duration(0),
            recorder_cpu: Duration(0),
            cleared: 100_000,
        });
        assert_eq!(next, Duration(500_000_000));
    }
}
