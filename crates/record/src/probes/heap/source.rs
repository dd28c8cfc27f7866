//! Why the preload library does not report a process's objects.

use std::fs;
use std::path::{Path, PathBuf};

use varve_bpf::{Exec, Preload};
use varve_model::Pid;
use varve_symbols::{OtherLoader, is_sanitized, other_loader};

use crate::target::layout;

/// What keeps the library from a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WhyNot {
    /// It loads no libraries.
    Static,
    /// It gained rights by its file's bits: the loader drops the library.
    Rights,
    /// Its `LD_PRELOAD` has other libraries alone.
    Replaced,
    /// It has no `LD_PRELOAD`.
    Removed,
    /// It has no variables at all.
    Cleared,
    /// The library is not to be found in its root folder, or its user may not read it.
    Root,
    /// It is a 32-bit program.
    Bits,
    /// Its C library is musl.
    Musl,
    /// It is built with a sanitizer, which must stand in front of the allocator alone.
    Sanitizer,
    /// It did not ask for a ring in time, or got none.
    Unanswered,
}

impl WhyNot {
    /// The word in traces.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            WhyNot::Static => "static",
            WhyNot::Rights => "rights",
            WhyNot::Replaced => "replaced",
            WhyNot::Removed => "removed",
            WhyNot::Cleared => "cleared",
            WhyNot::Root => "root",
            WhyNot::Bits => "bits",
            WhyNot::Musl => "musl",
            WhyNot::Sanitizer => "sanitizer",
            WhyNot::Unanswered => "unanswered",
        }
    }

    /// What keeps the library from the program that a process has just begun, as far as that can be seen from outside.
    pub(crate) fn of(exec: &Exec<'_>, library: &Path) -> Option<WhyNot> {
        // The process may have gone on to another program, or ended.
        let named = exec.file().filter(|_| !exec.has_other_root);
        let program = named.unwrap_or_else(|| format!("/proc/{}/exe", exec.pid).into());
        match other_loader(&program) {
            Some(OtherLoader::Short) => return Some(WhyNot::Bits),
            Some(OtherLoader::Musl) => return Some(WhyNot::Musl),
            None => {}
        }
        if exec.is_static && !is_loader(exec.pid) {
            return Some(WhyNot::Static);
        }
        if exec.is_secure {
            return Some(WhyNot::Rights);
        }
        // In this order: a process whose variables can be read then had its root folder before.
        let has_library = !exec.has_other_root || in_its_root(exec.pid, library);
        let lacks = match exec.preload {
            Preload::NoVariables => Some(WhyNot::Cleared),
            Preload::Absent => Some(WhyNot::Removed),
            Preload::Is(list) if is_listed(list, library) => None,
            Preload::Is(list) if list.len() < MAX_LIST => Some(of_others(list)),
            // Of many variables, or a long one, the kernel's part sees the first.
            _ => lacks(&variables_now(exec.pid)?, library),
        };
        match (has_library, lacks) {
            (true, None) => None,
            // Then it has begun again without the library.
            (true, Some(_)) if is_sanitized(&program) => Some(WhyNot::Sanitizer),
            (true, Some(why)) => Some(why),
            (false, _) => Some(WhyNot::Root),
        }
    }
}

/// Whether a process runs the dynamic loader as a program, which begins in its own code and loads libraries nevertheless.
fn is_loader(pid: Pid) -> bool {
    let program = fs::read_link(format!("/proc/{pid}/exe"));
    program.is_ok_and(|program| varve_symbols::is_loader(&program))
}

/// Longer ones are cut.
const MAX_LIST: usize = 255;

/// A process's environment as it is now, variables that end in zero bytes; none where it is gone.
fn variables_now(pid: Pid) -> Option<Vec<u8>> {
    let variables = fs::read(format!("/proc/{pid}/environ")).ok()?;
    // A process that is on its way out shows neither variables nor words.
    if variables.is_empty() && varve_sys::cmdline(pid).is_ok_and(|words| words.is_empty()) {
        return None;
    }
    Some(variables)
}

/// Why an environment does not have the library preloaded; none where it has.
fn lacks(variables: &[u8], library: &Path) -> Option<WhyNot> {
    let lists = variables
        .split(|b| *b == 0)
        .filter_map(|v| v.strip_prefix(b"LD_PRELOAD="));
    let lists: Vec<&[u8]> = lists.collect();
    match lists.as_slice() {
        _ if lists.iter().any(|list| is_listed(list, library)) => None,
        [] if variables.is_empty() => Some(WhyNot::Cleared),
        [] => Some(WhyNot::Removed),
        [list, ..] => Some(of_others(list)),
    }
}

/// What became of the library where a list has not got it.
fn of_others(list: &[u8]) -> WhyNot {
    match list.iter().all(|b| matches!(b, b':' | b' ')) {
        true => WhyNot::Removed,
        false => WhyNot::Replaced,
    }
}

/// Whether a list of libraries to be preloaded has this one.
fn is_listed(list: &[u8], library: &Path) -> bool {
    let library = library.as_os_str().as_encoded_bytes();
    list.split(|b| matches!(b, b':' | b' '))
        .any(|one| one == library)
}

/// Whether a process finds the library at its path. Where that cannot be seen it does.
fn in_its_root(pid: Pid, library: &Path) -> bool {
    let root = format!("/proc/{pid}/root");
    if fs::symlink_metadata(&root).is_err() {
        return true;
    }
    let is_there = |place: &PathBuf| {
        let inside = place.strip_prefix("/").unwrap_or(place);
        fs::symlink_metadata(Path::new(&root).join(inside)).is_ok()
    };
    layout::places(library).iter().all(is_there)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_found_among_others() {
        let library = Path::new("/a/b.so");
        let why = |text: &str| lacks(text.as_bytes(), library);
        assert_eq!(why("X=1\0LD_PRELOAD=/a/b.so\0Y=2\0"), None);
        assert_eq!(why("LD_PRELOAD=/c.so:/a/b.so d.so\0"), None);
        assert_eq!(why("LD_PRELOAD=/c.so\0"), Some(WhyNot::Replaced));
        assert_eq!(why("LD_PRELOAD=\0X=1\0"), Some(WhyNot::Removed));
        let other = "LD_PRELOAD_=/a/b.so\0X=/a/b.so\0";
        assert_eq!(why(other), Some(WhyNot::Removed));
        assert_eq!(why(""), Some(WhyNot::Cleared));
    }

    #[test]
    fn this_process_finds_its_own_program() {
        let own = Pid(std::process::id());
        let program = std::env::current_exe().unwrap();
        assert!(in_its_root(own, &program));
        assert!(!in_its_root(own, Path::new("/nowhere/at/all.so")));
    }
}
