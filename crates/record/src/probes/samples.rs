//! Samples of single accesses, by the clock of each CPU or by the processor itself.

mod clock;
mod code;
mod forks;
pub(crate) mod hardware;
mod pace;
mod space;

use varve_access::Steps;
use varve_bpf::{Event, LoadOptions, TrackFlags};
use varve_model::{Capability, Duration, Pid, SampleSource, Time};
use varve_trace::tables::SampleRow;
use varve_trace::{Manifest, SamplesNote, TraceError, TraceWriter};

use self::clock::ClockSampler;
use self::forks::Forks;
use self::hardware::HardwareSampler;
use super::{Kind, Limit, Probe, Setup, Started, Took};
use crate::state::State;
use crate::state::tables::append;
use crate::{Ablation, RecordError, RecordOptions, SamplesChoice};

/// Where user space ends with five levels of page tables; what lies above cannot be accessed by a program.
const USER_END: u64 = 1 << 56;
/// Bytes of user stack that come with a sample: what a call chain of ordinary depth takes.
const STACK_BYTES: u32 = 2048;
/// Bytes of a sample in the ring, with its stack.
const RECORD_BYTES: u64 = 2400;
/// The ring holds what comes in this time, which is many times that between two looks.
const RING_TIME: Duration = Duration(250_000_000);

/// What samples are taken with in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taker {
    None,
    Clock,
    Hardware(SampleSource),
}

/// `auto` takes what the processor has, and else the clock.
fn taker(options: &RecordOptions) -> (Taker, u32) {
    if !options.scans() {
        return (Taker::None, 0);
    }
    match options.samples {
        SamplesChoice::Off => (Taker::None, 0),
        SamplesChoice::Clock { rate } | SamplesChoice::Within { rate } => (Taker::Clock, rate),
        SamplesChoice::Hardware { source, rate } => (Taker::Hardware(source), rate),
        SamplesChoice::Auto { rate } => {
            let taker = hardware::found().map_or(Taker::Clock, Taker::Hardware);
            (taker, rate)
        }
    }
}

pub(crate) const KIND: Kind = Kind { load, start };

fn load(options: &RecordOptions, load: &mut LoadOptions) {
    load.samples = taker(options).0 == Taker::Clock;
    load.sample_ring_bytes = ring_bytes(options);
    load.sample_stack_bytes = STACK_BYTES;
}

/// The size of the ring of the clock's samples for what was asked for.
fn ring_bytes(options: &RecordOptions) -> u32 {
    let (Taker::Clock, rate) = taker(options) else {
        return 0;
    };
    let each_second = u64::from(rate) * u64::from(varve_sys::facts().cpus) * RECORD_BYTES;
    let bytes = (u128::from(each_second) * u128::from(RING_TIME.0) / 1_000_000_000) as u64;
    bytes.clamp(1 << 20, 64 << 20) as u32
}

/// Begins to take samples. Where that cannot be, the recording goes on without them, and says so.
fn start(setup: &mut Setup<'_>) -> Result<Started, RecordError> {
    let steps = match setup.options.lacks(Ablation::Behind) {
        true => Steps::NotBehind,
        false => Steps::All,
    };
    let started: Result<Sampler, RecordError> = match taker(setup.options) {
        (Taker::None, _) => return Ok(None),
        (Taker::Clock, rate) => {
            ClockSampler::start(setup.kernel, rate, steps).map(|s| Sampler::Clock(Box::new(s)))
        }
        (Taker::Hardware(source), rate) => {
            HardwareSampler::start(source, rate).map(|s| Sampler::Hardware(Box::new(s)))
        }
    };
    setup.flags = setup.flags | TrackFlags::SAMPLES;
    Ok(match started {
        Ok(mut sampler) => {
            let adapts = matches!(setup.options.samples, SamplesChoice::Within { .. });
            sampler.note_mut().by_overhead = adapts;
            setup.manifest.samples = Some(sampler.note());
            setup.manifest.capabilities.insert(Capability::Samples);
            let written = sampler.note();
            Some(Box::new(Samples {
                sampler,
                forks: Forks::default(),
                adapts,
                written,
            }))
        }
        Err(error) => {
            let (what, _) = error.message();
            let note = format!("No samples were taken: {what}.");
            setup.manifest.notes.push(note);
            None
        }
    })
}

/// The probe.
struct Samples {
    sampler: Sampler,
    /// Whose code that of a process is whose mappings nobody has read.
    forks: Forks,
    /// Whether fewer are taken than asked for where they would cost too much.
    adapts: bool,
    /// What had become of the samples when they were written last.
    written: SamplesNote,
}

/// Takes samples and turns them into rows, while the process still runs: its code may be gone at the end.
enum Sampler {
    Clock(Box<ClockSampler>),
    Hardware(Box<HardwareSampler>),
}

impl Sampler {
    /// What became of the samples up to now.
    fn note(&self) -> SamplesNote {
        match self {
            Sampler::Clock(sampler) => sampler.note,
            Sampler::Hardware(sampler) => sampler.note,
        }
    }
}

impl Sampler {
    fn note_mut(&mut self) -> &mut SamplesNote {
        match self {
            Sampler::Clock(sampler) => &mut sampler.note,
            Sampler::Hardware(sampler) => &mut sampler.note,
        }
    }

    fn rows(&mut self) -> &mut Vec<SampleRow> {
        match self {
            Sampler::Clock(sampler) => &mut sampler.rows,
            Sampler::Hardware(sampler) => &mut sampler.rows,
        }
    }
}

impl Probe for Samples {
    /// What has come is kept until all events before it are known.
    fn collect(&mut self, _: &mut State) -> Result<(), RecordError> {
        match &mut self.sampler {
            Sampler::Clock(sampler) => sampler.collect(),
            Sampler::Hardware(sampler) => {
                sampler.collect();
                Ok(())
            }
        }
    }

    fn event(&mut self, event: &Event<'_>, _: &mut State) {
        self.forks.event(event);
    }

    fn collected(&mut self, _: Time, state: &mut State) {
        if state.waits_for_exec_of.is_some() {
            return;
        }
        let (processes, stacks) = (&mut state.processes, &mut state.stacks);
        match &mut self.sampler {
            Sampler::Clock(sampler) => sampler.resolve(processes, &self.forks, stacks),
            Sampler::Hardware(sampler) => sampler.resolve(processes, stacks),
        }
    }

    fn took(&mut self) -> Took {
        let samples = match &mut self.sampler {
            Sampler::Clock(sampler) => sampler.took(),
            Sampler::Hardware(_) => Duration(0),
        };
        Took {
            samples,
            ..Took::default()
        }
    }

    fn limit(&mut self, limit: &Limit) {
        if let (Sampler::Clock(sampler), true) = (&mut self.sampler, self.adapts) {
            sampler.limit(limit.share, limit.contention);
        }
    }

    fn image_ended(&mut self, pid: Pid, _: Time) {
        self.forks.forget(pid);
        match &mut self.sampler {
            Sampler::Clock(sampler) => sampler.forget(pid),
            // It knows nothing of processes.
            Sampler::Hardware(_) => {}
        }
    }

    fn discard(&mut self, until: Time) {
        self.sampler.rows().retain(|row| row.time_ns > until);
        *self.sampler.note_mut() = self.written;
    }

    fn write(&mut self, writer: &mut TraceWriter) -> Result<(), TraceError> {
        self.written = self.sampler.note();
        append(writer, self.sampler.rows())
    }

    fn describe(&mut self, manifest: &mut Manifest) {
        manifest.samples = Some(self.sampler.note());
    }
}
