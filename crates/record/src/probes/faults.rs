//! Page faults: address, thread, CPU, time, instruction, read or write.

use varve_bpf::{Access, Event, LoadOptions, Mode};
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

impl Probe for Faults {
    fn event(&mut self, event: &Event<'_>, state: &mut State) {
        let Event::Fault(fault) = event else {
            return;
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
