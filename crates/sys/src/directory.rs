//! Folders by descriptor: what a name in one leads to cannot be exchanged between two looks, and no link is followed.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;

/// What a file or folder is, whatever it is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The device number of its file system.
    pub device: u64,
    /// Its number there.
    pub inode: u64,
}

impl Identity {
    fn of(stat: &Stat) -> Identity {
        Identity {
            device: stat.st_dev,
            inode: stat.st_ino,
        }
    }
}

/// What stands under a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A folder.
    Folder,
    /// A symbolic link.
    Link,
    /// A FIFO, a socket or a device.
    Special,
}

impl Kind {
    fn of(stat: &Stat) -> Kind {
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Kind::File,
            FileType::Directory => Kind::Folder,
            FileType::Symlink => Kind::Link,
            _ => Kind::Special,
        }
    }

    /// In words, with an article.
    pub const fn as_str(self) -> &'static str {
        match self {
            Kind::File => "a file",
            Kind::Folder => "a folder",
            Kind::Link => "a symbolic link",
            Kind::Special => "a FIFO, a socket or a device",
        }
    }
}

/// An open folder. All names are those of its own entries: a name with a slash in it is refused.
#[derive(Debug)]
pub struct Directory {
    descriptor: OwnedFd,
}

const OPEN: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::CLOEXEC);

impl Directory {
    /// Opens a folder; the path may be a link to one.
    ///
    /// # Errors
    /// `NotADirectory` where something else stands there, and what the system says.
    pub fn open(path: &Path) -> io::Result<Directory> {
        let descriptor = rustix::fs::open(path, OPEN, Mode::empty())?;
        Ok(Directory { descriptor })
    }

    /// Opens a folder to reach its entries alone: it cannot be listed or locked. The path may be a link to one.
    ///
    /// # Errors
    /// As [`Directory::open`].
    pub fn passage(path: &Path) -> io::Result<Directory> {
        let descriptor = rustix::fs::open(path, OPEN | OFlags::PATH, Mode::empty())?;
        Ok(Directory { descriptor })
    }

    /// Opens a folder in this one, never through a link.
    ///
    /// # Errors
    /// `NotADirectory` where something else stands there, a link among it.
    pub fn folder(&self, name: impl AsRef<OsStr>) -> io::Result<Directory> {
        let name = entry(name.as_ref())?;
        let opened = rustix::fs::openat(
            &self.descriptor,
            name,
            OPEN | OFlags::NOFOLLOW,
            Mode::empty(),
        );
        let descriptor = opened.map_err(|e| if e == Errno::LOOP { Errno::NOTDIR } else { e })?;
        Ok(Directory { descriptor })
    }

    /// Makes a folder that only its owner may enter, and fails where anything stands there.
    ///
    /// # Errors
    /// `AlreadyExists`, and what the system says.
    pub fn make_folder(&self, name: impl AsRef<OsStr>) -> io::Result<()> {
        let name = entry(name.as_ref())?;
        Ok(rustix::fs::mkdirat(&self.descriptor, name, Mode::RWXU)?)
    }

    /// Makes a folder with these permissions less those that the umask takes, and fails where anything stands there.
    ///
    /// # Errors
    /// `AlreadyExists`, and what the system says.
    pub fn make_folder_for(&self, name: impl AsRef<OsStr>, mode: u32) -> io::Result<()> {
        let (name, mode) = (entry(name.as_ref())?, Mode::from_raw_mode(mode));
        Ok(rustix::fs::mkdirat(&self.descriptor, name, mode)?)
    }

    /// Waits until its names are on the disk.
    ///
    /// # Errors
    /// What the system says.
    pub fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::fsync(&self.descriptor)?)
    }

    /// Opens a regular file for reading. It is looked at before it is opened: opening a FIFO waits, and opening a
    /// device may do anything.
    ///
    /// # Errors
    /// `InvalidInput` where something else stands there, a link among it.
    pub fn file(&self, name: impl AsRef<OsStr>) -> io::Result<File> {
        let name = entry(name.as_ref())?;
        let place = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let found = rustix::fs::openat(&self.descriptor, name, place, Mode::empty())?;
        let kind = Kind::of(&rustix::fs::fstat(&found)?);
        if kind != Kind::File {
            return Err(not_regular(kind));
        }
        reopen(&found)
    }

    /// Makes a file with these permissions, whatever the umask is, and fails where anything stands there.
    ///
    /// # Errors
    /// `AlreadyExists`, and what the system says.
    pub fn create(&self, name: impl AsRef<OsStr>, mode: u32) -> io::Result<File> {
        let name = entry(name.as_ref())?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let made = rustix::fs::openat(&self.descriptor, name, flags, Mode::RUSR | Mode::WUSR)?;
        match rustix::fs::fchmod(&made, Mode::from_raw_mode(mode)) {
            // File systems that know of no permissions.
            Ok(()) | Err(Errno::PERM | Errno::OPNOTSUPP) => Ok(File::from(made)),
            Err(e) => Err(e.into()),
        }
    }

    /// Gives an entry another name in this folder; what had that name is gone.
    ///
    /// # Errors
    /// What the system says.
    pub fn rename(&self, from: impl AsRef<OsStr>, to: impl AsRef<OsStr>) -> io::Result<()> {
        let (from, to) = (entry(from.as_ref())?, entry(to.as_ref())?);
        let here = &self.descriptor;
        Ok(rustix::fs::renameat(here, from, here, to)?)
    }

    /// Removes a regular file. Tells whether there was one.
    ///
    /// # Errors
    /// `InvalidInput` where something else stands there, which stays.
    pub fn remove_file(&self, name: impl AsRef<OsStr>) -> io::Result<bool> {
        match self.kind(name.as_ref())? {
            None => Ok(false),
            Some(Kind::File) => {
                let removed =
                    rustix::fs::unlinkat(&self.descriptor, name.as_ref(), AtFlags::empty());
                match removed {
                    Err(Errno::NOENT) => Ok(false),
                    other => Ok(other.map(|()| true)?),
                }
            }
            Some(kind) => Err(not_regular(kind)),
        }
    }

    /// Removes an empty folder if it is this one.
    ///
    /// # Errors
    /// What the system says, and `NotFound` where the name is another's.
    pub fn remove_folder(&self, name: impl AsRef<OsStr>, which: Identity) -> io::Result<()> {
        let name = entry(name.as_ref())?;
        let stat = rustix::fs::statat(&self.descriptor, name, AtFlags::SYMLINK_NOFOLLOW)?;
        if Identity::of(&stat) != which {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(rustix::fs::unlinkat(
            &self.descriptor,
            name,
            AtFlags::REMOVEDIR,
        )?)
    }

    /// What stands under a name, if anything does.
    ///
    /// # Errors
    /// What the system says.
    pub fn kind(&self, name: impl AsRef<OsStr>) -> io::Result<Option<Kind>> {
        let name = entry(name.as_ref())?;
        match rustix::fs::statat(&self.descriptor, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(Kind::of(&stat))),
            Err(Errno::NOENT) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// The names in it, in no order.
    ///
    /// # Errors
    /// What the system says.
    pub fn names(&self) -> io::Result<Vec<OsString>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.descriptor)? {
            let name = entry?.file_name().to_bytes().to_vec();
            if name != b"." && name != b".." {
                names.push(OsString::from_vec(name));
            }
        }
        Ok(names)
    }

    /// Which folder it is.
    ///
    /// # Errors
    /// What the system says.
    pub fn identity(&self) -> io::Result<Identity> {
        Ok(Identity::of(&rustix::fs::fstat(&self.descriptor)?))
    }

    /// The user whom it belongs to.
    ///
    /// # Errors
    /// What the system says.
    pub fn owner(&self) -> io::Result<u32> {
        Ok(rustix::fs::fstat(&self.descriptor)?.st_uid)
    }

    /// Its permissions, without the kind.
    ///
    /// # Errors
    /// What the system says.
    pub fn mode(&self) -> io::Result<u32> {
        Ok(rustix::fs::fstat(&self.descriptor)?.st_mode & 0o7777)
    }

    /// Gives it these permissions.
    ///
    /// # Errors
    /// What the system says.
    pub fn set_mode(&self, mode: u32) -> io::Result<()> {
        Ok(rustix::fs::fchmod(
            &self.descriptor,
            Mode::from_raw_mode(mode),
        )?)
    }

    /// Where it is now, which need not be where it was opened; nothing where it was removed.
    pub fn current_path(&self) -> Option<PathBuf> {
        let link = format!("/proc/self/fd/{}", self.descriptor.as_raw_fd());
        let path = std::fs::read_link(link).ok()?;
        let same = Directory::open(&path).and_then(|found| found.identity());
        (same.ok()? == self.identity().ok()?).then_some(path)
    }

    /// Locks it against everybody else for as long as it is open.
    ///
    /// # Errors
    /// `WouldBlock` where somebody has locked it.
    pub fn lock(&self) -> io::Result<()> {
        Ok(rustix::fs::flock(
            &self.descriptor,
            FlockOperation::NonBlockingLockExclusive,
        )?)
    }

    /// Locks it against [`Directory::lock`] alone.
    ///
    /// # Errors
    /// `WouldBlock` where somebody has locked it so.
    pub fn lock_shared(&self) -> io::Result<()> {
        Ok(rustix::fs::flock(
            &self.descriptor,
            FlockOperation::NonBlockingLockShared,
        )?)
    }

    /// Ends its lock.
    pub fn unlock(&self) {
        let _ = rustix::fs::flock(&self.descriptor, FlockOperation::Unlock);
    }
}

fn entry(name: &OsStr) -> io::Result<&OsStr> {
    if name.as_encoded_bytes().contains(&b'/') || name == ".." || name.is_empty() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok(name)
}

fn not_regular(kind: Kind) -> io::Error {
    let what = format!("it is {}, not a regular file", kind.as_str());
    io::Error::new(io::ErrorKind::InvalidInput, what)
}

/// Opens the same file again, with a position of its own, whatever its name leads to by now.
///
/// # Errors
/// What the system says.
pub fn reopen(file: impl AsFd) -> io::Result<File> {
    let link = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::open(link, flags, Mode::empty())?))
}

/// Makes a file that has no name, which is gone when it is closed, however that comes about.
///
/// # Errors
/// What the system says.
pub fn unnamed_file(folder: &Path) -> io::Result<File> {
    let mode = Mode::RUSR | Mode::WUSR;
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::EXCL | OFlags::CLOEXEC;
    match rustix::fs::openat(CWD, folder, flags, mode) {
        // File systems without such files.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {}
        other => return Ok(File::from(other?)),
    }
    let folder = Directory::open(folder)?;
    let name = format!(
        ".varve-{}-{:x}",
        std::process::id(),
        crate::monotonic_now().0
    );
    let file = folder.create(&name, 0o600)?;
    folder.remove_file(&name)?;
    Ok(file)
}

/// The user as whom this process acts on files.
pub fn effective_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch() -> (PathBuf, Directory) {
        let name = format!(
            "varve-sys-{}-{:x}",
            std::process::id(),
            crate::monotonic_now().0
        );
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        let open = Directory::open(&path).unwrap();
        (path, open)
    }

    #[test]
    fn links_are_neither_followed_nor_removed() {
        let (path, here) = scratch();
        std::os::unix::fs::symlink("/etc", path.join("folder")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", path.join("file")).unwrap();
        let is_refused = |e: io::Error| e.kind() == io::ErrorKind::InvalidInput;
        assert_eq!(
            here.folder("folder").unwrap_err().kind(),
            io::ErrorKind::NotADirectory
        );
        assert!(here.file("file").is_err_and(is_refused));
        assert!(here.remove_file("file").is_err_and(is_refused));
        assert!(here.create("file", 0o600).is_err());
        assert_eq!(here.kind("file").unwrap(), Some(Kind::Link));
        for name in ["..", "a/b", "/etc", ""] {
            assert!(here.file(name).is_err_and(is_refused), "{name}");
        }
        std::fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn a_folder_knows_where_it_went() {
        let (path, here) = scratch();
        assert_eq!(here.current_path(), path.canonicalize().ok());
        let moved = path.with_extension("moved");
        std::fs::rename(&path, &moved).unwrap();
        assert_eq!(here.current_path(), moved.canonicalize().ok());
        std::fs::remove_dir_all(moved).unwrap();
        assert_eq!(here.current_path(), None);
    }

    #[test]
    fn an_unnamed_file_leaves_nothing() {
        use std::io::{Read, Write};
        let (path, here) = scratch();
        let mut file = unnamed_file(&path).unwrap();
        file.write_all(b"text").unwrap();
        assert!(here.names().unwrap().is_empty());
        let mut text = String::new();
        reopen(&file).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "text");
        std::fs::remove_dir_all(path).unwrap();
    }
}
