//! How likely it is that two threads keep apart by luck.

/// Events of a place that count, at most. Fewer can only make luck likelier.
const MAX: u64 = 50;

/// The chance that events which all come from one common pattern would fall apart between two threads as they did: of
/// all ways to give `a` of the events to one thread and the rest to the other, the share that leaves every place with one
/// of them. An exact permutation test; `places` are the events at each place, first those of the one thread, then those
/// of the other.
pub(super) fn apart(one: &[u64], other: &[u64]) -> f64 {
    let counts: Vec<usize> = one
        .iter()
        .chain(other)
        .map(|&n| n.min(MAX) as usize)
        .collect();
    let a: usize = counts[..one.len()].iter().sum();
    let all: usize = counts.iter().sum();
    if a == 0 || a == all {
        return 1.0;
    }
    // Ways to choose places that hold `n` events together.
    let mut ways = vec![0.0_f64; all + 1];
    ways[0] = 1.0;
    let mut reach = 0;
    for count in counts {
        for n in (0..=reach).rev() {
            ways[n + count] += ways[n];
        }
        reach += count;
    }
    (ways[a].ln() - choose(all, a)).exp().min(1.0)
}

/// The logarithm of the binomial coefficient.
fn choose(n: usize, k: usize) -> f64 {
    (1..=k.min(n - k))
        .map(|i| ((n - i + 1) as f64 / i as f64).ln())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_counters_of_five_events_each() {
        // All 252 ways to choose 5 of 10; two keep the places apart.
        assert!((apart(&[5], &[5]) - 2.0 / 252.0).abs() < 1e-12);
        // One event at each place shows nothing.
        assert!((apart(&[1, 1, 1], &[1, 1]) - 1.0).abs() < 1e-12);
        assert!(apart(&[20], &[20]) < 1e-9);
        assert!(apart(&[], &[20]) > 0.99);
        // Many events do not overflow.
        assert!(apart(&[u64::MAX; 32], &[u64::MAX; 32]) < 1e-100);
    }

    #[test]
    fn the_test_is_exact() {
        // Against every assignment by hand: places with 2, 1 | 1, 2 events, 3 of 6 to the first thread.
        let sizes = [2, 1, 1, 2];
        let mut kept = 0;
        let events: Vec<usize> = sizes
            .iter()
            .enumerate()
            .flat_map(|(place, &n)| vec![place; n])
            .collect();
        let mut all = 0;
        for mask in 0_u32..64 {
            if mask.count_ones() != 3 {
                continue;
            }
            all += 1;
            let whole = (0..4).all(|place| {
                let of: Vec<bool> = (0..6)
                    .filter(|&i| events[i] == place)
                    .map(|i| mask >> i & 1 == 1)
                    .collect();
                of.iter().all(|&x| x == of[0])
            });
            kept += u32::from(whole);
        }
        let exact = f64::from(kept) / f64::from(all);
        assert!((apart(&[2, 1], &[1, 2]) - exact).abs() < 1e-12);
    }
}
