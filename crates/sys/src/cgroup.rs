//! A cgroup of the recorder's own, to hold a whole process tree still with the freezer.
//!
//! The freezer of cgroup v2 (kernel documentation, `admin-guide/cgroup-v2.rst`, `cgroup.freeze`)
//! stops every thread of a group at the border to user space, is invisible to the processes and to
//! their parents, and takes new threads along.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use varve_model::Pid;

/// Why the target cannot be held by a cgroup.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// There is no cgroup v2 file system.
    #[error("no cgroup v2 file system is mounted")]
    NotMounted,
    /// A cgroup file could not be used.
    #[error("cannot {action} {path}: {source}")]
    Io {
        /// What was being done.
        action: &'static str,
        /// The cgroup file or folder.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

impl CgroupError {
    fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| CgroupError::Io {
            action,
            path,
            source,
        }
    }
}

/// Whether everything in the group stands still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frozen {
    /// All of it.
    Still,
    /// Something did not stop in time, such as a thread in an uninterruptible wait.
    NotYet,
}

/// A cgroup made by this process; thawed, emptied into its parent and removed on drop.
#[derive(Debug)]
pub struct Cgroup {
    path: PathBuf,
    parent: PathBuf,
    freeze: File,
    events: File,
    procs: File,
    /// Tells other recorders that this one lives, even where they cannot see its process.
    _lock: Option<File>,
}

impl Cgroup {
    /// Where cgroup v2 is mounted.
    pub fn mount_point() -> Result<PathBuf, CgroupError> {
        let path = Path::new("/proc/self/mountinfo");
        let text = fs::read_to_string(path).map_err(CgroupError::io("read", path))?;
        // Fields: id parent dev root mountpoint options ... - type source options.
        text.lines()
            .filter_map(|line| line.split_once(" - "))
            .filter(|(_, after)| after.starts_with("cgroup2 "))
            .find_map(|(before, _)| before.split(' ').nth(4).map(PathBuf::from))
            .ok_or(CgroupError::NotMounted)
    }

    /// The cgroup folder of a process.
    pub fn of(pid: Pid) -> Result<PathBuf, CgroupError> {
        let path = PathBuf::from(format!("/proc/{pid}/cgroup"));
        let text = fs::read_to_string(&path).map_err(CgroupError::io("read", &path))?;
        let inside = text
            .lines()
            .find_map(|line| line.strip_prefix("0::"))
            .ok_or(CgroupError::NotMounted)?;
        Ok(Self::mount_point()?.join(inside.trim_start_matches('/')))
    }

    /// Makes a cgroup named `name` below `parent`.
    pub fn create(parent: &Path, name: &str) -> Result<Cgroup, CgroupError> {
        let path = parent.join(name);
        fs::create_dir(&path).map_err(CgroupError::io("create the cgroup", &path))?;
        let opened = Self::open_files(&path);
        if opened.is_err() {
            let _ = fs::remove_dir(&path);
        }
        let (freeze, events, procs) = opened?;
        Ok(Cgroup {
            _lock: crate::lock(&path).ok(),
            path,
            parent: parent.to_owned(),
            freeze,
            events,
            procs,
        })
    }

    fn open_files(path: &Path) -> Result<(File, File, File), CgroupError> {
        let open = |name: &str, write: bool| {
            let file = path.join(name);
            OpenOptions::new()
                .read(true)
                .write(write)
                .open(&file)
                .map_err(CgroupError::io("open", &file))
        };
        Ok((
            open("cgroup.freeze", true)?,
            open("cgroup.events", false)?,
            open("cgroup.procs", true)?,
        ))
    }

    /// Its folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The folder that it was made in, to which its processes return.
    pub fn parent(&self) -> &Path {
        &self.parent
    }

    /// Moves a whole process into it.
    pub fn add(&self, pid: Pid) -> Result<(), CgroupError> {
        self.procs
            .write_all_at(pid.to_string().as_bytes(), 0)
            .map_err(CgroupError::io("move the process into", &self.path))
    }

    /// The processes in it, zombies excluded once reaped.
    pub fn processes(&self) -> Result<Vec<Pid>, CgroupError> {
        // The file is a seq_file of one pid per line; reading from 0 makes the kernel list anew.
        let mut text = Vec::new();
        let mut piece = [0u8; 4096];
        loop {
            let n = self
                .procs
                .read_at(&mut piece, text.len() as u64)
                .map_err(CgroupError::io("read", &self.path.join("cgroup.procs")))?;
            if n == 0 {
                break;
            }
            text.extend_from_slice(&piece[..n]);
        }
        Ok(String::from_utf8_lossy(&text)
            .lines()
            .filter_map(|l| l.parse().ok().map(Pid))
            .collect())
    }

    /// Freezes the group and waits until everything stands still, `limit` at most. Where that is not
    /// reached the group is left freezing: call [`Cgroup::thaw`].
    ///
    /// The wait sleeps between looks: a spinning waiter keeps a CPU from the threads that it waits
    /// for (measured: 4 ms against 0.12 ms for 2 busy threads on 2 CPUs), and the notification of
    /// `cgroup.events` is limited to one in 10 ms.
    ///
    /// `meanwhile` is called at each look: thousands of threads take a while.
    pub fn freeze(
        &self,
        limit: Duration,
        mut meanwhile: impl FnMut(),
    ) -> Result<Frozen, CgroupError> {
        self.write_freeze(b"1")?;
        let began = Instant::now();
        let mut pause = Duration::from_micros(20);
        loop {
            if self.is_frozen()? {
                return Ok(Frozen::Still);
            }
            if began.elapsed() > limit {
                return Ok(Frozen::NotYet);
            }
            meanwhile();
            std::thread::sleep(pause);
            if began.elapsed() > Duration::from_millis(2) {
                pause = Duration::from_micros(200);
            }
        }
    }

    /// Lets the group run.
    pub fn thaw(&self) -> Result<(), CgroupError> {
        self.write_freeze(b"0")
    }

    fn write_freeze(&self, value: &[u8]) -> Result<(), CgroupError> {
        self.freeze
            .write_all_at(value, 0)
            .map_err(CgroupError::io("write", &self.path.join("cgroup.freeze")))
    }

    /// Whether everything in it stands still at this moment.
    pub fn is_frozen(&self) -> Result<bool, CgroupError> {
        let mut text = [0u8; 128];
        let n = self
            .events
            .read_at(&mut text, 0)
            .map_err(CgroupError::io("read", &self.path.join("cgroup.events")))?;
        let text = &text[..n];
        Ok(text.windows(8).any(|w| w == b"frozen 1"))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = self.thaw();
        dissolve(&self.path, &self.parent);
    }
}

/// Thaws a cgroup, moves what is in it to `parent` and removes it: what a dead recorder's guardian
/// does too, so that it works on paths alone and gives up silently.
pub(crate) fn dissolve(path: &Path, parent: &Path) {
    let _ = fs::write(path.join("cgroup.freeze"), "0");
    // A process can fork between the reading and the moving.
    for _ in 0..100 {
        let pids = fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
        for pid in pids.lines() {
            let _ = fs::write(parent.join("cgroup.procs"), pid);
        }
        match fs::remove_dir(path) {
            Ok(()) => return,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return,
            Err(_) => std::thread::sleep(Duration::from_millis(2)),
        }
    }
}

/// Cleans up after a recorder that is gone: dissolves the cgroup and removes the folder of rings.
pub fn clean_up_after(cgroup: Option<(&Path, &Path)>, rings: Option<&Path>) {
    if let Some((path, parent)) = cgroup {
        dissolve(path, parent);
    }
    if let Some(rings) = rings {
        let _ = fs::remove_dir_all(rings);
    }
}
