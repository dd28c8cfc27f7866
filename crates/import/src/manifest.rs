//! What the manifest of an imported trace says.

use std::path::Path;

use varve_model::Bytes;
use varve_trace::{
    Absent, Clock, Completeness, FORMAT_VERSION, Features, IntervalChoice, MACHINE_UNKNOWN,
    Machine, Manifest, Options, Overhead, State, Target,
};

use crate::detect::Format;
use crate::sink::{CUT_LINE, Written};

/// The manifest of an import that has begun.
pub(crate) fn begun<'a>(format: Format, files: impl Iterator<Item = &'a Path>) -> Manifest {
    let names: Vec<String> = files.map(|f| f.display().to_string()).collect();
    Manifest {
        format: "varve-trace".to_owned(),
        version: FORMAT_VERSION,
        varve: env!("CARGO_PKG_VERSION").to_owned(),
        state: State::Recording,
        backend: format!("import/{format}"),
        recorder_pid: None,
        target: Target::default(),
        options: Options {
            interval: IntervalChoice::None,
            follow: false,
            min_object_bytes: Bytes(0),
            thp_never: false,
            without: Vec::new(),
        },
        features: Features::default(),
        machine: Machine {
            kernel: MACHINE_UNKNOWN.to_owned(),
            architecture: MACHINE_UNKNOWN.to_owned(),
            cpu: MACHINE_UNKNOWN.to_owned(),
            cpus: 0,
            memory_bytes: Bytes(0),
            nodes: None,
        },
        clock: Clock::default(),
        completeness: Completeness {
            complete: false,
            statement: "The import has not ended.".to_owned(),
        },
        overhead: Overhead::default(),
        losses: Default::default(),
        modules: Vec::new(),
        samples: None,
        traps: None,
        absent: Vec::new(),
        notes: vec![format!("Imported from {}.", names.join(", "))],
    }
}

/// Fills in what is known at the end.
pub(crate) fn finish(manifest: &mut Manifest, written: &Written) {
    manifest.state = State::Finished;
    manifest.clock = Clock {
        start_ns: written.start,
        end_ns: written.end,
        start_unix_ns: 0,
        unit: written.traits.unit,
    };
    manifest.losses = written.losses.clone();
    let mut absent = vec![Absent::Resident, Absent::Faults, Absent::Overhead];
    if written.intervals == 0 {
        absent.push(Absent::Touches);
    }
    match &written.traits.machine {
        Some(machine) => manifest.machine = machine.clone(),
        None => absent.push(Absent::Machine),
    }
    absent.extend(written.traits.absent.iter().copied());
    absent.sort_unstable();
    absent.dedup();
    manifest.absent = absent;
    let mut names: Vec<&String> = written.commands.iter().filter(|c| !c.is_empty()).collect();
    names.dedup();
    if let [name] = names[..] {
        manifest.target.command = vec![name.clone()];
    }
    let what = match manifest.backend.as_str() {
        "import/lackey" => {
            "Imported: every access that Valgrind saw is there. Accesses by the kernel are not, nor is time."
        }
        "import/moca" => {
            "Imported: the first accesses to pages that Moca trapped. What it lost, it did not write down."
        }
        "import/tabarnac" => {
            "Imported: every access that TABARNAC counted is there, by page and thread. Accesses by the kernel are not, nor is time."
        }
        _ if written.touches > 0 => {
            "Imported: DAMON looks at one page of each region. Other pages were touched, and some of these were not."
        }
        _ => "Imported: samples. Most accesses are not among them.",
    };
    manifest.completeness.statement = what.to_owned();
    if let Some(&files) = written.losses.get(CUT_LINE) {
        manifest.completeness.statement += match files {
            1 => " The text ends within a line: it was cut, and what followed is missing.",
            _ => " Several texts end within a line: they were cut, and what followed is missing.",
        };
    }
}
