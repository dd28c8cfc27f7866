//! The steps that all probes take at a boundary.

use varve_bpf::Kernel;
use varve_model::Pid;

use crate::RecordError;
use crate::probes::{Held, Reading, Slice, Step};
use crate::recorder::events::Events;

/// What all probes do at a boundary.
pub(super) struct Work<'a> {
    kernel: &'a mut Kernel,
    events: &'a mut Events,
    pids: &'a [Pid],
    harvests: bool,
    slice: &'a mut Slice,
}

impl<'a> Work<'a> {
    pub(super) fn of(
        kernel: &'a mut Kernel,
        events: &'a mut Events,
        pids: &'a [Pid],
        harvests: bool,
        slice: &'a mut Slice,
    ) -> Work<'a> {
        Work {
            kernel,
            events,
            pids,
            harvests,
            slice,
        }
    }

    pub(super) fn step(&mut self, step: Step, reading: &mut Reading) -> Result<(), RecordError> {
        let Work {
            kernel,
            events,
            pids,
            harvests,
            slice,
        } = self;
        events.each(|probe, state| {
            let held = &mut Held {
                kernel,
                pids,
                harvests: *harvests,
                state,
                reading,
                slice,
            };
            probe.held(step, held)
        })
    }
}

/// Takes the steps one after the other.
pub(super) fn take(
    steps: &[Step],
    pids: &[Pid],
    harvests: bool,
    kernel: &mut Kernel,
    events: &mut Events,
    reading: &mut Reading,
) -> Result<(), RecordError> {
    let mut slice = Slice::default();
    let mut work = Work::of(kernel, events, pids, harvests, &mut slice);
    for step in steps {
        let before = *reading;
        work.step(*step, reading)?;
        if *step == Step::Read {
            work.step(Step::Await, reading)?;
            if reading.ends != before.ends {
                *reading = before;
                work.step(Step::Read, reading)?;
            }
        }
    }
    Ok(())
}
