//! What a recording waits for, and the wait for a target that outlives it.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use varve_model::{Duration as Nanoseconds, Pid};
use varve_sys::{Child, PidFd, Signals, Trigger, Waiter};

use super::{End, Recorder};
use crate::{RecordError, Tell};

// What a wait distinguishes.
const TARGET: u64 = 0;
const SIGNAL: u64 = 1;
const RING: u64 = 2;
const PAUSE: u64 = 3;
const STOP: u64 = 4;

/// A target that has not ended by then goes on: the trace does not wait for it, and a person should know.
pub(super) const SOON: Duration = Duration::from_millis(700);
const LONG: Duration = Duration::from_secs(3600);

/// Processes that a sentence names.
const NAMED: usize = 3;

impl Recorder<'_> {
    /// What a recording waits for.
    pub(super) fn waiter(&self) -> Result<Waiter, RecordError> {
        let watched = || -> std::io::Result<Waiter> {
            let waiter = Waiter::new()?;
            // Once: others of its processes may live on for long.
            waiter.add(self.target.ended.as_fd(), TARGET, Trigger::Edge)?;
            waiter.add(self.signals.as_fd(), SIGNAL, Trigger::Level)?;
            waiter.add(self.signals.pause_fd(), PAUSE, Trigger::Level)?;
            if let Some(deferred) = &self.deferred_stop {
                waiter.add(deferred.as_fd(), STOP, Trigger::Level)?;
            }
            waiter.add(self.kernel.event_fd(), RING, Trigger::Edge)?;
            Ok(waiter)
        };
        watched().map_err(RecordError::system("wait for the target"))
    }

    /// Sleeps until something happens; tells when the recording is over.
    pub(super) fn wait(
        &mut self,
        waiter: &Waiter,
        limit: Nanoseconds,
    ) -> Result<Option<End>, RecordError> {
        let ready = waiter
            .wait(Duration::from_nanos(limit.0))
            .map_err(RecordError::system("wait for the target"))?;
        if let Some(deferred) = &self.deferred_stop {
            deferred.stop_now();
        }
        let child = self.target.child.as_ref();
        if let Some(signal) = pass_on(&mut self.signals, child)? {
            if self.options.counts.is_none() {
                self.interrupted = true;
                return Ok(Some(End::Stopped));
            }
            // The emulator counts to the target's end: there is nothing to end but the wait.
            if std::mem::replace(&mut self.interrupted, true) {
                self.leave(signal);
            }
        }
        self.root_ended |= ready.contains(&TARGET);
        // Our child's descendants may outlive it, but nobody waits for those.
        let is_child = self.target.child.is_some();
        let is_over = self.root_ended && (is_child || self.target.hold.processes().is_empty());
        Ok(is_over.then_some(End::TargetEnded))
    }
}

/// The end of a sentence about the processes that a command leaves behind as it ends, as one that starts a server does; none where all have ended.
pub(super) fn left_behind(processes: &[Pid], command: Pid) -> Option<String> {
    let left = processes.iter().filter(|pid| **pid != command);
    let left: Vec<Pid> = left
        .copied()
        .filter(|pid| varve_sys::is_running(*pid))
        .collect();
    let mut names: Vec<String> = left
        .iter()
        .take(NAMED)
        .copied()
        .map(varve_sys::named)
        .collect();
    if left.len() > NAMED {
        names.push("...".to_owned());
    }
    let (what, runs) = match left.len() {
        0 => return None,
        1 => ("a process that it left behind", "runs"),
        _ => ("processes that it left behind", "run"),
    };
    Some(format!("{what} {runs} on unrecorded, {}", names.join(", ")))
}

/// A target that goes on after its recording, and is waited for as a shell would.
#[derive(Debug)]
pub struct Waiting {
    pub(super) child: Child,
    pub(super) signals: Signals,
    /// Whether a signal ended the recording, so that the next leaves the target alone.
    pub(super) interrupted: bool,
    pub(super) tell: Tell,
}

impl Waiting {
    /// Waits for its end, handing signals on; the exit code as a shell shows it.
    ///
    /// # Errors
    /// Where it cannot be waited for.
    pub fn wait(mut self) -> Result<i32, RecordError> {
        if self.interrupted {
            (self.tell)(&format!(
                "the recording has ended; its target, process {}, goes on, and is waited for: an interrupt leaves it",
                self.child.pid()
            ));
        }
        loop {
            if let Some(code) = self.wait_for(LONG)? {
                return Ok(code);
            }
        }
    }

    /// The same for a time.
    pub(super) fn wait_for(&mut self, limit: Duration) -> Result<Option<i32>, RecordError> {
        let failed = || RecordError::system("wait for the target");
        let until = Instant::now() + limit;
        if let Some(code) = self.child.try_wait().map_err(failed())? {
            return Ok(Some(code));
        }
        let fd = PidFd::open(self.child.pid()).map_err(RecordError::system("watch the target"))?;
        let waiter = Waiter::new().map_err(failed())?;
        for (fd, number) in [(fd.as_fd(), TARGET), (self.signals.as_fd(), SIGNAL)] {
            waiter.add(fd, number, Trigger::Level).map_err(failed())?;
        }
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return self.child.try_wait().map_err(failed());
            }
            waiter
                .wait(left.max(Duration::from_millis(1)))
                .map_err(failed())?;
            if let Some(code) = self.child.try_wait().map_err(failed())? {
                return Ok(Some(code));
            }
            if let Some(signal) = pass_on(&mut self.signals, Some(&self.child))? {
                if self.interrupted {
                    return Ok(Some(128 + signal));
                }
                self.interrupted = true;
            }
        }
    }
}

/// The signal that arrived, if one did; it is handed to our child unless the terminal did so.
fn pass_on(signals: &mut Signals, child: Option<&Child>) -> Result<Option<i32>, RecordError> {
    let signal = signals
        .take()
        .map_err(RecordError::system("read a signal"))?;
    if let (Some(signal), Some(child)) = (signal, child)
        && !signal.from_terminal
    {
        child.signal(signal.number);
    }
    Ok(signal.map(|signal| signal.number))
}
