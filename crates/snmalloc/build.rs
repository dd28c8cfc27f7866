//! Tells the linker where the compiler keeps its static unwinder, and looks whether snmalloc is compiled so that programs can fork.

use std::path::Path;
use std::process::{Command, ExitCode};

/// What `.cargo/config.toml` defines for it.
const GUARD: &str = "-DSNMALLOC_PTHREAD_FORK_PROTECTION";

fn main() -> ExitCode {
    println!("cargo:rerun-if-changed=build.rs");
    let target = std::env::var("TARGET").unwrap_or_default();
    let flags = format!("CXXFLAGS_{}", target.replace('-', "_"));
    println!("cargo:rerun-if-env-changed={flags}");
    if !std::env::var(&flags).is_ok_and(|flags| flags.contains(GUARD)) {
        println!(
            "cargo::error={flags} lacks {GUARD}: children of programs with threads could hang; build within the repository, whose .cargo/config.toml sets it"
        );
        return ExitCode::FAILURE;
    }
    let found = Command::new("cc")
        .arg("-print-file-name=libgcc_eh.a")
        .output();
    if let Ok(found) = found {
        let path = String::from_utf8_lossy(&found.stdout);
        if let Some(folder) = Path::new(path.trim()).parent() {
            println!("cargo:rustc-link-search=native={}", folder.display());
        }
    }
    ExitCode::SUCCESS
}
