//! What surrounds a recording is taken away while it runs: its folder, its disk, the folder that it was started in. It ends with a
//! sentence, nothing of somebody else's is changed, and the target runs to its own end.

use std::io::Write;

use super::*;

/// A small file system for one test.
struct Mount(PathBuf);

impl Mount {
    fn new(stage: &Stage, options: &str) -> Mount {
        let path = stage.path("disk");
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

/// Records, from a folder, a program that waits until it is let go, and waits itself until a part has come to be.
fn going_on(stage: &Stage, from: &Path, trace: &Path, part: &str) -> Running {
    fifo(&stage.path("over"));
    let script = "read -r line < \"$0\"; echo unharmed; exit 5";
    let mut command = stage.command(varve_binary());
    command
        .args(["record", "--interval", "10ms", "-o"])
        .arg(trace)
        .args(["--", "sh", "-c", script])
        .arg(stage.path("over"))
        .current_dir(from)
        .stdin(std::process::Stdio::null());
    let mut running = stage.start(command);
    let part = from.join(trace).join(part);
    patiently(|| part.exists() || running.has_ended());
    assert!(!running.has_ended(), "{}", running.messages());
    running
}

/// Lets the target go, and requires that it ends as it would have alone.
fn let_go(stage: &Stage, running: Running) -> Ended {
    // Open to be read as well, so that nobody waits for a target that is not there.
    let mut over = fs::File::options();
    let mut over = over
        .read(true)
        .write(true)
        .open(stage.path("over"))
        .expect("a FIFO");
    over.write_all(b"over\n").expect("written");
    let ended = running.end().require(5);
    assert_eq!(ended.text(), "unharmed\n");
    stage.require_clean(ended.pid);
    ended
}

/// The same when the recording has ended early, while the target runs.
fn let_go_unrecorded(stage: &Stage, mut running: Running) -> Ended {
    patiently(|| running.messages().contains("ended early") || running.has_ended());
    assert!(!running.has_ended(), "{}", running.messages());
    let_go(stage, running)
}

const FIRST: &str = "parts/intervals-000000.parquet";

#[test]
fn a_folder_that_is_removed_ends_the_recording_and_not_the_target() {
    let stage = Stage::new();
    let running = going_on(&stage, stage.folder(), Path::new("t.varve"), FIRST);
    // A file may be written in a folder that is being emptied.
    patiently(|| fs::remove_dir_all(stage.path("t.varve")).is_ok());
    let ended = let_go_unrecorded(&stage, running);
    ended.require_complaint(&["ended early", "t.varve", "was removed"]);
    // There is nothing to be put in order.
    for promise in ["recover", "varve report", "what was written", "wrote"] {
        assert!(!ended.stderr.contains(promise), "{}", ended.stderr);
    }
    assert!(!stage.path("t.varve").exists());
}

#[test]
fn what_stands_in_the_place_of_a_removed_folder_is_left_alone() {
    for kind in ["folder", "file", "link"] {
        let stage = Stage::new();
        let (trace, away) = (stage.path("t.varve"), stage.path("away"));
        let victim = victim(&stage, "victim");
        let running = going_on(&stage, stage.folder(), Path::new("t.varve"), FIRST);
        fs::rename(&trace, &away).expect("moved");
        match kind {
            "folder" => fs::rename(&victim, &trace).expect("moved"),
            "file" => fs::write(&trace, "years of work").expect("a file"),
            _ => symlink(&victim, &trace).expect("a link"),
        }
        let place = if kind == "link" { &victim } else { &trace };
        let before = snapshot(place);
        patiently(|| fs::remove_dir_all(&away).is_ok());
        let ended = let_go_unrecorded(&stage, running);
        require_same(place, &before, &format!("{kind}: {}", ended.stderr));
        ended.require_complaint(&["ended early", "t.varve", "was removed"]);
        assert!(!away.exists(), "{kind}");
    }
}

#[test]
fn parts_that_are_removed_or_replaced_end_the_recording() {
    for is_replaced in [false, true] {
        let stage = Stage::new();
        let victim = victim(&stage, "victim");
        let before = snapshot(&victim);
        let running = going_on(&stage, stage.folder(), Path::new("t.varve"), FIRST);
        let (parts, away) = (stage.path("t.varve/parts"), stage.path("away"));
        fs::rename(&parts, &away).expect("moved");
        if is_replaced {
            symlink(victim.join("parts"), &parts).expect("a link");
        }
        let ended = let_go_unrecorded(&stage, running);
        require_same(&victim, &before, &ended.stderr);
        let words = match is_replaced {
            true => ["ended early", "parts", "symbolic link"],
            false => ["ended early", "parts", "was removed"],
        };
        ended.require_complaint(&words);
    }
}

#[test]
fn a_disk_that_becomes_read_only_ends_the_recording_and_not_the_target() {
    let stage = Stage::new();
    let disk = Mount::new(&stage, "size=2m");
    let trace = disk.0.join("t.varve");
    let running = going_on(&stage, stage.folder(), &trace, FIRST);
    // It is busy while a file is open to be written.
    let is_read_only = patiently(|| {
        let mut mount = Command::new("mount");
        mount.args(["-o", "remount,ro"]).arg(&disk.0);
        mount.status().expect("mount").success()
    });
    assert!(is_read_only);
    let ended = let_go_unrecorded(&stage, running);
    ended.require_complaint(&["ended early", "Read-only file system"]);
    let contents = check_trace(&trace).expect("what was written can be read");
    assert!(!contents.intervals.is_empty());
    varve(&stage, &["report", "disk/t.varve"]).require(0);
}

#[test]
fn a_disk_that_others_fill_ends_the_recording_and_not_the_target() {
    for part in [
        FIRST,
        "parts/intervals-000001.parquet",
        "parts/intervals-000003.parquet",
    ] {
        let stage = Stage::new();
        let disk = Mount::new(&stage, "size=2m");
        let trace = disk.0.join("t.varve");
        let running = going_on(&stage, stage.folder(), &trace, part);
        let mut filler = fs::File::create(disk.0.join("filler")).expect("a file");
        // What the recorder gives back is taken as well.
        patiently(|| {
            while filler.write_all(&[1; 4096]).is_ok() {}
            running.messages().contains("ended early")
        });
        let ended = let_go_unrecorded(&stage, running);
        ended.require_complaint(&["ended early", "No space left on device"]);
        let contents = check_trace(&trace).expect("what was written can be read");
        assert!(!contents.intervals.is_empty(), "{part}");
        varve(&stage, &["report", "disk/t.varve"]).require(0);
        // Once there is room it is put in order.
        drop(filler);
        fs::remove_file(disk.0.join("filler")).expect("removed");
        varve(&stage, &["recover", "disk/t.varve"]).require(0);
        let recovered = check_trace(&trace).expect("a trace");
        assert_eq!(recovered.intervals, contents.intervals, "{part}");
    }
}

#[test]
fn the_folder_that_it_was_started_in_may_go() {
    let stage = Stage::new();
    let trace = stage.path("t.varve");
    let gone = stage.path("gone");
    fs::create_dir(&gone).expect("a folder");
    let running = going_on(&stage, &gone, &trace, FIRST);
    fs::remove_dir(&gone).expect("removed");
    let ended = let_go(&stage, running);
    let contents = check_trace(&trace).expect("a trace");
    assert_eq!(contents.state, State::Finished, "{}", ended.stderr);
}

#[test]
fn a_folder_that_was_removed_before_is_no_place_for_a_trace() {
    let stage = Stage::new();
    let start = |output: &Path| {
        let mut command = stage.command("sh");
        let script = "mkdir gone && cd gone && rmdir ../gone && exec \"$@\"";
        command
            .args(["-c", script, "sh"])
            .arg(varve_binary())
            .args(["record", "-o"])
            .arg(output)
            .args(["--", "true"]);
        stage.run(command)
    };
    let ended = start(Path::new("t.varve")).require(125);
    ended.require_complaint(&["cannot create t.varve", "No such file or directory"]);
    // Elsewhere one can be written.
    let trace = stage.path("t.varve");
    start(&trace).require(0);
    let contents = check_trace(&trace).expect("a trace");
    assert_eq!(contents.state, State::Finished);
}
