//! Accessed bits, read and cleared while the target is held still.

use std::collections::{HashMap, HashSet};
use std::io;

use varve_bpf::{BpfError, LoadOptions, PageFlags, Region};
use varve_model::Pid;
use varve_sys::ClearRefs;

use super::vanish::{self, Residents};
use super::{Held, Kind, Probe, Reading, Setup, Started, Step};
use crate::state::found::{Found, When};
use crate::{Ablation, RecordError, RecordOptions};

/// Files of processes that are kept open from one boundary to the next, at most.
const MAX_OPEN: usize = 4096;

pub(crate) const KIND: Kind = Kind { load, start };

fn load(options: &RecordOptions, load: &mut LoadOptions) {
    if options.counts.is_some() || options.lacks(Ablation::PageFlags) {
        load.page_flags = PageFlags::Ignore;
    }
}

fn start(setup: &mut Setup<'_>) -> Result<Started, RecordError> {
    let scan = Scan {
        clear: HashMap::new(),
        max_open: MAX_OPEN.min(crate::target::preflight::spare_files() / 2),
        without_first: HashSet::new(),
        flushes: !setup.options.lacks(Ablation::Flush),
        compares: vanish::compares(setup.options, setup.kernel),
        was_read: false,
        found: Vec::new(),
    };
    Ok((setup.options.counts.is_none()).then(|| Box::new(scan) as Box<dyn Probe>))
}

/// The probe.
struct Scan {
    clear: HashMap<Pid, ClearRefs>,
    /// How many of those are kept open: others need descriptors too.
    max_open: usize,
    /// Processes whose first thread has ended: the file is another thread's, which may end too.
    without_first: HashSet<Pid>,
    flushes: bool,
    /// Whether what is resident is compared from boundary to boundary.
    compares: bool,
    /// Whether the bits that are to be cleared were read.
    was_read: bool,
    found: Vec<Found>,
}

impl Scan {
    /// Reads the bits of every process, each address space once.
    fn read(&mut self, held: &mut Held<'_>) -> Result<(), RecordError> {
        let mut walked = HashSet::new();
        // What an interval that was not closed has left.
        self.found.clear();
        self.without_first.clear();
        self.was_read = true;
        held.state.residents.clear();
        for pid in held.pids {
            let mut regions: Vec<Region> = Vec::new();
            let mut residents = Residents::new();
            let walk = if self.compares {
                held.kernel
                    .walk_all(*pid, &mut |r| regions.push(*r), &mut |r| {
                        vanish::add_resident(&mut residents, r);
                    })
            } else {
                held.kernel.walk(*pid, &mut |r| regions.push(*r))
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
            self.found.push(Found {
                pid: *pid,
                when: When::AtBoundary,
                regions,
            });
        }
        Ok(())
    }

    /// Clears the bits of every process and flushes their translations.
    fn clear(&mut self, pids: &[Pid]) -> Result<(), RecordError> {
        let first = |pid: &Pid| !self.without_first.contains(pid);
        self.clear.retain(|pid, _| pids.contains(pid) && first(pid));
        for pid in pids {
            let opened = match self.clear.remove(pid) {
                Some(file) => Ok(file),
                None => ClearRefs::open(*pid),
            };
            let flushes = self.flushes;
            let done = opened.and_then(|mut file| {
                file.clear_accessed()?;
                if flushes {
                    file.flush()?;
                }
                Ok(file)
            });
            match done {
                Ok(file) if self.clear.len() < self.max_open && first(pid) => {
                    self.clear.insert(*pid, file);
                }
                Err(error) if !is_gone(&error) => return Err(cannot_clear(error)),
                _ => {}
            }
        }
        Ok(())
    }
}

impl Probe for Scan {
    fn held(&mut self, step: Step, held: &mut Held<'_>) -> Result<(), RecordError> {
        match step {
            Step::Read => self.read(held),
            Step::Await | Step::Prepare => Ok(()),
            Step::Clear => {
                // Of a process that runs already nothing was read: what it has is compared with later.
                if self.compares && !self.was_read {
                    self.read(held)?;
                    *held.reading = Reading::default();
                    self.found.clear();
                }
                self.was_read = false;
                self.clear(held.pids)
            }
        }
    }

    fn found(&mut self) -> Vec<Found> {
        std::mem::take(&mut self.found)
    }
}

fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
}

fn cannot_clear(source: io::Error) -> RecordError {
    RecordError::System {
        action: "clear the accessed bits through /proc/PID/clear_refs",
        source,
    }
}
