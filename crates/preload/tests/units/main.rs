//! The unit tests of the library's modules. The library replaces the C library's functions and so cannot be a test's own
//! program: what these modules need of the rest of it stands here.
#![allow(missing_docs, dead_code, unused_imports, clippy::unwrap_used)]

#[path = "../../src/arena.rs"]
mod arena;
#[path = "../../src/budget.rs"]
mod budget;
#[path = "../../src/pages.rs"]
mod pages;
#[path = "../../src/proc.rs"]
mod proc;
#[path = "../../src/sys.rs"]
mod sys;

#[path = "../../src/handler"]
mod handler {
    /// A handler's own memory: here each piece is a mapping of its own.
    mod memory {
        pub(super) use crate::sys::map_anonymous as take;
    }
    mod place;
    mod ranges;
}

mod own {
    pub(crate) fn of_machine(own_ns: u64) -> u64 {
        own_ns
    }
}

mod process {
    use std::ptr::NonNull;

    use varve_preload_abi::OwnMemory;

    pub(crate) fn is_confined() -> bool {
        false
    }

    pub(crate) fn note_own_memory(_: NonNull<u8>, _: usize, _: OwnMemory) {}
}
