//! Allocator operations: where they are announced, and what is charged to them

use super::{Kernel, map_error, map_fd};
use crate::{BpfError, Operations, RunningPlaces};

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
}
