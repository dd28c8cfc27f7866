//! Pages that vanish within an interval: unmapped, given back, moved. The kernel part reads them as they go, as far as it sees
//! them go; what has gone unseen the readings of two boundaries show.

mod gone;

use std::collections::{HashMap, HashSet};
use std::fs;
use std::ops::Range;

use varve_bpf::{
    Bitmap, Doer, Event, ForkKind, Kernel, LoadOptions, Mapping, MappingCall, Refused, Region,
    Resident, TrackFlags, VanishCause, VanishHooks,
};
use varve_model::{Bytes, Duration, Loss, Pid, Time};
use varve_trace::Manifest;

use self::gone::{Area, Change, Space};
use super::{Held, Kind, Lost, Probe, Setup, Started, Step};
use crate::rests::Rests;
use crate::state::State;
use crate::state::found::{Found, Unseen, When};
use crate::state::pages::{Pages, Residents};
use crate::{Ablation, RecordError, RecordOptions, TrapsChoice, VanishChoice};

pub(crate) const KIND: Kind = Kind { load, start };

fn load(options: &RecordOptions, load: &mut LoadOptions) {
    // A fault handler moves pages of the target without a lock: what is resident where says nothing then.
    if options.vanish == VanishChoice::Exact || options.traps != TrapsChoice::Off {
        load.vanish = VanishHooks::Calls;
    }
}

fn start(setup: &mut Setup<'_>) -> Result<Started, RecordError> {
    if !setup.options.scans() || setup.options.lacks(Ablation::Vanish) {
        return Ok(None);
    }
    setup.flags = setup.flags | TrackFlags::VANISH;
    setup.manifest.features.vanish = Some(hooks(setup.kernel).into());
    let compares = compares(setup.options, setup.kernel);
    Ok(Some(Box::new(Vanish {
        spaces: compares.then(HashMap::new),
        went: HashMap::new(),
        huge: has_huge_pages(),
        has_begun: false,
        wants_moves: false,
        unwatched: 0,
        system_call: match setup.kernel.vanish_hooks() {
            VanishHooks::Calls => Some(SystemCall::now(setup.system_call)),
            VanishHooks::Locks => None,
        },
    })))
}

/// Whether what is resident at one boundary is compared with what is at the next.
pub(crate) fn compares(options: &RecordOptions, kernel: &Kernel) -> bool {
    let is_wanted = options.scans() && !options.lacks(Ablation::Vanish);
    is_wanted && kernel.vanish_hooks() == VanishHooks::Locks
}

/// Adds what is there in a region, in order of addresses.
pub(crate) fn add_resident(residents: &mut Residents, resident: &Resident) {
    let first = resident.base.0 >> 21;
    // Of a huge page of 1 GiB every 2 MiB.
    let regions = resident.leaf.bytes().0.div_ceil(1 << 21);
    residents.extend((first..first + regions).map(|region| (region, resident.pages)));
}

/// The word in manifests.
fn hooks(kernel: &Kernel) -> &'static str {
    match kernel.vanish_hooks() {
        VanishHooks::Locks => "locks",
        VanishHooks::Calls => "exact",
    }
}

/// Whether one fault may map 2 MiB of anonymous memory.
fn has_huge_pages() -> bool {
    let policy = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    policy.is_ok_and(|policy| !policy.contains("[never]"))
}

/// Whether a process has a userfaultfd open. One that another process uses for it is not found.
fn has_userfaultfd(pid: Pid) -> bool {
    let links = fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten();
    let mut targets = links.flatten().filter_map(|e| fs::read_link(e.path()).ok());
    targets.any(|target| target.as_os_str() == "anon_inode:[userfaultfd]")
}

struct Vanish {
    /// By whose memory it is; none where the kernel part sees everything go.
    spaces: Option<HashMap<Pid, Space>>,
    /// Pages that went unseen, or may have, in the interval that ends. Of what was found of them it is not known whether it is all.
    went: HashMap<Pid, Pages>,
    huge: bool,
    /// Whether the processes that ran before the recording were looked at.
    has_begun: bool,
    /// Memory was registered with userfaultfd.
    wants_moves: bool,
    /// Times that it was, and nobody sees what is moved there.
    unwatched: u64,
    /// What a system call takes anybody, once programs look at all of them.
    system_call: Option<SystemCall>,
}

/// What a system call took before programs looked at all of them, and with those.
struct SystemCall {
    before: Duration,
    with: Duration,
}

impl SystemCall {
    fn now(before: Duration) -> SystemCall {
        SystemCall {
            before,
            with: varve_sys::system_call_time(),
        }
    }

    /// What people should know.
    fn describe(&self) -> String {
        format!(
            "System calls are looked at: while this was recorded one took any process of this machine {} ns, and {} ns before.",
            self.with.0, self.before.0
        )
    }
}

impl Vanish {
    fn change(&mut self, pid: Pid, time: Time, change: Change, state: &State) {
        let Some(spaces) = &mut self.spaces else {
            return;
        };
        let pid = state.processes.owner_of_memory(pid);
        let space = spaces.entry(pid).or_default();
        let next = state.is_next(time);
        // What happens while a target that runs on is read belongs to both intervals: it may have been read after it.
        let read = state.ran_on && state.released.is_some_and(|read| time <= read);
        if next && read {
            space.change(change.clone(), false);
        }
        space.change(change, next);
    }

    /// The fault was no touch, and left nothing there.
    fn refused(&mut self, refused: &Refused, state: &State) {
        let pid = state.processes.owner_of_memory(refused.pid);
        if let Some(space) = self.spaces.as_mut().and_then(|spaces| spaces.get_mut(&pid)) {
            space.refuse(refused.address.page().address().0);
        }
    }

    fn mapping_changed(&mut self, mapping: &Mapping<'_>, state: &State) {
        if (-4095..0).contains(&mapping.result) {
            return;
        }
        let result = mapping.result as u64;
        let change = match mapping.call {
            MappingCall::Remap {
                old_address,
                old_bytes,
                new_bytes,
                ..
            } if old_address.0 != result => {
                Change::Moved(old_address.0, result, old_bytes.0.min(new_bytes.0))
            }
            MappingCall::Map { bytes, flags, .. }
                if flags as i32 & (libc::MAP_POPULATE | libc::MAP_LOCKED) != 0 =>
            {
                Change::Populated(result, result + bytes.0)
            }
            _ => return,
        };
        self.change(mapping.pid, mapping.time, change, state);
    }

    /// A child has copies of its parent's private memory. What it shares it maps itself, by faults.
    fn forked(&mut self, parent: Pid, child: Pid, state: &State) {
        let Some(spaces) = &mut self.spaces else {
            return;
        };
        let parent = state.processes.owner_of_memory(parent);
        let private: Vec<Range<u64>> = state
            .processes
            .mappings(parent)
            .filter(|(entry, _)| {
                let perms = entry.perms.as_bytes();
                perms.get(3) == Some(&b'p') && (entry.inode == 0 || perms.get(1) == Some(&b'w'))
            })
            .map(|(entry, _)| entry.address.0..(entry.address + entry.bytes).0)
            .collect();
        if let Some(space) = spaces.get(&parent) {
            let space = space.forked(&private);
            spaces.insert(child, space);
        }
    }

    fn vanished(&mut self, event: &varve_bpf::Vanish<'_>, state: &mut State) {
        if let Some((start, end)) = event.range {
            let change = match event.cause {
                VanishCause::Populate => Change::Populated(start.0, end.0),
                _ => {
                    let mut there = Residents::new();
                    event.residents().for_each(|r| add_resident(&mut there, &r));
                    Change::Removed(start.0, end.0, there)
                }
            };
            self.change(event.pid, event.time, change, state);
        }
        let pid = state.processes.owner_of_memory(event.pid);
        let next = state.is_next(event.time);
        // Who is not held may take pages between the end of the interval and the reading of its bits: what was
        // accessed before the end may be gone then, and what after it may be read here.
        let held = state.released.is_some_and(|r| event.time <= r);
        let both = next && held && (state.ran_on || event.doer == Doer::Another);
        let mut find = |when| {
            state.found.push(Found {
                pid,
                when,
                regions: event.regions().collect(),
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

impl Probe for Vanish {
    fn event(&mut self, event: &Event<'_>, state: &mut State) {
        match event {
            Event::Vanish(vanish) => self.vanished(vanish, state),
            // What execve writes for a program that begins is read with that.
            Event::Fault(fault) if fault.is_next => {}
            Event::Fault(fault) => {
                let page = fault.address.page().address().0;
                self.change(fault.pid, fault.time, Change::Fault(page), state);
            }
            Event::Refused(refused) => self.refused(refused, state),
            Event::Registration => self.wants_moves = true,
            Event::Mapping(mapping) => self.mapping_changed(mapping, state),
            Event::Fork(fork) if fork.kind == ForkKind::Process && fork.tracked => {
                self.forked(fork.parent, fork.pid, state);
            }
            Event::Exec(exec) => self.change(exec.pid, exec.time, Change::Ended, state),
            Event::Exit(exit) if exit.last => {
                let owner = state.processes.owner_of_memory(exit.pid);
                // A child that has not run a program of its own ends in its parent's memory.
                if owner == exit.pid {
                    self.change(exit.pid, exit.time, Change::Ended, state);
                }
            }
            _ => {}
        }
    }

    fn apply(&mut self, kernel: &mut Kernel) -> Result<(), RecordError> {
        if self.spaces.is_some() && !std::mem::replace(&mut self.has_begun, true) {
            self.wants_moves |= kernel.tracked()?.list().into_iter().any(has_userfaultfd);
        }
        if std::mem::take(&mut self.wants_moves) {
            let before = varve_sys::system_call_time();
            if kernel.watch_moves().is_err() {
                self.unwatched += 1;
            } else if self.system_call.is_none() {
                self.system_call = Some(SystemCall::now(before));
            }
        }
        Ok(())
    }

    fn finish(&mut self, manifest: &mut Manifest, _: bool) {
        manifest
            .notes
            .extend(self.system_call.as_ref().map(SystemCall::describe));
    }

    fn losses(&self, lost: &mut Lost) {
        lost.push((Loss::VanishWalks, self.unwatched));
    }

    fn held(&mut self, step: Step, held: &mut Held<'_>) -> Result<(), RecordError> {
        let Some(spaces) = self
            .spaces
            .as_mut()
            .filter(|_| matches!(step, Step::Clear | Step::Adopt))
        else {
            return Ok(());
        };
        // Of whom nothing is known yet, such as one that ran before the recording.
        for (pid, residents) in &held.state.residents {
            let pid = held.state.processes.owner_of_memory(*pid);
            let space = || Space::of(residents.clone());
            spaces.entry(pid).or_insert_with(space);
        }
        Ok(())
    }

    fn unseen(&mut self, found: &[Found], state: &mut State) -> Vec<Unseen> {
        let Some(spaces) = &mut self.spaces else {
            return Vec::new();
        };
        let read = std::mem::take(&mut state.residents);
        let mut residents: HashMap<Pid, Residents> = read
            .into_iter()
            .map(|(pid, residents)| (state.processes.owner_of_memory(pid), residents))
            .collect();
        let mut unseen = Vec::new();
        let mut over = HashSet::new();
        self.went.clear();
        let rests = Rests::begin();
        for (pid, space) in spaces.iter_mut() {
            rests.rest();
            let residents = residents.remove(pid);
            // It could not be read, and goes on.
            let goes_on = state.processes.all.contains_key(pid) && !space.is_over();
            if residents.is_none() && goes_on {
                continue;
            }
            if residents.is_none() {
                over.insert(*pid);
            }
            let areas = || areas(*pid, state);
            let mut gone = space.close(residents.unwrap_or_default(), areas, self.huge);
            if gone.accessed.is_empty() && gone.perhaps.is_empty() {
                continue;
            }
            let went = self.went.entry(*pid).or_default();
            for pages in [&mut gone.accessed, &mut gone.perhaps] {
                went.add(pages);
                let at_boundary = found.iter().filter(|f| f.pid == *pid);
                pages.take_away_regions(at_boundary.flat_map(|f| &f.regions));
                pages.take_away_regions(state.vanished.of(*pid));
            }
            unseen.push(Unseen {
                pid: *pid,
                accessed: gone.accessed.into_regions(),
                perhaps: gone.perhaps.into_regions(),
            });
        }
        spaces.retain(|pid, _| !over.contains(pid));
        unseen
    }

    /// They were read, and may have been written before they went.
    fn perhaps_written(&self, pid: Pid, region: &Region) -> Bitmap {
        let went = self.went.get(&pid);
        went.map_or([0; 8], |went| went.of_region(region))
    }

    fn discard(&mut self, _until: Time) {
        let spaces = self.spaces.iter_mut().flat_map(HashMap::values_mut);
        spaces.for_each(Space::forget);
    }
}

fn areas(pid: Pid, state: &State) -> Vec<Area> {
    let mappings = state
        .processes
        .mappings(pid)
        .filter(|(e, _)| e.bytes > Bytes(0));
    mappings
        .map(|(entry, _)| Area {
            addresses: entry.address.0..(entry.address + entry.bytes).0,
            is_file: entry.identity().is_some(),
        })
        .collect()
}
