//! The folder that a recording is written to, and pages that are made of it.

use super::*;

#[test]
fn two_recordings_do_not_share_a_folder() {
    let stage = Stage::new();
    let first = recording(&stage, "t.varve");
    let known = first.pid().to_string();
    for options in [&["record"][..], &["record", "--force"]] {
        let mut words = options.to_vec();
        words.extend(["-o", "t.varve", "--", "touch", "ran"]);
        let ended = varve(&stage, &words).require(125);
        ended.require_complaint(&["t.varve is being written", &known]);
    }
    let ended = varve(&stage, &["import", "--force", PERF, "-o", "t.varve"]).require(1);
    ended.require_complaint(&["t.varve is being written"]);
    assert!(!stage.path("ran").exists(), "the target was started");
    first.signal(Signal::INT);
    let ended = first.end();
    let contents = check_trace(&stage.path("t.varve")).expect("a trace");
    assert_eq!(contents.state, State::Finished, "{}", ended.stderr);
    stage.require_clean(ended.pid);
}

#[test]
fn default_names_are_numbered() {
    let stage = Stage::new();
    let start = || {
        let mut command = stage.command(varve_binary());
        command.args(["record", "--", "sleep", "0.2"]);
        stage.start(command)
    };
    let said = [start(), start()].map(|running| running.end().require(0).stderr);
    for name in ["sleep.varve", "sleep-2.varve"] {
        let wrote = format!("wrote {name};");
        let by = said.iter().filter(|said| said.contains(&wrote)).count();
        assert_eq!(by, 1, "{name}: {said:?}");
        let contents = check_trace(&stage.path(name)).expect("a trace");
        assert_eq!(contents.state, State::Finished);
    }
    start().end().require(0);
    assert!(stage.path("sleep-3.varve").is_dir());
}

#[test]
fn an_earlier_trace_is_replaced_only_when_that_is_asked_for() {
    let stage = Stage::new();
    let trace = stage.path("t.varve");
    varve(&stage, &["record", "-o", "t.varve", "--", "true"]).require(0);
    let before = snapshot(&trace);
    let ended = varve(&stage, &["record", "-o", "t.varve", "--", "touch", "ran"]);
    require_same(&trace, &before, &ended.stderr);
    ended
        .require(125)
        .require_complaint(&["t.varve exists already"]);
    let ended = varve(&stage, &["import", PERF, "-o", "t.varve"]);
    require_same(&trace, &before, &ended.stderr);
    ended
        .require(1)
        .require_complaint(&["t.varve exists already"]);
    assert!(!stage.path("ran").exists(), "the target was started");
    varve(&stage, &["import", "--force", PERF, "-o", "t.varve"]).require(0);
    let imported = Manifest::read(&trace).expect("a manifest");
    assert!(
        matches!(imported.backend, Backend::Import(_)),
        "{}",
        imported.backend
    );
    varve(
        &stage,
        &["record", "--force", "-o", "t.varve", "--", "true"],
    )
    .require(0);
    assert_eq!(
        Manifest::read(&trace).expect("a manifest").backend,
        Backend::Scan
    );
}

#[test]
fn force_replaces_nothing_but_a_trace() {
    let stage = Stage::new();
    let folder = stage.path("thesis");
    fs::create_dir_all(folder.join("parts")).expect("a folder");
    for file in [
        "touches.parquet",
        "parts/touches-000000.parquet",
        "manifest.json",
    ] {
        fs::write(folder.join(file), "{\"format\": \"of my own\"}").expect("a file");
    }
    fs::write(stage.path("file"), "years of work").expect("a file");
    let before = snapshot(stage.folder());
    for name in ["thesis", "file", ".", "/"] {
        let ended = varve(&stage, &["record", "--force", "-o", name, "--", "true"]).require(125);
        ended.require_complaint(&["exists already"]);
    }
    let after = snapshot(stage.folder());
    for (path, entry) in before.iter().filter(|(path, _)| *path != stage.folder()) {
        assert_eq!(after.get(path), Some(entry), "{}", path.display());
    }
    // What is not the trace's own stays where a trace is replaced, too.
    varve(&stage, &["record", "-o", "t.varve", "--", "true"]).require(0);
    fs::write(stage.path("t.varve/thesis.tex"), "years of work").expect("a file");
    varve(
        &stage,
        &["record", "--force", "-o", "t.varve", "--", "true"],
    )
    .require(0);
    assert!(stage.path("t.varve/thesis.tex").is_file());
}

#[test]
fn traces_are_their_owners_whatever_the_umask_is() {
    let stage = Stage::new();
    let expect = |trace: &str, files: u32, folders: u32| {
        for (path, (found, _, _)) in snapshot(&stage.path(trace)) {
            let wanted = if path.is_dir() { folders } else { files };
            assert_eq!(found & 0o7777, wanted, "{}", path.display());
        }
    };
    for (umask, name) in [("000", "open"), ("077", "shut"), ("777", "none")] {
        let prepare = format!("umask {umask}");
        let (trace, shared) = (format!("{name}.varve"), format!("{name}-shared.varve"));
        varve_after(&stage, &prepare, &["record", "-o", &trace, "--", "true"]).require(0);
        expect(&trace, 0o600, 0o700);
        let words = ["record", "--share", "-o", &shared, "--", "true"];
        varve_after(&stage, &prepare, &words).require(0);
        expect(&shared, 0o644, 0o755);
        varve_after(&stage, &prepare, &["import", "--force", PERF, "-o", &trace]).require(0);
        expect(&trace, 0o600, 0o700);
        varve_after(
            &stage,
            &prepare,
            &["import", "--force", "--share", PERF, "-o", &shared],
        )
        .require(0);
        expect(&shared, 0o644, 0o755);
    }
    // While it is written, too.
    let recorder = recording(&stage, "t.varve");
    let parts = stage.path("t.varve/parts");
    assert_eq!(mode(&parts), 0o700);
    assert_eq!(mode(&parts.join("intervals-000000.parquet")), 0o600);
    recorder.signal(Signal::INT);
    let ended = recorder.end();
    expect("t.varve", 0o600, 0o700);
    stage.require_clean(ended.pid);
    // What is put in order is as open as it was.
    let killed = stage.path("killed.varve");
    for (open, files, folders) in [(0o777, 0o644, 0o755), (0o750, 0o600, 0o700)] {
        let _ = fs::remove_dir_all(&killed);
        killed_trace(&killed);
        fs::set_permissions(&killed, fs::Permissions::from_mode(open)).expect("a mode");
        varve_after(&stage, "umask 0", &["recover", "killed.varve"]).require(0);
        assert_eq!(mode(&killed), folders);
        assert_eq!(mode(&killed.join("objects.parquet")), files);
        assert_eq!(mode(&killed.join("manifest.json")), files);
    }
}

#[test]
fn a_folder_of_somebody_elses_is_not_written_to() {
    let stage = Stage::new();
    let theirs = stage.path("theirs.varve");
    fs::create_dir(&theirs).expect("a folder");
    let is_theirs = |path: &Path| std::os::unix::fs::chown(path, Some(STRANGER), Some(STRANGER));
    is_theirs(&theirs).expect("another owner");
    let words = ["-o", "theirs.varve", "--", "touch", "ran"];
    for options in [&["record"][..], &["record", "--force"]] {
        let ended = varve(&stage, &[options, &words].concat()).require(125);
        ended.require_complaint(&[
            "theirs.varve belongs to another user",
            &STRANGER.to_string(),
        ]);
        assert_eq!(fs::read_dir(&theirs).expect("a folder").count(), 0);
    }
    fs::remove_dir(&theirs).expect("an empty folder");
    killed_trace(&theirs);
    is_theirs(&theirs).expect("another owner");
    let before = snapshot(&theirs);
    let ended = varve(&stage, &["recover", "theirs.varve"]).require(1);
    ended.require_complaint(&["belongs to another user"]);
    let ended = varve(&stage, &[&["record", "--force"], &words[..]].concat()).require(125);
    ended.require_complaint(&["belongs to another user"]);
    require_same(&theirs, &before, "");
    assert!(!stage.path("ran").exists(), "the target was started");
    // It can be read.
    varve(&stage, &["report", "theirs.varve"]).require(0);
    require_same(&theirs, &before, "");
}

#[test]
fn a_folder_that_is_replaced_by_a_link_goes_on_being_the_trace() {
    let stage = Stage::new();
    let victim = victim(&stage, "victim");
    let before = snapshot(&victim);
    let recorder = recording(&stage, "t.varve");
    fs::rename(stage.path("t.varve"), stage.path("moved.varve")).expect("moved");
    symlink(&victim, stage.path("t.varve")).expect("a link");
    let flushed = stage.path("moved.varve/parts/intervals-000001.parquet");
    patiently(|| flushed.exists() || snapshot(&victim) != before);
    recorder.signal(Signal::INT);
    let ended = recorder.end();
    require_same(&victim, &before, &ended.stderr);
    let contents = check_trace(&stage.path("moved.varve")).expect("a trace");
    assert_eq!(contents.state, State::Finished);
    assert!(
        ended.stderr.contains("was moved") && ended.stderr.contains("moved.varve now"),
        "{}",
        ended.stderr
    );
    stage.require_clean(ended.pid);
}

#[test]
fn a_folder_that_is_removed_is_not_made_again() {
    let stage = Stage::new();
    let recorder = recording(&stage, "t.varve");
    // A file may be written in a folder that is being emptied.
    patiently(|| fs::remove_dir_all(stage.path("t.varve")).is_ok());
    recorder.signal(Signal::INT);
    let ended = recorder.end();
    ended.require_complaint(&["ended early", "t.varve", "was removed"]);
    assert!(!stage.path("t.varve").exists(), "{}", ended.stderr);
    stage.require_clean(ended.pid);
}

/// What commands write of a trace.
const WRITTEN: [&[&str]; 3] = [
    &["report", "t.varve", "--html"],
    &["report", "t.varve", "--png"],
    &["export", "t.varve", "--format", "csv", "-o"],
];

#[test]
fn pages_are_as_closed_as_their_trace_and_follow_no_links() {
    let stage = Stage::new();
    let outside = stage.path("outside");
    for (share, files) in [(&[][..], 0o600), (&["--share"][..], 0o644)] {
        let options = [
            &["record", "--force", "-o", "t.varve"],
            share,
            &["--", "true"],
        ]
        .concat();
        varve(&stage, &options).require(0);
        for words in WRITTEN {
            let page = stage.path("page");
            let out = [words, &["page"]].concat();
            // One that is there is replaced: who has it open keeps what it was.
            fs::write(&page, "before").expect("a file");
            fs::hard_link(&page, &outside).expect("a link");
            varve_after(&stage, "umask 0", &out).require(0);
            assert_eq!(mode(&page), files, "{words:?}");
            assert_eq!(fs::read(&outside).expect("a file"), b"before");
            assert_ne!(fs::read(&page).expect("a page"), b"before");
            fs::remove_file(&page).expect("removed");
            for target in ["outside", "nowhere"] {
                symlink(target, &page).expect("a link");
                varve(&stage, &out)
                    .require(1)
                    .require_complaint(&["page", "symbolic link"]);
                fs::remove_file(&page).expect("the link, which is there still");
            }
            fifo(&page);
            varve(&stage, &out)
                .require(1)
                .require_complaint(&["page", "FIFO"]);
            fs::remove_file(&page).expect("removed");
            assert_eq!(fs::read(&outside).expect("a file"), b"before");
            assert!(!stage.path("nowhere").exists());
            fs::remove_file(&outside).expect("removed");
            let left = fs::read_dir(stage.folder()).expect("entries").flatten();
            let left: Vec<_> = left.map(|e| e.file_name()).collect();
            let is_half = |n: &&std::ffi::OsString| n.to_string_lossy().starts_with(".varve");
            assert_eq!(left.iter().find(is_half), None);
        }
    }
}

#[test]
fn an_empty_folder_keeps_its_mode() {
    let stage = Stage::new();
    let folder = stage.path("t.varve");
    for (open, code) in [(0o755, 0), (0o750, 0), (0o1777, 125), (0o775, 125)] {
        for share in [&[][..], &["--share"]] {
            let _ = fs::remove_dir_all(&folder);
            fs::create_dir(&folder).expect("a folder");
            fs::set_permissions(&folder, fs::Permissions::from_mode(open)).expect("a mode");
            let words = [&["record", "-o", "t.varve"], share, &["--", "true"]].concat();
            let ended = varve(&stage, &words);
            assert_eq!(ended.code, code, "{open:o}: {}", ended.stderr);
            assert_eq!(mode(&folder), open, "{share:?}");
        }
    }
}
