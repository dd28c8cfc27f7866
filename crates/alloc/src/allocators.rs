//! What allocators are called, by the file that has them.

/// Parts of file names, and the allocators whose they are.
const NAMES: [(&str, &str); 12] = [
    ("libjemalloc", "jemalloc"),
    ("libtcmalloc", "tcmalloc"),
    ("libmimalloc", "mimalloc"),
    ("libtbbmalloc", "tbb"),
    ("scudo", "scudo"),
    ("snmalloc", "snmalloc"),
    ("rpmalloc", "rpmalloc"),
    ("libhoard", "hoard"),
    ("libdieharder", "dieharder"),
    ("libc.so", "glibc"),
    ("libc-2", "glibc"),
    ("ld-musl", "musl"),
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
    known.map_or(base, |(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocators_are_known_by_their_files() {
        assert_eq!(allocator_name("/usr/lib/libjemalloc.so.2"), "jemalloc");
        assert_eq!(allocator_name("/usr/bin/server (glibc)"), "glibc");
        assert_eq!(allocator_name("/usr/bin/server"), "server");
        assert_eq!(allocator_name("/opt/a (b)/server"), "server");
    }
}
