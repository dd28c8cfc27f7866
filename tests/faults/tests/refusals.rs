//! What cannot be recorded, or not be written: one sentence, a hint, and nothing lost.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use varve_faults::{Ended, Stage, check_trace, varve_binary};

/// A small file system for one test.
struct Mount(PathBuf);

impl Mount {
    fn new(stage: &Stage, options: &str) -> Mount {
        let path = stage.path("mount");
        fs::create_dir(&path).expect("a folder to mount on");
        let mut mount = Command::new("mount");
        mount
            .args(["-t", "tmpfs", "-o", options, "none"])
            .arg(&path);
        assert!(mount.status().expect("mount").success());
        Mount(path)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Runs `varve record -o trace.varve -- COMMAND` in a mount namespace that a script has prepared.
fn in_namespace(stage: &Stage, prepare: &str) -> Ended {
    in_namespace_with(stage, prepare, "")
}

fn in_namespace_with(stage: &Stage, prepare: &str, options: &str) -> Ended {
    let mut command = stage.command("unshare");
    let script = format!(
        "{prepare} && exec \"$0\" record {options} -o trace.varve -- sh -c 'echo ran > ran'"
    );
    command
        .args(["-m", "--propagation", "private", "sh", "-c", &script])
        .arg(varve_binary());
    stage.run(command)
}

fn require_refused(stage: &Stage, ended: Ended, words: &[&str]) {
    let ended = ended.require(125);
    ended.require_complaint(words);
    assert!(!stage.path("ran").exists(), "the target was started");
    assert!(
        !stage.path("trace.varve").exists(),
        "an empty trace was left"
    );
    stage.require_clean(ended.pid);
}

#[test]
fn without_type_information() {
    let stage = Stage::new();
    let ended = in_namespace(&stage, "mount -t tmpfs none /sys/kernel/btf");
    require_refused(
        &stage,
        ended,
        &["type information", "/sys/kernel/btf/vmlinux"],
    );
}

/// Where the freezer cannot be used the target is held by ptrace, unless the caller will not have that.
fn without_the_freezer(prepare: &str, words: &[&str]) {
    let stage = Stage::new();
    let ended = in_namespace_with(&stage, prepare, "--hold cgroup");
    let refused: Vec<&str> = ["cannot be held still"]
        .iter()
        .chain(words)
        .copied()
        .collect();
    require_refused(&stage, ended, &refused);
    let stage = Stage::new();
    let ended = in_namespace(&stage, prepare).require(0);
    assert!(ended.stderr.contains("held by ptrace"), "{}", ended.stderr);
    for word in words {
        assert!(ended.stderr.contains(word), "{}", ended.stderr);
    }
    assert!(stage.path("ran").exists());
    stage.require_clean(ended.pid);
    check_trace(&stage.path("trace.varve")).expect("a trace");
    let manifest = fs::read_to_string(stage.path("trace.varve/manifest.json")).expect("a manifest");
    assert!(manifest.contains("\"hold\": \"ptrace\""), "{manifest}");
}

#[test]
fn without_a_writable_cgroup() {
    let root = varve_faults::cgroup_root();
    without_the_freezer(
        &format!("mount -o remount,bind,ro {}", root.display()),
        &["Read-only file system"],
    );
    without_the_freezer(
        &format!("umount -l {}", root.display()),
        &["no cgroup v2 file system"],
    );
}

#[test]
fn without_privilege() {
    let stage = Stage::new();
    fs::set_permissions(stage.folder(), fs::Permissions::from_mode(0o777)).expect("open to all");
    // The build may lie where nobody else can look.
    let copy = stage.path("varve");
    fs::copy(varve_binary(), &copy).expect("a copy of varve");
    let mut command = stage.command("setpriv");
    command
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(&copy);
    command.args([
        "record",
        "--no-preload",
        "-o",
        "trace.varve",
        "--",
        "sh",
        "-c",
        "echo ran > ran",
    ]);
    let ended = stage.run(command);
    require_refused(&stage, ended, &["not allowed"]);
}

#[test]
fn commands_that_cannot_run() {
    let stage = Stage::new();
    let plain = stage.path("plain");
    fs::write(&plain, "#!/bin/sh\n").expect("a file");
    let folder = stage.folder().to_str().expect("a path").to_owned();
    for (program, code, words) in [
        ("no-such-program-anywhere", 127, "No such file"),
        ("./no-such-program", 127, "No such file"),
        ("", 127, "No such file"),
        ("./plain", 126, "Permission denied"),
        (folder.as_str(), 126, "Is a directory"),
        ("./plain/x", 126, "Not a directory"),
    ] {
        let ended = stage.run(stage.record(&[], &[program])).require(code);
        ended.require_complaint(&["cannot run", program, words]);
        assert!(
            !stage.path("trace.varve").exists(),
            "an empty trace of {program:?}"
        );
        stage.require_clean(ended.pid);
    }
}

#[test]
fn a_failed_start_does_not_cost_an_earlier_trace() {
    let stage = Stage::new();
    stage.run(stage.record(&[], &["true"])).require(0);
    let before = check_trace(&stage.path("trace.varve")).expect("a trace");
    stage
        .run(stage.record(&[], &["no-such-program"]))
        .require(127);
    stage
        .run(stage.record::<&str>(&["-p", "4194305"], &[]))
        .require(125);
    let after = check_trace(&stage.path("trace.varve")).expect("still a trace");
    assert_eq!(before.intervals, after.intervals);
}

fn record_to(stage: &Stage, output: &Path) -> Ended {
    let mut command = stage.command(varve_binary());
    command
        .args(["record", "--force"])
        .arg("-o")
        .arg(output)
        .args(["--", "sh", "-c", "echo ran > ran"]);
    stage.run(command)
}

#[test]
fn output_folders() {
    let stage = Stage::new();
    // In the way, and not a trace: stays as it is.
    let full = stage.path("full");
    fs::create_dir(&full).expect("a folder");
    fs::write(full.join("thesis.tex"), "years of work").expect("a file");
    let ended = record_to(&stage, &full).require(125);
    ended.require_complaint(&["full exists already"]);
    assert_eq!(
        fs::read_to_string(full.join("thesis.tex")).expect("the file"),
        "years of work"
    );
    let file = stage.path("file");
    fs::write(&file, "text").expect("a file");
    record_to(&stage, &file)
        .require(125)
        .require_complaint(&["file exists already"]);
    // A folder above that is not there is more likely misspelt than wanted.
    record_to(&stage, &stage.path("deep/er/t.varve"))
        .require(125)
        .require_complaint(&["there is no folder", "deep/er"]);
    assert!(!stage.path("deep").exists());
    assert!(!stage.path("ran").exists(), "the target was started");
    // An empty one is used, one with spaces and foreign letters too, and an earlier trace is replaced.
    let empty = stage.path("empty");
    fs::create_dir(&empty).expect("a folder");
    for path in [empty, stage.path("a b\u{e9}\u{4e2d}\u{1f9e0}.varve")] {
        for _ in 0..2 {
            let ended = record_to(&stage, &path).require(0);
            check_trace(&path).expect("a trace");
            stage.require_clean(ended.pid);
        }
    }
    // Not to be written.
    fs::remove_file(stage.path("ran")).expect("it ran");
    let mount = Mount::new(&stage, "size=1m,ro");
    let ended = record_to(&stage, &mount.0.join("t.varve")).require(125);
    ended.require_complaint(&["cannot create", "Read-only file system"]);
    assert!(!stage.path("ran").exists(), "the target was started");
    stage.require_clean(ended.pid);
}

/// Records a program of some seconds to a file system with these limits.
fn on_a_small_disk(options: &str, judge: impl FnOnce(&Stage, &Path, Ended)) {
    let stage = Stage::new();
    let mount = Mount::new(&stage, options);
    let trace = mount.0.join("t.varve");
    let mut command = stage.command(varve_binary());
    command
        .args(["record", "--interval", "10ms", "-o"])
        .arg(&trace)
        .args(["--", "sh", "-c"]);
    command.arg(format!(
        "{} checksum 32 150 started result; exit 42",
        varve_faults::actor().display()
    ));
    let ended = stage.run(command);
    stage.require_clean(ended.pid);
    judge(&stage, &trace, ended);
}

#[test]
fn a_disk_that_is_full_from_the_beginning() {
    for (options, what) in [
        ("nr_inodes=2", "cannot create"),
        ("nr_blocks=3", "cannot write"),
    ] {
        on_a_small_disk(options, |stage, trace, ended| {
            ended
                .require(125)
                .require_complaint(&[what, "No space left on device"]);
            assert!(!stage.path("started").exists(), "the target was started");
            assert!(!trace.join("manifest.json").exists());
        });
    }
}

#[test]
fn a_disk_that_fills_up_ends_the_recording_and_not_the_target() {
    for options in ["nr_blocks=20", "nr_blocks=45"] {
        on_a_small_disk(options, |stage, trace, ended| {
            let ended = ended.require(42);
            ended.require_complaint(&["ended early", "No space left on device"]);
            let sum = fs::read_to_string(stage.path("result")).expect("the target's result");
            assert_eq!(ended.text(), sum);
            let contents = check_trace(trace).expect("what was flushed can be read");
            println!(
                "{options}: {} intervals, {:?}; {}",
                contents.intervals.len(),
                contents.state,
                ended.stderr
            );
            let report = stage
                .command(varve_binary())
                .arg("report")
                .arg(trace)
                .output();
            let report = report.expect("varve report");
            let said = String::from_utf8_lossy(&report.stderr).into_owned();
            assert!(!said.contains("panicked"), "{said}");
            // The disk ended it, and nobody killed the recorder.
            let shown = String::from_utf8_lossy(&report.stdout);
            assert!(shown.contains("ended_early"), "{shown}{said}");
            assert!(!shown.contains("recorder_killed"), "{shown}");
        });
    }
}

/// The tables are merged where there is no space for it: what was recorded stays as it is.
#[test]
fn a_disk_that_is_full_at_the_end() {
    on_a_small_disk("nr_inodes=30", |_, trace, ended| {
        let ended = ended.require(42);
        ended.require_complaint(&["No space left on device"]);
        assert!(!check_trace(trace).expect("a trace").intervals.is_empty());
    });
}
