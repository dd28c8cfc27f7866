//! `--fault-budget`: as many pages are protected as the permitted cost allows, chosen at random.
//!
//! A page is protected where its number, hashed with a seed, lies below a threshold (`varve_preload_abi::is_chosen`), so every
//! page has the same chance whatever the program does with it. The seed changes now and then, so that others have their
//! turn; the threshold follows what the last interval cost.

use std::hash::{BuildHasher, Hasher, RandomState};

use varve_model::{Duration, Time};
use varve_preload_abi::Protect;

/// Boundaries between two seeds.
const EPOCH: u64 = 40;
/// The share of pages with which a recording begins.
const FIRST_SHARE: f64 = 0.01;
/// And the least: one page in a million.
const MIN_SHARE: f64 = 1e-6;
/// The share grows at most so fast from one interval to the next: a limit is to be approached from below.
const GROWTH: f64 = 1.3;

/// What the interval that ends cost.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spent {
    /// How long threads waited for accesses that trapped.
    pub(crate) waited: Duration,
    /// How long the target was held at its last boundary, for the scan and for protecting.
    pub(crate) held: Duration,
}

/// Chooses what is protected.
#[derive(Debug)]
pub(crate) struct Budget {
    /// Of the run time, 0 to 1.
    pub(crate) limit: f64,
    share: f64,
    seed: u64,
    boundaries: u64,
    last: Option<Time>,
}

impl Budget {
    pub(crate) fn new(limit: f64) -> Budget {
        Budget {
            limit,
            share: FIRST_SHARE,
            seed: random(),
            boundaries: 0,
            last: None,
        }
    }

    /// The share of pages that is protected.
    pub(crate) fn share(&self) -> f64 {
        self.share
    }

    /// What to protect at a boundary at this time.
    pub(crate) fn next(&mut self, now: Time, spent: Spent) -> Protect {
        let wall = self.last.map(|last| (now - last).0 as f64);
        self.last = Some(now);
        if let Some(wall) = wall {
            let left = (self.limit * wall - spent.held.0 as f64).max(0.0);
            let factor = left / (spent.waited.0 as f64).max(1.0);
            self.share = (self.share * factor.min(GROWTH)).clamp(MIN_SHARE, 1.0);
        }
        let afresh = self.boundaries.is_multiple_of(EPOCH) && self.boundaries > 0;
        if afresh {
            self.seed = random();
        }
        self.boundaries += 1;
        Protect {
            seed: self.seed,
            threshold: threshold(self.share),
            afresh,
            is_limited: false,
        }
    }
}

/// All pages are never sampled: that is what no budget means.
fn threshold(share: f64) -> u64 {
    ((share * u64::MAX as f64) as u64).min(u64::MAX - 1)
}

fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spend(budget: &mut Budget, at: u64, waited: u64, held: u64) -> Protect {
        let spent = Spent {
            waited: Duration(waited),
            held: Duration(held),
        };
        budget.next(Time(at * 50_000_000), spent)
    }

    #[test]
    fn the_share_falls_with_the_cost_and_rises_slowly() {
        let mut budget = Budget::new(0.05);
        spend(&mut budget, 1, 0, 0);
        // 2.5 ms may be spent.
        spend(&mut budget, 2, 5_000_000, 0);
        assert!((budget.share() - 0.005).abs() < 1e-9);
        spend(&mut budget, 3, 50_000, 0);
        assert!((budget.share() - 0.0065).abs() < 1e-9);
        // What holding took is spent already.
        spend(&mut budget, 4, 2_500_000, 1_250_000);
        assert!((budget.share() - 0.00325).abs() < 1e-9);
        spend(&mut budget, 5, 2_500_000, 9_000_000);
        assert!((budget.share() - MIN_SHARE).abs() < 1e-12);
    }

    #[test]
    fn pages_take_turns() {
        let mut budget = Budget::new(0.05);
        let seeds: Vec<(u64, bool)> = (1..=EPOCH + 1)
            .map(|i| spend(&mut budget, i, 500_000, 0))
            .map(|protect| (protect.seed, protect.afresh))
            .collect();
        assert!(
            seeds[..EPOCH as usize]
                .iter()
                .all(|s| *s == (seeds[0].0, false))
        );
        assert!(seeds[EPOCH as usize].1 && seeds[EPOCH as usize].0 != seeds[0].0);
    }
}
