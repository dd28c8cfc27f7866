//! From options to a target that is about to begin, and a trace to write.

use varve_bpf::{Kernel, LoadOptions, TrackFlags, TrackedProcesses};
use varve_model::{Duration, Pid};
use varve_sys::{DeferredStop, Signals, monotonic_now};
use varve_trace::{Manifest, TraceWriter};

use super::events::Events;
use super::manifest::new_manifest;
use super::touch_rows::Writes;
use crate::hold::watchdog::{Order, Watchdog};
use crate::probes::{KINDS, Launch, Probe, Setup};
use crate::state::{Arrivals, State};
use crate::target::Target;
use crate::target::channel::{Channel, Offers};
use crate::target::run_folder::RunFolder;
use crate::{RecordError, RecordOptions, TargetChoice};

/// Everything that a recording needs to begin.
pub(super) struct Prepared {
    pub(super) kernel: Kernel,
    pub(super) signals: Signals,
    pub(super) deferred_stop: Option<DeferredStop>,
    pub(super) watchdog: Watchdog,
    pub(super) target: Target,
    pub(super) events: Events,
    pub(super) manifest: Manifest,
    pub(super) writer: TraceWriter,
    pub(super) writes: Writes,
    /// What a thread loses on its way to a program that reports, and back.
    pub(super) report_way: Duration,
}

/// What probes have asked for.
struct Probes {
    all: Vec<Box<dyn Probe>>,
    flags: TrackFlags,
    writes: Writes,
    emulated: bool,
    channel: Option<Channel>,
}

/// Prepares a recording. Where it fails nothing is left behind, and a target that ran already runs on.
pub(super) fn prepare(options: &RecordOptions) -> Result<Prepared, RecordError> {
    let signals = Signals::catch().map_err(RecordError::system("catch signals"))?;
    let deferred_stop = DeferredStop::begin().map_err(RecordError::system("have Ctrl-Z wait"))?;
    crate::rights::hide();
    let mut load = LoadOptions::default();
    KINDS
        .iter()
        .for_each(|kind| (kind.load)(options, &mut load));
    let system_call = varve_sys::system_call_time();
    let fault = fault_time()?;
    let (mut kernel, mut watchdog) = load_and_watch(&load)?;
    // The less of two: what others do at the moment must not count as the programs'.
    let with_programs = fault_time()?.min(fault_time()?);
    let report_way = Duration(with_programs.0.saturating_sub(fault.0));
    crate::rights::loaded(&kernel);
    let mut manifest = new_manifest(options);
    let mut probes = start_probes(
        options,
        &mut kernel,
        &mut manifest,
        &mut watchdog,
        system_call,
    )?;
    let mut target = match &options.target {
        TargetChoice::Command(command) => {
            let mut launch = Launch {
                command: command.clone(),
                environment: Vec::new(),
            };
            let channel = probes.channel.as_ref();
            for probe in &probes.all {
                probe.launch(&mut launch, channel)?;
            }
            let (flags, watchdog) = (probes.flags, &mut watchdog);
            Target::prepare(&launch, options, &kernel, flags, &signals, watchdog)?
        }
        TargetChoice::Attach(pid) => {
            manifest.target.command = varve_sys::cmdline(*pid).unwrap_or_default();
            Target::join(*pid, options, &kernel, probes.flags, &mut watchdog)?
        }
    };
    manifest.target.pid = target.pid.0;
    // Last, as an earlier trace goes for it.
    let begun = begin_trace(options, &manifest, &mut probes.all);
    if begun.is_err() {
        target.release();
    }
    let events = Events::new(
        new_state(options, &target, &mut probes, kernel.tracked()?),
        probes.all,
    );
    Ok(Prepared {
        kernel,
        signals,
        deferred_stop,
        watchdog,
        writes: probes.writes,
        target,
        events,
        manifest,
        writer: begun?,
        report_way,
    })
}

/// Loads the kernel's part, for which the verifier takes one processor, and starts the watchdogs meanwhile.
fn load_and_watch(load: &LoadOptions) -> Result<(Kernel, Watchdog), RecordError> {
    // By this thread, as it is one's own signals that one unblocks.
    let shared = varve_sys::share_stops();
    shared.map_err(RecordError::system(
        "share memory with the watchdog process",
    ))?;
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("watchdogs".into());
        let starting = thread.spawn_scoped(scope, Watchdog::start);
        let starting = starting.map_err(RecordError::system("make a thread"))?;
        let kernel = Kernel::load(load);
        let started = starting.join();
        let watchdog = started.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Ok((kernel?, watchdog?))
    })
}

/// What a page fault of the recorder's own takes: with the programs, by as much more as a thread loses on the way to one and back.
fn fault_time() -> Result<Duration, RecordError> {
    varve_sys::fault_time().map_err(RecordError::system("measure the cost of a page fault"))
}

fn start_probes(
    options: &RecordOptions,
    kernel: &mut Kernel,
    manifest: &mut Manifest,
    watchdog: &mut Watchdog,
    system_call: Duration,
) -> Result<Probes, RecordError> {
    let reachable = options.preload.is_some() || options.counts.is_some();
    let folder = match options.target {
        // The watchdog knows of the folder before it exists.
        TargetChoice::Command(_) if reachable => Some(RunFolder::create(|folder| {
            watchdog.order(&Order::RunFolder(folder.to_owned()))
        })?),
        _ => None,
    };
    // Pages that vanish are a probe's to ask for.
    let mut flags = TrackFlags::DEFAULT.without(TrackFlags::VANISH);
    if !options.follow {
        flags = flags.without(TrackFlags::FOLLOW);
    }
    let mut setup = Setup {
        options,
        kernel,
        manifest,
        run_folder: folder.as_ref().map(RunFolder::path),
        flags,
        offers: Offers::default(),
        writes: Writes::Unknown,
        emulated: false,
        system_call,
    };
    let mut all = Vec::new();
    for kind in &KINDS {
        all.extend((kind.start)(&mut setup)?);
    }
    let Setup {
        flags,
        offers,
        writes,
        emulated,
        ..
    } = setup;
    let channel = match folder {
        Some(folder) => Some(Channel::open(folder, kernel.tracked()?, offers)?),
        None => None,
    };
    Ok(Probes {
        all,
        flags,
        writes,
        emulated,
        channel,
    })
}

fn begin_trace(
    options: &RecordOptions,
    manifest: &Manifest,
    probes: &mut [Box<dyn Probe>],
) -> Result<TraceWriter, RecordError> {
    let writer = TraceWriter::begin(options.output.create()?, manifest)?;
    let mut ready = || {
        probes
            .iter_mut()
            .try_for_each(|p| p.traced(writer.folder()))?;
        let operations = options.operations.as_ref();
        crate::rights::keep_for_recording(operations.is_some_and(|choice| choice.probes))
    };
    match ready() {
        Ok(()) => Ok(writer),
        Err(error) => {
            let _ = writer.discard();
            Err(error)
        }
    }
}

fn new_state(
    options: &RecordOptions,
    target: &Target,
    probes: &mut Probes,
    tracked: TrackedProcesses,
) -> State {
    let is_command = matches!(options.target, TargetChoice::Command(_));
    let waits_for: Option<Pid> = is_command.then_some(target.pid);
    let mut state = State {
        arrivals: Arrivals::of(probes.channel.take()),
        waits_for_exec_of: waits_for,
        began: monotonic_now(),
        ..State::default()
    };
    state.processes.emulated = probes.emulated;
    state.processes.tracked = Some(tracked);
    state
}
