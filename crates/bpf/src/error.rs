//! What can go wrong, as sentences

use varve_model::Pid;

/// Why the kernel part cannot do what was asked
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BpfError {
    /// Not allowed to load programs: this process lacks capabilities
    #[error(
        "not allowed to load BPF programs: this process lacks {0} (hint: run as root, with sudo, or give what is missing; `varve doctor` says how)"
    )]
    NoPrivilege(String),
    /// Not allowed to load programs, although nothing is missing
    #[error(
        "not allowed to load BPF programs, although this process has CAP_BPF and CAP_PERFMON (hint: a container's seccomp filter or user namespace, a security module or kernel lockdown forbids it; record from outside of the container)"
    )]
    Forbidden,
    /// The kernel does not describe its types
    #[error(
        "this kernel has no type information at /sys/kernel/btf/vmlinux (hint: it needs CONFIG_DEBUG_INFO_BTF=y, which stock distribution kernels have)"
    )]
    NoBtf,
    /// The verifier said no
    #[error("the kernel's verifier refused the program {program}: {log}")]
    Verifier {
        /// Name of the program
        program: String,
        /// The end of its log
        log: String,
    },
    /// A needed program could not be loaded for another reason
    #[error("could not load the BPF programs: {0}")]
    Load(String),
    /// A tracepoint that a feature needs is missing
    #[error("the kernel has no tracepoint {0}")]
    MissingTracepoint(String),
    /// The direct map was not found
    #[error("could not find where the kernel maps physical memory: {0}")]
    Calibration(String),
    /// No such process, or it has no memory of its own
    #[error("process {0} does not exist or has no memory")]
    NoProcess(Pid),
    /// The process ended or ran a new program while its memory was read
    #[error("the memory of process {0} went away while it was read")]
    MemoryGone(Pid),
    /// A map operation failed
    #[error("BPF map {map}: {source}")]
    Map {
        /// Name of the map
        map: &'static str,
        /// What the kernel said
        source: std::io::Error,
    },
    /// Probes could not be attached to the functions of a file
    #[error("cannot probe {}: {why}", path.display())]
    Probe {
        /// The file
        path: std::path::PathBuf,
        /// What the kernel said
        why: String,
    },
    /// A record of the ring buffer makes no sense
    #[error("a record of the ring buffer is malformed: kind {kind}, {bytes} bytes")]
    Record {
        /// Kind number
        kind: u32,
        /// Its size
        bytes: usize,
    },
    /// Another system call failed
    #[error("{what}: {source}")]
    System {
        /// What was tried
        what: &'static str,
        /// What the kernel said
        source: std::io::Error,
    },
}
