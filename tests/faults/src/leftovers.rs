//! What a recorder leaves in the system: cgroups, rings, processes.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::stage::MARK;
use crate::stat::stat;

/// Where cgroup v2 is mounted.
pub fn cgroup_root() -> PathBuf {
    let mounts = fs::read_to_string("/proc/self/mounts").expect("the list of mounts");
    let line = mounts
        .lines()
        .find(|l| l.split(' ').nth(2) == Some("cgroup2"));
    let mount = line.and_then(|l| l.split(' ').nth(1));
    PathBuf::from(mount.expect("cgroup v2 is mounted"))
}

/// The cgroup folder that a process is in.
pub fn cgroup_of(pid: u32) -> Option<PathBuf> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let inside = text.lines().find_map(|l| l.strip_prefix("0::"))?;
    Some(cgroup_root().join(inside.trim_start_matches('/')))
}

/// Whether a cgroup is frozen, or was asked to freeze.
pub fn is_frozen(cgroup: &Path) -> bool {
    fs::read_to_string(cgroup.join("cgroup.freeze")).is_ok_and(|t| t.trim() == "1")
}

/// The cgroups of a recorder, wherever they are.
pub fn recorder_cgroups(recorder: u32) -> Vec<PathBuf> {
    let name = format!("varve-{recorder}");
    let mut found = Vec::new();
    let mut open = vec![cgroup_root()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|t| t.is_dir()) {
                if entry.file_name().to_string_lossy() == name {
                    found.push(entry.path());
                }
                open.push(entry.path());
            }
        }
    }
    found
}

/// The folders of rings of a recorder.
pub fn ring_folders(recorder: u32) -> Vec<PathBuf> {
    let prefix = format!("varve-{recorder}-");
    ["/dev/shm", "/tmp"]
        .iter()
        .flat_map(|base| fs::read_dir(base).into_iter().flatten().flatten())
        .filter(|e| e.file_name().to_string_lossy().starts_with(&prefix))
        .map(|e| e.path())
        .collect()
}

/// The folder in which a recorder's socket lies, once it does. Only who may list the one above it finds it.
pub fn socket_folder(recorder: u32) -> Option<PathBuf> {
    let above = ring_folders(recorder);
    let below = above.iter().flat_map(fs::read_dir).flatten();
    below
        .flatten()
        .map(|entry| entry.path())
        .find(|f| f.join("s").exists())
}

/// The watchdogs of a recorder, the first first: the one is its child, the other names it.
pub fn watchdogs(recorder: u32) -> Vec<u32> {
    let words = |pid: &u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words = line
            .split(|b| *b == 0)
            .map(|w| String::from_utf8_lossy(w).into_owned());
        words.collect::<Vec<_>>()
    };
    let is_watchdog = |pid: &u32| words(pid).get(1).is_some_and(|w| w == "watchdog");
    let parent = |pid: &u32| stat(pid).map(|stat| stat.parent);
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    let all: Vec<u32> = pids.filter(is_watchdog).collect();
    let is_second = |pid: &&u32| {
        words(pid)
            .get(3)
            .is_some_and(|w| *w == recorder.to_string())
    };
    let is_first = |pid: &&u32| {
        words(pid).get(2).is_none_or(String::is_empty) && parent(pid) == Some(recorder)
    };
    let first = all.iter().filter(is_first);
    first.chain(all.iter().filter(is_second)).copied().collect()
}

/// The processes that carry a [`MARK`]; zombies have no environment and do not count.
pub fn marked_processes(mark: &str) -> Vec<u32> {
    let wanted = format!("{MARK}={mark}").into_bytes();
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    pids.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok())
        .filter(|pid| {
            fs::read(format!("/proc/{pid}/environ"))
                .is_ok_and(|e| e.split(|b| *b == 0).any(|v| v == wanted))
        })
        .collect()
}

/// Thaws a cgroup, empties it into the one above and removes it.
pub(crate) fn dissolve(cgroup: &Path) {
    // Never makes a file where the group is gone.
    let put = |path: PathBuf, text: &str| {
        let file = fs::File::options().write(true).open(path);
        let _ = file.and_then(|mut file| file.write_all(text.as_bytes()));
    };
    put(cgroup.join("cgroup.freeze"), "0");
    for _ in 0..50 {
        let pids = fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default();
        for pid in pids.lines() {
            put(cgroup.join("../cgroup.procs"), pid);
        }
        if fs::remove_dir(cgroup).is_ok() || !cgroup.exists() {
            return;
        }
    }
}
