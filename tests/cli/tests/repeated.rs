//! `varve record --every`: a service is recorded over and over, and what was recorded is in the store.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

/// Touches a page of its own every millisecond.
const SERVICE: &str = "import time\nb = bytearray(4 << 20)\ni = 0\nwhile True:\n    i = (i + 4096) % len(b)\n    b[i] = 1\n    time.sleep(0.001)\n";

/// What does not end at all fails so late: no test is about how long something takes.
const PATIENCE: Duration = Duration::from_secs(180);

fn varve(arguments: &[&str], folder: &Path) -> Command {
    let mut command = varve_cli_tests::varve();
    command
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::null());
    command
}

fn run(arguments: &[&str], folder: &Path) -> Output {
    varve(arguments, folder).output().expect("varve runs")
}

/// A process that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    fn pid(&self) -> String {
        self.0.id().to_string()
    }

    fn is_there(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }

    fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.pid()]).status();
        assert!(sent.unwrap().success());
    }

    fn end(&mut self) -> ExitStatus {
        let begin = Instant::now();
        while begin.elapsed() < PATIENCE {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("it does not end")
    }
}

/// A service with a name of its own: a Python in a file of that name.
fn service(folder: &Path, name: &str) -> Running {
    let program = folder.join(name);
    if !program.exists() {
        // A process of its own writes the file: had this one it open, a child that another test forks meanwhile would have it open until it
        // executes its program, and a file that is open for writing cannot be executed (ETXTBSY).
        let copied = Command::new("cp")
            .args([Path::new("/usr/bin/python3"), &program])
            .status();
        assert!(copied.unwrap().success());
    }
    let child = Command::new(&program)
        .args(["-c", SERVICE])
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    // `spawn` returns a moment before the kernel calls it so.
    let comm = format!("/proc/{}/comm", child.id());
    wait_until("it has its name", || {
        fs::read_to_string(&comm).unwrap().trim() == name
    });
    Running(child)
}

fn by_name<'a>(name: &'a str, every: &'a str, each: &'a str) -> [&'a str; 9] {
    [
        "record", "--name", name, "--every", every, "--for", each, "--to", "store",
    ]
}

/// Traces in a store: where they are, the oldest first by their names in the ledger.
fn traces(folder: &Path) -> Vec<PathBuf> {
    let ledger = fs::read_to_string(folder.join("store/.spool/pushed")).unwrap_or_default();
    let paths = ledger.lines().map(|line| line.split_once(' ').unwrap().1);
    paths.map(|path| folder.join("store").join(path)).collect()
}

fn manifest(trace: &Path) -> serde_json::Value {
    let text = fs::read_to_string(trace.join("manifest.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn pid_of(trace: &Path) -> String {
    manifest(trace)["target"]["pid"].to_string()
}

/// What has this extension in the spool.
fn spooled(folder: &Path, extension: &str) -> Option<PathBuf> {
    let entries = fs::read_dir(folder.join("store/.spool"));
    let mut paths = entries.into_iter().flatten().flatten().map(|e| e.path());
    paths.find(|p| p.extension().is_some_and(|e| e == extension))
}

/// Whether a recorder says that it records, which it does after its trace has a manifest.
fn is_recording(folder: &Path) -> bool {
    let log = spooled(folder, "log").and_then(|log| fs::read_to_string(log).ok());
    let says_so = log.is_some_and(|log| log.contains("recording process"));
    says_so && spooled(folder, "varve").is_some_and(|trace| trace.join("manifest.json").exists())
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn processes_are_looked_for_anew_each_time() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let said = fs::File::create(folder.join("said")).unwrap();
    let options = by_name("varve-test-a", "3s", "1s");
    let mut recorder = Running(varve(&options, folder).stderr(said).spawn().unwrap());
    let said = || fs::read_to_string(folder.join("said")).unwrap();
    wait_until("it waits", || {
        said().contains("no processes called varve-test-a")
    });
    let pids = || -> Vec<String> { traces(folder).iter().map(|t| pid_of(t)).collect() };
    let mut first = service(folder, "varve-test-a");
    wait_until("one trace", || !pids().is_empty());
    assert!(first.is_there());
    let gone = first.pid();
    drop(first);
    let mut others = [
        service(folder, "varve-test-a"),
        service(folder, "varve-test-a"),
    ];
    let wanted = others.each_ref().map(Running::pid);
    // A round may have begun between the two, or while the first was still there: what is asked is that each is found, and nothing else.
    wait_until("traces of all", || {
        let pids = pids();
        wanted.iter().all(|pid| pids.contains(pid))
    });
    recorder.signal("-TERM");
    assert_eq!(recorder.end().code(), Some(0), "{}", said());
    let pids = pids();
    let of_first = pids.iter().take_while(|pid| **pid == gone).count();
    assert!(of_first > 0, "{pids:?}, first {gone}");
    let later = &pids[of_first..];
    assert!(
        later.iter().all(|pid| wanted.contains(pid)),
        "{pids:?}, first {gone}, then {wanted:?}"
    );
    assert!(others.iter_mut().all(Running::is_there));
    let trace = traces(folder).remove(0);
    assert!(
        trace
            .to_string_lossy()
            .contains("store/service=varve-test-a/build=")
    );
    let report = run(&["report", trace.to_str().unwrap(), "--json"], folder);
    assert_eq!(report.status.code(), Some(0));
    let left: Vec<_> = fs::read_dir(folder.join("store/.spool"))
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(left, ["pushed"]);
}

#[test]
fn the_oldest_are_removed_where_they_take_too_much() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let mut target = service(folder, "varve-test-b");
    let pid = target.pid();
    let options = [
        "record", "-p", &pid, "--every", "500ms", "--for", "400ms", "--to", "store",
    ];
    let done = run(&[&options[..], &["--times", "1"]].concat(), folder);
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    let first = traces(folder).remove(0);
    let bytes = |of: &Path| -> u64 {
        let files = fs::read_dir(of).unwrap();
        files.map(|f| f.unwrap().metadata().unwrap().len()).sum()
    };
    // Room for two and a half.
    let room = format!("{}", bytes(&first) * 5 / 2);
    let done = run(
        &[&options[..], &["--times", "4", "--max-disk", &room]].concat(),
        folder,
    );
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(
        said.contains("removed the oldest trace of this machine"),
        "{said}"
    );
    assert!(!first.exists());
    let left = traces(folder);
    assert!(!left.is_empty() && left.iter().all(|t| t.join("manifest.json").exists()));
    assert!(left.iter().map(|t| bytes(t)).sum::<u64>() <= room.parse().unwrap());
    // Not even one has room.
    let done = run(
        &[&options[..], &["--times", "1", "--max-disk", "1KiB"]].concat(),
        folder,
    );
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(said.contains("more than all may take together"), "{said}");
    assert!(target.is_there());
}

#[test]
fn what_is_recorded_when_it_is_ended_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let mut target = service(folder, "varve-test-c");
    let options = by_name("varve-test-c", "60s", "30s");
    let mut recorder = Running(
        varve(&options, folder)
            .stderr(Stdio::null())
            .spawn()
            .unwrap(),
    );
    wait_until("it records", || is_recording(folder));
    recorder.signal("-INT");
    assert_eq!(recorder.end().code(), Some(0));
    assert_eq!(traces(folder).len(), 1);
    assert!(target.is_there());

    // Whoever is killed cannot end its recorder, which ends by itself; its trace is put into the store by the next one.
    let short = by_name("varve-test-c", "60s", "5s");
    let mut killed = Running(varve(&short, folder).stderr(Stdio::null()).spawn().unwrap());
    wait_until("it records", || is_recording(folder));
    let manifest = manifest(&spooled(folder, "varve").unwrap());
    let inner = PathBuf::from(format!("/proc/{}", manifest["recorder_pid"]));
    let second = run(&[&short[..], &["--times", "1"]].concat(), folder);
    let said = String::from_utf8_lossy(&second.stderr);
    assert!(
        said.contains("another `varve record --every` uses"),
        "{said}"
    );
    killed.signal("-KILL");
    killed.end();
    wait_until("its recorder ends", || !inner.exists());
    let next = [
        "record",
        "--name",
        "varve-test-none",
        "--every",
        "1s",
        "--for",
        "1s",
        "--to",
        "store",
        "--times",
        "1",
    ];
    let done = run(&next, folder);
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    assert_eq!(traces(folder).len(), 2, "{done:?}");
    assert!(target.is_there());
    let left = fs::read_dir(folder.join("store/.spool")).unwrap();
    let left: Vec<_> = left.map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["pushed"]);
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(said.contains("is matched exactly"), "{said}");
}

#[test]
fn the_ledger_knows_a_trace_before_its_copy_goes() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let target = service(folder, "varve-test-e");
    let spool = folder.join("store/.spool");
    // Nothing can be written to the ledger.
    fs::create_dir_all(spool.join("pushed.new")).unwrap();
    let pid = target.pid();
    let options = [
        "record", "-p", &pid, "--every", "500ms", "--for", "400ms", "--to", "store", "--times", "1",
    ];
    let done = run(&options, folder);
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(said.contains("cannot write"), "{said}");
    let waiting = || {
        let names = fs::read_dir(&spool).unwrap().map(|e| e.unwrap().path());
        names
            .filter(|p| p.extension().is_some_and(|e| e == "varve"))
            .count()
    };
    assert_eq!(waiting(), 1, "{said}");
    fs::remove_dir(spool.join("pushed.new")).unwrap();
    assert_eq!(run(&options, folder).status.code(), Some(0));
    assert_eq!((waiting(), traces(folder).len()), (0, 2));
}

#[test]
fn a_recorder_that_is_killed_is_said_and_its_trace_has_its_build() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let mut target = service(folder, "varve-test-f");
    let said = fs::File::create(folder.join("said")).unwrap();
    let options = [
        &by_name("varve-test-f", "60s", "30s")[..],
        &["--times", "1"],
    ]
    .concat();
    let mut recorder = Running(varve(&options, folder).stderr(said).spawn().unwrap());
    wait_until("it records", || is_recording(folder));
    let trace = spooled(folder, "varve").unwrap();
    // The build is that of the mappings, which are written with the first flush.
    wait_until("the mappings are written", || {
        varve_truth::flushed(&trace, "mappings") > 0
    });
    let inner = manifest(&trace)["recorder_pid"].to_string();
    let killed = Command::new("kill").args(["-KILL", &inner]).status();
    assert!(killed.unwrap().success());
    assert_eq!(recorder.end().code(), Some(0));
    let said = fs::read_to_string(folder.join("said")).unwrap();
    assert!(said.contains("was killed by signal 9"), "{said}");
    let there = traces(folder).remove(0);
    assert!(!there.to_string_lossy().contains("build=unknown"), "{said}");
    assert!(target.is_there());
}

/// The cgroup of a hierarchy, with a name as systemd gives units.
struct Cgroup(PathBuf);

impl Cgroup {
    fn new(name: &str) -> Option<Cgroup> {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let places = mounts.lines().filter_map(|line| {
            let fields: Vec<&str> = line.split(' ').collect();
            let is_one =
                fields[2] == "cgroup2" || fields[2] == "cgroup" && fields[3].contains("pids");
            is_one.then(|| PathBuf::from(fields[1]))
        });
        let mut made = places
            .map(|place| place.join(name))
            .filter(|path| fs::create_dir(path).is_ok());
        made.next().map(Cgroup)
    }

    fn add(&self, process: &Running) {
        let mut file = OpenOptions::new()
            .write(true)
            .open(self.0.join("cgroup.procs"))
            .unwrap();
        file.write_all(process.pid().as_bytes()).unwrap();
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let begin = Instant::now();
        while fs::remove_dir(&self.0).is_err() && begin.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn processes_of_a_unit_and_of_a_cgroup_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let unit = format!("varve-test-{}", std::process::id());
    let cgroup = Cgroup::new(&format!("{unit}.service")).expect("a cgroup can be made");
    let (inside, _outside) = (
        service(folder, "varve-test-d"),
        service(folder, "varve-test-d"),
    );
    cgroup.add(&inside);
    let path = cgroup.0.to_str().unwrap().to_owned();
    for (i, selected) in [["--unit", &unit], ["--cgroup", &path]].iter().enumerate() {
        let options = [
            "--every",
            "1s",
            "--for",
            "500ms",
            "--to",
            "store",
            "--times",
            "1",
            "--service",
            "mine",
        ];
        let done = run(&[&["record"], &selected[..], &options].concat(), folder);
        assert_eq!(done.status.code(), Some(0), "{done:?}");
        let all = traces(folder);
        assert_eq!(all.len(), i + 1, "{done:?}");
        assert_eq!(pid_of(&all[i]), inside.pid());
        assert!(all[i].to_string_lossy().contains("store/service=mine/"));
    }
    drop(inside);
}

#[test]
fn what_cannot_be_meant_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let refused = |options: &[&str], code: i32, why: &str| {
        let done = run(&[&["record"], options].concat(), folder);
        let said = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(code), "{said}");
        assert!(said.contains(why), "{said}");
    };
    let times = ["--every", "10m", "--for", "10s", "--to", "store"];
    let with = |more: &[&'static str]| [more, &times[..]].concat();
    refused(&["--every", "10m", "--name", "x"], 2, "--for");
    refused(&["--for", "10s", "--name", "x"], 2, "--every");
    refused(&with(&["-o", "t.varve", "--name", "x"]), 2, "--output");
    refused(&with(&["--name", "x", "--unit", "y"]), 2, "--unit");
    let exact = with(&["--name", "x", "--backend", "exact"]);
    refused(&exact, 2, "from their beginning");
    refused(&with(&["--name", ""]), 2, "--name");
    refused(&with(&["--unit", ""]), 2, "--unit");
    refused(
        &[
            "--every",
            "99999999h",
            "--for",
            "1s",
            "--to",
            "store",
            "--name",
            "x",
        ],
        2,
        "longer than a year",
    );
    refused(&times, 2, "needs to know what to record");
    refused(&with(&["--name", "/usr/bin/x"]), 2, "`--name x`");
    refused(&with(&["--name", "x", "--max-disk", "0"]), 2, "above 0");
    let nothing = [
        "--every", "10s", "--for", "0", "--to", "store", "--name", "x",
    ];
    refused(&nothing, 2, "`--for` is no time at all");
    refused(
        &with(&["-p", "999999999"]),
        125,
        "there is no process 999999999",
    );
    refused(
        &[
            "--every", "10s", "--for", "10m", "--to", "store", "--name", "x",
        ],
        2,
        "is longer than `--every 10 s`",
    );
    refused(
        &[
            "--every", "10m", "--for", "10s", "--to", "s3://b/c", "--name", "x",
        ],
        2,
        "--spool",
    );
    let few = [
        "--hosts",
        "0.000001%",
        "--name",
        "varve-test-none",
        "--times",
        "1",
    ];
    refused(&with(&few), 0, "is not among the ");
}
