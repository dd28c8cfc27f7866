//! The curves against models that are slow and plain.

use std::collections::{BTreeSet, HashMap};

use proptest::prelude::*;

use super::*;
use crate::testing::{Happening, PAGES, happenings, stream};

/// Touches that find their page gone from an LRU memory of a size: a list of the pages in it, the one that was touched last first.
fn lru_misses(of: &[Happening], size: usize) -> u64 {
    let (mut memory, mut lives): (Vec<u32>, BTreeSet<u32>) = Default::default();
    let mut misses = 0;
    for (freed, touched) in of {
        memory.retain(|p| !freed.contains(p));
        lives.retain(|p| !freed.contains(p));
        for page in touched {
            let is_known = !lives.insert(*page);
            let found = memory.iter().position(|p| p == page);
            misses += u64::from(is_known && found.is_none());
            if let Some(at) = found {
                memory.remove(at);
            }
            memory.insert(0, *page);
            memory.truncate(size);
        }
    }
    misses
}

/// The smallest number of slow touches over everything that could be kept: all sets of pages at each end of an interval.
fn smallest(of: &[Happening], size: usize) -> u64 {
    let mut lives: BTreeSet<u32> = BTreeSet::new();
    let mut costs: HashMap<BTreeSet<u32>, u64> = HashMap::from([(BTreeSet::new(), 0)]);
    for (freed, touched) in of {
        for page in freed {
            lives.remove(page);
        }
        let known: Vec<u32> = touched
            .iter()
            .copied()
            .filter(|p| lives.contains(p))
            .collect();
        let mut next: HashMap<BTreeSet<u32>, u64> = HashMap::new();
        for (kept, cost) in &costs {
            let kept: BTreeSet<u32> = kept
                .iter()
                .copied()
                .filter(|p| !freed.contains(p))
                .collect();
            let slow = known.iter().filter(|p| !kept.contains(p)).count() as u64;
            let may: Vec<u32> = kept
                .union(&touched.iter().copied().collect())
                .copied()
                .collect();
            for bits in 0_u32..1 << may.len() {
                if bits.count_ones() as usize > size {
                    continue;
                }
                let set = may.iter().enumerate().filter(|(i, _)| bits >> i & 1 == 1);
                let set: BTreeSet<u32> = set.map(|(_, p)| *p).collect();
                let of = next.entry(set).or_insert(u64::MAX);
                *of = (*of).min(cost + slow);
            }
        }
        lives.extend(touched);
        costs = next;
    }
    costs.into_values().min().unwrap_or(0)
}

/// Traces of few pages, for models that try everything.
fn few(of: Vec<Happening>) -> Vec<Happening> {
    let mut of: Vec<Happening> = of.into_iter().take(6).collect();
    for (freed, touched) in &mut of {
        freed.retain(|p| *p < 7);
        touched.retain(|p| *p < 7);
    }
    of
}

proptest! {
    #[test]
    fn stack_distances_are_those_of_lists_of_every_size(of in happenings()) {
        let found = curves(&stream(&of), &[]);
        prop_assert_eq!(found.lru.touches(), lru_misses(&of, 0));
        for size in 0..u64::from(PAGES) + 2 {
            prop_assert_eq!(found.lru.beyond(size), lru_misses(&of, size as usize), "{} pages", size);
        }
        let sizes: Vec<u64> = (0..u64::from(PAGES) + 2).collect();
        let each: Vec<u64> = sizes.iter().map(|s| found.lru.beyond(*s)).collect();
        prop_assert_eq!(found.lru.beyond_each(&sizes), each);
    }

    #[test]
    fn the_bounds_hold_for_every_order(of in happenings(), seed in any::<u64>()) {
        let mut dice = seed | 1;
        let mut shuffled = of.clone();
        for (_, touched) in &mut shuffled {
            for i in (1..touched.len()).rev() {
                dice = dice.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                touched.swap(i, (dice >> 33) as usize % (i + 1));
            }
        }
        let found = curves(&stream(&of), &[]);
        for size in 0..u64::from(PAGES) + 2 {
            let beyond = lru_misses(&shuffled, size as usize);
            prop_assert!(found.bounds.at_least.beyond(size) <= beyond);
            prop_assert!(beyond <= found.bounds.at_most.beyond(size));
        }
    }

    #[test]
    fn the_optimum_is_the_smallest_of_all(of in happenings(), size in 0..6_u64) {
        let of = few(of);
        let found = curves(&stream(&of), &[size]);
        prop_assert_eq!(found.optimum[0], smallest(&of, size as usize));
    }

    #[test]
    fn lru_is_never_better_than_the_optimum(of in happenings()) {
        let sizes: Vec<u64> = (0..=u64::from(PAGES)).collect();
        let found = curves(&stream(&of), &sizes);
        for (size, optimum) in sizes.iter().zip(&found.optimum) {
            prop_assert!(*optimum <= found.lru.beyond(*size));
        }
        // A larger memory is never worse.
        prop_assert!(found.optimum.is_sorted_by(|a, b| a >= b));
        prop_assert_eq!(found.optimum.last(), Some(&0));
    }
}

/// The machines over many intervals, against a plain search.
#[test]
fn the_last_free_machine_is_found_however_long_ago() {
    use super::optimum::Keeper;
    let mut dice = 7_u64;
    let mut keeper = Keeper::new(3, 300_000);
    let mut plain: Vec<u32> = vec![0; 3];
    for now in (0..300_000_u32).step_by(97) {
        dice = dice
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        let last = (dice >> 33) as u32 % now.max(1);
        if now == 0 {
            continue;
        }
        let kept = keeper.keep(last, now, 1);
        let best = plain.iter_mut().filter(|f| **f <= last).max();
        assert_eq!(kept, u64::from(best.is_some()));
        if let Some(free) = best {
            *free = now;
        }
    }
    assert!(keeper.kept > 0 && keeper.slow > 0);
}
