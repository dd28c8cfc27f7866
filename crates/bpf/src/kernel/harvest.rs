//! Accessed and soft-dirty bits kept at the moment when `clear_refs` takes them

use std::os::fd::AsFd;

use varve_model::{Address, Pid};
use varve_sys::ClearRefs;

use super::{Kernel, map_error};
use crate::abi::{self, Plain, Region as RawRegion};
use crate::calibrate::Sample;
use crate::programs::HARVESTERS;
use crate::{BpfError, Capability, Harvest, HarvestStats, MmId, Region, raw};

/// What [`Capability`] calls it when the bits that `clear_refs` takes are kept
pub const ATOMIC_CLEARING: &str = "atomic clearing";

impl Kernel {
    /// Whether what `clear_refs` takes is kept, so that nothing can be accessed between reading and clearing
    pub fn harvests(&self) -> bool {
        !self.harvesters.is_empty()
    }

    /// Keeps nothing any more, and takes the programs off the kernel's functions
    pub fn stop_harvests(&mut self) {
        self.harvesters.clear();
        self.attached.retain(|name| !HARVESTERS.contains(name));
    }

    /// How many regions there is room for in one harvest
    pub fn harvest_room(&self) -> u32 {
        self.region_limit
    }

    /// Keeps from now on what this thread has `clear_refs` take, of one process
    ///
    /// # Errors
    /// [`BpfError::Map`] where the kernel cannot be told.
    pub fn begin_harvest(&self, what: Harvest) -> Result<(), BpfError> {
        let what = match what {
            Harvest::Accessed => abi::HARVEST_ACCESSED,
            Harvest::Written => abi::HARVEST_WRITTEN,
        };
        // SAFETY: no arguments, and it cannot fail
        let thread = unsafe { libc::gettid() };
        self.set_harvest(&abi::Harvest {
            thread: thread.cast_unsigned(),
            what,
            ..Default::default()
        })
    }

    /// Hands each region of which something was taken since [`Kernel::begin_harvest`] to the sink, in order of addresses
    ///
    /// # Errors
    /// [`BpfError::Map`] where the sums cannot be read.
    pub fn end_harvest(&self, sink: &mut dyn FnMut(&Region)) -> Result<HarvestStats, BpfError> {
        let map = self.maps.harvest.as_fd();
        let found: abi::Harvest = raw::map_lookup(map, 0).map_err(map_error("harvest"))?;
        self.set_harvest(&abi::Harvest::default())?;
        let bytes = found.regions as usize * size_of::<RawRegion>();
        let regions = self.regions.slice(0, bytes);
        for region in regions.chunks_exact(size_of::<RawRegion>()) {
            if let Some(region) = RawRegion::read(region) {
                sink(&region.region());
            }
        }
        Ok(HarvestStats {
            mm: MmId(found.mm),
            regions: found.regions,
            lost: found.lost,
            failures: found.check_failures + found.table_failures,
        })
    }

    fn set_harvest(&self, harvest: &abi::Harvest) -> Result<(), BpfError> {
        raw::map_update(self.maps.harvest.as_fd(), 0, harvest).map_err(map_error("harvest"))
    }

    /// Finds out whether it works: that a program is attached to a function does not say that `clear_refs` calls that
    /// function, which a compiler may have copied into it.
    pub(super) fn examine_harvest(&mut self) {
        let is_there = HARVESTERS.iter().all(|name| self.attached.contains(name));
        let tried = match is_there {
            true => self.try_harvest(),
            false => {
                Err("this kernel does not let programs be attached to its functions".to_owned())
            }
        };
        if tried.is_err() {
            self.stop_harvests();
        }
        self.capabilities.push(Capability {
            name: ATOMIC_CLEARING,
            purpose: "accessed bits are read and cleared in one step, so that nothing needs to be held (--hold auto)",
            available: tried.is_ok(),
            required: false,
            promised: false,
            detail: tried.map_or_else(
                |why| format!("{why} (hint: nothing needs to be done: the target is held instead)"),
                |()| "what was cleared was kept".to_owned(),
            ),
            is_part: false,
        });
    }

    fn try_harvest(&self) -> Result<(), String> {
        let say = |error: BpfError| error.to_string();
        let sample = Sample::new().map_err(say)?;
        let page = Address(sample.address(0));
        sample.mark(0).map_err(say)?;
        let cannot = |error| format!("this process cannot clear its own bits: {error}");
        let mut file = ClearRefs::open(Pid(std::process::id())).map_err(cannot)?;
        self.begin_harvest(Harvest::Accessed).map_err(say)?;
        let cleared = file.clear_accessed();
        let mut touched = false;
        let sums = self.end_harvest(&mut |region| touched |= region.has(page, &region.touched()));
        cleared.map_err(cannot)?;
        sums.map_err(say)?;
        if !touched {
            return Err(
                "a page that was accessed was cleared without the programs' knowledge".to_owned(),
            );
        }
        self.begin_harvest(Harvest::Written).map_err(say)?;
        let cleared = file.flush();
        let mut written = false;
        let sums = self.end_harvest(&mut |region| written |= region.has(page, &region.written));
        cleared.map_err(cannot)?;
        let sums = sums.map_err(say)?;
        if sums.mm == MmId(0) || self.tells_writes() != written {
            return Err(
                "a page that was written was cleared without the programs' knowledge".to_owned(),
            );
        }
        Ok(())
    }
}
