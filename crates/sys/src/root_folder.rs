//! The files of a process as it sees them, also when it is gone.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags};
use varve_model::Pid;

use crate::regular::{FileIdentity, open_regular_at};

/// Other users may read a file.
const OTHERS_READ: u32 = 0o004;
/// No larger file is read.
const MAX_BYTES: u64 = 1 << 30;

/// The root folder of a process, held open, and who the process is.
#[derive(Debug)]
pub struct RootFolder {
    folder: OwnedFd,
    own_number: Pid,
    user: u32,
}

impl RootFolder {
    /// That of a process that runs.
    ///
    /// # Errors
    /// Those of `/proc`, and where the process is gone.
    pub fn of(pid: Pid) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::DIRECTORY;
        let root = crate::shared_folder(pid).join("root");
        let folder = rustix::fs::openat(CWD, root, flags, Mode::empty())?;
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let (own_number, user) = parse(&status)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the status is malformed"))?;
        Ok(Self {
            folder,
            own_number,
            user,
        })
    }

    /// Whether it may stay open until the process has ended, see [`crate::may_stay_open`].
    pub fn may_stay_open(&self, pid: Pid) -> bool {
        crate::may_stay_open(pid, &self.folder)
    }

    /// The number that the process has for itself, in its pid namespace.
    pub const fn own_number(&self) -> Pid {
        self.own_number
    }

    /// Opens a regular file that the process has written or root has for everybody; where `identity` is given that one and no
    /// other. The path is as the process sees it; the file itself is no link.
    ///
    /// # Errors
    /// Those of opening; what is another's file, no regular one, or too large.
    pub fn open_own(&self, path: &Path, identity: Option<FileIdentity>) -> io::Result<File> {
        let file = open_regular_at(&self.folder, path, identity)?;
        let about = file.metadata()?;
        let is_roots = about.uid() == 0 && about.mode() & OTHERS_READ != 0;
        if about.uid() != self.user && !is_roots {
            return Err(io::Error::other("it is another user's file"));
        }
        if about.len() > MAX_BYTES {
            return Err(io::Error::other("it is too large"));
        }
        Ok(file)
    }
}

/// The innermost number and the effective user.
fn parse(status: &str) -> Option<(Pid, u32)> {
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.map(|line| line.split_whitespace())
    };
    let number = field("NSpid:")?.next_back()?.parse().ok()?;
    let user = field("Uid:")?.nth(1)?.parse().ok()?;
    Some((Pid(number), user))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_files_of_its_user_are_a_processs_own() {
        let own = RootFolder::of(Pid(std::process::id())).unwrap();
        assert_eq!(own.own_number(), Pid(std::process::id()));
        let folder = std::env::temp_dir().join(format!("root-folder-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let at = |name: &str| folder.join(name);
        std::fs::write(at("map"), "1000 10 f\n").unwrap();
        assert!(own.open_own(&at("map"), None).is_ok());
        std::os::unix::fs::symlink(at("map"), at("link")).unwrap();
        assert!(own.open_own(&at("link"), None).is_err());
        assert!(own.open_own(&folder, None).is_err());
        assert!(own.open_own(Path::new("/dev/null"), None).is_err());
        let other = FileIdentity {
            device: (0, 0),
            inode: 1,
        };
        assert!(own.open_own(&at("map"), Some(other)).is_err());
        let stranger = RootFolder {
            user: own.user + 1,
            ..own
        };
        std::fs::set_permissions(
            at("map"),
            std::os::unix::fs::PermissionsExt::from_mode(0o600),
        )
        .unwrap();
        let refused = stranger.open_own(&at("map"), None).is_err();
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(refused);
    }

    #[test]
    fn a_process_in_a_namespace_has_a_number_of_its_own() {
        let status = "Name:\tx\nUid:\t1000\t1001\t1000\t1000\nNSpid:\t4711\t12\n";
        assert_eq!(parse(status), Some((Pid(12), 1001)));
        assert_eq!(parse("Name:\tx\n"), None);
    }
}
