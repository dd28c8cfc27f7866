//! The times in which nothing is recorded: before a delay is over, and while the recording is paused.

use varve_model::{Duration, Time};
use varve_trace::Manifest;

use super::boundary::Cleared;

/// Whether accesses are recorded at the moment.
#[derive(Debug)]
pub(super) struct Rest {
    /// Since when they are not.
    since: Option<Time>,
    /// When that ends by itself.
    until: Option<Time>,
    /// Whether a delay was asked for; else memory is cleared in several holds first.
    delayed: bool,
    pauses: u64,
    paused: Duration,
}

impl Rest {
    /// From the beginning of the target on, until a delay is over and, where it is `cleared` in several holds, that is done.
    pub(super) fn new(began: Time, delay: Duration, cleared: Cleared) -> Rest {
        let delayed = delay > Duration(0);
        let rests = delayed || cleared == Cleared::NotYet;
        Rest {
            since: rests.then_some(began),
            until: rests.then(|| began + delay),
            delayed,
            pauses: 0,
            paused: Duration(0),
        }
    }

    /// Whether nothing is recorded.
    pub(super) fn is_on(&self) -> bool {
        self.since.is_some()
    }

    /// When the rest ends by itself, if it does.
    pub(super) fn until(&self) -> Option<Time> {
        self.until
    }

    /// Whether a delay is over at that moment.
    pub(super) fn is_over(&self, now: Time) -> bool {
        self.until.is_some_and(|until| now >= until)
    }

    /// A pause begins.
    pub(super) fn begin(&mut self, now: Time) {
        self.since = Some(now);
        self.pauses += 1;
    }

    /// Accesses are recorded from now on; the sentence that says so.
    pub(super) fn end(&mut self, now: Time) -> String {
        let lasted = now - self.since.take().unwrap_or(now);
        let length = format!("{:.1} s", lasted.0 as f64 / 1e9);
        match self.until.take() {
            Some(_) if !self.delayed => format!(
                "accesses are recorded from now on, {length} after attaching: accessed bits were cleared in several short holds first"
            ),
            Some(_) => format!(
                "the delay is over after {length}: accesses are recorded from now on, and those before are not in the trace"
            ),
            None => {
                self.paused = self.paused + lasted;
                format!(
                    "the pause is over after {length}: accesses are recorded again, and those of the pause are not in the trace"
                )
            }
        }
    }

    /// Notes what became of it, at the end of the recording.
    pub(super) fn describe(mut self, now: Time, manifest: &mut Manifest) {
        if self.until.is_some() {
            let note = match self.delayed {
                true => "The recording ended before the delay was over: nothing was recorded.",
                false => {
                    "The recording ended before all accessed bits had been cleared once: nothing was recorded."
                }
            };
            manifest.notes.push(note.to_owned());
        } else if self.pauses > 0 {
            let _ = self.end(now);
            let times = match self.pauses {
                1 => "once".to_owned(),
                more => format!("{more} times"),
            };
            manifest.notes.push(format!(
                "The recording was paused {times}, for {:.1} s in all: what was accessed then is in no interval.",
                self.paused.0 as f64 / 1e9
            ));
        }
    }
}
