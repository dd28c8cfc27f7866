//! What moves between tiers while programs run: the kernel's counters, and the pages of objects, from one look to the next.
//!
//! The kernel's counters are of the machine, and count each policy's moves in their own way. Where the pages of an object are, and what of
//! them changed since the look before, can be compared whatever moved them.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use serde::Serialize;
use varve_model::{Address, PAGE_BYTES, Pid};
use varve_sys::{
    MapEntry, PageState, Paging, maps, memory_pressure_us, nodes, status, tier_counters,
    tier_settings,
};

/// What the `schema` of a look says.
pub const WATCH_SCHEMA: &str = "varve-tier-watch/1";
/// Objects that are followed of a process, the largest.
const MAX_OBJECTS: usize = 64;
/// Smaller mappings are in no look.
const MIN_OBJECT: u64 = 256 << 10;
/// Pages that are followed of a process at most: 64 GiB.
const MAX_PAGES: u64 = 16 << 20;

/// One look.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct WatchLook {
    /// [`WATCH_SCHEMA`].
    pub schema: &'static str,
    /// Since the beginning, nanoseconds.
    pub time_ns: u64,
    /// The settings in force; in the first look, and in those after a change.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<&'static str, String>,
    /// What the counters of the machine grew by since the look before; those that did not are left out.
    pub counters: BTreeMap<String, i64>,
    /// The nodes of memory.
    pub nodes: Vec<WatchNode>,
    /// The time since the look before in which some, and all, tasks waited for memory, microseconds; null where the kernel does not account it.
    pub pressure_us: Option<[u64; 2]>,
    /// The processes that are watched.
    pub processes: Vec<WatchProcess>,
}

/// A node of memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct WatchNode {
    /// Its number.
    pub node: u32,
    /// Whether it has processors.
    pub has_cpus: bool,
    /// Its memory.
    pub bytes: u64,
    /// What of that is free; null where there is one node.
    pub free_bytes: Option<i64>,
    /// What its counters grew by since the look before.
    pub counters: BTreeMap<String, i64>,
}

/// A process.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct WatchProcess {
    /// Its number.
    pub pid: u32,
    /// CPU time since the look before, nanoseconds.
    pub cpu_ns: u64,
    /// Major faults since the look before.
    pub major_faults: u64,
    /// Its objects, the largest first.
    pub objects: Vec<WatchObject>,
}

/// An object: mappings of one name, or the objects of a place that is applied.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct WatchObject {
    /// What it is called.
    pub name: String,
    /// Where it begins.
    pub address: u64,
    /// Its size.
    pub bytes: u64,
    /// Pages in memory, by node.
    pub pages_on_node: BTreeMap<u32, u64>,
    /// Pages in swap.
    pub swapped_pages: u64,
    /// The share of its touched pages in the fastest tier: in memory, or where there are several nodes on the nearest.
    pub share_fast: Option<f64>,
    /// Pages that came to a faster tier since the look before.
    pub promoted: u64,
    /// Pages that went to a slower one.
    pub demoted: u64,
    /// Pages among these that had been promoted before.
    pub ping_pong: u64,
}

/// Where a page was: 0 nowhere, 1 to 0xfe the node's rank and one, 0xff in swap. The upper byte: whether it was promoted before.
type Seen = u16;
const SWAPPED: u16 = 0xff;
const PROMOTED: u16 = 0x100;

struct Object {
    entry: MapEntry,
    pages: Vec<Seen>,
}

struct Process {
    paging: Paging,
    cpu_ns: u64,
    major_faults: u64,
    objects: HashMap<u64, Object>,
}

/// Looks again and again.
pub struct Watch {
    began: Instant,
    counters: HashMap<varve_sys::TierCounter, i64>,
    pressure: Option<(u64, u64)>,
    settings: BTreeMap<&'static str, String>,
    /// Numbers of nodes, the nearest first.
    ranks: Vec<u32>,
    processes: HashMap<u32, Process>,
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").finish_non_exhaustive()
    }
}

impl Default for Watch {
    fn default() -> Self {
        Watch {
            began: Instant::now(),
            counters: tier_counters().into_iter().collect(),
            pressure: memory_pressure_us(),
            settings: BTreeMap::new(),
            ranks: nodes().into_iter().map(|n| n.number).collect(),
            processes: HashMap::new(),
        }
    }
}

impl Watch {
    /// Looks at the machine and at processes; those that have ended are left out.
    pub fn look(&mut self, pids: &[Pid]) -> WatchLook {
        let mut look = WatchLook {
            schema: WATCH_SCHEMA,
            time_ns: self.began.elapsed().as_nanos() as u64,
            ..WatchLook::default()
        };
        let settings: BTreeMap<_, _> = tier_settings().into_iter().collect();
        if settings != self.settings {
            look.settings.clone_from(&settings);
            self.settings = settings;
        }
        look.nodes = nodes()
            .into_iter()
            .map(|n| WatchNode {
                node: n.number,
                has_cpus: n.has_cpus,
                bytes: n.bytes.0,
                ..WatchNode::default()
            })
            .collect();
        for (counter, now) in tier_counters() {
            let before = self.counters.insert(counter.clone(), now).unwrap_or(now);
            let node = counter
                .node
                .and_then(|n| look.nodes.iter_mut().find(|w| w.node == n));
            match (node, counter.name.as_str()) {
                (Some(node), "free_bytes") => node.free_bytes = Some(now),
                (_, _) if now == before => {}
                (Some(node), _) => {
                    node.counters.insert(counter.name, now - before);
                }
                (None, _) => {
                    look.counters.insert(counter.name, now - before);
                }
            }
        }
        let pressure = memory_pressure_us();
        look.pressure_us = pressure.zip(self.pressure).map(|(now, before)| {
            [
                now.0.saturating_sub(before.0),
                now.1.saturating_sub(before.1),
            ]
        });
        self.pressure = pressure;
        self.processes.retain(|pid, _| pids.contains(&Pid(*pid)));
        look.processes = pids.iter().filter_map(|pid| self.process(*pid)).collect();
        look
    }

    fn process(&mut self, pid: Pid) -> Option<WatchProcess> {
        let now = status(pid).ok()?;
        let (cpu_ns, major_faults) = (now.user.0 + now.system.0, now.major_faults);
        let process = match self.processes.entry(pid.0) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(free) => free.insert(Process {
                paging: Paging::open(pid).ok()?,
                cpu_ns,
                major_faults,
                objects: HashMap::new(),
            }),
        };
        let mut found = WatchProcess {
            pid: pid.0,
            cpu_ns: cpu_ns.saturating_sub(process.cpu_ns),
            major_faults: major_faults.saturating_sub(process.major_faults),
            objects: Vec::new(),
        };
        (process.cpu_ns, process.major_faults) = (cpu_ns, major_faults);
        let mut entries = maps(pid).ok()?;
        entries.retain(|e| {
            e.bytes.0 >= MIN_OBJECT && !e.perms.starts_with("---") && e.path != "[vvar]"
        });
        entries.sort_by_key(|e| std::cmp::Reverse(e.bytes));
        entries.truncate(MAX_OBJECTS);
        let there: Vec<u64> = entries.iter().map(|e| e.address.0).collect();
        process.objects.retain(|at, _| there.contains(at));
        let mut left = MAX_PAGES;
        for entry in entries {
            let count = entry.bytes.0 / PAGE_BYTES;
            if count > left {
                continue;
            }
            left -= count;
            let at = entry.address.0;
            let object = process.objects.entry(at).or_insert_with(|| Object {
                entry: entry.clone(),
                pages: Vec::new(),
            });
            object.pages.resize(count as usize, 0);
            object.entry = entry;
            found
                .objects
                .extend(look_at(&process.paging, object, &self.ranks));
        }
        Some(found)
    }
}

/// Where the pages of an object are, and what changed.
fn look_at(paging: &Paging, object: &mut Object, ranks: &[u32]) -> Option<WatchObject> {
    let entry = &object.entry;
    let end = Address(entry.address.0 + entry.bytes.0);
    let states = paging.states(entry.address, end).ok()?;
    let mut places: Vec<u16> = states
        .iter()
        .map(|state| match state {
            PageState::Absent => 0,
            PageState::Resident => 1,
            PageState::Swapped => SWAPPED,
        })
        .collect();
    if ranks.len() > 1 {
        let at = |index: usize| Address(entry.address.0 + index as u64 * PAGE_BYTES);
        let resident: Vec<usize> = (0..places.len()).filter(|i| places[*i] == 1).collect();
        let pages: Vec<Address> = resident.iter().map(|i| at(*i)).collect();
        for (index, node) in resident.iter().zip(paging.nodes(&pages).ok()?) {
            let rank = ranks.iter().position(|n| i64::from(*n) == i64::from(node));
            places[*index] = rank.map_or(0, |r| r.min(0xf0) as u16 + 1);
        }
    }
    let mut found = WatchObject {
        name: name_of(entry),
        address: entry.address.0,
        bytes: entry.bytes.0,
        ..WatchObject::default()
    };
    (found.promoted, found.demoted, found.ping_pong) = compare(&mut object.pages, &places);
    let mut fast = 0u64;
    let mut touched = 0u64;
    for now in places {
        touched += u64::from(now != 0);
        fast += u64::from(now == 1);
        match now {
            0 => {}
            SWAPPED => found.swapped_pages += 1,
            rank => {
                let node = ranks.get(usize::from(rank) - 1).copied().unwrap_or(0);
                *found.pages_on_node.entry(node).or_default() += 1;
            }
        }
    }
    found.share_fast = (touched > 0).then(|| fast as f64 / touched as f64);
    (touched > 0).then_some(found)
}

/// Pages that came to a faster tier, that went to a slower one, and of these those that had come before.
fn compare(pages: &mut [Seen], places: &[u16]) -> (u64, u64, u64) {
    let (mut promotions, mut demotions, mut returns) = (0, 0, 0);
    for (before, now) in pages.iter_mut().zip(places.iter().copied()) {
        let was = *before & 0xff;
        let mut promoted = *before & PROMOTED;
        if now != 0 && was != 0 && now < was {
            promotions += 1;
            promoted = PROMOTED;
        }
        if now != 0 && was != 0 && now > was {
            demotions += 1;
            returns += u64::from(promoted != 0);
            promoted = 0;
        }
        *before = match now {
            0 => 0,
            now => now | promoted,
        };
    }
    (promotions, demotions, returns)
}

fn name_of(entry: &MapEntry) -> String {
    match entry.path.as_str() {
        "" => format!("anonymous memory at {:x}", entry.address.0),
        path => path.to_owned(),
    }
}

/// The processes that descend from one, and that one.
pub fn family(of: Pid) -> Vec<Pid> {
    let mut found = vec![of];
    let mut at = 0;
    while let Some(parent) = found.get(at).copied() {
        at += 1;
        for child in varve_sys::children_of(parent) {
            if found.len() < 256 && !found.contains(&child) {
                found.push(child);
            }
        }
    }
    found
}

/// The time that a look at everything should not exceed: beyond it, looks come less often.
pub const MIN_INTERVAL: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_memory_that_is_in_memory() {
        let mut memory = vec![1u8; 8 << 20];
        memory[77] = 3;
        let mut watch = Watch::default();
        let own = Pid(std::process::id());
        let look = watch.look(&[own]);
        assert!(!look.settings.is_empty());
        let at = memory.as_ptr() as u64;
        let holds = |o: &&WatchObject| (o.address..o.address + o.bytes).contains(&at);
        let found = look.processes[0].objects.iter().find(holds).unwrap();
        let pages: u64 = found.pages_on_node.values().sum::<u64>() + found.swapped_pages;
        assert!(pages >= 2048, "{found:?}");
        // Nothing is said of a process that is not there.
        assert!(watch.look(&[Pid(0x3fff_fff0)]).processes.is_empty());
    }

    #[test]
    fn a_page_that_was_promoted_and_goes_again_is_a_ping_pong() {
        // Six pages: one is made, one is promoted, one demoted, one given back, one stays, one is in swap and stays.
        let mut pages: Vec<Seen> = vec![0, SWAPPED, 1, 2, 1, SWAPPED];
        assert_eq!(compare(&mut pages, &[1, 1, 2, 0, 1, SWAPPED]), (1, 1, 0));
        // What was promoted goes again; what had only been made there, too, which is no ping-pong.
        assert_eq!(
            compare(&mut pages, &[2, SWAPPED, 2, 1, 1, SWAPPED]),
            (0, 2, 1)
        );
        // And a second time only after it has come again.
        assert_eq!(compare(&mut pages, &[2, SWAPPED, 1, 1, 1, 1]), (2, 0, 0));
        assert_eq!(
            compare(&mut pages, &[2, SWAPPED, SWAPPED, 1, 1, 2]),
            (0, 2, 2)
        );
    }
}
