//! The run folders of dead recorders: which are a recorder's without doubt, and how one is removed.
//!
//! They lie in folders that anybody writes into. So a folder is opened once and looked at through that descriptor: its
//! owner, its mark, its lock and each file. No link is followed, and only files that a recorder makes are deleted.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, fstat, openat, statat, unlinkat,
};
use varve_model::Pid;
use varve_preload_abi::channel::SOCKET;
use varve_qemu_counter_abi::CONTROL;

use crate::marker::{self, Marker};
use crate::probes::counts::recovery::NOTE;

/// Where run folders may lie.
pub(crate) const BASES: [&str; 2] = ["/dev/shm", "/tmp"];
/// What a recorder's run folder is called, before its process id and a number.
pub(crate) const PREFIX: &str = "varve-";

/// The recorder that a folder named `varve-PID-HEX` would be of.
pub(crate) fn recorder_of(name: &OsStr) -> Option<Pid> {
    let (pid, number) = name.to_str()?.strip_prefix(PREFIX)?.split_once('-')?;
    (!number.is_empty() && is_hex(number.as_bytes())).then_some(())?;
    number_of(pid)
}

/// Whether a folder within a run folder has a name of 128 bits, as that in which the socket lies.
fn is_secret(name: &OsStr) -> bool {
    name.len() == 32 && is_hex(name.as_bytes())
}

fn is_hex(text: &[u8]) -> bool {
    let is_digit = |b: &u8| b.is_ascii_digit() || (b'a'..=b'f').contains(b);
    text.iter().all(is_digit)
}

/// A process id as it is written: no sign, no zero in front.
pub(crate) fn number_of(text: &str) -> Option<Pid> {
    let plain = text.chars().all(|c| c.is_ascii_digit()) && !text.starts_with('0');
    text.parse().ok().filter(|_| plain).map(Pid)
}

/// Why a folder of the right form is left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doubt {
    /// It is another user's.
    Owner(u32),
    /// It has no mark, or not one of a recorder's of that name.
    Mark,
    /// Its recorder lives, or somebody has locked it.
    InUse,
    /// It is no folder, or it cannot be opened.
    Unreadable,
}

/// A folder that was opened once.
pub(crate) struct LeftFolder {
    path: PathBuf,
    folder: OwnedFd,
    inode: (u64, u64),
}

impl LeftFolder {
    /// Opens a folder that a dead recorder left without doubt: of the right form, this user's or root's, marked by a
    /// recorder that is gone, and locked by nobody.
    ///
    /// # Errors
    /// What is in doubt.
    pub(crate) fn left(path: &Path) -> Result<LeftFolder, Doubt> {
        let this = LeftFolder::open(path)?;
        let named = path.file_name().and_then(recorder_of).ok_or(Doubt::Mark)?;
        let marker = this.marker().ok_or(Doubt::Mark)?;
        if marker.pid != named {
            return Err(Doubt::Mark);
        }
        // The lock shows a recorder in another PID namespace, whose process cannot be seen from here.
        if !marker.is_gone() || !varve_sys::try_lock(this.folder.as_fd()) {
            return Err(Doubt::InUse);
        }
        Ok(this)
    }

    /// Opens a folder of which a recorder said that it is its own.
    pub(crate) fn open(path: &Path) -> Result<LeftFolder, Doubt> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
        let folder = openat(CWD, path, flags, Mode::empty()).map_err(|_| Doubt::Unreadable)?;
        let stat = fstat(&folder).map_err(|_| Doubt::Unreadable)?;
        if !is_own(&stat) {
            return Err(Doubt::Owner(stat.st_uid));
        }
        Ok(LeftFolder {
            path: path.to_owned(),
            folder,
            inode: (stat.st_dev, stat.st_ino),
        })
    }

    fn marker(&self) -> Option<Marker> {
        // A FIFO in its place must not keep us waiting.
        let flags = OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = openat(&self.folder, marker::FILE, flags, Mode::empty()).ok()?;
        let stat = fstat(&file).ok()?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || !is_own(&stat) {
            return None;
        }
        let mut text = Vec::new();
        let limit = marker::MAX_BYTES as u64;
        File::from(file).take(limit).read_to_end(&mut text).ok()?;
        Marker::parse(&text)
    }

    /// Removes the files that recorders make, and the folder if nothing else is in it; whether it is gone.
    pub(crate) fn remove(self) -> bool {
        let Ok(entries) = Dir::read_from(&self.folder) else {
            return false;
        };
        let mut others = false;
        for entry in entries.flatten() {
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." || name == marker::FILE {
                continue;
            }
            let removed = if is_secret(name) {
                self.remove_secret(name).is_ok()
            } else {
                self.is_a_recorders(name) && unlinkat(&self.folder, name, AtFlags::empty()).is_ok()
            };
            others |= !removed;
        }
        // The mark goes last: what stays can still be distinguished from others.
        if others
            || unlinkat(&self.folder, marker::FILE, AtFlags::empty())
                .is_err_and(|e| e != rustix::io::Errno::NOENT)
        {
            return false;
        }
        // Whoever may rename it may have put another in its place.
        let same = statat(CWD, &self.path, AtFlags::SYMLINK_NOFOLLOW)
            .is_ok_and(|stat| (stat.st_dev, stat.st_ino) == self.inode);
        same && unlinkat(CWD, &self.path, AtFlags::REMOVEDIR).is_ok()
    }

    /// Removes the folder in which the socket lies, if nothing else does.
    fn remove_secret(&self, name: &OsStr) -> rustix::io::Result<()> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
        let below = openat(&self.folder, name, flags, Mode::empty())?;
        let socket = statat(&below, SOCKET, AtFlags::SYMLINK_NOFOLLOW);
        if socket.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Socket) {
            unlinkat(&below, SOCKET, AtFlags::empty())?;
        }
        unlinkat(&self.folder, name, AtFlags::REMOVEDIR)
    }

    /// Whether this is a file of the names and kinds that recorders and their targets make here.
    fn is_a_recorders(&self, name: &OsStr) -> bool {
        let Ok(stat) = statat(&self.folder, name, AtFlags::SYMLINK_NOFOLLOW) else {
            return false;
        };
        let is_file_name = name == CONTROL
            || Path::new(name)
                .extension()
                .is_some_and(|e| e == varve_qemu_counter_abi::EXTENSION);
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => is_file_name,
            FileType::Socket => true,
            FileType::Symlink => name == NOTE,
            _ => false,
        }
    }
}

fn is_own(stat: &Stat) -> bool {
    stat.st_uid == 0 || stat.st_uid == rustix::process::geteuid().as_raw()
}

/// The folders of the right form below the bases.
pub(crate) fn candidates() -> impl Iterator<Item = PathBuf> {
    BASES.iter().flat_map(|base| candidates_in(Path::new(base)))
}

fn candidates_in(base: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(base).into_iter().flatten().flatten();
    entries
        .filter(|e| recorder_of(&e.file_name()).is_some())
        .map(|e| e.path())
        .collect()
}
