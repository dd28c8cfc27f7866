//! Samples by the clock: what each thread was waiting for when its CPU's clock interrupted it.
//!
//! A program in the kernel (`bpf/samples.h`) sends registers and a piece of the stack; here they become an address, a call stack
//! and a row, while the process still runs: its code may be gone at the end.

use std::collections::HashMap;

use varve_access::x86::Registers;
use varve_access::{Copies, Kind, Located, Place, Steps, Undecoded};
use varve_bpf::{ClockSample, Kernel, RedZone, Samples, Whereabouts};
use varve_model::{
    Address, Cpu, Duration, Pid, Resolved, SampleMode, SampleSource, SiteId, Tid, Time,
};
use varve_symbols::{AddressSpaces, Locator, Snapshot, Unwinder};
use varve_sys::thread_cpu_time;
use varve_trace::SamplesNote;
use varve_trace::tables::SampleRow;

use crate::RecordError;
use crate::state::processes::Processes;
use crate::state::stacks::Stacks;

use super::USER_END;
use super::code::{CodeReader, Stopped};
use super::forks::Forks;
use super::pace::Pace;
use super::space::Space;

/// A sample without its stack, of which the place among all stacks is known.
struct Waiting {
    time: Time,
    pid: Pid,
    tid: Tid,
    cpu: Cpu,
    place: Whereabouts,
    compat: bool,
    period: Duration,
    ip: Address,
    registers: Registers,
    stack: std::ops::Range<usize>,
    red_zone: Option<RedZone>,
}

impl Waiting {
    fn stack_pointer(&self) -> Address {
        Address(self.registers.general[4].unwrap_or(0))
    }
}

/// Takes samples and turns them into rows.
pub(crate) struct ClockSampler {
    source: Samples,
    steps: Steps,
    pace: Pace,
    pub(crate) note: SamplesNote,
    waiting: Vec<Waiting>,
    stacks: Vec<u8>,
    spaces: HashMap<Pid, Space>,
    code: CodeReader,
    unwinder: Unwinder,
    pub(crate) rows: Vec<SampleRow>,
}

impl ClockSampler {
    /// Begins to take `rate` samples a second, or as many of these as [`ClockSampler::limit`] allows.
    pub(super) fn start(kernel: &mut Kernel, rate: u32, steps: Steps) -> Result<Self, RecordError> {
        let pace = Pace::measure(rate).map_err(RecordError::system("measure an interrupt"))?;
        let source = kernel.sample(rate)?;
        Ok(ClockSampler {
            pace,
            source,
            steps,
            note: SamplesNote::new(SampleSource::CpuClock, rate),
            waiting: Vec::new(),
            stacks: Vec::new(),
            spaces: HashMap::new(),
            code: CodeReader::new(),
            unwinder: Unwinder::new(Locator::while_recording()),
            rows: Vec::new(),
        })
    }

    /// Takes what has come. It is kept until [`ClockSampler::resolve`]: what happened before it must be known first.
    pub(crate) fn collect(&mut self) -> Result<(), RecordError> {
        let began = thread_cpu_time();
        let (waiting, stacks) = (&mut self.waiting, &mut self.stacks);
        self.source.drain(&mut |sample: ClockSample<'_>| {
            let from = stacks.len();
            stacks.extend_from_slice(sample.stack);
            waiting.push(Waiting {
                time: sample.time,
                pid: sample.pid,
                tid: sample.tid,
                cpu: sample.cpu,
                place: sample.place,
                compat: sample.compat,
                period: sample.period,
                ip: sample.ip,
                registers: Registers {
                    general: sample.general.map(Some),
                    flags: Some(sample.flags),
                    fs_base: Some(sample.fs_base),
                    gs_base: Some(sample.gs_base),
                    vectors: None,
                },
                stack: from..stacks.len(),
                red_zone: sample.red_zone,
            });
        })?;
        self.note.dropped = self.source.dropped()?;
        self.pace.worked(thread_cpu_time() - began);
        Ok(())
    }

    /// Turns what was taken into rows.
    pub(super) fn resolve(&mut self, processes: &mut Processes, forks: &Forks, sites: &mut Stacks) {
        let began = thread_cpu_time();
        let waiting = std::mem::take(&mut self.waiting);
        let stacks = std::mem::take(&mut self.stacks);
        let mut of: HashMap<Pid, Vec<&Waiting>> = HashMap::new();
        for sample in &waiting {
            of.entry(sample.pid).or_default().push(sample);
        }
        for (pid, samples) in of {
            let owner = processes.owner_of_memory(pid);
            // Before its own program began, a process is the recorder's copy.
            let Some(born) = processes.all.get(&owner).map(|p| p.row.born_ns) else {
                continue;
            };
            Space::refresh(&mut self.spaces, owner, processes, forks, &mut self.code);
            let Some(space) = self.spaces.remove(&owner) else {
                continue;
            };
            let spaces = AddressSpaces::new(&space.placed);
            for sample in samples.into_iter().filter(|s| s.time >= born) {
                let stack = stacks.get(sample.stack.clone()).unwrap_or_default();
                let site = self.site((owner, space.pid), sample, stack, &spaces, sites);
                self.row(owner, sample, stack, &space, site);
            }
            drop(spaces);
            self.spaces.insert(owner, space);
        }
        self.waiting = waiting;
        self.waiting.clear();
        self.stacks = stacks;
        self.stacks.clear();
        self.rows.sort_by_key(|row| row.time_ns);
        self.pace.worked(thread_cpu_time() - began);
    }

    /// What the samples since the last call have taken of the target's CPU time, in their interrupts.
    pub(super) fn took(&mut self) -> Duration {
        // Where the counter cannot be read nothing is recorded any more, and that is reported elsewhere.
        let taken = self.source.taken().unwrap_or_default();
        self.pace.took(taken)
    }

    /// Takes so many samples, of those that were asked for, that they cost no more than this share of the time in which
    /// the target runs. Of the recorder's own work this share keeps the target from its.
    pub(super) fn limit(&mut self, share: f64, contention: f64) {
        if let Some(rate) = self.pace.rate_within(share, contention)
            && self.source.set_rate(rate).is_ok()
        {
            self.pace.now(rate);
            self.note.least_rate = self.note.least_rate.min(rate);
        }
    }

    /// Forgets a process that has ended.
    pub(crate) fn forget(&mut self, pid: Pid) {
        self.spaces.remove(&pid);
        self.code.forget(pid);
        self.unwinder.forget(pid);
    }

    /// The call stack of a sample of a process, whose code is that of another one where it is a copy.
    fn site(
        &mut self,
        (pid, of): (Pid, Pid),
        sample: &Waiting,
        stack: &[u8],
        spaces: &AddressSpaces<'_>,
        sites: &mut Stacks,
    ) -> Option<SiteId> {
        let snapshot = Snapshot {
            pid: of,
            at: sample.time,
            ip: sample.ip,
            sp: sample.stack_pointer(),
            bp: Address(sample.registers.general[5].unwrap_or(0)),
            stack,
        };
        let frames = self.unwinder.unwind(spaces, &snapshot);
        if frames.is_empty() {
            return None;
        }
        sites.site(pid, sample.time, frames, false)
    }

    fn row(
        &mut self,
        pid: Pid,
        sample: &Waiting,
        stack: &[u8],
        space: &Space,
        site: Option<SiteId>,
    ) {
        self.note.take(sample.period);
        let mut row = SampleRow {
            time_ns: sample.time,
            pid,
            tid: Some(sample.tid),
            cpu: Some(sample.cpu),
            ip: Some(sample.ip),
            address: None,
            bytes: None,
            write: None,
            object: None,
            source: SampleSource::CpuClock,
            latency_cycles: None,
            level: None,
            resolved: None,
            mode: Some(mode(sample.place)),
            weight_ns: Some(sample.period),
            event: None,
            period: None,
            site,
        };
        let located = match sample.place {
            Whereabouts::Call => {
                self.note.in_calls += 1;
                None
            }
            Whereabouts::Trap => {
                self.note.in_traps += 1;
                None
            }
            Whereabouts::User => {
                let located = self.located(sample, stack, space);
                if let Err(why) = located {
                    self.note.undecoded += 1;
                    self.note.gathers += u64::from(why == Undecoded::Gather);
                    if why == Undecoded::Overwritten {
                        self.note.overwritten += 1;
                        row.resolved = Some(Resolved::Overwritten);
                    }
                }
                located.ok()
            }
        };
        let Some(located) = located else {
            self.rows.push(row);
            return;
        };
        let resolved = match located.place {
            Place::Behind => {
                self.note.behind += 1;
                Resolved::Behind
            }
            Place::At => {
                self.note.at += 1;
                Resolved::At
            }
            Place::Ahead => {
                self.note.ahead += 1;
                Resolved::Ahead
            }
        };
        let count = located.accesses.len() as u64;
        for (index, access) in located.accesses.iter().enumerate() {
            // What does not divide goes to the first.
            let rest = if index == 0 {
                sample.period.0 % count
            } else {
                0
            };
            self.rows.push(SampleRow {
                address: Some(access.address),
                bytes: Some(access.bytes),
                write: Some(access.kind == Kind::Write),
                resolved: Some(resolved),
                weight_ns: Some(Duration(sample.period.0 / count + rest)),
                ..row.clone()
            });
        }
    }

    fn located(
        &mut self,
        sample: &Waiting,
        stack: &[u8],
        space: &Space,
    ) -> Result<Located, Undecoded> {
        // Of 32-bit code nothing is known.
        if sample.compat {
            return Err(Undecoded::Invalid);
        }
        let pointer = sample.stack_pointer();
        let mut parts = vec![(pointer, stack)];
        if let Some(red_zone) = &sample.red_zone {
            let begin = pointer.0.saturating_sub(red_zone.len() as u64);
            parts.push((Address(begin), red_zone));
        }
        let stopped = Stopped {
            ip: sample.ip,
            registers: &sample.registers,
            memory: &Copies { parts: &parts },
        };
        let found = self.code.locate(space, &stopped, self.steps)?;
        let mapped = found.accesses.iter().all(|a| a.address.0 < USER_END);
        let is_known = mapped && !found.accesses.is_empty();
        is_known.then_some(found).ok_or(Undecoded::Register)
    }
}

fn mode(place: Whereabouts) -> SampleMode {
    match place {
        Whereabouts::User => SampleMode::User,
        Whereabouts::Call => SampleMode::Call,
        Whereabouts::Trap => SampleMode::Trap,
    }
}
