//! A folder for traces that nobody keeps.

use std::fs::{File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;

use super::Failure;

/// A folder without a lock that has not changed for so long is that of a command that was killed.
const LEFT: Duration = Duration::from_secs(60);

/// A folder among those for temporary files, which goes when this is dropped. It is its owner's alone, and nobody knows its name beforehand.
pub(super) struct Scratch {
    folder: TempDir,
    /// Held as long as the folder is used.
    _lock: Option<File>,
}

impl Scratch {
    /// Removes what such commands left that were killed. `hint` says what to do where it cannot be made.
    pub(super) fn new(command: &str, hint: &str) -> Result<Scratch, Failure> {
        let parent = std::env::temp_dir();
        let prefix = format!("varve-{command}-");
        remove_left(&parent, &prefix);
        let made = tempfile::Builder::new()
            .prefix(&prefix)
            .permissions(Permissions::from_mode(0o700))
            .tempdir_in(&parent);
        let folder = made.map_err(|e| {
            let what = format!("cannot make a folder in {}: {e}", parent.display());
            Failure::new(what, Some(hint))
        })?;
        Ok(Scratch {
            _lock: varve_sys::lock(folder.path()).ok(),
            folder,
        })
    }

    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// What cannot be removed stays in the folder for temporary files.
fn remove_left(parent: &Path, prefix: &str) {
    let own = varve_sys::effective_user();
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        let is_ours = entry
            .file_name()
            .as_encoded_bytes()
            .starts_with(prefix.as_bytes());
        let Some(about) = entry.metadata().ok().filter(|_| is_ours) else {
            continue;
        };
        let age = about.modified().ok().and_then(|at| at.elapsed().ok());
        let is_old = age.is_some_and(|age| age > LEFT);
        if about.is_dir() && about.uid() == own && is_old && varve_sys::lock(&entry.path()).is_ok()
        {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_command_left_is_removed_and_nothing_else() {
        let parent = tempfile::tempdir().unwrap();
        let made = |name: &str, is_old: bool| {
            let path = parent.path().join(name);
            std::fs::create_dir(&path).unwrap();
            std::fs::write(path.join("run-1.log"), "x").unwrap();
            if is_old {
                let long_ago = std::time::SystemTime::now() - 2 * LEFT;
                File::open(&path).unwrap().set_modified(long_ago).unwrap();
            }
            path
        };
        let left = made("varve-check-a", true);
        let (used, new, other) = (
            made("varve-check-b", true),
            made("varve-check-c", false),
            made("varve-compare-d", true),
        );
        let link = parent.path().join("varve-check-e");
        std::os::unix::fs::symlink(&other, &link).unwrap();
        let lock = varve_sys::lock(&used).unwrap();
        remove_left(parent.path(), "varve-check-");
        assert!(!left.exists());
        assert!(used.exists() && new.exists() && other.exists() && link.exists());
        drop(lock);
    }
}
