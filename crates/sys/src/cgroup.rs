//! The freezer of cgroup v2, to hold a whole process tree still.
//!
//! The freezer (kernel documentation, `admin-guide/cgroup-v2.rst`, `cgroup.freeze`) stops every thread of a group at
//! the border to user space, is invisible to the processes and to their parents, and takes new threads and all groups
//! below along.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::XattrFlags;
use varve_model::Pid;

use crate::PidFd;

/// The attribute of a cgroup's folder that says which recorder made it. Only root can write those of a group that
/// root made.
const MARK: &str = "user.varve";
/// Longer marks are nobody's.
const MAX_MARK: usize = 256;
/// How deep groups are looked for: deeper than any machine has them.
const MAX_DEPTH: usize = 32;

/// Why the target cannot be held by a cgroup.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// There is no cgroup v2 file system.
    #[error("no cgroup v2 file system is mounted")]
    NotMounted,
    /// The group lies outside of what this process can see of the cgroup file system.
    #[error("the cgroup {0:?} lies outside of the cgroup file system that is mounted here")]
    OutOfSight(PathBuf),
    /// A group of threads: processes cannot be in it, nor in a group below it.
    #[error("the cgroup {path:?} is of the type `{kind}`")]
    Threaded {
        /// Its folder.
        path: PathBuf,
        /// What `cgroup.type` says.
        kind: String,
    },
    /// A cgroup file could not be used.
    #[error("cannot {action} {path:?}: {source}")]
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

/// The freezer of a cgroup, whoever made it. Dropping it changes nothing.
#[derive(Debug)]
pub struct Freezer {
    path: PathBuf,
    freeze: File,
    events: File,
    procs: File,
}

impl Freezer {
    /// Opens the files of the group at `path`.
    ///
    /// # Errors
    /// [`CgroupError::Threaded`] for a group that cannot hold processes, [`CgroupError::Io`] for one without a freezer (the
    /// root has none) or that may not be written.
    pub fn open(path: &Path) -> Result<Freezer, CgroupError> {
        let kind = path.join("cgroup.type");
        let kind = fs::read_to_string(&kind).map_err(CgroupError::io("read", &kind))?;
        // `domain threaded` is the root of a tree of thread groups: all of the tree's processes are in it.
        if !matches!(kind.trim(), "domain" | "domain threaded") {
            return Err(CgroupError::Threaded {
                path: path.to_owned(),
                kind: kind.trim().to_owned(),
            });
        }
        let open = |name: &str, write: bool| {
            let file = path.join(name);
            OpenOptions::new()
                .read(true)
                .write(write)
                .open(&file)
                .map_err(CgroupError::io("open", &file))
        };
        Ok(Freezer {
            freeze: open("cgroup.freeze", true)?,
            events: open("cgroup.events", false)?,
            procs: open("cgroup.procs", false)?,
            path: path.to_owned(),
        })
    }

    /// The group's folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The processes in the group and in all below it, zombies excluded. Costs one read where nothing is below.
    ///
    /// # Errors
    /// [`CgroupError::Io`] where the list cannot be read.
    pub fn members(&self) -> Result<Vec<Pid>, CgroupError> {
        let mut found =
            list(&self.procs).map_err(CgroupError::io("read", &self.path.join("cgroup.procs")))?;
        for group in below(&self.path) {
            // A group that goes meanwhile has nobody in it, and the processes of a group of threads are listed above it.
            let listed = File::open(group.join("cgroup.procs")).and_then(|file| list(&file));
            found.extend(listed.unwrap_or_default());
        }
        Ok(found)
    }

    /// Freezes the group and waits until everything stands still, `limit` at most. Where that is not
    /// reached the group is left freezing: call [`Freezer::thaw`].
    ///
    /// The wait sleeps between looks: a spinning waiter keeps a CPU from the threads that it waits
    /// for (measured: 4 ms against 0.12 ms for 2 busy threads on 2 CPUs), and the notification of
    /// `cgroup.events` is limited to one in 10 ms.
    ///
    /// `meanwhile` is called at each look: thousands of threads take a while.
    ///
    /// # Errors
    /// [`CgroupError::Io`] where a file of the group cannot be used.
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
    ///
    /// # Errors
    /// [`CgroupError::Io`] where the file cannot be written.
    pub fn thaw(&self) -> Result<(), CgroupError> {
        self.write_freeze(b"0")
    }

    fn write_freeze(&self, value: &[u8]) -> Result<(), CgroupError> {
        self.freeze
            .write_all_at(value, 0)
            .map_err(CgroupError::io("write", &self.path.join("cgroup.freeze")))
    }

    /// Whether everything in it stands still at this moment, also because a group above is frozen.
    ///
    /// # Errors
    /// [`CgroupError::Io`] where the file cannot be read.
    pub fn is_frozen(&self) -> Result<bool, CgroupError> {
        let mut text = [0u8; 128];
        let n = self
            .events
            .read_at(&mut text, 0)
            .map_err(CgroupError::io("read", &self.path.join("cgroup.events")))?;
        let text = &text[..n];
        Ok(text.windows(8).any(|w| w == b"frozen 1"))
    }

    /// Whether somebody asked for this group to be frozen and nobody has let it go since.
    ///
    /// # Errors
    /// [`CgroupError::Io`] where the file cannot be read.
    pub fn is_asked_to_freeze(&self) -> Result<bool, CgroupError> {
        let mut text = [0u8; 8];
        let n = self
            .freeze
            .read_at(&mut text, 0)
            .map_err(CgroupError::io("read", &self.path.join("cgroup.freeze")))?;
        Ok(text[..n].starts_with(b"1"))
    }
}

/// A cgroup made by this process; thawed, emptied into its parent and removed on drop.
#[derive(Debug)]
pub struct Cgroup {
    freezer: Freezer,
    parent: PathBuf,
    /// Tells other recorders that this one lives, even where they cannot see its process.
    _lock: Option<File>,
}

impl Cgroup {
    /// Where cgroup v2 is mounted.
    ///
    /// # Errors
    /// [`CgroupError::NotMounted`] where it is not.
    pub fn mount_point() -> Result<PathBuf, CgroupError> {
        let path = Path::new("/proc/self/mountinfo");
        let text = fs::read(path).map_err(CgroupError::io("read", path))?;
        mount_point_in(&text).ok_or(CgroupError::NotMounted)
    }

    /// The cgroup folder of a process.
    ///
    /// # Errors
    /// [`CgroupError::NotMounted`] and [`CgroupError::OutOfSight`] where it has none that can be used from here,
    /// [`CgroupError::Io`] for a process that is gone.
    pub fn of(pid: Pid) -> Result<PathBuf, CgroupError> {
        let path = PathBuf::from(format!("/proc/{pid}/cgroup"));
        let text = fs::read(&path).map_err(CgroupError::io("read", &path))?;
        let inside = group_in(&text).ok_or(CgroupError::NotMounted)?;
        // A cgroup namespace shows what lies outside of it as `/../name`.
        if inside.components().any(|c| c == Component::ParentDir) {
            return Err(CgroupError::OutOfSight(inside));
        }
        let inside = inside.strip_prefix("/").unwrap_or(&inside);
        Ok(Self::mount_point()?.join(inside))
    }

    /// Makes a cgroup named `name` below `parent`, and puts the mark on it, where the kernel has room for one.
    ///
    /// # Errors
    /// [`CgroupError::Threaded`] where no process could be in it, [`CgroupError::Io`] where it cannot be made.
    pub fn create(parent: &Path, name: &str, mark: &str) -> Result<Cgroup, CgroupError> {
        let path = parent.join(name);
        fs::create_dir(&path).map_err(CgroupError::io("create the cgroup", &path))?;
        // Linux 5.7 and later keep attributes of cgroups.
        let _ = rustix::fs::setxattr(&path, MARK, mark.as_bytes(), XattrFlags::CREATE);
        let opened = Freezer::open(&path);
        if opened.is_err() {
            let _ = fs::remove_dir(&path);
        }
        Ok(Cgroup {
            freezer: opened?,
            _lock: crate::lock(&path).ok(),
            parent: parent.to_owned(),
        })
    }

    /// Its freezer.
    pub fn freezer(&self) -> &Freezer {
        &self.freezer
    }

    /// Its folder.
    pub fn path(&self) -> &Path {
        &self.freezer.path
    }

    /// The folder that it was made in, to which its processes return.
    pub fn parent(&self) -> &Path {
        &self.parent
    }

    /// Moves a whole process into it.
    ///
    /// # Errors
    /// [`CgroupError::Io`] where the kernel refuses that.
    pub fn add(&self, pid: Pid) -> Result<(), CgroupError> {
        fs::write(self.path().join("cgroup.procs"), pid.to_string())
            .map_err(CgroupError::io("move the process into", self.path()))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        dissolve(self.path(), &self.parent);
    }
}

/// What the mark on a cgroup says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CgroupMark {
    /// This.
    Says(Vec<u8>),
    /// There is none.
    Absent,
    /// The kernel keeps no marks.
    Unsupported,
}

/// Reads the mark on a cgroup.
pub fn cgroup_mark(path: &Path) -> CgroupMark {
    let mut text = [0u8; MAX_MARK];
    match rustix::fs::getxattr(path, MARK, &mut text) {
        Ok(n) => CgroupMark::Says(text.get(..n).unwrap_or_default().to_owned()),
        Err(rustix::io::Errno::OPNOTSUPP) => CgroupMark::Unsupported,
        Err(_) => CgroupMark::Absent,
    }
}

/// Puts a mark on a cgroup that somebody else made, or takes it off.
///
/// # Errors
/// Where the kernel keeps none, or this process may not.
pub fn mark_cgroup(path: &Path, mark: Option<&str>) -> io::Result<()> {
    match mark {
        Some(mark) => rustix::fs::setxattr(path, MARK, mark.as_bytes(), XattrFlags::empty())?,
        None => rustix::fs::removexattr(path, MARK)?,
    }
    Ok(())
}

/// Thaws a cgroup, moves what is in it to `parent` and removes it, with the empty groups that its processes made below
/// it. A dead recorder's watchdog does so too, so that it works on paths alone and gives up silently.
pub fn dissolve(path: &Path, parent: &Path) {
    thaw(path);
    // A process can fork between the reading and the moving.
    for _ in 0..100 {
        for pid in listed(path) {
            move_out(pid, path, parent);
        }
        let mut groups = below(path);
        groups.sort_by_key(|group| std::cmp::Reverse(group.components().count()));
        for group in groups {
            // Refused where a process lives in it: that group is the target's own business.
            let _ = fs::remove_dir(group);
        }
        match fs::remove_dir(path) {
            Ok(()) => return,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return,
            // A group of the target's own, in which something lives on: it stays, and so does what it lies in.
            Err(_)
                if listed(path).is_empty() && below(path).iter().any(|g| !listed(g).is_empty()) =>
            {
                return;
            }
            Err(_) => std::thread::sleep(Duration::from_millis(2)),
        }
    }
}

/// Lets a cgroup run, whatever that takes; silently.
pub fn thaw(path: &Path) {
    put(&path.join("cgroup.freeze"), "0");
}

/// Writes to a file that is there: where a group is gone, nothing is made in its place.
fn put(path: &Path, text: &str) {
    if let Ok(mut file) = File::options().write(true).open(path) {
        let _ = file.write_all(text.as_bytes());
    }
}

fn listed(path: &Path) -> Vec<Pid> {
    File::open(path.join("cgroup.procs"))
        .and_then(|file| list(&file))
        .unwrap_or_default()
}

/// Moves a process out of the group `from`, but only while it is in it: its number may be another's by now.
fn move_out(pid: Pid, from: &Path, to: &Path) {
    let Ok(handle) = PidFd::open(pid) else {
        return;
    };
    if Cgroup::of(pid).is_ok_and(|group| group == from) && !handle.has_ended() {
        put(&to.join("cgroup.procs"), &pid.to_string());
    }
}

/// Reads a list of processes from its beginning, however long it is.
fn list(procs: &File) -> io::Result<Vec<Pid>> {
    // A seq_file of one number per line; reading from 0 makes the kernel list anew.
    let mut text = Vec::new();
    let mut piece = [0u8; 4096];
    loop {
        match procs.read_at(&mut piece, text.len() as u64)? {
            0 => break,
            n => text.extend_from_slice(&piece[..n]),
        }
    }
    Ok(text
        .split(|b| *b == b'\n')
        .filter_map(|line| std::str::from_utf8(line).ok()?.parse().ok().map(Pid))
        .collect())
}

/// All groups below one.
fn below(path: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![(path.to_owned(), 0)];
    while let Some((folder, depth)) = open.pop() {
        // The kernel counts the folders in a folder: without any, nothing need be listed.
        if depth >= MAX_DEPTH || fs::metadata(&folder).map_or(true, |m| m.nlink() <= 2) {
            continue;
        }
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|t| t.is_dir()) {
                open.push((entry.path(), depth + 1));
                found.push(entry.path());
            }
        }
    }
    found
}

fn mount_point_in(text: &[u8]) -> Option<PathBuf> {
    // Fields: id parent dev root mountpoint options ... - type source options.
    text.split(|b| *b == b'\n')
        .filter(|line| {
            let mut after = line.windows(3).enumerate().filter(|(_, w)| w == b" - ");
            after.any(|(at, _)| line[at + 3..].starts_with(b"cgroup2 "))
        })
        .find_map(|line| line.split(|b| *b == b' ').nth(4))
        .map(|field| PathBuf::from(std::ffi::OsString::from_vec(unescape(field))))
}

/// `mountinfo` writes blanks, tabs, line ends and backslashes as three octal digits behind a backslash.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        let digits = tail
            .get(..3)
            .filter(|d| *first == b'\\' && d.iter().all(|c| (b'0'..b'8').contains(c)));
        match digits {
            Some(digits) => {
                plain.push(
                    digits
                        .iter()
                        .fold(0u8, |n, d| n.wrapping_mul(8).wrapping_add(d - b'0')),
                );
                rest = &tail[3..];
            }
            None => {
                plain.push(*first);
                rest = tail;
            }
        }
    }
    plain
}

fn group_in(text: &[u8]) -> Option<PathBuf> {
    let line = text
        .split(|b| *b == b'\n')
        .find_map(|l| l.strip_prefix(b"0::"))?;
    Some(PathBuf::from(OsStr::from_bytes(line)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_any_bytes_are_read() {
        assert_eq!(
            group_in(b"1:cpu:/x\n0::/a\tb\xff\n"),
            Some(PathBuf::from(OsStr::from_bytes(b"/a\tb\xff")))
        );
        assert_eq!(group_in(b"1:cpu:/x\n"), None);
        let mounts = b"30 23 0:26 / /sys/fs/cgroup\\040\\134x rw shared:4 - cgroup2 cgroup2 rw\n";
        assert_eq!(mount_point_in(mounts), Some("/sys/fs/cgroup \\x".into()));
        assert_eq!(
            mount_point_in(b"30 23 0:26 / /x rw - tmpfs cgroup2 rw\n"),
            None
        );
    }
}
