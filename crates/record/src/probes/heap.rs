//! Objects: reported by the preload library where a process has it, else as the kernel sees mappings made.

mod kernel_view;
mod rings;
mod source;

use std::collections::HashSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use varve_bpf::{Event, Exec, Kernel, MappingCall, TrackFlags};
use varve_model::{Capability, Duration, Loss, Pid, Time};
use varve_preload_abi::MIN_OBJECT_VARIABLE;
use varve_trace::{IntervalChoice, Manifest, TraceError, TraceWriter};

use self::kernel_view::KernelView;
use self::rings::Rings;
use self::source::WhyNot;
use super::{Kind, Launch, Limit, Lost, Probe, Setup, Started, Took, load_nothing};
use crate::state::State;
use crate::state::processes::ObjectsFrom;
use crate::state::tables::append;
use crate::target::channel::Channel;
use crate::target::preflight::gains_rights;
use crate::target::{is_static, with_preload};
use crate::{RecordError, RecordOptions, TargetChoice};

/// How long a program may take to load its libraries before the kernel's view is taken for its objects: a program that
/// speaks later is still heard.
const MAX_SILENCE: Duration = Duration(200_000_000);
/// The same where it is seen to load the library, or has come to no library yet: it waits for a CPU or for a disk, as others do. Whoever
/// took the kernel's view meanwhile would take the library's own memory, and what the program allocates through it, for objects of the program.
const MAX_LOADING: Duration = Duration(5_000_000_000);
/// How soon it is looked at again.
const RECHECK: Duration = Duration(50_000_000);
/// How soon rings are looked at again while the library has much to report: at the highest rate of allocations a ring
/// fills in 20 ms.
const OFTEN: Duration = Duration(4_000_000);

/// Objects of this size are recorded whatever it costs, bytes.
const MAX_MIN_OBJECT: u64 = 1 << 20;

pub(crate) const KIND: Kind = Kind {
    load: load_nothing,
    start,
};

fn start(setup: &mut Setup<'_>) -> Result<Started, RecordError> {
    let options = setup.options;
    let emulated = options.counts.is_some();
    // Objects that the kernel sees are named by the stacks of the calls that made them.
    if !emulated && !can_preload(options) {
        setup.flags = setup.flags | TrackFlags::STACKS;
    }
    setup.manifest.capabilities.insert(Capability::HeapObjects);
    setup.manifest.features.objects = Some(
        if can_preload(options) {
            "preload"
        } else {
            "kernel"
        }
        .into(),
    );
    let library = match (&options.target, &options.preload) {
        (TargetChoice::Command(_), Some(library)) => Some(library.clone()),
        // What the kernel sees of the emulator is not the program's.
        (TargetChoice::Command(_), None) if emulated => Some(PathBuf::new()),
        _ => None,
    };
    Ok(Some(Box::new(Heap {
        library,
        min_object: options.min_object.0,
        adapts: options.min_object_adapts
            && matches!(options.interval, IntervalChoice::Auto { .. }),
        took: Duration(0),
        share: 0.0,
        raised: None,
        emulated,
        rings: Rings::default(),
        kernel_view: KernelView::new(),
        awaited: Vec::new(),
        changes: Vec::new(),
    })))
}

/// Whether a process that has not said anything loads the library at the moment, as far as its mappings show: they have it, or
/// none but the program and its loader.
fn is_loading(pid: Pid, library: Option<&OsStr>) -> bool {
    let has_run = varve_sys::cpu_time_of(pid).is_none_or(|used| used >= MAX_SILENCE);
    if has_run {
        return false;
    }
    let Ok(entries) = varve_sys::maps(pid) else {
        return false;
    };
    let code = entries.iter().filter(|e| e.perms.contains('x'));
    let files: HashSet<&Path> = code
        .map(|e| Path::new(&*e.path))
        .filter(|path| path.is_absolute())
        .collect();
    files.len() <= 2 || files.iter().any(|path| path.file_name() == library)
}

/// Whether the target will load the preload library, as far as can be said before it begins.
fn can_preload(options: &RecordOptions) -> bool {
    match &options.target {
        TargetChoice::Command(command) => {
            options.preload.is_some() && !is_static(command) && !gains_rights(command)
        }
        TargetChoice::Attach(_) => false,
    }
}

/// The probe.
struct Heap {
    /// The preload library, where it is used.
    library: Option<PathBuf>,
    min_object: u64,
    emulated: bool,
    rings: Rings,
    kernel_view: KernelView,
    /// Programs that should load the library and have not reported anything yet: until when they have time.
    awaited: Vec<(Pid, Time, Time)>,
    /// Whether objects are recorded only as far as the permitted overhead allows.
    adapts: bool,
    /// CPU time of the target that records took in the interval that runs, as far as it was asked for.
    took: Duration,
    /// The share of its CPU time that they took, smoothed.
    share: f64,
    /// When the smallest object was made larger first.
    raised: Option<Time>,
    /// Flags of processes that the kernel is to have: whether mapping events have stacks.
    changes: Vec<(Pid, Time, bool)>,
}

impl Heap {
    /// Notes whose library reports, and has the kernel's view taken for the objects of those whose does not.
    fn resolve_sources(&mut self, state: &mut State) {
        state.processes.take_first_maps(&mut self.rings.first_maps);
        for (pid, image) in std::mem::take(&mut self.rings.spoke) {
            if !state.processes.has_spoken(pid, image) {
                let from = ObjectsFrom::Preload;
                state.processes.objects_come_from(pid, from, None);
                self.changes.push((pid, image, false));
            }
        }
        if self.awaited.is_empty() || self.emulated {
            return;
        }
        let now = varve_sys::monotonic_now();
        self.awaited
            .retain(|(pid, image, _)| !state.processes.has_spoken(*pid, *image));
        let library = self.library.as_deref().and_then(Path::file_name);
        let mut late = |(pid, image, until): &mut (Pid, Time, Time)| {
            if *until > now {
                return false;
            }
            let loads = now < *image + MAX_LOADING && is_loading(*pid, library);
            if loads {
                *until = now + RECHECK;
            }
            !loads
        };
        let late: Vec<_> = self.awaited.extract_if(.., &mut late).collect();
        for (pid, image, _) in late {
            let why = Some(WhyNot::Unanswered.as_str());
            let from = ObjectsFrom::Kernel;
            state.processes.objects_come_from(pid, from, why);
            self.changes.push((pid, image, true));
        }
    }
}

impl Probe for Heap {
    fn launch(&self, launch: &mut Launch, channel: Option<&Channel>) -> Result<(), RecordError> {
        if let Some((library, channel)) = self.library.as_deref().zip(channel)
            && !library.as_os_str().is_empty()
        {
            launch.environment.extend([
                ("LD_PRELOAD", with_preload(library)),
                (MIN_OBJECT_VARIABLE, self.min_object.to_string().into()),
            ]);
            launch.environment.extend(channel.environment());
        }
        Ok(())
    }

    fn collect(&mut self, state: &mut State) -> Result<(), RecordError> {
        self.rings.collect(&mut state.arrivals);
        Ok(())
    }

    fn event(&mut self, event: &Event<'_>, state: &mut State) {
        let Event::Mapping(mapping) = event else {
            return;
        };
        let processes = &mut state.processes;
        let known = processes.all.get(&mapping.pid);
        if known.is_some_and(|p| p.objects_from != ObjectsFrom::Kernel) {
            return;
        }
        let attaches = matches!(mapping.call, MappingCall::ShmAttach { .. });
        let unknown = processes.mappings(mapping.pid).next().is_none();
        if attaches || (mapping.stack.is_some() && unknown) {
            processes.refresh_maps_of(mapping.pid, mapping.time);
        }
        self.kernel_view.take(mapping, state);
    }

    fn collected(&mut self, heard: Time, state: &mut State) {
        self.rings.drain_collected(heard, state);
        self.resolve_sources(state);
    }

    fn image_ends(&mut self, pid: Pid, time: Time, state: &mut State) {
        self.rings.image_ended(pid, time, state);
        // What parents made before the fork may not have been read yet.
        if state.has_heirs_or_inherits(pid) {
            self.rings.drain(time, state);
        }
        self.resolve_sources(state);
    }

    /// Says who reports a program's objects: the preload library in those that load it.
    fn image_begins(&mut self, exec: &Exec<'_>, state: &mut State) {
        let (pid, image) = (exec.pid, exec.time);
        let Some(library) = &self.library else {
            let from = ObjectsFrom::Kernel;
            state.processes.objects_come_from(pid, from, None);
            return;
        };
        let why = match self.emulated {
            true => None,
            false => WhyNot::of(exec, library),
        };
        if let Some(why) = why {
            let from = ObjectsFrom::Kernel;
            state
                .processes
                .objects_come_from(pid, from, Some(why.as_str()));
        } else {
            if let Some(process) = state.processes.all.get_mut(&pid) {
                process.objects_from = ObjectsFrom::Preload;
            }
            state.processes.begins_to_load(pid, image);
            self.awaited.push((pid, image, image + MAX_SILENCE));
        }
        self.changes.push((pid, image, why.is_some()));
    }

    fn apply(&mut self, kernel: &mut Kernel) -> Result<(), RecordError> {
        for (pid, image, stacks) in self.changes.drain(..) {
            // The kernel's view is never taken for an emulator.
            if self.emulated {
                continue;
            }
            let (set, clear) = match stacks {
                true => (TrackFlags::STACKS, TrackFlags::default()),
                false => (TrackFlags::default(), TrackFlags::STACKS),
            };
            kernel.change_flags(pid, image, set, clear)?;
        }
        Ok(())
    }

    fn urgency(&self) -> Option<Duration> {
        (self.rings.fill_percent > 10).then_some(OFTEN)
    }

    fn took(&mut self) -> Took {
        let objects = Duration(std::mem::take(&mut self.rings.spent));
        self.took = self.took + objects;
        Took {
            objects,
            ..Took::default()
        }
    }

    fn limit(&mut self, limit: &Limit) {
        let took = std::mem::take(&mut self.took);
        let share = took.0 as f64 / (limit.ran.0 as f64).max(1.0);
        self.share = 0.5 * (self.share + share);
        let now = self.rings.min_object.max(self.min_object);
        if !self.adapts || self.share <= limit.share || now >= MAX_MIN_OBJECT {
            return;
        }
        self.rings.set_min_object((2 * now).min(MAX_MIN_OBJECT));
        self.raised.get_or_insert_with(varve_sys::monotonic_now);
        // The next look shows what came of it.
        self.share = 0.0;
    }

    fn write(&mut self, writer: &mut TraceWriter) -> Result<(), TraceError> {
        append(writer, &mut self.rings.blocks)
    }

    fn losses(&self, lost: &mut Lost) {
        lost.push((Loss::PreloadRecords, self.rings.lost));
        lost.push((Loss::PreloadMemory, self.rings.roomless));
        lost.push((Loss::UnheardProcesses, self.rings.unheard));
    }

    fn finish(&mut self, manifest: &mut Manifest, _: bool) {
        let reported = self.rings.any;
        if let Some(raised) = self.raised {
            let since = raised.0.saturating_sub(manifest.clock.start_ns.0) as f64 / 1e9;
            manifest.notes.push(format!(
                "Of the heap objects only those of {} KiB and more have rows of their own from {since:.1} s on: more would have cost more than the permitted overhead. --min-object forces their size.",
                self.rings.min_object >> 10
            ));
        }
        manifest.features.objects = match (reported, self.emulated) {
            (true, _) => Some("preload".into()),
            (false, false) => Some("kernel".into()),
            (false, true) => None,
        };
        if self.emulated && !reported {
            manifest.capabilities.remove(&Capability::HeapObjects);
            let note = "No process loaded the preload library: heap objects are not known.";
            manifest.notes.push(note.to_owned());
        }
        if !self.emulated && !reported {
            let note = "Waits that the kernel never restarts after a stop (`epoll_wait`, `semop`, `sigtimedwait`; signal(7) lists them) may have returned EINTR whenever the target was held: no process loaded the preload library, which goes on with them.";
            manifest.notes.push(note.to_owned());
        }
    }
}
