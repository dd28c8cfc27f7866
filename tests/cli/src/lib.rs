//! Whole-command snapshots of `varve`: see `tests/`.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The program that was built, or the one that `VARVE` names.
///
/// # Panics
/// Where there is none.
pub fn varve() -> Command {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target"),
        PathBuf::from,
    );
    let built = target.join("release/varve");
    let path = std::env::var_os("VARVE").map_or(built, PathBuf::from);
    assert!(path.is_file(), "build varve, or name it in VARVE");
    let path = path.canonicalize();
    Command::new(path.unwrap_or_else(|e| panic!("the path of varve: {e}")))
}
