//! Allocator operations of processes into which nothing can be preloaded: programs in the kernel count them at the beginning and the end of the allocator's
//! functions.
//!
//! Where nobody else has the allocator's file mapped the probes are attached to the file, so that children have them from their first instruction on. Else
//! each process gets its own, and what a child does before that is not counted.

mod allocator;
mod names;
mod rows;
mod whose;

use std::collections::HashMap;
use std::path::Path;

use varve_bpf::{Event, ForkKind, Kernel, ProbeCost, Probes, TrackedProcesses};
use varve_model::{Duration, Loss, Pid, Tid, Time};
use varve_sys::monotonic_now;
use varve_trace::{Manifest, TraceError, TraceWriter};

use self::allocator::{Allocator, Files, NoAllocator};
use self::rows::Reader;
use self::whose::Attached;
use super::charges::Charges;
use super::mapped::Mapped;
use super::{Pace, Rows};
use crate::probes::{Ending, Lost, Probe, Setup};
use crate::state::State;
use crate::target::preflight::{has_32_bits, has_other_bits};
use crate::{RecordError, TargetChoice};

/// A program is looked at again so long after its beginning: it loads libraries first.
const LOOKS: [Duration; 4] = [
    Duration(1_000_000),
    Duration(5_000_000),
    Duration(20_000_000),
    Duration(100_000_000),
];

/// Whether a program has its allocator in itself, where nothing that is preloaded can stand before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnAllocator {
    /// It finds it in a library, as far as that can be seen.
    No,
    /// It has it, and probes can be attached to its functions.
    Yes,
    /// It loads no library, and has no names by which an allocator could be found.
    Nameless,
}

/// Looks at the file of a command.
pub fn own_allocator(command: &[std::ffi::OsString]) -> OwnAllocator {
    let program = command.first().map(Path::new);
    let Some(path) = program.and_then(crate::target::preflight::found) else {
        return OwnAllocator::No;
    };
    match Files::default().of_program(&path) {
        Ok(Some(_)) => OwnAllocator::Yes,
        Err(NoAllocator::Stripped) => OwnAllocator::Nameless,
        Ok(None) | Err(_) => OwnAllocator::No,
    }
}

/// What the allocator that a program has in itself is called: its file, and the allocator in parentheses where its names say which it is. None where
/// the program finds it in a library, or has no names by which it could be found.
pub(crate) fn allocator_within(program: &Path) -> Option<String> {
    let found = Files::default().of_program(program).ok().flatten();
    found.map(|allocator| allocator.name)
}

/// What a command needs to know before it starts.
pub(super) struct Prepared {
    pub(super) probe: Probed,
    pub(super) cost: ProbeCost,
    /// What an operation takes longer, on average.
    pub(super) operation: Duration,
}

impl Prepared {
    /// Says what it will cost, and of what is counted what a person may not expect.
    pub(super) fn say(&self, tell: crate::interrupts::Tell, attached: bool) {
        let longer = self.operation.0 as f64 / 1000.0;
        tell(&match attached {
            true => format!(
                "each allocator operation of the process will take {longer:.1} µs longer while it is recorded (measured here); `varve alloc record -- COMMAND` costs some ns"
            ),
            false => format!(
                "the allocator of this command is a part of it: each of its operations will take {longer:.1} µs longer (measured here)"
            ),
        });
        self.notes().iter().for_each(|note| tell(note));
    }

    /// The same for the trace.
    pub(super) fn notes(&self) -> Vec<String> {
        let of = &self.probe.root;
        let prefix = of.prefix.map(|prefix| {
            format!(
                "Allocator operations are those of {}, by the names {prefix}malloc and so on: what goes to the C library's allocator was not counted.",
                of.name
            )
        });
        let left_out = (!of.left_out.is_empty()).then(|| {
            let names: Vec<&str> = of.left_out.iter().map(|name| called(name)).collect();
            format!(
                "Not counted: {} of {}, as the end of these functions cannot be seen without being in the way of exceptions.",
                names.join(", "),
                of.name
            )
        });
        prefix.into_iter().chain(left_out).collect()
    }
}

/// An operator's name as a person knows it.
fn called(mangled: &'static str) -> &'static str {
    match mangled {
        "_Znwm" => "new",
        "_Znam" => "new[]",
        "_ZnwmSt11align_val_t" => "new(align)",
        "_ZnamSt11align_val_t" => "new[](align)",
        other => other,
    }
}

/// Measures what probes cost, and says it; where the target has no allocator that can be probed, says why.
pub(super) fn prepare(
    setup: &Setup<'_>,
    every: u32,
    charges: Option<Charges>,
) -> Result<Prepared, RecordError> {
    let kernel = &*setup.kernel;
    let mut known = kernel.capabilities().iter();
    if let Some(refused) = known.find(|c| c.name == varve_bpf::PROBE_PROGRAMS && !c.available) {
        return Err(RecordError::NoProbes(refused.detail.clone()));
    }
    let (files, found) = look(&setup.options.target)?;
    let no_probes = |error: varve_bpf::BpfError| RecordError::NoProbes(error.to_string());
    let cost = kernel.measure_probes().map_err(no_probes)?;
    if let TargetChoice::Attach(pid) = setup.options.target
        && !cost.spares_confined
        && is_confined(pid)
    {
        return Err(RecordError::Confined(pid));
    }
    crate::rights::attaches(kernel);
    let operation = longer(&found, &cost);
    let probes = kernel.probes()?;
    probes.time_every(every, &cost)?;
    Ok(Prepared {
        probe: Probed {
            attaches: !matches!(setup.options.target, TargetChoice::Command(_)),
            follow: setup.options.follow,
            files,
            attached: Attached::default(),
            tracked: kernel.tracked()?,
            pending: HashMap::new(),
            reader: Reader::default(),
            root: found,
            root_pid: None,
            ended: Vec::new(),
            gone: Vec::new(),
            late: 0,
            probes,
            charges,
            mapped: Mapped::default(),
            pace: Pace::default(),
            rows: Rows::default(),
        },
        cost,
        operation,
    })
}

/// The allocator of the target.
fn look(target: &TargetChoice) -> Result<(Files, Allocator), RecordError> {
    let mut files = Files::default();
    let found = match target {
        TargetChoice::Attach(pid) => files.of_process(*pid),
        TargetChoice::Command(command) => {
            let path = command.first().map(Path::new);
            let path = path.and_then(crate::target::preflight::found);
            match path {
                Some(path) => match files.of_program(&path) {
                    Ok(Some(found)) => Ok(found),
                    Ok(None) => Err(NoAllocator::None),
                    Err(why) => Err(why),
                },
                None => Err(NoAllocator::None),
            }
        }
    };
    let whose = match target {
        TargetChoice::Attach(pid) => format!("process {pid}"),
        TargetChoice::Command(command) => {
            let name = command.first().map(|name| name.to_string_lossy());
            name.unwrap_or_default().into_owned()
        }
    };
    let found = found.map_err(|why| match why {
        NoAllocator::Unreadable(_) if has_ended(target) => RecordError::Ended(whose),
        NoAllocator::None => match other_bits(target) {
            true => RecordError::OtherBits(whose),
            false => RecordError::NoAllocator(whose),
        },
        NoAllocator::Stripped => RecordError::NamelessAllocator(whose),
        NoAllocator::Unreadable(why) => RecordError::UnreadableAllocator { whose, why },
    })?;
    Ok((files, found))
}

/// Whether it is a 32-bit program.
fn other_bits(target: &TargetChoice) -> bool {
    match target {
        TargetChoice::Attach(pid) => has_32_bits(Path::new(&format!("/proc/{pid}/exe"))),
        TargetChoice::Command(command) => has_other_bits(command),
    }
}

/// Whether the process to attach to has ended meanwhile; it may wait for its parent.
fn has_ended(target: &TargetChoice) -> bool {
    match target {
        TargetChoice::Attach(pid) => match varve_sys::PidFd::open(*pid) {
            Ok(process) => process.has_ended(),
            Err(error) => error.raw_os_error() == Some(libc::ESRCH),
        },
        TargetChoice::Command(_) => false,
    }
}

/// Whether a thread of the process may make certain system calls only.
fn is_confined(pid: Pid) -> bool {
    let threads = varve_sys::threads(pid).unwrap_or_default();
    let confined = |tid: Tid| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/status"));
        let status = status.unwrap_or_default();
        let line = status.lines().find_map(|l| l.strip_prefix("Seccomp:"));
        line.is_some_and(|mode| mode.trim() != "0")
    };
    threads.iter().any(|thread| confined(thread.tid))
}

/// What an operation takes longer, on average of `malloc` and `free` or what stands for them.
fn longer(of: &Allocator, cost: &ProbeCost) -> Duration {
    use varve_preload_abi::operations::Operation;
    let points = of.parts.iter().flat_map(|part| &part.points);
    let is_usual = |operation: u8| {
        let usual = [Operation::Malloc, Operation::Free, Operation::FreeSized];
        usual.iter().any(|o| *o as u8 == operation)
    };
    let begins = points.filter(|p| {
        p.place == varve_bpf::ProbePlace::Begin && !p.call.announces && is_usual(p.call.operation)
    });
    let costs: Vec<u64> = begins
        .map(|point| match point.steps {
            true => cost.operation_steps.0,
            false => cost.operation.0,
        })
        .collect();
    Duration(costs.iter().sum::<u64>() / (costs.len() as u64).max(1))
}

/// A process whose allocator is to be looked for.
#[derive(Clone, Copy)]
struct Pending {
    since: Time,
    next: usize,
    /// Whose probes it gets at once.
    like: Option<Pid>,
}

/// The probe.
pub(super) struct Probed {
    /// The target ran before: nobody knows what lived then.
    attaches: bool,
    follow: bool,
    files: Files,
    attached: Attached,
    tracked: TrackedProcesses,
    pending: HashMap<Pid, Pending>,
    reader: Reader,
    /// The target's allocator.
    root: Allocator,
    root_pid: Option<Pid>,
    /// Threads that have ended.
    ended: Vec<(Pid, Tid)>,
    /// Processes that have ended.
    gone: Vec<Pid>,
    /// Children that got their probes after they had begun, or ended before.
    late: u64,
    probes: Probes,
    charges: Option<Charges>,
    mapped: Mapped,
    pace: Pace,
    rows: Rows,
}

impl Probed {
    /// Attaches probes to processes that have none yet.
    fn catch_up(&mut self, kernel: &Kernel) {
        for pid in std::mem::take(&mut self.gone) {
            self.attached.ended(pid);
            self.pending.remove(&pid);
        }
        let now = monotonic_now();
        for (pid, pending) in &mut self.pending {
            // One that has ended has nothing to be counted.
            if let Some(like) = pending.like.take() {
                let _ = self.attached.take_over(kernel, like, *pid);
                self.late += 1;
            }
        }
        let due: Vec<Pid> = self
            .pending
            .iter()
            .filter(|(_, p)| {
                LOOKS
                    .get(p.next)
                    .is_none_or(|after| now >= p.since + *after)
            })
            .map(|(pid, _)| *pid)
            .collect();
        for pid in due {
            let looks = self.pending.get(&pid).is_some_and(|p| p.next < LOOKS.len());
            if let Some(found) = looks.then(|| self.files.of_process(pid).ok()).flatten() {
                if let Ok(true) = self.attached.add(kernel, &found, pid) {
                    self.late += 1;
                }
                self.reader.learns(pid, &found);
            }
            if let Some(pending) = self.pending.get_mut(&pid) {
                pending.next += 1;
                if pending.next >= LOOKS.len() {
                    self.pending.remove(&pid);
                }
            }
        }
    }

    fn read(&mut self, state: &mut State) {
        let now = monotonic_now();
        self.reader.read(now, &self.probes, state, &mut self.rows);
        let ended = std::mem::take(&mut self.ended);
        self.reader.release(&ended, &self.probes);
        if let Some(charges) = &mut self.charges {
            charges.read(now, None, state, &mut self.rows.charges);
        }
        self.mapped.read(now, None, &mut self.rows.charges);
        self.pace.read = now;
    }

    fn look(&mut self) {
        let now = monotonic_now();
        for process in self.probes.processes() {
            // Of one that ran before it is not known what its allocator had mapped.
            let is_known =
                self.charges.is_some() && !(self.attaches && Some(process.pid) == self.root_pid);
            let heap = is_known.then(|| self.mapped.heap(process.pid));
            let (probes, rows) = (&self.probes, &mut self.rows.memory);
            self.reader.look(now, &process, probes, heap.as_ref(), rows);
        }
        self.pace.looked = now;
    }
}

impl Probe for Probed {
    fn ready(&mut self, root: Pid, kernel: &Kernel) -> Result<(), RecordError> {
        self.root_pid = Some(root);
        let found = self.root.clone();
        self.attached.add(kernel, &found, root)?;
        self.reader.learns(root, &found);
        if !self.attaches {
            // It begins with its exec.
            return Ok(());
        }
        self.probes.begin(root)?;
        let others: Vec<Pid> = match self.follow {
            true => self.tracked.list(),
            false => Vec::new(),
        };
        for pid in others.into_iter().filter(|pid| *pid != root) {
            if let Ok(found) = self.files.of_process(pid) {
                self.attached.add(kernel, &found, pid)?;
                self.reader.learns(pid, &found);
                self.probes.begin(pid)?;
            }
        }
        Ok(())
    }

    fn event(&mut self, event: &Event<'_>, state: &mut State) {
        self.mapped.event(event, state);
        match event {
            Event::Exit(exit) if exit.last => self.gone.push(exit.pid),
            Event::Exit(exit) => self.ended.push((exit.pid, exit.tid)),
            Event::Fork(fork) if fork.kind == ForkKind::Process && fork.tracked => {
                self.reader.forked(fork.parent, fork.pid);
                if !self.attached.is_whole_file(fork.parent) {
                    let pending = Pending {
                        since: fork.time,
                        next: LOOKS.len(),
                        like: Some(fork.parent),
                    };
                    self.pending.insert(fork.pid, pending);
                }
            }
            Event::Exec(exec) => {
                let pending = Pending {
                    since: exec.time,
                    next: 0,
                    like: None,
                };
                self.pending.insert(exec.pid, pending);
            }
            _ => {}
        }
    }

    fn apply(&mut self, kernel: &mut Kernel) -> Result<(), RecordError> {
        self.catch_up(kernel);
        Ok(())
    }

    fn urgency(&self) -> Option<Duration> {
        (!self.pending.is_empty()).then_some(Duration(1_000_000))
    }

    fn image_ends(&mut self, pid: Pid, time: Time, state: &mut State) {
        let now = monotonic_now();
        // Rows of what ends are no later than that.
        let ended = now.min(time);
        self.reader.read(now, &self.probes, state, &mut self.rows);
        let heap = self.charges.as_ref().map(|_| self.mapped.heap(pid));
        let rows = &mut self.rows.memory;
        self.reader
            .ends(pid, time, &self.probes, heap.as_ref(), rows);
        if let Some(charges) = &mut self.charges {
            charges.read(ended, Some(pid), state, &mut self.rows.charges);
            charges.forget(pid);
        }
        self.mapped.read(ended, Some(pid), &mut self.rows.charges);
    }

    fn image_ended(&mut self, pid: Pid, _: Time) {
        self.mapped.forget(pid);
    }

    fn turn(&mut self, state: &mut State) {
        let due = self.pace.due(self.reader.processes());
        if due.read {
            self.read(state);
        }
        if due.look {
            self.look();
        }
    }

    fn losses(&self, lost: &mut Lost) {
        let dropped = self.charges.as_ref().map_or(0, Charges::dropped);
        lost.push((Loss::Operations, self.reader.uncounted() + dropped));
    }

    fn write(&mut self, writer: &mut TraceWriter) -> Result<(), TraceError> {
        self.rows.write(writer)
    }

    fn end(&mut self, ending: &mut Ending<'_>) -> Result<(), RecordError> {
        // What begins from here on is not waited for.
        self.attached.clear();
        self.read(ending.state);
        self.look();
        Ok(())
    }

    fn finish(&mut self, manifest: &mut Manifest, _: bool) {
        if let Some(note) = &mut manifest.operations
            && self.late > 0
        {
            let children = match self.late {
                1 => "1 program got".to_owned(),
                some => format!("{some} programs got"),
            };
            note.notes.push(format!(
                "{children} the probes of allocator operations some milliseconds after the beginning, or ended before, as other programs use the same allocator's file: what was allocated until then was not counted."
            ));
        }
    }
}
