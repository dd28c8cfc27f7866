//! Which processes are recorded.

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::path::Path;

use varve_model::{Pid, visible};
use varve_sys::{exe, start_ticks, status};

use super::super::super::Failure;
use super::{Repeated, wrong};

/// The kernel keeps so many bytes of a thread's name.
const MAX_COMM: usize = 15;
const CGROUPS: &str = "/sys/fs/cgroup";

/// What is said of processes that are to be recorded.
#[derive(Debug)]
pub(super) enum Selector {
    /// This one, and no other that has its number later.
    Process { pid: Pid, started: u64 },
    /// Those whose program is called so.
    Name(String),
    /// Those of a systemd unit.
    Unit(String),
    /// Those of a cgroup and below.
    Cgroup(String),
}

/// A process to record.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) pid: Pid,
    name: String,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} ({})", self.pid, visible(&self.name))
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Selector::Process { pid, .. } => write!(f, "process {pid}"),
            Selector::Name(name) => write!(f, "processes called {}", visible(name)),
            Selector::Unit(unit) => write!(f, "processes of the unit {}", visible(unit)),
            Selector::Cgroup(path) => write!(f, "processes of the cgroup {}", visible(path)),
        }
    }
}

impl Selector {
    pub(super) fn new(pid: Option<u32>, repeated: &Repeated) -> Result<Selector, Failure> {
        match (pid, &repeated.name, &repeated.unit, &repeated.cgroup) {
            (Some(pid), None, None, None) => {
                let pid = Pid(pid);
                let started = start_ticks(pid).map_err(|_| {
                    Failure::new(
                        format!("there is no process {pid}"),
                        Some("`pgrep NAME` finds processes"),
                    )
                })?;
                Ok(Selector::Process { pid, started })
            }
            (None, Some(name), None, None) => match name.rsplit_once('/') {
                Some((_, file)) => Err(wrong(
                    format!(
                        "`--name {}` is a path: no program is called so",
                        visible(name)
                    ),
                    &match file {
                        "" => {
                            "give the name of the program's file, such as redis-server".to_owned()
                        }
                        file => format!("give the name of its file, `--name {}`", visible(file)),
                    },
                )),
                None if name.is_empty() => Err(wrong(
                    "`--name` is empty",
                    "give the name of the program's file, such as redis-server",
                )),
                None => Ok(Selector::Name(name.clone())),
            },
            (None, None, Some(unit), None) => Ok(Selector::Unit(match unit.contains('.') {
                true => unit.clone(),
                false => format!("{unit}.service"),
            })),
            (None, None, None, Some(path)) => Ok(Selector::Cgroup(cgroup(path))),
            _ => Err(wrong(
                "`--every` needs to know what to record, in one way",
                "give one of `-p PID`, `--name NAME`, `--unit UNIT` and `--cgroup PATH`",
            )),
        }
    }

    /// How names are matched, for who waits in vain.
    pub(super) fn how_it_matches(&self) -> &'static str {
        match self {
            Selector::Name(name) if name.contains(['*', '?', '[']) => {
                " (the name is matched exactly: *, ? and [ stand for themselves)"
            }
            Selector::Name(_) => {
                " (the name of the program's file, or of its first thread, is matched exactly)"
            }
            Selector::Process { .. } | Selector::Unit(_) | Selector::Cgroup(_) => "",
        }
    }

    /// Whether no process can match any more.
    pub(super) fn is_over(&self) -> bool {
        matches!(self, Selector::Process { .. })
    }

    /// The processes that match now, but for descendants of others that do: those are recorded with them. The same order each
    /// time. None of Varve's own.
    pub(super) fn find(&self) -> Vec<Found> {
        if let Selector::Process { pid, started } = self {
            let is_it = start_ticks(*pid).is_ok_and(|now| now == *started) && exe(*pid).is_ok();
            return is_it.then(|| found(*pid)).flatten().into_iter().collect();
        }
        let own = fs::read_link("/proc/self/exe").ok();
        let parents: HashMap<Pid, Pid> = processes()
            .filter_map(|pid| Some((pid, status(pid).ok()?.parent)))
            .collect();
        let is_wanted = |pid: &Pid| {
            // What has no executable is a thread of the kernel, or has ended.
            exe(*pid).is_ok_and(|exe| Some(&exe) != own.as_ref()) && self.matches(*pid)
        };
        let mut wanted: Vec<Pid> = parents.keys().copied().filter(is_wanted).collect();
        wanted.sort_unstable();
        let is_below = |pid: Pid| {
            let mut above = parents.get(&pid);
            // A chain of parents that were read one after the other could have a circle.
            for _ in 0..parents.len() {
                let Some(parent) = above else { break };
                if wanted.binary_search(parent).is_ok() {
                    return true;
                }
                above = parents.get(parent);
            }
            false
        };
        let roots = wanted.iter().copied().filter(|pid| !is_below(*pid));
        roots.filter_map(found).collect()
    }

    fn matches(&self, pid: Pid) -> bool {
        match self {
            Selector::Process { pid: wanted, .. } => pid == *wanted,
            Selector::Name(name) => is_called(pid, name),
            Selector::Unit(unit) => {
                cgroups(pid).any(|path| path.split('/').any(|part| part == unit))
            }
            Selector::Cgroup(wanted) => cgroups(pid).any(|path| is_below(&path, wanted)),
        }
    }
}

fn processes() -> impl Iterator<Item = Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok().map(Pid))
}

fn found(pid: Pid) -> Option<Found> {
    let name = status(pid).ok()?.name;
    Some(Found { pid, name })
}

/// By the name of its file, or that of its first thread.
fn is_called(pid: Pid, name: &str) -> bool {
    let file = exe(pid).ok().and_then(|path| {
        let name = path.file_name()?.to_str()?.to_owned();
        // The kernel says so of a file that was replaced.
        Some(name.strip_suffix(" (deleted)").unwrap_or(&name).to_owned())
    });
    if file.is_some_and(|file| file == name) {
        return true;
    }
    let comm = &name.as_bytes()[..name.len().min(MAX_COMM)];
    status(pid).is_ok_and(|status| status.name.as_bytes() == comm)
}

/// Those that it is in, one for each hierarchy: cgroups(7).
fn cgroups(pid: Pid) -> impl Iterator<Item = String> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let paths: Vec<String> = text
        .lines()
        .filter_map(|line| line.splitn(3, ':').nth(2).map(str::to_owned))
        .collect();
    paths.into_iter()
}

/// As `/proc/PID/cgroup` has it.
fn cgroup(path: &Path) -> String {
    let text = match path.strip_prefix(CGROUPS) {
        // In version 1 each hierarchy has a folder of its own, and in version 2 the folders are cgroups.
        Ok(below) if !Path::new(CGROUPS).join("cgroup.procs").exists() => {
            below.components().skip(1).collect::<std::path::PathBuf>()
        }
        Ok(below) => below.to_owned(),
        Err(_) => path.to_owned(),
    };
    let text = text.to_string_lossy();
    format!("/{}", text.trim_matches('/'))
}

fn is_below(path: &str, cgroup: &str) -> bool {
    let rest = path.strip_prefix(cgroup.trim_end_matches('/'));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cgroup_has_what_is_below_it() {
        assert!(is_below("/a/b", "/a/b") && is_below("/a/b/c", "/a/b") && is_below("/x", "/"));
        assert!(!is_below("/a/bc", "/a/b") && !is_below("/a", "/a/b"));
        assert_eq!(
            cgroup(Path::new("/system.slice/x.service/")),
            "/system.slice/x.service"
        );
    }

    #[test]
    fn what_is_no_name_is_refused() {
        let named = |name: &str| {
            let repeated = Repeated {
                name: Some(name.to_owned()),
                ..Repeated::default()
            };
            Selector::new(None, &repeated)
        };
        let refused = named("/usr/bin/redis-server").unwrap_err();
        assert_eq!(refused.code, 2);
        assert!(refused.hint.unwrap().contains("`--name redis-server`"));
        assert!(named("").is_err());
        let pattern = named("redis*").unwrap();
        assert!(pattern.how_it_matches().contains("stand for themselves"));
        assert_eq!(
            Selector::new(None, &Repeated::default()).unwrap_err().code,
            2
        );
    }

    #[test]
    fn this_process_is_no_target() {
        let name = status(Pid(std::process::id())).unwrap().name;
        let own = Pid(std::process::id());
        assert!(is_called(own, &name));
        let all = Selector::Name(name).find();
        assert!(all.iter().all(|found| found.pid != own), "{all:?}");
    }
}
