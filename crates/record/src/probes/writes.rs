//! Which pages were written: by soft-dirty bits where the kernel has them, else by userfaultfd's write protection.

mod faults;
mod watch;

use std::collections::HashSet;
use std::ffi::OsString;

use varve_bpf::{Access, Event, Kernel};
use varve_model::{Capability, Pid, Time};
use varve_preload_abi::WRITES_VARIABLE;
use varve_sys::Protector;
use varve_trace::Manifest;

use self::faults::WriteFaults;
use self::watch::WriteWatch;
use super::{Closed, Held, Kind, Launch, Probe, Setup, Started, Step, load_nothing};
use crate::recorder::touch_rows::Writes;
use crate::state::State;
use crate::state::found::Found;
use crate::target::channel::{Arrival, Channel};
use crate::target::is_static;
use crate::target::preflight::{gains_rights, why_not_loaded};
use crate::{RecordError, RecordOptions, TargetChoice, WritesChoice};

pub(crate) const KIND: Kind = Kind {
    load: load_nothing,
    start,
};

/// Chooses what reports writes, as asked for, and prepares the kernel part. Soft-dirty bits come with the scan, and faults tell where
/// those may have gone.
fn start(setup: &mut Setup<'_>) -> Result<Started, RecordError> {
    let options = setup.options;
    let choice = match options.scans() {
        false => WritesChoice::Off,
        true => options.writes,
    };
    match choice {
        WritesChoice::Off => Ok(None),
        _ if setup.kernel.tells_writes() => {
            setup.writes = Writes::Known;
            setup.manifest.features.writes = Some("soft-dirty".into());
            setup.manifest.capabilities.insert(Capability::Writes);
            Ok(Some(Box::new(WriteFaults::default())))
        }
        WritesChoice::Auto => Ok(None),
        WritesChoice::On => {
            check(options)?;
            setup.kernel.guard_writes()?;
            setup.writes = Writes::Partly;
            setup.manifest.features.writes = Some("userfaultfd".into());
            setup.manifest.capabilities.insert(Capability::Writes);
            setup.offers.writes = true;
            Ok(Some(Box::new(Protection {
                watch: WriteWatch::new(),
                protector: Protector::default(),
                protected: HashSet::new(),
            })))
        }
    }
}

/// The probe: write protection.
struct Protection {
    watch: WriteWatch,
    protector: Protector,
    /// Processes all of whose pages were protected at the last boundary.
    protected: HashSet<Pid>,
}

impl Probe for Protection {
    fn launch(&self, launch: &mut Launch, _: Option<&Channel>) -> Result<(), RecordError> {
        launch
            .environment
            .push((WRITES_VARIABLE, OsString::from("1")));
        Ok(())
    }

    fn event(&mut self, event: &Event<'_>, state: &mut State) {
        match event {
            Event::Fault(fault) if fault.access == Access::Write => {
                let owner = state.processes.owner_of_memory(fault.pid);
                let next = state.is_next(fault.time);
                self.watch.fault(owner, fault.address, next);
            }
            Event::Mapping(mapping) => {
                let owner = state.processes.owner_of_memory(mapping.pid);
                self.watch.mapping(owner, mapping);
            }
            _ => {}
        }
    }

    fn image_ended(&mut self, pid: Pid, _: Time) {
        self.watch.forget(pid);
    }

    fn apply(&mut self, kernel: &mut Kernel) -> Result<(), RecordError> {
        self.watch.lost(kernel.dropped_records()?.mappings);
        Ok(())
    }

    fn turn(&mut self, state: &mut State) {
        let handed = state.arrivals.take(|arrival| match arrival {
            Arrival::UserFault { pid, fault } => Ok((pid, fault)),
            other => Err(other),
        });
        for (pid, fault) in handed {
            self.watch.take(pid, fault);
        }
        let processes = &state.processes.all;
        self.watch.refresh(|pid| processes.contains_key(&pid));
    }

    fn held(&mut self, step: Step, held: &mut Held<'_>) -> Result<(), RecordError> {
        if step == Step::Prepare {
            let pids = held.pids.iter().copied();
            self.protected = pids
                .filter(|p| self.protector.protect(*p).is_ok())
                .collect();
        }
        Ok(())
    }

    fn refine(&self, found: &mut Found, _: &State) {
        for region in &mut found.regions {
            self.watch.judge(found.pid, found.when, region);
        }
    }

    fn closed(&mut self, closed: &Closed<'_>, _: &mut State) {
        self.watch.boundary(&self.protected, closed.found);
    }

    fn finish(&mut self, manifest: &mut Manifest, _: bool) {
        if !self.watch.any {
            let note = "No process could hand over a userfaultfd, so nothing is known of writes.";
            manifest.notes.push(note.to_owned());
        }
    }
}

/// Whether the target can be asked for a userfaultfd, and the kernel has what it takes.
fn check(options: &RecordOptions) -> Result<(), RecordError> {
    let refused = |why: &str| Err(RecordError::NoWrites(why.to_owned()));
    match &options.target {
        TargetChoice::Attach(_) => {
            return refused("only programs that varve starts can be asked for a userfaultfd");
        }
        TargetChoice::Command(_) if options.preload.is_none() => {
            return refused("userfaultfd needs the preload library");
        }
        TargetChoice::Command(command) if is_static(command) => {
            return refused(
                "the program is static, so it loads no library that asks for a userfaultfd",
            );
        }
        TargetChoice::Command(command) if gains_rights(command) => {
            return refused(
                "the program gains rights, so it loads no library that asks for a userfaultfd",
            );
        }
        TargetChoice::Command(command) => {
            if let Some(why) = why_not_loaded(command) {
                return refused(&format!(
                    "the program {why}, so it loads no library that asks for a userfaultfd"
                ));
            }
        }
    }
    varve_sys::try_write_protection().map_err(|e| {
        RecordError::NoWrites(format!(
            "its userfaultfd cannot protect pages and let writes go on by themselves: {e}"
        ))
    })
}
