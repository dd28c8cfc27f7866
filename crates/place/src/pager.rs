//! Memory under a limit, from outside the program: what is cold goes to swap before the program has to wait for room.
//!
//! Pages that stay are kept by locks. Of the objects that yield, as many pages stay as there is room for, always the same ones; what else
//! is used of them comes in, and goes out again behind its use, the oldest first. A program that goes over more memory than it has, again
//! and again, finds those pages every time; a reclaim that takes the least recently used page would have it find none.

use std::collections::HashMap;
use std::time::Duration;

use varve_model::{Address, Bytes, PAGE_BYTES, Pid};
use varve_preload_abi::placing::{Action, Placements};
use varve_sys::{LimitedGroup, PageState, Paging};

use crate::backend::PlannedPlace;

/// How often it is looked whether there is room.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Pages of an object that are looked at, at most: 64 GiB.
const MAX_PAGES: u64 = 16 << 20;

/// What is known of the pages of an object.
struct Followed {
    pid: Pid,
    from: u64,
    to: u64,
    /// When each page was first seen in memory since it was last out: a look's number, or 0.
    came: Vec<u32>,
    /// Whether it is one of those that stay.
    stays: Vec<bool>,
    /// The look at which the object was last there.
    seen: u32,
}

/// Pages out what is cold.
pub(crate) struct Pager {
    limit: Bytes,
    /// As much is to be free.
    room: Bytes,
    look: u32,
    objects: HashMap<(u32, u64), Followed>,
    processes: HashMap<u32, Option<Paging>>,
    /// Pages that were asked to go out.
    pub(crate) paged_out: u64,
    /// Why the kernel refuses it.
    pub(crate) refused: Option<std::io::Error>,
}

impl Pager {
    pub(crate) fn new(limit: Bytes) -> Pager {
        let room = (limit.0 / 16).clamp(1 << 20, 64 << 20).min(limit.0 / 4);
        Pager {
            limit,
            room: Bytes(room),
            look: 0,
            objects: HashMap::new(),
            processes: HashMap::new(),
            paged_out: 0,
            refused: None,
        }
    }

    /// Looks whether there is room, and makes some.
    pub(crate) fn turn(
        &mut self,
        group: &LimitedGroup,
        placements: &Placements,
        places: &[PlannedPlace],
    ) {
        if self.refused.is_some() {
            return;
        }
        let used = group.used();
        if used.0 + self.room.0 <= self.limit.0 {
            return;
        }
        self.look += 1;
        let members = group.members();
        let is_cold = |place: usize| places.get(place).is_some_and(|p| p.action == Action::Yield);
        for object in placements.objects() {
            let count = object.to.saturating_sub(object.from) / PAGE_BYTES;
            if !is_cold(object.place)
                || !members.contains(&Pid(object.pid))
                || count == 0
                || count > MAX_PAGES
            {
                continue;
            }
            let key = (object.pid, object.from);
            let followed = self.objects.entry(key).or_insert_with(|| Followed {
                pid: Pid(object.pid),
                from: object.from,
                to: object.to,
                came: Vec::new(),
                stays: Vec::new(),
                seen: 0,
            });
            if followed.to != object.to || followed.came.len() != count as usize {
                followed.to = object.to;
                followed.came = vec![0; count as usize];
                followed.stays = vec![false; count as usize];
            }
            followed.seen = self.look;
        }
        let look = self.look;
        self.objects.retain(|_, o| o.seen == look);
        self.page_out(used);
    }

    fn page_out(&mut self, used: Bytes) {
        // What is in memory of objects that yield, and when it came.
        let (mut resident, mut staying) = (0u64, 0u64);
        let mut candidates: Vec<(u32, (u32, u64), usize)> = Vec::new();
        for (key, object) in &mut self.objects {
            let pid = object.pid;
            let paging = self
                .processes
                .entry(key.0)
                .or_insert_with(|| Paging::open(pid).ok());
            let Some(paging) = paging.as_ref().filter(|p| !p.has_ended()) else {
                object.seen = 0;
                continue;
            };
            let Ok(states) = paging.states(Address(object.from), Address(object.to)) else {
                object.seen = 0;
                continue;
            };
            for (index, state) in states.iter().enumerate().take(object.came.len()) {
                if *state != PageState::Resident {
                    object.came[index] = 0;
                    continue;
                }
                resident += 1;
                if object.came[index] == 0 {
                    object.came[index] = self.look;
                }
                match object.stays[index] {
                    true => staying += 1,
                    false => candidates.push((object.came[index], *key, index)),
                }
            }
        }
        self.objects.retain(|_, o| o.seen != 0);
        // Twice the room is to be free afterwards, so that not every look has to make some.
        let target = self.limit.0.saturating_sub(2 * self.room.0);
        let excess = used.0.saturating_sub(target).div_ceil(PAGE_BYTES);
        // The others' share is what it is; what these may have follows, and half of what goes through needs no place to stay.
        let others = (used.0 / PAGE_BYTES).saturating_sub(resident);
        let may_stay = (target / PAGE_BYTES).saturating_sub(others);
        candidates.sort_unstable();
        let free_to_stay = may_stay
            .saturating_sub(staying)
            .min(candidates.len() as u64) as usize;
        // Those that came last in the first look have not been used again yet; the others have stayed through it.
        for (_, key, index) in candidates.iter().take(free_to_stay) {
            if let Some(object) = self.objects.get_mut(key) {
                object.stays[*index] = true;
            }
        }
        let mut out: Vec<((u32, u64), usize)> = candidates
            .iter()
            .skip(free_to_stay)
            .take(excess as usize)
            .map(|(_, key, index)| (*key, *index))
            .collect();
        // Where others have grown, fewer can stay.
        let mut too_many = staying
            .saturating_sub(may_stay)
            .min(excess - out.len() as u64);
        for (key, object) in &mut self.objects {
            for index in (0..object.stays.len()).rev() {
                if too_many == 0 {
                    break;
                }
                if object.stays[index] && object.came[index] != 0 {
                    object.stays[index] = false;
                    out.push((*key, index));
                    too_many -= 1;
                }
            }
        }
        self.send_out(out);
    }

    /// Has pages go out, side by side ones together.
    fn send_out(&mut self, mut out: Vec<((u32, u64), usize)>) {
        out.sort_unstable();
        let mut ranges: HashMap<u32, Vec<(Address, Address)>> = HashMap::new();
        for ((pid, from), index) in &out {
            let at = from + *index as u64 * PAGE_BYTES;
            let of = ranges.entry(*pid).or_default();
            match of.last_mut() {
                Some((_, end)) if end.0 == at => end.0 += PAGE_BYTES,
                _ => of.push((Address(at), Address(at + PAGE_BYTES))),
            }
        }
        for (pid, ranges) in ranges {
            let Some(Some(paging)) = self.processes.get(&pid) else {
                continue;
            };
            match paging.page_out(&ranges) {
                Ok(()) => {}
                // It has ended.
                Err(e) if e.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) => {}
                Err(e) => self.refused = Some(e),
            }
        }
        self.paged_out += out.len() as u64;
    }
}
