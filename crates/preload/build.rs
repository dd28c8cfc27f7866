//! Tells the linker where the compiler keeps its static unwinder, and to link no C library.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // The library defines all that it needs: see `own`. What it lacks must not be found out by the programs that load it.
    for argument in [
        "-nostdlib",
        "-nostartfiles",
        "-Wl,-z,defs",
        "-Wl,-Bsymbolic",
    ] {
        println!("cargo:rustc-cdylib-link-arg={argument}");
    }
    let found = Command::new("cc")
        .arg("-print-file-name=libgcc_eh.a")
        .output();
    let Ok(found) = found else { return };
    let path = String::from_utf8_lossy(&found.stdout);
    if let Some(folder) = Path::new(path.trim()).parent() {
        println!("cargo:rustc-link-search=native={}", folder.display());
    }
}
