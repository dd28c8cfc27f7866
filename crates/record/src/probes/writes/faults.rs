//! Pages that faulted for a write, beside soft-dirty bits.
//!
//! A soft-dirty bit is of a page's entry and goes with it. What is written, goes and is read again within one interval shows no bit
//! at its end. But clearing the bits protects every page, so the first write to each in an interval faults: a page that
//! faulted so and shows no bit may have been written.

use std::collections::HashMap;

use varve_bpf::{Access, Bitmap, Event, Region};
use varve_model::{Address, Pid};

use crate::probes::{Closed, Probe};
use crate::state::State;
use crate::state::pages::Pages;

/// The probe.
#[derive(Debug, Default)]
pub(super) struct WriteFaults {
    /// By whose memory it is, in the interval that runs and in the next.
    now: HashMap<Pid, Pages>,
    next: HashMap<Pid, Pages>,
}

impl WriteFaults {
    /// One that `waits` came while bits were cleared: it may be gone on with after that.
    fn fault(&mut self, owner: Pid, address: Address, is_next: bool, waits: bool) {
        let page = address.page().address().0;
        for (pages, has) in [
            (&mut self.now, !is_next),
            (&mut self.next, is_next || waits),
        ] {
            if has {
                pages.entry(owner).or_default().insert(page);
            }
        }
    }

    fn turn_over(&mut self) {
        self.now = std::mem::take(&mut self.next);
    }
}

impl Probe for WriteFaults {
    fn event(&mut self, event: &Event<'_>, state: &mut State) {
        match event {
            Event::Fault(fault) if fault.access == Access::Write && !fault.is_next => {
                let owner = state.processes.owner_of_memory(fault.pid);
                let (next, waits) = (
                    state.is_next(fault.time),
                    state.is_within_boundary(fault.time),
                );
                self.fault(owner, fault.address, next, waits);
            }
            _ => {}
        }
    }

    fn perhaps_written(&self, pid: Pid, region: &Region) -> Bitmap {
        let pages = self.now.get(&pid);
        pages.map_or([0; 8], |pages| pages.of_region(region))
    }

    fn closed(&mut self, _: &Closed<'_>, _: &mut State) {
        self.turn_over();
    }
}

#[cfg(test)]
mod tests {
    use varve_bpf::Leaf;

    use super::*;

    const PID: Pid = Pid(7);
    const BASE: u64 = 16 << 21;

    fn of(faults: &WriteFaults) -> u64 {
        let region = Region::untouched(Address(BASE), Leaf::Small);
        faults.perhaps_written(PID, &region)[0]
    }

    #[test]
    fn a_fault_counts_in_its_interval() {
        let mut faults = WriteFaults::default();
        let page = |page: u64| Address(BASE + page * 4096 + 8);
        faults.fault(PID, page(0), false, false);
        faults.fault(PID, page(1), false, true);
        faults.fault(PID, page(2), true, true);
        assert_eq!(of(&faults), 0b011);
        let huge = Region::untouched(Address(BASE), Leaf::Huge2M);
        assert_eq!(faults.perhaps_written(PID, &huge)[0], 1);
        assert_eq!(faults.perhaps_written(Pid(8), &huge)[0], 0);
        faults.turn_over();
        assert_eq!(of(&faults), 0b110);
        faults.turn_over();
        assert_eq!(of(&faults), 0);
    }
}
