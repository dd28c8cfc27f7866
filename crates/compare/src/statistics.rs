//! Figures of several runs: their middle, and whether two sides of them differ by more than chance.

/// All ways to put runs on two sides are tried where there are no more than these; else so many are drawn.
const MAX_SPLITS: u64 = 10_000;

/// The middle of some figures; of an even number, the mean of the middle two. None of none.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let half = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        n if n % 2 == 1 => Some(sorted[half]),
        _ => Some(sorted[half - 1].midpoint(sorted[half])),
    }
}

/// The permutation test for two sides of so many runs.
///
/// If nothing but chance tells the sides apart, each way to put the same figures on two sides was as likely as the one
/// that happened. `p` is the share of ways whose means differ as much or more (R. A. Fisher, *The Design of Experiments*,
/// 1935, § 21). It asks nothing of how the figures are spread.
#[derive(Clone, Debug)]
pub(crate) struct Permutations {
    runs: (usize, usize),
    /// The runs of the first side, by their number among all, for each way.
    splits: Vec<Vec<usize>>,
    /// Whether these are all ways there are.
    pub(crate) is_exact: bool,
}

impl Permutations {
    /// None where a side has less than two runs: then nothing is known of chance.
    pub(crate) fn new(a: usize, b: usize) -> Option<Permutations> {
        if a < 2 || b < 2 {
            return None;
        }
        let all = ways(a + b, a).filter(|ways| *ways <= MAX_SPLITS);
        let splits = match all {
            Some(_) => combinations(a + b, a),
            None => drawn(a + b, a),
        };
        Some(Permutations {
            runs: (a, b),
            splits,
            is_exact: all.is_some(),
        })
    }

    /// How many ways are looked at.
    pub(crate) fn ways(&self) -> u64 {
        self.splits.len() as u64
    }

    /// Figures that one test adds up.
    pub(crate) fn work(&self) -> u64 {
        self.ways() * self.runs.0 as u64
    }

    /// The least `p` that these runs can have, whatever their figures are.
    pub(crate) fn least(&self) -> f64 {
        let (a, b) = self.runs;
        let extremes = if a == b { 2 } else { 1 };
        match self.is_exact {
            true => f64::from(extremes) / self.ways() as f64,
            false => 1.0 / (self.ways() + 1) as f64,
        }
    }

    /// How likely it is that chance alone makes the means differ as they do, or more. Two-sided.
    pub(crate) fn p(&self, a: &[f64], b: &[f64]) -> f64 {
        let all: Vec<f64> = a.iter().chain(b).copied().collect();
        let mean = all.iter().sum::<f64>() / all.len().max(1) as f64;
        // Sums of many figures differ in their last digits by the order of their parts.
        let scale = all.iter().map(|v| (v - mean).abs()).sum::<f64>();
        let off = |sum: f64| sum.abs();
        let seen = off(a.iter().map(|v| v - mean).sum()) - scale * 1e-9;
        let as_far = |split: &&Vec<usize>| off(split.iter().map(|&i| all[i] - mean).sum()) >= seen;
        let found = self.splits.iter().filter(as_far).count() as f64;
        match self.is_exact {
            true => found / self.ways() as f64,
            // The way that happened is one of those that were drawn (B. Phipson, G. K. Smyth, "Permutation P-values
            // should never be zero", 2010).
            false => (found + 1.0) / (self.ways() + 1) as f64,
        }
    }
}

/// How many ways there are to choose some of all; None beyond what a number holds.
fn ways(all: usize, some: usize) -> Option<u64> {
    (0..some as u64).try_fold(1_u64, |ways, i| {
        Some(ways.checked_mul(all as u64 - i)? / (i + 1))
    })
}

fn combinations(all: usize, some: usize) -> Vec<Vec<usize>> {
    let mut found = Vec::new();
    let mut chosen: Vec<usize> = (0..some).collect();
    loop {
        found.push(chosen.clone());
        // The last that can still go up does, and those behind it follow.
        let Some(at) = (0..some).rev().find(|&i| chosen[i] < all - some + i) else {
            return found;
        };
        chosen[at] += 1;
        for i in at + 1..some {
            chosen[i] = chosen[i - 1] + 1;
        }
    }
}

/// Ways that are drawn, the same each time.
fn drawn(all: usize, some: usize) -> Vec<Vec<usize>> {
    // G. Marsaglia, "Xorshift RNGs", 2003.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut below = |n: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        ((state >> 11) % n.max(1) as u64) as usize
    };
    let mut order: Vec<usize> = (0..all).collect();
    let one = |_| {
        for i in 0..some {
            order.swap(i, i + below(all - i));
        }
        order[..some].to_vec()
    };
    (0..MAX_SPLITS - 1).map(one).collect()
}

/// From the `p` of many tests to their `q`: whoever believes all tests up to some `q` is wrong in this share of them, on
/// average (Y. Benjamini, Y. Hochberg, "Controlling the false discovery rate", 1995).
pub(crate) fn adjusted(p: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|&a, &b| p[b].total_cmp(&p[a]));
    let mut q = vec![1.0; p.len()];
    let mut least = 1.0_f64;
    for (behind, &i) in order.iter().enumerate() {
        let rank = p.len() - behind;
        least = least.min(p[i] * p.len() as f64 / rank as f64);
        q[i] = least;
    }
    q
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Every way by a mask, with its own sums.
    fn by_masks(a: &[f64], b: &[f64]) -> f64 {
        let all: Vec<f64> = [a, b].concat();
        let gap = |mask: u32| {
            let (mut first, mut second) = (0.0, 0.0);
            for (i, value) in all.iter().enumerate() {
                match mask >> i & 1 {
                    1 => first += value,
                    _ => second += value,
                }
            }
            (first / a.len() as f64 - second / b.len() as f64).abs()
        };
        let seen = gap((1 << a.len()) - 1);
        let masks = (0..1_u32 << all.len()).filter(|m| m.count_ones() as usize == a.len());
        let (mut as_far, mut ways) = (0.0, 0.0);
        for mask in masks {
            ways += 1.0;
            as_far += f64::from(u8::from(gap(mask) >= seen - 1e-6));
        }
        as_far / ways
    }

    proptest! {
        #[test]
        fn p_is_that_of_all_ways(
            a in proptest::collection::vec(0_u32..20, 2..6),
            b in proptest::collection::vec(0_u32..20, 2..6),
        ) {
            let numbers = |of: &[u32]| of.iter().map(|n| f64::from(*n)).collect::<Vec<f64>>();
            let (a, b) = (numbers(&a), numbers(&b));
            let test = Permutations::new(a.len(), b.len()).unwrap();
            prop_assert!(test.is_exact);
            let p = test.p(&a, &b);
            prop_assert!((p - by_masks(&a, &b)).abs() < 1e-9, "{p}");
            prop_assert!(p >= test.least() - 1e-9);
            prop_assert!((p - test.p(&a.iter().map(|v| v * 1e12).collect::<Vec<_>>(), &b.iter().map(|v| v * 1e12).collect::<Vec<_>>())).abs() < 1e-9);
        }

        #[test]
        fn q_is_at_least_p_and_keeps_its_order(p in proptest::collection::vec(0.0_f64..1.0, 1..30)) {
            let q = adjusted(&p);
            for i in 0..p.len() {
                prop_assert!(q[i] >= p[i] - 1e-12 && q[i] <= 1.0);
                // By the definition: the least over all that are no better.
                let of = |j: usize| p[j] * p.len() as f64 / p.iter().filter(|x| **x <= p[j]).count() as f64;
                let least = (0..p.len()).filter(|&j| p[j] >= p[i]).map(of).fold(1.0, f64::min);
                prop_assert!((q[i] - least).abs() < 1e-9);
            }
        }
    }

    #[test]
    fn far_apart_is_no_chance_from_four_runs_a_side_on() {
        let p = |n: usize| {
            let a: Vec<f64> = (0..n).map(|i| i as f64).collect();
            let b: Vec<f64> = (0..n).map(|i| 100.0 + i as f64).collect();
            Permutations::new(n, n).map(|test| test.p(&a, &b))
        };
        assert_eq!(p(1), None);
        assert!((p(3).unwrap() - 0.1).abs() < 1e-9);
        assert!((p(4).unwrap() - 2.0 / 70.0).abs() < 1e-9);
        // Too many ways to try them all.
        assert!(p(12).unwrap() < 0.001);
    }

    #[test]
    fn drawn_ways_agree_with_what_is_known() {
        let test = Permutations::new(10, 10).unwrap();
        assert!(!test.is_exact);
        // Alternating figures of two sides: the means differ by half of a step.
        let a: Vec<f64> = (0..10).map(|i| f64::from(2 * i)).collect();
        let b: Vec<f64> = (0..10).map(|i| f64::from(2 * i + 1)).collect();
        assert!(test.p(&a, &b) > 0.6);
        assert!((test.p(&a, &a) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn the_middle() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }
}
