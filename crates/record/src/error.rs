use std::io;

use varve_bpf::BpfError;
use varve_model::Pid;
use varve_sys::{Capability, CgroupError, SpawnError, TraceeError};
use varve_trace::TraceError;

/// Why nothing, or not everything, could be recorded.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The target did not start.
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    /// There is no such process.
    #[error("there is no process {0}")]
    NoProcess(Pid),
    /// The process is a part of the kernel.
    #[error("process {0} is a kernel thread: it has no memory of its own")]
    KernelThread(Pid),
    /// The recorder was asked to record itself or what it depends on.
    #[error(
        "process {0} is this recorder, or one of its parents, which cannot be held still by it"
    )]
    Ourselves(Pid),
    /// The process is in another recording.
    #[error("process {pid} is being recorded already, by process {recorder}")]
    Recorded {
        /// The process.
        pid: Pid,
        /// Who records it.
        recorder: Pid,
    },
    /// The process is in another recording, whose recorder cannot be seen from here.
    #[error("process {0} is being recorded already")]
    RecordedElsewhere(Pid),
    /// This recorder is a part of what another one records.
    #[error("this varve is itself being recorded, by process {0}")]
    Nested(Pid),
    /// The same, of a recorder that cannot be seen from here.
    #[error("this varve is itself being recorded")]
    NestedElsewhere,
    /// So few files may be open that the kernel's part cannot be loaded.
    #[error("this process may have {limit} files open, and a recording takes {needed} at least")]
    FewFiles {
        /// How many may be open.
        limit: u64,
        /// How many a recording takes.
        needed: u64,
    },
    /// A freezer was asked for, and none can be used.
    #[error("process {pid} cannot be held by a freezer: {why}")]
    Unfreezable {
        /// The process.
        pid: Pid,
        /// Why.
        why: String,
    },
    /// The process is somebody else's, or guards itself.
    #[error("process {pid} cannot be recorded: {deed}, which takes {needed}")]
    Denied {
        /// The process.
        pid: Pid,
        /// What cannot be done.
        deed: &'static str,
        /// What would allow it.
        needed: Capability,
    },
    /// Writes were asked for and cannot be distinguished from reads.
    #[error(
        "writes cannot be distinguished from reads: this kernel has no soft-dirty bits, and {0}"
    )]
    NoWrites(String),
    /// Accesses were to be trapped and cannot be.
    #[error("accesses cannot be trapped: {0}")]
    NoTraps(String),
    /// The kernel part.
    #[error(transparent)]
    Bpf(#[from] BpfError),
    /// The target could not be put where it can be held.
    #[error("the target cannot be held still: {0}")]
    Cgroup(#[from] CgroupError),
    /// The target could not be stopped.
    #[error(transparent)]
    Tracee(#[from] TraceeError),
    /// The trace could not be written.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The emulator under which accesses are counted is not there.
    #[error("{0} is not installed: accesses are counted by running the program in it")]
    NoEmulator(&'static str),
    /// The plugin for the emulator is not there.
    #[error("{0}, which counts the accesses, is not beside this program")]
    NoPlugin(&'static str),
    /// The program cannot be run by the emulator.
    #[error("{} cannot be counted: {why}", path.display())]
    Uncountable {
        /// The program.
        path: std::path::PathBuf,
        /// Why.
        why: &'static str,
    },
    /// A system call failed.
    #[error("cannot {action}: {source}")]
    System {
        /// What was being done.
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl RecordError {
    pub(crate) fn system(action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| RecordError::System { action, source }
    }

    /// What a person can do about it.
    fn hint(&self) -> Option<String> {
        let hint = match self {
            RecordError::Spawn(e) if e.exit_code() == 127 => {
                "check the spelling, or give the path of the program"
            }
            RecordError::Spawn(e) if e.exit_code() == 126 => "is it a program, and executable?",
            RecordError::NoProcess(_) => "`ps -e` lists the processes of this machine",
            RecordError::KernelThread(_) | RecordError::Ourselves(_) => {
                "give the id of a program that runs beside this one; `ps -e` lists them"
            }
            RecordError::Recorded { recorder, .. } => {
                return Some(format!("end that recording first: kill -INT {recorder}"));
            }
            RecordError::RecordedElsewhere(_) => {
                "end that recording first; `ps -C varve` lists the recorders of this machine"
            }
            RecordError::Denied { .. } => {
                "it belongs to another user or guards itself: run as root, with sudo, or give the capability; `varve doctor` says how"
            }
            RecordError::FewFiles { .. } => "raise the limit: ulimit -n 1024",
            RecordError::Unfreezable { .. } => {
                "`--hold auto` holds by ptrace what no freezer can hold"
            }
            RecordError::Nested(_) | RecordError::NestedElsewhere => {
                "record from outside: children are followed unless --no-follow is given"
            }
            RecordError::Cgroup(CgroupError::NotMounted) => {
                "mount it with `mount -t cgroup2 none /sys/fs/cgroup/unified`, or run `varve doctor`"
            }
            RecordError::Tracee(TraceeError::Traced { tracer, .. }) => {
                return Some(format!("end the debugger first (process {tracer})"));
            }
            RecordError::Tracee(TraceeError::Refused { .. }) => {
                "processes of other users take CAP_SYS_PTRACE: run as root, with sudo, or give the capability; `varve doctor` says how"
            }
            RecordError::Tracee(_) => "`varve doctor` says more",
            RecordError::Cgroup(_) => {
                "run as root, or in a cgroup v2 of this user's own; `--hold ptrace` does without"
            }
            RecordError::NoWrites(_) => {
                "without `--writes on` everything else is recorded; `varve doctor` says what this kernel has"
            }
            RecordError::NoTraps(_) => {
                "`--backend scan` finds the same pages; `varve doctor` says what is missing (Linux 6.8 or later; CAP_SYS_PTRACE and CAP_DAC_OVERRIDE, or root)"
            }
            RecordError::NoEmulator(_) => "install Debian's package: apt-get install qemu-user",
            RecordError::NoPlugin(_) => {
                "build it with `cargo build --release -p varve-qemu-counter`, or name it in VARVE_QEMU_COUNTER"
            }
            RecordError::Uncountable { .. } => {
                "give a program for x86-64, or a script for one, without setuid and setgid bits"
            }
            RecordError::System { source, .. }
                if source.kind() == io::ErrorKind::PermissionDenied =>
            {
                "processes of other users, set-user-ID programs and those that their user may not read take root, or CAP_SYS_PTRACE and CAP_DAC_OVERRIDE"
            }
            RecordError::Trace(e) => return e.hint().map(str::to_owned),
            _ => return None,
        };
        Some(hint.to_owned())
    }

    /// The sentence and the hint, apart.
    pub fn message(&self) -> (String, Option<String>) {
        let (what, hint) = crate::doctor::split_hint(&self.to_string());
        (what, hint.or_else(|| self.hint()))
    }

    /// The exit code of `varve record`.
    pub fn exit_code(&self) -> u8 {
        match self {
            RecordError::Spawn(e) => e.exit_code(),
            _ => 125,
        }
    }
}
