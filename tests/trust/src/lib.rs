//! What the cases of the trust suite share: a second user without rights, and programs built once.
//!
//! A case plays one attack or one unusual machine against a real recorder and looks at what came of it. Processes
//! and folders belong to a [`varve_faults::Stage`], which removes whatever is left.

mod flushed;
mod whole;

pub use flushed::wait_for_flushes;
pub use varve_truth::flushed;
pub use whole::unless_reclaimed;

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

/// Waits until an interval has begun and ended since this was called; tells whether that came about.
pub fn see_an_interval(trace: &Path) -> bool {
    let before = flushed(trace, "intervals");
    // What is written first may have ended before, and what is written then have begun before.
    varve_faults::patiently(|| flushed(trace, "intervals") >= before + 3)
}

/// A C program of `programs/`.
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
    let source = root.join("programs").join(format!("{name}.c"));
    varve_faults::compiled(&source, &target.join("trust"), options)
}
