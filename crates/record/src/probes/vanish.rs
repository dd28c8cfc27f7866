//! Pages that vanish within an interval: unmapped, given back, moved. The kernel part reads them as they go.

use varve_bpf::{Doer, Event, TrackFlags};

use super::{Kind, Probe, Setup, Started, load_nothing};
use crate::state::State;
use crate::state::found::{Found, When};
use crate::{Ablation, RecordError};

pub(crate) const KIND: Kind = Kind {
    load: load_nothing,
    start,
};

fn start(setup: &mut Setup<'_>) -> Result<Started, RecordError> {
    if setup.options.counts.is_some() || setup.options.lacks(Ablation::Vanish) {
        return Ok(None);
    }
    setup.flags = setup.flags | TrackFlags::VANISH;
    Ok(Some(Box::new(Vanish)))
}

struct Vanish;

impl Probe for Vanish {
    fn event(&mut self, event: &Event<'_>, state: &mut State) {
        let Event::Vanish(vanish) = event else {
            return;
        };
        let pid = state.processes.owner_of_memory(vanish.pid);
        let next = state.is_next(vanish.time);
        // Who is not held may take pages between the end of the interval and the reading of its bits: what was
        // accessed before the end may be gone then, and what after it may be read here.
        let held = state.released.is_some_and(|r| vanish.time <= r);
        let both = next && held && (state.ran_on || vanish.doer == Doer::Another);
        let mut find = |when| {
            state.found.push(Found {
                pid,
                when,
                regions: vanish.regions().collect(),
            });
        };
        if next {
            find(When::VanishingNext);
        }
        if !next || both {
            find(When::Vanishing);
        }
    }
}
