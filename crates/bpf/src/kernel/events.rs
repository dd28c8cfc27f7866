//! Taking the records that the programs send, and how long the target waits in faults

use std::os::fd::{AsFd, BorrowedFd};

use varve_model::{Duration, Time};

use super::{Kernel, map_error};
use crate::abi::Waits;
use crate::{BpfError, Event, decode, raw};

impl Kernel {
    /// Whether [`Kernel::waited`] tells anything
    pub fn tells_waits(&self) -> bool {
        let mut rows = self.capabilities.iter();
        rows.any(|row| row.name == "sched_switch" && row.available)
    }

    /// How long the target has waited for trapped accesses since [`Kernel::forget_waits`]: the time in which one thread at
    /// least slept in a fault that is over by now. Needs [`LoadOptions::waits`].
    ///
    /// # Errors
    /// [`BpfError::Map`] where the counter cannot be read.
    pub fn waited(&self) -> Result<Duration, BpfError> {
        let waits: Waits =
            raw::map_lookup(self.maps.waits.as_fd(), 0).map_err(map_error("waits"))?;
        Ok(Duration(waits.waited))
    }

    /// Begins to count waits at this time
    ///
    /// # Errors
    /// [`BpfError::Map`] where the counter cannot be written.
    pub fn forget_waits(&self, from: Time) -> Result<(), BpfError> {
        let waits = Waits {
            waited: 0,
            covered: from.0,
        };
        raw::map_update(self.maps.waits.as_fd(), 0, &waits).map_err(map_error("waits"))
    }

    /// Drains the ring buffer without waiting; gives the number of records
    ///
    /// Records come in the order in which they were begun, which is nearly the order of time.
    pub fn events(&mut self, sink: &mut dyn FnMut(Event<'_>)) -> Result<usize, BpfError> {
        let mut count = 0;
        for record in std::mem::take(&mut self.backlog).records() {
            sink(decode::event(record)?);
            count += 1;
        }
        count += self.ring.drain(&mut |record| {
            sink(decode::event(record)?);
            Ok::<(), BpfError>(())
        })?;
        Ok(count)
    }

    /// Makes room in a ring that fills, for a caller who cannot take events at the moment; the next
    /// [`Kernel::events`] hands them out first
    pub fn relieve(&mut self) {
        if self.ring.is_filling() && !self.backlog.is_full() {
            let backlog = &mut self.backlog;
            let _: Result<usize, std::convert::Infallible> = self.ring.drain(&mut |record| {
                backlog.put(record);
                Ok(())
            });
        }
    }

    /// Shows all records that wait, and keeps them for the next [`Kernel::events`]. Whether it was all: there is room for so
    /// much only
    ///
    /// # Errors
    /// As [`Kernel::events`]
    pub fn look_ahead(&mut self, sink: &mut dyn FnMut(Event<'_>)) -> Result<bool, BpfError> {
        let backlog = &mut self.backlog;
        if !backlog.is_full() {
            let _: Result<usize, std::convert::Infallible> = self.ring.drain(&mut |record| {
                backlog.put(record);
                Ok(())
            });
        }
        for record in self.backlog.records() {
            sink(decode::event(record)?);
        }
        Ok(self.ring.is_empty())
    }

    /// Becomes readable when the ring is a quarter full or a process ended (for epoll); records
    /// wait there before, so look at the end of each interval too
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.ring.fd()
    }
}
