//! Allocator operations: where they are announced, and what is charged to them

use std::path::Path;

use varve_model::Pid;

use super::{Kernel, map_error, map_fd, program_fd};
use crate::programs::CHANGE_PROBES;
use crate::{
    BpfError, Operations, ProbeCost, ProbeLinks, ProbedPoint, Probes, RunningPlaces, uprobes,
};

impl Kernel {
    /// Where processes say which allocator operation runs on their threads; needs [`LoadOptions::operations`]
    ///
    /// # Errors
    /// [`BpfError::Load`] where the object has no such map.
    pub fn running_places(&self) -> Result<RunningPlaces, BpfError> {
        let map = map_fd(&self.object, "running_places")?;
        Ok(RunningPlaces { map })
    }

    /// Begins to charge allocator operations with what the kernel does within them, and looks `rate` times per second of every
    /// CPU whether threads are in one, until the result is dropped; needs [`LoadOptions::operations`]
    ///
    /// # Errors
    /// [`BpfError::Load`] where the kernel refused the program of the clock, [`BpfError::System`] where it has no such clock.
    pub fn operations(&self, rate: u32) -> Result<Operations, BpfError> {
        let sums = map_fd(&self.object, "operation_sums")?;
        let drops = self.maps.drops.try_clone().map_err(map_error("drops"))?;
        Operations::start(&self.object, sums, drops, rate)
    }

    /// What probes at an allocator's functions have counted; needs [`crate::LoadOptions::probes`]
    ///
    /// # Errors
    /// [`BpfError::Load`] where the kernel refused a program.
    pub fn probes(&self) -> Result<Probes, BpfError> {
        Ok(Probes {
            change: program_fd(&self.object, CHANGE_PROBES)?,
            processes: map_fd(&self.object, "probed")?,
            rows: map_fd(&self.object, "probed_rows")?,
            times: map_fd(&self.object, "probed_times")?,
        })
    }

    /// Runs the programs at these places of a file, in one process or in all that have it mapped and will have, until the result is dropped. They
    /// count for processes alone that [`Probes`] has
    ///
    /// # Errors
    /// [`BpfError::Probe`] where the kernel does not attach them.
    pub fn attach_probes(
        &self,
        path: &Path,
        points: &[ProbedPoint],
        whom: Option<Pid>,
    ) -> Result<ProbeLinks, BpfError> {
        uprobes::attach(&self.object, self.attaches_many, path, points, whom)
    }

    /// What a probed operation costs: functions of this program are probed for some milliseconds. Before [`Probes::time_every`], which is 0 afterwards
    ///
    /// # Errors
    /// Where probes cannot be attached, or count wrongly.
    pub fn measure_probes(&self) -> Result<ProbeCost, BpfError> {
        uprobes::measure(self.means(&self.probes()?))
    }

    /// Whether probes can be attached with the rights that this thread has: that is tried
    pub fn can_attach_probes(&self) -> bool {
        let probes = self.probes();
        probes.is_ok_and(|probes| uprobes::can_attach(self.means(&probes)))
    }

    pub(super) fn means<'a>(&'a self, probes: &'a Probes) -> uprobes::Means<'a> {
        uprobes::Means {
            object: &self.object,
            many: self.attaches_many,
            probes,
        }
    }

    /// Whether many probes are attached by one link
    pub fn attaches_many_probes(&self) -> bool {
        self.attaches_many
    }
}
