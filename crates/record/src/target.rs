//! The target: started in a cgroup of its own, or moved into one.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use varve_agent_ring::{
    CAPACITY_VARIABLE, DIRECTORY_VARIABLE, MIN_OBJECT_VARIABLE, TRAPS_VARIABLE, WRITES_VARIABLE,
};
use varve_bpf::{Kernel, TrackFlags};
use varve_model::Pid;
use varve_sys::{Cgroup, Child, Launch, PidFd, Signals};

use crate::guardian::Guardian;
use crate::hold::{Hold, HoldChoice};
use crate::preflight::gains_rights;
use crate::{Ablation, RecordError, RecordOptions, SamplesChoice, TrapsChoice};

/// Size of the preload library's ring in each process.
const RING_BYTES: usize = 4 << 20;

/// The process that is recorded, with its descendants.
pub(crate) struct Target {
    pub(crate) pid: Pid,
    /// Our own child, where we started it.
    pub(crate) child: Option<Child>,
    pub(crate) ended: PidFd,
    pub(crate) cgroup: Hold,
    /// Where each process that was joined came from.
    origins: BTreeMap<Pid, PathBuf>,
}

fn track_flags(options: &RecordOptions, stacks: bool) -> TrackFlags {
    let mut flags = TrackFlags::DEFAULT;
    if !options.follow {
        flags = flags.without(TrackFlags::FOLLOW);
    }
    if options.lacks(Ablation::Vanish) {
        flags = flags.without(TrackFlags::VANISH);
    }
    if stacks {
        flags = flags | TrackFlags::STACKS;
    }
    if options.samples != SamplesChoice::Off {
        flags = flags | TrackFlags::SAMPLES;
    }
    if options.traps != TrapsChoice::Off {
        flags = flags | TrackFlags::SERVANTS;
    }
    flags
}

impl Target {
    /// Starts a command up to just before its exec.
    pub(crate) fn prepare(
        command: &[OsString],
        rings: Option<&Path>,
        options: &RecordOptions,
        kernel: &Kernel,
        signals: &Signals,
        guardian: &mut Guardian,
    ) -> Result<Target, RecordError> {
        let cgroup = match options.hold {
            HoldChoice::Cgroup => {
                let own = Cgroup::of(Pid(std::process::id()))?;
                Some(make_cgroup(&own, guardian)?)
            }
            HoldChoice::Ptrace => None,
        };
        let preload = rings.zip(options.preload.as_deref());
        let environment = preload.map_or_else(Vec::new, |(rings, library)| {
            let mut variables = vec![
                ("LD_PRELOAD", with_preload(library)),
                (DIRECTORY_VARIABLE, rings.as_os_str().to_owned()),
                (MIN_OBJECT_VARIABLE, options.min_object.0.to_string().into()),
                (CAPACITY_VARIABLE, RING_BYTES.to_string().into()),
            ];
            if kernel.guards_writes() {
                variables.push((WRITES_VARIABLE, "1".into()));
            }
            if options.traps != TrapsChoice::Off {
                variables.push((TRAPS_VARIABLE, "1".into()));
            }
            variables
        });
        let child = Child::prepare(
            &Launch {
                command,
                environment: &environment,
                thp: options.thp,
            },
            signals,
        )?;
        let pid = child.pid();
        let cgroup = match cgroup {
            Some(cgroup) => Hold::Cgroup(cgroup),
            None => Hold::by_ptrace(kernel.tracked()?, pid),
        };
        cgroup.add(pid)?;
        kernel.track(
            pid,
            track_flags(
                options,
                preload.is_none() || is_static(command) || gains_rights(command),
            ),
        )?;
        Ok(Target {
            pid,
            child: Some(child),
            ended: PidFd::open(pid).map_err(RecordError::system("watch the target"))?,
            cgroup,
            origins: BTreeMap::new(),
        })
    }

    /// Joins a process that runs already, with its descendants.
    pub(crate) fn join(
        pid: Pid,
        options: &RecordOptions,
        kernel: &Kernel,
        guardian: &mut Guardian,
    ) -> Result<Target, RecordError> {
        let ended = PidFd::open(pid).map_err(|_| RecordError::NoProcess(pid))?;
        // Once more: the kernel part took its time, and much can have happened.
        crate::preflight::check_process(pid)?;
        let cgroup = match options.hold {
            HoldChoice::Cgroup => Hold::Cgroup(make_cgroup(&Cgroup::of(pid)?, guardian)?),
            HoldChoice::Ptrace => Hold::by_ptrace(kernel.tracked()?, pid),
        };
        let mut target = Target {
            pid,
            child: None,
            ended,
            cgroup,
            origins: BTreeMap::new(),
        };
        let joined = target.join_one(pid, options, kernel).and_then(|()| {
            if options.follow {
                target.join_descendants(options, kernel)
            } else {
                Ok(())
            }
        });
        match joined {
            Ok(()) => Ok(target),
            Err(error) => {
                target.release();
                Err(error)
            }
        }
    }

    fn join_one(
        &mut self,
        pid: Pid,
        options: &RecordOptions,
        kernel: &Kernel,
    ) -> Result<(), RecordError> {
        // Tracked first: from then on its children are, and they are born in its cgroup.
        kernel.track(pid, track_flags(options, true))?;
        if self.cgroup.path().is_some()
            && let Ok(origin) = Cgroup::of(pid)
        {
            self.origins.insert(pid, origin);
        }
        self.cgroup.add(pid)
    }

    fn join_descendants(
        &mut self,
        options: &RecordOptions,
        kernel: &Kernel,
    ) -> Result<(), RecordError> {
        // Repeated until a round finds nobody new: processes are made while we look.
        loop {
            let known = self.cgroup.processes()?;
            let children = known.iter().flat_map(|p| varve_sys::children_of(*p));
            let fresh: Vec<Pid> = children
                .filter(|c| !known.contains(c) && !is_ancestor_of_ours(*c))
                .collect();
            if fresh.is_empty() {
                return Ok(());
            }
            for pid in fresh {
                match self.join_one(pid, options, kernel) {
                    // It ended meanwhile.
                    Err(_) if PidFd::open(pid).map_or(true, |p| p.has_ended()) => {}
                    other => other?,
                }
            }
        }
    }

    /// Puts the processes that were joined back where they were.
    pub(crate) fn release(&mut self) {
        let _ = self.cgroup.thaw();
        for (pid, origin) in std::mem::take(&mut self.origins) {
            if Some(origin.as_path()) != self.cgroup.path() {
                let _ = std::fs::write(origin.join("cgroup.procs"), pid.to_string());
            }
        }
    }
}

fn make_cgroup(parent: &Path, guardian: &mut Guardian) -> Result<Cgroup, RecordError> {
    let name = format!("varve-{}", std::process::id());
    // The guardian knows of it before it exists, so that there is no moment without care.
    guardian.watch_cgroup(&parent.join(&name), parent)?;
    Ok(Cgroup::create(parent, &name)?)
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
        return path.is_file() && !varve_attribute::loads_libraries(path) && !is_script(path);
    }
    let search = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&search)
        .map(|folder| folder.join(program))
        .find(|p| p.is_file())
        .is_some_and(|p| !varve_attribute::loads_libraries(&p) && !is_script(&p))
}

fn is_script(path: &Path) -> bool {
    let mut head = [0u8; 2];
    let read =
        std::fs::File::open(path).and_then(|mut f| std::io::Read::read_exact(&mut f, &mut head));
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
