//! Builds and tests the checkout in a minimal Debian, to prove that the set-up misses nothing.
//!
//! Rust is the one thing that Debian 12 cannot give (its rustc is 1.63): the host's toolchain and its
//! cargo programs are bound in read-only, and cargo writes to a home of its own, whose registry cache
//! starts as a copy of the host's.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::Places;
use crate::error::{Doing, Error, Result, run};
use crate::kernels::Mirror;

const SUITE: &str = "bookworm";
/// What the chroot script needs to know, in the order of its parameters.
const SCRIPT: &str = include_str!("chroot.sh");

/// Runs the script in a mount namespace and a process group of its own and removes the folder, however this program
/// or the script ends. The mounts go with the namespace, so what is removed holds none of the host's. Processes
/// keep the host's numbers: a recorder cannot work where it sees others.
const OUTER: &str = r#"
    folder=$1 script=$2
    shift 2
    trap 'exit 130' INT TERM HUP
    trap 'kill -KILL -- -$! 2>/dev/null; wait; rm -rf --one-file-system "$folder"' EXIT
    set -m
    unshare --mount sh -c "$script" sh "$@" &
    wait $!
"#;

/// Runs `make TARGETS` in a fresh Debian; true if make succeeded.
pub(crate) fn clean_chroot(
    places: &Places,
    packages: &[String],
    targets: &[String],
) -> Result<bool> {
    let mirror = Mirror::of_this_machine()?;
    let home = std::env::var("HOME").unwrap_or_else(|_| "/root".to_owned());
    let cargo = std::env::var("CARGO_HOME").unwrap_or_else(|_| format!("{home}/.cargo"));
    let rustup = std::env::var("RUSTUP_HOME").unwrap_or_else(|_| format!("{home}/.rustup"));
    for tool in [&cargo, &rustup] {
        if !Path::new(tool).is_dir() {
            return Err(Error::hinted(
                format!("{tool} is not a folder"),
                "clean-chroot lends the host's rustup to Debian",
            ));
        }
    }
    let folder = tempfile::Builder::new()
        .prefix("varve-chroot-")
        .tempdir()
        .doing(|| "create a folder".to_owned())?;
    let root = folder.path().join("root");
    run(Command::new("mkdir").arg(&root))?;
    let status = Command::new("setpriv")
        .args(["--pdeathsig", "TERM", "sh", "-c", OUTER, "sh"])
        .arg(folder.path())
        .arg(SCRIPT)
        .args([&root, &places.repository])
        .args([
            SUITE,
            &mirror.uri,
            &cargo,
            &rustup,
            &packages.join(","),
            &targets.join(" "),
        ])
        .stdin(Stdio::null())
        .status()
        .doing(|| "start sh".to_owned())?;
    Ok(status.success())
}
