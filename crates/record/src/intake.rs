//! Where the kernel's events go.

mod estate;

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use varve_bpf::{
    Access, Doer, Event, Exit, Fork, ForkKind, Leaf, MappingCall, Mode, Region, Vanish,
};
use varve_model::{Address, Duration, Interval, Pid, Time, TouchSource};
use varve_trace::tables::FaultRow;

use crate::agents::Agents;
use crate::channel::Arrival;
use crate::kernel_objects::KernelObjects;
use crate::lives::Lives;
use crate::output::Output;
use crate::runs::{Writes, append_runs};
use crate::samples::Sampler;
use crate::sources::WhyNot;
use crate::stacks::Stacks;
use crate::trapped::Trapped;
use crate::traps::{self, TrapNews};
use crate::world::{ObjectsFrom, World};
use crate::writes::{WriteWatch, is_next};

/// How long a program may take to load its libraries before the kernel's view is taken for its objects: a program that
/// speaks later is still heard.
const LONGEST_SILENCE: Duration = Duration(200_000_000);

/// Pages that vanished in one interval, by process and place.
pub(crate) type Vanished = HashMap<(Pid, Address, Leaf), Region>;

/// Everything that events change.
pub(crate) struct Intake {
    pub(crate) world: World,
    pub(crate) lives: Lives,
    pub(crate) stacks: Stacks,
    pub(crate) output: Output,
    pub(crate) agents: Option<Agents>,
    kernel_objects: KernelObjects,
    /// Vanished pages of the interval that runs, and of the next.
    pub(crate) vanished: Vanished,
    pub(crate) vanished_next: Vanished,
    /// Nothing before the target's own program counts.
    pub(crate) waits_for_exec_of: Option<Pid>,
    /// Events up to here belong to the interval that runs.
    pub(crate) boundary: Option<Time>,
    /// The target was held from `boundary` up to here.
    pub(crate) released: Option<Time>,
    /// Whether a new program began since this was last looked at.
    pub(crate) new_program: bool,
    /// Where writes are told by userfaultfd.
    pub(crate) writes: Option<WriteWatch>,
    /// Where accesses are trapped: those of the interval that runs, and of the next.
    pub(crate) trapped: Option<(Trapped, Trapped)>,
    /// What servants are to be told.
    pub(crate) trap_news: Vec<TrapNews>,
    /// Where samples are taken.
    pub(crate) samples: Option<Sampler>,
    /// Flags of processes that the kernel is to be told of: whether mapping events have stacks.
    pub(crate) stack_changes: Vec<(Pid, Time, bool)>,
    /// The preload library, where it is used.
    library: Option<PathBuf>,
    /// Programs that should load it and have not told anything yet: until when they have time.
    awaited: Vec<(Pid, Time, Time)>,
    exits: Vec<(Pid, Time, Option<i32>)>,
}

impl Intake {
    pub(crate) fn new(agents: Option<(Agents, PathBuf)>, waits_for_exec_of: Option<Pid>) -> Intake {
        let (agents, library) = agents.unzip();
        Intake {
            world: World::default(),
            lives: Lives::default(),
            stacks: Stacks::default(),
            output: Output::default(),
            library,
            stack_changes: Vec::new(),
            awaited: Vec::new(),
            agents,
            kernel_objects: KernelObjects::new(),
            vanished: Vanished::new(),
            vanished_next: Vanished::new(),
            waits_for_exec_of,
            boundary: None,
            released: None,
            writes: None,
            trapped: None,
            trap_news: Vec::new(),
            samples: None,
            new_program: false,
            exits: Vec::new(),
        }
    }

    pub(crate) fn take(&mut self, event: Event<'_>) {
        if self.waits_for_exec_of.is_some() && !self.is_first_exec(&event) {
            return;
        }
        match event {
            Event::Fault(fault) => {
                let owner = self.world.owner_of_memory(fault.pid);
                if let (Some(writes), Access::Write) = (&mut self.writes, fault.access) {
                    writes.fault(owner, fault.address, is_next(self.boundary, fault.time));
                }
                if let Some((now, next)) = &mut self.trapped {
                    let interval = if is_next(self.boundary, fault.time) {
                        next
                    } else {
                        now
                    };
                    interval.note(owner, fault.address, fault.access == Access::Write);
                }
                self.output.faults.push(FaultRow {
                    time_ns: fault.time,
                    pid: owner,
                    tid: fault.tid,
                    cpu: fault.cpu,
                    ip: fault.ip,
                    address: fault.address,
                    write: Some(fault.access == Access::Write),
                    kernel: fault.mode == Mode::Kernel,
                });
            }
            Event::Vanish(vanish) => self.vanish(&vanish),
            Event::Fork(fork) => self.fork(&fork),
            Event::Exec(exec) => {
                let path = String::from_utf8_lossy(exec.path).into_owned();
                self.exec(exec.pid, exec.time, &path);
            }
            Event::Exit(exit) => self.exit(&exit),
            Event::Comm(comm) => {
                let name = String::from_utf8_lossy(comm.name);
                self.world
                    .thread(comm.pid, comm.tid, comm.time, Some(&name));
            }
            Event::Mapping(mapping) => {
                self.world.maps_changed(mapping.pid, mapping.time);
                if let Some(writes) = &mut self.writes {
                    writes.mapping(self.world.owner_of_memory(mapping.pid), &mapping);
                }
                let kernel = self
                    .world
                    .processes
                    .get(&mapping.pid)
                    .is_none_or(|p| p.objects_from == ObjectsFrom::Kernel);
                if kernel {
                    let attaches = matches!(mapping.call, MappingCall::ShmAttach { .. });
                    let unknown = self.world.mappings(mapping.pid).next().is_none();
                    if attaches || (mapping.stack.is_some() && unknown) {
                        self.world.refresh_maps_of(mapping.pid, mapping.time);
                    }
                    self.kernel_objects.take(
                        &mapping,
                        &self.world,
                        &mut self.lives,
                        &mut self.stacks,
                    );
                }
            }
        }
    }

    fn is_first_exec(&mut self, event: &Event<'_>) -> bool {
        if let Event::Exec(exec) = event
            && self.waits_for_exec_of == Some(exec.pid)
        {
            self.waits_for_exec_of = None;
            self.world
                .adopt(exec.pid, Pid(std::process::id()), exec.time);
            return true;
        }
        false
    }

    fn vanish(&mut self, vanish: &Vanish<'_>) {
        let owner = self.world.owner_of_memory(vanish.pid);
        let next = is_next(self.boundary, vanish.time);
        // Another process is not held: what it takes before the target runs on may be gone when the
        // bits of the interval that ends are read, and may be read before they are cleared.
        let held = self.released.is_some_and(|r| vanish.time <= r);
        let both = next && held && vanish.doer == Doer::Another;
        for mut region in vanish.regions() {
            // A page that is aside was not accessed there, and some keep their bits: the zero page's cannot be cleared.
            if let Some(aside) = self.world.aside.get(&owner)
                && !traps::hide(aside, &mut region)
            {
                continue;
            }
            self.vanish_region(owner, region, next);
            if both {
                self.vanish_region(owner, region, false);
            }
        }
    }

    fn vanish_region(&mut self, owner: Pid, mut region: Region, next: bool) {
        if let Some(writes) = &self.writes {
            writes.judge_vanishing(owner, &mut region, next);
        }
        let vanished = if next {
            &mut self.vanished_next
        } else {
            &mut self.vanished
        };
        vanished
            .entry((owner, region.base, region.leaf))
            .and_modify(|known| {
                or(&mut known.accessed, &region.accessed);
                or(&mut known.young, &region.young);
                or(&mut known.referenced, &region.referenced);
                or(&mut known.pinned, &region.pinned);
                or(&mut known.sticky, &region.sticky);
                or(&mut known.written, &region.written);
                or(&mut known.others, &region.others);
            })
            .or_insert(region);
    }

    /// Appends the vanished pages of the interval that ends to the touches; those of the next are next.
    pub(crate) fn write_vanished(&mut self, interval: Interval, writes: Writes) {
        let next = std::mem::take(&mut self.vanished_next);
        let vanished = std::mem::replace(&mut self.vanished, next);
        let mut by_process: BTreeMap<Pid, Vec<Region>> = BTreeMap::new();
        for ((pid, _, _), region) in vanished {
            by_process.entry(pid).or_default().push(region);
        }
        for (pid, regions) in by_process {
            append_runs(
                &mut self.output.touches,
                interval,
                pid,
                &regions,
                writes,
                Some(TouchSource::Vanish),
                self.trapped.as_ref().map(|t| &t.0),
            );
        }
    }

    fn fork(&mut self, fork: &Fork) {
        if fork.kind == ForkKind::Thread {
            self.world
                .thread_made(fork.pid, fork.parent_tid, fork.tid, fork.time);
            if let Some(own) = fork.own_tid {
                self.world.thread_calls_itself(fork.pid, fork.tid, own);
            }
            if let (Some(_), Some(tls)) = (&self.trapped, fork.tls) {
                self.trap_news
                    .push(TrapNews::Thread(fork.pid, fork.tid, tls));
            }
            return;
        }
        if !fork.tracked {
            return;
        }
        let parent = self.world.processes.get(&fork.parent);
        let parent = parent.map(|p| (p.objects_from, p.row.clone()));
        let process = self.world.adopt(fork.pid, fork.parent, fork.time);
        if let Some((objects_from, parent)) = parent {
            process.objects_from = objects_from;
            process.row.objects = parent.objects;
            process.row.objects_why = parent.objects_why;
            // It may have ended before anybody looked.
            if process.row.exe.is_empty() {
                process.row.exe = parent.exe;
                process.row.command = parent.command;
            }
        } else {
            process.objects_from = ObjectsFrom::Kernel;
        }
        process.image = fork.time;
        if fork.kind == ForkKind::SharedMemory {
            process.shares_with = Some(fork.parent);
        } else {
            process.inherits = Some((fork.parent, fork.time));
            // The places aside are copied with all other memory.
            if let Some(aside) = self.world.aside.get(&fork.parent).cloned() {
                self.world.aside.insert(fork.pid, aside);
            }
        }
        if let Some(own) = fork.own_tid {
            self.world.thread_calls_itself(fork.pid, fork.tid, own);
        }
    }

    fn exec(&mut self, pid: Pid, time: Time, path: &str) {
        self.new_program = true;
        if !self.world.processes.contains_key(&pid) {
            self.world.adopt(pid, Pid(0), time);
        }
        let shared = self.world.owner_of_memory(pid) != pid;
        if let Some(agents) = &mut self.agents {
            agents.image_ended(pid, time, &self.world, &mut self.lives, &mut self.stacks);
        }
        if !shared {
            self.settle_estate(pid, time);
        }
        self.world.exec(pid, time, path);
        if !shared {
            self.lives.end_all(pid, time);
        }
        self.world.aside.remove(&pid);
        self.trap_news.push(TrapNews::Gone(pid, time));
        self.stacks.forget(pid);
        if let Some(writes) = &mut self.writes {
            writes.forget(pid);
        }
        if let Some(samples) = &mut self.samples {
            samples.forget(pid);
        }
        self.choose_source(pid, time);
    }

    /// Says who will tell of a program's objects: the preload library in those that load it.
    fn choose_source(&mut self, pid: Pid, image: Time) {
        let Some(library) = &self.library else {
            let from = ObjectsFrom::Kernel;
            self.world.objects_come_from(pid, from, None);
            return;
        };
        // What the kernel tells of the emulator is not the program's.
        let why = match self.world.emulated {
            true => None,
            false => WhyNot::of(pid, library),
        };
        if why.is_some() {
            self.world.objects_come_from(pid, ObjectsFrom::Kernel, why);
        } else {
            if let Some(process) = self.world.processes.get_mut(&pid) {
                process.objects_from = ObjectsFrom::Preload;
            }
            self.awaited.push((pid, image, image + LONGEST_SILENCE));
        }
        self.stack_changes.push((pid, image, why.is_some()));
    }

    /// Notes who has begun to tell, and has the kernel's events tell of those who have not.
    fn hear_out(&mut self) {
        let spoke = self.agents.as_mut().map(|a| std::mem::take(&mut a.spoke));
        for (pid, image) in spoke.unwrap_or_default() {
            if !self.world.has_spoken(pid, image) {
                self.world
                    .objects_come_from(pid, ObjectsFrom::Preload, None);
                self.stack_changes.push((pid, image, false));
            }
        }
        if self.awaited.is_empty() || self.world.emulated {
            return;
        }
        let now = varve_sys::monotonic_now();
        let (late, rest) = std::mem::take(&mut self.awaited)
            .into_iter()
            .filter(|(pid, image, _)| !self.world.has_spoken(*pid, *image))
            .partition(|(_, _, until)| *until <= now);
        self.awaited = rest;
        let late: Vec<(Pid, Time, Time)> = late;
        for (pid, image, _) in late {
            let why = Some(WhyNot::Unanswered);
            self.world.objects_come_from(pid, ObjectsFrom::Kernel, why);
            self.stack_changes.push((pid, image, true));
        }
    }

    fn exit(&mut self, exit: &Exit) {
        self.world.thread_ended(exit.pid, exit.tid, exit.time);
        if self.trapped.is_some() {
            self.trap_news
                .push(TrapNews::ThreadEnded(exit.pid, exit.tid));
        }
        if exit.last {
            let status = exit.wait_status;
            let signal = status & 0x7f;
            let code = if signal != 0 {
                128 + signal
            } else {
                (status >> 8) & 0xff
            };
            self.exits.push((exit.pid, exit.time, Some(code)));
        }
    }

    /// Turns the samples that were collected before the last events into rows.
    pub(crate) fn resolve_samples(&mut self) {
        if let Some(samples) = &mut self.samples
            && self.waits_for_exec_of.is_none()
        {
            samples.resolve(&mut self.world, &mut self.stacks);
        }
    }

    /// Takes what the preload library tells, and lets go of the processes that ended.
    /// Events were taken up to the moment `heard`.
    pub(crate) fn settle(&mut self, heard: Time) {
        if let Some(agents) = &mut self.agents {
            agents.drain(heard, &self.world, &mut self.lives, &mut self.stacks);
            self.world.meet_first_maps(&mut agents.first_maps);
        }
        self.hear_out();
        for (pid, time, code) in std::mem::take(&mut self.exits) {
            if let Some(agents) = &mut self.agents {
                agents.image_ended(pid, time, &self.world, &mut self.lives, &mut self.stacks);
                self.world.meet_first_maps(&mut agents.first_maps);
            }
            self.hear_out();
            let shared = self.world.owner_of_memory(pid) != pid;
            if !shared {
                self.settle_estate(pid, time);
                self.lives.end_all(pid, time);
            }
            self.world.aside.remove(&pid);
            self.trap_news.push(TrapNews::Gone(pid, time));
            self.stacks.forget(pid);
            if let Some(samples) = &mut self.samples {
                samples.forget(pid);
            }
            self.world.process_ended(pid, time, code);
        }
    }

    /// Takes what came from processes beside rings: userfaultfds here, the connections of fault handlers for the caller.
    pub(crate) fn take_others(&mut self) -> Vec<(Pid, Time, OwnedFd)> {
        let mut handlers = Vec::new();
        let agents = self.agents.as_mut();
        for other in agents.map_or_else(Vec::new, |a| std::mem::take(&mut a.others)) {
            match (other, &mut self.writes) {
                (Arrival::UserFault { pid, fault }, Some(writes)) => writes.take(pid, fault),
                (Arrival::Handler { pid, image, socket }, _) => handlers.push((pid, image, socket)),
                _ => {}
            }
        }
        handlers
    }

    /// Takes up mappings whose writes can be told from the next boundary on.
    pub(crate) fn refresh_writes(&mut self) {
        if let Some(writes) = &mut self.writes {
            let processes = &self.world.processes;
            writes.refresh(|pid| processes.contains_key(&pid));
        }
    }
}

fn or(a: &mut [u64; 8], b: &[u64; 8]) {
    for (a, b) in a.iter_mut().zip(b) {
        *a |= b;
    }
}
