//! The exact backend: the target runs under an emulator, whose plugin counts every access.
//!
//! Nothing is held, scanned or cleared. The kernel's events still tell of processes, threads and mappings, and the
//! preload library, which is emulated with the program, of heap objects. The counts lie in shared files
//! (`varve-exact-table`) and are read when the target has ended, or the recorder ([`crate::salvage`]).

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration as Wait;

use varve_agent_ring::MIN_OBJECT_VARIABLE;
use varve_bpf::{Kernel, LoadOptions, PageFlags, TrackFlags};
use varve_exact_table::{CONTROL, Control, Program};
use varve_model::{Duration, Time};
use varve_sys::{Child, Launch, PidFd, Signals, Trigger, Waiter, cpu_time, monotonic_now};
use varve_trace::{EXACT, IntervalChoice, Manifest, TraceWriter};

use crate::agents::Agents;
use crate::channel::{Channel, CountFiles, Offers};
use crate::exact_rows::{self, Run};
use crate::intake::Intake;
use crate::manifest::new_manifest;
use crate::run_folder::RunFolder;
use crate::watchdog::{Order, Watchdog};
use crate::write_source::WriteSource;
use crate::{RecordError, RecordOptions, Summary, TargetChoice, interrupts, salvage};

/// What must be there besides the target.
#[derive(Clone, Debug)]
pub struct ExactOptions {
    /// The emulator's plugin.
    pub plugin: PathBuf,
    /// How many accesses an interval is long; 0: the whole run is one. Rounded up to a multiple of 64.
    pub interval_accesses: u64,
}

/// The emulator, as Debian names it.
pub(crate) const EMULATOR: &str = "qemu-x86_64";
const FLUSH_EVERY: Duration = Duration(500_000_000);
const DRAIN_EVERY: Wait = Wait::from_millis(20);

// What a wait tells apart.
const TARGET: u64 = 0;
const SIGNAL: u64 = 1;
const RING: u64 = 2;

/// Counts every access of a command until it ends. The trace is in parts afterwards.
///
/// # Errors
/// Where nothing could be recorded. What goes wrong later ends the recording, never the target, and
/// is told in [`Summary::trouble`].
pub fn record_exact(options: &RecordOptions, exact: &ExactOptions) -> Result<Summary, RecordError> {
    crate::leftovers::clean_leftovers();
    crate::preflight::check(options)?;
    let TargetChoice::Command(command) = &options.target else {
        return Err(RecordError::Uncountable {
            path: PathBuf::from("a process that runs already"),
            why: "it would have to run in the emulator from its beginning",
        });
    };
    let emulator = emulator().ok_or(RecordError::NoEmulator(EMULATOR))?;
    let signals = Signals::catch().map_err(RecordError::system("catch signals"))?;
    crate::rights::hide();
    let mut kernel = Kernel::load(&LoadOptions {
        page_flags: PageFlags::Ignore,
        ..LoadOptions::default()
    })?;
    crate::rights::loaded(&kernel);
    let mut watchdog = Watchdog::start()?;
    // The watchdog knows of the folder before it exists.
    let folder = RunFolder::create(|folder| watchdog.order(&Order::RunFolder(folder.to_owned())))?;
    let made = make_control(folder.path(), exact.interval_accesses);
    let control = made.map_err(RecordError::system("make the file that all counts share"))?;
    let counts = CountFiles {
        folder: folder.path().to_owned(),
        control,
    };
    let offers = Offers {
        counts: Some(counts),
        ..Offers::default()
    };
    let channel = Channel::open(folder, kernel.tracked()?, offers)?;
    let folder = channel.folder().to_owned();
    let words = emulated(&emulator, command, options, exact, &channel)?;
    let mut environment = vec![
        // For the emulator itself; the program is told by its options.
        ("LD_PRELOAD", OsString::new()),
        (MIN_OBJECT_VARIABLE, options.min_object.0.to_string().into()),
    ];
    environment.extend(channel.environment());
    let mut child = Child::prepare(
        &Launch {
            command: &words,
            environment: &environment,
            thp: options.thp,
        },
        &signals,
    )?;
    let mut flags = TrackFlags::DEFAULT.without(TrackFlags::VANISH);
    if !options.follow {
        flags = flags.without(TrackFlags::FOLLOW);
    }
    kernel.track(child.pid(), flags)?;
    let mut manifest = exact_manifest(options, exact);
    manifest.target.pid = child.pid().0;
    let mut writer = TraceWriter::begin(options.output.create()?, &manifest)?;
    if let Err(source) = salvage::owe(&folder, writer.folder()) {
        let _ = writer.discard();
        return Err(RecordError::System {
            action: "note whose the counts are",
            source,
        });
    }
    crate::rights::settle()?;
    let last_resort = interrupts::guard(options, &signals)?;
    let agents = Agents::new(channel);
    let library = options.preload.clone().unwrap_or_default();
    let mut intake = Intake::new(Some((agents, library)), Some(child.pid()));
    intake.world.emulated = true;
    let mut session = Session {
        options,
        folder: &folder,
        intake,
        writer: &mut writer,
        manifest: &mut manifest,
        signals,
        interrupted: false,
        watchdog,
    };
    let ran = session.run(&mut kernel, &mut child);
    let agents = session.intake.agents.as_ref();
    let told = agents.is_some_and(|a| a.any);
    let refused = agents.map(Agents::refused);
    drop(last_resort);
    let Session { watchdog, .. } = session;
    manifest.notes.extend(watchdog.note());
    manifest
        .notes
        .extend(refused.and_then(crate::session::note_of_refusals));
    manifest.features.objects = told.then(|| "preload".into());
    if !told {
        let note = "No process loaded the preload library: heap objects are not known.";
        manifest.notes.push(note.to_owned());
    }
    let (exit_code, trouble) = match ran {
        Ok(ended) => ended,
        Err(error) => {
            let _ = writer.discard();
            return Err(error);
        }
    };
    drop(watchdog);
    Ok(Summary {
        waiting: None,
        exit_code,
        folder: writer.into_folder(),
        manifest,
        trouble,
        held_by: String::new(),
    })
}

/// The emulator, if it is installed.
pub(crate) fn emulator() -> Option<PathBuf> {
    crate::preflight::found(Path::new(EMULATOR))
}

fn make_control(folder: &Path, length: u64) -> std::io::Result<std::fs::File> {
    let path = folder.join(CONTROL);
    Control::create(&path, length)?;
    std::fs::File::options().read(true).write(true).open(path)
}

/// The command as the emulator is to be given it.
fn emulated(
    emulator: &Path,
    command: &[OsString],
    options: &RecordOptions,
    exact: &ExactOptions,
    channel: &Channel,
) -> Result<Vec<OsString>, RecordError> {
    let given = Path::new(command.first().map_or("".as_ref(), OsString::as_os_str));
    let path = crate::preflight::found(given).unwrap_or_else(|| given.to_owned());
    let (kind, program, arguments) = Program::resolve(&path, command);
    let why = match kind {
        Program::Native => None,
        Program::GainsRights => Some("it gains rights by its setuid or setgid bits"),
        _ => Some("it is not an executable for x86-64"),
    };
    if let Some(why) = why {
        return Err(RecordError::Uncountable { path: program, why });
    }
    let mut plugin = exact.plugin.clone().into_os_string();
    let [(_, folder), (_, identity)] = channel.environment();
    for (name, value) in [("folder", folder), ("identity", identity)] {
        plugin.push(",");
        plugin.push(name);
        plugin.push("=");
        plugin.push(value);
    }
    let mut words: Vec<OsString> = vec![emulator.into()];
    words.extend(["-cpu", "max", "-plugin"].map(OsString::from));
    words.push(plugin);
    match (&options.preload, std::env::var_os("LD_PRELOAD")) {
        (Some(library), _) => {
            let mut variable = OsString::from("LD_PRELOAD=");
            variable.push(crate::target::with_preload(library));
            words.extend(["-E".into(), variable]);
        }
        (None, Some(list)) if !list.is_empty() => {
            let mut variable = OsString::from("LD_PRELOAD=");
            variable.push(list);
            words.extend(["-E".into(), variable]);
        }
        (None, _) => words.extend(["-U", "LD_PRELOAD"].map(OsString::from)),
    }
    words.push("-0".into());
    words.push(arguments.first().cloned().unwrap_or_default());
    words.push(program.into());
    words.extend(arguments.into_iter().skip(1));
    Ok(words)
}

fn exact_manifest(options: &RecordOptions, exact: &ExactOptions) -> Manifest {
    let mut manifest = new_manifest(options, WriteSource::Nothing);
    manifest.backend = EXACT.into();
    manifest.options.interval =
        IntervalChoice::Accesses(exact.interval_accesses.next_multiple_of(64));
    manifest.features.writes = Some(EXACT.into());
    manifest.features.page_flags = false;
    manifest.features.hold = "none".into();
    manifest.notes.push(
        "The program ran under an emulator: times are those of the emulated run, many times longer than the program's own."
            .into(),
    );
    manifest
}

struct Session<'a> {
    options: &'a RecordOptions,
    folder: &'a Path,
    intake: Intake,
    writer: &'a mut TraceWriter,
    manifest: &'a mut Manifest,
    signals: Signals,
    /// Whether a signal was handed on.
    interrupted: bool,
    watchdog: Watchdog,
}

impl Session<'_> {
    /// Runs the recording; the error is one before anything was recorded.
    fn run(
        &mut self,
        kernel: &mut Kernel,
        child: &mut Child,
    ) -> Result<(Option<i32>, Option<RecordError>), RecordError> {
        let cpu = cpu_time();
        let ended = PidFd::open(child.pid()).map_err(RecordError::system("watch the target"))?;
        let waiter = self.waiter(&ended, kernel)?;
        let began = monotonic_now();
        self.manifest.clock.start_ns = began;
        child.start()?;
        let mut trouble = self.follow(kernel, child, &waiter).err();
        let end = monotonic_now();
        self.manifest.clock.end_ns = end;
        // Whatever went wrong, the target runs to its end.
        let exit_code = loop {
            match child.try_wait() {
                Ok(None) => {}
                Ok(code) => break code,
                Err(_) => break None,
            }
            let _ = waiter.wait(DRAIN_EVERY);
            self.pass_signal_on(child)?;
        };
        self.manifest.target.exit_code = exit_code;
        if trouble.is_none() {
            trouble = self.finish(kernel, began, end).err();
        }
        self.manifest.overhead.recorder_cpu_ns = cpu_time() - cpu;
        match self.flush() {
            Ok(()) if trouble.is_none() => salvage::settled(self.folder),
            Ok(()) => {}
            Err(e) => {
                trouble.get_or_insert(e);
            }
        }
        if trouble.is_some() {
            let lost = crate::session::ENDED_EARLY.to_owned();
            self.manifest.losses.insert(lost, 1);
        }
        Ok((exit_code, trouble))
    }

    fn waiter(&self, ended: &PidFd, kernel: &Kernel) -> Result<Waiter, RecordError> {
        let watched = || -> std::io::Result<Waiter> {
            let waiter = Waiter::new()?;
            waiter.add(ended.as_fd(), TARGET, Trigger::Level)?;
            waiter.add(self.signals.as_fd(), SIGNAL, Trigger::Level)?;
            waiter.add(kernel.event_fd(), RING, Trigger::Edge)?;
            Ok(waiter)
        };
        watched().map_err(RecordError::system("wait for the target"))
    }

    /// Notes what the target does until it ends.
    fn follow(
        &mut self,
        kernel: &mut Kernel,
        child: &mut Child,
        waiter: &Waiter,
    ) -> Result<(), RecordError> {
        let mut flushed = monotonic_now();
        loop {
            let ready = waiter
                .wait(DRAIN_EVERY)
                .map_err(RecordError::system("wait for the target"))?;
            self.pass_signal_on(child)?;
            self.drain(kernel)?;
            self.watchdog.refresh();
            if ready.contains(&TARGET) {
                return Ok(());
            }
            let now = monotonic_now();
            self.intake.new_program = false;
            self.intake.world.refresh_maps(now);
            self.intake.settle_inheritance();
            if now - flushed >= FLUSH_EVERY || self.intake.output.is_large(&self.intake.lives) {
                self.flush()?;
                flushed = now;
            }
        }
    }

    /// Hands a signal on to the target unless the terminal did so.
    fn pass_signal_on(&mut self, child: &Child) -> Result<(), RecordError> {
        let signal = self
            .signals
            .take()
            .map_err(RecordError::system("read a signal"))?;
        let Some(signal) = signal else {
            return Ok(());
        };
        if !signal.from_terminal {
            child.signal(signal.number);
        }
        if !self.interrupted {
            self.interrupted = true;
            return Ok(());
        }
        // Its emulator is the recorder: there is nothing to end but the wait.
        (self.options.tell)(&format!(
            "interrupted twice: process {} goes on, and what was counted of it until then is in {}, as of a recorder that was killed",
            child.pid(),
            self.options.output.path.display()
        ));
        std::process::exit(128 + signal.number)
    }

    fn drain(&mut self, kernel: &mut Kernel) -> Result<(), RecordError> {
        let intake = &mut self.intake;
        if let Some(agents) = &mut intake.agents {
            agents.collect();
        }
        let heard = monotonic_now();
        kernel.events(&mut |event| intake.take(event))?;
        // They are the emulator's.
        intake.output.faults.clear();
        intake.settle(heard);
        intake.stack_changes.clear();
        let dropped = kernel.dropped_records()?;
        let now = monotonic_now();
        let lost = intake.agents.as_ref().map_or(0, |a| a.lost);
        for (kind, total) in [
            ("process_events", dropped.life),
            ("mapping_events", dropped.mappings),
            ("untracked_children", dropped.tracking),
            ("agent_records", lost),
        ] {
            intake.output.lost_in_all(now, kind, total);
        }
        Ok(())
    }

    /// Reads the counts.
    fn finish(&mut self, kernel: &mut Kernel, began: Time, end: Time) -> Result<(), RecordError> {
        self.drain(kernel)?;
        let only = (!self.options.follow).then_some(self.manifest.target.pid);
        let run = Run { began, end, only };
        let losses = exact_rows::write(
            self.folder,
            &run,
            self.writer,
            &mut self.intake.output.intervals,
        )?;
        for (kind, total) in losses {
            self.intake.output.lost_in_all(end, kind, total);
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), RecordError> {
        self.manifest.overhead.recorder_peak_bytes = varve_sys::own_peak_bytes();
        self.manifest.overhead.held_ns = Duration(0);
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
            None,
        )?)
    }
}
