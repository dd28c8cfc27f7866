//! Names of code that processes generate while they run: what runtimes write for `perf`, read when a process ends or runs
//! another program, and of those that go on at the end of the recording.
//!
//! A process with executable memory of no file, private or shared, is met early, so that its root folder can still be reached when it is gone.
//! The files are `/tmp/perf-PID.map` there, with the number that the process has for itself, and `jit-PID.dump`, which its
//! writer maps executable so that profilers hear of it (linux tools/perf/Documentation/jit-interface.txt and
//! jitdump-specification.txt).

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use varve_model::{Pid, Time};
use varve_symbols::{GeneratedFunction, is_memory, read_jitdump, read_perf_map};
use varve_sys::{FileIdentity, MapEntry, RootFolder};
use varve_trace::tables::GeneratedRow;
use varve_trace::{TraceError, TraceWriter};

use super::{Ending, Kind, Probe, Setup, Started, load_nothing};
use crate::RecordError;
use crate::state::State;
use crate::state::processes::MapsVersion;

pub(crate) const KIND: Kind = Kind {
    load: load_nothing,
    start,
};

/// The addresses of an emulated program are not those of the emulator's own generated code.
fn start(setup: &mut Setup<'_>) -> Result<Started, RecordError> {
    Ok(match setup.emulated {
        true => None,
        false => Some(Box::new(Generated::default())),
    })
}

/// Processes that are met at once; each takes a descriptor.
const MAX_PROCESSES: usize = 64;
/// Dumps of one process.
const MAX_DUMPS: usize = 4;
/// Functions that a recording keeps.
const MAX_FUNCTIONS: usize = 1 << 20;
/// How long a file system may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// A process that generates code.
struct Runtime {
    root: RootFolder,
    dumps: Vec<(PathBuf, FileIdentity)>,
}

/// The probe.
#[derive(Default)]
struct Generated {
    refreshed: HashMap<Pid, Option<MapsVersion>>,
    runtimes: HashMap<Pid, Runtime>,
    rows: Vec<GeneratedRow>,
    kept: usize,
}

/// Whether code may be generated there.
fn is_generated(entry: &MapEntry) -> bool {
    entry.perms.as_bytes().get(2) == Some(&b'x') && is_memory(&entry.path)
}

/// Whether a mapping says where a dump is.
fn is_dump(entry: &MapEntry) -> bool {
    let name = entry.path.rsplit('/').next().unwrap_or_default();
    entry.perms.as_bytes().get(2) == Some(&b'x')
        && entry.path.starts_with('/')
        && name.starts_with("jit-")
        && name.ends_with(".dump")
}

impl Generated {
    fn refresh(&mut self, state: &State) {
        let processes = &state.processes;
        self.refreshed
            .retain(|pid, _| processes.all.contains_key(pid));
        for pid in processes.all.keys() {
            let version = processes.maps_version(*pid);
            if self.refreshed.insert(*pid, version) == Some(version) {
                continue;
            }
            let mut dumps = Vec::new();
            let mut generates = false;
            for (entry, _) in processes.mappings(*pid) {
                generates |= is_generated(entry);
                if is_dump(entry) {
                    dumps.extend(entry.identity().map(|id| (PathBuf::from(&entry.path), id)));
                }
            }
            if !generates && dumps.is_empty() {
                continue;
            }
            if !self.runtimes.contains_key(pid) && self.runtimes.len() < MAX_PROCESSES {
                let Ok(root) = RootFolder::of(*pid) else {
                    continue;
                };
                // One that may be unmounted behind the process goes without names.
                if !root.may_stay_open(*pid) {
                    continue;
                }
                let runtime = Runtime {
                    root,
                    dumps: Vec::new(),
                };
                self.runtimes.insert(*pid, runtime);
            }
            let Some(runtime) = self.runtimes.get_mut(pid) else {
                continue;
            };
            for dump in dumps {
                if !runtime.dumps.contains(&dump) && runtime.dumps.len() < MAX_DUMPS {
                    runtime.dumps.push(dump);
                }
            }
        }
    }

    /// Reads what a process has written, which ends or goes on.
    fn read(&mut self, pid: Pid, until: Time) {
        self.refreshed.remove(&pid);
        let Some(runtime) = self.runtimes.remove(&pid) else {
            return;
        };
        let read = varve_sys::within(PATIENCE, move || Ok(runtime.functions()));
        let left = MAX_FUNCTIONS - self.kept;
        let rows = read.unwrap_or_default().into_iter().take(left);
        let before = self.rows.len();
        self.rows.extend(rows.map(|function| GeneratedRow {
            pid,
            until_ns: until,
            address: function.address,
            bytes: function.bytes,
            name: function.name,
        }));
        self.kept += self.rows.len() - before;
    }
}

impl Runtime {
    fn functions(&self) -> Vec<GeneratedFunction> {
        let name = format!("/tmp/perf-{}.map", self.root.own_number());
        let map = self.root.open_own(Path::new(&name), None);
        let map = map.and_then(read_perf_map);
        let mut all = map.unwrap_or_default();
        for (path, identity) in &self.dumps {
            let dump = self.root.open_own(path, Some(*identity));
            all.extend(dump.and_then(read_jitdump).unwrap_or_default());
        }
        all
    }
}

impl Probe for Generated {
    fn turn(&mut self, state: &mut State) {
        self.refresh(state);
    }

    fn image_ends(&mut self, pid: Pid, time: Time, state: &mut State) {
        // What shares its parent's memory until it runs another program has generated nothing.
        if state.processes.owner_of_memory(pid) == pid {
            self.read(pid, time);
        }
    }

    fn write(&mut self, writer: &mut TraceWriter) -> Result<(), TraceError> {
        writer.append(&self.rows)?;
        self.rows = Vec::new();
        Ok(())
    }

    fn end(&mut self, ending: &mut Ending<'_>) -> Result<(), RecordError> {
        self.refresh(ending.state);
        let pids: Vec<Pid> = self.runtimes.keys().copied().collect();
        for pid in pids {
            self.read(pid, Time(u64::MAX));
        }
        Ok(())
    }
}
