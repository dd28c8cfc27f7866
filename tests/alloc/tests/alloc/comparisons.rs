//! `varve alloc compare`: what it refuses.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::support::{varve, workload};

/// A comparison of two allocators, one round.
fn compare(options: &[&str], command: &[&str]) -> Command {
    let mut compare = Command::new(varve());
    compare.args(["alloc", "compare", "-n", "1"]).args(options);
    if !options.contains(&"--allocators") {
        compare.args(["--allocators", "jemalloc"]);
    }
    compare.arg("--").args(command).stdin(Stdio::null());
    compare
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A copy of `touch`, in a folder that others may look into.
struct Touch {
    folder: tempfile::TempDir,
    program: PathBuf,
}

impl Touch {
    fn new() -> Touch {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).unwrap();
        let program = folder.path().join("touch");
        fs::copy("/usr/bin/touch", &program).unwrap();
        Touch { folder, program }
    }

    fn marker(&self) -> PathBuf {
        self.folder.path().join("it ran")
    }

    fn compare(&self, program: &Path) -> Command {
        let marker = self.marker();
        let command = [program.to_str().unwrap(), marker.to_str().unwrap()];
        compare(&["--no-record"], &command)
    }

    /// It is refused before it runs, in one sentence and with a hint.
    fn refused(&self, program: &Path, why: &str) {
        let output = self.compare(program).output().unwrap();
        self.require_refused(&output, why);
    }

    fn require_refused(&self, output: &Output, why: &str) {
        let errors = said(output);
        assert!(
            !output.status.success() && output.stdout.is_empty(),
            "{errors}"
        );
        let lines: Vec<&str> = errors.lines().collect();
        assert_eq!(lines.len(), 2, "{errors}");
        assert!(
            lines[0].starts_with("error: ") && lines[0].contains(why),
            "{errors}"
        );
        assert!(
            lines[0].contains("each run would measure the same one"),
            "{errors}"
        );
        assert!(lines[1].starts_with("hint: "), "{errors}");
        assert!(!self.marker().exists(), "{errors}");
    }
}

fn executable(path: &Path, bytes: &[u8]) -> PathBuf {
    fs::write(path, bytes).unwrap();
    fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
    path.to_owned()
}

#[test]
fn a_program_that_has_its_allocator_in_itself_is_refused() {
    let touch = Touch::new();
    let at = |name: &str| touch.folder.path().join(name);
    touch.refused(
        &workload("alloc_attached_static"),
        "alloc_attached_static is static",
    );
    let own = workload("alloc_own");
    touch.refused(&own, "alloc_own has an allocator in itself");
    touch.refused(
        &workload("alloc_prefixed"),
        "has an allocator in itself (jemalloc)",
    );
    let short = executable(&at("short"), b"\x7fELF\x01\x01\x01\x00");
    touch.refused(&short, "short has 32 bits");
    // What runs a script is judged.
    let script = format!("#!{} -x\n", own.display());
    let script = executable(&at("script"), script.as_bytes());
    let why = format!(
        "which runs {}, has an allocator in itself",
        script.display()
    );
    touch.refused(&script, &why);
    // What Go's linker leaves in a program, also in one that loads the C library.
    let (note, go) = (at("note"), at("go"));
    fs::write(&note, "Go").unwrap();
    let added = Command::new("objcopy")
        .arg(format!("--add-section=.note.go.buildid={}", note.display()))
        .args([&touch.program, &go])
        .status();
    assert!(added.unwrap().success());
    touch.refused(&go, "go is made by Go");

    // The same program as it is, and a script of it, are compared.
    let script = format!("#!/usr/bin/env -S {}\n", touch.program.display());
    let script = executable(&at("plain-script"), script.as_bytes());
    for program in [&touch.program, &script] {
        let output = touch.compare(program).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        assert!(touch.marker().exists());
        fs::remove_file(touch.marker()).unwrap();
    }
}

#[test]
fn a_program_that_gains_rights_is_refused() {
    let why = "gains rights by its file";
    let touch = Touch::new();
    chown(&touch.program, Some(65534), Some(65534)).unwrap();
    for mode in [0o4755, 0o2755] {
        fs::set_permissions(&touch.program, Permissions::from_mode(mode)).unwrap();
        touch.refused(&touch.program, why);
    }
    fs::set_permissions(&touch.program, Permissions::from_mode(0o755)).unwrap();

    // Capabilities count for users that do not have them. The build may lie where these cannot look.
    let copy = touch.folder.path().join("varve");
    fs::copy(varve(), &copy).unwrap();
    let as_other_user = || {
        let compare = touch.compare(&touch.program);
        Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .arg(&copy)
            .args(compare.get_args())
            .stdin(Stdio::null())
            .output()
            .unwrap()
    };
    let output = as_other_user();
    assert!(output.status.success(), "{}", said(&output));
    fs::remove_file(touch.marker()).unwrap();
    // CAP_NET_BIND_SERVICE, permitted and effective (`struct vfs_cap_data`, version 2).
    let words = [0x0200_0001u32, 1 << 10, 0, 0, 0];
    let capability: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(&touch.program, "security.capability", &capability, flags).unwrap();
    touch.require_refused(&as_other_user(), why);
}
