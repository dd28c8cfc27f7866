//! Whether accesses can be trapped.

use varve_bpf::Kernel;
use varve_model::Pid;

use crate::preflight::gains_rights;
use crate::target::is_static;
use crate::trap_budget::Budget;
use crate::traps::Servants;
use crate::{RecordError, RecordOptions, TargetChoice, TrapsChoice, WritesChoice};

/// The servants of the processes, where accesses are to be trapped.
///
/// # Errors
/// Where they cannot be.
pub(crate) fn servants(
    options: &RecordOptions,
    kernel: &Kernel,
) -> Result<Option<Servants>, RecordError> {
    if options.traps == TrapsChoice::Off {
        return Ok(None);
    }
    check(options)?;
    let budget = match options.traps {
        TrapsChoice::Budget(_) if !kernel.tells_waits() => {
            return Err(refusal(
                "to keep a budget, the kernel must show how long threads wait (tracepoint sched_switch)",
            ));
        }
        TrapsChoice::Budget(limit) => Some(Budget::new(limit)),
        _ => None,
    };
    Ok(Some(Servants::new(budget, kernel.exempt()?)))
}

const NO_PRELOAD: &str = "it needs the preload library";

fn refusal(why: impl Into<String>) -> RecordError {
    RecordError::NoTraps(why.into())
}

fn check(options: &RecordOptions) -> Result<(), RecordError> {
    let why = match &options.target {
        TargetChoice::Attach(_) => Some("only programs that varve starts can be asked to"),
        TargetChoice::Command(_) if options.preload.is_none() => Some(NO_PRELOAD),
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
        return Err(refusal(why));
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
