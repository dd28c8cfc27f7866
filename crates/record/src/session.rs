//! One recording from beginning to end.

use std::os::fd::AsFd;
use std::time::Duration as Wait;

use varve_bpf::{Kernel, LoadOptions, PageFlags};
use varve_model::{Bytes, Duration, Interval, Time};
use varve_sys::{Child, PidFd, Signals, Trigger, Waiter, cpu_time, monotonic_now};
use varve_trace::tables::IntervalRow;
use varve_trace::{IntervalChoice, Manifest, Overhead, TraceWriter};

use self::watch::waiter;
use crate::agents::Agents;
use crate::auto::{self, Auto, Cost};
use crate::backend::{Backend, Boundary, Harvest};
use crate::guardian::Guardian;
use crate::intake::Intake;
use crate::manifest::new_manifest;
use crate::reclaim::reclaim;
use crate::runs::{Writes, append_runs};
use crate::scan::Scan;
use crate::target::Target;
use crate::traps::Servants;
use crate::turns::Turns;
use crate::write_source::WriteSource;
use crate::{Ablation, RecordError, RecordOptions, TargetChoice, TrapsChoice, samples, traps};

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

// What a wait tells apart.
/// An interval is at most so many times as long as asked for where the program waits for trapped accesses.
const LONGEST_STRETCH: u64 = 100;
/// A rest of an interval that is not worth waiting for.
const LEAST_REST: Duration = Duration(1_000_000);

const TARGET: u64 = 0;
const SIGNAL: u64 = 1;
const RING: u64 = 2;

/// How a recording ended.
#[derive(Debug)]
pub struct Summary {
    /// The target's exit code as a shell shows it, if it was ours to wait for.
    pub exit_code: Option<i32>,
    /// The manifest, not settled yet: the tables are still in parts.
    pub manifest: Manifest,
    /// What cut the recording short, if anything did.
    pub trouble: Option<RecordError>,
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
    crate::stale::clean_stale();
    crate::preflight::check(options)?;
    let signals = Signals::catch().map_err(RecordError::system("catch signals"))?;
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
    let source = WriteSource::choose(options, &mut kernel)?;
    let mut guardian = Guardian::start()?;
    let agents = match (&options.target, &options.preload) {
        (TargetChoice::Command(_), Some(_)) => {
            // The guardian knows of the folder before it exists.
            Some(Agents::create(|folder| guardian.watch_rings(folder))?)
        }
        _ => None,
    };
    let rings = agents.as_ref().map(|a| a.folder().to_owned());
    let writes = source.watch(rings.as_deref())?;
    let servants = crate::trap_source::servants(options, rings.as_deref(), &kernel)?;
    let mut manifest = new_manifest(options, source);
    let sampler = samples::start(options, &mut kernel, &mut manifest);
    let mut target = match &options.target {
        TargetChoice::Command(command) => Target::prepare(
            command,
            rings.as_deref(),
            options,
            &kernel,
            &signals,
            &mut guardian,
        )?,
        TargetChoice::Attach(pid) => Target::join(*pid, options, &kernel, &mut guardian)?,
    };
    manifest.target.pid = target.pid.0;
    if let TargetChoice::Attach(pid) = options.target {
        manifest.target.command = varve_sys::cmdline(pid).unwrap_or_default();
    }
    // Last, as an earlier trace goes for it.
    let created = TraceWriter::create(&options.output, &manifest);
    if created.is_err() {
        target.release();
    }
    let mut writer = created?;
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
    };
    session.intake.writes = writes;
    session.intake.trapped = servants.as_ref().map(|_| Default::default());
    session.intake.samples = sampler;
    let ran = session.run(&mut kernel, target, servants);
    let unwatched = session.intake.writes.take().is_some_and(|w| !w.any);
    let told = session.intake.agents.as_ref().is_some_and(|a| a.any);
    drop(session);
    manifest.features.objects = Some(if told { "preload" } else { "kernel" }.into());
    if unwatched {
        let note = "No process could hand over a userfaultfd, so nothing is known of writes.";
        manifest.notes.push(note.to_owned());
    }
    if ran.is_err() {
        let _ = writer.discard();
    }
    let (trouble, exit_code) = ran?;
    drop(guardian);
    Ok(Summary {
        exit_code,
        manifest,
        trouble,
    })
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
}

impl Session<'_> {
    /// Runs the recording; the error is one before anything was recorded.
    fn run(
        &mut self,
        kernel: &mut Kernel,
        mut target: Target,
        servants: Option<Servants>,
    ) -> Result<(Option<RecordError>, Option<i32>), RecordError> {
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
        }
        let recorded = self.record_loop(kernel, &mut target, servants, began);
        target.release();
        let mut exit_code = None;
        if let Some(child) = &mut target.child {
            exit_code = child.try_wait().ok().flatten();
        }
        self.manifest.target.exit_code = exit_code;
        let trouble = recorded
            .and_then(|()| self.count_skipped(kernel))
            .and_then(|()| self.flush())
            .err();
        // The kernel's part is of no use any more, and the target shall not pay for it.
        let _ = kernel.untrack(target.pid);
        drop(target.cgroup);
        if let Some(child) = &mut target.child {
            exit_code = Some(self.wait_for_child(child)?);
        }
        Ok((trouble, exit_code))
    }

    /// Lets our child finish, handing signals on.
    fn wait_for_child(&mut self, child: &mut Child) -> Result<i32, RecordError> {
        let ended = child
            .try_wait()
            .map_err(RecordError::system("wait for the target"))?;
        if let Some(code) = ended {
            return Ok(code);
        }
        let fd = PidFd::open(child.pid()).map_err(RecordError::system("watch the target"))?;
        let waiter = Waiter::new().map_err(RecordError::system("wait for the target"))?;
        for (fd, number) in [(fd.as_fd(), TARGET), (self.signals.as_fd(), SIGNAL)] {
            waiter
                .add(fd, number, Trigger::Level)
                .map_err(RecordError::system("wait for the target"))?;
        }
        loop {
            if let Some(code) = child
                .try_wait()
                .map_err(RecordError::system("wait for the target"))?
            {
                return Ok(code);
            }
            waiter
                .wait(Wait::from_secs(3600))
                .map_err(RecordError::system("wait for the target"))?;
            self.pass_signal_on(Some(child))?;
        }
    }

    /// Whether a signal arrived; it is handed to our child unless the terminal did so.
    fn pass_signal_on(&mut self, child: Option<&Child>) -> Result<bool, RecordError> {
        let signal = self
            .signals
            .take()
            .map_err(RecordError::system("read a signal"))?;
        if let (Some(signal), Some(child)) = (signal, child)
            && !signal.from_terminal
        {
            child.signal(signal.number);
        }
        Ok(signal.is_some())
    }

    /// Notes the processes that were there before the recording.
    fn meet(&mut self, target: &Target) -> Result<(), RecordError> {
        let world = &mut self.intake.world;
        for pid in target.cgroup.processes()? {
            if !self.options.follow && pid != target.pid {
                continue;
            }
            let Ok(status) = varve_sys::status(pid) else {
                continue;
            };
            world.adopt(pid, status.parent, status.started);
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
            cgroup,
            ..
        } = target;
        if let Some(servants) = &mut servants {
            servants.held_in(cgroup.path());
        }
        let mut scan = Scan::new(kernel, cgroup, self.options, *pid, servants);
        let mut turns = Turns::new(*pid, began);
        self.manifest.backend = scan.name().to_owned();
        let waiter = waiter(ended, &self.signals, scan.kernel)?;
        let mut start = began;
        if child.is_none() {
            while start == began {
                if let Some(boundary) = scan.begin()? {
                    start = boundary.next_start;
                }
            }
        }
        self.manifest.clock.start_ns = start;
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
            let wake = looks.iter().copied().fold(deadline.min(drain), Time::min);
            if let Some(end) = self.wait(&waiter, &mut scan, child.as_ref(), wake - now)? {
                turns.tell(&mut self.manifest.notes);
                return self.end(&end, &mut scan, child.as_mut(), start);
            }
            self.drain(&mut scan)?;
            let now = monotonic_now();
            self.intake.world.refresh_maps(now);
            self.intake.refresh_writes();
            if let Some(servants) = &mut scan.servants {
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
        if self.pass_signal_on(child)? {
            return Ok(Some(End::Stopped));
        }
        if ready.contains(&TARGET) {
            let others = self.options.follow && !scan.processes()?.is_empty();
            // Our child's descendants may outlive it, but nobody waits for those.
            if child.is_some() || !others {
                return Ok(Some(End::TargetEnded));
            }
        }
        Ok(None)
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
        for _ in 0..50 {
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
        scan.kernel.events(&mut |event| intake.take(event))?;
        intake.resolve_samples();
        intake.settle();
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
            ("untracked_children", dropped.tracking),
            ("holds_cut_short", scan.let_go),
            (
                "agent_records",
                intake.agents.as_ref().map_or(0, |a| a.lost),
            ),
        ] {
            output.lost_in_all(now, kind, total);
        }
        Ok(())
    }

    /// Closes the interval that began at `start`; also says how many pages were cleared.
    fn close(
        &mut self,
        scan: &mut Scan<'_>,
        start: Time,
        last: bool,
    ) -> Result<Option<(Boundary, u64)>, RecordError> {
        let mut harvest = Harvest::default();
        let Some(boundary) = scan.close_interval(&mut harvest)? else {
            return Ok(None);
        };
        if let Some(servants) = &scan.servants {
            self.intake.aside = servants.asides();
        }
        self.intake.boundary = Some(boundary.end);
        self.intake.released = Some(boundary.next_start);
        self.drain(scan)?;
        self.intake.boundary = None;
        self.intake.world.refresh_maps(boundary.next_start);
        self.intake.settle_inheritance();
        let mut cleared = 0;
        for (pid, regions) in &mut harvest.regions {
            let owner = self.intake.world.owner_of_memory(*pid);
            if let Some(writes) = &self.intake.writes {
                regions.iter_mut().for_each(|r| writes.judge(owner, r));
            }
            if self.intake.waits_for_exec_of == Some(*pid) {
                continue;
            }
            if let Some(servants) = &scan.servants {
                servants.hide(owner, regions);
            }
            let from = self.intake.output.touches.len();
            cleared += regions
                .iter()
                .map(|r| u64::from(r.touched_count()))
                .sum::<u64>();
            append_runs(
                &mut self.intake.output.touches,
                self.interval,
                owner,
                regions,
                self.writes,
                None,
                self.intake.trapped.as_ref().map(|t| &t.0),
            );
            if let Some(servants) = &mut scan.servants {
                traps::count(&mut servants.note, &self.intake.output.touches[from..]);
            }
        }
        self.intake.write_vanished(self.interval, self.writes);
        if let Some((now, next)) = &mut self.intake.trapped {
            *now = std::mem::take(next);
            now.armed = scan.servants.as_ref().map(Servants::armed);
        }
        self.manifest.traps = scan.servants.as_ref().map(|s| s.note);
        if let Some(writes) = &mut self.intake.writes {
            writes.boundary(&harvest.protected, &harvest.regions);
        }
        self.held = self.held + boundary.held;
        if let Some(servants) = &mut scan.servants {
            servants.held(boundary.held);
        }
        self.watch_losses(boundary.next_start, &harvest);
        let cpu = cpu_time();
        self.intake.output.intervals.push(IntervalRow {
            interval: self.interval,
            start_ns: start,
            end_ns: boundary.end,
            held_ns: boundary.held,
            resident_pages: harvest.resident_pages,
            processes: harvest.spaces.len() as u32,
            threads: self.intake.world.threads() as u32,
            recorder_cpu_ns: cpu - self.cpu_before,
        });
        self.manifest.overhead = Overhead {
            held_ns: self.held,
            recorder_cpu_ns: self.manifest.overhead.recorder_cpu_ns + (cpu - self.cpu_before),
            recorder_peak_bytes: Bytes(0),
        };
        self.manifest.clock.end_ns = boundary.end;
        self.cpu_before = cpu;
        self.interval = Interval(self.interval.0 + 1);
        if last && scan.prolonged > 0 {
            self.manifest.notes.push(format!(
                "The target did not stand still in time at {} boundaries; those intervals are longer.",
                scan.prolonged
            ));
        }
        Ok(Some((boundary, cleared)))
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
