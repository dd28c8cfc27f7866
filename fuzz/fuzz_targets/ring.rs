#![no_main]

#[path = "../src/ring.rs"]
mod entry;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    entry::run(bytes);
});
