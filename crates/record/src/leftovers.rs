//! What dead recorders left whose watchdogs died with them: run folders, cgroups, and groups that stand still.
//!
//! Only what carries a recorder's mark without doubt is removed. What only looks like a recorder's is listed for a person
//! to judge.

mod folder;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use varve_model::Pid;
use varve_preload_abi::DIRECTORY_VARIABLE;
use varve_sys::{Cgroup, CgroupMark};

pub(crate) use self::folder::{BASES, LeftFolder, PREFIX, candidates, recorder_of};
use self::folder::{Doubt, number_of};
use crate::marker::Marker;

/// How deep cgroups are looked for: deeper than any machine has them.
const MAX_DEPTH: usize = 32;

/// A thing that a dead recorder left, or seems to have left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leftover {
    /// Where it is.
    pub path: PathBuf,
    /// What it is.
    pub kind: LeftoverKind,
    /// Why it is left alone, where it is not a recorder's without doubt.
    pub doubt: Option<String>,
}

/// What a recorder can leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftoverKind {
    /// The folder through which the processes of a recording speak to the recorder.
    RunFolder,
    /// A cgroup that a recorder made.
    Cgroup,
    /// A cgroup of somebody else's that a recorder froze.
    FrozenCgroup,
    /// The process that resolves a target's page faults (`--backend fault`). It ends by itself, once it has brought the
    /// target's pages back.
    Handler,
}

/// Finds all of them; changes nothing.
pub fn find_leftovers() -> Vec<Leftover> {
    let mut found = Vec::new();
    if let Ok(root) = Cgroup::mount_point() {
        found.extend(cgroups(&root));
    }
    for path in candidates() {
        let doubt = match LeftFolder::left(&path) {
            Ok(_) => None,
            Err(Doubt::InUse) => continue,
            Err(doubt) => Some(reason(doubt)),
        };
        found.push(Leftover {
            path,
            kind: LeftoverKind::RunFolder,
            doubt,
        });
    }
    found.extend(handlers());
    found
}

/// The fault handlers of recorders that are gone.
fn handlers() -> Vec<Leftover> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| number_of(entry.file_name().to_str()?));
    pids.filter_map(|pid| {
        let place = PathBuf::from(format!("/proc/{pid}"));
        if fs::read(place.join("comm")).ok()? != b"varve-handler\n" {
            return None;
        }
        let variables = fs::read(place.join("environ")).ok()?;
        let prefix = format!("{DIRECTORY_VARIABLE}=");
        let mut named = variables.split(|byte| *byte == 0);
        let folder = named.find_map(|one| one.strip_prefix(prefix.as_bytes()))?;
        let mut above = Path::new(OsStr::from_bytes(folder)).ancestors();
        let is_in_use = |path: &Path| {
            matches!(LeftFolder::left(path), Err(Doubt::InUse | Doubt::Owner(_)))
        };
        if above.any(is_in_use) {
            return None;
        }
        let program = fs::read_link(place.join("exe")).unwrap_or_default();
        Some(Leftover {
            path: place,
            kind: LeftoverKind::Handler,
            doubt: Some(format!(
                "the fault handler of {}: it ends once it has brought the program's pages back, without which the program cannot go on",
                program.display()
            )),
        })
    })
    .collect()
}

/// Removes what is a dead recorder's without doubt, and lets go what it still holds. Gives what was found; whatever
/// could not be removed has its doubt.
pub fn clean_leftovers() -> Vec<Leftover> {
    let mut found = find_leftovers();
    for leftover in found.iter_mut().filter(|l| l.doubt.is_none()) {
        let path = &leftover.path;
        let gone = match leftover.kind {
            LeftoverKind::Cgroup => {
                if let Some(parent) = path.parent() {
                    varve_sys::dissolve(path, parent);
                }
                !path.exists()
            }
            LeftoverKind::FrozenCgroup => {
                varve_sys::thaw(path);
                varve_sys::mark_cgroup(path, None).is_ok()
            }
            // Its program needs it.
            LeftoverKind::Handler => false,
            // Looked at anew: nothing is deleted on the strength of an earlier look.
            LeftoverKind::RunFolder => {
                crate::probes::counts::recovery::recover_into_trace(path, Duration::ZERO)
                    && LeftFolder::left(path).is_ok_and(LeftFolder::remove)
            }
        };
        if !gone {
            leftover.doubt = Some("something else is in it".to_owned());
        }
    }
    found
}

fn reason(doubt: Doubt) -> String {
    match doubt {
        Doubt::Owner(user) => format!("it belongs to user {user}"),
        Doubt::Mark => "it has no mark of a recorder".to_owned(),
        Doubt::InUse => "it is in use".to_owned(),
        Doubt::Unreadable => "it is not a folder that can be read".to_owned(),
    }
}

/// The recorder that a cgroup named `varve-PID` would be of.
pub(crate) fn recorder_of_cgroup(name: &OsStr) -> Option<Pid> {
    number_of(name.to_str()?.strip_prefix(PREFIX)?)
}

/// The living recorder that made the cgroup at `path`, or one above it.
pub(crate) fn recorder_above(path: &Path) -> Option<Pid> {
    path.ancestors().find_map(|group| {
        let named = recorder_of_cgroup(group.file_name()?)?;
        match varve_sys::cgroup_mark(group) {
            CgroupMark::Says(text) => Marker::parse(&text)
                .filter(|m| m.pid == named && (!m.is_gone() || varve_sys::is_locked(group)))
                .map(|m| m.pid),
            CgroupMark::Unsupported => varve_sys::is_locked(group).then_some(named),
            CgroupMark::Absent => None,
        }
    })
}

/// What recorders left in the tree of cgroups, the innermost first.
fn cgroups(root: &Path) -> Vec<Leftover> {
    let mut found = Vec::new();
    let mut open = vec![(root.to_owned(), 0)];
    while let Some((folder, depth)) = open.pop() {
        for path in folders(&folder) {
            found.extend(examine_cgroup(&path));
            if depth < MAX_DEPTH {
                open.push((path, depth + 1));
            }
        }
    }
    found.reverse();
    found
}

fn examine_cgroup(path: &Path) -> Option<Leftover> {
    let named = path.file_name().and_then(recorder_of_cgroup);
    let mark = match varve_sys::cgroup_mark(path) {
        CgroupMark::Says(text) => Some(Marker::parse(&text)),
        CgroupMark::Absent => Some(None),
        CgroupMark::Unsupported => None,
    };
    let found = |kind, doubt| {
        Some(Leftover {
            path: path.to_owned(),
            kind,
            doubt,
        })
    };
    let owner = fs::symlink_metadata(path).ok()?.uid();
    let is_own = owner == 0 || owner == rustix::process::geteuid().as_raw();
    match (named, mark) {
        (None, Some(Some(marker))) if is_own && marker.is_gone() && !varve_sys::is_locked(path) => {
            found(LeftoverKind::FrozenCgroup, None)
        }
        (None, _) => None,
        (Some(_), _) if varve_sys::is_locked(path) => None,
        (Some(_), _) if !is_own => found(LeftoverKind::Cgroup, Some(reason(Doubt::Owner(owner)))),
        (Some(named), Some(Some(marker))) if marker.pid == named => marker
            .is_gone()
            .then(|| found(LeftoverKind::Cgroup, None))
            .flatten(),
        // A kernel without room for marks: a process of that number must not exist, nor may the group be in use.
        (Some(named), None) if !Path::new(&format!("/proc/{named}")).exists() => {
            let read = |name: &str| fs::read_to_string(path.join(name)).unwrap_or_default();
            let is_idle = read("cgroup.freeze").starts_with('1') || read("cgroup.procs").is_empty();
            let doubt = (!is_idle).then(|| reason(Doubt::Mark));
            found(LeftoverKind::Cgroup, doubt)
        }
        (Some(_), None) => None,
        (Some(_), Some(_)) => found(LeftoverKind::Cgroup, Some(reason(Doubt::Mark))),
    }
}

fn folders(folder: &Path) -> Vec<PathBuf> {
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
        let folder = |name: &str| recorder_of(OsStr::new(name));
        assert_eq!(folder("varve-12-ab0"), Some(Pid(12)));
        for name in [
            "varve-12",
            "varve-2024-thesis",
            "varve-12-",
            "varve-12-AB",
            "varve-012-ab",
            "varve-+12-ab",
            "varve-x-ab",
            "varve-0-ab",
            "varve-12-ab-cd",
            "varves-12-ab",
        ] {
            assert_eq!(folder(name), None, "{name}");
        }
        let cgroup = |name: &str| recorder_of_cgroup(OsStr::new(name));
        assert_eq!(cgroup("varve-12"), Some(Pid(12)));
        for name in ["varve-", "varve-0", "varve-12-ab", "varve-x", "varve-+1"] {
            assert_eq!(cgroup(name), None, "{name}");
        }
    }
}
