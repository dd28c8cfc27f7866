//! The target: started in a cgroup of its own, or joined where it is.

pub(crate) mod channel;
pub(crate) mod exchange;
pub(crate) mod layout;
pub(crate) mod preflight;
pub(crate) mod preload;
pub(crate) mod run_folder;

use std::ffi::OsString;
use std::path::Path;

use varve_bpf::{Kernel, TrackFlags, TrackedProcesses};
use varve_model::Pid;
use varve_sys::{Cgroup, Child, PidFd, Signals, TraceeError, tracer_of};

use crate::hold::watchdog::{Order, Watchdog};
use crate::hold::{FoundGroup, Hold, HoldChoice};
use crate::leftovers::PREFIX;
use crate::marker::Marker;
use crate::probes::Launch;
use crate::{RecordError, RecordOptions};

/// The process that is recorded, with its descendants.
pub(crate) struct Target {
    pub(crate) pid: Pid,
    /// Our own child, where we started it.
    pub(crate) child: Option<Child>,
    pub(crate) ended: PidFd,
    pub(crate) hold: Hold,
}

impl Target {
    /// Starts a command up to just before its exec.
    pub(crate) fn prepare(
        launch: &Launch,
        options: &RecordOptions,
        kernel: &Kernel,
        flags: TrackFlags,
        signals: &Signals,
        watchdog: &mut Watchdog,
    ) -> Result<Target, RecordError> {
        let made = match options.hold {
            // Who is emulated, or whose pages nobody reads, is never held.
            _ if !options.scans() => None,
            HoldChoice::Ptrace => None,
            _ => Some(make_cgroup(watchdog)),
        };
        let child = Child::prepare(
            &varve_sys::Launch {
                command: &launch.command,
                environment: &launch.environment,
                thp: options.thp,
            },
            signals,
        )?;
        let pid = child.pid();
        let entered = made.map(|made| {
            let made = made?;
            made.add(pid)?;
            Ok(made)
        });
        let hold = match (entered, options.hold) {
            (Some(Ok(made)), _) => Hold::in_made(made, kernel.tracked()?, pid),
            (Some(Err(why)), HoldChoice::Cgroup) => return Err(why),
            (Some(Err(why)), _) => {
                let why = match why {
                    RecordError::Cgroup(why) => why.to_string(),
                    other => other.to_string(),
                };
                Hold::by_ptrace(kernel.tracked()?, pid, Some(why))
            }
            (None, _) => Hold::by_ptrace(kernel.tracked()?, pid, None),
        };
        kernel.track(pid, flags)?;
        Ok(Target {
            pid,
            child: Some(child),
            ended: PidFd::open(pid).map_err(RecordError::system("watch the target"))?,
            hold,
        })
    }

    /// Joins a process that runs already, with its descendants. They stay where they are.
    pub(crate) fn join(
        pid: Pid,
        options: &RecordOptions,
        kernel: &Kernel,
        flags: TrackFlags,
        watchdog: &mut Watchdog,
    ) -> Result<Target, RecordError> {
        let ended = PidFd::open(pid).map_err(|_| RecordError::NoProcess(pid))?;
        // Once more: the kernel part took its time, and much can have happened.
        crate::target::preflight::check_process(pid)?;
        kernel.track(pid, flags)?;
        let tracked = kernel.tracked()?;
        if options.follow {
            join_descendants(&tracked, kernel, flags)?;
        }
        if tracked.list().into_iter().any(has_memory_open) {
            kernel.expect_memory_files()?;
        }
        let hold = match options.hold {
            // Whose pages nobody reads is never held.
            _ if !options.scans() => Hold::by_ptrace(tracked, pid, None),
            HoldChoice::Ptrace => Hold::by_ptrace(tracked, pid, None),
            choice => match FoundGroup::of(pid, &tracked) {
                Ok(found) => {
                    watchdog.order(&Order::Found(found.path().to_owned()))?;
                    Hold::in_found(found, tracked, pid)
                }
                Err(why) if choice == HoldChoice::Cgroup => {
                    return Err(RecordError::Unfreezable { pid, why });
                }
                Err(why) => Hold::by_ptrace(tracked, pid, Some(why)),
            },
        };
        let stops = options.scans() && hold.is_by_ptrace();
        if let (true, Some(tracer)) = (stops, tracer_of(pid)) {
            return Err(TraceeError::Traced { pid, tracer }.into());
        }
        // The number that was looked at and tracked is that process's as long as this has not been waited for.
        if ended.has_ended() {
            let _ = kernel.untrack(pid);
            return Err(RecordError::NoProcess(pid));
        }
        Ok(Target {
            pid,
            child: None,
            ended,
            hold,
        })
    }

    /// Lets everything run.
    pub(crate) fn release(&mut self) {
        let _ = self.hold.thaw();
    }
}

/// Whether a process has a file open that is the memory of a process, or may have.
fn has_memory_open(pid: Pid) -> bool {
    let Ok(open) = std::fs::read_dir(format!("/proc/{}/fd", pid.0)) else {
        return true;
    };
    open.flatten().any(|descriptor| {
        let file = std::fs::read_link(descriptor.path()).unwrap_or_default();
        let name = file.file_name().unwrap_or_default();
        ["mem", "environ", "cmdline"].iter().any(|n| name == *n)
    })
}

/// Tracks what a tracked process made before it was tracked.
fn join_descendants(
    tracked: &TrackedProcesses,
    kernel: &Kernel,
    flags: TrackFlags,
) -> Result<(), RecordError> {
    // Repeated until a round finds nobody new: processes are made while we look.
    loop {
        let known = tracked.list();
        let children = known.iter().flat_map(|p| varve_sys::children_of(*p));
        let fresh: Vec<Pid> = children
            .filter(|c| !known.contains(c) && !is_ancestor_of_ours(*c))
            .collect();
        if fresh.is_empty() {
            return Ok(());
        }
        for pid in fresh {
            kernel.track(pid, flags)?;
            // One that has ended is never forgotten by the kernel's part any more.
            if PidFd::open(pid).map_or(true, |p| p.has_ended()) {
                kernel.untrack(pid)?;
            }
        }
    }
}

/// Makes a cgroup below the recorder's own: without controllers, so that the limits of that one go on applying.
fn make_cgroup(watchdog: &mut Watchdog) -> Result<Cgroup, RecordError> {
    let own = Pid(std::process::id());
    let parent = Cgroup::of(own)?;
    let name = format!("{PREFIX}{own}");
    let mark = Marker::own().map_err(RecordError::system("read what this process is"))?;
    // The watchdog knows of it before it exists, so that there is no moment without care.
    watchdog.order(&Order::Made(parent.join(&name), parent.clone()))?;
    Ok(Cgroup::create(&parent, &name, &mark.text())?)
}

/// Ours goes first; what the caller preloads stays.
pub(crate) fn with_preload(library: &Path) -> OsString {
    let mut list = library.as_os_str().to_owned();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|o| !o.is_empty()) {
        list.push(":");
        list.push(others);
    }
    list
}

pub(crate) fn is_static(command: &[OsString]) -> bool {
    let Some(program) = command.first() else {
        return false;
    };
    let path = Path::new(program);
    if path.components().count() > 1 {
        return path.is_file() && loads_none(path);
    }
    let search = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&search)
        .map(|folder| folder.join(program))
        .find(|p| p.is_file())
        .is_some_and(|p| loads_none(&p))
}

fn loads_none(path: &Path) -> bool {
    use varve_symbols::{is_loader, loads_libraries};
    !loads_libraries(path) && !is_loader(path) && !is_script(path)
}

fn is_script(path: &Path) -> bool {
    let mut head = [0u8; 2];
    let read = varve_sys::open_regular(path)
        .and_then(|mut f| std::io::Read::read_exact(&mut f, &mut head));
    read.is_ok() && &head == b"#!"
}

pub(crate) fn is_ancestor_of_ours(pid: Pid) -> bool {
    let mut at = Pid(std::process::id());
    while at.0 > 1 {
        if at == pid {
            return true;
        }
        match varve_sys::status(at) {
            Ok(status) => at = status.parent,
            Err(_) => return false,
        }
    }
    pid.0 == 1
}
