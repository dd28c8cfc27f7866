//! Root folders of Debian's releases, made by debootstrap in `target/roots`: programs with an older and a newer C library than this
//! machine's, for the tests.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

use crate::error::{Doing, Error, Result, make_dir, run, write};
use crate::kernels::{Mirror, has_network};

/// The releases that are wanted, where this machine is another one. Debian 10 is on no mirror any more.
const SUITES: [&str; 3] = ["bullseye", "bookworm", "trixie"];

/// Where releases go when mirrors drop them.
const ARCHIVE: &str = "http://archive.debian.org/debian/";

/// A file of a root folder that is written when all else is there.
const COMPLETE: &str = ".complete";

/// Seconds between attempts to make a root folder.
const WAITS: [u64; 2] = [5, 20];

/// Seconds that a mirror has for its answer.
const PATIENCE: &str = "10";

/// Makes the root folders that are not there yet; true if all are there. Of those that cannot be made one line says why not.
pub(crate) fn roots(target: &Path, suites: &[String]) -> Result<bool> {
    let target = std::path::absolute(target).doing(|| format!("find {}", target.display()))?;
    let cache = target.join("roots");
    let wanted = wanted(suites, &release_of_this_machine());
    if wanted.iter().all(|suite| is_complete(&cache.join(suite))) {
        return Ok(true);
    }
    make_dir(&cache)?;
    // Held until this program ends. Another one that waits for it finds its work done.
    let lock =
        File::create(cache.join("lock")).doing(|| format!("write to {}", cache.display()))?;
    flock(&lock, FlockOperation::LockExclusive)
        .map_err(std::io::Error::from)
        .doing(|| format!("lock {}", cache.display()))?;
    let all_made = std::thread::scope(|scope| {
        let made: Vec<_> = wanted
            .iter()
            .filter(|suite| !is_complete(&cache.join(suite)))
            .map(|suite| (suite, scope.spawn(|| make(&cache, suite))))
            .collect();
        made.into_iter()
            .map(|(suite, made)| match made.join() {
                Ok(Ok(())) => true,
                Ok(Err(error)) => {
                    println!("skipped: the root folder of Debian {suite}: {error}");
                    false
                }
                Err(_) => false,
            })
            .fold(true, |all, made| all & made)
    });
    Ok(all_made)
}

/// The suites that were asked for; where none was, all but this machine's own release.
fn wanted(suites: &[String], own: &str) -> Vec<String> {
    if !suites.is_empty() {
        return suites.to_vec();
    }
    let others = SUITES.iter().filter(|suite| **suite != own);
    others.map(|suite| (*suite).to_owned()).collect()
}

/// The code name of this machine's release; empty where it has none.
fn release_of_this_machine() -> String {
    let text = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let name = text
        .lines()
        .find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    name.unwrap_or_default().trim_matches('"').to_owned()
}

fn is_complete(root: &Path) -> bool {
    root.join(COMPLETE).is_file()
}

fn make(cache: &Path, suite: &str) -> Result<()> {
    if !has_network() {
        let why = "it is fetched once, and this machine has no network";
        return Err(Error::failed(why));
    }
    let mirror = mirror_with(suite)?;
    let root = cache.join(suite);
    eprintln!("fetching Debian {suite} from {mirror}");
    let mut waits = WAITS.iter();
    while let Err(error) = bootstrap(cache, &root, suite, &mirror) {
        remove(&root)?;
        let Some(&seconds) = waits.next() else {
            return Err(error);
        };
        eprintln!("Debian {suite} was not fetched; it is tried again in {seconds} s: {error}");
        std::thread::sleep(Duration::from_secs(seconds));
    }
    Ok(())
}

/// The mirror of this machine, or else the archive, if it has that release.
fn mirror_with(suite: &str) -> Result<String> {
    let own = Mirror::of_this_machine()?.uri;
    let mut reasons = Vec::new();
    for mirror in [own.as_str(), ARCHIVE] {
        let mirror = mirror.trim_end_matches('/');
        let status = Command::new("wget")
            .args(["--quiet", "--spider", "--tries=2"])
            .args(["--timeout", PATIENCE])
            .arg(format!("{mirror}/dists/{suite}/Release"))
            .status()
            .doing(|| "start wget".to_owned())?;
        match status.code() {
            Some(0) => return Ok(mirror.to_owned()),
            // The server's answer was an error (wget(1), "EXIT STATUS").
            Some(8) => reasons.push(format!("{mirror} does not have it")),
            _ => reasons.push(format!("{mirror} does not answer")),
        }
    }
    Err(Error::failed(reasons.join(", and ")))
}

/// Makes a root folder, once.
fn bootstrap(cache: &Path, root: &Path, suite: &str, mirror: &str) -> Result<()> {
    // What was broken off.
    remove(root)?;
    // What has come is not fetched again.
    let packages = packages(cache, suite);
    make_dir(&packages)?;
    // It mounts file systems, which go with the mount namespace, however it ends.
    run(Command::new("setpriv")
        .args(["--pdeathsig", "TERM", "unshare", "--mount"])
        .args(["debootstrap", "--variant=minbase"])
        .arg(format!("--cache-dir={}", packages.display()))
        .arg(suite)
        .arg(root)
        .arg(mirror)
        .env("LC_ALL", "C"))?;
    remove(&packages)?;
    write(
        &root.join(COMPLETE),
        format!("Debian {suite} from {mirror}\n"),
    )
}

/// Where the packages of a release lie meanwhile.
fn packages(cache: &Path, suite: &str) -> PathBuf {
    cache.join("packages").join(suite)
}

/// Removes a folder, if it is there, and nothing that is mounted in it.
fn remove(folder: &Path) -> Result<()> {
    run(Command::new("rm")
        .args(["-rf", "--one-file-system"])
        .arg(folder))
    .map(drop)
}

#[cfg(test)]
mod tests {
    use super::{COMPLETE, is_complete, wanted};

    #[test]
    fn the_release_of_the_machine_is_not_wanted() {
        assert_eq!(wanted(&[], "bookworm"), ["bullseye", "trixie"]);
        assert_eq!(wanted(&[], ""), ["bullseye", "bookworm", "trixie"]);
        assert_eq!(wanted(&["bookworm".to_owned()], "bookworm"), ["bookworm"]);
    }

    #[test]
    fn a_root_folder_that_was_broken_off_is_not_complete() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!is_complete(folder.path()));
        std::fs::write(folder.path().join(COMPLETE), "").unwrap();
        assert!(is_complete(folder.path()));
    }
}
