//! The moment between two intervals: the target is held still while the one that ends is read, or its bits are read and
//! cleared in one step, and it runs on. Where one hold would take too long there are several, each for a part of the memory.

mod steps;

use std::time::Duration as Wait;

use varve_bpf::Kernel;
use varve_model::{Duration, PAGE_BYTES, Pid, Time};
use varve_sys::{Frozen, Patient, Urgent, cpu_time, monotonic_now, resident_bytes};

use self::steps::{Work, take};
use super::events::Events;
use crate::hold::Hold;
use crate::probes::{Reading, Slice, Step};
use crate::{Ablation, RecordError, RecordOptions, TrapsChoice};

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
    /// How long the target was held in all, and at most at a time.
    pub(super) held: Duration,
    pub(super) longest_hold: Duration,
    /// The part of the longest until all threads stood still.
    pub(super) longest_stop: Duration,
    /// How often it was.
    pub(super) holds: u32,
    /// CPU time of the recorder while the target was held, and while it ran between holds.
    pub(super) cpu: Duration,
    pub(super) cpu_between: Duration,
    /// The part of both that was spent since the boundary was last gone on with.
    pub(super) cpu_last: Duration,
    /// Up to here it was read, and what vanished may have been read or not.
    pub(super) read: Time,
    /// How long it ran on meanwhile.
    pub(super) overlap: Duration,
}

/// What a page takes to be read and cleared, before that was measured.
const GUESS_NS: f64 = 100.0;
/// Holds of a smaller target show what it takes to stop it.
const TELLING_PAGES: u64 = 4096;
/// The share of the longest hold that the work in it is to take: it may take longer than thought.
const AIM: f64 = 0.7;
/// And the least, however long it took to stop the target.
const MIN_AIM: f64 = 0.1;
/// The least that the target runs between two holds.
const MIN_PAUSE: Duration = Duration(1_000_000);

/// A boundary of several holds that is under way.
#[derive(Debug)]
struct Pass {
    began: Time,
    /// When the target has run for long enough.
    resumes: Time,
    reading: Reading,
    held: Duration,
    longest_hold: Duration,
    longest_stop: Duration,
    holds: u32,
    cpu: Duration,
    cpu_between: Duration,
    /// Whether something is left to be cleared.
    more: bool,
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
    /// How long a hold may be.
    max_hold: Duration,
    /// Whether the target may run between holds of one boundary.
    divides: bool,
    /// Smoothed nanoseconds of a hold for each page that is resident.
    page_ns: f64,
    pass: Option<Pass>,
    /// Holds that were longer than asked, and the longest.
    too_long: u64,
    longest: Duration,
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
            max_hold: options.max_hold,
            // Pages are moved away, and protected, only from who stands still until all is done.
            divides: options.traps == TrapsChoice::Off && !kernel.guards_writes(),
            page_ns: GUESS_NS,
            pass: None,
            too_long: 0,
            longest: Duration(0),
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
    ) -> Result<Option<(Boundary, Cleared)>, RecordError> {
        let refused = |hold: &Hold| hold.refusal_of(root).map(RecordError::from);
        let (steps, cleared) = match self.takes_too_long(hold) {
            true => (&[][..], Cleared::NotYet),
            false => (&[Step::Clear][..], Cleared::All),
        };
        self.make(steps, kernel, hold, events, refused)
            .map(|made| made.map(|(boundary, _)| (boundary, cleared)))
    }

    /// Ends an interval. `None` means that the interval goes on, and nothing is lost: the target did not stand still in time, or
    /// it is to run before the next of several holds ([`Boundaries::resumes`]). Of the `last` interval nothing needs to be cleared.
    pub(super) fn close(
        &mut self,
        kernel: &mut Kernel,
        hold: &mut Hold,
        events: &mut Events,
        last: bool,
    ) -> Result<Option<(Boundary, Reading)>, RecordError> {
        if self.pass.is_some() || self.takes_too_long(hold) {
            return self.go_on(kernel, hold, events, last);
        }
        let made = self.make(&CLOSE, kernel, hold, events, |_| None)?;
        if let Some((boundary, reading)) = &made
            && reading.resident_pages >= TELLING_PAGES
        {
            let now = boundary.held.0 as f64 / reading.resident_pages as f64;
            // A rise counts at once, a fall is believed slowly.
            let before = self.page_ns;
            self.page_ns = now.max(before * 0.8 + now * 0.2);
        }
        Ok(made)
    }

    /// When a boundary goes on that is under way.
    pub(super) fn resumes(&self) -> Option<Time> {
        self.pass.as_ref().map(|pass| pass.resumes)
    }

    /// Whether one hold for all of the target's memory would be longer than asked.
    fn takes_too_long(&self, hold: &Hold) -> bool {
        if !self.divides || self.means == Means::Harvest {
            return false;
        }
        let pids = hold.processes();
        let resident = pids.iter().map(|pid| resident_bytes(*pid));
        let bytes: u64 = resident.map(|bytes| bytes.map_or(0, |b| b.0)).sum();
        is_too_long(bytes / PAGE_BYTES, self.page_ns, self.max_hold)
    }

    /// Begins a boundary of several holds, or goes on with it.
    ///
    /// Each hold reads and clears a part of the memory. When all is cleared the interval ends, and everything is read once more,
    /// without a hold, as in [`Boundaries::harvest`]: what was accessed after its part was cleared stands there.
    fn go_on(
        &mut self,
        kernel: &mut Kernel,
        hold: &mut Hold,
        events: &mut Events,
        last: bool,
    ) -> Result<Option<(Boundary, Reading)>, RecordError> {
        // Nobody waits for what is done between holds.
        let _patient = Patient::begin();
        let cpu = cpu_time();
        let mut slice = Slice {
            limit: part_of(self.max_hold, AIM),
            ..Slice::default()
        };
        let mut pass = match self.pass.take() {
            Some(pass) => pass,
            None => {
                let began = monotonic_now();
                let mut reading = Reading::default();
                let pids = if last { Vec::new() } else { hold.processes() };
                let mut work = Work::of(kernel, events, &pids, true, &mut slice);
                work.step(Step::Plan, &mut reading)?;
                Pass::new(began, reading)
            }
        };
        let planned = cpu_time();
        let mut cpu_here = planned - cpu;
        pass.cpu_between = pass.cpu_between + cpu_here;
        if !last && pass.more {
            let held = self.hold_once(&mut pass, &mut slice, kernel, hold, events)?;
            if held.is_none() || slice.more {
                self.pass = Some(pass);
                return Ok(None);
            }
            cpu_here = cpu_time() - cpu;
        }
        let pids = hold.processes();
        let mut work = Work::of(kernel, events, &pids, true, &mut slice);
        work.step(Step::Flush, &mut pass.reading)?;
        let end = monotonic_now();
        // Once more: what a process made meanwhile has touched pages before the end.
        let pids = hold.processes();
        take(
            &[Step::Read, Step::Adopt],
            &pids,
            true,
            kernel,
            events,
            &mut pass.reading,
        )?;
        let read = monotonic_now();
        let boundary = Boundary {
            end,
            next_start: end,
            held: pass.held,
            longest_hold: pass.longest_hold,
            longest_stop: pass.longest_stop,
            holds: pass.holds,
            cpu: pass.cpu,
            cpu_between: pass.cpu_between,
            cpu_last: cpu_here,
            read,
            overlap: read - pass.began,
        };
        Ok(Some((boundary, pass.reading)))
    }

    /// Holds the target for a part of its memory; none where it did not stand still in time.
    fn hold_once(
        &mut self,
        pass: &mut Pass,
        slice: &mut Slice,
        kernel: &mut Kernel,
        hold: &mut Hold,
        events: &mut Events,
    ) -> Result<Option<()>, RecordError> {
        let holds = self.means == Means::Hold;
        let _urgent = holds.then(Urgent::begin);
        let (asked, cpu) = (monotonic_now(), cpu_time());
        if holds && hold.freeze(self.limit, || kernel.relieve())? == Frozen::NotYet {
            hold.thaw()?;
            self.prolonged += 1;
            pass.resumes = monotonic_now() + Duration(self.limit.as_nanos() as u64);
            self.limit = (self.limit * 2).min(MAX_HOLD_LIMIT);
            return Ok(None);
        }
        self.limit = HOLD_LIMIT;
        let pids = if holds {
            hold.standing().to_vec()
        } else {
            hold.processes()
        };
        let came = monotonic_now();
        slice.until = work_until(asked, came, self.max_hold);
        // Whatever goes wrong, the target runs on.
        let mut work = Work::of(kernel, events, &pids, false, slice);
        let worked = work.step(Step::Slice, &mut pass.reading);
        // Who has let the target go returns late, as its threads run first: that is not the target's time.
        let held = monotonic_now() - asked;
        if holds {
            self.release(hold)?;
        }
        pass.cpu = pass.cpu + (cpu_time() - cpu);
        worked?;
        pass.more = slice.more;
        if holds {
            pass.held = pass.held + held;
            if held > pass.longest_hold {
                (pass.longest_hold, pass.longest_stop) = (held, came - asked);
            }
            pass.holds += 1;
            self.too_long += u64::from(held > self.max_hold);
            self.longest = self.longest.max(held);
        }
        // It progresses as much as it is held.
        pass.resumes = monotonic_now() + held.max(MIN_PAUSE);
        Ok(Some(()))
    }

    /// Lets the target go that was held, and counts what went wrong with that.
    fn release(&mut self, hold: &mut Hold) -> Result<(), RecordError> {
        let release = hold.thaw()?;
        self.let_go += u64::from(release.cut_short);
        self.unheld += release.unheld + release.spared;
        self.unheld_boundaries += u64::from(release.unheld > 0);
        Ok(())
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
        // As in a pass: up to the order to let it go.
        let next_start = monotonic_now();
        if holds {
            self.release(hold)?;
        }
        let (held, cpu) = (next_start - asked, cpu_time() - cpu);
        worked?;
        if holds && held > self.max_hold {
            self.too_long += 1;
            self.longest = self.longest.max(held);
        }
        let boundary = Boundary {
            end,
            next_start,
            held,
            longest_hold: held,
            longest_stop: end - asked,
            holds: u32::from(holds),
            cpu,
            cpu_between: Duration(0),
            cpu_last: cpu,
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
            longest_hold: Duration(0),
            longest_stop: Duration(0),
            holds: 0,
            cpu: Duration(0),
            cpu_between: Duration(0),
            cpu_last: Duration(0),
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
        if self.too_long > 0 {
            notes.push(format!(
                "{} longer than `--max-hold` permits, the longest {:.1} ms, those before the recording began included: a busy machine stops the target late, and memory that several processes share is cleared by process.",
                match self.too_long {
                    1 => "1 hold was".to_owned(),
                    more => format!("{more} holds were"),
                },
                self.longest.0 as f64 / 1e6
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

/// Whether all of a process that runs already is cleared as its first interval begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cleared {
    All,
    /// A boundary of several holds is to come first.
    NotYet,
}

impl Pass {
    fn new(began: Time, reading: Reading) -> Pass {
        Pass {
            began,
            resumes: began,
            reading,
            held: Duration(0),
            longest_hold: Duration(0),
            longest_stop: Duration(0),
            holds: 0,
            cpu: Duration(0),
            cpu_between: Duration(0),
            more: true,
        }
    }
}

/// Whether so many pages take longer than a hold may.
fn is_too_long(pages: u64, page_ns: f64, max_hold: Duration) -> bool {
    pages as f64 * page_ns > max_hold.0 as f64
}

fn part_of(length: Duration, share: f64) -> Duration {
    Duration((length.0 as f64 * share) as u64)
}

/// Up to when the work of a hold may go on that was asked for, and came about.
fn work_until(asked: Time, came: Time, max_hold: Duration) -> Time {
    (asked + part_of(max_hold, AIM)).max(came + part_of(max_hold, MIN_AIM))
}

fn boundaries(number: u64) -> String {
    match number {
        1 => "1 boundary".to_owned(),
        more => format!("{more} boundaries"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn one_hold_is_divided_only_where_it_would_be_too_long() {
        let asked = Duration(10 * MS);
        assert!(!is_too_long(100_000, GUESS_NS, asked));
        assert!(is_too_long(100_001, GUESS_NS, asked));
        assert!(!is_too_long(300_000, 30.0, asked));
        assert!(is_too_long(1, 1e9, asked));
    }

    #[test]
    fn the_work_ends_early_and_always_begins() {
        let asked = Time(1000 * MS);
        let until = |came| work_until(asked, Time(came), Duration(10 * MS));
        assert_eq!(until(1001 * MS), Time(1007 * MS));
        assert_eq!(until(1020 * MS), Time(1021 * MS), "it was stopped late");
    }
}
