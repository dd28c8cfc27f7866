//! The wait for a target that outlives its recording.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use varve_sys::{Child, PidFd, Trigger, Waiter};

use super::{SIGNAL, Session, TARGET};
use crate::RecordError;

/// A target that has not ended by then after an interrupt goes on, and a person should know.
const SOON: Duration = Duration::from_millis(700);
const LONG: Duration = Duration::from_secs(3600);

impl Session<'_> {
    /// Lets our child finish, as a shell would, handing signals on. The recording is over; after one interrupt the next
    /// leaves the child alone.
    pub(super) fn wait_for_child(&mut self, child: &mut Child) -> Result<i32, RecordError> {
        let failed = || RecordError::system("wait for the target");
        if let Some(code) = child.try_wait().map_err(failed())? {
            return Ok(code);
        }
        let fd = PidFd::open(child.pid()).map_err(RecordError::system("watch the target"))?;
        let waiter = Waiter::new().map_err(failed())?;
        for (fd, number) in [(fd.as_fd(), TARGET), (self.signals.as_fd(), SIGNAL)] {
            waiter.add(fd, number, Trigger::Level).map_err(failed())?;
        }
        let began = Instant::now();
        let mut told = false;
        loop {
            if let Some(code) = child.try_wait().map_err(failed())? {
                return Ok(code);
            }
            if self.interrupted && !told && began.elapsed() >= SOON {
                told = true;
                (self.options.tell)(&format!(
                    "the recording has ended; its target, process {}, goes on, and is waited for: another interrupt leaves it",
                    child.pid()
                ));
            }
            let limit = match self.interrupted && !told {
                true => SOON
                    .saturating_sub(began.elapsed())
                    .max(Duration::from_millis(1)),
                false => LONG,
            };
            waiter.wait(limit).map_err(failed())?;
            if let Some(signal) = self.pass_signal_on(Some(child))? {
                if self.interrupted {
                    return Ok(128 + signal);
                }
                self.interrupted = true;
            }
        }
    }
}
