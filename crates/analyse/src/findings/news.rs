//! What is no news: memory of runtimes, of the loader, of executable files, and little of it.

use varve_model::{Bytes, ObjectKind};

use super::MIB;
use crate::analysis::*;

/// Functions of runtimes and allocators that take memory for later; the program did not ask for it there.
const RUNTIMES: [&str; 16] = [
    // Go
    "runtime.sys",
    "runtime.mmap",
    "runtime.persistentalloc",
    // V8 and Node.js
    "v8::base::",
    "v8::internal::",
    "node::",
    // HotSpot
    "(libjvm.so)",
    "os::reserve_memory",
    "os::commit_memory",
    "ReservedSpace",
    // CPython
    "_PyMem_Arena",
    "_PyObject_Arena",
    // glibc
    "new_heap",
    "_dl_",
    "(ld-linux",
    "(ld-musl",
];

/// Whether a name or a site is that of a runtime or of the loader.
pub(super) fn is_runtimes(name: &str, site: Option<&str>) -> bool {
    let is = |text: &str| RUNTIMES.iter().any(|r| text.contains(r));
    is(name) || site.is_some_and(is) || name.starts_with("ld-linux") || name.starts_with("ld-musl")
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

/// Whether a person wants to hear how an object is used.
pub(super) fn is_news(o: &ObjectUse) -> bool {
    !is_runtimes(&o.name, o.site.as_deref()) && !is_linkers(o)
}

/// Less than 4 MiB, and less than a hundredth of what was touched.
pub(super) fn is_little(analysis: &Analysis, bytes: u64) -> bool {
    let Bytes(all) = analysis.footprint.touched_pages.bytes();
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
