//! Samples of single accesses, by the clock of each CPU or by the processor itself.

mod clock;
mod code;
pub(crate) mod hardware;
mod space;

use varve_access::Steps;
use varve_bpf::Kernel;
use varve_model::{Duration, Pid, SampleSource};
use varve_trace::tables::SampleRow;
use varve_trace::{Manifest, SamplesNote};

use crate::stacks::Stacks;
use crate::world::World;
use crate::{Ablation, RecordError, RecordOptions, SamplesChoice};
use clock::ClockSampler;
use hardware::HardwareSampler;

/// Where user space ends with five levels of page tables; what lies above cannot be accessed by a program.
const USER_END: u64 = 1 << 56;
/// Bytes of user stack that come with a sample: what a call chain of ordinary depth takes.
pub(crate) const STACK_BYTES: u32 = 2048;
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
fn taker(choice: SamplesChoice) -> (Taker, u32) {
    match choice {
        SamplesChoice::Off => (Taker::None, 0),
        SamplesChoice::Clock { rate } => (Taker::Clock, rate),
        SamplesChoice::Hardware { source, rate } => (Taker::Hardware(source), rate),
        SamplesChoice::Auto { rate } => {
            let taker = hardware::found().map_or(Taker::Clock, Taker::Hardware);
            (taker, rate)
        }
    }
}

/// The size of the ring of the clock's samples for what was asked for.
pub(crate) fn ring_bytes(options: &RecordOptions) -> u32 {
    let (Taker::Clock, rate) = taker(options.samples) else {
        return 0;
    };
    let each_second = u64::from(rate) * u64::from(varve_sys::facts().cpus) * RECORD_BYTES;
    let bytes = (u128::from(each_second) * u128::from(RING_TIME.0) / 1_000_000_000) as u64;
    bytes.clamp(1 << 20, 64 << 20) as u32
}

/// Begins to take samples. Where that cannot be, the recording goes on without them, and says so.
pub(crate) fn start(
    options: &RecordOptions,
    kernel: &mut Kernel,
    manifest: &mut Manifest,
) -> Option<Sampler> {
    let steps = if options.lacks(Ablation::Behind) {
        Steps::NotBehind
    } else {
        Steps::All
    };
    let started: Result<Sampler, RecordError> = match taker(options.samples) {
        (Taker::None, _) => return None,
        (Taker::Clock, rate) => {
            ClockSampler::start(kernel, rate, steps).map(|s| Sampler::Clock(Box::new(s)))
        }
        (Taker::Hardware(source), rate) => {
            HardwareSampler::start(source, rate).map(Sampler::Hardware)
        }
    };
    match started {
        Ok(sampler) => {
            manifest.samples = Some(sampler.note());
            Some(sampler)
        }
        Err(error) => {
            let (what, _) = error.told();
            manifest
                .notes
                .push(format!("No samples were taken: {what}."));
            None
        }
    }
}

/// Takes samples and turns them into rows, while the process still runs: its code may be gone at the end.
pub(crate) enum Sampler {
    Clock(Box<ClockSampler>),
    Hardware(HardwareSampler),
}

impl Sampler {
    /// Takes what has come. It is kept until [`Sampler::resolve`]: what happened before it must be known first.
    pub(crate) fn collect(&mut self) -> Result<(), RecordError> {
        match self {
            Sampler::Clock(sampler) => sampler.collect(),
            Sampler::Hardware(sampler) => {
                sampler.collect();
                Ok(())
            }
        }
    }

    /// Turns what was taken into rows.
    pub(crate) fn resolve(&mut self, world: &mut World, sites: &mut Stacks) {
        match self {
            Sampler::Clock(sampler) => sampler.resolve(world, sites),
            Sampler::Hardware(sampler) => sampler.resolve(world, sites),
        }
    }

    /// Forgets a process that has ended.
    pub(crate) fn forget(&mut self, pid: Pid) {
        match self {
            Sampler::Clock(sampler) => sampler.forget(pid),
            // It knows nothing of processes.
            Sampler::Hardware(_) => {}
        }
    }

    /// What became of the samples up to now.
    pub(crate) fn note(&self) -> SamplesNote {
        match self {
            Sampler::Clock(sampler) => sampler.note,
            Sampler::Hardware(sampler) => sampler.note,
        }
    }

    /// The rows that were made.
    pub(crate) fn rows(&mut self) -> &mut Vec<SampleRow> {
        match self {
            Sampler::Clock(sampler) => &mut sampler.rows,
            Sampler::Hardware(sampler) => &mut sampler.rows,
        }
    }
}
