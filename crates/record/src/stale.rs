//! What dead recorders left whose guardians died with them.

use std::fs;
use std::path::{Path, PathBuf};

use varve_model::Pid;
use varve_sys::Cgroup;

/// What a recorder's cgroup and its folder of rings are called, before its process id.
pub(crate) const PREFIX: &str = "varve-";
/// Where folders of rings may lie.
pub(crate) const BASES: [&str; 2] = ["/dev/shm", "/tmp"];
/// How deep cgroups are looked for: deeper than any machine has them.
const DEEPEST: usize = 32;

/// The recorder that a cgroup named `varve-PID` or a folder named `varve-PID-TIME` belongs to.
pub(crate) fn recorder_of(name: &str) -> Option<Pid> {
    let number = name.strip_prefix(PREFIX)?.split('-').next()?;
    number.parse().ok().filter(|p| *p > 0).map(Pid)
}

/// The recorder that holds the cgroup at `path`, itself or one above it.
pub(crate) fn recorder_above(path: &Path) -> Option<Pid> {
    path.components()
        .find_map(|c| recorder_of(c.as_os_str().to_str()?))
}

fn is_gone(pid: Pid) -> bool {
    match varve_sys::status(pid) {
        // Nobody has waited for it yet, which may never happen.
        Ok(status) => status.state == 'Z' || status.state == 'X',
        Err(_) => !Path::new(&format!("/proc/{pid}")).exists(),
    }
}

/// Lets go whatever a dead recorder still holds, and removes its cgroup and its rings. Only what bears
/// the name of a recorder whose process does not exist any more, and what nobody has locked, is touched.
/// Returns what was found.
pub fn clean_stale() -> Vec<PathBuf> {
    let mut cleaned = Vec::new();
    if let Ok(root) = Cgroup::mount_point() {
        for path in cgroups(&root) {
            if let Some(parent) = path.parent() {
                varve_sys::clean_up_after(Some((&path, parent)), None);
                cleaned.push(path);
            }
        }
    }
    for base in BASES {
        for rings in folders(Path::new(base)) {
            let name = rings.file_name().and_then(|n| n.to_str()).unwrap_or("");
            // A recorder's rings are `varve-PID-TIME`; anything else is somebody else's.
            if name.split('-').count() == 3 && is_left(&rings) {
                crate::salvage::salvage(&rings);
                varve_sys::clean_up_after(None, Some(&rings));
                cleaned.push(rings);
            }
        }
    }
    cleaned
}

/// Whether this is a dead recorder's.
fn is_left(path: &Path) -> bool {
    let name = path.file_name().and_then(|n| n.to_str());
    // The lock tells of a recorder in another pid namespace, whose process cannot be seen from here.
    name.and_then(recorder_of).is_some_and(is_gone) && !varve_sys::is_locked(path)
}

/// Stale cgroups, the innermost first.
fn cgroups(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![(root.to_owned(), 0)];
    while let Some((folder, depth)) = open.pop() {
        for path in folders(&folder) {
            let name = path.file_name().and_then(|n| n.to_str()).unwrap_or("");
            if name.split('-').count() == 2 && is_left(&path) {
                found.push(path.clone());
            }
            if depth < DEEPEST {
                open.push((path, depth + 1));
            }
        }
    }
    found.reverse();
    found
}

pub(crate) fn folders(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter(|e| e.file_type().is_ok_and(|t| t.is_dir()))
        .map(|e| e.path())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_recorders_names_count() {
        assert_eq!(recorder_of("varve-12"), Some(Pid(12)));
        assert_eq!(recorder_of("varve-12-ab"), Some(Pid(12)));
        assert_eq!(recorder_of("varve-x"), None);
        assert_eq!(recorder_of("varve-"), None);
        assert_eq!(recorder_of("varve-0"), None);
        assert_eq!(recorder_of("varves-12"), None);
        assert_eq!(recorder_above(Path::new("/a/varve-7/b")), Some(Pid(7)));
        assert_eq!(recorder_above(Path::new("/a/b")), None);
    }

    #[test]
    fn the_living_are_left_alone() {
        assert!(!is_gone(Pid(std::process::id())));
        // Above the largest process id that Linux has.
        assert!(is_gone(Pid(1 << 23)));
    }

    #[test]
    fn what_is_locked_is_not_left() {
        let base = tempfile::tempdir().unwrap();
        let folder = base.path().join(format!("varve-{}-1", 1 << 23));
        fs::create_dir(&folder).unwrap();
        assert!(is_left(&folder));
        let lock = varve_sys::lock(&folder).unwrap();
        assert!(!is_left(&folder));
        drop(lock);
        assert!(is_left(&folder));
    }
}
