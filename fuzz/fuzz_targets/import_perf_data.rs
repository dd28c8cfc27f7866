#![no_main]

#[path = "../src/import.rs"]
mod import;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let folder = std::env::temp_dir().join(format!("varve-fuzz-perf_data-{}", std::process::id()));
    import::run(bytes, varve_model::ImportFormat::PerfData, &folder);
});
