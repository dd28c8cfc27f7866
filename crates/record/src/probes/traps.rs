//! The first access to each page in an interval traps (`--backend fault`).
//!
//! While the target is held, fault handlers move its pages away; the first access to each faults, and the kernel's
//! tracepoint reports it like every fault.

mod budget;
mod handlers;
mod trapped;

use std::collections::HashSet;
use std::ffi::OsString;
use std::path::Path;

use varve_bpf::{Access, Event, Kernel, Leaf, LoadOptions, Region, TrackFlags};
use varve_model::{Backend, Capability, Duration, Loss, Pid, Time};
use varve_preload_abi::TRAPS_VARIABLE;
use varve_sys::monotonic_now;
use varve_trace::Manifest;

use self::budget::Budget;
use self::handlers::{Handlers, TrapNews};
use self::trapped::Trapped;
use super::{Closed, Due, Held, Kind, Launch, Lost, Probe, Setup, Started, Step};
use crate::recorder::touch_rows::FirstAccesses;
use crate::state::State;
use crate::state::found::Found;
use crate::target::channel::{Arrival, Channel};
use crate::target::is_static;
use crate::target::preflight::{gains_rights, why_not_loaded};
use crate::{Ablation, RecordError, RecordOptions, TargetChoice, TrapsChoice, WritesChoice};

/// An interval is at most so many times as long as asked for where the program waits for trapped accesses.
const MAX_PROLONGATION: u64 = 100;
/// How soon a handler that is being met is heard again.
const MEETS_EVERY: Duration = Duration(1_000_000);
/// A rest of an interval that is not worth waiting for.
const MIN_REST: Duration = Duration(1_000_000);

pub(crate) const KIND: Kind = Kind { load, start };

fn is_wanted(options: &RecordOptions) -> bool {
    options.traps != TrapsChoice::Off && options.scans()
}

fn load(options: &RecordOptions, load: &mut LoadOptions) {
    load.waits |= is_wanted(options);
}

fn start(setup: &mut Setup<'_>) -> Result<Started, RecordError> {
    let options = setup.options;
    if !is_wanted(options) {
        return Ok(None);
    }
    check(options)?;
    let budget = match options.traps {
        TrapsChoice::Budget(_) if !setup.kernel.tells_waits() => {
            return Err(refusal(
                "to keep a budget, the kernel must show how long threads wait (tracepoint sched_switch)",
            ));
        }
        TrapsChoice::Budget(limit) => Some(Budget::new(limit)),
        _ => None,
    };
    setup.offers.handlers = true;
    setup.flags = setup.flags | TrackFlags::HANDLERS;
    setup.manifest.backend = Backend::Fault;
    setup.manifest.capabilities.insert(Capability::Traps);
    Ok(Some(Box::new(Traps {
        handlers: Handlers::new(budget, setup.kernel.exempt()?),
        news: Vec::new(),
        signalled: HashSet::new(),
        trapped: Trapped::default(),
        trapped_next: Trapped::default(),
        moves: !options.lacks(Ablation::Protect),
    })))
}

/// The probe.
struct Traps {
    handlers: Handlers,
    /// What handlers are to know.
    news: Vec<TrapNews>,
    /// Processes that a signal ended, until their memory is gone.
    signalled: HashSet<Pid>,
    /// Which pages trapped in the interval that runs, and in the next.
    trapped: Trapped,
    trapped_next: Trapped,
    /// Whether pages are moved.
    moves: bool,
}

impl Probe for Traps {
    fn launch(&self, launch: &mut Launch, _: Option<&Channel>) -> Result<(), RecordError> {
        launch
            .environment
            .push((TRAPS_VARIABLE, OsString::from("1")));
        Ok(())
    }

    fn begin(&mut self, held_in: Option<&Path>) {
        self.handlers.held_in(held_in);
    }

    fn event(&mut self, event: &Event<'_>, state: &mut State) {
        match event {
            Event::Fault(fault) => {
                let owner = state.processes.owner_of_memory(fault.pid);
                let interval = match state.is_next(fault.time) {
                    true => &mut self.trapped_next,
                    false => &mut self.trapped,
                };
                interval.note(owner, fault.address, fault.access == Access::Write);
            }
            Event::Exit(exit) if exit.last && exit.wait_status & 0x7f != 0 => {
                self.signalled.insert(exit.pid);
            }
            _ => {}
        }
        self.news.extend(TrapNews::of_thread(event));
    }

    fn image_ended(&mut self, pid: Pid, time: Time) {
        let by_signal = self.signalled.remove(&pid);
        self.news.push(TrapNews::Gone(pid, time, by_signal));
    }

    fn apply(&mut self, _: &mut Kernel) -> Result<(), RecordError> {
        self.handlers.learn(self.news.drain(..));
        Ok(())
    }

    fn turn(&mut self, state: &mut State) {
        let connected = state.arrivals.take(|arrival| match arrival {
            Arrival::Handler { pid, image, socket } => Ok((pid, image, socket)),
            other => Err(other),
        });
        for (pid, image, socket) in connected {
            self.handlers.take(pid, image, socket);
        }
        self.handlers.refresh();
        state.moved_pages.extend(self.handlers.take_pages());
    }

    /// A handler that is not ready at the end of an interval protects nothing for the next.
    fn urgency(&self) -> Option<Duration> {
        self.handlers.is_meeting().then_some(MEETS_EVERY)
    }

    /// Otherwise, the longer the program waits for trapped accesses the more often all pages would be moved again, and it
    /// would hardly get on.
    fn prolong(&self, due: &Due<'_>) -> Option<Duration> {
        // A kernel that does not say has intervals as long as asked for.
        let waited = due.kernel.waited().ok()?;
        let most = Duration(due.length.0.saturating_mul(MAX_PROLONGATION));
        let end = due.start + due.length + waited.min(most);
        (end > due.now + MIN_REST).then(|| end - due.now)
    }

    fn held(&mut self, step: Step, held: &mut Held<'_>) -> Result<(), RecordError> {
        if step == Step::Await {
            held.reading.ends += self.handlers.await_ends();
        }
        // Before the bits are cleared: moving a page sets its own.
        if step == Step::Prepare {
            if self.moves {
                // Threads have begun and ended since the events were taken, until all stood still.
                let mut threads = Vec::new();
                let knows_all = held
                    .kernel
                    .look_ahead(&mut |event| threads.extend(TrapNews::of_thread(&event)))?;
                self.handlers.learn(threads);
                // What a kernel cannot say does not lengthen intervals.
                let waited = held.kernel.waited().unwrap_or_default();
                self.handlers.protect(held.pids, waited, knows_all);
                let _ = held.kernel.forget_waits(monotonic_now());
            }
            for (pid, shadow) in self.handlers.shadows() {
                held.state.processes.add_shadow(pid, shadow);
            }
        }
        Ok(())
    }

    fn refine(&self, found: &mut Found, state: &State) {
        if !found.when.is_vanishing() {
            self.handlers.hide(found);
        } else if let Some(shadow) = state.processes.shadows.get(&found.pid) {
            // A page there was not accessed, and some keep their bits: the zero page's cannot be cleared.
            handlers::hide(shadow, found);
        }
    }

    fn first_accesses(&self, pid: Pid, region: &Region) -> Option<FirstAccesses> {
        (region.leaf == Leaf::Small).then(|| self.trapped.of(pid, region.base))
    }

    fn closed(&mut self, closed: &Closed<'_>, _: &mut State) {
        handlers::count(&mut self.handlers.note, closed.rows);
        self.trapped = std::mem::take(&mut self.trapped_next);
        self.trapped.protected = Some(self.handlers.protected());
        self.handlers.held(closed.held);
    }

    fn losses(&self, lost: &mut Lost) {
        lost.push((
            Loss::UntrackedChildren,
            self.handlers.unobserved.len() as u64,
        ));
        lost.push((Loss::KilledHandlers, self.handlers.killed));
    }

    fn describe(&mut self, manifest: &mut Manifest) {
        self.handlers.check_exempt();
        manifest.traps = Some(self.handlers.note);
    }

    fn finish(&mut self, manifest: &mut Manifest, _: bool) {
        self.handlers.finish();
        manifest.traps = Some(self.handlers.note);
        if self.handlers.shared_users > 0 {
            manifest.notes.push(format!(
                "Accesses of {} programs did not trap: a program that cannot change its user cannot have a fault handler that is safe from it.",
                self.handlers.shared_users
            ));
        }
        if self.handlers.killed > 0 {
            manifest.notes.push(format!(
                "Somebody ended {} fault handlers that had moved pages: those were brought back, and from then on no access of those processes trapped.",
                self.handlers.killed
            ));
        }
    }
}

const NO_PRELOAD: &str = "it needs the preload library";

fn refusal(why: impl Into<String>) -> RecordError {
    RecordError::NoTraps(why.into())
}

/// Of what no machine could do otherwise: nothing is missing that could be installed or enabled.
fn unfit(why: &str) -> RecordError {
    refusal(format!(
        "{why} (hint: `--backend scan` finds the same pages)"
    ))
}

fn check(options: &RecordOptions) -> Result<(), RecordError> {
    if let TargetChoice::Command(command) = &options.target
        && let Some(why) = why_not_loaded(command)
    {
        return Err(unfit(&format!(
            "the program {why}, so it does not load the preload library"
        )));
    }
    let why = match &options.target {
        TargetChoice::Attach(_) => Some("only programs that varve starts can be asked to"),
        TargetChoice::Command(_) if options.preload.is_none() => return Err(refusal(NO_PRELOAD)),
        TargetChoice::Command(command) if is_static(command) => {
            Some("the program is static, so it does not load the preload library")
        }
        TargetChoice::Command(command) if gains_rights(command) => {
            Some("the program gains rights, so it does not load the preload library")
        }
        TargetChoice::Command(_) if options.writes == WritesChoice::On => {
            Some("`--writes on` needs the same memory watched in another way")
        }
        TargetChoice::Command(_) => None,
    };
    if let Some(why) = why {
        return Err(unfit(why));
    }
    can_trap().map_err(refusal)
}

/// Whether this machine lets the recorder trap accesses; why not, as the end of a sentence.
pub(crate) fn can_trap() -> Result<(), String> {
    varve_sys::try_traps().map_err(|e| {
        format!(
            "this kernel or user cannot move pages by userfaultfd through /dev/userfaultfd: {e}"
        )
    })?;
    // A handler is known by the memory that it shares.
    let own = Pid(std::process::id());
    varve_sys::shares_memory(own, own).map_err(|e| {
        format!("this kernel or user cannot compare the memory of processes (kcmp): {e}")
    })?;
    // The places to which pages are moved double the address space, which is never filled; here they would count.
    let strict = std::fs::read_to_string("/proc/sys/vm/overcommit_memory");
    if strict.is_ok_and(|mode| mode.trim() == "2") {
        return Err(
            "this machine never promises more memory than it has (vm.overcommit_memory is 2)"
                .into(),
        );
    }
    Ok(())
}
