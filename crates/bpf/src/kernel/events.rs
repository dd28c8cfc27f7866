//! Taking the records that the programs send, and how long the target waits in faults

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use varve_model::{Duration as Nanoseconds, Time};

use super::{Kernel, map_error};
use crate::abi::Waits;
use crate::{BpfError, Event, decode, raw};

/// How long a record that is not complete is waited for, and how long at a time
const MAX_WAIT: Duration = Duration::from_millis(100);
const WAIT: Duration = Duration::from_micros(20);

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
    pub fn waited(&self) -> Result<Nanoseconds, BpfError> {
        let waits: Waits =
            raw::map_lookup(self.maps.waits.as_fd(), 0).map_err(map_error("waits"))?;
        Ok(Nanoseconds(waits.waited))
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

    /// Hands out all records that were begun before the call; gives their number
    ///
    /// Records come in the order in which they were begun, which is nearly the order of time. One that is begun and not
    /// complete holds up those behind it: a processor that its host has stopped meanwhile is waited for, within reason. Where that
    /// is not enough, [`Dropped::vanish_pages`](crate::Dropped) counts it, as what comes late counts in a later interval.
    pub fn events(&mut self, sink: &mut dyn FnMut(Event<'_>)) -> Result<usize, BpfError> {
        let mut count = 0;
        for record in std::mem::take(&mut self.backlog).records() {
            sink(decode::event(record)?);
            count += 1;
        }
        let (begun, mut waited) = (self.ring.written(), Duration::ZERO);
        loop {
            count += self.ring.drain(&mut |record| {
                sink(decode::event(record)?);
                Ok::<(), BpfError>(())
            })?;
            if self.ring.has_read(begun) {
                return Ok(count);
            }
            if waited > MAX_WAIT {
                self.late += 1;
                return Ok(count);
            }
            let since = Instant::now();
            std::thread::sleep(WAIT);
            waited += since.elapsed();
        }
    }

    /// Makes room in a ring that fills, for a caller who cannot take events at the moment; the next
    /// [`Kernel::events`] hands them out first
    pub fn relieve(&mut self) {
        if self.ring.is_filling() {
            self.set_aside();
        }
    }

    /// Takes what waits out of the ring, as far as there is room
    fn set_aside(&mut self) {
        let backlog = &mut self.backlog;
        if backlog.is_full() {
            return;
        }
        let _: Result<usize, std::convert::Infallible> = self.ring.drain(&mut |record| {
            backlog.put(record);
            Ok(())
        });
    }

    /// Shows all records that wait, and keeps them for the next [`Kernel::events`]. Whether it was all: there is room for so
    /// much only
    ///
    /// # Errors
    /// As [`Kernel::events`]
    pub fn look_ahead(&mut self, sink: &mut dyn FnMut(Event<'_>)) -> Result<bool, BpfError> {
        self.set_aside();
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
