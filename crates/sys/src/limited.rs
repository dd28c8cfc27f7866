//! A cgroup with a limit of memory, of cgroup v2 or, where memory is accounted there, of v1.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use varve_model::{Bytes, Pid};

/// Which limit of the kernel's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitKind {
    /// The program never has more (`memory.max`); where nothing can be taken from it, it is killed.
    Max,
    /// Who has more waits until some of it is taken (`memory.high`); cgroup v2 alone.
    High,
}

/// Why memory cannot be limited.
#[derive(Debug, thiserror::Error)]
pub enum LimitError {
    /// No file system of cgroups accounts memory.
    #[error("no cgroup file system that accounts memory is mounted")]
    NotMounted,
    /// There is none that this process may make groups in.
    #[error("no cgroup above this process hands the memory controller on to groups below it")]
    NotDelegated,
    /// The limit is one that only v2 has.
    #[error("cgroup v1 accounts memory on this machine, which has no memory.high")]
    NoHigh,
    /// A file of a group.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

impl LimitError {
    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            LimitError::NotMounted => "mount one: mount -t cgroup2 cgroup2 /sys/fs/cgroup",
            LimitError::NotDelegated => {
                "as root: echo +memory > /sys/fs/cgroup/cgroup.subtree_control; or run in a unit of systemd's with Delegate=yes"
            }
            LimitError::NoHigh => "use --limit max",
            LimitError::Io { .. } => {
                "run as root, or in a cgroup that was delegated to you (systemd-run --user --scope -p Delegate=yes)"
            }
        }
    }

    fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> LimitError {
        let path = path.to_owned();
        move |source| LimitError::Io {
            action,
            path,
            source,
        }
    }
}

/// Where groups can be made, and where this process is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitPlace {
    /// The group in which a new one is made.
    pub parent: PathBuf,
    /// The group of this process, to which others return.
    pub home: PathBuf,
    /// Whether it is cgroup v1.
    pub is_v1: bool,
}

impl LimitPlace {
    /// Finds it.
    ///
    /// # Errors
    /// Where memory cannot be limited here.
    pub fn find() -> Result<LimitPlace, LimitError> {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        place_in(&read("/proc/self/mountinfo"), &read("/proc/self/cgroup"))
    }

    /// What a new group is to be called, by its path.
    pub fn name(&self) -> PathBuf {
        let now = crate::monotonic_now().0;
        self.parent
            .join(format!("varve-tier-{}-{now:x}", std::process::id()))
    }
}

fn place_in(mounts: &str, groups: &str) -> Result<LimitPlace, LimitError> {
    let mount = |kind: &str, option: &str| {
        mounts.lines().find_map(|line| {
            let (before, after) = line.split_once(" - ")?;
            let mut after = after.split(' ');
            let is_it = after.next() == Some(kind)
                && (option.is_empty()
                    || after
                        .nth(1)
                        .is_some_and(|o| o.split(',').any(|o| o == option)));
            let path = before.split(' ').nth(4)?;
            is_it.then(|| PathBuf::from(path.replace("\\040", " ")))
        })
    };
    let group = |is_it: &dyn Fn(&str) -> bool| {
        groups.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next()?, parts.next()?);
            is_it(controllers).then(|| path.trim_start_matches('/').to_owned())
        })
    };
    if let (Some(root), Some(inside)) = (
        mount("cgroup", "memory"),
        group(&|c: &str| c.split(',').any(|c| c == "memory")),
    ) {
        let home = [root.join(&inside), root.clone()];
        let home = home.into_iter().find(|p| p.is_dir()).unwrap_or(root);
        return Ok(LimitPlace {
            parent: home.clone(),
            home,
            is_v1: true,
        });
    }
    let root = mount("cgroup2", "").ok_or(LimitError::NotMounted)?;
    let home = root.join(group(&str::is_empty).ok_or(LimitError::NotMounted)?);
    let hands_on = |path: &&Path| {
        let file = fs::read_to_string(path.join("cgroup.subtree_control"));
        path.starts_with(&root)
            && file.is_ok_and(|text| text.split_whitespace().any(|c| c == "memory"))
    };
    let parent = home.ancestors().find(hands_on);
    Ok(LimitPlace {
        parent: parent.ok_or(LimitError::NotDelegated)?.to_owned(),
        home: home.clone(),
        is_v1: false,
    })
}

/// A group with a limit, made by this process; emptied and removed on drop.
#[derive(Debug)]
pub struct LimitedGroup {
    path: PathBuf,
    place: LimitPlace,
}

impl LimitedGroup {
    /// Makes it at `path` ([`LimitPlace::name`]).
    ///
    /// # Errors
    /// Where it cannot be made, or the kernel refuses the limit.
    pub fn create(
        place: LimitPlace,
        path: PathBuf,
        kind: LimitKind,
        limit: Bytes,
    ) -> Result<LimitedGroup, LimitError> {
        if place.is_v1 && kind == LimitKind::High {
            return Err(LimitError::NoHigh);
        }
        fs::create_dir(&path).map_err(LimitError::io("create the cgroup", &path))?;
        let group = LimitedGroup { path, place };
        let name = match (group.place.is_v1, kind) {
            (true, _) => "memory.limit_in_bytes",
            (false, LimitKind::Max) => "memory.max",
            (false, LimitKind::High) => "memory.high",
        };
        let file = group.path.join(name);
        fs::write(&file, limit.0.to_string()).map_err(LimitError::io("write", &file))?;
        Ok(group)
    }

    /// Its folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The group to which its processes return.
    pub fn home(&self) -> &Path {
        &self.place.home
    }

    /// Moves a process into it.
    ///
    /// # Errors
    /// Where the kernel refuses that.
    pub fn add(&self, pid: Pid) -> Result<(), LimitError> {
        let file = self.path.join("cgroup.procs");
        fs::write(&file, pid.to_string()).map_err(LimitError::io("write", &file))
    }

    /// Its processes.
    pub fn members(&self) -> Vec<Pid> {
        members(&self.path)
    }

    /// What its processes have in memory.
    pub fn used(&self) -> Bytes {
        let name = match self.place.is_v1 {
            true => "memory.usage_in_bytes",
            false => "memory.current",
        };
        number_in(&self.path.join(name))
    }

    /// How often it had to be made smaller to stay within the limit.
    pub fn times_at_limit(&self) -> u64 {
        match self.place.is_v1 {
            true => number_in(&self.path.join("memory.failcnt")).0,
            false => {
                let text = fs::read_to_string(self.path.join("memory.events")).unwrap_or_default();
                let of = |name: &str| {
                    let line = text.lines().find_map(|l| l.strip_prefix(name));
                    line.and_then(|l| l.trim().parse().ok()).unwrap_or(0)
                };
                of("max ") + of("high ")
            }
        }
    }

    /// How many of its processes the kernel killed for want of memory.
    pub fn killed(&self) -> u64 {
        let name = match self.place.is_v1 {
            true => "memory.oom_control",
            false => "memory.events",
        };
        let text = fs::read_to_string(self.path.join(name)).unwrap_or_default();
        let line = text.lines().find_map(|l| l.strip_prefix("oom_kill "));
        line.and_then(|l| l.trim().parse().ok()).unwrap_or(0)
    }
}

impl Drop for LimitedGroup {
    fn drop(&mut self) {
        dissolve_limited(&self.path, &self.place.home);
    }
}

fn number_in(path: &Path) -> Bytes {
    let text = fs::read_to_string(path).unwrap_or_default();
    Bytes(text.trim().parse().unwrap_or(0))
}

fn members(path: &Path) -> Vec<Pid> {
    let text = fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
    text.lines()
        .filter_map(|line| line.trim().parse().ok().map(Pid))
        .collect()
}

/// Moves what is in a group to `home`, with what is in groups below it, and removes it. A watchdog does so too, so that it works on
/// paths alone and gives up silently.
pub fn dissolve_limited(path: &Path, home: &Path) {
    let of_varve = path
        .file_name()
        .is_some_and(|n| n.to_string_lossy().starts_with("varve-tier-"));
    if !of_varve {
        return;
    }
    // A process can fork between the reading and the moving.
    for _ in 0..200 {
        for pid in members(path) {
            let _ = fs::write(home.join("cgroup.procs"), pid.to_string());
        }
        match fs::remove_dir(path) {
            Ok(()) => return,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return,
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_accounted_by_v1_where_that_has_the_controller() {
        let mounts = "35 30 0:31 / /nowhere/memory rw shared:9 - cgroup cgroup rw,memory\n\
                      36 30 0:32 / /nowhere/unified rw - cgroup2 cgroup2 rw\n";
        let found = place_in(mounts, "4:memory:/a/b\n0::/\n").unwrap();
        assert!(found.is_v1);
        assert_eq!(found.parent, Path::new("/nowhere/memory"));
        // Without it, v2 is asked, which hands nothing on there.
        let refused = place_in(mounts, "4:cpu:/a\n0::/\n");
        assert!(matches!(refused, Err(LimitError::NotDelegated)));
        assert!(matches!(
            place_in("", "0::/\n"),
            Err(LimitError::NotMounted)
        ));
    }

    #[test]
    fn nothing_but_its_own_is_dissolved() {
        let dir = tempfile::tempdir().unwrap();
        let other = dir.path().join("system.slice");
        fs::create_dir(&other).unwrap();
        dissolve_limited(&other, dir.path());
        assert!(other.is_dir());
        let own = dir.path().join("varve-tier-1-2");
        fs::create_dir(&own).unwrap();
        dissolve_limited(&own, dir.path());
        assert!(!own.exists());
    }
}
