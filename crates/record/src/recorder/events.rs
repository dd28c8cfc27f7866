//! Where the kernel's events go: into the state, and to all probes.

use varve_bpf::{Event, Exec, Exit, Fork, ForkKind, Peak};
use varve_model::{Pid, Time};

use crate::RecordError;
use crate::probes::Probe;
use crate::state::State;
use crate::state::found::When;

/// What is known of the target, and who finds out more.
pub(crate) struct Events {
    pub(crate) state: State,
    pub(crate) probes: Vec<Box<dyn Probe>>,
    /// Processes that have ended: when, with which exit code, and how much of them was resident.
    exits: Vec<(Pid, Time, Option<i32>, Peak)>,
}

impl Events {
    pub(crate) fn new(state: State, probes: Vec<Box<dyn Probe>>) -> Events {
        Events {
            state,
            probes,
            exits: Vec::new(),
        }
    }

    /// Has all probes do something with the state.
    pub(crate) fn each(
        &mut self,
        mut work: impl FnMut(&mut dyn Probe, &mut State) -> Result<(), RecordError>,
    ) -> Result<(), RecordError> {
        let (probes, state) = (&mut self.probes, &mut self.state);
        probes.iter_mut().try_for_each(|p| work(p.as_mut(), state))
    }

    /// The same where nothing can go wrong.
    pub(crate) fn tell(&mut self, mut work: impl FnMut(&mut dyn Probe, &mut State)) {
        for probe in &mut self.probes {
            work(probe.as_mut(), &mut self.state);
        }
    }

    /// Takes an event of the kernel's.
    pub(crate) fn take(&mut self, event: &Event<'_>) {
        if self.state.waits_for_exec_of.is_some() && !self.is_first_exec(event) {
            return;
        }
        match event {
            Event::Fork(fork) => {
                // The number of one that has ended, given anew before anybody looked.
                let is_again = self.exits.iter().any(|(pid, ..)| *pid == fork.pid);
                if is_again && fork.kind == ForkKind::Process {
                    self.collected(fork.time);
                }
                self.fork(fork);
            }
            Event::Exec(exec) => self.exec(exec),
            Event::Exit(exit) => self.exit(exit),
            Event::Comm(comm) => {
                let name = String::from_utf8_lossy(comm.name);
                let processes = &mut self.state.processes;
                processes.thread(comm.pid, comm.tid, comm.time, Some(&name));
            }
            Event::Mapping(mapping) => {
                let processes = &mut self.state.processes;
                processes.maps_changed(mapping.pid, mapping.time);
            }
            Event::Fault(_)
            | Event::Refused(_)
            | Event::FirstTouch(_)
            | Event::Emptied(_)
            | Event::Vanish(_)
            | Event::Registration
            | Event::Mark(_) => {}
        }
        self.tell(|probe, state| probe.event(event, state));
        self.refine_found();
    }

    /// Has all probes correct what one of them found vanishing, and keeps it.
    fn refine_found(&mut self) {
        for mut found in std::mem::take(&mut self.state.found) {
            for probe in &self.probes {
                probe.refine(&mut found, &self.state);
            }
            let vanished = match found.when {
                When::VanishingNext => &mut self.state.vanished_next,
                _ => &mut self.state.vanished,
            };
            for region in found.regions {
                vanished.add(found.pid, region);
            }
        }
    }

    fn is_first_exec(&mut self, event: &Event<'_>) -> bool {
        if let Event::Exec(exec) = event
            && self.state.waits_for_exec_of == Some(exec.pid)
        {
            self.state.waits_for_exec_of = None;
            let own = Pid(std::process::id());
            self.state.processes.adopt(exec.pid, own, exec.time);
            return true;
        }
        false
    }

    fn fork(&mut self, fork: &Fork) {
        let processes = &mut self.state.processes;
        if fork.kind == ForkKind::Thread {
            processes.thread_made(fork.pid, fork.parent_tid, fork.tid, fork.time);
        } else if fork.tracked {
            processes.forked(fork);
        } else {
            return;
        }
        if let Some(own) = fork.own_tid {
            processes.thread_calls_itself(fork.pid, fork.tid, own);
        }
    }

    fn exec(&mut self, exec: &Exec<'_>) {
        let (pid, time) = (exec.pid, exec.time);
        self.state.new_program = true;
        if !self.state.processes.all.contains_key(&pid) {
            self.state.processes.adopt(pid, Pid(0), time);
        }
        self.tell(|probe, state| probe.image_ends(pid, time, state));
        let state = &mut self.state;
        let shared = state.processes.owner_of_memory(pid) != pid;
        if !shared {
            state.end_memory(pid, time);
        }
        state.processes.exec(exec);
        if !shared {
            state.objects.end_all(pid, time);
        }
        state.processes.shadows.remove(&pid);
        state.stacks.forget(pid);
        self.tell(|probe, state| {
            probe.image_ended(pid, time);
            probe.image_begins(exec, state);
        });
    }

    fn exit(&mut self, exit: &Exit) {
        let processes = &mut self.state.processes;
        processes.thread_ended(exit.pid, exit.tid, exit.time);
        if exit.last {
            let status = exit.wait_status;
            let signal = status & 0x7f;
            let code = if signal != 0 {
                128 + signal
            } else {
                (status >> 8) & 0xff
            };
            self.exits
                .push((exit.pid, exit.time, Some(code), exit.peak));
        }
    }

    /// All events up to the moment `heard` were taken: has the probes take what those explain, and lets go of the
    /// processes that ended.
    pub(crate) fn collected(&mut self, heard: Time) {
        self.tell(|probe, state| probe.collected(heard, state));
        for (pid, time, code, peak) in std::mem::take(&mut self.exits) {
            self.tell(|probe, state| probe.image_ends(pid, time, state));
            let state = &mut self.state;
            if state.processes.owner_of_memory(pid) == pid {
                state.end_memory(pid, time);
                state.objects.end_all(pid, time);
            }
            state.processes.shadows.remove(&pid);
            state.stacks.forget(pid);
            self.tell(|probe, _| probe.image_ended(pid, time));
            let processes = &mut self.state.processes;
            processes.process_ended(pid, time, code, peak);
        }
    }
}

#[cfg(test)]
mod tests {
    use varve_bpf::{Leaf, MmId, Region};
    use varve_model::{Address, Bytes, ObjectKind, Tid};

    use super::*;
    use crate::state::objects::Birth;

    const PARENT: Pid = Pid(u32::MAX - 8);

    fn fork(child: Pid, parent: Pid, time: u64) -> Event<'static> {
        Event::Fork(Fork {
            time: Time(time),
            pid: child,
            tid: Tid(child.0),
            own_tid: None,
            parent,
            parent_tid: Tid(parent.0),
            kind: ForkKind::Process,
            mm: MmId(child.0.into()),
            stack_pointer: None,
            tracked: true,
            tls: None,
        })
    }

    fn exit(pid: Pid, time: u64) -> Event<'static> {
        Event::Exit(Exit {
            time: Time(time),
            pid,
            tid: Tid(pid.0),
            wait_status: 0,
            last: true,
            peak: Peak::default(),
        })
    }

    /// A process with an object at each of three addresses, and its child, which touched the second.
    #[test]
    fn a_child_that_is_never_scanned_has_what_it_touched() {
        let mut events = Events::new(State::default(), Vec::new());
        events.state.processes.adopt(PARENT, Pid(1), Time(1));
        for at in [0x20_0000, 0x40_0000, 0x60_0000] {
            let birth = Birth {
                kind: ObjectKind::Mapping,
                made_by: "mmap",
                address: Address(at),
                bytes: Bytes(0x4000),
                born: Time(2),
                tid: None,
                site: None,
                reserved: false,
                continues: None,
            };
            events.state.objects.map(PARENT, birth);
        }
        let (child, grandchild) = (Pid(u32::MAX - 9), Pid(u32::MAX - 10));
        events.take(&fork(child, PARENT, 5));
        events.take(&fork(grandchild, child, 6));
        for pid in [child, grandchild] {
            let mut region = Region {
                present: 4,
                ..Region::untouched(Address(0x40_0000), Leaf::Small)
            };
            region.accessed[0] = 0b100;
            events.state.vanished.add(pid, region);
        }
        // The parent goes first, all before anybody was scanned.
        events.take(&exit(PARENT, 7));
        events.take(&exit(child, 8));
        events.take(&exit(grandchild, 9));
        events.collected(Time(10));
        let of = |pid: Pid| {
            let births = events.state.objects.births.iter().filter(|b| b.pid == pid);
            births
                .map(|b| (b.address.0, b.born_ns.0))
                .collect::<Vec<_>>()
        };
        assert!(of(child).contains(&(0x40_0000, 5)), "{:?}", of(child));
        assert!(
            of(grandchild).contains(&(0x40_0000, 6)),
            "{:?}",
            of(grandchild)
        );
        let deaths = &events.state.objects.deaths;
        assert_eq!(deaths.len(), events.state.objects.births.len());
    }

    /// Nobody is woken for an exit, so that all of it may come in one look.
    #[test]
    fn a_number_that_is_given_anew_at_once_is_another_process() {
        let mut events = Events::new(State::default(), Vec::new());
        events.state.processes.adopt(PARENT, Pid(1), Time(1));
        let child = Pid(u32::MAX - 9);
        events.take(&fork(child, PARENT, 2));
        events.take(&exit(child, 3));
        events.take(&fork(child, PARENT, 4));
        events.collected(Time(5));
        let lives = &events.state.processes.all;
        assert_eq!(lives[&child].row.born_ns, Time(4));
        assert_eq!(lives[&child].row.died_ns, None);
    }
}
