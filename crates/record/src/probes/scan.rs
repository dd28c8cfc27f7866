//! Accessed bits, read and cleared while the target is held still, or cleared by a kernel that keeps what it clears.

mod slices;

use std::collections::{HashMap, HashSet};
use std::io;

use varve_bpf::{BpfError, Harvest, Kernel, LoadOptions, MmId, PageFlags, Region};
use varve_model::{Loss, Pid, Time};
use varve_sys::ClearRefs;
use varve_trace::Manifest;

use self::slices::{Leftovers, Pass, Slices};
use super::vanish;
use super::{Held, Kind, Lost, Probe, Reading, Setup, Started, Step};
use crate::rests::Rests;
use crate::state::State;
use crate::state::found::{Found, When};
use crate::state::pages::Residents;
use crate::{Ablation, HoldChoice, RecordError, RecordOptions, TrapsChoice};

/// Files of processes that are kept open from one boundary to the next, at most.
const MAX_OPEN: usize = 4096;

pub(crate) const KIND: Kind = Kind { load, start };

fn load(options: &RecordOptions, load: &mut LoadOptions) {
    if !options.scans() {
        load.pages = false;
        load.walk_regions = 1;
    }
    if !options.scans() || options.lacks(Ablation::PageFlags) {
        load.page_flags = PageFlags::Ignore;
    }
    // Pages can be moved away, and be protected, only from who stands still.
    let may_run_on = options.hold == HoldChoice::Auto && options.traps == TrapsChoice::Off;
    if may_run_on && options.scans() && !options.lacks(Ablation::Hold) {
        load.harvest = true;
        load.walk_regions = HARVEST_REGIONS;
    }
}

fn start(setup: &mut Setup<'_>) -> Result<Started, RecordError> {
    let scan = Scan {
        clear: HashMap::new(),
        max_open: MAX_OPEN.min(crate::target::preflight::spare_files() / 2),
        without_first: HashSet::new(),
        uncleared: Uncleared::default(),
        flushes: !setup.options.lacks(Ablation::Flush),
        compares: vanish::compares(setup.options, setup.kernel),
        has_read: false,
        found: Vec::new(),
        kept: HashMap::new(),
        pass: None,
        slices: Slices::default(),
        left: Leftovers::default(),
    };
    Ok(setup
        .options
        .scans()
        .then(|| Box::new(scan) as Box<dyn Probe>))
}

/// Room for so much that is kept while it is cleared: of 2 MiB each.
const HARVEST_REGIONS: u32 = 16384;

/// The probe.
struct Scan {
    clear: HashMap<Pid, ClearRefs>,
    /// How many of those are kept open: others need descriptors too.
    max_open: usize,
    /// Processes whose first thread has ended: the file is another thread's, which may end too.
    without_first: HashSet<Pid>,
    uncleared: Uncleared,
    flushes: bool,
    /// Whether what is resident is compared from boundary to boundary.
    compares: bool,
    /// Whether anything was read yet.
    has_read: bool,
    found: Vec<Found>,
    /// Where in `found` an address space is.
    kept: HashMap<MmId, usize>,
    /// The pass in slices that goes on.
    pass: Option<Pass>,
    slices: Slices,
    /// What the last pass in slices could not clear.
    left: Leftovers,
}

/// Processes whose bits this recorder may not clear, as those that run a set-user-ID program: what they access is not known.
#[derive(Debug, Default)]
struct Uncleared {
    now: HashSet<Pid>,
    /// All that there were, and the names of the first.
    count: u64,
    names: Vec<String>,
}

impl Uncleared {
    const NAMED: usize = 4;

    fn add(&mut self, pid: Pid) {
        if !self.now.insert(pid) {
            return;
        }
        self.count += 1;
        if self.names.len() < Uncleared::NAMED {
            self.names.push(varve_sys::named(pid));
        }
    }

    /// What people should know.
    fn describe(&self) -> Option<String> {
        let (which, more) = match self.count {
            0 => return None,
            1 => ("a process", ""),
            count if count as usize > self.names.len() => ("processes", ", ..."),
            _ => ("processes", ""),
        };
        let names = self.names.join(", ");
        Some(format!(
            "The accesses of {which} are not known: this recorder may not clear accessed bits there ({names}{more}). Root may, or CAP_SYS_PTRACE and CAP_DAC_OVERRIDE together."
        ))
    }
}

impl Scan {
    /// Whether nothing of a process is read, as its bits cannot be cleared.
    fn leaves_out(&self, pid: Pid) -> bool {
        self.uncleared.now.contains(&pid)
    }

    /// Reads the bits of every process, each address space once.
    fn read(&mut self, held: &mut Held<'_>) -> Result<(), RecordError> {
        let mut walked = HashSet::new();
        if !held.harvests {
            self.forget();
        }
        self.without_first.clear();
        self.has_read = true;
        held.state.residents.clear();
        let rests = if held.harvests {
            Rests::begin()
        } else {
            Rests::none()
        };
        for pid in held.pids {
            if self.leaves_out(*pid) {
                continue;
            }
            let mut regions: Vec<Region> = Vec::new();
            let mut residents = Residents::new();
            let mut add = |region: &Region| {
                regions.push(*region);
                rests.rest();
            };
            let walk = if self.compares {
                held.kernel.walk_all(*pid, &mut add, &mut |r| {
                    vanish::add_resident(&mut residents, r);
                    rests.rest();
                })
            } else {
                held.kernel.walk(*pid, &mut add)
            };
            let stats = match walk {
                Ok(stats) => stats,
                // Ended, or between fork and exec of a parent that vanished: nothing to read.
                Err(BpfError::NoProcess(_) | BpfError::MemoryGone(_)) => continue,
                Err(e) => return Err(e.into()),
            };
            held.reading.processes += 1;
            if stats.first_ended {
                self.without_first.insert(*pid);
            }
            if !walked.insert(stats.mm) {
                continue;
            }
            held.reading.resident_pages += stats.present_pages;
            held.reading.failures += stats.flag_failures + stats.table_failures;
            if self.compares {
                held.state.residents.insert(*pid, residents);
            }
            self.left.mark(stats.mm, &mut regions);
            self.add(*pid, stats.mm, regions);
        }
        Ok(())
    }

    /// Forgets what was read; an interval that was not closed has left it.
    fn forget(&mut self) {
        self.found.clear();
        self.kept.clear();
    }

    /// Adds regions of an address space, in order.
    fn add(&mut self, pid: Pid, mm: MmId, regions: Vec<Region>) {
        match self.kept.get(&mm) {
            Some(at) => merge(&mut self.found[*at].regions, regions),
            None => {
                self.kept.insert(mm, self.found.len());
                self.found.push(Found {
                    pid,
                    when: When::AtBoundary,
                    regions,
                });
            }
        }
    }

    /// Clears the bits of every process and flushes their translations.
    fn clear(&mut self, held: &mut Held<'_>) -> Result<(), RecordError> {
        let pids = held.pids;
        if held.harvests {
            self.forget();
        }
        let first = |pid: &Pid| !self.without_first.contains(pid);
        self.clear.retain(|pid, _| pids.contains(pid) && first(pid));
        self.left = Leftovers::default();
        for pid in pids {
            self.clear_one(*pid, held)?;
        }
        Ok(())
    }

    /// Where descriptors are short, those that are kept open for later go for one that is needed now. More than one: another thread of this
    /// recorder may take what is let go.
    fn open_clear(&mut self, pid: Pid) -> io::Result<ClearRefs> {
        let lacks = |e: &io::Error| matches!(e.raw_os_error(), Some(libc::EMFILE | libc::ENFILE));
        loop {
            let opened = ClearRefs::open(pid);
            let other = self.clear.keys().next().copied();
            match (opened, other) {
                (Err(e), Some(other)) if lacks(&e) => self.clear.remove(&other),
                (opened, _) => return opened,
            };
        }
    }

    /// The same of one process.
    fn clear_one(&mut self, pid: Pid, held: &mut Held<'_>) -> Result<(), RecordError> {
        if self.leaves_out(pid) {
            return Ok(());
        }
        let opened = match self.clear.remove(&pid) {
            Some(file) if !self.without_first.contains(&pid) => Ok(file),
            _ => self.open_clear(pid),
        };
        let done = match opened {
            Ok(file) if held.harvests => self.harvest(pid, file, held.kernel, held.reading)?,
            opened => opened.and_then(|mut file| {
                file.clear_accessed()?;
                if self.flushes {
                    file.flush()?;
                }
                Ok(file)
            }),
        };
        let keeps = self.clear.len() < self.max_open && !self.without_first.contains(&pid);
        match done {
            Ok(file) if keeps => {
                self.clear.insert(pid, file);
            }
            Err(error) if is_denied(&error) => self.uncleared.add(pid),
            Err(error) if !is_gone(&error) => return Err(cannot_clear(error)),
            _ => {}
        }
        Ok(())
    }

    /// The same of one process, and keeps what is cleared.
    fn harvest(
        &mut self,
        pid: Pid,
        mut file: ClearRefs,
        kernel: &mut Kernel,
        reading: &mut Reading,
    ) -> Result<io::Result<ClearRefs>, RecordError> {
        for what in [Harvest::Accessed, Harvest::Written] {
            if what == Harvest::Written && !self.flushes {
                break;
            }
            kernel.begin_harvest(what)?;
            let done = match what {
                Harvest::Accessed => file.clear_accessed(),
                Harvest::Written => file.flush(),
            };
            let mut regions = Vec::new();
            let stats = kernel.end_harvest(&mut |region| regions.push(*region))?;
            // The target runs on, and reports.
            kernel.relieve();
            reading.failures += stats.failures + u64::from(stats.lost);
            reading.most_regions = reading.most_regions.max(stats.regions);
            if !regions.is_empty() {
                self.add(pid, stats.mm, regions);
            }
            if let Err(error) = done {
                return Ok(Err(error));
            }
        }
        Ok(Ok(file))
    }
}

/// Merges regions into others; both are in the order of addresses, and so is what comes out.
fn merge(into: &mut Vec<Region>, more: Vec<Region>) {
    let key = |region: &Region| (region.base, region.leaf);
    let mut more = more.into_iter().peekable();
    let mut merged: Vec<Region> = Vec::with_capacity(into.len() + more.len());
    for mut region in std::mem::take(into) {
        while let Some(before) = more.next_if(|m| key(m) < key(&region)) {
            merged.push(before);
        }
        while let Some(same) = more.next_if(|m| key(m) == key(&region)) {
            region.join(&same);
        }
        merged.push(region);
    }
    merged.extend(more);
    *into = merged;
}

impl Probe for Scan {
    fn held(&mut self, step: Step, held: &mut Held<'_>) -> Result<(), RecordError> {
        match step {
            Step::Read => self.read(held),
            Step::Await | Step::Prepare | Step::Adopt => Ok(()),
            Step::Plan => self.plan(held, held.slice.limit),
            Step::Slice => self.slice(held, held.slice.until),
            Step::Flush => {
                self.end_pass();
                Ok(())
            }
            Step::Clear => {
                // Of a process that runs already nothing was read: what it has is compared with later.
                if self.compares && !self.has_read {
                    self.read(held)?;
                    *held.reading = Reading::default();
                    self.forget();
                }
                self.clear(held)
            }
        }
    }

    fn refine(&self, found: &mut Found, state: &State) {
        if found.when.is_vanishing() {
            let owner = found.pid;
            let is = |pid| state.processes.owner_of_memory(pid) == owner;
            self.left.mark_vanishing(is, &mut found.regions);
        }
    }

    fn image_ended(&mut self, pid: Pid, _: Time) {
        self.slices.forget(pid);
        self.uncleared.now.remove(&pid);
    }

    fn losses(&self, lost: &mut Lost) {
        lost.push((Loss::UnclearedProcesses, self.uncleared.count));
    }

    fn finish(&mut self, manifest: &mut Manifest, _: bool) {
        manifest.notes.extend(self.slices.describe());
        manifest.notes.extend(self.uncleared.describe());
    }

    fn found(&mut self) -> Vec<Found> {
        self.kept.clear();
        std::mem::take(&mut self.found)
    }
}

fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
}

fn is_denied(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied
}

fn cannot_clear(source: io::Error) -> RecordError {
    RecordError::System {
        action: "clear the accessed bits through /proc/PID/clear_refs",
        source,
    }
}

#[cfg(test)]
mod tests {
    use varve_bpf::Leaf;
    use varve_model::Address;

    use super::*;

    fn region(base: u64, leaf: Leaf, accessed: u64, written: u64) -> Region {
        Region {
            accessed: [accessed, 0, 0, 0, 0, 0, 0, 0],
            written: [written, 0, 0, 0, 0, 0, 0, 0],
            ..Region::untouched(Address(base), leaf)
        }
    }

    #[test]
    fn what_was_kept_and_what_was_read_are_one() {
        let (small, huge) = (Leaf::Small, Leaf::Huge2M);
        let mut kept = vec![
            region(0x20_0000, small, 0b01, 0),
            region(0x60_0000, small, 1, 0),
        ];
        // The same place may have been a huge page at one of the two times.
        let read = vec![
            region(0, small, 1, 0),
            region(0x20_0000, small, 0b10, 0b01),
            region(0x20_0000, huge, 1, 0),
            region(0x80_0000, small, 1, 0),
        ];
        merge(&mut kept, read);
        let found: Vec<_> = kept
            .iter()
            .map(|r| (r.base.0, r.leaf, r.accessed[0], r.written[0]))
            .collect();
        assert_eq!(
            found,
            [
                (0, small, 1, 0),
                (0x20_0000, small, 0b11, 0b01),
                (0x20_0000, huge, 1, 0),
                (0x60_0000, small, 1, 0),
                (0x80_0000, small, 1, 0),
            ]
        );
    }
}
