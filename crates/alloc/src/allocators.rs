//! What allocators are called, by the file that has them.

/// Parts of file names, and the allocators whose they are.
const NAMES: [(&str, &str); 12] = [
    ("libjemalloc", "jemalloc"),
    ("libtcmalloc", "tcmalloc"),
    ("libmimalloc", "mimalloc"),
    ("libtbbmalloc", "tbb"),
    ("scudo", "scudo"),
    ("libsnmalloc", "snmalloc"),
    ("librpmalloc", "rpmalloc"),
    ("libhoard", "hoard"),
    ("libdieharder", "dieharder"),
    ("libc.so", "glibc"),
    ("libc-2", "glibc"),
    ("ld-musl", "musl"),
];

/// The name of the allocator in a file; that of the file where it is not known.
#[must_use]
pub fn allocator_name(file: &str) -> &str {
    let base = file.rsplit('/').next().unwrap_or(file);
    let known = NAMES.iter().find(|(part, _)| base.contains(part));
    known.map_or(base, |(_, name)| name)
}
