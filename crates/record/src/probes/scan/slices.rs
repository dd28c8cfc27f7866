//! A pass over the target's memory in several short holds.
//!
//! In each hold a part is read and cleared. What is accessed after that sets its bit anew and is read when all parts are
//! cleared, without a hold: it counts in both intervals.

use std::collections::{HashMap, HashSet, VecDeque};

use varve_bpf::{Bitmap, BpfError, Kernel, Leaf, MmId, Part, Region};
use varve_model::{Address, Bytes, Duration, PAGE_BYTES, Pid, Time};
use varve_sys::{Cooling, monotonic_now, resident_bytes};

use super::{Scan, is_denied, is_gone};
use crate::RecordError;
use crate::probes::Held;
use crate::recorder::reclaim::reclaim;
use crate::rests::Rests;

/// What reading and clearing a page takes with all of its process, before that was measured.
const GUESS_NS: f64 = 100.0;
/// What reading a page takes, and clearing one that was accessed, in parts.
const GUESS_READ_NS: f64 = 40.0;
/// A page that was not accessed takes several times as long to be read as one that was, and nobody knows before.
const MIN_READ_NS: f64 = 20.0;
const GUESS_CLEAR_NS: f64 = 200.0;
/// The share of the time that is left which reading is to take: what was accessed is to be cleared in the rest.
const READING: f64 = 0.25;
/// A page table's worth of pages: less is not read.
const MIN_PAGES: u64 = 512;
/// Processes of fewer pages say little of what a page takes.
const TELLING_PAGES: u64 = 4096;
/// Of what was accessed in a process, the part that may stay uncleared.
const MAX_LEFT: u64 = 8;
/// The same of what is resident: libraries of a large process that accesses little stay uncleared.
const MAX_LEFT_OF_RESIDENT: u64 = 64;
/// Where less is left of the machine's memory or the cgroup's, pages are not moved to where they go first.
const SCARCE: Bytes = Bytes(64 << 20);

/// What is to be read and cleared, without a hold in between.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// All of a process, by `clear_refs`.
    Whole(Pid),
    /// What is left of a process, as much at a time as there is time for.
    Parts(Parts),
}

/// A process that is read and cleared in parts.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Parts {
    pid: Pid,
    /// None until the first part was read.
    mm: MmId,
    from: Address,
    resident: u64,
    /// Pages that were accessed, and those of them that could not be cleared.
    accessed: u64,
    left: u64,
}

/// A pass that goes on.
#[derive(Debug, Default)]
pub(super) struct Pass {
    units: VecDeque<Unit>,
    /// Address spaces that were begun.
    begun: HashSet<MmId>,
    /// Processes that were cleared in parts.
    in_parts: Vec<Pid>,
    left: Leftovers,
}

/// What a page takes, and who cannot be cleared in parts.
#[derive(Debug)]
pub(super) struct Slices {
    read_ns: f64,
    clear_ns: f64,
    whole_ns: f64,
    /// Processes most of whose pages are shared.
    shared: HashSet<Pid>,
    /// Whether the kernel clears parts.
    parts: bool,
    pgscan: Option<i64>,
    /// Passes in which nothing was cleared in parts as memory was short.
    scarce: u64,
    /// Intervals of which not all writes are known.
    unknown_writes: u64,
}

impl Default for Slices {
    fn default() -> Slices {
        Slices {
            read_ns: GUESS_READ_NS,
            clear_ns: GUESS_CLEAR_NS,
            whole_ns: GUESS_NS,
            shared: HashSet::new(),
            parts: true,
            pgscan: None,
            scarce: 0,
            unknown_writes: 0,
        }
    }
}

/// Pages whose bits were left set, by address space: that they are set later does not say that they were accessed.
#[derive(Debug, Default)]
pub(super) struct Leftovers(HashMap<MmId, (Pid, Left)>);

/// Of one address space.
type Left = HashMap<(u64, Leaf), Bitmap>;

impl Leftovers {
    /// Marks those that are read again.
    pub(super) fn mark(&self, mm: MmId, regions: &mut [Region]) {
        let Some((_, left)) = self.0.get(&mm).filter(|(_, left)| !left.is_empty()) else {
            return;
        };
        for region in regions {
            if let Some(bits) = left.get(&(region.base.0, region.leaf)) {
                for (i, bits) in bits.iter().enumerate() {
                    region.sticky[i] |= region.accessed[i] & bits;
                    region.accessed[i] &= !bits;
                }
            }
        }
    }

    /// The same of a process whose pages vanish: others may have been who accessed them.
    pub(super) fn mark_vanishing(&self, is: impl Fn(Pid) -> bool, regions: &mut [Region]) {
        for (pid, left) in self.0.values() {
            if left.is_empty() || !is(*pid) {
                continue;
            }
            for region in regions.iter_mut() {
                if let Some(bits) = left.get(&(region.base.0, region.leaf)) {
                    for (i, bits) in bits.iter().enumerate() {
                        region.others[i] |= region.accessed[i] & bits;
                        region.accessed[i] &= !bits;
                    }
                }
            }
        }
    }

    fn add(&mut self, pid: Pid, mm: MmId, region: &Region) {
        let (_, left) = self.0.entry(mm).or_insert_with(|| (pid, Left::new()));
        left.insert((region.base.0, region.leaf), region.accessed);
    }

    /// Adds those of an earlier pass.
    fn keep(&mut self, before: Leftovers) {
        for (mm, (pid, left)) in before.0 {
            let (_, kept) = self.0.entry(mm).or_insert_with(|| (pid, Left::new()));
            for (place, bits) in left {
                let kept = kept.entry(place).or_default();
                kept.iter_mut().zip(bits).for_each(|(a, b)| *a |= b);
            }
        }
    }

    fn forget(&mut self, mm: MmId) {
        self.0.remove(&mm);
    }
}

impl Slices {
    /// How many pages of a process are read when this much time is left.
    fn fit(&self, left: Duration) -> u64 {
        (left.0 as f64 * READING / self.read_ns.max(MIN_READ_NS)) as u64
    }

    /// Leaves out what cannot be cleared in the time that is left, but for the first; gives where that begins.
    fn cut(&self, regions: &mut Vec<Region>, left: Duration) -> Option<Address> {
        let most = (left.0 as f64 / self.clear_ns) as u64;
        let mut pages = 0;
        for at in 0..regions.len() {
            pages += accessed(&regions[at..=at]);
            let base = regions[at].base;
            if pages > most && at > 0 && regions[at - 1].base < base {
                regions.truncate(at);
                return Some(base);
            }
        }
        None
    }

    /// How long all of a process of so many pages takes.
    fn takes(&self, pages: u64) -> Duration {
        Duration((pages as f64 * self.whole_ns) as u64)
    }

    /// Whether a process of so many pages is cleared in parts when a hold is to be this short.
    fn divides(&self, pid: Pid, pages: u64, limit: Duration) -> bool {
        self.parts && !self.shared.contains(&pid) && self.takes(pages) > limit
    }

    fn measured(ns: &mut f64, pages: u64, took: Duration) {
        if pages >= TELLING_PAGES / 8 {
            let now = (took.0 as f64 / pages as f64).max(1.0);
            // A rise counts at once, a fall is believed slowly: the hold is to be no longer than asked.
            *ns = if now > *ns {
                now
            } else {
                *ns * 0.8 + now * 0.2
            };
        }
    }

    /// Who is no more is not known any more.
    pub(super) fn forget(&mut self, pid: Pid) {
        self.shared.remove(&pid);
    }

    /// What people should know.
    pub(super) fn describe(&self) -> impl Iterator<Item = String> {
        let scarce = (self.scarce > 0).then(|| {
            format!(
                "Memory was short at {} boundaries, where processes were cleared whole: clearing a part of one marks its pages as the first to go.",
                self.scarce
            )
        });
        let unknown = (self.unknown_writes > 0).then(|| {
            format!(
                "Not all writes are known in {} intervals: the memory was cleared in several short holds, and the kernel clears its marks of written pages of a whole process only.",
                self.unknown_writes
            )
        });
        scarce.into_iter().chain(unknown)
    }
}

/// Whether memory is so short that it matters which pages go first.
fn is_scarce(before: Option<i64>, now: Option<i64>) -> bool {
    let reclaims = before.zip(now).is_some_and(|(before, now)| now > before);
    reclaims || varve_sys::available_memory() < SCARCE
}

/// Neighbouring regions of which something is to be cleared, as ranges of addresses.
fn runs(regions: &[Region]) -> Vec<(Address, Address)> {
    let mut runs: Vec<(Address, Address)> = Vec::new();
    for region in regions {
        let bits = [
            &region.accessed,
            &region.young,
            &region.referenced,
            &region.others,
        ];
        // What is pinned or cannot be cleared stays as it is.
        if bits.iter().all(|bits| **bits == [0; 8]) {
            continue;
        }
        let bytes = region.leaf.bytes().0.max(Leaf::Huge2M.bytes().0);
        let end = Address(region.base.0 + bytes);
        match runs.last_mut() {
            Some(last) if last.1 >= region.base => last.1 = last.1.max(end),
            _ => runs.push((region.base, end)),
        }
    }
    runs
}

fn accessed(regions: &[Region]) -> u64 {
    let pages = |region: &Region| {
        let set: u32 = region.accessed.iter().map(|word| word.count_ones()).sum();
        u64::from(set) * (region.leaf.bytes().0 / PAGE_BYTES)
    };
    regions.iter().map(pages).sum()
}

impl Scan {
    /// Decides what a pass consists of, in holds that work for this long. The target runs.
    pub(super) fn plan(&mut self, held: &mut Held<'_>, limit: Duration) -> Result<(), RecordError> {
        self.forget();
        let now = reclaim();
        let is_scarce = is_scarce(self.slices.pgscan, now);
        self.slices.pgscan = now;
        let mut pass = Pass::default();
        for pid in held.pids {
            if self.leaves_out(*pid) {
                continue;
            }
            let Ok(bytes) = resident_bytes(*pid) else {
                continue;
            };
            let resident = bytes.0 / PAGE_BYTES;
            let divides = self.slices.divides(*pid, resident, limit);
            self.slices.scarce += u64::from(divides && is_scarce);
            pass.units.push_back(if divides && !is_scarce {
                Unit::Parts(Parts {
                    pid: *pid,
                    resident,
                    ..Parts::default()
                })
            } else {
                Unit::Whole(*pid)
            });
        }
        // Who is cleared whole loses the flags of pages that others have mapped, too.
        let shares = pass.units.len() > 1;
        if pass.units.iter().any(|u| matches!(u, Unit::Parts(_))) {
            held.kernel.clears_parts()?;
            // The kernel clears those of a whole process only, which is done when the pass ends.
            held.reading.loses_writes = held.kernel.tells_writes();
            self.slices.unknown_writes += u64::from(held.reading.loses_writes);
        }
        self.pass = Some(pass);
        if shares {
            self.look_ahead(held)?;
        }
        Ok(())
    }

    /// Reads all of them before the first is cleared.
    fn look_ahead(&mut self, held: &mut Held<'_>) -> Result<(), RecordError> {
        let rests = Rests::begin();
        for pid in held.pids {
            if self.leaves_out(*pid) {
                continue;
            }
            let mut regions = Vec::new();
            let mut add = |region: &Region| {
                regions.push(*region);
                rests.rest();
            };
            match held.kernel.walk(*pid, &mut add) {
                Ok(stats) => self.add(*pid, stats.mm, regions),
                Err(BpfError::NoProcess(_) | BpfError::MemoryGone(_)) => {}
                Err(e) => return Err(e.into()),
            }
            held.kernel.relieve();
        }
        Ok(())
    }

    /// Reads and clears as much as can be done until then; at least a little.
    pub(super) fn slice(&mut self, held: &mut Held<'_>, until: Time) -> Result<(), RecordError> {
        let Some(mut pass) = self.pass.take() else {
            return Ok(());
        };
        let mut is_first = true;
        while let Some(unit) = pass.units.pop_front() {
            let left = until_then(until, monotonic_now());
            let fits = match &unit {
                Unit::Whole(pid) => {
                    let bytes = resident_bytes(*pid).map_or(0, |bytes| bytes.0);
                    self.slices.takes(bytes / PAGE_BYTES) <= left
                }
                Unit::Parts(_) => self.slices.fit(left) >= MIN_PAGES,
            };
            if !fits && !is_first {
                pass.units.push_front(unit);
                break;
            }
            is_first = false;
            match unit {
                Unit::Whole(pid) => self.whole(pid, held, &mut pass)?,
                Unit::Parts(parts) => {
                    let rest = self.part(parts, until, held, &mut pass)?;
                    rest.into_iter().for_each(|u| pass.units.push_front(u));
                }
            }
        }
        held.slice.more = !pass.units.is_empty();
        self.pass = Some(pass);
        Ok(())
    }

    fn whole(&mut self, pid: Pid, held: &mut Held<'_>, pass: &mut Pass) -> Result<(), RecordError> {
        let began = monotonic_now();
        let mut regions = Vec::new();
        let stats = match held.kernel.walk(pid, &mut |r| regions.push(*r)) {
            Ok(stats) => stats,
            Err(BpfError::NoProcess(_) | BpfError::MemoryGone(_)) => return Ok(()),
            Err(e) => return Err(e.into()),
        };
        if stats.first_ended {
            self.without_first.insert(pid);
        }
        held.reading.failures += stats.flag_failures + stats.table_failures;
        self.left.mark(stats.mm, &mut regions);
        self.add(pid, stats.mm, regions);
        pass.begun.insert(stats.mm);
        pass.left.forget(stats.mm);
        self.clear_one(pid, held)?;
        let took = monotonic_now() - began;
        Slices::measured(&mut self.slices.whole_ns, stats.present_pages, took);
        Ok(())
    }

    /// Reads and clears a part of a process, until then; gives what is left of it to be done.
    fn part(
        &mut self,
        mut parts: Parts,
        until: Time,
        held: &mut Held<'_>,
        pass: &mut Pass,
    ) -> Result<Option<Unit>, RecordError> {
        let began = monotonic_now();
        let most = self.slices.fit(until_then(until, began)).max(MIN_PAGES);
        let pid = parts.pid;
        let part = Part {
            mm: parts.mm,
            start: parts.from,
            most: Some(most),
            ..Part::default()
        };
        let mut regions = Vec::new();
        let walked = held.kernel.walk_part(pid, &part, &mut |r| regions.push(*r));
        let (stats, mut resume) = match walked {
            Ok(walked) => walked,
            // Ended, or runs another program, which is all new.
            Err(BpfError::NoProcess(_) | BpfError::MemoryGone(_)) => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        if stats.first_ended {
            // There is no descriptor of the others.
            return Ok(Some(Unit::Whole(pid)));
        }
        let is_first = parts.mm == MmId::default();
        if is_first && !pass.begun.insert(stats.mm) {
            return Ok(None);
        }
        parts.mm = stats.mm;
        held.reading.failures += stats.flag_failures + stats.table_failures;
        let read = monotonic_now();
        Slices::measured(&mut self.slices.read_ns, stats.present_pages, read - began);
        let cut = self.slices.cut(&mut regions, until_then(until, read));
        resume = cut.or(resume);
        let (runs, count) = (runs(&regions), accessed(&regions));
        parts.accessed += count;
        self.left.mark(stats.mm, &mut regions);
        self.add(pid, stats.mm, regions);
        if let Err(error) = clear(pid, &runs) {
            if !is_gone(&error) && !is_denied(&error) {
                self.slices.parts = false;
            }
            return Ok(Some(Unit::Whole(pid)));
        }
        parts.left += look_again(pid, stats.mm, &runs, held.kernel, &mut pass.left)?;
        let took = monotonic_now() - read;
        Slices::measured(&mut self.slices.clear_ns, count, took);
        let is_over = resume.is_none();
        let too_many = parts.left > parts.resident / MAX_LEFT_OF_RESIDENT;
        if too_many
            && parts.left > parts.accessed / MAX_LEFT
            && (is_over || parts.left > parts.resident / MAX_LEFT)
        {
            self.slices.shared.insert(pid);
            return Ok(Some(Unit::Whole(pid)));
        }
        Ok(match resume {
            Some(from) => {
                parts.from = from;
                Some(Unit::Parts(parts))
            }
            None => {
                pass.in_parts.push(pid);
                None
            }
        })
    }

    /// All parts are cleared: flushes the translations of pages whose bits somebody else had taken, and that were not flushed
    /// therefore. The target runs: what it accessed by such a translation had been read.
    pub(super) fn end_pass(&mut self) {
        let Some(pass) = self.pass.take() else {
            return;
        };
        let before = std::mem::replace(&mut self.left, pass.left);
        if !pass.units.is_empty() {
            // The recording ends: what was not read again may still be stale.
            self.left.keep(before);
        }
        if !self.flushes {
            return;
        }
        for pid in pass.in_parts {
            if let Ok(mut file) = varve_sys::ClearRefs::open(pid) {
                // Of one that has ended nothing is left to flush.
                let _ = file.flush();
            }
        }
    }
}

fn until_then(until: Time, now: Time) -> Duration {
    Duration(until.0.saturating_sub(now.0))
}

/// Clears the accessed bits of ranges.
fn clear(pid: Pid, runs: &[(Address, Address)]) -> std::io::Result<()> {
    if runs.is_empty() {
        return Ok(());
    }
    let cooling = Cooling::open(pid)?;
    runs.iter()
        .try_for_each(|(start, end)| cooling.clear(pid, *start, *end))
}

/// Counts pages whose bits are set still, and remembers them.
fn look_again(
    pid: Pid,
    mm: MmId,
    runs: &[(Address, Address)],
    kernel: &mut Kernel,
    left: &mut Leftovers,
) -> Result<u64, RecordError> {
    let mut count = 0;
    for (start, end) in runs {
        let part = Part {
            mm,
            start: *start,
            end: Some(*end),
            ..Part::default()
        };
        let walked = kernel.walk_part(pid, &part, &mut |region| {
            let uncleared = accessed(std::slice::from_ref(region));
            if uncleared > 0 {
                left.add(pid, mm, region);
                count += uncleared;
            }
        });
        match walked {
            Ok(_) | Err(BpfError::NoProcess(_) | BpfError::MemoryGone(_)) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(count)
}

#[cfg(test)]
mod tests;
