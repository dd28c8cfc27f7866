//! Why the preload library does not report a process's objects.

use std::fs;
use std::path::Path;

use varve_model::Pid;

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
            WhyNot::Unanswered => "unanswered",
        }
    }

    /// What keeps the library from the program that a process has just begun, as far as that can be seen from outside.
    pub(crate) fn of(pid: Pid, library: &Path) -> Option<WhyNot> {
        let proc = |name: &str| format!("/proc/{pid}/{name}");
        let exe = proc("exe");
        // Of a process that has ended nothing can be seen.
        fs::read_link(&exe).ok()?;
        if !varve_symbols::loads_libraries(Path::new(&exe)) {
            return Some(WhyNot::Static);
        }
        if varve_sys::is_secure(pid) {
            return Some(WhyNot::Rights);
        }
        // In this order: a process whose variables can be read then had its root folder before.
        let has_library = in_its_root(pid, library);
        let Ok(variables) = fs::read(proc("environ")) else {
            return None;
        };
        // A process that is on its way out shows neither variables nor words.
        let is_over = || varve_sys::cmdline(pid).is_ok_and(|words| words.is_empty());
        let excused = variables.is_empty() && is_over();
        if !preloads(&variables, library) && !excused {
            return Some(match has_library {
                true => WhyNot::Environment,
                false => WhyNot::Root,
            });
        }
        (!has_library).then_some(WhyNot::Root)
    }
}

/// Whether an environment, variables that end in zero bytes, has the library preloaded.
fn preloads(variables: &[u8], library: &Path) -> bool {
    let library = library.as_os_str().as_encoded_bytes();
    let lists = variables
        .split(|b| *b == 0)
        .filter_map(|v| v.strip_prefix(b"LD_PRELOAD="));
    lists
        .flat_map(|list| list.split(|b| matches!(b, b':' | b' ')))
        .any(|one| one == library)
}

/// Whether a process finds the library at its path. Where that cannot be seen it does.
fn in_its_root(pid: Pid, library: &Path) -> bool {
    let Ok(inside) = library.strip_prefix("/") else {
        return true;
    };
    let root = format!("/proc/{pid}/root");
    if fs::symlink_metadata(&root).is_err() {
        return true;
    }
    fs::symlink_metadata(Path::new(&root).join(inside)).is_ok()
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
