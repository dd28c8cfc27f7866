//! Trace folders: no links followed, nothing deleted that is not the recorder's, nothing written by a reader.

mod folder;
mod surroundings;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::killed::killed_trace;
use rustix::process::Signal;
use varve_faults::{Ended, Running, Stage, actor, check_trace, patiently, varve_binary};
use varve_model::Backend;
use varve_trace::{Manifest, State};
use varve_trust::{STRANGER, as_user};

/// A record of another tool.
const PERF: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../golden/import/intel.perf-script.txt"
);

/// All that can be seen of each entry below a folder: its kind and mode, when it was changed, and what it holds.
fn snapshot(folder: &Path) -> Snapshot {
    let mut found = BTreeMap::new();
    let mut open = vec![folder.to_owned()];
    while let Some(path) = open.pop() {
        let meta = fs::symlink_metadata(&path).expect("an entry");
        let content = if meta.is_file() {
            fs::read(&path).expect("a file")
        } else if meta.is_symlink() {
            let to = fs::read_link(&path).expect("a link");
            to.into_os_string().into_encoded_bytes()
        } else {
            Vec::new()
        };
        if meta.is_dir() {
            let entries = fs::read_dir(&path).expect("a folder");
            open.extend(entries.map(|e| e.expect("an entry").path()));
        }
        found.insert(
            path,
            (meta.mode(), (meta.ctime(), meta.ctime_nsec()), content),
        );
    }
    found
}

type Snapshot = BTreeMap<PathBuf, (u32, (i64, i64), Vec<u8>)>;

/// Requires that a folder is as it was.
#[track_caller]
fn require_same(folder: &Path, before: &Snapshot, why: &str) {
    let now = snapshot(folder);
    let all = before.keys().chain(now.keys());
    let changed: BTreeSet<_> = all.filter(|p| before.get(*p) != now.get(*p)).collect();
    assert!(changed.is_empty(), "changed: {changed:#?} {why}");
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).expect("an entry").mode() & 0o7777
}

fn fifo(path: &Path) {
    let made = Command::new("mkfifo").arg(path).status().expect("mkfifo");
    assert!(made.success());
}

/// Things that somebody would miss, under names that a trace has.
fn victim(stage: &Stage, name: &str) -> PathBuf {
    let victim = stage.path(name);
    killed_trace(&victim);
    for file in ["thesis.tex", "touches.parquet", "parts/diary.txt"] {
        fs::write(victim.join(file), "years of work").expect("a file");
    }
    victim
}

fn varve(stage: &Stage, arguments: &[&str]) -> Ended {
    let mut command = stage.command(varve_binary());
    command.args(arguments);
    stage.run(command)
}

/// The same by a shell, after `prepare`.
fn varve_after(stage: &Stage, prepare: &str, arguments: &[&str]) -> Ended {
    let mut command = stage.command("unshare");
    let script = format!("{prepare} && exec \"$0\" \"$@\"");
    command
        .args(["-m", "--propagation", "private", "sh", "-c", &script])
        .arg(varve_binary())
        .args(arguments);
    stage.run(command)
}

/// A recorder of a program that runs until it is ended, with something written already.
fn recording(stage: &Stage, trace: &str) -> Running {
    let started = stage.path("started");
    let mut command = stage.command(varve_binary());
    command
        .args(["record", "--interval", "10ms", "-o", trace, "--"])
        .arg(actor())
        .arg("serve")
        .arg(&started);
    let mut running = stage.start(command);
    let part = stage.path(trace).join("parts/intervals-000000.parquet");
    patiently(|| (started.exists() && part.exists()) || running.has_ended());
    assert!(!running.has_ended(), "{}", running.messages());
    running
}

#[test]
fn a_link_in_the_place_of_the_output_is_left_alone() {
    let stage = Stage::new();
    let victim = victim(&stage, "victim");
    symlink(&victim, stage.path("t.varve")).expect("a link");
    let before = snapshot(&victim);
    for options in [
        &["record"][..],
        &["record", "--force"],
        &["record", "--force", "--share"],
    ] {
        let mut words = options.to_vec();
        words.extend(["-o", "t.varve", "--", "touch", "ran"]);
        let ended = varve(&stage, &words);
        require_same(&victim, &before, &format!("{options:?}: {}", ended.stderr));
        ended
            .require(125)
            .require_complaint(&["t.varve", "symbolic link"]);
    }
    let ended = varve(&stage, &["import", "--force", PERF, "-o", "t.varve"]);
    require_same(&victim, &before, &ended.stderr);
    ended
        .require(1)
        .require_complaint(&["t.varve", "symbolic link"]);
    assert!(!stage.path("ran").exists(), "the target was started");
}

#[test]
fn links_in_an_earlier_trace_are_left_alone() {
    for place in [
        "parts",
        "touches.parquet",
        "touches.new",
        "parts/touches-000000.parquet",
    ] {
        let stage = Stage::new();
        let victim = victim(&stage, "victim");
        let trace = stage.path("t.varve");
        killed_trace(&trace);
        let at = trace.join(place);
        if place == "parts" {
            fs::remove_dir_all(&at).expect("removed");
            symlink(victim.join("parts"), &at).expect("a link");
        } else {
            let _ = fs::remove_file(&at);
            symlink(victim.join("touches.parquet"), &at).expect("a link");
        }
        let (before, trace_before) = (snapshot(&victim), snapshot(&trace));
        for options in [&["record"][..], &["record", "--force"]] {
            let mut words = options.to_vec();
            words.extend(["-o", "t.varve", "--", "true"]);
            let ended = varve(&stage, &words);
            require_same(&victim, &before, &format!("{place}: {}", ended.stderr));
            require_same(&trace, &trace_before, &format!("{place}: {}", ended.stderr));
            ended.require(125);
        }
        let ended = varve(&stage, &["recover", "t.varve"]);
        require_same(&victim, &before, &format!("{place}: {}", ended.stderr));
        ended.require(1);
    }
}

#[test]
fn reading_a_crafted_unfinished_trace_changes_nothing() {
    let stage = Stage::new();
    let victim = victim(&stage, "victim");
    let trace = stage.path("t.varve");
    killed_trace(&trace);
    symlink(victim.join("thesis.tex"), trace.join("touches.new")).expect("a link");
    symlink(
        victim.join("thesis.tex"),
        trace.join("parts/deaths-000009.new"),
    )
    .expect("a link");
    fifo(&trace.join("faults.new"));
    fs::write(trace.join("thesis.tex"), "years of work").expect("a file");
    // Names that begin as those of parts do.
    fs::write(trace.join("parts/births-certificates"), "precious").expect("a file");
    fs::write(trace.join("parts/touches-.parquet"), "precious").expect("a file");
    fs::create_dir(trace.join("parts/stacks-of-photographs")).expect("a folder");
    let (before, victim_before) = (snapshot(&trace), snapshot(&victim));
    for arguments in [
        &["report", "t.varve"][..],
        &["report", "t.varve", "--json"],
        &[
            "report",
            "t.varve",
            "--html",
            "page.html",
            "--png",
            "page.png",
        ],
        &["export", "t.varve", "--format", "csv", "-o", "t.csv"],
    ] {
        let ended = varve(&stage, arguments);
        require_same(&trace, &before, &format!("{arguments:?}: {}", ended.stderr));
        require_same(&victim, &victim_before, &format!("{arguments:?}"));
        assert!(ended.stderr.contains("was killed"), "{}", ended.stderr);
        ended.require(0);
    }
    for file in ["page.html", "page.png", "t.csv"] {
        assert!(stage.path(file).is_file(), "{file}");
    }
}

#[test]
fn tables_that_are_links_or_fifos_are_refused_at_once() {
    for place in [
        "manifest.json",
        "touches.parquet",
        "parts/touches-000000.parquet",
        "parts",
    ] {
        for is_fifo in [true, false] {
            let stage = Stage::new();
            let victim = victim(&stage, "victim");
            let trace = stage.path("t.varve");
            killed_trace(&trace);
            let at = trace.join(place);
            let _ = fs::remove_file(&at);
            if place == "parts" {
                fs::remove_dir_all(&at).expect("removed");
            }
            match is_fifo {
                true => fifo(&at),
                // What is behind it would be a good one.
                false => symlink(victim.join(place), &at).expect("a link"),
            }
            let before = snapshot(&trace);
            let ended = varve(&stage, &["report", "t.varve"]).require(1);
            assert!(ended.stderr.contains(place), "{}", ended.stderr);
            ended.require_complaint(&[if is_fifo { "a FIFO" } else { "a symbolic link" }]);
            require_same(&trace, &before, "");
        }
    }
}

#[test]
fn an_unfinished_trace_is_read_where_nobody_may_write() {
    let stage = Stage::new();
    let trace = stage.path("t.varve");
    killed_trace(&trace);
    let plain = varve(&stage, &["report", "t.varve", "--json"]).require(0);
    let prepare = "mount --bind t.varve t.varve && mount -o remount,bind,ro t.varve";
    let ended = varve_after(&stage, prepare, &["report", "t.varve", "--json"]).require(0);
    assert_eq!(ended.text(), plain.text());

    // By another user, who may read it and no more.
    let copy = stage.path("varve");
    fs::copy(varve_binary(), &copy).expect("a copy of varve");
    for path in [stage.folder(), &trace, &trace.join("parts"), &copy] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("open to all");
    }
    let report = |stage: &Stage| {
        let mut command = stage.command(&copy);
        command.args(["report", "t.varve", "--json"]);
        as_user(&mut command, STRANGER);
        stage.run(command)
    };
    for entry in snapshot(&trace).into_keys().filter(|p| p.is_file()) {
        fs::set_permissions(entry, fs::Permissions::from_mode(0o644)).expect("open to all");
    }
    let before = snapshot(&trace);
    assert_eq!(report(&stage).require(0).text(), plain.text());
    require_same(&trace, &before, "");
    fs::set_permissions(&trace, fs::Permissions::from_mode(0o700)).expect("closed");
    report(&stage)
        .require(1)
        .require_complaint(&["cannot open t.varve"]);
}

#[test]
fn reading_an_unfinished_trace_leaves_no_temporary_files_and_says_where_room_is_missing() {
    let stage = Stage::new();
    killed_trace(&stage.path("t.varve"));
    let scratch = stage.path("scratch");
    fs::create_dir(&scratch).expect("a folder");
    let mut command = stage.command(varve_binary());
    command.args(["report", "t.varve"]).env("TMPDIR", &scratch);
    stage.run(command).require(0);
    assert_eq!(fs::read_dir(&scratch).expect("a folder").count(), 0);
    let prepare = "mount -t tmpfs -o nr_inodes=1 none scratch && export TMPDIR=scratch";
    let ended = varve_after(&stage, prepare, &["report", "t.varve"]).require(1);
    ended.require_complaint(&["temporary files in scratch", "No space left on device"]);
    assert!(ended.stderr.contains("TMPDIR"), "{}", ended.stderr);
}

/// What a killed recorder left is read by several at once, as it is, and put in order once.
#[test]
fn a_killed_recording_is_read_as_it_is_and_recovered_once() {
    let stage = Stage::new();
    let trace = stage.path("t.varve");
    let recorder = recording(&stage, "t.varve");
    for command in ["report", "recover"] {
        let ended = varve(&stage, &[command, "t.varve"]).require(1);
        ended.require_complaint(&["still being recorded", &recorder.pid().to_string()]);
    }
    recorder.signal(Signal::KILL);
    recorder.end();
    let before = snapshot(&trace);
    let report = || {
        let mut command = stage.command(varve_binary());
        command.args(["report", "t.varve", "--json"]);
        stage.start(command)
    };
    let both = [report(), report()].map(|running| running.end().require(0).text());
    assert_eq!(both[0], both[1]);
    assert!(both[0].contains("recorder_killed"), "{}", both[0]);
    assert!(both[0].contains("\"recovered\""), "{}", both[0]);
    require_same(&trace, &before, "");
    assert_eq!(
        Manifest::read(&trace).expect("a manifest").state,
        State::Recording
    );

    let ended = varve(&stage, &["recover", "t.varve"]).require(0);
    assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
    assert_eq!(
        check_trace(&trace).expect("a trace").state,
        State::Recovered
    );
    assert_eq!(report().end().require(0).text(), both[0]);
    assert_eq!(
        (mode(&trace), mode(&trace.join("touches.parquet"))),
        (0o700, 0o600)
    );
    let recovered = snapshot(&trace);
    let again = varve(&stage, &["recover", "t.varve"]).require(0);
    assert!(again.stderr.contains("is in order"), "{}", again.stderr);
    require_same(&trace, &recovered, "");
}
