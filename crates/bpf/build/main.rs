//! Compiles the BPF programs with clang into one object, which the crate embeds, and makes the Rust side of their header

mod abi;

use std::path::PathBuf;

use libbpf_cargo::SkeletonBuilder;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=bpf");
    println!("cargo:rerun-if-changed=build");
    println!("cargo:rerun-if-env-changed=CLANG");
    let folder = PathBuf::from(std::env::var("OUT_DIR")?);
    let header = abi::rust(&std::fs::read_to_string("bpf/abi.h")?)
        .map_err(|what| format!("bpf/abi.h: {what}"))?;
    std::fs::write(folder.join("abi.rs"), header)?;
    let object = folder.join("varve.bpf.o");
    let mut builder = SkeletonBuilder::new();
    if let Ok(clang) = std::env::var("CLANG") {
        builder.clang(clang);
    }
    builder
        .source("bpf/varve.bpf.c")
        .obj(&object)
        .clang_args(["-O2", "-mcpu=v3", "-Wall", "-Wextra", "-Wno-unused-parameter"])
        .build()
        .map_err(|error| {
            format!("compiling the BPF programs failed: {error:#} (hint: it needs clang 12 or later with the BPF target)")
        })?;
    Ok(())
}
