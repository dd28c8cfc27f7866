//! One recording from beginning to end.

use std::time::Duration as Wait;

use varve_bpf::{Kernel, LoadOptions, PageFlags, TrackFlags};
use varve_model::{Duration, Interval, Time};
use varve_sys::{Child, Signals, Waiter, cpu_time, monotonic_now};
use varve_trace::{IntervalChoice, Manifest, TraceFolder, TraceWriter};

pub use self::wait::Waiting;
use self::wait::{SOON, pass_on};
use self::watch::{attached, waiter};
use crate::agents::Agents;
use crate::auto::{self, Auto, Cost};
use crate::backend::Backend;
use crate::channel::{Channel, Offers};
use crate::intake::Intake;
use crate::manifest::new_manifest;
use crate::reclaim::reclaim;
use crate::run_folder::RunFolder;
use crate::runs::Writes;
use crate::scan::Scan;
use crate::target::Target;
use crate::traps::Servants;
use crate::turns::Turns;
use crate::watchdog::{Order, Watchdog};
use crate::world::ObjectsFrom;
use crate::write_source::WriteSource;
use crate::{Ablation, RecordError, RecordOptions, TargetChoice, TrapsChoice, interrupts, samples};

mod close;
mod wait;
mod watch;

/// What is lost at most when the recorder is killed.
const FLUSH_EVERY: Duration = Duration(500_000_000);
/// The rings are looked at this often at least.
const DRAIN_EVERY: Duration = Duration(50_000_000);
/// And this often while the preload library has much to tell: at the highest rate of allocations a
/// ring fills in 20 ms.
const DRAIN_OFTEN: Duration = Duration(4_000_000);
/// A new program's mappings are looked at this long after its beginning, again and again: it is
/// loading its libraries, and it may live shorter than an interval.
const YOUNG_LOOKS: [Duration; 4] = [
    Duration(1_000_000),
    Duration(4_000_000),
    Duration(12_000_000),
    Duration(30_000_000),
];

/// An interval is at most so many times as long as asked for where the program waits for trapped accesses.
const LONGEST_STRETCH: u64 = 100;
/// The loss of what an error kept from being recorded or written.
pub(crate) const ENDED_EARLY: &str = "ended_early";
/// How long the end of a recording may take to hold the target once more.
const END_WITHIN: Duration = Duration(600_000_000);
/// A rest of an interval that is not worth waiting for.
const LEAST_REST: Duration = Duration(1_000_000);

// What a wait tells apart.
const TARGET: u64 = 0;
const SIGNAL: u64 = 1;
const RING: u64 = 2;

/// How a recording ended.
#[derive(Debug)]
pub struct Summary {
    /// The target's exit code as a shell shows it, if it was ours to wait for.
    pub exit_code: Option<i32>,
    /// The trace folder, locked.
    pub folder: TraceFolder,
    /// The manifest, not settled yet: the tables are still in parts.
    pub manifest: Manifest,
    /// What cut the recording short, if anything did.
    pub trouble: Option<RecordError>,
    /// What held the target, as a sentence; empty where there is nothing unusual to say.
    pub held_by: String,
    /// The target, where it goes on.
    pub waiting: Option<Waiting>,
}

/// How much longer an interval is to last because the program waited for trapped accesses meanwhile. Otherwise, the
/// longer it waits the more often all pages would be armed again, and it would hardly get on.
fn stood_still(scan: &Scan<'_>, start: Time, now: Time, length: Duration) -> Option<Duration> {
    scan.servants.as_ref()?;
    // A kernel that does not tell has intervals as long as asked for.
    let waited = scan.kernel.waited().ok()?;
    let most = Duration(length.0.saturating_mul(LONGEST_STRETCH));
    let due = start + length + waited.min(most);
    (due > now + LEAST_REST).then(|| due - now)
}

/// Records a target until it ends or a signal arrives. The trace is in parts afterwards.
///
/// # Errors
/// Where nothing could be recorded. What goes wrong later ends the recording, never the target, and
/// is told in [`Summary::trouble`].
pub fn record(options: &RecordOptions) -> Result<Summary, RecordError> {
    crate::leftovers::clean_leftovers();
    crate::preflight::check(options)?;
    let signals = Signals::catch().map_err(RecordError::system("catch signals"))?;
    crate::rights::hide();
    let mut kernel = Kernel::load(&LoadOptions {
        waits: options.traps != TrapsChoice::Off,
        page_flags: if options.lacks(Ablation::PageFlags) {
            PageFlags::Ignore
        } else {
            PageFlags::Check
        },
        sample_ring_bytes: samples::ring_bytes(options),
        sample_stack_bytes: samples::STACK_BYTES,
        ..LoadOptions::default()
    })?;
    crate::rights::loaded(&kernel);
    let source = WriteSource::choose(options, &mut kernel)?;
    let mut watchdog = Watchdog::start()?;
    let writes = source.watch();
    let servants = crate::trap_source::servants(options, &kernel)?;
    let channel = match (&options.target, &options.preload) {
        (TargetChoice::Command(_), Some(_)) => {
            // The watchdog knows of the folder before it exists.
            let folder =
                RunFolder::create(|folder| watchdog.order(&Order::RunFolder(folder.to_owned())))?;
            let offers = Offers {
                writes: writes.is_some(),
                handlers: servants.is_some(),
                counts: None,
            };
            Some(Channel::open(folder, kernel.tracked()?, offers)?)
        }
        _ => None,
    };
    let mut manifest = new_manifest(options, source);
    let sampler = samples::start(options, &mut kernel, &mut manifest);
    let mut target = match &options.target {
        TargetChoice::Command(command) => Target::prepare(
            command,
            channel.as_ref(),
            options,
            &kernel,
            &signals,
            &mut watchdog,
        )?,
        TargetChoice::Attach(pid) => Target::join(*pid, options, &kernel, &mut watchdog)?,
    };
    let agents = channel.map(Agents::new).zip(options.preload.clone());
    manifest.target.pid = target.pid.0;
    if let TargetChoice::Attach(pid) = options.target {
        manifest.target.command = varve_sys::cmdline(pid).unwrap_or_default();
    }
    // Last, as an earlier trace goes for it.
    let folder = options.output.create();
    let created = folder.and_then(|folder| TraceWriter::begin(folder, &manifest));
    if created.is_err() {
        target.release();
    }
    let mut writer = created?;
    let settled = crate::rights::settle();
    if settled.is_err() {
        target.release();
    }
    settled?;
    let last_resort = interrupts::guard(options, &signals)?;
    let mut session = Session {
        options,
        intake: Intake::new(agents, target.child.is_some().then_some(target.pid)),
        writer: &mut writer,
        manifest: &mut manifest,
        signals,
        writes: source.into(),
        interval: Interval(0),
        held: Duration(0),
        cpu_before: cpu_time(),
        reclaim_before: reclaim(),
        auto: None,
        root_ended: false,
        held_by: String::new(),
        interrupted: false,
    };
    session.intake.writes = writes;
    session.intake.trapped = servants.as_ref().map(|_| Default::default());
    session.intake.samples = sampler;
    let missing = kernel.missing_promised();
    let output = &mut session.intake.output;
    output.lost_in_all(monotonic_now(), "missing_mechanisms", missing);
    let ran = session.run(&mut kernel, target, servants);
    let unwatched = session.intake.writes.take().is_some_and(|w| !w.any);
    let agents = session.intake.agents.as_ref();
    let told = agents.is_some_and(|a| a.any);
    let refused = agents.map(Agents::refused);
    drop(last_resort);
    let Session {
        signals,
        held_by,
        interrupted,
        ..
    } = session;
    manifest.notes.extend(refused.and_then(note_of_refusals));
    manifest.features.objects = Some(if told { "preload" } else { "kernel" }.into());
    if unwatched {
        let note = "No process could hand over a userfaultfd, so nothing is known of writes.";
        manifest.notes.push(note.to_owned());
    }
    let (trouble, child) = match ran {
        Ok(ended) => ended,
        Err(error) => {
            let _ = writer.discard();
            return Err(error);
        }
    };
    drop(watchdog);
    let mut waiting = child.map(|child| Waiting {
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
    if interrupted && waiting.is_some() {
        let pid = manifest.target.pid;
        let note =
            format!("The recording ended before its target: process {pid} ran on unrecorded.");
        manifest.notes.push(note);
    }
    Ok(Summary {
        exit_code,
        folder: writer.into_folder(),
        manifest,
        trouble,
        held_by,
        waiting,
    })
}

/// What is to be said of connections that were refused: how many were strangers', and how many of recorded processes.
pub(crate) fn note_of_refusals((strangers, recorded): (u64, u64)) -> Option<String> {
    let mut parts = Vec::new();
    if strangers > 0 {
        parts.push(format!("{strangers} of processes that are not recorded"));
    }
    if recorded > 0 {
        parts.push(format!(
            "{recorded} of recorded processes, which asked twice or not as the library does"
        ));
    }
    let parts = parts.join(", and ");
    (!parts.is_empty())
        .then(|| format!("Connections to the recorder's socket that were refused: {parts}."))
}

/// Why the loop ended.
enum End {
    TargetEnded,
    Stopped,
}

struct Session<'a> {
    options: &'a RecordOptions,
    intake: Intake,
    writer: &'a mut TraceWriter,
    manifest: &'a mut Manifest,
    signals: Signals,
    writes: Writes,
    interval: Interval,
    held: Duration,
    cpu_before: Duration,
    reclaim_before: Option<i64>,
    auto: Option<Auto>,
    /// Whether the process that was named has ended.
    root_ended: bool,
    /// What held the target, as a sentence, where that is worth one.
    held_by: String,
    /// Whether a signal ended the recording, or its time was over.
    interrupted: bool,
}

impl Session<'_> {
    /// Runs the recording; the error is one before anything was recorded.
    fn run(
        &mut self,
        kernel: &mut Kernel,
        mut target: Target,
        servants: Option<Servants>,
    ) -> Result<(Option<RecordError>, Option<Child>), RecordError> {
        if let IntervalChoice::Auto { overhead } = self.options.interval {
            let first_access = auto::measure_first_access()
                .map_err(RecordError::system("measure the cost of a first access"))?;
            let cpus = self.manifest.machine.cpus;
            self.auto = Some(Auto::new(overhead, first_access, cpus));
        }
        varve_sys::thread_priority(-20);
        // Whatever the target does from here on belongs to the first interval.
        let began = monotonic_now();
        if let Some(child) = &mut target.child {
            child.start()?;
        } else {
            self.meet(&target)?;
            (self.options.tell)(&attached(target.pid, self.options.follow));
        }
        let recorded = self.record_loop(kernel, &mut target, servants, began);
        target.release();
        if let Some(child) = &mut target.child {
            self.manifest.target.exit_code = child.try_wait().ok().flatten();
        }
        self.held_by = target.hold.sentence();
        let trouble = recorded
            .and_then(|()| self.count_skipped(kernel))
            .and_then(|()| self.flush())
            .err();
        if trouble.is_some() {
            // What was not written is missing, in intervals too that were.
            self.manifest.losses.insert(ENDED_EARLY.to_owned(), 1);
        }
        // The kernel's part is of no use any more, and the target shall not pay for it.
        let _ = kernel.untrack(target.pid);
        drop(target.hold);
        Ok((trouble, target.child))
    }

    /// Notes the processes that were there before the recording.
    fn meet(&mut self, target: &Target) -> Result<(), RecordError> {
        let world = &mut self.intake.world;
        for pid in target.hold.processes() {
            let Ok(status) = varve_sys::status(pid) else {
                continue;
            };
            world.adopt(pid, status.parent, status.started);
            world.objects_come_from(pid, ObjectsFrom::Kernel, None);
            for thread in varve_sys::threads(pid).unwrap_or_default() {
                world.thread(pid, thread.tid, thread.started, Some(&thread.name));
            }
        }
        world.refresh_maps(monotonic_now());
        Ok(())
    }

    fn record_loop(
        &mut self,
        kernel: &mut Kernel,
        target: &mut Target,
        mut servants: Option<Servants>,
        began: Time,
    ) -> Result<(), RecordError> {
        let Target {
            pid,
            child,
            ended,
            hold,
        } = target;
        if let Some(servants) = &mut servants {
            servants.held_in(hold.path());
        }
        let mut scan = Scan::new(kernel, hold, self.options, servants);
        let mut turns = Turns::new(*pid, began);
        self.manifest.backend = scan.name().to_owned();
        let waiter = waiter(ended, &self.signals, scan.kernel)?;
        let mut start = began;
        if child.is_none() {
            while start == began {
                if let Some(boundary) = scan.begin(*pid)? {
                    start = boundary.next_start;
                }
            }
        }
        self.manifest.clock.start_ns = start;
        let start_of_all = start;
        turns.released(start);
        let mut length = match self.options.interval {
            IntervalChoice::Fixed(length) => length,
            IntervalChoice::Auto { .. } | IntervalChoice::Accesses(_) | IntervalChoice::None => {
                auto::SHORTEST
            }
        };
        let mut deadline = start + length;
        let mut flushed = start;
        let mut looks = Vec::new();
        loop {
            let now = monotonic_now();
            if std::mem::take(&mut self.intake.new_program) {
                looks.extend(YOUNG_LOOKS.map(|d| now + d));
            }
            looks.retain(|l| *l > now);
            let busy = self
                .intake
                .agents
                .as_ref()
                .is_some_and(|a| a.fill_percent > 10);
            let drain = now + if busy { DRAIN_OFTEN } else { DRAIN_EVERY };
            let until = self.options.duration.map(|most| start_of_all + most);
            let wake = looks.iter().copied().chain(until);
            let wake = wake.fold(deadline.min(drain), Time::min);
            let ended = self.wait(&waiter, &mut scan, child.as_ref(), wake - now)?;
            let is_over = until.is_some_and(|until| monotonic_now() >= until);
            if let Some(end) = ended.or_else(|| is_over.then(|| self.time_is_over())) {
                turns.tell(&mut self.manifest.notes);
                return self.end(&end, &mut scan, child.as_mut(), start);
            }
            self.drain(&mut scan)?;
            let now = monotonic_now();
            self.intake.world.refresh_maps(now);
            let handlers = self.intake.take_others();
            self.intake.refresh_writes();
            if let Some(servants) = &mut scan.servants {
                for (pid, image, socket) in handlers {
                    servants.take(pid, image, socket);
                }
                servants.refresh();
            }
            if now >= deadline
                && let Some(rest) = turns.wanting(now)
            {
                // Looked at again before long: a herd may be gone by then.
                deadline = now + rest.min(length);
            } else if now >= deadline
                && let Some(rest) = stood_still(&scan, start, now, length)
            {
                deadline = now + rest;
            } else if now >= deadline {
                let cpu = cpu_time();
                match self.close(&mut scan, start, false)? {
                    Some((boundary, cleared)) => {
                        if let Some(auto) = &mut self.auto {
                            let cost = Cost {
                                held: boundary.held,
                                recorder_cpu: cpu_time() - cpu,
                                cleared,
                            };
                            length = auto.next(cost);
                        }
                        start = boundary.next_start;
                        deadline = start + length;
                    }
                    // It runs on; try again soon.
                    None => deadline = now + Duration(length.0 / 4 + 1_000_000),
                }
                turns.released(monotonic_now());
            }
            if now - flushed >= FLUSH_EVERY || self.intake.output.is_large(&self.intake.lives) {
                self.count_skipped(scan.kernel)?;
                if let Some(servants) = &mut scan.servants {
                    servants.check_exempt();
                }
                self.flush()?;
                flushed = now;
            }
        }
    }

    /// Sleeps until something happens; tells when the recording is over.
    fn wait(
        &mut self,
        waiter: &Waiter,
        scan: &mut Scan<'_>,
        child: Option<&Child>,
        limit: Duration,
    ) -> Result<Option<End>, RecordError> {
        let ready = waiter
            .wait(Wait::from_nanos(limit.0))
            .map_err(RecordError::system("wait for the target"))?;
        if pass_on(&mut self.signals, child)?.is_some() {
            self.interrupted = true;
            return Ok(Some(End::Stopped));
        }
        self.root_ended |= ready.contains(&TARGET);
        // Our child's descendants may outlive it, but nobody waits for those.
        let is_over = self.root_ended && (child.is_some() || scan.hold.processes().is_empty());
        Ok(is_over.then_some(End::TargetEnded))
    }

    /// The recording was not to last longer; the target goes on.
    fn time_is_over(&mut self) -> End {
        self.interrupted = true;
        End::Stopped
    }

    /// The last interval: whatever still runs is read once more and let go.
    fn end(
        &mut self,
        end: &End,
        scan: &mut Scan<'_>,
        child: Option<&mut Child>,
        start: Time,
    ) -> Result<(), RecordError> {
        if let (End::TargetEnded, Some(child)) = (end, child) {
            let _ = child.try_wait();
        }
        let began = monotonic_now();
        while monotonic_now() - began < END_WITHIN {
            if self.close(scan, start, true)?.is_some() {
                return Ok(());
            }
        }
        // It cannot be held, so its last interval cannot be read.
        self.intake.output.lost(monotonic_now(), "last_interval", 1);
        Ok(())
    }

    fn drain(&mut self, scan: &mut Scan<'_>) -> Result<(), RecordError> {
        let intake = &mut self.intake;
        // Samples first: whatever they need to be understood is told of by the events that follow.
        if let Some(samples) = &mut intake.samples {
            samples.collect()?;
        }
        if let Some(agents) = &mut intake.agents {
            agents.collect();
        }
        let heard = monotonic_now();
        scan.kernel.events(&mut |event| intake.take(event))?;
        intake.resolve_samples();
        intake.settle(heard);
        for (pid, image, stacks) in intake.stack_changes.drain(..) {
            let (set, clear) = match stacks {
                true => (TrackFlags::STACKS, TrackFlags::default()),
                false => (TrackFlags::default(), TrackFlags::STACKS),
            };
            scan.kernel.change_flags(pid, image, set, clear)?;
        }
        let news = intake.trap_news.drain(..);
        if let Some(servants) = &mut scan.servants {
            servants.learn(news);
        }
        let dropped = scan.kernel.dropped_records()?;
        if let Some(writes) = &mut intake.writes {
            writes.lost(dropped.mappings);
        }
        let now = monotonic_now();
        let output = &mut intake.output;
        for (kind, total) in [
            ("faults", dropped.faults),
            ("vanished_pages", dropped.vanish_pages),
            ("vanish_walks", dropped.vanish_walks),
            ("process_events", dropped.life),
            ("mapping_events", dropped.mappings),
            (
                "untracked_children",
                dropped.tracking
                    + scan
                        .servants
                        .as_ref()
                        .map_or(0, |s| s.unobserved.len() as u64),
            ),
            ("holds_cut_short", scan.let_go),
            ("unheld_processes", scan.unheld),
            (
                "killed_handlers",
                scan.servants.as_ref().map_or(0, |s| s.killed),
            ),
            (
                "agent_records",
                intake.agents.as_ref().map_or(0, |a| a.lost),
            ),
        ] {
            output.lost_in_all(now, kind, total);
        }
        Ok(())
    }

    /// Counts programs that the kernel did not run; asking takes many system calls.
    fn count_skipped(&mut self, kernel: &Kernel) -> Result<(), RecordError> {
        let skipped = kernel.skipped()?;
        let output = &mut self.intake.output;
        output.lost_in_all(monotonic_now(), "skipped_programs", skipped);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), RecordError> {
        self.manifest.overhead.recorder_peak_bytes = varve_sys::own_peak_bytes();
        let intake = &mut self.intake;
        let lost_stacks = intake.stacks.lost;
        intake
            .output
            .lost_in_all(monotonic_now(), "stacks", lost_stacks);
        let not_inherited = intake.lives.not_inherited;
        intake
            .output
            .lost_in_all(monotonic_now(), "inherited_objects", not_inherited);
        Ok(intake.output.flush(
            self.writer,
            self.manifest,
            &mut intake.world,
            &mut intake.lives,
            &mut intake.stacks,
            intake.samples.as_mut(),
        )?)
    }
}
