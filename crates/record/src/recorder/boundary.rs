//! The moment between two intervals: the target is held still while the one that ends is read, or its bits are read and
//! cleared in one step, and it runs on.

use std::time::Duration as Wait;

use varve_bpf::Kernel;
use varve_model::{Duration, Pid, Time};
use varve_sys::{Frozen, Urgent, cpu_time, monotonic_now};

use super::events::Events;
use crate::hold::Hold;
use crate::probes::{Held, Reading, Step};
use crate::{Ablation, RecordError, RecordOptions};

/// How long to wait for the target to stand still before letting it run on; doubled for the next try.
const HOLD_LIMIT: Wait = Wait::from_millis(20);
/// The longest such wait: a target with ten thousand threads takes a while to stand still, and one with
/// a thread in an uninterruptible wait must not be kept from its work.
const MAX_HOLD_LIMIT: Wait = Wait::from_millis(160);

/// What ends an interval.
const CLOSE: [Step; 4] = [Step::Await, Step::Read, Step::Prepare, Step::Clear];

/// How bits are read and cleared without an access in between being lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Means {
    /// The target is held still.
    Hold,
    /// The kernel's part keeps what is cleared.
    Harvest,
    /// They are not: a negative control.
    Nothing,
}

/// The moment between two intervals.
#[derive(Clone, Copy, Debug)]
pub(super) struct Boundary {
    /// Everything that the target did before is in the interval that ends.
    pub(super) end: Time,
    /// Everything that it does after is in the next.
    pub(super) next_start: Time,
    /// How long the target was held.
    pub(super) held: Duration,
    /// CPU time of the recorder while the target was held.
    pub(super) cpu: Duration,
    /// Up to here it was read, and what vanished may have been read or not.
    pub(super) read: Time,
    /// How long it ran on meanwhile.
    pub(super) overlap: Duration,
}

/// The manifest's word where nothing held the target, as it is where programs run at the exit of kernel functions.
const HARVEST: &str = "fexit";

/// Makes boundaries, and counts what went wrong with them.
#[derive(Debug)]
pub(super) struct Boundaries {
    means: Means,
    /// Whether it was harvested without a hold, so far.
    harvested: bool,
    /// Whether there was more than a harvest has room for.
    outgrown: bool,
    /// How long the next hold may take to come about.
    limit: Wait,
    /// Times that the target did not stand still in time.
    pub(super) prolonged: u64,
    /// Times that the target was let go between reading and clearing, because the recorder was stopped.
    pub(super) let_go: u64,
    /// Processes that could not be held, each once for every boundary.
    pub(super) unheld: u64,
    /// Boundaries at which there was such a process.
    pub(super) unheld_boundaries: u64,
}

impl Boundaries {
    pub(super) fn new(options: &RecordOptions, kernel: &Kernel) -> Boundaries {
        let means = if options.lacks(Ablation::Hold) {
            Means::Nothing
        } else if kernel.harvests() && !kernel.guards_writes() {
            Means::Harvest
        } else {
            Means::Hold
        };
        Boundaries {
            means,
            harvested: false,
            outgrown: false,
            limit: HOLD_LIMIT,
            prolonged: 0,
            let_go: 0,
            unheld: 0,
            unheld_boundaries: 0,
        }
    }

    /// Begins the first interval of a process that runs already: what was touched before does not count.
    ///
    /// # Errors
    /// Also where the target itself cannot be held.
    pub(super) fn begin(
        &mut self,
        root: Pid,
        kernel: &mut Kernel,
        hold: &mut Hold,
        events: &mut Events,
    ) -> Result<Option<Boundary>, RecordError> {
        let refused = |hold: &Hold| hold.refusal_of(root).map(RecordError::from);
        self.make(&[Step::Clear], kernel, hold, events, refused)
            .map(|made| made.map(|(boundary, _)| boundary))
    }

    /// Ends an interval. `None` means that the target did not stand still in time and runs on: the interval
    /// goes on too, nothing is lost.
    pub(super) fn close(
        &mut self,
        kernel: &mut Kernel,
        hold: &mut Hold,
        events: &mut Events,
    ) -> Result<Option<(Boundary, Reading)>, RecordError> {
        self.make(&CLOSE, kernel, hold, events, |_| None)
    }

    fn make(
        &mut self,
        steps: &[Step],
        kernel: &mut Kernel,
        hold: &mut Hold,
        events: &mut Events,
        refused: impl FnOnce(&Hold) -> Option<RecordError>,
    ) -> Result<Option<(Boundary, Reading)>, RecordError> {
        if self.means == Means::Harvest {
            return self.harvest(steps, kernel, hold, events).map(Some);
        }
        let holds = self.means == Means::Hold;
        // While the target waits for the recorder, the recorder waits for nobody.
        let _urgent = holds.then(Urgent::begin);
        let (asked, cpu) = (monotonic_now(), cpu_time());
        // The ring must not run over in the meantime: thousands of threads may be ending.
        if holds && hold.freeze(self.limit, || kernel.relieve())? == Frozen::NotYet {
            hold.thaw()?;
            self.prolonged += 1;
            self.limit = (self.limit * 2).min(MAX_HOLD_LIMIT);
            return Ok(None);
        }
        self.limit = HOLD_LIMIT;
        let end = monotonic_now();
        // Whatever goes wrong in between, the target runs on.
        let pids = if holds {
            hold.standing().to_vec()
        } else {
            hold.processes()
        };
        let mut reading = Reading::default();
        let worked = match refused(hold) {
            Some(error) => Err(error),
            None => take(steps, &pids, false, kernel, events, &mut reading),
        };
        let (next_start, cpu) = (monotonic_now(), cpu_time() - cpu);
        if holds {
            let release = hold.thaw()?;
            self.let_go += u64::from(release.cut_short);
            self.unheld += release.unheld;
            self.unheld_boundaries += u64::from(release.unheld > 0);
        }
        worked?;
        let boundary = Boundary {
            end,
            next_start,
            held: next_start - asked,
            cpu,
            read: next_start,
            overlap: Duration(0),
        };
        Ok(Some((boundary, reading)))
    }

    /// The target runs on. What is cleared is kept as it is cleared; then all that is left is read: pages whose bits cannot
    /// be cleared, and those that were accessed since theirs was.
    ///
    /// The interval ends in between. What was accessed before that was kept or stands there still to be read. What is
    /// accessed after it sets its bit anew, as all translations are flushed, and stands there until the next boundary.
    fn harvest(
        &mut self,
        steps: &[Step],
        kernel: &mut Kernel,
        hold: &Hold,
        events: &mut Events,
    ) -> Result<(Boundary, Reading), RecordError> {
        let began = monotonic_now();
        let mut reading = Reading::default();
        let pids = hold.processes();
        take(&[Step::Clear], &pids, true, kernel, events, &mut reading)?;
        let end = monotonic_now();
        if steps.contains(&Step::Read) {
            // Once more: what a process made meanwhile has touched pages before the end.
            let pids = hold.processes();
            take(&[Step::Read], &pids, true, kernel, events, &mut reading)?;
        }
        self.harvested = true;
        if reading.most_regions > kernel.harvest_room() / 2 {
            // There must be room for as much as was touched, as nothing can be handed out before all is cleared.
            kernel.stop_harvests();
            self.outgrown = true;
            self.means = Means::Hold;
        }
        let read = monotonic_now();
        let boundary = Boundary {
            end,
            next_start: end,
            held: Duration(0),
            cpu: Duration(0),
            read,
            overlap: read - began,
        };
        Ok((boundary, reading))
    }

    /// Whether the target is held at boundaries.
    pub(super) fn holds(&self) -> bool {
        self.means == Means::Hold
    }

    /// What held the target so far, or made that unnecessary: the word of the manifest.
    pub(super) fn name(&self, hold: &Hold) -> String {
        let held = hold.name();
        match (self.harvested, held.is_empty()) {
            (false, _) => held,
            (true, true) => HARVEST.to_owned(),
            (true, false) => format!("{HARVEST}, {held}"),
        }
    }

    /// The same as a sentence; none where there is nothing unusual to say.
    pub(super) fn sentence(&self, hold: &Hold) -> String {
        match self.harvested && hold.name().is_empty() {
            true => String::new(),
            false => hold.sentence(),
        }
    }

    /// What people should know of it.
    pub(super) fn describe(&self, notes: &mut Vec<String>) {
        if self.outgrown {
            notes.push(
                "The target touched more memory than can be kept while it is cleared, so it was held from then on."
                    .to_owned(),
            );
        }
        if self.unheld_boundaries > 0 {
            notes.push(format!(
                "Some process could not be held still at {}: a debugger had it, or somebody moved it while it was held.",
                boundaries(self.unheld_boundaries)
            ));
        }
        if self.prolonged > 0 {
            notes.push(format!(
                "The target did not stand still in time at {}; those intervals are longer.",
                boundaries(self.prolonged)
            ));
        }
    }
}

/// Takes the steps one after the other.
fn take(
    steps: &[Step],
    pids: &[Pid],
    harvests: bool,
    kernel: &mut Kernel,
    events: &mut Events,
    reading: &mut Reading,
) -> Result<(), RecordError> {
    let mut take = |step, reading: &mut Reading| {
        events.each(|probe, state| {
            let held = &mut Held {
                kernel,
                pids,
                harvests,
                state,
                reading,
            };
            probe.held(step, held)
        })
    };
    for step in steps {
        let before = *reading;
        take(*step, reading)?;
        if *step == Step::Read {
            take(Step::Await, reading)?;
            if reading.ends != before.ends {
                *reading = before;
                take(Step::Read, reading)?;
            }
        }
    }
    Ok(())
}

fn boundaries(number: u64) -> String {
    match number {
        1 => "1 boundary".to_owned(),
        more => format!("{more} boundaries"),
    }
}
