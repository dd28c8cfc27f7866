//! What a file in a program's memory is, by its name: the C library's, the dynamic loader's, the recorder's.

/// Which part of the C library a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CLibrary {
    /// The library itself.
    Library,
    /// A library that comes with it and that older versions have apart: threads, mathematics, real time, `dlopen`.
    Companion,
    /// The dynamic loader, which of musl is the library too.
    Loader,
}

/// The parts that the C library had or has apart.
const COMPANIONS: [&str; 5] = ["libpthread", "libm", "librt", "libdl", "libmvec"];

/// Which part of the C library a file is, by its name or path, also one that the kernel says is deleted; none where it is none.
/// `libc-client.so` and `libcrypto.so` are not the C library.
///
/// Names: glibc has `libc.so.6`, and before 2.34 `libc-2.31.so` with `ld-2.31.so` in places; musl has
/// `libc.musl-x86_64.so.1` and `ld-musl-x86_64.so.1`.
#[must_use]
pub fn c_library(path: &str) -> Option<CLibrary> {
    let name = file_name(path);
    if is_loader(name) {
        return Some(CLibrary::Loader);
    }
    if is_library(name, "libc") || name.starts_with("libc.musl-") {
        return Some(CLibrary::Library);
    }
    let is = COMPANIONS.iter().any(|of| is_library(name, of));
    is.then_some(CLibrary::Companion)
}

/// The last part of a path, without what the kernel says of deleted files.
fn file_name(path: &str) -> &str {
    let path = path.strip_suffix(" (deleted)").unwrap_or(path);
    path.rsplit('/').next().unwrap_or(path)
}

/// Whether a name is `STEM.so`, `STEM.so.6` or `STEM-2.31.so`.
fn is_library(name: &str, stem: &str) -> bool {
    let Some(rest) = name.strip_prefix(stem) else {
        return false;
    };
    is_version(rest.strip_prefix(".so")) || is_numbered(rest)
}

/// Whether what follows `.so` is nothing or a version.
fn is_version(rest: Option<&str>) -> bool {
    let digit = |text: &str| text.starts_with(|c: char| c.is_ascii_digit());
    rest.is_some_and(|rest| rest.is_empty() || rest.strip_prefix('.').is_some_and(digit))
}

/// `-2.31.so`, as files of glibc were called before 2.34.
fn is_numbered(rest: &str) -> bool {
    let number = rest.strip_prefix('-').and_then(|r| r.strip_suffix(".so"));
    number.is_some_and(|n| !n.is_empty() && n.chars().all(|c| c.is_ascii_digit() || c == '.'))
}

/// `ld-linux-x86-64.so.2`, `ld-musl-x86_64.so.1`, `ld64.so.2`, `ld.so.1`, `ld-2.31.so`.
fn is_loader(name: &str) -> bool {
    let Some(rest) = name.strip_prefix("ld") else {
        return false;
    };
    let (start, end) = match rest.split_once(".so") {
        Some((start, end)) => (start, Some(end)),
        None => return false,
    };
    let is_named = start.starts_with("-linux") || start.starts_with("-musl");
    (is_version(end) && (is_named || matches!(start, "" | "64"))) || is_numbered(rest)
}

/// The memory that the recorder shares with a target: the names that it gives to these files.
const SHARED: [&str; 4] = [
    "varve-ring",
    "varve-operations",
    "varve-placing",
    "varve-stops",
];

/// Whether a file that a target has mapped is the recorder's own, by its name or path: a library that it preloads, or memory that it shares
/// with the target.
#[must_use]
pub fn is_recorders(path: &str) -> bool {
    let name = file_name(path);
    let is_shared = |memory: &str| SHARED.contains(&memory);
    name.starts_with("libvarve_") || name.strip_prefix("memfd:").is_some_and(is_shared)
}

/// The kernel's code in each process, for reading clocks.
const VDSO: &str = "[vdso]";

/// Whether a call stack, by the modules of its frames, innermost first, is work of the recorder's in the target: its library is at the top, or has called
/// the kernel's code that is, for the time. A clock whose reader the stack does not show is the program's.
#[must_use]
pub fn is_recorders_work<'a>(modules: impl IntoIterator<Item = Option<&'a str>>) -> bool {
    let mut callers = modules.into_iter().skip_while(|m| *m == Some(VDSO));
    callers.next().flatten().is_some_and(is_recorders)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_c_library_is_known_by_its_name_and_others_that_begin_like_it_are_not() {
        for name in [
            "libc.so.6",
            "/lib/x86_64-linux-gnu/libc.so.6",
            "/usr/lib/libc.so.6 (deleted)",
            "libc-2.31.so",
            "libc.so",
            "libc.musl-x86_64.so.1",
        ] {
            assert_eq!(c_library(name), Some(CLibrary::Library), "{name}");
        }
        for name in [
            "libpthread-2.31.so",
            "libpthread.so.0",
            "libm.so.6",
            "libdl.so.2",
        ] {
            assert_eq!(c_library(name), Some(CLibrary::Companion), "{name}");
        }
        for name in [
            "/lib64/ld-linux-x86-64.so.2",
            "ld-linux-aarch64.so.1",
            "ld-musl-x86_64.so.1",
            "ld-2.31.so",
            "ld64.so.2",
            "ld.so.1",
        ] {
            assert_eq!(c_library(name), Some(CLibrary::Loader), "{name}");
        }
        for name in [
            "libc-client.so",
            "libc-client.so.2007e",
            "libc++.so.1",
            "libcrypto.so.3",
            "libcap.so.2",
            "libc.sotto",
            "libc.so.conf",
            "libc",
            "libmagic.so.1",
            "libmysqlclient.so.21",
            "ld",
            "ld.so.cache",
            "ld.so.conf.d",
            "ldap.so.2",
            "ld.gold",
            "",
        ] {
            assert_eq!(c_library(name), None, "{name}");
        }
    }

    #[test]
    fn the_recorders_files_are_known_by_the_names_that_it_gives_them() {
        for name in [
            "/memfd:varve-ring (deleted)",
            "memfd:varve-operations",
            "/memfd:varve-placing (deleted)",
            "/tmp/x/libvarve_preload.so",
        ] {
            assert!(is_recorders(name), "{name}");
        }
        for name in [
            "/memfd:varve (deleted)",
            "/memfd:ring",
            "/tmp/varve-ring",
            "libvarved.so",
        ] {
            assert!(!is_recorders(name), "{name}");
        }
    }
    #[test]
    fn a_clock_that_the_recorders_library_reads_is_its_work() {
        let own = Some("libvarve_preload.so");
        let (clock, app) = (Some("[vdso]"), Some("app"));
        assert!(is_recorders_work([own, app]));
        assert!(is_recorders_work([clock, own, app]));
        assert!(!is_recorders_work([clock, app, own]));
        assert!(!is_recorders_work([clock, None, own]));
        assert!(!is_recorders_work([Some("libc.so.6"), own, app]));
        assert!(!is_recorders_work([clock]));
        assert!(!is_recorders_work([clock; 0]));
    }
}
