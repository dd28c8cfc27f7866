//! Where the preload library is loaded from.
//!
//! The loader splits its list at spaces and colons, and every user of the target's must be able to read the library.
//! Where its own path does not allow that, a copy is used. It lies in a folder that only root can write to, not in
//! the recording's: what lives on after the recorder names it in its environment, and nobody else may ever stand there.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::layout;

/// Where copies are kept, one of each version.
const CACHE: &str = "/var/cache/varve";

/// The path under which the library can be preloaded by every process of the target's: its own, or that of a copy.
///
/// # Errors
/// Why it can be neither, as the end of a sentence.
pub fn reachable_library(library: &Path) -> Result<PathBuf, String> {
    let Some(why) = why_not_there(library) else {
        return Ok(library.to_owned());
    };
    let cache = match rustix::process::geteuid() {
        root if root.is_root() => CACHE.to_owned(),
        user => format!("{CACHE}-{}", user.as_raw()),
    };
    copy_into(Path::new(&cache), library)
        .map_err(|e| format!("{why}, and it cannot be copied to {cache}: {e}"))
}

/// The path to be preloaded, under which all processes of the target's find what they can load, whatever loads them: see [`layout`].
///
/// # Errors
/// As for [`reachable_library`].
pub fn listed_library(library: &Path) -> Result<PathBuf, String> {
    let file = reachable_library(library)?;
    let made = || -> io::Result<PathBuf> {
        let cache = own_cache().ok_or(io::ErrorKind::NotFound)?;
        if cache.as_os_str().as_bytes().iter().any(splits) {
            return Err(io::ErrorKind::InvalidFilename.into());
        }
        let file = fs::canonicalize(&file)?;
        let mut hasher = DefaultHasher::new();
        file.hash(&mut hasher);
        own_folder(&cache)?;
        layout::make(&cache.join(format!("{:016x}-lib", hasher.finish())), &file)
    };
    // Without such a folder, programs that cannot load the library say so.
    Ok(made().unwrap_or(file))
}

/// The folder of what is kept for the calling user's recordings.
fn own_cache() -> Option<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Some(CACHE.into());
    }
    // Rights that the program has and its caller has not write to no folder of the caller's choice.
    if varve_sys::rights::gained_by_file() {
        return None;
    }
    let named = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = named.filter(|path| path.is_absolute()).or_else(|| {
        let home = PathBuf::from(std::env::var_os("HOME")?);
        home.is_absolute().then(|| home.join(".cache"))
    })?;
    Some(cache.join("varve"))
}

/// Where lists of libraries are split, and what else a path in them cannot have. The comma is where the emulator splits its options.
fn splits(byte: &u8) -> bool {
    matches!(byte, b' ' | b':' | b'$' | b',' | b'\n')
}

/// Why the library cannot be preloaded where it is.
fn why_not_there(library: &Path) -> Option<&'static str> {
    if library.as_os_str().as_bytes().iter().any(splits) {
        return Some("its path has a character at which lists of libraries are split");
    }
    let readable = fs::metadata(library).is_ok_and(|m| m.mode() & 0o004 != 0);
    // Links lead through other folders than the path says.
    let real = library
        .canonicalize()
        .unwrap_or_else(|_| library.to_owned());
    let folders = library.ancestors().skip(1).chain(real.ancestors().skip(1));
    let mut passable = folders
        .filter(|folder| !folder.as_os_str().is_empty())
        .map(|folder| fs::metadata(folder).is_ok_and(|m| m.mode() & 0o001 != 0));
    (!readable || !passable.all(|p| p)).then_some("not every user can read it")
}

/// Copies a library into a folder that is the calling user's alone; the path of the copy.
fn copy_into(cache: &Path, library: &Path) -> io::Result<PathBuf> {
    let content = fs::read(library)?;
    let mut hasher = DefaultHasher::new();
    content.hash(&mut hasher);
    let folder = cache.join(format!("{:016x}", hasher.finish()));
    own_folder(cache)?;
    own_folder(&folder)?;
    let name = library.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let name = name
        .to_string_lossy()
        .replace([' ', ':', '$', ',', '\n'], "_");
    let path = folder.join(name);
    // Nobody else can have written it, but it may be from a machine that stopped halfway.
    if fs::read(&path).is_ok_and(|known| known == content) {
        return Ok(path);
    }
    let fresh = folder.join(format!("{}.tmp", std::process::id()));
    let written = || -> io::Result<()> {
        let mut file: File = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o644)
            .open(&fresh)?;
        file.write_all(&content)?;
        file.set_permissions(Permissions::from_mode(0o755))?;
        fs::rename(&fresh, &path)
    };
    let done = written();
    if done.is_err() {
        let _ = fs::remove_file(&fresh);
    }
    done.map(|()| path)
}

/// Makes a folder, or makes sure that the one that is there is this user's and nobody else may write to it.
pub(super) fn own_folder(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o755).create(path) {
        Ok(()) => fs::set_permissions(path, Permissions::from_mode(0o755))?,
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        Err(e) => return Err(e),
    }
    let own = rustix::process::geteuid().as_raw();
    let is_own = |path: &Path| {
        let found = fs::symlink_metadata(path);
        found.is_ok_and(|m| m.is_dir() && m.uid() == own && m.mode() & 0o022 == 0)
    };
    if is_own(path) {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "{} is not this user's alone",
        path.display()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_the_loader_would_split_gets_a_copy_that_is_made_once() {
        let dir = tempfile::tempdir().unwrap();
        let odd = dir.path().join("a b:c");
        fs::create_dir(&odd).unwrap();
        let library = odd.join("lib x.so");
        fs::write(&library, b"content").unwrap();
        assert!(why_not_there(&library).is_some());
        let cache = dir.path().join("cache");
        let copy = copy_into(&cache, &library).unwrap();
        assert_eq!(fs::read(&copy).unwrap(), b"content");
        assert!(copy.ends_with("lib_x.so"));
        let made = fs::metadata(&copy).unwrap();
        assert_eq!(made.mode() & 0o777, 0o755);
        assert_eq!(copy_into(&cache, &library).unwrap(), copy);
        assert_eq!(fs::metadata(&copy).unwrap().ino(), made.ino());
        // A folder that others may write to is not used.
        fs::set_permissions(&cache, Permissions::from_mode(0o777)).unwrap();
        assert!(copy_into(&cache, &library).is_err());
    }

    #[test]
    fn a_library_that_others_cannot_read_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let library = dir.path().join("x.so");
        fs::write(&library, b"").unwrap();
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(&library, Permissions::from_mode(0o644)).unwrap();
        assert_eq!(why_not_there(&library), None);
        fs::set_permissions(&library, Permissions::from_mode(0o600)).unwrap();
        assert!(why_not_there(&library).is_some());
        fs::set_permissions(&library, Permissions::from_mode(0o644)).unwrap();
        fs::set_permissions(dir.path(), Permissions::from_mode(0o700)).unwrap();
        assert!(why_not_there(&library).is_some());
    }
}
