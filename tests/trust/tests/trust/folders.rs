//! What killed recorders leave, and what only looks like it; and limits of files.

use std::fs;
use std::os::unix::fs::{chown, symlink};
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use varve_faults::{
    Ended, Stage, cgroup_root, check_trace, is_frozen, patiently, recorder_cgroups, ring_folders,
    varve_binary, watchdogs,
};
use varve_trace::{State, Trace};
use varve_trust::STRANGER;

/// The number of a process that there is not, of this test alone: another checkout may be tested at the same time.
fn nobody() -> u32 {
    const LARGEST: u32 = 4_194_303;
    let own = LARGEST - 4 * std::process::id() % (LARGEST / 2);
    let mut numbers = (LARGEST / 2..=own).rev();
    let is_free = |pid: &u32| !Path::new(&format!("/proc/{pid}")).exists();
    numbers.find(is_free).expect("a number that is free")
}

/// A folder that is somebody's own, removed with the test.
struct Own(PathBuf);

impl Own {
    fn folder(path: impl Into<PathBuf>) -> Own {
        let path = path.into();
        fs::create_dir(&path).unwrap_or_else(|e| panic!("{path:?}: {e}"));
        Own(path)
    }

    fn with(self, name: &str, text: &str) -> Own {
        fs::write(self.0.join(name), text).expect("a file");
        self
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        if self.0.is_symlink() {
            let _ = fs::remove_file(&self.0);
        } else if self.0.starts_with(cgroup_root()) {
            let _ = fs::remove_dir(&self.0);
        } else {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}

fn doctor(stage: &Stage, options: &[&str]) -> Ended {
    let mut doctor = stage.command(varve_binary());
    doctor.arg("doctor").args(options);
    stage.run(doctor)
}

fn leftovers_line(said: &str) -> String {
    let mut lines = said.lines().skip_while(|l| !l.contains("leftovers"));
    let found: Vec<&str> = lines.by_ref().take(2).collect();
    found.join("\n")
}

/// A mark as a recorder that is gone would have left it.
fn mark_of_the_dead(pid: u32) -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("a boot");
    format!("varve-recorder {pid} 1 {}\n", boot.trim())
}

#[test]
fn what_is_others_survives_every_command() {
    let outside = Stage::new();
    let (nobody, own_pid) = (nobody(), std::process::id());
    let kept = outside.path("kept.ring");
    fs::write(&kept, "").expect("a file");
    let mut own = Vec::new();
    for base in ["/tmp", "/dev/shm"] {
        let base = Path::new(base);
        own.push(Own::folder(base.join(format!("varve-{own_pid}-thesis"))).with("thesis.tex", ""));
        own.push(Own::folder(base.join(format!("varve-{own_pid}-draft-2"))).with("a.ring", ""));
        // The form is right and the mark is not.
        own.push(Own::folder(base.join(format!("varve-{nobody}-c0ffee"))).with("a.ring", ""));
        let other = format!("varve-{nobody}-1");
        own.push(Own::folder(base.join(other)).with("recorder", &mark_of_the_dead(nobody - 1)));
        // A stranger's, with a mark that would do.
        let strange = Own::folder(base.join(format!("varve-{nobody}-2")))
            .with("recorder", &mark_of_the_dead(nobody))
            .with("a.ring", "");
        for path in [
            strange.0.clone(),
            strange.0.join("recorder"),
            strange.0.join("a.ring"),
        ] {
            chown(path, Some(STRANGER), Some(STRANGER)).expect("another owner");
        }
        own.push(strange);
        // A recorder's without doubt, with something of somebody else's in it, and a link to elsewhere.
        let mixed = Own::folder(base.join(format!("varve-{nobody}-3")))
            .with("recorder", &mark_of_the_dead(nobody))
            .with("notes.txt", "");
        symlink(outside.folder(), mixed.0.join("b.ring")).expect("a link");
        own.push(mixed);
        // A link of the right name, to a folder that would do.
        let target = outside.path(&format!("linked{}", own.len()));
        fs::create_dir(&target).expect("a folder");
        fs::write(target.join("recorder"), mark_of_the_dead(nobody)).expect("a mark");
        fs::write(target.join("a.ring"), "").expect("a file");
        let link = base.join(format!("varve-{nobody}-4"));
        symlink(&target, &link).expect("a link");
        own.push(Own(target));
        own.push(Own(link));
    }
    for name in [format!("varve-{own_pid}-thesis"), format!("varve-{nobody}")] {
        own.push(Own::folder(cgroup_root().join(name)));
    }
    let files = |folder: &Own| -> Vec<PathBuf> {
        let entries = fs::read_dir(&folder.0).into_iter().flatten().flatten();
        let mut paths: Vec<PathBuf> = entries.map(|e| e.path()).collect();
        paths.sort();
        paths
    };
    let before: Vec<_> = own.iter().map(files).collect();
    let stage = Stage::new();
    let require_there = |after: &str| {
        for (folder, files_before) in own.iter().zip(&before) {
            let there = fs::symlink_metadata(&folder.0).is_ok();
            assert!(there, "{:?} is gone after {after}", folder.0);
            assert_eq!(&files(folder), files_before, "{:?} after {after}", folder.0);
        }
        assert!(kept.exists(), "what a link leads to is gone after {after}");
    };
    let said = doctor(&stage, &[]).require(0).text();
    require_there("doctor");
    let said = leftovers_line(&said);
    assert!(!said.contains("thesis"), "{said}");
    for words in ["c0ffee (it has no mark", "-2 (it belongs to user 64201)"] {
        assert!(said.contains(words), "no `{words}` in: {said}");
    }
    stage.run(stage.record(&[], &["true"])).require(0);
    require_there("record");
    let said = doctor(&stage, &["--clean"]).require(0).text();
    require_there("doctor --clean");
    let said = leftovers_line(&said);
    assert!(said.contains("something else is in it"), "{said}");
}

/// Leaves a frozen target whose recorder and watchdogs are dead; none where a recording that began meanwhile, of another test or another checkout, has removed it
/// already. Such a try decides nothing.
fn leave(stage: &Stage) -> Option<(u32, PathBuf)> {
    let started = stage.path("started");
    let arguments = ["serve", started.to_str().expect("a path")];
    let recorder = stage.start(stage.record_actor(&["--interval", "10ms"], &arguments));
    assert!(patiently(|| started.exists()), "{}", recorder.messages());
    let group = recorder_cgroups(recorder.pid()).pop().expect("a cgroup");
    recorder.signal(Signal::STOP);
    let watchdogs = watchdogs(recorder.pid());
    assert_eq!(watchdogs.len(), 2, "{watchdogs:?}");
    watchdogs.into_iter().for_each(kill);
    recorder.signal(Signal::KILL);
    let pid = recorder.end().pid;
    match fs::write(group.join("cgroup.freeze"), "1") {
        Ok(()) => Some((pid, group)),
        Err(error) => {
            assert!(patiently(|| !group.exists()), "{error}");
            None
        }
    }
}

/// Does what others may disturb until they have not: `try_it` says so by its answer.
fn undisturbed(try_it: impl Fn() -> bool) {
    // Others record once a second or so, and a try takes a tenth of one.
    let is_done = (0..20).any(|_| try_it());
    assert!(is_done, "others are always quicker");
}

fn kill(pid: u32) {
    if let Some(pid) = rustix::process::Pid::from_raw(pid as i32) {
        let _ = rustix::process::kill_process(pid, Signal::KILL);
    }
}

#[test]
fn what_a_dead_recorder_left_is_listed_and_then_removed() {
    undisturbed(listed_and_then_removed);
}

/// Whether nobody else removed it meanwhile.
fn listed_and_then_removed() -> bool {
    let stage = Stage::new();
    let Some((recorder, group)) = leave(&stage) else {
        return false;
    };
    let looks = Stage::new();
    let said = leftovers_line(&doctor(&looks, &[]).require(0).text());
    let (is_frozen, folders) = (is_frozen(&group), ring_folders(recorder));
    if !is_frozen || folders.is_empty() {
        // Whoever lets it go removes it, too.
        assert!(patiently(|| !group.exists()), "the doctor touched it");
        return false;
    }
    assert_eq!(folders.len(), 1);
    for path in [&group, &folders[0]] {
        assert!(said.contains(&path.display().to_string()), "{said}");
    }
    assert!(said.contains("doctor --clean"), "{said}");
    let said = leftovers_line(&doctor(&looks, &["--clean"]).require(0).text());
    if !said.contains(&group.display().to_string()) {
        return false;
    }
    assert!(said.contains("let go and removed"), "{said}");
    assert!(!group.exists());
    assert!(ring_folders(recorder).is_empty());
    let beats = || fs::read(stage.path("started.beats")).expect("beats");
    let before = beats();
    assert!(patiently(|| beats() != before), "it is not let go");
    true
}

#[test]
fn the_next_recording_removes_what_a_dead_recorder_left() {
    undisturbed(|| {
        let stage = Stage::new();
        let Some((recorder, group)) = leave(&stage) else {
            return false;
        };
        let next = Stage::new();
        next.run(next.record(&[], &["true"])).require(0);
        // Another recording may be about to, and does it just after this one looked.
        let is_gone = || !group.exists() && ring_folders(recorder).is_empty();
        let at_once = is_gone();
        assert!(patiently(is_gone), "it is left");
        at_once
    });
}

/// `ulimit -f` in blocks of 512 bytes, as a POSIX shell counts.
fn limited(stage: &Stage, limit: &str, options: &[&str], script: &str) -> Ended {
    limited_by(stage, limit, &[], options, script)
}

/// A recorder that may not raise its limits.
const WITHOUT_RIGHT: &[&str] = &["setpriv", "--bounding-set=-sys_resource"];

fn limited_by(
    stage: &Stage,
    limit: &str,
    prefix: &[&str],
    options: &[&str],
    script: &str,
) -> Ended {
    let mut command = stage.command("sh");
    command
        .args(["-c", &format!("{limit} && exec \"$@\""), "sh"])
        .args(prefix)
        .arg(varve_binary())
        .args(["record", "-o", "trace.varve"])
        .args(options)
        .args(["--", "sh", "-c", script])
        .stdin(std::process::Stdio::null());
    stage.start(command).end()
}

#[test]
fn a_limit_of_file_sizes_ends_the_recording_and_not_the_recorder() {
    let stage = Stage::new();
    // A recording of half a second before the limit is met: parts are small, and so is what is written first.
    let script = "ulimit -f; grep SigIgn /proc/self/status; \
        i=0; while [ $i -lt 300 ]; do /bin/true; i=$((i+1)); done; sleep 1; exit 5";
    let ended = limited(&stage, "ulimit -f 16", &["--interval", "10ms"], script);
    let ended = ended.require(5);
    assert!(ended.stderr.contains("ended early"), "{}", ended.stderr);
    assert!(ended.stderr.contains("ulimit -f"), "{}", ended.stderr);
    assert_eq!(limit_and_ignored(&ended), ("16".to_owned(), false));
    stage.require_clean(ended.pid);
    // Without the limit what was recorded can be put in order.
    let mut report = stage.command(varve_binary());
    report.args(["report", "trace.varve"]);
    stage.run(report).require(0);
    let contents = check_trace(&stage.path("trace.varve")).expect("a trace");
    assert_ne!(contents.state, State::Recording);
    assert!(
        !Trace::open(&stage.path("trace.varve"))
            .expect("a trace")
            .manifest
            .completeness
            .complete
    );
}

/// The limit that a target printed, and whether it ignores the signal of those who exceed it.
fn limit_and_ignored(ended: &Ended) -> (String, bool) {
    let said = ended.text();
    let words: Vec<&str> = said.split_whitespace().collect();
    let [limit, "SigIgn:", mask] = words[..] else {
        panic!("{said}");
    };
    let mask = u64::from_str_radix(mask, 16).expect("a mask");
    (limit.to_owned(), mask >> (libc::SIGXFSZ - 1) & 1 == 1)
}

/// A limit that the recording does not reach, and the signal as the shell has it.
#[test]
fn the_target_keeps_its_own_limit_of_file_sizes_and_its_signal() {
    for (prepare, is_ignored) in [
        ("ulimit -f 100000", false),
        ("trap '' XFSZ; ulimit -f 100000", true),
    ] {
        let stage = Stage::new();
        let script = "ulimit -f; grep SigIgn /proc/self/status";
        let ended = limited(&stage, prepare, &[], script).require(0);
        let found = limit_and_ignored(&ended);
        assert_eq!(found, ("100000".to_owned(), is_ignored));
        assert!(!ended.stderr.contains("ended early"), "{}", ended.stderr);
    }
}

#[test]
fn few_open_files_are_a_sentence() {
    let stage = Stage::new();
    let ended = limited_by(&stage, "ulimit -n 24", WITHOUT_RIGHT, &[], "echo ran");
    assert_eq!(ended.code, 125, "{}", ended.stderr);
    ended.require_complaint(&["24 files open"]);
    assert!(ended.stderr.contains("ulimit -n"), "{}", ended.stderr);
    assert_eq!(ended.text(), "");
    assert!(!stage.path("trace.varve").exists());
}

/// Records 200 processes, of which each connects to the recorder and lives over many boundaries.
fn require_many_processes(limit: &str, prefix: &[&str], options: &[&str]) {
    let stage = Stage::new();
    let script = "i=0; while [ $i -lt 200 ]; do sleep 2 & i=$((i+1)); done; wait; ulimit -n; \
        ulimit -H -n; exit 5";
    let ended = limited_by(&stage, limit, prefix, options, script).require(5);
    assert!(!ended.stderr.contains("ended early"), "{}", ended.stderr);
    let own = limit.rsplit(' ').next().unwrap();
    assert_eq!(ended.text(), format!("{own}\n{own}\n"));
    let manifest = Trace::open(&stage.path("trace.varve"))
        .expect("a trace")
        .manifest;
    // Reclaim is the machine's.
    let lost = manifest
        .losses
        .iter()
        .filter(|(kind, n)| **n > 0 && *kind != "reclaim_scanned_pages");
    assert_eq!(lost.count(), 0, "{:?}", manifest.losses);
    let notes = manifest.notes.join(" ");
    assert!(!notes.contains("refused"), "{notes}");
}

#[test]
fn more_processes_than_open_files_are_recorded() {
    require_many_processes("ulimit -n 192", WITHOUT_RIGHT, &["--interval", "20ms"]);
}

#[test]
fn a_recorder_that_may_raises_its_limit_of_open_files() {
    const CAP_SYS_RESOURCE: u32 = 24;
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let own = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let own = u64::from_str_radix(own.unwrap().trim(), 16).unwrap();
    if own >> CAP_SYS_RESOURCE & 1 == 0 {
        eprintln!("skipped: no CAP_SYS_RESOURCE here");
        return;
    }
    require_many_processes("ulimit -n 64", &[], &["--backend", "fault"]);
}

#[test]
fn the_target_keeps_its_own_limit_of_open_files() {
    let stage = Stage::new();
    let ended = limited(&stage, "ulimit -S -n 24", &[], "ulimit -n; ulimit -H -n").require(0);
    let hard = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    let hard = hard.map_or("unlimited".to_owned(), |h| h.to_string());
    assert_eq!(ended.text(), format!("24\n{hard}\n"));
}

/// The name alone must not have the nested check refuse either.
#[test]
fn a_cgroup_that_is_called_like_a_recorders_is_no_recording() {
    let group = Own::folder(cgroup_root().join(format!("varve-{}", nobody() - 2)));
    let stage = Stage::new();
    let mut command = stage.command("sh");
    command
        .args(["-c", "echo $$ > $0/cgroup.procs; exec \"$@\""])
        .arg(&group.0)
        .arg(varve_binary())
        .args(["record", "-o", "trace.varve", "--", "true"]);
    stage.run(command).require(0);
    assert!(patiently(
        || fs::remove_dir(&group.0).is_ok() || !group.0.exists()
    ));
}

/// One whose recorder is gone brings pages back, or hangs: it is named and not ended. One in use is none.
#[test]
fn handlers_without_a_recorder_are_named() {
    let stage = Stage::new();
    let copy = stage.path("varve-handler");
    fs::copy("/bin/sleep", &copy).unwrap();
    let (running, said) = super::handler::record(&stage, "crowd", &["3", "until", "FILE"]);
    assert!(patiently(
        || fs::read_to_string(&said).is_ok_and(|s| s.contains("begun"))
    ));
    let handler = super::handler::handler_of(super::handler::target_of(&running));
    let mut left = stage.command(&copy);
    left.arg("1000")
        .env("VARVE_PRELOAD_DIR", stage.path("gone"));
    let left = stage.start(left);
    let place = format!("/proc/{}", left.pid());
    let is_named =
        || fs::read(format!("{place}/comm")).is_ok_and(|name| name == b"varve-handler\n");
    assert!(patiently(is_named));
    for options in [&["--all"][..], &["--clean"]] {
        let line = leftovers_line(&doctor(&stage, options).text());
        assert!(
            line.contains(&place) && line.contains("the fault handler of"),
            "{line}"
        );
        assert!(!line.contains(&format!("/proc/{handler} ")), "{line}");
        assert!(is_named());
    }
    fs::write(said.with_extension("over"), "over").unwrap();
    drop(left);
    running.end().require(0);
}
