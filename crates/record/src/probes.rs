//! What finds out something of the target: one probe each, run by one loop ([`crate::recorder`]).
//!
//! A new probe is a module in this folder with a [`Kind`], a line in [`KINDS`], an option where it needs one, and a
//! paragraph in `docs/`.

pub(crate) mod counts;
pub(crate) mod faults;
pub(crate) mod generated;
pub(crate) mod heap;
pub(crate) mod marks;
pub(crate) mod operations;
pub(crate) mod pressure;
pub(crate) mod samples;
pub(crate) mod scan;
mod tiering;
pub(crate) mod traps;
pub(crate) mod vanish;
pub(crate) mod writes;

use std::ffi::OsString;
use std::path::Path;

use varve_bpf::{Bitmap, Event, Exec, Kernel, LoadOptions, Region, TrackFlags};
use varve_model::{Duration, Loss, Pid, Time};
use varve_trace::tables::TouchRow;
use varve_trace::{Manifest, TraceError, TraceFolder, TraceWriter};

use crate::recorder::touch_rows::{FirstAccesses, Writes};
use crate::state::State;
use crate::state::found::{Found, Unseen};
use crate::target::channel::{Channel, Offers};
use crate::{RecordError, RecordOptions};

/// All probes, in the order in which they are asked: samples are collected before the heap's rings, which say what
/// is needed to understand them; operations may put an allocator behind the heap's library; protection against unseen writes comes before pages are moved; the emulator wraps what
/// all others have prepared.
pub(crate) const KINDS: [Kind; 13] = [
    scan::KIND,
    vanish::KIND,
    writes::KIND,
    faults::KIND,
    traps::KIND,
    samples::KIND,
    heap::KIND,
    operations::KIND,
    generated::KIND,
    pressure::KIND,
    tiering::KIND,
    marks::KIND,
    counts::KIND,
];

/// A probe, where it is wanted.
pub(crate) type Started = Option<Box<dyn Probe>>;

/// How a probe begins.
pub(crate) struct Kind {
    /// What it needs of the kernel part, before that is loaded.
    pub(crate) load: fn(&RecordOptions, &mut LoadOptions),
    /// The probe, where it is wanted.
    pub(crate) start: fn(&mut Setup<'_>) -> Result<Started, RecordError>,
}

/// For kinds that need nothing of the kernel part but what it always does.
pub(crate) fn load_nothing(_: &RecordOptions, _: &mut LoadOptions) {}

/// What is prepared before the target begins, or is joined.
pub(crate) struct Setup<'a> {
    pub(crate) options: &'a RecordOptions,
    pub(crate) kernel: &'a mut Kernel,
    pub(crate) manifest: &'a mut Manifest,
    /// The recording's own folder, where processes of the target can reach the recorder.
    pub(crate) run_folder: Option<&'a Path>,
    /// What the kernel is to report of each process.
    pub(crate) flags: TrackFlags,
    /// What processes of the target may hand over or ask for.
    pub(crate) offers: Offers,
    /// What can be known of writes.
    pub(crate) writes: Writes,
    /// Whether the target runs under the emulator.
    pub(crate) emulated: bool,
    /// What a system call took before the kernel's part was there.
    pub(crate) system_call: Duration,
}

/// How a command is started.
pub(crate) struct Launch {
    pub(crate) command: Vec<OsString>,
    pub(crate) environment: Vec<(&'static str, OsString)>,
}

/// The steps of the work on the target while it is held still, or runs on ([`Held::harvests`]), each done by all probes before the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Waits for others that change what is to be read.
    Await,
    /// Reads what happened in the interval that ends.
    Read,
    /// Prepares what the next one is to show.
    Prepare,
    /// Forgets what was read. Of the first interval of a process that runs already it is the only step.
    Clear,
    /// Decides in which parts the memory is read and cleared, each while the target is held: it runs meanwhile, and between them.
    Plan,
    /// Reads and clears as much of that as the hold permits ([`Held::slice`]).
    Slice,
    /// All was cleared: forgets translations that are left. The target runs.
    Flush,
    /// All was read: takes over processes of whom nothing was known.
    Adopt,
}

/// One hold of several.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Slice {
    /// How long the work in such a hold may take.
    pub(crate) limit: Duration,
    /// Up to when this one may.
    pub(crate) until: Time,
    /// Whether others have to follow.
    pub(crate) more: bool,
}

/// The target while it is held still.
pub(crate) struct Held<'a> {
    pub(crate) kernel: &'a mut Kernel,
    /// Who stands still, in order.
    pub(crate) pids: &'a [Pid],
    /// They do not: what is cleared is kept, and cleared first.
    pub(crate) harvests: bool,
    pub(crate) state: &'a mut State,
    pub(crate) reading: &'a mut Reading,
    /// Of a pass in slices.
    pub(crate) slice: &'a mut Slice,
}

/// What the reading of an interval amounts to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reading {
    /// 4 KiB pages resident in all processes together.
    pub(crate) resident_pages: u64,
    /// Processes that were read.
    pub(crate) processes: u32,
    /// Page tables or page flags that could not be read.
    pub(crate) failures: u64,
    /// The most regions of one process that were kept as they were cleared.
    pub(crate) most_regions: u32,
    /// Others who changed it meanwhile and have ended: what was read before that is not to be believed.
    pub(crate) ends: u32,
    /// Soft-dirty bits were cleared while the target ran: some pages may have been written that show no such bit.
    pub(crate) loses_writes: bool,
}

/// An interval whose rows are made.
pub(crate) struct Closed<'a> {
    pub(crate) end: Time,
    /// What was found at its end, as the rows have it.
    pub(crate) found: &'a [Found],
    /// The rows of that.
    pub(crate) rows: &'a [TouchRow],
    /// How long the target was held at its end.
    pub(crate) held: Duration,
}

/// Whether an interval is over when its time has come.
pub(crate) struct Due<'a> {
    pub(crate) kernel: &'a Kernel,
    pub(crate) start: Time,
    pub(crate) now: Time,
    pub(crate) length: Duration,
}

/// CPU time of the target's threads that went into its recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Took {
    /// Into samples.
    pub(crate) samples: Duration,
    /// Into records of the preload library.
    pub(crate) objects: Duration,
    /// Into reports of the kernel's part.
    pub(crate) reports: Duration,
}

impl Took {
    pub(crate) fn plus(self, other: Took) -> Took {
        Took {
            samples: self.samples + other.samples,
            objects: self.objects + other.objects,
            reports: self.reports + other.reports,
        }
    }
}

/// What a probe may take of the target's CPU time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    /// The share, 0 to 1.
    pub(crate) share: f64,
    /// The share of the recorder's work that keeps the target from its own.
    pub(crate) contention: f64,
    /// CPU time that the target's threads had since the limit before.
    pub(crate) ran: Duration,
}

/// The end of a recording.
pub(crate) struct Ending<'a> {
    pub(crate) state: &'a mut State,
    pub(crate) writer: &'a mut TraceWriter,
    /// When the recording began and ended.
    pub(crate) began: Time,
    pub(crate) ended: Time,
    pub(crate) root: Pid,
}

/// How much was lost of each kind since the beginning.
pub(crate) type Lost = Vec<(Loss, u64)>;

/// Finds out something of the target. What a probe does not care for it leaves out.
pub(crate) trait Probe {
    /// Prepares the start of a command: its environment, what it is wrapped in.
    fn launch(&self, _launch: &mut Launch, _channel: Option<&Channel>) -> Result<(), RecordError> {
        Ok(())
    }

    /// The target is about to begin, or was joined. `held_in` is the cgroup whose freezer holds it.
    fn begin(&mut self, _held_in: Option<&Path>) {}

    /// The target stands before its first instruction, or was joined: nothing of it is recorded yet. `root` is its first process.
    fn ready(&mut self, _root: Pid, _kernel: &Kernel) -> Result<(), RecordError> {
        Ok(())
    }

    /// The folder of the trace is there.
    fn traced(&mut self, _folder: &TraceFolder) -> Result<(), RecordError> {
        Ok(())
    }

    /// Takes what waits to be taken before the kernel's events are.
    fn collect(&mut self, _state: &mut State) -> Result<(), RecordError> {
        Ok(())
    }

    /// An event, which the state knows already.
    fn event(&mut self, _event: &Event<'_>, _state: &mut State) {}

    /// All events up to the moment `heard` were taken.
    fn collected(&mut self, _heard: Time, _state: &mut State) {}

    /// What a process runs ends, by exec or exit: the state still has all of it.
    fn image_ends(&mut self, _pid: Pid, _time: Time, _state: &mut State) {}

    /// The state has nothing of it any more.
    fn image_ended(&mut self, _pid: Pid, _time: Time) {}

    /// A process runs another program.
    fn image_begins(&mut self, _exec: &Exec<'_>, _state: &mut State) {}

    /// Informs the kernel, and notes what it has lost. After each look at the events.
    fn apply(&mut self, _kernel: &mut Kernel) -> Result<(), RecordError> {
        Ok(())
    }

    /// Work beside the events, as often as the loop turns. Never between the end of an interval and its rows.
    fn turn(&mut self, _state: &mut State) {}

    /// How soon the events are to be looked at again, where it is urgent.
    fn urgency(&self) -> Option<Duration> {
        None
    }

    /// How much longer an interval is to last whose time has come.
    fn prolong(&self, _due: &Due<'_>) -> Option<Duration> {
        None
    }

    /// One step of the work while the target is held still.
    fn held(&mut self, _step: Step, _held: &mut Held<'_>) -> Result<(), RecordError> {
        Ok(())
    }

    /// The touched pages that were read at the end of the interval.
    fn found(&mut self) -> Vec<Found> {
        Vec::new()
    }

    /// Pages that went in the interval and that nobody saw go, when all its events are known and this was found at its end.
    fn unseen(&mut self, _found: &[Found], _state: &mut State) -> Vec<Unseen> {
        Vec::new()
    }

    /// Corrects what another probe has found.
    fn refine(&self, _found: &mut Found, _state: &State) {}

    /// Of 512 pages in an interval: those whose first access is known by itself.
    fn first_accesses(&self, _pid: Pid, _region: &Region) -> Option<FirstAccesses> {
        None
    }

    /// Of 512 pages in an interval: those that may have been written though what was found does not say so.
    fn perhaps_written(&self, _pid: Pid, _region: &Region) -> Bitmap {
        [0; 8]
    }

    /// How much of the target's CPU time it has taken since the last call, beside holds.
    fn took(&mut self) -> Took {
        Took::default()
    }

    /// What it may take from here on.
    fn limit(&mut self, _limit: &Limit) {}

    /// An interval is over, and its rows are made.
    fn closed(&mut self, _closed: &Closed<'_>, _state: &mut State) {}

    /// What happened up to this moment is not to be recorded.
    fn discard(&mut self, _until: Time) {}

    /// What was lost, in all.
    fn losses(&self, _lost: &mut Lost) {}

    /// Writes rows of its own. The stacks that they refer to are written.
    fn write(&mut self, _writer: &mut TraceWriter) -> Result<(), TraceError> {
        Ok(())
    }

    /// What the manifest says of it, as often as rows are written. Checks that take long can be made here too.
    fn describe(&mut self, _manifest: &mut Manifest) {}

    /// The recording is over; what is written now is the last.
    fn end(&mut self, _ending: &mut Ending<'_>) -> Result<(), RecordError> {
        Ok(())
    }

    /// Everything is written. Notes for people go into the manifest.
    fn finish(&mut self, _manifest: &mut Manifest, _is_whole: bool) {}
}
