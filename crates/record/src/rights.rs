//! What a recorder is allowed to do: asked by trying, named where it is missing, given up where it is done with.

use std::io;
use std::sync::OnceLock;

use varve_bpf::Kernel;
use varve_model::Pid;
use varve_sys::rights::{self, Capability};
use varve_sys::{ClearRefs, Rights};

use crate::RecordError;

/// Kept while a recording runs: reading and clearing what processes of any user have touched, their cgroups, stopping
/// them, handing signals on, and writing the trace.
const WHILE_RECORDING: [Capability; 7] = [
    Capability::DacOverride,
    Capability::DacReadSearch,
    Capability::Fowner,
    Capability::Kill,
    Capability::SysPtrace,
    Capability::SysNice,
    Capability::CheckpointRestore,
];

/// Kept by the watchdog: cgroups and folders that the recorder left, and processes in them.
const TO_CLEAN_UP: [Capability; 5] = [
    Capability::DacOverride,
    Capability::DacReadSearch,
    Capability::Fowner,
    Capability::Kill,
    Capability::SysPtrace,
];

/// Kept while a trace is put in order.
const FOR_FILES: [Capability; 3] = [
    Capability::DacOverride,
    Capability::DacReadSearch,
    Capability::Fowner,
];

/// Kept besides where processes are still there whose mapped files are read.
const FOR_MAPPED_FILES: [Capability; 2] = [Capability::SysPtrace, Capability::CheckpointRestore];

/// Refuses a process whose accessed bits this recorder could not read or clear: by trying, before anything is made.
///
/// # Errors
/// [`RecordError::Denied`] names the capability that would do.
pub(crate) fn check_process(pid: Pid) -> Result<(), RecordError> {
    let denied = |deed, needed| {
        move |source: io::Error| match source.kind() {
            io::ErrorKind::PermissionDenied => Err(RecordError::Denied { pid, deed, needed }),
            // Gone meanwhile: others say so.
            _ => Ok(()),
        }
    };
    varve_sys::try_maps(pid)
        .or_else(denied("its mappings cannot be read", Capability::SysPtrace))?;
    varve_sys::try_stop(pid).or_else(denied("it cannot be stopped", Capability::SysPtrace))?;
    ClearRefs::open(pid).map(drop).or_else(denied(
        "its accessed bits cannot be cleared",
        Capability::DacOverride,
    ))
}

/// Before anything that could be taken from this process is opened: others of its user can neither trace it nor take
/// its descriptors.
pub(crate) fn hide() {
    rights::hide_from_user();
}

/// Whether programs that are loaded can be used without the capabilities that loaded them: older kernels ask for those
/// at every use.
static USE_IS_FREE: OnceLock<bool> = OnceLock::new();

/// Whether attaching programs to processes takes CAP_SYS_ADMIN beside what it should: older kernels ask for that.
static ATTACHING_TAKES_ADMIN: OnceLock<bool> = OnceLock::new();

/// To be called where programs are to be attached to processes that come later, likewise.
pub(crate) fn attaches(kernel: &Kernel) {
    ATTACHING_TAKES_ADMIN
        .get_or_init(|| !rights::without(&[Capability::SysAdmin], || kernel.can_attach_probes()));
}

/// To be called once the kernel's part is there, before [`keep_for_recording`] and before there are threads that use it.
pub(crate) fn loaded(kernel: &Kernel) {
    USE_IS_FREE.get_or_init(|| {
        rights::without(&[Capability::Bpf, Capability::SysAdmin], || {
            kernel.dropped_records().is_ok()
        })
    });
}

/// Gives up what only the beginning needed: the kernel's part is loaded, the target is prepared. Threads that run
/// already keep what they have; each is to call this for itself. `attaches`: programs are to be attached to processes that come later.
///
/// # Errors
/// Where the kernel does not let go of it.
pub(crate) fn keep_for_recording(attaches: bool) -> Result<(), RecordError> {
    let mut keep = WHILE_RECORDING.to_vec();
    if attaches {
        keep.extend([Capability::Bpf, Capability::Perfmon]);
        if ATTACHING_TAKES_ADMIN.get() == Some(&true) {
            keep.push(Capability::SysAdmin);
        }
    }
    if USE_IS_FREE.get() != Some(&true) {
        keep.extend([Capability::Bpf, Capability::SysAdmin]);
    }
    rights::keep_only_and_ambient(&keep).map_err(RecordError::system("give up capabilities"))
}

/// Gives up what recording needed: what follows reads files that the target had a say in. `remains` says whether
/// processes of the target may be there still.
pub fn keep_for_finish(remains: bool) {
    let mut keep = FOR_FILES.to_vec();
    if remains {
        keep.extend(FOR_MAPPED_FILES);
    }
    let _ = rights::keep_only(&keep);
}

/// The watchdog's beginning. Somebody who runs it by hand gets no rights of the program's file for what he has it do:
/// a recorder starts it so that it can gain nothing.
pub(crate) fn keep_for_watchdog(swaps: bool) {
    let by_hand = rights::gained_by_file() && !rights::gains_nothing();
    let mut keep = match by_hand {
        true => Vec::new(),
        false => TO_CLEAN_UP.to_vec(),
    };
    if swaps && !by_hand {
        keep.push(Capability::SysAdmin);
    }
    let _ = rights::keep_only(&keep);
}

/// A thing that can be recorded, and what it takes.
pub(crate) struct Need {
    pub(crate) what: &'static str,
    pub(crate) purpose: &'static str,
    /// What a person can do where that suffices, in a few words; none where another mechanism says it.
    pub(crate) feature: Option<&'static str>,
    pub(crate) capabilities: &'static [Capability],
    /// Nothing can be recorded without it.
    pub(crate) required: bool,
}

/// What `varve doctor` lists; `SECURITY.md` has the same table.
pub(crate) const NEEDS: [Need; 4] = [
    Need {
        what: "own processes",
        purpose: "recording commands and processes of the same user",
        feature: Some("commands and own processes"),
        capabilities: &[Capability::Bpf, Capability::Perfmon],
        required: true,
    },
    Need {
        what: "anybody's processes",
        purpose: "recording processes of other users, and what changes its user",
        feature: Some("processes of other users"),
        capabilities: &[
            Capability::Bpf,
            Capability::Perfmon,
            Capability::SysPtrace,
            Capability::DacOverride,
        ],
        required: false,
    },
    Need {
        what: "trapped accesses",
        purpose: "`--backend fault`",
        feature: None,
        capabilities: &[
            Capability::Bpf,
            Capability::Perfmon,
            Capability::SysPtrace,
            Capability::DacOverride,
        ],
        required: false,
    },
    Need {
        what: "priority",
        purpose: "letting the target go in time on a busy machine",
        feature: None,
        capabilities: &[Capability::Bpf, Capability::Perfmon, Capability::SysNice],
        required: false,
    },
];

impl Need {
    /// What of it this process lacks.
    pub(crate) fn lacking(&self, own: Rights) -> Vec<Capability> {
        let wanted = self.capabilities.iter().copied();
        wanted.filter(|c| !own.covers(*c)).collect()
    }
}

/// Names, as in a sentence.
pub(crate) fn list(capabilities: &[Capability]) -> String {
    let names: Vec<_> = capabilities.iter().map(|c| c.as_str()).collect();
    match names.as_slice() {
        [] => "none".to_owned(),
        [one] => (*one).to_owned(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

/// The argument of `setcap` that gives a program these.
pub(crate) fn file_form(capabilities: &[Capability]) -> String {
    let names: Vec<_> = capabilities
        .iter()
        .map(|c| c.as_str().to_lowercase())
        .collect();
    format!("{}=p", names.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_listed_as_in_a_sentence() {
        let three = [Capability::Bpf, Capability::Perfmon, Capability::SysPtrace];
        assert_eq!(list(&three), "CAP_BPF, CAP_PERFMON and CAP_SYS_PTRACE");
        assert_eq!(list(&three[..1]), "CAP_BPF");
        assert_eq!(file_form(&three[..2]), "cap_bpf,cap_perfmon=p");
    }
}
