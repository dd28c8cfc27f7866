//! What a trace is called in a store.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use varve_analyse::format;
use varve_model::Pid;
use varve_trace::Trace;
use varve_trace::tables::{MappingRow, ProcessRow};

use super::Push;
use crate::commands::Failure;

/// What a name in a store is called where it is not known.
const UNKNOWN: &str = "unknown";
/// OpenTelemetry's `htlhash` reads so many bytes of a file's head, and of its tail
/// (semantic conventions, `process.executable.build_id.htlhash`).
const HASHED_BYTES: u64 = 4096;
/// No name is longer in a store: with what stands before it, it is one of a file system's, which take 255 bytes.
pub(super) const MAX_NAME: usize = 200;
/// A name that was shortened has so many digits of its hash.
const HASH_DIGITS: usize = 16;
/// The group and others may read a file.
const READ_BY_ALL: u32 = 0o044;
/// The group and others may look up names in a folder.
const ENTERED_BY_ALL: u32 = 0o011;

/// The same for the same trace.
pub(super) fn id(manifest: &[u8]) -> String {
    hexadecimal(&Sha256::digest(manifest)[..8])
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Where in the store a trace belongs.
pub(super) fn place(trace: &Trace, arguments: &Push) -> Result<Vec<String>, Failure> {
    let program = main_program(trace)?;
    let service = arguments.service.clone().or_else(|| {
        let file = program.as_ref().map(|p| p.exe.to_string());
        let word = file.or_else(|| trace.manifest.target.command.first().cloned())?;
        Some(Path::new(&word).file_name()?.to_string_lossy().into_owned())
    });
    let build = match (&arguments.build, &program) {
        (Some(build), _) => Some(build.clone()),
        (None, Some(program)) => build_of(trace, program)?,
        (None, None) => None,
    };
    let host = arguments.host.clone().unwrap_or_else(|| {
        let system = rustix::system::uname();
        system.nodename().to_string_lossy().into_owned()
    });
    let start = trace.manifest.clock.start_unix_ns;
    let date = format::utc(start);
    let named = |what: &str, value: Option<String>| {
        let value = value.map(|v| short(&v)).filter(|v| !v.is_empty());
        format!("{what}={}", value.unwrap_or_else(|| UNKNOWN.to_owned()))
    };
    Ok(vec![
        named("service", service),
        named("build", build),
        named("host", Some(host)),
        format!("date={}", date.get(..10).unwrap_or(UNKNOWN)),
    ])
}

/// The program that the recorded process became last.
fn main_program(trace: &Trace) -> Result<Option<ProcessRow>, Failure> {
    let pid = Pid(trace.manifest.target.pid);
    let all: Vec<ProcessRow> = trace.rows()?;
    let own = all.into_iter().filter(|p| p.pid == pid);
    Ok(own.max_by_key(|p| p.born_ns))
}

/// Which build of it: what its mappings say, else the hash of its file, where that is still the one that ran.
fn build_of(trace: &Trace, program: &ProcessRow) -> Result<Option<String>, Failure> {
    let mappings: Vec<MappingRow> = trace.rows()?;
    let file = program.file.as_ref().unwrap_or(&program.exe);
    let Some(mapping) = mappings
        .into_iter()
        .find(|m| m.pid == program.pid && m.path == *file)
    else {
        return Ok(None);
    };
    if let Some(build) = &mapping.build_id {
        return Ok(Some(build.to_string()));
    }
    let owner = trace.owner()?;
    let found = open_program(Path::new(file), owner).and_then(|file| {
        let is_same = file.metadata()?.ino() == mapping.inode;
        is_same.then(|| htl_hash(&file)).transpose()
    });
    Ok(found.ok().flatten().map(|hash| format!("htl-{hash}")))
}

/// Opens a file that a trace names. Whoever made the trace chose the name, and learns a hash of what is in it: so a trace of
/// somebody else's names only what that user may read too.
fn open_program(path: &Path, owner: u32) -> io::Result<File> {
    let file = varve_sys::open_regular_exactly(path)?;
    if owner == varve_sys::effective_user() || may_read(&file, owner)? {
        return Ok(file);
    }
    Err(io::ErrorKind::PermissionDenied.into())
}

/// Whether a user may certainly read a file that is open: which groups the user is in is not asked.
fn may_read(file: &File, user: u32) -> io::Result<bool> {
    let link = PathBuf::from("/proc/self/fd").join(file_number(file));
    let path = std::fs::read_link(link)?;
    let about = file.metadata()?;
    let at = std::fs::symlink_metadata(&path)?;
    if (at.dev(), at.ino()) != (about.dev(), about.ino()) {
        return Ok(false);
    }
    let may = |about: &std::fs::Metadata, all: u32, owner: u32| match about.uid() == user {
        true => about.mode() & owner != 0,
        false => about.mode() & all == all,
    };
    let mut folders = path.ancestors().skip(1);
    let enters = folders.all(|folder| {
        std::fs::symlink_metadata(folder).is_ok_and(|about| may(&about, ENTERED_BY_ALL, 0o100))
    });
    Ok(enters && may(&about, READ_BY_ALL, 0o400))
}

fn file_number(file: &File) -> String {
    std::os::fd::AsRawFd::as_raw_fd(file).to_string()
}

/// Of the first and the last 4096 bytes, and the length as 8 bytes, the highest first: 16 bytes of SHA-256.
fn htl_hash(file: &File) -> io::Result<String> {
    let bytes = file.metadata()?.len();
    let piece = |from: u64| {
        let mut piece = vec![0; HASHED_BYTES.min(bytes) as usize];
        file.read_exact_at(&mut piece, from).map(|()| piece)
    };
    let mut hash = Sha256::new();
    hash.update(piece(0)?);
    hash.update(piece(bytes.saturating_sub(HASHED_BYTES))?);
    hash.update(bytes.to_be_bytes());
    Ok(hexadecimal(&hash.finalize()[..16]))
}

/// With `%` and two digits for each byte that may not stand in a name.
pub(super) fn encoded(text: &str) -> String {
    let mut name = String::new();
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'.' | b'_' | b'-' => {
                name.push(char::from(byte))
            }
            other => name.push_str(&format!("%{other:02X}")),
        }
    }
    name
}

/// The same where it is no longer than a name may be; else its beginning, and a hash of all of it, so that two stay two.
fn short(text: &str) -> String {
    let whole = encoded(text);
    if whole.len() <= MAX_NAME {
        return whole;
    }
    let mut name = String::new();
    // A character that is cut in the middle would be no text.
    for character in text.chars() {
        let next = encoded(character.encode_utf8(&mut [0; 4]));
        if name.len() + next.len() > MAX_NAME - HASH_DIGITS - 1 {
            break;
        }
        name.push_str(&next);
    }
    let hash = hexadecimal(&Sha256::digest(text.as_bytes())[..HASH_DIGITS / 2]);
    format!("{name}-{hash}")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Against Python's hashlib, and as the Python package has it (`python/tests/test_fleet_push.py`).
    #[test]
    fn names_that_are_too_long_stay_distinct() {
        assert_eq!(short(&"a".repeat(200)), "a".repeat(200));
        let long = short(&"\u{6f22}".repeat(60));
        assert_eq!(long, format!("{}-f2bb5ab56076df21", "%E6%BC%A2".repeat(20)));
        assert_ne!(long, short(&"\u{6f22}".repeat(61)));
        assert!(short(&"x/".repeat(1000)).len() <= MAX_NAME);
    }

    #[test]
    fn files_that_a_user_may_not_read_are_not_read_for_that_user() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("program");
        fs::write(&path, "text").unwrap();
        let mode = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        let stranger = varve_sys::effective_user() + 1;
        let is_opened = |user| open_program(&path, user).is_ok();
        mode(folder.path(), 0o755);
        mode(&path, 0o644);
        assert!(is_opened(stranger));
        mode(folder.path(), 0o700);
        assert!(!is_opened(stranger) && is_opened(varve_sys::effective_user()));
        mode(folder.path(), 0o755);
        for closed in [0o600, 0o640, 0o604] {
            mode(&path, closed);
            assert!(!is_opened(stranger), "{closed:o}");
        }
        for other in [Path::new("/dev/null"), folder.path()] {
            assert!(open_program(other, varve_sys::effective_user()).is_err());
        }
    }

    /// Against Python's hashlib.
    #[test]
    fn a_build_without_an_id_has_its_hash() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("program");
        let hash = |bytes: usize| {
            let text: Vec<u8> = (0..bytes).map(|i| (i % 251) as u8).collect();
            fs::write(&path, text).unwrap();
            htl_hash(&File::open(&path).unwrap()).unwrap()
        };
        assert_eq!(hash(0), "af5570f5a1810b7af78caf4bc70a660f");
        assert_eq!(hash(100), "6f7e61d01e75215762f708a2727b9650");
        assert_eq!(hash(10_000), "29e3194e821b97b5565d43a5156ad97a");
    }
}
