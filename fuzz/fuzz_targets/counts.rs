#![no_main]

use std::sync::LazyLock;

#[path = "../src/counts.rs"]
mod entry;

// In memory: a target runs some thousand times a second.
static SCRATCH: LazyLock<tempfile::TempDir> =
    LazyLock::new(|| tempfile::tempdir_in("/dev/shm").expect("a folder in /dev/shm"));

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    entry::run(bytes, &SCRATCH.path().join("target.exact"));
});
