//! Whose an object is, where a name that the kernel gives says it of every process.

use std::collections::{HashMap, HashSet};

use varve_model::{ObjectKind, Pid};
use varve_trace::tables::{ObjectRow, ProcessRow, ThreadRow};

/// Adds the process to the names of stacks and of the kernel's heap where the trace has several processes:
/// `main stack of 4711 (postgres)`.
pub(crate) fn say_whose(
    rows: &mut [ObjectRow],
    processes: &[ProcessRow],
    threads: impl Iterator<Item = ThreadRow>,
) {
    let pids: HashSet<Pid> = processes.iter().map(|p| p.pid).collect();
    if pids.len() < 2 {
        return;
    }
    let mut names: HashMap<Pid, String> = HashMap::new();
    for process in processes {
        let name = process.exe.rsplit('/').next().unwrap_or_default();
        names.insert(process.pid, name.to_owned());
    }
    for thread in threads.filter(|t| t.pid.0 == t.tid.0 && !t.name.is_empty()) {
        names.insert(thread.pid, thread.name);
    }
    for row in rows {
        let of_kernel = row.kind == ObjectKind::Stack || row.name.starts_with("[heap]");
        if !of_kernel {
            continue;
        }
        // A copy that a fork left is said to be of the parent's.
        let word = match row.name.starts_with("copy of") {
            true => "in",
            false => "of",
        };
        match names.get(&row.pid).filter(|n| !n.is_empty()) {
            Some(name) => row.name += &format!(" {word} {} ({name})", row.pid),
            None => row.name += &format!(" {word} {}", row.pid),
        }
    }
}
