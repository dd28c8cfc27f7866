//! What is known of the target: kept up to date from the kernel's events, and shared by all probes.

pub(crate) mod build_ids;
pub(crate) mod emulator;
pub(crate) mod found;
mod inheritance;
pub(crate) mod live_heap;
pub(crate) mod mapped_again;
pub(crate) mod objects;
mod open_modules;
pub(crate) mod pages;
pub(crate) mod processes;
mod programs;
pub(crate) mod ranges;
pub(crate) mod stacks;
pub(crate) mod tables;

use std::collections::HashMap;

use varve_model::{Pid, Time};
use varve_sys::MovedPages;

use self::found::{Found, Vanished};
use self::objects::LiveObjects;
use self::pages::Residents;
use self::processes::Processes;
use self::stacks::Stacks;
use self::tables::Tables;
use crate::target::channel::{Arrival, Channel};

/// All of it.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) processes: Processes,
    pub(crate) objects: LiveObjects,
    pub(crate) stacks: Stacks,
    pub(crate) tables: Tables,
    /// Touched pages that probes have found, until all others have had a look at them.
    pub(crate) found: Vec<Found>,
    /// Pages that vanished in the interval that runs, and in the next.
    pub(crate) vanished: Vanished,
    pub(crate) vanished_next: Vanished,
    /// What was resident at the boundary, where that is compared, by the process that was read.
    pub(crate) residents: HashMap<Pid, Residents>,
    /// What processes sent.
    pub(crate) arrivals: Arrivals,
    /// Pages that fault handlers have moved, which the watchdog brings back should those end.
    pub(crate) moved_pages: Vec<MovedPages>,
    /// Nothing before the target's own program counts.
    pub(crate) waits_for_exec_of: Option<Pid>,
    /// When the recording began.
    pub(crate) began: Time,
    /// Events up to here belong to the interval that runs.
    pub(crate) boundary: Option<Time>,
    /// When the end of the interval began to be worked at: bits are cleared from here on.
    pub(crate) boundary_began: Time,
    /// The target was held from `boundary` up to here, or read while it ran on.
    pub(crate) released: Option<Time>,
    /// It ran on.
    pub(crate) ran_on: bool,
    /// Whether a new program began since this was last looked at.
    pub(crate) new_program: bool,
}

impl State {
    /// Whether what happens at this moment belongs to the next interval.
    pub(crate) fn is_next(&self, time: Time) -> bool {
        self.boundary.is_some_and(|b| time > b)
    }

    /// Whether bits may have been cleared at this moment, or since, for the end of the interval that runs.
    pub(crate) fn is_within_boundary(&self, time: Time) -> bool {
        self.boundary.is_some() && time >= self.boundary_began
    }
}

/// What processes of the target handed over to the recorder, or were given by it.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    channel: Option<Channel>,
    waiting: Vec<Arrival>,
}

impl Arrivals {
    /// Of this channel.
    pub(crate) fn of(channel: Option<Channel>) -> Arrivals {
        Arrivals {
            channel,
            waiting: Vec::new(),
        }
    }

    /// Those that have come and that this probe wants; the rest stays for others.
    pub(crate) fn take<T>(
        &mut self,
        mut wanted: impl FnMut(Arrival) -> Result<T, Arrival>,
    ) -> Vec<T> {
        if let Some(channel) = &self.channel {
            self.waiting.extend(std::iter::from_fn(|| channel.next()));
        }
        let mut taken = Vec::new();
        for arrival in std::mem::take(&mut self.waiting) {
            match wanted(arrival) {
                Ok(one) => taken.push(one),
                Err(other) => self.waiting.push(other),
            }
        }
        taken
    }

    /// Connections that were refused: those of strangers, and those of tracked processes.
    pub(crate) fn refused(&self) -> (u64, u64) {
        self.channel.as_ref().map_or((0, 0), Channel::refused)
    }
}
