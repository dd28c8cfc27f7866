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
    /// The process ended while the recorder made ready.
    #[error("{0} ended before it could be recorded")]
    Ended(String),
    /// The process is a part of the kernel.
    #[error("process {0} is a kernel thread: it has no memory of its own")]
    KernelThread(Pid),
    /// The process has no memory any more.
    #[error("process {0} is ending: it has no memory any more")]
    Ending(Pid),
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
    /// Nothing can be attached to functions of programs.
    #[error("functions of programs cannot be probed: {0}")]
    NoProbes(String),
    /// There is no allocator whose operations could be counted.
    #[error("no allocator was found in {0}: no file that it has mapped defines malloc and free")]
    NoAllocator(String),
    /// Its functions take their arguments in another way.
    #[error("{0} is a 32-bit program: allocator operations are counted of 64-bit programs alone")]
    OtherBits(String),
    /// There may be one in an executable without names.
    #[error(
        "the allocator of {0} is a part of its executable, which has no symbols: its functions cannot be found"
    )]
    NamelessAllocator(String),
    /// The files of a process cannot be read.
    #[error("the allocator of {whose} was not found: {why}")]
    UnreadableAllocator {
        /// Whose it is.
        whose: String,
        /// Why.
        why: String,
    },
    /// The process confines itself, and this kernel would kill it.
    #[error(
        "process {0} confines itself (seccomp), and this kernel would kill it at the end of a probed function"
    )]
    Confined(Pid),
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
            RecordError::Ended(_) => {
                "`varve alloc record -- COMMAND` records a command from its beginning"
            }
            RecordError::NoProcess(_) => "`ps -e` lists the processes of this machine",
            RecordError::KernelThread(_) | RecordError::Ending(_) | RecordError::Ourselves(_) => {
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
            RecordError::NoProbes(_) => {
                "`varve alloc record -- COMMAND` counts by a library in the command's process; `varve doctor` says what this kernel has"
            }
            RecordError::NoAllocator(_) => {
                "a program that takes its memory from the kernel itself, as Go's do, has none"
            }
            RecordError::OtherBits(_) => "its pages are recorded all the same: `varve record`",
            RecordError::NamelessAllocator(_) => {
                "use one that was linked without -s, or stripped of debug information alone (strip --strip-debug)"
            }
            RecordError::UnreadableAllocator { .. } => {
                "processes of other users take CAP_SYS_PTRACE: run as root, with sudo, or give the capability"
            }
            RecordError::Confined(_) => {
                "`varve alloc record -- COMMAND` counts without that; newer kernels let it pass"
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
