//! Which things to take where not all fit: the greedy choice, and the best one.

/// A thing: what it takes and what it is worth.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Item {
    /// Pages.
    pub size: u64,
    /// What it is worth, not less than 0.
    pub worth: f64,
}

/// What was chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// Whether each item was taken.
    pub taken: Vec<bool>,
    /// Whether nothing better is possible; where the search became too long it is the best that was found.
    pub is_exact: bool,
}

/// States of a search at once; beyond it the least promising are given up.
const MAX_STATES: usize = 20_000;
/// Steps of a search that are remembered.
const MAX_STEPS: usize = 4_000_000;

/// Items that take anything, by worth for what they take, the best first.
pub(crate) fn order(items: &[Item]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..items.len()).filter(|&i| items[i].size > 0).collect();
    let density = |i: usize| items[i].worth / items[i].size as f64;
    order.sort_by(|&a, &b| density(b).total_cmp(&density(a)).then(a.cmp(&b)));
    order
}

/// Takes one item after the other by worth for what it takes; what does not fit is passed over.
pub fn greedy(items: &[Item], room: u64) -> Choice {
    let mut taken = vec![false; items.len()];
    let mut left = room;
    for i in order(items) {
        if items[i].size <= left {
            left -= items[i].size;
            taken[i] = true;
        }
    }
    Choice {
        taken,
        is_exact: false,
    }
}

/// A partial choice: what it takes, what it is worth, and the last item taken in `steps`.
#[derive(Clone, Copy)]
struct State {
    size: u64,
    worth: f64,
    step: u32,
}

const NO_STEP: u32 = u32::MAX;

/// The choice that is worth most.
///
/// Nemhauser and Ullmann (1969): partial choices over the first items, of which none takes more and is worth less than another.
/// Those go that cannot become better than the greedy choice, by what the rest would be worth if items could be divided.
pub fn best(items: &[Item], room: u64) -> Choice {
    let order: Vec<usize> = order(items)
        .into_iter()
        .filter(|&i| items[i].size <= room)
        .collect();
    let start = greedy(items, room);
    let worth_of = |taken: &[bool]| -> f64 {
        let all = items.iter().zip(taken).filter(|(_, t)| **t);
        all.map(|(i, _)| i.worth).sum()
    };
    let mut lower = worth_of(&start.taken);
    // Sums of sizes and worths of the first items in order.
    let mut sums = vec![(0_u64, 0.0_f64)];
    for &i in &order {
        let (size, worth) = sums[sums.len() - 1];
        sums.push((size.saturating_add(items[i].size), worth + items[i].worth));
    }
    // What the items from `from` on add at most in so much room.
    let bound = |from: usize, room: u64| -> f64 {
        let until = sums[from].0.saturating_add(room);
        let whole = sums.partition_point(|s| s.0 <= until) - 1;
        let part = order.get(whole).map_or(0.0, |&i| {
            let left = until - sums[whole].0;
            items[i].worth * left as f64 / items[i].size as f64
        });
        sums[whole].1 - sums[from].1 + part
    };
    let mut states = vec![State {
        size: 0,
        worth: 0.0,
        step: NO_STEP,
    }];
    let mut steps: Vec<(u32, u32)> = Vec::new();
    let mut best: Option<State> = None;
    let mut is_exact = true;
    for (at, &i) in order.iter().enumerate() {
        let item = items[i];
        let with = states.iter().filter(|s| s.size + item.size <= room);
        let mut more: Vec<State> = Vec::new();
        for state in with {
            steps.push((i as u32, state.step));
            more.push(State {
                size: state.size + item.size,
                worth: state.worth + item.worth,
                step: (steps.len() - 1) as u32,
            });
        }
        for state in &more {
            if state.worth > lower {
                lower = state.worth;
                best = Some(*state);
            }
        }
        states = merge(&states, &more);
        let slack = 1.0 + 1e-12;
        states.retain(|s| (s.worth + bound(at + 1, room - s.size)) * slack > lower);
        if states.len() > MAX_STATES {
            is_exact = false;
            let promise = |s: &State| s.worth + bound(at + 1, room - s.size);
            states.sort_by(|a, b| promise(b).total_cmp(&promise(a)));
            states.truncate(MAX_STATES);
            states.sort_by_key(|s| s.size);
        }
        if steps.len() > MAX_STEPS {
            is_exact = false;
            break;
        }
        if states.is_empty() {
            break;
        }
    }
    let Some(best) = best else {
        return Choice { is_exact, ..start };
    };
    let mut taken = vec![false; items.len()];
    let mut step = best.step;
    while let Some(&(item, before)) = steps.get(step as usize) {
        taken[item as usize] = true;
        step = before;
    }
    // What is worth nothing may come along.
    let mut left = room;
    for (item, _) in items.iter().zip(&taken).filter(|(_, t)| **t) {
        left -= item.size;
    }
    for &i in &order {
        if !taken[i] && items[i].size <= left {
            taken[i] = true;
            left -= items[i].size;
        }
    }
    Choice { taken, is_exact }
}

/// Both lists by size, without those that take as much as another and are worth no more.
fn merge(a: &[State], b: &[State]) -> Vec<State> {
    let mut all: Vec<State> = Vec::with_capacity(a.len() + b.len());
    let (mut a, mut b) = (a.iter().peekable(), b.iter().peekable());
    let mut most = f64::NEG_INFINITY;
    loop {
        let next = match (a.peek(), b.peek()) {
            (Some(x), Some(y)) => {
                let first = (x.size, -x.worth) <= (y.size, -y.worth);
                if first { a.next() } else { b.next() }
            }
            (Some(_), None) => a.next(),
            (None, _) => b.next(),
        };
        let Some(state) = next else { return all };
        if state.worth > most {
            most = state.worth;
            all.push(*state);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sums(items: &[Item], taken: &[bool]) -> (u64, f64) {
        let all = items.iter().zip(taken).filter(|(_, t)| **t);
        all.fold((0, 0.0), |(size, worth), (i, _)| {
            (size + i.size, worth + i.worth)
        })
    }

    proptest! {
        #[test]
        fn the_best_choice_is_the_best_of_all(
            items in prop::collection::vec((0..30_u64, 0..50_u32), 0..11),
            room in 0..120_u64,
        ) {
            let items: Vec<Item> = items
                .into_iter()
                .map(|(size, worth)| Item { size, worth: f64::from(worth) })
                .collect();
            let mut most = 0.0_f64;
            for bits in 0_u32..1 << items.len() {
                let taken: Vec<bool> = (0..items.len())
                    .map(|i| bits >> i & 1 == 1 && items[i].size > 0)
                    .collect();
                let (size, worth) = sums(&items, &taken);
                if size <= room {
                    most = most.max(worth);
                }
            }
            let found = best(&items, room);
            let (size, worth) = sums(&items, &found.taken);
            prop_assert!(found.is_exact && size <= room);
            prop_assert_eq!(worth, most);
            let found = greedy(&items, room);
            let (size, worth) = sums(&items, &found.taken);
            prop_assert!(size <= room && worth <= most);
        }
    }

    #[test]
    fn many_items_end_in_time() {
        let mut dice = 1_u64;
        let mut next = |n: u64| {
            dice = dice
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (dice >> 33) % n
        };
        let items: Vec<Item> = (0..20_000)
            .map(|_| Item {
                size: 1 + next(5000),
                worth: next(1_000_000) as f64,
            })
            .collect();
        let room = items.iter().map(|i| i.size).sum::<u64>() / 2;
        let (found, plain) = (best(&items, room), greedy(&items, room));
        let (size, worth) = sums(&items, &found.taken);
        assert!(size <= room && worth >= sums(&items, &plain.taken).1);
    }
}
