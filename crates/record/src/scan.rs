//! The scan backend: accessed bits, read and cleared while the target is held still.

use std::collections::{HashMap, HashSet};
use std::io;
use std::time::Duration as Wait;

use varve_bpf::{BpfError, Kernel, Region};
use varve_model::Pid;
use varve_sys::{ClearRefs, Frozen, Protector, Urgent, monotonic_now};
use varve_trace::FAULT;

use crate::backend::{Backend, Boundary, Harvest};
use crate::hold::Hold;
use crate::traps::Servants;
use crate::{Ablation, RecordError, RecordOptions};

/// How long to wait for the target to stand still before letting it run on; doubled for the next try.
const HOLD_LIMIT: Wait = Wait::from_millis(20);
/// The longest such wait: a target with ten thousand threads takes a while to stand still, and one with
/// a thread in an uninterruptible wait must not be kept from its work.
const LONGEST_HOLD_LIMIT: Wait = Wait::from_millis(160);

/// Files of processes that are kept open from one boundary to the next, at most.
const MAX_OPEN: usize = 4096;

/// The scan backend.
pub(crate) struct Scan<'a> {
    pub(crate) kernel: &'a mut Kernel,
    pub(crate) hold: &'a mut Hold,
    clear: HashMap<Pid, ClearRefs>,
    /// How many of those are kept open: others need descriptors too.
    most_open: usize,
    protector: Option<Protector>,
    /// Where accesses are trapped besides.
    pub(crate) servants: Option<Servants>,
    holds: bool,
    flushes: bool,
    arms: bool,
    /// Times that the target did not stand still in time.
    pub(crate) prolonged: u64,
    /// How long the next hold may take to come about.
    limit: Wait,
    /// Times that the target was let go between reading and clearing, because the recorder was stopped.
    pub(crate) let_go: u64,
    /// Processes that could not be held, each once for every boundary.
    pub(crate) unheld: u64,
    /// Boundaries at which there was such a process.
    pub(crate) unheld_boundaries: u64,
}

impl<'a> Scan<'a> {
    pub(crate) fn new(
        kernel: &'a mut Kernel,
        hold: &'a mut Hold,
        options: &RecordOptions,
        servants: Option<Servants>,
    ) -> Scan<'a> {
        let protector = kernel.guards_writes().then(Protector::default);
        Scan {
            kernel,
            hold,
            clear: HashMap::new(),
            most_open: MAX_OPEN.min(crate::preflight::spare_files() / 2),
            protector,
            servants,
            holds: !options.lacks(Ablation::Hold),
            flushes: !options.lacks(Ablation::Flush),
            arms: !options.lacks(Ablation::Arm),
            prolonged: 0,
            limit: HOLD_LIMIT,
            let_go: 0,
            unheld: 0,
            unheld_boundaries: 0,
        }
    }

    /// Reads the bits of every process, each address space once.
    fn read(&mut self, pids: &[Pid], harvest: &mut Harvest) -> Result<(), RecordError> {
        let mut walked = HashSet::new();
        for pid in pids {
            let mut regions: Vec<Region> = Vec::new();
            let stats = match self.kernel.walk(*pid, &mut |r| regions.push(*r)) {
                Ok(stats) => stats,
                // Ended, or between fork and exec of a parent that vanished: nothing to read.
                Err(BpfError::NoProcess(_) | BpfError::MemoryGone(_)) => continue,
                Err(e) => return Err(e.into()),
            };
            harvest.spaces.insert(*pid, stats.mm);
            if !walked.insert(stats.mm) {
                continue;
            }
            harvest.resident_pages += stats.present_pages;
            harvest.failures += stats.flag_failures + stats.table_failures;
            harvest.regions.push((*pid, regions));
        }
        Ok(())
    }

    /// Protects the pages that were read, so that the next interval's writes are seen.
    fn protect(&mut self, pids: &[Pid], harvest: &mut Harvest) {
        if let Some(protector) = &mut self.protector {
            let protected = pids.iter().filter(|p| protector.protect(**p).is_ok());
            harvest.protected.extend(protected.copied());
        }
    }

    /// Clears the bits of every process and flushes their translations.
    fn clear(&mut self, pids: &[Pid]) -> Result<(), RecordError> {
        self.clear.retain(|pid, _| pids.contains(pid));
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
                Ok(file) if self.clear.len() < self.most_open => {
                    self.clear.insert(*pid, file);
                }
                Err(error) if !is_gone(&error) => return Err(cannot_clear(error)),
                _ => {}
            }
        }
        Ok(())
    }

    /// Begins the first interval: what was touched before does not count.
    ///
    /// # Errors
    /// Also where the target itself cannot be held.
    pub(crate) fn begin(&mut self, root: Pid) -> Result<Option<Boundary>, RecordError> {
        self.held(|scan, pids| match scan.hold.refusal_of(root) {
            Some(why) => Err(why.into()),
            None => scan.clear(pids),
        })
    }

    /// Runs `work` while the target is held still.
    fn held(
        &mut self,
        work: impl FnOnce(&mut Self, &[Pid]) -> Result<(), RecordError>,
    ) -> Result<Option<Boundary>, RecordError> {
        // While the target waits for the recorder, the recorder waits for nobody.
        let _urgent = self.holds.then(Urgent::begin);
        let asked = monotonic_now();
        // The ring must not run over in the meantime: thousands of threads may be ending.
        let kernel = &mut *self.kernel;
        if self.holds && self.hold.freeze(self.limit, || kernel.relieve())? == Frozen::NotYet {
            self.hold.thaw()?;
            self.prolonged += 1;
            self.limit = (self.limit * 2).min(LONGEST_HOLD_LIMIT);
            return Ok(None);
        }
        self.limit = HOLD_LIMIT;
        let end = monotonic_now();
        // Whatever goes wrong in between, the target runs on.
        let pids = if self.holds {
            self.hold.standing().to_vec()
        } else {
            self.hold.processes()
        };
        let worked = work(self, &pids);
        let next_start = monotonic_now();
        if self.holds {
            let release = self.hold.thaw()?;
            self.let_go += u64::from(release.cut_short);
            self.unheld += release.unheld;
            self.unheld_boundaries += u64::from(release.unheld > 0);
        }
        worked?;
        Ok(Some(Boundary {
            end,
            next_start,
            held: next_start - asked,
        }))
    }
}

impl Backend for Scan<'_> {
    fn name(&self) -> &'static str {
        if self.servants.is_some() {
            FAULT
        } else {
            "scan"
        }
    }

    fn close_interval(&mut self, harvest: &mut Harvest) -> Result<Option<Boundary>, RecordError> {
        self.held(|scan, pids| {
            scan.read(pids, harvest)?;
            scan.protect(pids, harvest);
            // Before the bits are cleared: moving a page sets its own.
            if let Some(servants) = &mut scan.servants
                && scan.arms
            {
                // What a kernel cannot tell does not lengthen intervals.
                let waited = scan.kernel.waited().unwrap_or_default();
                servants.arm(pids, waited);
                let _ = scan.kernel.forget_waits(monotonic_now());
            }
            scan.clear(pids)
        })
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
