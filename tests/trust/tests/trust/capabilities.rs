//! Least privilege: each documented set of capabilities is enough, and each one in it is needed; what is not needed any
//! more is given up; what others control is not believed by a program that its file gave rights.

use std::fs;
use std::io::{PipeReader, PipeWriter, Write};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use serde_json::Value;
use varve_faults::{Ended, Running, Stage, cgroup_of, patiently, varve_binary};
use varve_trust::{SECOND_STRANGER, STRANGER, as_user, program, see_an_interval};

/// `SECURITY.md`: the user's own processes.
const OWN: [&str; 2] = ["bpf", "perfmon"];
/// `SECURITY.md`: anybody's.
const ANYBODY: [&str; 4] = ["bpf", "perfmon", "sys_ptrace", "dac_override"];
/// Kept while recording: DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, KILL, SYS_PTRACE, SYS_NICE, CHECKPOINT_RESTORE.
const WHILE_RECORDING: u64 = 1 << 1 | 1 << 2 | 1 << 3 | 1 << 5 | 1 << 19 | 1 << 23 | 1 << 40;
/// Kept while files are read and written: DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER.
const FOR_FILES: u64 = 1 << 1 | 1 << 2 | 1 << 3;

/// A stage that the stranger can enter, with a folder of his own and a `varve` that he can run.
struct Guest {
    stage: Stage,
    varve: PathBuf,
}

impl Guest {
    fn new() -> Guest {
        let stage = Stage::new();
        let open = fs::Permissions::from_mode(0o755);
        fs::set_permissions(stage.folder(), open).unwrap();
        let bin = stage.path("bin");
        fs::create_dir(&bin).unwrap();
        let varve = varve_binary();
        fs::copy(&varve, bin.join("varve")).unwrap();
        let library = varve.with_file_name("libvarve_preload.so");
        fs::copy(library, bin.join("libvarve_preload.so")).unwrap();
        let home = stage.path("home");
        fs::create_dir(&home).unwrap();
        chown(&home, Some(STRANGER), Some(STRANGER)).unwrap();
        Guest {
            varve: bin.join("varve"),
            stage,
        }
    }

    /// A command of the stranger's with exactly these capabilities.
    fn with(&self, capabilities: &[&str], command: &Path) -> Command {
        let each: String = capabilities.iter().map(|c| format!(",+{c}")).collect();
        let set = format!("-all{each}");
        let user = STRANGER.to_string();
        let mut words = self.stage.command("setpriv");
        words
            .args(["--reuid", &user, "--regid", &user, "--clear-groups"])
            .args(["--inh-caps", &set, "--ambient-caps", &set])
            .args(["--bounding-set", &set, "--"])
            .arg(command)
            .current_dir(self.stage.path("home"));
        words
    }

    fn record(&self, capabilities: &[&str], arguments: &[&str]) -> Command {
        let mut varve = self.with(capabilities, &self.varve);
        varve.args(["record", "-o", "trace.varve"]).args(arguments);
        varve
    }

    fn trace(&self) -> PathBuf {
        self.stage.path("home/trace.varve")
    }

    /// A program of another user's that touches pages for a long time.
    fn bystander(&self, user: u32) -> Bystander {
        let mut command = self.stage.command(program("pages"));
        command.args(["50", "3600000"]);
        let running = self.stage.start(command_of(command, user));
        let pid = running.pid();
        assert!(patiently(|| {
            fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|c| c.starts_with("pages"))
        }));
        Bystander {
            cgroup: cgroup_of(pid),
            running,
        }
    }
}

fn command_of(mut command: Command, user: u32) -> Command {
    as_user(&mut command, user);
    command
}

/// A process that must come to no harm.
struct Bystander {
    running: Running,
    cgroup: Option<PathBuf>,
}

impl Bystander {
    fn require_unharmed(&mut self) {
        assert!(!self.running.has_ended(), "it has ended");
        let pid = self.running.pid();
        assert_eq!(cgroup_of(pid), self.cgroup, "it was moved");
        assert_eq!(line(pid, "TracerPid"), "0");
        let runs = patiently(|| !line(pid, "State").starts_with(['T', 't']));
        assert!(runs, "it stands: {}", line(pid, "State"));
    }

    fn end(self) {
        self.running.signal(rustix::process::Signal::KILL);
        self.running.end();
    }
}

fn line(pid: u32, name: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    value(&status, name)
}

fn value(status: &str, name: &str) -> String {
    let found = status.lines().find_map(|l| l.strip_prefix(name));
    found.map_or_else(String::new, |l| l.trim_start_matches(':').trim().to_owned())
}

fn mask(status: &str, name: &str) -> Option<u64> {
    u64::from_str_radix(&value(status, name), 16).ok()
}

/// Requires that a trace has every page that the program said it touched, and says that it is complete.
fn require_complete(folder: &Path, said: &str, pages: u64) {
    let manifest = fs::read_to_string(folder.join("manifest.json")).unwrap();
    let manifest: Value = serde_json::from_str(&manifest).unwrap();
    let mut losses = manifest["losses"].as_object().cloned().unwrap_or_default();
    // The machine may be short of memory; that is not what is looked at.
    losses.remove("reclaim_scanned_pages");
    losses.retain(|_, count| count.as_u64() != Some(0));
    assert!(losses.is_empty(), "lost: {losses:?}");
    require_pages(folder, said, pages);
}

/// Requires that a trace has every page that the program said it touched.
fn require_pages(folder: &Path, said: &str, pages: u64) {
    let (_, first) = said.trim().split_once(' ').expect("where the pages are");
    let first = u64::from_str_radix(first, 16).unwrap();
    let trace = varve_trace::Trace::open(folder).unwrap();
    let rows: Vec<varve_trace::tables::TouchRow> = trace.rows().unwrap();
    for page in first..first + pages {
        let touched = rows
            .iter()
            .any(|r| (r.page.0..r.page.0 + u64::from(r.pages)).contains(&page));
        assert!(touched, "page {page:x} is missing");
    }
}

fn require_refusal(guest: &Guest, ended: Ended, missing: &str) {
    let capability = format!("CAP_{}", missing.to_uppercase());
    let ended = ended.require(125);
    ended.require_complaint(&[&capability]);
    assert!(!guest.trace().exists(), "something was recorded");
}

fn without<'a>(set: &[&'a str], one: &str) -> Vec<&'a str> {
    set.iter().copied().filter(|c| *c != one).collect()
}

#[test]
fn own_commands_take_two_capabilities_and_no_less() {
    let guest = Guest::new();
    let pages = program("pages");
    let command = ["--", pages.to_str().unwrap(), "300", "100"];
    let ended = guest.stage.run(guest.record(&OWN, &command)).require(7);
    require_complete(&guest.trace(), &ended.text(), 300);
    fs::remove_dir_all(guest.trace()).unwrap();
    for one in OWN {
        let ended = guest.stage.run(guest.record(&without(&OWN, one), &command));
        assert_eq!(ended.text(), "", "the target was started");
        require_refusal(&guest, ended, one);
    }
}

/// A child that runs with other rights is lost, and nothing else: not the recording, nor the rest.
#[test]
fn a_child_that_may_not_be_cleared_is_a_loss_with_its_name() {
    let guest = Guest::new();
    let over = guest.stage.path("over");
    let pages = 300;
    let mut private = guest.stage.command(program("private"));
    private.arg(pages.to_string()).arg(&over);
    let target = guest.stage.start(command_of(private, STRANGER));
    let said = guest.stage.path("stdout-0");
    // What the recorder opens before the child is private, it may use afterwards.
    assert!(patiently(|| fs::metadata(&said).is_ok_and(|m| m.len() > 0)));
    let pid = target.pid().to_string();
    let arguments = ["--interval", "20ms", "--pid", &pid];
    let recorder = guest.stage.start(guest.record(&OWN, &arguments));
    assert!(see_an_interval(&guest.trace()), "{}", recorder.messages());
    fs::write(&over, "").unwrap();
    let said = target.end().require(7).text();
    let ended = recorder.end().require(0);
    assert!(!ended.stderr.contains("left behind"), "{}", ended.stderr);
    require_uncleared(&guest.trace());
    require_pages(&guest.trace(), &said, pages);
}

/// So is the command itself, and the recording goes on to its end.
#[test]
fn a_command_that_may_not_be_cleared_is_a_loss_with_its_name() {
    let guest = Guest::new();
    let over = guest.stage.path("over");
    let private = program("private");
    let words = [
        "--interval",
        "60m",
        "--",
        private.to_str().unwrap(),
        "300",
        over.to_str().unwrap(),
        "alone",
    ];
    let recorder = guest.stage.start(guest.record(&OWN, &words));
    let is_private = patiently(|| recorder.said().contains(' '));
    assert!(is_private, "{}", recorder.messages());
    // A pause ends the interval, whose bits are to be cleared.
    recorder.signal(rustix::process::Signal::USR1);
    let is_paused = patiently(|| recorder.messages().contains("paused:"));
    assert!(is_paused, "{}", recorder.messages());
    fs::write(&over, "").unwrap();
    recorder.end().require(7);
    require_uncleared(&guest.trace());
}

/// Requires that the program of these tests is lost, with its name, and that the recording was not cut short.
fn require_uncleared(folder: &Path) {
    let trace = varve_trace::Trace::open(folder).unwrap();
    let losses = &trace.manifest.losses;
    let lost = |name: &str| losses.get(name).copied().unwrap_or(0);
    assert_eq!(lost("uncleared_processes"), 1, "{losses:?}");
    assert_eq!(lost("ended_early"), 0);
    let notes = trace.manifest.notes.join("\n");
    assert!(notes.contains("(private)"), "{notes}");
}

#[test]
fn others_processes_take_four_capabilities_and_no_less() {
    let guest = Guest::new();
    let mut bystander = guest.bystander(SECOND_STRANGER);
    let pid = bystander.running.pid().to_string();
    for one in ANYBODY {
        let set = without(&ANYBODY, one);
        let ended = guest.stage.run(guest.record(&set, &["--pid", &pid]));
        require_refusal(&guest, ended, one);
        bystander.require_unharmed();
    }
    let recorder = guest.stage.start(guest.record(&ANYBODY, &["--pid", &pid]));
    assert!(see_an_interval(&guest.trace()), "{}", recorder.messages());
    recorder.signal(rustix::process::Signal::INT);
    recorder.end().require(0);
    bystander.require_unharmed();
    let said = fs::read_to_string(guest.stage.path("stdout-0")).unwrap();
    require_complete(&guest.trace(), &said, 50);
    bystander.end();
}

#[test]
fn a_recorder_gives_up_what_it_needs_no_more_and_its_target_does_not() {
    let guest = Guest::new();
    let pages = program("pages");
    let words = [pages.as_os_str().to_owned(), "20".into(), "3600000".into()];
    let recorder = guest.stage.start(guest.stage.record(&[], &words));
    let pid = recorder.pid();
    assert!(patiently(|| guest
        .stage
        .path("trace.varve/manifest.json")
        .is_file()));
    let above = |allowed: u64, status: &str| mask(status, "CapPrm").unwrap_or(0) & !allowed;
    let tasks = || -> Vec<String> {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
        tasks
            .filter_map(|t| fs::read_to_string(t.path().join("status")).ok())
            .collect()
    };
    let given_up = || tasks().iter().all(|s| above(WHILE_RECORDING, s) == 0);
    assert!(patiently(given_up), "{:#?}", tasks());
    // The program has begun when it has said something.
    assert!(patiently(|| {
        fs::metadata(guest.stage.path("stdout-0")).is_ok_and(|m| m.len() > 0)
    }));
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let children: Vec<u32> = children
        .split_whitespace()
        .filter_map(|c| c.parse().ok())
        .collect();
    let own = fs::read_to_string("/proc/self/status").unwrap();
    let mut seen = (0, 0);
    for child in children {
        let status = fs::read_to_string(format!("/proc/{child}/status")).unwrap();
        if value(&status, "Name").starts_with("pages") {
            seen.0 += 1;
            assert_eq!(mask(&status, "CapPrm"), mask(&own, "CapPrm"));
            assert_eq!(value(&status, "NoNewPrivs"), value(&own, "NoNewPrivs"));
        } else {
            seen.1 += 1;
            assert_eq!(above(WHILE_RECORDING, &status), 0, "{status}");
        }
    }
    assert_eq!(seen, (1, 1), "the target and the watchdog");
    recorder.signal(rustix::process::Signal::TERM);
    recorder.end();
}

#[test]
fn programs_that_gain_rights_still_do() {
    let guest = Guest::new();
    let suid = guest.stage.path("bin/identity");
    fs::copy(program("identity"), &suid).unwrap();
    fs::set_permissions(&suid, fs::Permissions::from_mode(0o4755)).unwrap();
    let user = STRANGER.to_string();
    let mut words: Vec<&str> = vec!["setpriv", "--reuid", &user, "--clear-groups"];
    words.push(suid.to_str().unwrap());
    let mut plain = guest.stage.command(words[0]);
    plain.args(&words[1..]);
    let plain = guest.stage.run(plain).require(0).text();
    assert!(plain.contains("euid 0\n"), "{plain}");
    let recorded = guest.stage.run(guest.stage.record(&[], &words)).require(0);
    assert_eq!(recorded.text(), plain);
}

/// Gives a program's file capabilities.
fn set_file(program: &Path, set: &[&str]) {
    let names: Vec<String> = set.iter().map(|c| format!("cap_{c}")).collect();
    let done = Command::new("setcap")
        .arg(format!("{}=p", names.join(",")))
        .arg(program)
        .status()
        .expect("setcap");
    assert!(done.success());
}

#[test]
fn capabilities_of_the_file_do_and_believe_no_environment() {
    let guest = Guest::new();
    set_file(&guest.varve, &OWN);
    let pages = program("pages");
    let mut varve = unbounded(&guest);
    varve
        .args([
            "record",
            "-o",
            "trace.varve",
            "--",
            pages.to_str().unwrap(),
            "100",
            "60",
        ])
        .env("VARVE_PRELOAD", guest.stage.path("home/evil.so"));
    let ended = guest.stage.run(varve).require(7);
    assert!(!ended.stderr.contains("evil.so"), "{}", ended.stderr);
    require_complete(&guest.trace(), &ended.text(), 100);
}

/// The stranger's own command, with whatever rights its file gives.
fn unbounded(guest: &Guest) -> Command {
    let mut command = guest.stage.command(&guest.varve);
    as_user(&mut command, STRANGER).current_dir(guest.stage.path("home"));
    command
}

#[test]
fn capabilities_of_the_file_open_no_files_for_its_caller() {
    let guest = Guest::new();
    set_file(&guest.varve, &ANYBODY);
    let secret = guest.stage.path("secret");
    fs::create_dir(&secret).unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o700)).unwrap();
    fs::write(secret.join("kept"), "").unwrap();
    let mut varve = unbounded(&guest);
    varve
        .args(["record", "-o"])
        .arg(secret.join("trace.varve"))
        .args(["--", "true"]);
    let ended = guest.stage.run(varve).require(125);
    ended.require_complaint(&["trace.varve"]);
    let entries = fs::read_dir(&secret).unwrap().count();
    assert_eq!(entries, 1, "a file was made in root's folder");
    // The watchdog's orders, from whoever may run the program: a folder of root's that looks like a dead recorder's.
    let marker = secret.join("recorder");
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    fs::write(&marker, format!("varve-recorder 4194303 1 {boot}")).unwrap();
    let mut watchdog = unbounded(&guest);
    watchdog.arg("watchdog");
    let orders = guest.stage.path("orders");
    fs::write(&orders, format!("r{}\0", secret.display())).unwrap();
    watchdog.stdin(fs::File::open(&orders).unwrap());
    guest.stage.start(watchdog).end();
    assert!(marker.exists(), "root's folder was removed");
    assert!(secret.join("kept").exists());
}

#[test]
fn what_reads_traces_has_no_rights_but_for_files() {
    let guest = Guest::new();
    let words = [
        program("pages").into_os_string(),
        "3000".into(),
        "100".into(),
    ];
    guest.stage.run(guest.stage.record(&[], &words)).require(7);
    // It has read the trace when it waits for room for what it says.
    let (mut reader, writer) = full_pipe();
    let mut report = guest.stage.command(&guest.varve);
    report
        .args(["report", "trace.varve", "--json"])
        .stdout(writer);
    let mut running = report.spawn().unwrap();
    drop(report);
    let is_limited = patiently(|| {
        let status =
            fs::read_to_string(format!("/proc/{}/status", running.id())).unwrap_or_default();
        value(&status, "NoNewPrivs") == "1"
            && mask(&status, "CapPrm").is_some_and(|m| m & !FOR_FILES == 0 && m != 0)
    });
    std::io::copy(&mut reader, &mut std::io::sink()).unwrap();
    assert!(running.wait().unwrap().success());
    assert!(is_limited, "a report of a trace runs with all rights");
}

/// A pipe without room.
fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let before = fcntl_getfl(&writer).unwrap();
    fcntl_setfl(&writer, before | OFlags::NONBLOCK).unwrap();
    while writer.write(&[0]).is_ok() {}
    fcntl_setfl(&writer, before).unwrap();
    (reader, writer)
}

#[test]
fn a_library_that_others_can_write_is_not_loaded() {
    let guest = Guest::new();
    let library = guest.varve.with_file_name("libvarve_preload.so");
    let record = |options: &[&str]| {
        let mut varve = guest.stage.command(&guest.varve);
        varve.args(["record", "-o", "trace.varve"]).args(options);
        varve.args(["--", "true"]);
        guest.stage.run(varve)
    };
    fs::set_permissions(&library, fs::Permissions::from_mode(0o777)).unwrap();
    record(&[])
        .require(125)
        .require_complaint(&["libvarve_preload.so", "everybody can write it"]);
    fs::set_permissions(&library, fs::Permissions::from_mode(0o755)).unwrap();
    chown(&library, Some(STRANGER), None).unwrap();
    record(&[])
        .require(125)
        .require_complaint(&["belongs to user 64201"]);
    record(&["--no-preload"]).require(0);
}

#[test]
fn the_kernel_part_stays_with_the_recorder() {
    let guest = Guest::new();
    set_file(&guest.varve, &OWN);
    let pages = program("pages");
    let mut varve = unbounded(&guest);
    varve.args([
        "record",
        "-o",
        "trace.varve",
        "--",
        pages.to_str().unwrap(),
        "9",
        "3600000",
    ]);
    let recorder = guest.stage.start(varve);
    assert!(patiently(|| guest.trace().join("manifest.json").is_file()));
    // Another process of the same user can take nothing from it.
    let mut thief = guest.stage.command("ls");
    thief.arg(format!("/proc/{}/fd", recorder.pid()));
    as_user(&mut thief, STRANGER);
    assert_ne!(guest.stage.run(thief).code, 0);
    // And the target has been given none of it.
    let mut said = String::new();
    let has_begun = patiently(|| {
        said = fs::read_to_string(guest.stage.path("stdout-0")).unwrap();
        said.contains(' ')
    });
    assert!(has_begun, "the target says who it is");
    let target = said.split(' ').next().unwrap_or_default();
    for entry in fs::read_dir(format!("/proc/{target}/fd"))
        .unwrap()
        .flatten()
    {
        let link = fs::read_link(entry.path()).unwrap_or_default();
        assert!(
            !link.to_string_lossy().contains("bpf"),
            "{}",
            link.display()
        );
    }
    recorder.signal(rustix::process::Signal::TERM);
    recorder.end();
}

#[test]
fn the_doctor_says_what_is_missing_to_whom() {
    let guest = Guest::new();
    let doctor = |set: &[&str]| {
        let mut varve = guest.with(set, &guest.varve);
        varve.args(["doctor", "--json"]);
        let ended = guest.stage.run(varve);
        let found: Value = serde_json::from_str(&ended.text()).expect("JSON");
        (ended.code, found)
    };
    let row = |found: &Value, name: &str| {
        let mut rows = found["checks"].as_array().unwrap().iter();
        rows.find(|c| c["name"] == name).cloned().unwrap()
    };
    let (code, found) = doctor(&[]);
    assert_eq!((code, &found["can_record"]), (1, &Value::Bool(false)));
    assert_eq!(
        row(&found, "own processes")["detail"],
        "lacks CAP_BPF and CAP_PERFMON"
    );
    let (code, found) = doctor(&OWN);
    assert_eq!(
        (code, &found["can_record"]),
        (0, &Value::Bool(true)),
        "{found:#}"
    );
    let others = row(&found, "anybody's processes");
    assert_eq!(
        others["detail"],
        "lacks CAP_SYS_PTRACE and CAP_DAC_OVERRIDE"
    );
    assert!(others["hint"].as_str().unwrap().contains("setcap"));
}

#[test]
fn a_set_user_id_copy_refuses() {
    let guest = Guest::new();
    let copy = guest.stage.path("bin/varve-suid");
    fs::copy(varve_faults::varve_binary(), &copy).unwrap();
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o4755)).unwrap();
    let made = guest.stage.path("made");
    for words in [
        &["record", "--", "touch", "made"][..],
        &["doctor"],
        &["watchdog"],
    ] {
        let mut command = guest.stage.command("setpriv");
        command
            .args(["--reuid", &STRANGER.to_string(), "--clear-groups"])
            .arg(&copy)
            .args(words);
        guest
            .stage
            .run(command)
            .require(125)
            .require_complaint(&["set-user-ID"]);
    }
    assert!(!made.exists());
}
