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
    /// Its environment lacks the library: whoever started it has cleaned it.
    Environment,
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
            WhyNot::Environment => "environment",
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
        let preloads = match exec.preload {
            Preload::Absent => false,
            Preload::Is(list) if is_listed(list, library) => true,
            Preload::Is(list) if list.len() < MAX_LIST => false,
            // Of many variables, or a long one, the kernel's part sees the first.
            _ => preloads_now(exec.pid, library)?,
        };
        match (has_library, preloads) {
            (true, true) => None,
            // Then it has begun again without the library.
            (true, false) if is_sanitized(&program) => Some(WhyNot::Sanitizer),
            (true, false) => Some(WhyNot::Environment),
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

/// Whether a process has the library preloaded, as its environment shows now; none where it is gone.
fn preloads_now(pid: Pid, library: &Path) -> Option<bool> {
    let variables = fs::read(format!("/proc/{pid}/environ")).ok()?;
    // A process that is on its way out shows neither variables nor words.
    if variables.is_empty() && varve_sys::cmdline(pid).is_ok_and(|words| words.is_empty()) {
        return None;
    }
    Some(preloads(&variables, library))
}

/// Whether an environment, variables that end in zero bytes, has the library preloaded.
fn preloads(variables: &[u8], library: &Path) -> bool {
    let mut lists = variables
        .split(|b| *b == 0)
        .filter_map(|v| v.strip_prefix(b"LD_PRELOAD="));
    lists.any(|list| is_listed(list, library))
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
        let has = |text: &str| preloads(text.as_bytes(), library);
        assert!(has("X=1\0LD_PRELOAD=/a/b.so\0Y=2\0"));
        assert!(has("LD_PRELOAD=/c.so:/a/b.so d.so\0"));
        assert!(!has("LD_PRELOAD=/c.so\0"));
        assert!(!has("LD_PRELOAD_=/a/b.so\0X=/a/b.so\0"));
        assert!(!has(""));
    }

    #[test]
    fn this_process_finds_its_own_program() {
        let own = Pid(std::process::id());
        let program = std::env::current_exe().unwrap();
        assert!(in_its_root(own, &program));
        assert!(!in_its_root(own, Path::new("/nowhere/at/all.so")));
    }
}
