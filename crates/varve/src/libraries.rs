//! The libraries that are loaded into what is recorded: where they are, and whether they can be trusted.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use varve_sys::rights::gained_by_file;

use crate::commands::Failure;

/// The preload library's file name.
pub(crate) const PRELOAD: &str = "libvarve_preload.so";
/// The file name of the emulator's plugin.
pub(crate) const PLUGIN: &str = "libvarve_qemu_counter.so";

const WRITABLE_BY_ALL: u32 = 0o002;
const WRITABLE_BY_GROUP: u32 = 0o020;
const STICKY: u32 = 0o1000;

/// The preload library.
///
/// # Errors
/// Where others could have put something else in its place.
pub(crate) fn preload() -> Result<Option<PathBuf>, Failure> {
    find("VARVE_PRELOAD", PRELOAD)
}

/// The emulator's plugin.
///
/// # Errors
/// As for [`preload`].
pub(crate) fn plugin() -> Result<Option<PathBuf>, Failure> {
    find("VARVE_QEMU_COUNTER", PLUGIN)
}

/// The library of an allocator that is built with this program.
///
/// # Errors
/// As for [`preload`].
pub(crate) fn allocator(name: &str) -> Result<Option<PathBuf>, Failure> {
    trusted(beside(name), name, "take another allocator")
}

/// A library: named by the caller, beside the program, or in the library folder of an installation. A program that
/// its file gave rights does not believe its caller.
fn find(variable: &str, name: &str) -> Result<Option<PathBuf>, Failure> {
    let named = std::env::var_os(variable).filter(|_| !gained_by_file());
    let found = named.map(PathBuf::from).or_else(|| beside(name));
    trusted(found, name, "record with --no-preload")
}

fn trusted(
    found: Option<PathBuf>,
    name: &str,
    otherwise: &str,
) -> Result<Option<PathBuf>, Failure> {
    let Some(path) = found else {
        return Ok(None);
    };
    match distrust(&path) {
        None => Ok(Some(path)),
        Some((what, path)) => Err(Failure {
            what: format!("{name} is not loaded into anything: {what}"),
            hint: Some(format!(
                "take that right away (chmod go-w {0}; chown root {0}), or {otherwise}",
                path.display()
            )),
            code: 125,
        }),
    }
}

fn beside(name: &str) -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    let folder = program.parent()?;
    [folder.join(name), folder.join("../lib/varve").join(name)]
        .into_iter()
        .find(|p| p.is_file())
}

/// Why a library is not to be trusted, if it is not, and which file is at fault: somebody can write it who cannot
/// write this program.
fn distrust(path: &Path) -> Option<(String, PathBuf)> {
    // What is not there is found out by who loads it.
    let path = path.canonicalize().ok()?;
    let library = path.metadata().ok()?;
    let folder = path.parent()?;
    let around = folder.metadata().ok()?;
    let program = std::env::current_exe().and_then(|p| p.metadata()).ok();
    let own = rustix::process::geteuid().as_raw();
    let trusted =
        |user: u32| user == 0 || user == own || program.as_ref().is_some_and(|p| p.uid() == user);
    let shared = |meta: &Metadata| meta.mode() & WRITABLE_BY_ALL != 0;
    let group_has_program = program
        .as_ref()
        .is_some_and(|p| p.mode() & WRITABLE_BY_GROUP != 0 && p.gid() == library.gid());
    let what = if shared(&library) {
        "everybody can write it".to_owned()
    } else if !trusted(library.uid()) {
        format!("it belongs to user {}", library.uid())
    } else if library.mode() & WRITABLE_BY_GROUP != 0 && library.gid() != 0 && !group_has_program {
        format!("group {} can write it", library.gid())
    } else if shared(&around) && around.mode() & STICKY == 0 {
        return Some((
            format!("everybody can write its folder, {}", folder.display()),
            folder.to_owned(),
        ));
    } else if !trusted(around.uid()) {
        return Some((
            format!("its folder belongs to user {}", around.uid()),
            folder.to_owned(),
        ));
    } else {
        return None;
    };
    Some((what, path))
}
