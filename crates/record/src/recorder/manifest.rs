//! The manifest with which a recording begins.

use varve_model::{Backend, Capability};
use varve_sys::monotonic_now;
use varve_trace::{
    Clock, Features, MACHINE_UNKNOWN, Machine, Manifest, Options, Target as TargetNote,
};

use crate::{Ablation, RecordOptions, TargetChoice};

/// Who records what, how and on what machine; nothing is lost yet and nothing has ended.
pub(crate) fn new_manifest(options: &RecordOptions) -> Manifest {
    let facts = varve_sys::facts();
    let (command, attached) = match &options.target {
        TargetChoice::Command(command) => {
            let words = command.iter().map(|w| w.to_string_lossy().into_owned());
            (words.collect(), false)
        }
        TargetChoice::Attach(_) => (Vec::new(), true),
    };
    Manifest {
        // Probes add theirs.
        capabilities: Capability::RECORDED.into(),
        recorder_pid: Some(std::process::id()),
        target: TargetNote {
            command,
            pid: 0,
            attached,
            exit_code: None,
        },
        options: Options {
            interval: options.interval,
            follow: options.follow,
            delay_ns: options.delay,
            min_object_bytes: options.min_object,
            max_hold_ns: options.scans().then_some(options.max_hold),
            thp_never: options.thp == varve_sys::ThpPolicy::Never,
            without: options
                .without
                .iter()
                .map(|a| a.as_str().to_owned())
                .collect(),
        },
        features: Features {
            writes: None,
            page_flags: !options.lacks(Ablation::PageFlags),
            // These are the probes' to say, and the first boundary's.
            hold: String::new(),
            objects: None,
            vanish: None,
        },
        machine: Machine {
            kernel: facts.kernel,
            architecture: facts.architecture,
            cpu: facts.cpu.unwrap_or_else(|| MACHINE_UNKNOWN.to_owned()),
            cpus: facts.cpus,
            memory_bytes: facts.memory,
            nodes: facts.nodes,
        },
        clock: Clock {
            start_ns: monotonic_now(),
            end_ns: monotonic_now(),
            start_unix_ns: varve_sys::realtime_now(),
            unit: Default::default(),
        },
        ..Manifest::begun(Backend::Scan)
    }
}

/// What is to be said of connections that were refused: how many were strangers', and how many of recorded processes.
pub(super) fn note_of_refusals((strangers, recorded): (u64, u64)) -> Option<String> {
    let mut parts = Vec::new();
    if strangers > 0 {
        parts.push(format!("{strangers} of processes that are not recorded"));
    }
    if recorded > 0 {
        parts.push(format!(
            "{recorded} of recorded processes, which asked twice or not as the library does"
        ));
    }
    let parts = parts.join(", and ");
    (!parts.is_empty())
        .then(|| format!("Connections to the recorder's socket that were refused: {parts}."))
}
