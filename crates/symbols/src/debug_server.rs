//! Separate debug files from servers of the debuginfod protocol, by the client of elfutils (debuginfod-find(1)).

use std::env;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::input::BuildId;

/// The variable that names the servers, separated by blanks.
const URLS: &str = "DEBUGINFOD_URLS";
/// The client.
const CLIENT: &str = "debuginfod-find";
/// Servers that gave nothing for as long are asked for nothing more. The client's own limit is 90 s without progress (`DEBUGINFOD_TIMEOUT`).
const PATIENCE: Duration = Duration::from_secs(60);

/// Servers of debug files, and the client that asks them. It keeps what it has fetched (`DEBUGINFOD_CACHE_PATH`).
#[derive(Debug)]
pub struct DebugServer {
    client: PathBuf,
    /// They did not answer in time.
    is_silent: AtomicBool,
    /// Why the last file could not be fetched that a server may have.
    failure: Mutex<Option<String>>,
}

/// The environment names servers of debug files, and their client is not installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoClient;

impl DebugServer {
    /// The servers that the environment names in `DEBUGINFOD_URLS`; none where it names none.
    ///
    /// # Errors
    /// Where it names some and no folder of `PATH` has `debuginfod-find`.
    pub fn of_environment() -> Result<Option<DebugServer>, NoClient> {
        let urls = env::var_os(URLS).unwrap_or_default();
        let path = env::var_os("PATH").unwrap_or_default();
        DebugServer::of(&urls, &path)
    }

    fn of(urls: &OsStr, path: &OsStr) -> Result<Option<DebugServer>, NoClient> {
        if urls.as_bytes().trim_ascii().is_empty() {
            return Ok(None);
        }
        Ok(Some(DebugServer {
            client: client_in(path).ok_or(NoClient)?,
            is_silent: AtomicBool::new(false),
            failure: Mutex::new(None),
        }))
    }

    /// Whether the client is installed.
    pub fn has_client() -> bool {
        env::var_os("PATH").is_some_and(|path| client_in(&path).is_some())
    }

    /// Why the last file could not be fetched, as the client said it; none where each server answered, if only that it has none.
    pub fn failure(&self) -> Option<String> {
        self.failure.lock().ok()?.clone()
    }

    /// Fetches the debug file of this build, and returns where the client has put it; none where no server has it. Whether it is of
    /// this build is for the caller to check.
    pub(crate) fn fetch(&self, id: &BuildId) -> Option<PathBuf> {
        // A build id of fewer bytes proves nothing.
        if id.0.len() < 8 || self.is_silent.load(Ordering::Relaxed) {
            return None;
        }
        let begun = Instant::now();
        let done = Command::new(&self.client)
            .args(["debuginfo", &id.to_string()])
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .output()
            .ok()?;
        if !done.status.success() {
            let said = failure_of(&String::from_utf8_lossy(&done.stderr));
            if let (Some(said), Ok(mut failure)) = (said, self.failure.lock()) {
                *failure = Some(said);
            }
            let is_silent = begun.elapsed() >= PATIENCE;
            self.is_silent.store(is_silent, Ordering::Relaxed);
            return None;
        }
        let path = Path::new(OsStr::from_bytes(done.stdout.trim_ascii()));
        path.is_absolute().then(|| path.to_owned())
    }
}

/// The client, in the first of these folders that has it.
fn client_in(path: &OsStr) -> Option<PathBuf> {
    let mut places = env::split_paths(path).map(|folder| folder.join(CLIENT));
    places.find(|place| place.is_absolute() && place.is_file())
}

/// Why a file could not be fetched, of what the client says: `Server query failed: REASON`. That no server has it is no failure.
fn failure_of(said: &str) -> Option<String> {
    let reason = said
        .lines()
        .rev()
        .find_map(|line| line.split_once("failed: "));
    let reason = reason.map_or(said.trim(), |(_, reason)| reason.trim());
    let is_absence = reason.is_empty() || reason == "No such file or directory";
    (!is_absence).then(|| reason.chars().take(200).collect())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A folder whose client does this.
    fn client(script: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(CLIENT);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        folder
    }

    fn server(folder: &Path) -> DebugServer {
        let found = DebugServer::of(OsStr::new("http://localhost"), folder.as_os_str());
        found.unwrap().unwrap()
    }

    #[test]
    fn nothing_is_asked_where_no_server_is_named() {
        let folder = client("exit 1");
        let none = DebugServer::of(OsStr::new(" "), folder.path().as_os_str());
        assert!(none.unwrap().is_none());
        let nowhere = DebugServer::of(OsStr::new("http://localhost"), OsStr::new("/nowhere"));
        assert_eq!(nowhere.unwrap_err(), NoClient);
    }

    #[test]
    fn what_the_client_prints_is_where_the_file_is() {
        let id = BuildId(vec![0xab; 20]);
        let folder = client(r#"echo "/cache/$1/$2""#);
        let path = server(folder.path()).fetch(&id).unwrap();
        assert_eq!(
            path,
            Path::new(&format!("/cache/debuginfo/{}", "ab".repeat(20)))
        );
        for (said, failure) in [
            ("No such file or directory", None),
            ("No route to host", Some("No route to host")),
        ] {
            let folder = client(&format!("echo 'Server query failed: {said}' >&2; exit 2"));
            let server = server(folder.path());
            assert_eq!(server.fetch(&id), None);
            assert_eq!(server.failure().as_deref(), failure);
        }
        assert_eq!(server(folder.path()).fetch(&BuildId(vec![1])), None);
    }
}
