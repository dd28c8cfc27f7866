//! What is no news: memory of runtimes, of the loader, of executable files, and little of it.

use std::collections::HashSet;

use varve_model::{Bytes, CLibrary, ObjectId, ObjectKind, Pid, c_library};
use varve_trace::tables::ObjectRow;

use super::MIB;
use crate::analysis::*;
use crate::assemble::Tables;

/// Functions of runtimes and allocators that take memory for later; the program did not ask for it there.
const RUNTIMES: [&str; 15] = [
    // Go
    "runtime.sys",
    "runtime.mmap",
    "runtime.persistentalloc",
    // V8 and Node.js
    "v8::base::",
    "v8::internal::",
    "node::",
    // HotSpot
    "(libjvm.so",
    "os::reserve_memory",
    "os::commit_memory",
    "os::pd_commit_memory",
    "ReservedSpace",
    // CPython
    "_PyMem_Arena",
    "_PyObject_Arena",
    // glibc
    "new_heap",
    "_dl_",
];

/// Whether a name or a site is that of a runtime or of the loader.
pub(super) fn is_runtimes(name: &str, site: Option<&str>) -> bool {
    let is = |text: &str| RUNTIMES.iter().any(|r| text.contains(r));
    is(name) || is_loaders(name) || site.is_some_and(|site| is(site) || is_loaders(site))
}

/// Whether a name or a place is of the loader: `ld-linux-x86-64.so.2 .data`, `mapping from _dl_map (ld-linux-x86-64.so.2)`,
/// `f (ld-musl-x86_64.so.1+0x11d2)`.
fn is_loaders(text: &str) -> bool {
    let is = |file: &str| c_library(file) == Some(CLibrary::Loader);
    let files = text.split('(').skip(1);
    let mut files = files.filter_map(|inside| inside.split([')', '+']).next());
    text.split(' ').next().is_some_and(is) || files.any(is)
}

/// Whether an object is a part of an executable or library that the linker made: code, symbols, relocated constants.
fn is_linkers(o: &ObjectUse) -> bool {
    let part = o.name.rsplit_once(" .").map(|(_, part)| part);
    match (part, o.kind) {
        (Some(part), ObjectKind::Static) => !part.starts_with("data/") && part != "bss",
        (part, ObjectKind::File) => part.is_some(),
        _ => false,
    }
}

/// Files of runtimes whose collector manages the memory of the program.
const COLLECTORS: [&str; 4] = ["libjvm.so ", "node ", "libnode.so", "libcoreclr.so "];
/// A variable that every Go program has.
const GO: &str = "runtime.mheap_";

/// The processes whose memory a runtime's collector manages. What they map is the runtime's, also where nobody saw who
/// mapped it.
pub(super) fn collected(tables: &Tables) -> HashSet<Pid> {
    let is = |name: &str| COLLECTORS.iter().any(|c| name.starts_with(c)) || name.starts_with(GO);
    let of_files = tables
        .objects
        .iter()
        .filter(|o| matches!(o.kind, ObjectKind::File | ObjectKind::Static));
    of_files.filter(|o| is(&o.name)).map(|o| o.pid).collect()
}

/// Mappings that a library made. What it does not touch of them is a reserve, which the program did not ask for.
pub(super) fn from_libraries(tables: &Tables) -> HashSet<ObjectId> {
    let is_librarys = |o: &&ObjectRow| {
        let site = o.site.filter(|site| tables.library_sites.contains(site));
        o.kind == ObjectKind::Mapping && site.is_some()
    };
    let objects = tables.objects.iter().filter(is_librarys);
    objects.map(|o| o.object).collect()
}

/// Whether a person wants to hear how an object is used.
pub(super) fn is_news(o: &ObjectUse) -> bool {
    !is_runtimes(&o.name, o.site.as_deref()) && !is_linkers(o)
}

/// Less than 4 MiB, and less than a hundredth of what was touched.
pub(super) fn is_little(analysis: &Analysis, bytes: u64) -> bool {
    let Bytes(all) = analysis.footprint.touched_pages.or_zero().bytes();
    bytes < 4 * MIB && bytes.saturating_mul(100) < all
}

/// Whether the advice of a rule is for machines with several memory nodes.
pub(super) const fn needs_nodes(id: FindingId) -> bool {
    matches!(
        id,
        FindingId::PageFalseSharing
            | FindingId::ParallelFirstTouch
            | FindingId::Interleave
            | FindingId::Replicate
            | FindingId::SingleFirstTouch
            | FindingId::ScannedByAll
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_the_loader_is_known_by_its_file() {
        for name in [
            "ld-linux-x86-64.so.2 .data",
            "mapping from map_segments (ld-linux-x86-64.so.2)",
            "f (ld-musl-x86_64.so.1+0x11d2)",
            "f (ld-2.31.so)",
        ] {
            assert!(is_runtimes(name, None), "{name}");
            assert!(is_runtimes("mapping", Some(name)), "{name}");
        }
        for name in ["ld-linuxx", "grid (ldap.so)", "f (libc-client.so)"] {
            assert!(!is_runtimes(name, Some(name)), "{name}");
        }
    }
}
