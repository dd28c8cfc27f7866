//! One recording from beginning to end: the loop that all probes share.

mod boundary;
mod budget;
mod close;
mod end;
mod events;
mod manifest;
mod meter;
mod policy;
pub(crate) mod reclaim;
mod refreshes;
mod rest;
mod setup;
mod starvation;
pub(crate) mod touch_rows;
mod wait;

use varve_bpf::{Kernel, ReportsTook};
use varve_model::{Duration, Interval, Loss, Pid, Time};
use varve_symbols::OpenFiles;
use varve_sys::{DeferredStop, Signals, cpu_time, monotonic_now};
use varve_trace::{Manifest, TraceFolder, TraceWriter};

use self::boundary::{Boundaries, Cleared};
use self::events::Events;
use self::manifest::note_of_refusals;
use self::meter::Meter;
use self::policy::IntervalPolicy;
use self::reclaim::reclaim;
use self::refreshes::plan_refreshes;
use self::rest::Rest;
use self::setup::prepare;
use self::starvation::StarvationGuard;
use self::touch_rows::Writes;
pub use self::wait::Waiting;
use self::wait::{SOON, left_behind};
use crate::hold::watchdog::Watchdog;
use crate::probes::{Due, Took};
use crate::rests::Rests;
use crate::state::found::Unseen;
use crate::state::processes::ObjectsFrom;
use crate::target::Target;
use crate::{Live, RecordError, RecordOptions, interrupts};

/// What is lost at most when the recorder is killed.
const FLUSH_EVERY: Duration = Duration(500_000_000);
/// The rings are looked at this often at least.
const DRAIN_EVERY: Duration = Duration(50_000_000);
/// How a recording ended.
#[derive(Debug)]
pub struct Summary {
    /// The target's exit code as a shell shows it, if it was ours to wait for.
    pub exit_code: Option<i32>,
    /// The trace folder, locked.
    pub folder: TraceFolder,
    /// The manifest, not complete yet: the tables are still in parts.
    pub manifest: Manifest,
    /// What cut the recording short, if anything did.
    pub trouble: Option<RecordError>,
    /// The files of the target's code that are open still.
    pub files: OpenFiles,
    /// What held the target, as a sentence; empty where there is nothing unusual to say.
    pub held_by: String,
    /// The target, where it goes on.
    pub waiting: Option<Waiting>,
}

/// Records a target until it ends or a signal arrives. The trace is in parts afterwards.
///
/// # Errors
/// Where nothing could be recorded. What goes wrong later ends the recording, never the target, and
/// is reported in [`Summary::trouble`].
pub fn record(options: &RecordOptions) -> Result<Summary, RecordError> {
    // Several are open for each process.
    varve_sys::raise_file_limit();
    crate::leftovers::clean_leftovers();
    crate::target::preflight::check(options)?;
    let mut prepared = prepare(options)?;
    let writing = interrupts::Writing::default();
    let last_resort = match interrupts::guard(options, &prepared.signals, &writing) {
        Ok(guard) => guard,
        Err(error) => {
            prepared.target.release();
            let _ = prepared.writer.discard();
            return Err(error);
        }
    };
    let mut recorder = Recorder {
        options,
        boundaries: Boundaries::new(options, &prepared.kernel),
        kernel: prepared.kernel,
        target: prepared.target,
        events: prepared.events,
        policy: IntervalPolicy::of(options),
        meter: None,
        reports_took: ReportsTook::default(),
        report_way: prepared.report_way,
        took: Took::default(),
        metered: (Time(0), Duration(0)),
        writer: prepared.writer,
        writing,
        manifest: prepared.manifest,
        signals: prepared.signals,
        deferred_stop: prepared.deferred_stop,
        watchdog: prepared.watchdog,
        writes: prepared.writes,
        interval: Interval(0),
        held: Duration(0),
        touched_pages: 0,
        unseen_before: Vec::new(),
        cpu_began: cpu_time(),
        cpu_before: cpu_time(),
        reclaim_before: reclaim(),
        root_ended: false,
        begins: false,
        interrupted: false,
    };
    let ran = recorder.run();
    drop(last_resort);
    let Recorder {
        writer,
        mut manifest,
        signals,
        deferred_stop,
        interrupted,
        root_ended,
        kernel,
        mut events,
        target,
        watchdog,
        boundaries,
        ..
    } = recorder;
    let trouble = match ran {
        Ok(trouble) => trouble,
        Err(error) => {
            let _ = writer.discard();
            return Err(error);
        }
    };
    // Of a program in an emulator nobody expects it to be held.
    let held_by = match options.scans() {
        false => String::new(),
        true => boundaries.sentence(&target.hold),
    };
    let left = target.child.as_ref().filter(|_| root_ended && !interrupted);
    let left = left.and_then(|_| left_behind(&target.hold.processes(), target.pid));
    let files = events.state.processes.take_files();
    // The watchdog ends last: what it cares for is gone then.
    drop((kernel, events, target.hold));
    drop(watchdog);
    drop(deferred_stop);
    let mut waiting = target.child.map(|child| Waiting {
        child,
        signals,
        interrupted,
        tell: options.tell,
    });
    // A program may handle the signal that ended the recording, and end later in its own way.
    if let Some(waits) = &mut waiting {
        manifest.target.exit_code = waits.wait_for(SOON)?;
    }
    let exit_code = manifest.target.exit_code;
    let waiting = waiting.filter(|_| exit_code.is_none());
    if let Some(left) = left.filter(|_| exit_code.is_some()) {
        (options.tell)(&format!(
            "the recording ended with its command: {left}; `varve record --pid` records what runs already"
        ));
        let note = format!("The recording ended with its command: {left}.");
        manifest.notes.push(note);
    }
    if interrupted && waiting.is_some() {
        let pid = manifest.target.pid;
        // Who pressed Ctrl-C waits for the trace now, and the target gives no sign of having noticed.
        (options.tell)(&format!(
            "the recording has ended, and process {pid} runs on; its trace is put in order now"
        ));
        let note =
            format!("The recording ended before its target: process {pid} ran on unrecorded.");
        manifest.notes.push(note);
    }
    Ok(Summary {
        exit_code,
        folder: writer.into_folder(),
        manifest,
        trouble,
        files,
        held_by,
        waiting,
    })
}

/// Why the loop ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    TargetEnded,
    Stopped,
}

/// Where the loop stands.
struct Pace {
    /// When the interval that runs began.
    start: Time,
    /// When it is to end.
    deadline: Option<Time>,
    /// How long that end may take by itself, as several holds do.
    lead: Duration,
    rest: Rest,
    /// Whether a rest is to begin, or to end, at the next boundary.
    turns: bool,
    guard: StarvationGuard,
}

/// A recording that runs.
struct Recorder<'a> {
    options: &'a RecordOptions,
    kernel: Kernel,
    target: Target,
    events: Events,
    policy: IntervalPolicy,
    /// What recording costs; none where the target is not held.
    meter: Option<Meter>,
    /// What reports of the kernel's part had taken of the target by then.
    reports_took: ReportsTook,
    /// And what a thread loses on its way to each, and back.
    report_way: Duration,
    /// What probes and reports have taken in the interval that runs, as far as that was counted.
    took: Took,
    /// Up to when that was counted, and the recorder's CPU time then.
    metered: (Time, Duration),
    boundaries: Boundaries,
    writer: TraceWriter,
    writing: interrupts::Writing,
    manifest: Manifest,
    signals: Signals,
    /// A recorder that stops in the middle of a hold would not let go.
    deferred_stop: Option<DeferredStop>,
    watchdog: Watchdog,
    /// What the rows can say of writes.
    writes: Writes,
    /// The interval that runs.
    interval: Interval,
    /// How long the target was held in all.
    held: Duration,
    /// 4 KiB pages that were touched in the last interval.
    touched_pages: u64,
    /// What went unseen before the reading of the last interval was over, and after its end perhaps.
    unseen_before: Vec<Unseen>,
    cpu_began: Duration,
    cpu_before: Duration,
    reclaim_before: Option<i64>,
    /// Whether the process that was named has ended.
    root_ended: bool,
    /// Whether the memory is cleared in several holds before the first interval, which is what a beginning costs.
    begins: bool,
    /// Whether a signal ended the recording or its time was over, or one was handed on to an emulated target.
    interrupted: bool,
}

impl Recorder<'_> {
    /// Runs the recording; the error is one before anything was recorded, the result what cut it short.
    fn run(&mut self) -> Result<Option<RecordError>, RecordError> {
        if self.is_timed() {
            let meter = Meter::new(self.manifest.machine.cpus)
                .map_err(RecordError::system("measure the cost of a first access"))?;
            self.meter = Some(meter);
            let missing = self.kernel.missing_promised();
            let tables = &mut self.events.state.tables;
            tables.lost_in_all(monotonic_now(), Loss::MissingMechanisms, missing);
        }
        // Calls of the target's wait for the lock of its mappings, which looking at them takes: others must not keep it from that.
        let is_urgent = self.is_timed() || self.options.operations.is_some();
        if is_urgent {
            varve_sys::thread_priority(-20);
        }
        // Whatever the target does from here on belongs to the first interval.
        let began = monotonic_now();
        self.events.state.began = began;
        if self.target.child.is_none() {
            self.adopt_running();
        }
        let (root, kernel) = (self.target.pid, &self.kernel);
        self.events.each(|probe, _| probe.ready(root, kernel))?;
        if let Some(child) = &mut self.target.child {
            child.start()?;
        }
        let recorded = self.follow(began);
        if self.is_timed() {
            self.target.release();
        }
        if is_urgent {
            // Nobody waits for what is left to be done.
            varve_sys::thread_priority(0);
        }
        if let Some(child) = &mut self.target.child {
            self.manifest.target.exit_code = child.try_wait().ok().flatten();
        }
        let trouble = recorded
            .and_then(|()| self.count_skipped())
            .and_then(|()| self.flush())
            .err();
        if trouble.is_some() {
            // What was not written is missing, in intervals too that were.
            self.manifest
                .losses
                .insert(Loss::EndedEarly.as_str().to_owned(), 1);
            // On a full disk nothing may be written after this, and it is to be known why.
            self.manifest.derive_completeness();
            let _ = self.writer.folder().write_last_manifest(&self.manifest);
        }
        let manifest = &mut self.manifest;
        let is_whole = trouble.is_none();
        self.events
            .tell(|probe, _| probe.finish(manifest, is_whole));
        self.boundaries.describe(&mut manifest.notes);
        manifest.notes.extend(self.target.hold.describe_spared());
        manifest.notes.extend(self.watchdog.note());
        let refused = self.events.state.arrivals.refused();
        manifest.notes.extend(note_of_refusals(refused));
        // The kernel's part is of no use any more, and the target shall not pay for it.
        let _ = self.kernel.untrack(self.target.pid);
        Ok(trouble)
    }

    /// Whether intervals end by the clock.
    fn is_timed(&self) -> bool {
        self.policy.length().is_some()
    }

    /// Notes the processes that were there before the recording.
    fn adopt_running(&mut self) {
        let processes = &mut self.events.state.processes;
        let rests = Rests::begin();
        for pid in self.target.hold.processes() {
            rests.rest();
            let Ok(status) = varve_sys::status(pid) else {
                continue;
            };
            processes.adopt(pid, status.parent, status.started);
            processes.objects_come_from(pid, ObjectsFrom::Kernel, None);
            for thread in varve_sys::threads(pid).unwrap_or_default() {
                processes.thread(pid, thread.tid, thread.started, Some(&thread.name));
            }
        }
        processes.refresh_maps(monotonic_now());
    }

    /// Follows the target to its end, or to the recording's.
    fn follow(&mut self, began: Time) -> Result<(), RecordError> {
        let held_in = self.target.hold.path();
        self.events.tell(|probe, _| probe.begin(held_in));
        let waiter = self.waiter()?;
        let mut pace = self.begin_intervals(began)?;
        // Who waits for this sentence knows that what comes is recorded.
        let mut announced = self.target.child.is_some();
        // What was there before is written at once: who puts the trace of a recorder in order that was killed soon would not know
        // which program it is of.
        let mut flushed = match self.target.child {
            None => Time(0),
            Some(_) => began,
        };
        let mut refreshes: Vec<Time> = Vec::new();
        loop {
            let begins = !pace.rest.is_on() || self.options.delay > Duration(0);
            if begins && !std::mem::replace(&mut announced, true) {
                (self.options.tell)(&attached(self.target.pid, self.options.follow));
            }
            let now = monotonic_now();
            if std::mem::take(&mut self.events.state.new_program) {
                plan_refreshes(&mut refreshes, now);
            }
            refreshes.retain(|at| *at > now);
            let duration = self
                .options
                .duration
                .filter(|_| pace.rest.until().is_none());
            let until = duration.map(|most| self.manifest.clock.start_ns + most);
            let wake = refreshes.iter().copied().chain(pace.deadline);
            let rests = pace.rest.until().filter(|until| *until > now);
            let wake = wake.chain(until).chain(rests);
            let wake = wake.fold(now + self.drains_within(), Time::min);
            let mut ended = self.wait(&waiter, Duration(wake.0.saturating_sub(now.0)))?;
            if ended.is_none() && until.is_some_and(|until| monotonic_now() >= until) {
                self.interrupted = true;
                ended = Some(End::Stopped);
            }
            if let Some(end) = ended {
                pace.guard.describe(&mut self.manifest.notes);
                let start = (!pace.rest.is_on()).then_some(pace.start);
                pace.rest.describe(monotonic_now(), &mut self.manifest);
                return self.end(end, began, start);
            }
            self.drain()?;
            let now = monotonic_now();
            self.events.state.processes.refresh_maps(now);
            if !self.is_timed() {
                self.events.state.inherit_pending();
            }
            self.events.tell(|probe, state| probe.turn(state));
            for pages in self.events.state.moved_pages.drain(..) {
                self.watchdog.care_for_pages(pages);
            }
            self.watchdog.refresh();
            self.keep_pace(&mut pace)?;
            let state = &self.events.state;
            if now - flushed >= FLUSH_EVERY || state.tables.is_large() || state.objects.is_large() {
                self.count_skipped()?;
                self.flush()?;
                flushed = now;
            }
        }
    }

    /// Begins the first interval, or the rest before it.
    fn begin_intervals(&mut self, began: Time) -> Result<Pace, RecordError> {
        let mut guard = StarvationGuard::new(self.target.pid, began);
        let (mut start, mut cleared) = (began, Cleared::All);
        // Of whom no pages are recorded nothing is to be cleared.
        let clears = self.target.child.is_none() && self.options.scans();
        while clears && start == began {
            let (kernel, hold) = (&mut self.kernel, &mut self.target.hold);
            let (root, events) = (self.target.pid, &mut self.events);
            if let Some((boundary, done)) = self.boundaries.begin(root, kernel, hold, events)? {
                start = boundary.next_start;
                cleared = done;
            }
        }
        self.begins = cleared == Cleared::NotYet;
        self.manifest.clock.start_ns = start;
        self.metered = (start, cpu_time());
        guard.released(start);
        // What is accessed while it is cleared in several holds is not recorded.
        let rest = Rest::new(start, self.options.delay, cleared);
        Ok(Pace {
            start,
            deadline: self.due(start).filter(|_| !rest.is_on()),
            lead: Duration(0),
            turns: false,
            rest,
            guard,
        })
    }

    /// When an interval that begins at this moment is over.
    fn due(&self, start: Time) -> Option<Time> {
        self.policy.length().map(|length| start + length)
    }

    /// Closes intervals in time, and begins and ends rests.
    fn keep_pace(&mut self, pace: &mut Pace) -> Result<(), RecordError> {
        let now = monotonic_now();
        let Some(length) = self.policy.length() else {
            return Ok(());
        };
        let asked = self.signals.take_pause() && pace.rest.until().is_none();
        pace.turns |= asked || pace.rest.is_over(now);
        if pace.rest.is_on() {
            self.discard(now);
        }
        // Of several holds the next one waits until the target has run.
        let resumes = self.boundaries.resumes();
        if resumes.is_some_and(|at| now < at) {
            pace.deadline = resumes;
            return Ok(());
        }
        if !pace.turns {
            if pace.deadline.is_none_or(|at| now < at) {
                return Ok(());
            }
            if resumes.is_none()
                && let Some(rest) = self.unpaid(now, pace.lead)?
            {
                pace.deadline = Some(now + rest);
                return Ok(());
            }
            // Looked at again before long: those who wait for their turn may be gone by then.
            let holds = self.boundaries.holds();
            let starving = holds.then(|| pace.guard.wanting(now, || self.target.hold.processes()));
            let starving = starving.flatten().map(|rest| rest.min(length));
            if let Some(rest) = starving.or_else(|| self.prolonged(pace.start, now, length)) {
                pace.deadline = Some(now + rest);
                return Ok(());
            }
        }
        let keeps = !pace.rest.is_on();
        let closed = self.close(pace.start, keeps, false)?;
        pace.guard.released(monotonic_now());
        let Some(boundary) = closed else {
            // It runs on; try again soon.
            let soon = now + Duration(length.0 / 4 + 1_000_000);
            pace.deadline = self.boundaries.resumes().or(Some(soon));
            return Ok(());
        };
        pace.start = boundary.next_start;
        // Several holds take their time, which is the interval's.
        let next = self.policy.length().unwrap_or(length);
        pace.lead = match boundary.holds {
            0 | 1 => Duration(0),
            _ => boundary.overlap.min(Duration(next.0 / 2)),
        };
        pace.deadline = self.due(pace.start).map(|due| Time(due.0 - pace.lead.0));
        if std::mem::take(&mut pace.turns) {
            if keeps {
                pace.rest.begin(boundary.end);
                pace.deadline = None;
                let own = std::process::id();
                (self.options.tell)(&format!(
                    "paused: accesses are not recorded until `kill -USR1 {own}` resumes the recording"
                ));
            } else {
                if pace.rest.until().is_some() {
                    self.manifest.clock.start_ns = pace.start;
                }
                (self.options.tell)(&pace.rest.end(pace.start));
            }
        }
        self.show(pace, boundary.end);
        Ok(())
    }

    /// Shows how it goes, where somebody wants to see it.
    fn show(&self, pace: &Pace, end: Time) {
        if let Some(show) = self.options.show {
            show(&Live {
                recorded: end - self.manifest.clock.start_ns,
                touched_pages: self.touched_pages,
                held: self.held,
                recorder_cpu: cpu_time() - self.cpu_began,
                rests: pace.rest.is_on(),
            });
        }
    }

    /// How soon the events are to be looked at again.
    fn drains_within(&self) -> Duration {
        let urgent = self.events.probes.iter().filter_map(|p| p.urgency());
        urgent.fold(DRAIN_EVERY, Duration::min)
    }

    /// How much longer some probe wants an interval to be whose time has come.
    fn prolonged(&self, start: Time, now: Time, length: Duration) -> Option<Duration> {
        let due = Due {
            kernel: &self.kernel,
            start,
            now,
            length,
        };
        let probes = self.events.probes.iter();
        probes.filter_map(|p| p.prolong(&due)).max()
    }
}

/// What is recorded of a program that runs already, and how to end that.
fn attached(pid: Pid, follow: bool) -> String {
    let process = varve_sys::named(pid);
    let children = match follow {
        true => " with its children",
        false => ", without its children",
    };
    format!(
        "recording process {process}{children}; Ctrl-C or the end of the process ends the recording"
    )
}
