//! What allocators are called, by the file that has them.

use varve_model::{CLibrary, c_library};

/// Parts of file names, and the allocators whose they are.
const NAMES: [(&str, &str); 9] = [
    ("libjemalloc", "jemalloc"),
    ("libtcmalloc", "tcmalloc"),
    ("libmimalloc", "mimalloc"),
    ("libtbbmalloc", "tbb"),
    ("scudo", "scudo"),
    ("snmalloc", "snmalloc"),
    ("rpmalloc", "rpmalloc"),
    ("libhoard", "hoard"),
    ("libdieharder", "dieharder"),
];

/// The name of the allocator in a file, where it does not stand behind that in parentheses; the file's where it is not known.
#[must_use]
pub fn allocator_name(file: &str) -> &str {
    let said = file
        .strip_suffix(')')
        .and_then(|text| text.rsplit_once(" ("));
    if let Some((_, name)) = said {
        return name;
    }
    let base = file.rsplit('/').next().unwrap_or(file);
    let known = NAMES.iter().find(|(part, _)| base.contains(part));
    let of_libc = || match c_library(base)? {
        CLibrary::Library | CLibrary::Loader if base.contains("musl") => Some("musl"),
        CLibrary::Library => Some("glibc"),
        CLibrary::Loader | CLibrary::Companion => None,
    };
    known
        .map(|(_, name)| *name)
        .or_else(of_libc)
        .unwrap_or(base)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocators_are_known_by_their_files() {
        assert_eq!(allocator_name("/usr/lib/libjemalloc.so.2"), "jemalloc");
        assert_eq!(allocator_name("/usr/bin/server (glibc)"), "glibc");
        assert_eq!(allocator_name("/usr/bin/server"), "server");
        assert_eq!(allocator_name("/lib/libc.so.6"), "glibc");
        assert_eq!(allocator_name("/lib/ld-musl-x86_64.so.1"), "musl");
        assert_eq!(allocator_name("/lib/libc-client.so.2"), "libc-client.so.2");
        assert_eq!(allocator_name("/opt/a (b)/server"), "server");
    }
}
