//! A stream replayed under a policy.

use varve_model::Duration;

use crate::frames::ABSENT;
use crate::model::{Happened, Model};
use crate::policies::{Now, Policy};
use crate::spec::MAX_TIERS;
use crate::stream::{NO_GROUP, Slot, Stream};

/// What a policy made of a program's touches.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Touches by the tier in which they found their page.
    pub found: [u64; MAX_TIERS],
    /// Pages that were brought into a faster tier without a touch.
    pub fetched: u64,
    /// Pages that moved to a faster tier.
    pub promoted: u64,
    /// Pages that moved to a slower one.
    pub demoted: u64,
    /// Time of CPUs that samples stand for, by the tier that served them, nanoseconds.
    pub sampled_ns: [f64; MAX_TIERS],
    /// How long the program would take.
    pub modelled_ns: Duration,
    /// Touches of each group that found their page in a slower tier.
    pub slow_by_group: Vec<u64>,
}

impl Outcome {
    /// Touches that found their page in a slower tier, and pages that were fetched from one.
    pub fn slow(&self) -> u64 {
        self.found[1..].iter().sum::<u64>() + self.fetched
    }

    /// [`Outcome::slow`] of all touches.
    pub fn slow_share(&self, of: &Stream) -> f64 {
        self.slow() as f64 / of.touches.max(1) as f64
    }

    /// How many times as long as it was recorded the program would take.
    pub fn slowdown(&self, of: &Stream) -> f64 {
        self.modelled_ns.0 as f64 / of.length().0.max(1) as f64
    }

    /// Pages that moved.
    pub fn moved(&self) -> u64 {
        self.promoted + self.demoted
    }
}

/// The changes of whose a page is, as a replay comes by them.
pub(crate) struct Owned<'a> {
    stream: &'a Stream,
    next: usize,
    /// The group of each slot.
    pub(crate) group: Vec<u32>,
}

impl<'a> Owned<'a> {
    pub(crate) fn new(stream: &'a Stream) -> Owned<'a> {
        Owned {
            stream,
            next: 0,
            group: vec![NO_GROUP; stream.slots() as usize],
        }
    }

    /// Goes on to an interval.
    pub(crate) fn go_to(&mut self, interval: usize) {
        let rest = &self.stream.owners[self.next..];
        for change in rest.iter().take_while(|c| c.interval as usize <= interval) {
            self.group[change.first as usize..change.end as usize].fill(change.group);
            self.next += 1;
        }
    }
}

/// Replays a stream.
pub fn replay<P: Policy>(stream: &Stream, mut policy: P, model: &Model) -> Outcome {
    let mut outcome = Outcome {
        slow_by_group: vec![0; stream.groups.len()],
        ..Outcome::default()
    };
    let mut owned = Owned::new(stream);
    let mut freed = stream.freed.iter().peekable();
    let mut samples = stream.samples.iter().peekable();
    let mut serves = match stream.samples.is_empty() {
        true => Vec::new(),
        false => vec![ABSENT; stream.slots() as usize],
    };
    let mut extra = 0.0;
    for (interval, facts) in stream.intervals().iter().enumerate() {
        while let Some(change) = freed.next_if(|c| c.interval as usize <= interval) {
            for slot in change.first..change.end {
                policy.free(slot);
            }
        }
        owned.go_to(interval);
        policy.begin(Now {
            interval: interval as u32,
            start: facts.start,
            length: facts.length,
        });
        let mut happened = Happened::default();
        let has_samples = samples
            .peek()
            .is_some_and(|s| s.interval as usize == interval);
        for run in stream.runs(interval) {
            let kind = usize::from(run.written == Some(true));
            for slot in run.first..run.end {
                let group = owned.group[slot as usize];
                let found = policy.touch(slot, group);
                outcome.found[found.at as usize] += 1;
                happened.served[found.serves as usize][kind] += 1;
                if found.at > 0 {
                    outcome.slow_by_group[group as usize] += 1;
                }
                if has_samples {
                    serves[slot as usize] = found.serves;
                }
            }
        }
        while let Some(sample) = samples.next_if(|s| s.interval as usize == interval) {
            let tier = served(&serves, &mut policy, sample.slot);
            happened.sampled[tier] += f64::from(sample.weight_ns);
        }
        policy.end();
        debug_assert!(policy.frames().holds(), "a tier holds more than it can");
        happened.moves = std::mem::take(&mut policy.frames().moves);
        for (from, row) in happened.moves.iter().enumerate() {
            outcome.demoted += row[from..].iter().sum::<u64>();
            outcome.promoted += row[..from].iter().sum::<u64>();
        }
        for (sum, here) in outcome.sampled_ns.iter_mut().zip(happened.sampled) {
            *sum += here;
        }
        extra += model.extra(facts, &happened);
    }
    outcome.fetched = policy.frames().fetched;
    outcome.modelled_ns = model.run(stream, extra);
    outcome
}

/// The tier that served the samples of a page: as its touch was, or where it is if it had none in the interval.
fn served<P: Policy>(serves: &[u8], policy: &mut P, slot: Slot) -> usize {
    match (serves[slot as usize], policy.frames().tier(slot)) {
        (ABSENT, ABSENT) => 0,
        (ABSENT, tier) | (tier, _) => tier as usize,
    }
}
