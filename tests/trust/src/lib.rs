//! What the cases of the trust suite share: a second user without rights, and programs built once.
//!
//! A case plays one attack or one unusual machine against a real recorder and looks at what came of it. Processes
//! and folders belong to a [`varve_faults::Stage`], which removes whatever is left.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A user id that no account has: the local user who should gain nothing.
pub const STRANGER: u32 = 64_201;
/// Another one.
pub const SECOND_STRANGER: u32 = 64_202;

/// Has the command run as a user without rights, with no groups of the caller's.
pub fn as_user(command: &mut Command, user: u32) -> &mut Command {
    command.uid(user).gid(user)
}

/// A C program of `programs/`, built once for this process.
///
/// # Panics
/// Where it does not compile.
pub fn program(name: &str) -> PathBuf {
    build(name, &["-O1", "-g", "-pthread"])
}

/// The same with the given options of the compiler.
///
/// # Panics
/// Where it does not compile.
pub fn build(name: &str, options: &[&str]) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| root.join("../../target"), PathBuf::from);
    let folder = target.join("trust");
    fs::create_dir_all(&folder).expect("a folder for programs");
    let id = format!("{name}-{:x}", fingerprint(options));
    let fresh = tempfile::Builder::new()
        .prefix(&id)
        .tempfile_in(&folder)
        .expect("a place for the program")
        .into_temp_path();
    let compiled = Command::new("cc")
        .args(options)
        .arg("-o")
        .arg(&fresh)
        .arg(root.join("programs").join(format!("{name}.c")))
        .status()
        .expect("a C compiler");
    assert!(compiled.success(), "programs/{name}.c does not compile");
    // A program that its user may not read is one that guards itself.
    let everybody = fs::Permissions::from_mode(0o755);
    fs::set_permissions(&fresh, everybody).expect("a program for everybody");
    let program = folder.join(&id);
    // Replaced, not rewritten: another case may be running it.
    fresh.persist(&program).expect("the program in its place");
    program.canonicalize().expect("the program's path")
}

fn fingerprint(options: &[&str]) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    options.hash(&mut hasher);
    hasher.finish()
}
