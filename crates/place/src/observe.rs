//! Where the pages of placed objects are, as the kernel says.

use std::collections::HashMap;

use varve_model::{Address, PAGE_BYTES, Pid};
use varve_preload_abi::placing::{Action, Placements};
use varve_sys::{PageState, Paging};

use crate::backend::PlannedPlace;

/// Pages of an object that are looked at, at most: 64 GiB.
const MAX_PAGES: u64 = 16 << 20;

/// Where the pages of a place's objects are at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlaceLook {
    /// Pages in memory, or on the right node.
    pub near: u64,
    /// Pages in swap, or on another node.
    pub far: u64,
}

/// Looks at processes, which it keeps open.
#[derive(Debug, Default)]
pub struct Observer {
    processes: HashMap<u32, Option<Paging>>,
}

impl Observer {
    /// Where the pages of each place are. What has gone meanwhile, or has never been touched, is nowhere.
    pub fn look(&mut self, placements: &Placements, places: &[PlannedPlace]) -> Vec<PlaceLook> {
        let mut found = vec![PlaceLook::default(); places.len()];
        for object in placements.objects() {
            let Some(place) = places.get(object.place) else {
                continue;
            };
            let count = object.to.saturating_sub(object.from) / PAGE_BYTES;
            if count == 0 || count > MAX_PAGES {
                continue;
            }
            let paging = self
                .processes
                .entry(object.pid)
                .or_insert_with(|| Paging::open(Pid(object.pid)).ok());
            let Some(paging) = paging.as_ref().filter(|p| !p.has_ended()) else {
                continue;
            };
            let Ok(states) = paging.states(Address(object.from), Address(object.to)) else {
                continue;
            };
            let look = &mut found[object.place];
            match place.action {
                Action::Bind(node) => {
                    let resident = states.iter().enumerate();
                    let pages: Vec<Address> = resident
                        .filter(|(_, s)| **s == PageState::Resident)
                        .map(|(i, _)| Address(object.from + i as u64 * PAGE_BYTES))
                        .collect();
                    let on = paging.nodes(&pages).unwrap_or_default();
                    for page in on.into_iter().filter(|n| *n >= 0) {
                        match page.unsigned_abs() == node {
                            true => look.near += 1,
                            false => look.far += 1,
                        }
                    }
                }
                _ => {
                    for state in states {
                        match state {
                            PageState::Resident => look.near += 1,
                            PageState::Swapped => look.far += 1,
                            PageState::Absent => {}
                        }
                    }
                }
            }
        }
        self.processes
            .retain(|_, p| p.as_ref().is_none_or(|p| !p.has_ended()));
        found
    }
}
