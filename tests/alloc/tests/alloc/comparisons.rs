//! `varve alloc compare`: what its runs read, how they may end, what it refuses, and what it leaves out.

use std::fs::{self, File, Permissions};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

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

fn json(mut command: Command) -> Value {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn of<'a>(found: &'a Value, name: &str) -> &'a Value {
    let all = found["allocators"].as_array().unwrap();
    all.iter().find(|one| one["name"] == name).unwrap()
}

/// The last line that a person sees.
fn last_line(mut command: Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().last().unwrap().to_owned()
}

/// Bytes that are nowhere the same.
fn bytes(count: u32) -> Vec<u8> {
    (0..count / 4).flat_map(u32::to_le_bytes).collect()
}

/// What `cksum` says of bytes.
fn checksum(bytes: &[u8]) -> String {
    let mut child = Command::new("cksum")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(bytes).unwrap();
    String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()
}

/// What each run read, as it says itself: two that are measured and two that are recorded.
fn read_by_runs(input: impl FnOnce(Command) -> Output) -> (Value, Vec<String>) {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let script = ["sh", "-c", "cksum >> \"$0\"", log.to_str().unwrap()];
    let output = input(compare(&["--json"], &script));
    assert!(output.status.success(), "{}", said(&output));
    let lines = fs::read_to_string(&log).unwrap();
    let lines = lines.lines().map(|line| format!("{line}\n"));
    let found = serde_json::from_slice(&output.stdout).unwrap();
    (found, lines.collect())
}

#[test]
fn each_run_reads_a_file_from_where_it_stood() {
    const START: u64 = 1001;
    let data = bytes(300_000);
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&data).unwrap();
    file.seek(SeekFrom::Start(START)).unwrap();
    let given = file.try_clone().unwrap();
    let (found, read) = read_by_runs(|mut command| command.stdin(given).output().unwrap());
    let rest = &data[START as usize..];
    assert_eq!(read, vec![checksum(rest); 4]);
    assert_eq!(found["input_bytes"], rest.len());
    // The place of whoever opened it does not move.
    assert_eq!(file.stream_position().unwrap(), START);

    // Runs that shared the place would have read something once and nothing then.
    let shared = |file: &File| {
        let mut command = Command::new("cksum");
        command.stdin(file.try_clone().unwrap()).output().unwrap()
    };
    assert_eq!(shared(&file).stdout, checksum(rest).into_bytes());
    assert_eq!(shared(&file).stdout, checksum(b"").into_bytes());
}

#[test]
fn each_run_reads_all_that_came_from_a_pipe() {
    // More than a pipe holds.
    let data = bytes(300_000);
    let (found, read) = read_by_runs(|mut command| {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(&data).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(said(&output).contains("standard input is read to its end"));
        output
    });
    assert_eq!(read, vec![checksum(&data); 4]);
    assert_eq!(found["input_bytes"], data.len());
}

#[test]
fn without_an_input_each_run_reads_nothing() {
    let (found, read) = read_by_runs(|mut command| command.output().unwrap());
    assert_eq!(read, vec![checksum(b""); 4]);
    assert_eq!(found["input_bytes"], 0);
    // A file of the kernel says that it has no length.
    let status = File::open("/proc/version").unwrap();
    let version = fs::read("/proc/version").unwrap();
    let (_, read) = read_by_runs(|mut command| command.stdin(status).output().unwrap());
    assert_eq!(read, vec![checksum(&version); 4]);
}

#[test]
fn a_terminal_is_no_input() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let line = format!(
        "{} alloc compare -n 1 --no-record --allocators jemalloc -- sh -c 'cksum >> {}'",
        varve().display(),
        log.display()
    );
    let output = Command::new("script")
        .env("SHELL", "/bin/sh")
        .args(["-qec", &line, "/dev/null"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(
        shown.contains("standard input is a terminal: each run gets an empty one"),
        "{shown}"
    );
    let read = fs::read_to_string(&log).unwrap();
    assert_eq!(read, checksum(b"").repeat(2));
}

#[test]
fn an_input_that_cannot_be_read_is_an_error() {
    let with = |path: &str| {
        let mut command = compare(&["--no-record"], &["true"]);
        command.stdin(File::open(path).unwrap()).output().unwrap()
    };
    for (path, what) in [
        ("/", "cannot read standard input: Is a directory"),
        ("/dev/zero", "standard input is a device"),
    ] {
        let output = with(path);
        let errors = said(&output);
        assert!(
            !output.status.success() && errors.contains(what),
            "{errors}"
        );
        assert!(errors.contains("hint: give a file"), "{errors}");
    }
}

/// Ends with 1, and with 3 where something is preloaded.
const BY_ALLOCATOR: [&str; 3] = ["sh", "-c", "[ -z \"$LD_PRELOAD\" ] || exit 3; exit 1"];

#[test]
fn every_run_ends_as_the_first() {
    let same = ["/bin/grep", "-c", "no such line", "/etc/passwd"];
    let found = json(compare(&["--no-record", "--json"], &same));
    for name in ["own", "jemalloc"] {
        assert_eq!(of(&found, name)["exit_codes"], serde_json::json!([1]));
        assert!(of(&found, name)["wall"].is_object());
    }
    let found = json(compare(&["--no-record", "--json"], &BY_ALLOCATOR));
    let jemalloc = of(&found, "jemalloc");
    let why = "ended with exit code 3, 1 with the program's own";
    assert_eq!(jemalloc["failed"], why);
    assert_eq!(jemalloc["exit_codes"], serde_json::json!([3]));
    assert!(jemalloc["wall"].is_null());
    let line = last_line(compare(&["--no-record"], &BY_ALLOCATOR));
    assert_eq!(line, format!("Left out: jemalloc ({why})."));
    let killed = compare(&["--no-record"], &["sh", "-c", "kill -9 $$"]).output();
    let killed = killed.unwrap();
    let errors = said(&killed);
    assert!(
        !killed.status.success() && errors.contains("exit code 137"),
        "{errors}"
    );
    assert!(errors.contains("`--allow-exit 137`"), "{errors}");
}

#[test]
fn runs_may_end_as_the_list_says() {
    let with = |list: &str, command: &[&str]| {
        let options = ["--no-record", "--json", "--allow-exit", list];
        compare(&options, command)
    };
    let found = json(with("0-1,3", &BY_ALLOCATOR));
    for (name, code) in [("own", 1), ("jemalloc", 3)] {
        let one = of(&found, name);
        assert_eq!(one["exit_codes"], serde_json::json!([code]));
        assert_eq!(one["runs"][0]["exit_code"], code);
        assert!(one["failed"].is_null() && one["wall"].is_object(), "{one}");
    }
    let found = json(with("1", &BY_ALLOCATOR));
    assert_eq!(
        of(&found, "jemalloc")["failed"],
        "ended with exit code 3, which `--allow-exit` does not list"
    );
    let found = json(with("137", &["sh", "-c", "kill -9 $$"]));
    assert_eq!(of(&found, "own")["exit_codes"], serde_json::json!([137]));
    for (list, command, what) in [
        (
            "3",
            &BY_ALLOCATOR[..],
            "sh ended with exit code 1, which `--allow-exit` does not list",
        ),
        (
            "5-3",
            &["true"],
            "`5-3` is no exit code: give numbers from 0 to 255",
        ),
        ("0,256", &["true"], "`256` is no exit code"),
    ] {
        let output = with(list, command).output().unwrap();
        let errors = said(&output);
        assert!(
            !output.status.success() && errors.contains(what),
            "{errors}"
        );
    }
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

#[test]
fn an_exchange_without_effect_is_seen_in_the_recorded_run() {
    let program = workload("alloc_work");
    let work = [program.to_str().unwrap(), "churn", "1", "200", "20000"];
    let with = |before: &[&str]| json(compare(&["--json"], &[before, &work[..]].concat()));
    let found = with(&["env"]);
    let jemalloc = of(&found, "jemalloc");
    assert!(jemalloc["failed"].is_null() && jemalloc["wall"].is_object());
    assert_eq!(jemalloc["judgement"]["trace"]["allocator"], "jemalloc");
    // It leaves no variable.
    let found = with(&["env", "-i"]);
    let jemalloc = of(&found, "jemalloc");
    let why = "the exchange had no effect on alloc_work: its environment was cleared";
    assert_eq!(jemalloc["failed"], why);
    assert!(jemalloc["wall"].is_null());
    let advice = found["advice"].as_str().unwrap();
    assert!(
        advice.starts_with("No other allocator could be compared with"),
        "{advice}"
    );
    let line = last_line(compare(&[], &[&["env", "-i"], &work[..]].concat()));
    assert_eq!(line, format!("Left out: jemalloc ({why})."));

    // A library without malloc.
    let plugin = workload("liballoc_plugin.so");
    let plugin = plugin.to_str().unwrap();
    let found = json(compare(&["--json", "--allocators", plugin], &work));
    assert_eq!(
        of(&found, "liballoc_plugin.so")["failed"],
        "the exchange had no effect: glibc served the program"
    );
}

#[test]
fn children_that_keep_their_own_allocator_are_named() {
    let program = workload("alloc_attached_static");
    let script = ["sh", "-c", "\"$0\"; true", program.to_str().unwrap()];
    let found = json(compare(&["--json"], &script));
    let jemalloc = of(&found, "jemalloc");
    let child = "alloc_attached_static (it loads no libraries)";
    assert_eq!(jemalloc["unreached"], serde_json::json!([child]));
    assert!(jemalloc["failed"].is_null());
    let line = last_line(compare(&[], &script));
    assert_eq!(
        line,
        format!("These kept their own allocator in all runs: {child}.")
    );
}

#[test]
fn a_library_that_cannot_be_loaded_is_left_out_before_any_run() {
    let touch = Touch::new();
    let library = touch.folder.path().join("libtext.so");
    fs::write(&library, "this is no library".repeat(100)).unwrap();
    let (marker, library) = (touch.marker(), library.to_str().unwrap());
    let allocators = format!("jemalloc,{library}");
    let options = ["--no-record", "--json", "--allocators", &allocators];
    let command = [touch.program.to_str().unwrap(), marker.to_str().unwrap()];
    let found = json(compare(&options, &command));
    let text = of(&found, "libtext.so");
    let why = text["failed"].as_str().unwrap();
    assert_eq!(why, "it cannot be loaded: invalid ELF header");
    assert_eq!(text["exit_codes"], serde_json::json!([]));
    assert!(of(&found, "jemalloc")["failed"].is_null());
}
