//! Page faults: address, thread, CPU, time, instruction, read or write.

use varve_bpf::{Access, Event, LoadOptions, Mode, Refused};
use varve_trace::tables::FaultRow;

use super::{Kind, Probe, Setup, Started};
use crate::state::State;
use crate::{RecordError, RecordOptions};

pub(crate) const KIND: Kind = Kind { load, start };

fn load(options: &RecordOptions, load: &mut LoadOptions) {
    load.faults &= options.scans() || options.counts.is_some();
}

/// Those of an emulated program are the emulator's.
fn start(setup: &mut Setup<'_>) -> Result<Started, RecordError> {
    let wanted = setup.options.scans();
    Ok(wanted.then(|| Box::new(Faults) as Box<dyn Probe>))
}

struct Faults;

/// Faults of other threads that may come between an access and its signal.
const MAX_BETWEEN: usize = 1024;

impl Probe for Faults {
    fn event(&mut self, event: &Event<'_>, state: &mut State) {
        let fault = match event {
            Event::Fault(fault) => fault,
            Event::Refused(refused) => return forget(refused, state),
            _ => return,
        };
        let pid = state.processes.owner_of_memory(fault.pid);
        state.tables.faults.push(FaultRow {
            time_ns: fault.time,
            pid,
            tid: fault.tid,
            cpu: fault.cpu,
            ip: fault.ip,
            address: fault.address,
            write: Some(fault.access == Access::Write),
            kernel: fault.mode == Mode::Kernel,
        });
    }
}

/// A refused access is the last fault of its thread, but for those of the kernel that wrote the signal's frame.
fn forget(refused: &Refused, state: &mut State) {
    let faults = &mut state.tables.faults;
    let begin = faults.len().saturating_sub(MAX_BETWEEN);
    let is_it = |row: &FaultRow| {
        row.tid == refused.tid && row.address.page() == refused.address.page() && !row.kernel
    };
    if let Some(at) = faults[begin..].iter().rposition(is_it) {
        faults.remove(begin + at);
    }
}
