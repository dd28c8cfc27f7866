//! Where objects are to lie: which groups are worth the fastest memory.

use varve_model::Pages;

use crate::knapsack::{self, Choice, Item};
use crate::model::{Basis, Model};
use crate::policies::{Placement, Spill};
use crate::replay::Owned;
use crate::spec::Tiers;
use crate::stream::{CHUNK_SLOTS, Slot, Stream};

/// What the groups of objects are worth in a part of a trace.
#[derive(Clone, Debug, PartialEq)]
pub struct Worth {
    /// The first interval of the part.
    pub from: u32,
    /// For each group: its pages that live at one time, at most, and the time for which its touches or samples stand, nanoseconds.
    pub items: Vec<Item>,
}

/// What groups are worth in each of so many parts of a trace, which have the same number of intervals.
pub fn worth(stream: &Stream, model: &Model, parts: usize) -> Vec<Worth> {
    let intervals = stream.intervals().len();
    let parts = parts.clamp(1, intervals.max(1));
    let groups = stream.groups.len();
    let begin = |part: usize| part * intervals / parts;
    let mut owned = Owned::new(stream);
    let mut lives = vec![false; stream.slots() as usize];
    // The group that each living page counts for.
    let mut counts_for = vec![0_u32; stream.slots() as usize];
    let mut live_of = vec![0_u64; groups];
    let mut freed = stream.freed.iter().peekable();
    let mut samples = stream.samples.iter().peekable();
    let mut all = Vec::with_capacity(parts);
    for part in 0..parts {
        let item = |&size: &u64| Item { size, worth: 0.0 };
        let mut items: Vec<Item> = live_of.iter().map(item).collect();
        for interval in begin(part)..begin(part + 1) {
            while let Some(change) = freed.next_if(|c| c.interval as usize <= interval) {
                for slot in change.first as usize..change.end as usize {
                    if std::mem::take(&mut lives[slot]) {
                        live_of[counts_for[slot] as usize] -= 1;
                    }
                }
            }
            owned.go_to(interval);
            let weight = model.touch_worth(&stream.intervals()[interval]);
            for run in stream.runs(interval) {
                for slot in run.first as usize..run.end as usize {
                    let group = owned.group[slot];
                    items[group as usize].worth += weight;
                    let is_new = !std::mem::replace(&mut lives[slot], true);
                    if !is_new && counts_for[slot] == group {
                        continue;
                    }
                    if !is_new {
                        live_of[counts_for[slot] as usize] -= 1;
                    }
                    counts_for[slot] = group;
                    live_of[group as usize] += 1;
                    let size = &mut items[group as usize].size;
                    *size = (*size).max(live_of[group as usize]);
                }
            }
            while let Some(sample) = samples.next_if(|s| s.interval as usize == interval) {
                if model.basis() == Basis::Samples {
                    let group = owned.group[sample.slot as usize];
                    items[group as usize].worth += f64::from(sample.weight_ns);
                }
            }
        }
        all.push(Worth {
            from: begin(part) as u32,
            items,
        });
    }
    all
}

/// How groups are chosen for a tier.
pub(crate) type Choose = fn(&[Item], u64) -> Choice;

/// Gives each tier but the last the groups that are chosen for it of those that no faster one has.
pub fn place(of: &Worth, tiers: &Tiers, choose: Choose) -> (Placement, bool) {
    let last = (tiers.all().len() - 1) as u8;
    let mut placed = vec![last; of.items.len()];
    let mut is_exact = true;
    for (tier, spec) in tiers.all()[..last as usize].iter().enumerate() {
        let open: Vec<usize> = (0..placed.len()).filter(|&g| placed[g] == last).collect();
        let items: Vec<Item> = open.iter().map(|&g| of.items[g]).collect();
        let choice = choose(&items, spec.capacity().0);
        is_exact &= choice.is_exact;
        for (&group, taken) in open.iter().zip(choice.taken) {
            if taken {
                placed[group] = tier as u8;
            }
        }
    }
    let placement = Placement {
        from: of.from,
        tiers: placed,
        spill: None,
    };
    (placement, is_exact)
}

/// The greedy choice, where the first group that does not fit is divided: of its pages, in the order of their addresses, as many
/// side by side as there is room for and as are worth most lie in the fastest tier.
pub fn place_with_spill(stream: &Stream, model: &Model, of: &Worth, tiers: &Tiers) -> Placement {
    let (mut placement, _) = place(of, tiers, knapsack::greedy);
    let order = knapsack::order(&of.items);
    let mut left = tiers.fastest().capacity().0;
    let fits = |g: &&usize| match of.items[**g].size <= left {
        true => {
            left -= of.items[**g].size;
            true
        }
        false => false,
    };
    let whole = order.iter().take_while(fits).count();
    let Some(&divided) = order.get(whole).filter(|_| left > 0) else {
        return placement;
    };
    // What comes behind it makes way for it.
    let last = (tiers.all().len() - 1) as u8;
    for &group in &order[whole..] {
        if placement.tiers[group] == 0 {
            placement.tiers[group] = last.min(1);
        }
    }
    let slots = dearest(stream, model, divided as u32, Pages(left));
    placement.spill = (!slots.is_empty()).then_some(Spill {
        group: divided as u32,
        slots: slots.into(),
        tier: 0,
    });
    placement
}

/// So many pages of a group, side by side in the order of addresses of those that were touched, that are worth most together;
/// in the order of slots.
fn dearest(stream: &Stream, model: &Model, group: u32, room: Pages) -> Vec<Slot> {
    let mut worths = vec![0.0_f64; stream.slots() as usize];
    let mut owned = Owned::new(stream);
    let mut samples = stream.samples.iter().peekable();
    for (interval, facts) in stream.intervals().iter().enumerate() {
        owned.go_to(interval);
        let weight = model.touch_worth(facts);
        for run in stream.runs(interval) {
            let slots = run.first as usize..run.end as usize;
            let of = worths[slots.clone()].iter_mut().zip(&owned.group[slots]);
            for (worth, _) in of.filter(|(_, g)| **g == group) {
                *worth += weight;
            }
        }
        while let Some(sample) = samples.next_if(|s| s.interval as usize == interval) {
            let is_its = owned.group[sample.slot as usize] == group;
            if is_its && model.basis() == Basis::Samples {
                worths[sample.slot as usize] += f64::from(sample.weight_ns);
            }
        }
    }
    let mut chunks: Vec<u32> = (0..stream.chunks.len() as u32).collect();
    chunks.sort_unstable_by_key(|&c| stream.chunks[c as usize]);
    let slots = chunks
        .into_iter()
        .flat_map(|c| c * CHUNK_SLOTS..(c + 1) * CHUNK_SLOTS)
        .filter(|&slot| worths[slot as usize] > 0.0);
    let slots: Vec<Slot> = slots.collect();
    let room = usize::try_from(room.0)
        .unwrap_or(usize::MAX)
        .min(slots.len());
    let of = |i: usize| worths[slots[i] as usize];
    let mut sum: f64 = (0..room).map(of).sum();
    let (mut best, mut most) = (0, sum);
    for first in 1..=slots.len() - room {
        sum += of(first + room - 1) - of(first - 1);
        if sum > most * (1.0 + 1e-9) {
            (best, most) = (first, sum);
        }
    }
    let mut chosen = slots[best..best + room].to_vec();
    chosen.sort_unstable();
    chosen
}
