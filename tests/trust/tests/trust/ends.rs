//! Fault handlers, recorders and watchdogs that somebody ends: the target finds all of its memory, and goes on.

use std::fs;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use varve_faults::{
    Running, Stage, can_trap, is_frozen, patiently, recorder_cgroups, ring_folders, watchdogs,
};
use varve_preload_abi::shadow::{TOP, shadow_of};
use varve_trace::Trace;
use varve_trust::{STRANGER, program, unless_reclaimed};

use crate::handler::{handler_of, has_userfaultfd, record, target_of};

/// Pages of the program whose memory is looked at: 64 MiB.
const PAGES: &str = "16384";

fn kill(pid: u32) {
    let id = rustix::process::Pid::from_raw(pid as i32).unwrap();
    let _ = rustix::process::kill_process(id, Signal::KILL);
}

/// Memory for which no address is asked lies above this.
const UNASKED: u64 = 0x7700_0000_0000;

/// Pages of a process that are in memory at a shadow address.
fn moved_pages(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap_or_default();
    let mut is_shadow = false;
    let mut kib = 0;
    for line in text.lines() {
        if let Some((start, _)) = line.split_once('-')
            && let Ok(start) = u64::from_str_radix(start, 16)
        {
            is_shadow = (shadow_of(UNASKED)..shadow_of(TOP - 1)).contains(&start);
        } else if let Some(rest) = line.strip_prefix("Rss:")
            && is_shadow
        {
            kib += rest
                .trim()
                .trim_end_matches(" kB")
                .parse::<u64>()
                .unwrap_or(0);
        }
    }
    kib / 4
}

/// A program all of whose memory has been moved, and its handler.
fn moved(stage: &Stage) -> (Running, u32, u32) {
    moved_holder(stage, "1")
}

/// The same; then the program itself moves half of its memory so many times.
fn moved_holder(stage: &Stage, moves: &str) -> (Running, u32, u32) {
    let go = stage.path("go");
    let arguments = [PAGES, "FILE", go.to_str().unwrap(), moves];
    let (running, out) = record(stage, "holder", &arguments);
    let said = |word: &str| fs::read_to_string(&out).is_ok_and(|t| t.trim() == word);
    assert!(patiently(|| said("begun")), "{}", running.messages());
    let target = target_of(&running);
    let handler = handler_of(target);
    assert!(patiently(|| has_userfaultfd(handler)));
    let all: u64 = PAGES.parse().unwrap();
    assert!(
        patiently(|| moved_pages(target) >= all),
        "{} pages are moved",
        moved_pages(target)
    );
    (running, target, handler)
}

/// Lets the program look at its memory.
fn require_kept(stage: &Stage) {
    assert_eq!(looked(stage), "kept");
}

fn looked(stage: &Stage) -> String {
    fs::write(stage.path("go"), "").unwrap();
    let said = || fs::read_to_string(stage.path("said")).unwrap_or_default();
    assert!(
        patiently(|| !matches!(said().trim(), "begun" | "")),
        "it waits"
    );
    said().trim().to_owned()
}

#[test]
fn a_handler_that_somebody_ends_is_missed_and_its_pages_are_back() {
    let stage = Stage::new();
    if !can_trap() {
        return;
    }
    let (running, _, handler) = moved(&stage);
    kill(handler);
    let pid = running.pid();
    require_kept(&stage);
    running.end().require(0);
    let manifest = Trace::open(&stage.path("trace.varve")).unwrap().manifest;
    assert!(!manifest.completeness.complete);
    let killed = manifest.losses.get("killed_handlers");
    assert_eq!(killed, Some(&1), "{manifest:?}");
    let is_said = manifest
        .notes
        .iter()
        .any(|n| n.contains("were brought back"));
    assert!(is_said, "{:?}", manifest.notes);
    stage.require_clean(pid);
}

#[test]
fn a_watchdog_that_somebody_has_stopped_brings_pages_back_all_the_same() {
    let stage = Stage::new();
    if !can_trap() {
        return;
    }
    let (running, _, handler) = moved(&stage);
    let first = rustix::process::Pid::from_raw(watchdogs(running.pid())[0] as i32).unwrap();
    let _ = rustix::process::kill_process(first, Signal::STOP);
    kill(handler);
    require_kept(&stage);
    running.end().require(0);
}

/// Whoever has the handler's user can take its descriptors, and so the device of which anybody can make userfaultfds.
#[test]
fn a_program_that_cannot_change_its_user_gets_no_device() {
    let stage = Stage::new();
    if !can_trap() {
        return;
    }
    let user = format!("--reuid={STRANGER}");
    let pages = program("pages");
    let arguments = [
        "setpriv",
        &user,
        "--clear-groups",
        pages.to_str().unwrap(),
        "500",
        "300",
    ];
    let options = ["--backend", "fault", "--interval", "10ms"];
    let once = || {
        stage.run(stage.record(&options, &arguments)).require(7);
        Trace::open(&stage.path("trace.varve")).unwrap()
    };
    let manifest = unless_reclaimed(once, |trace| Some(trace)).manifest;
    assert!(manifest.completeness.complete, "{manifest:?}");
    let is_said = manifest.notes.iter().any(|n| n.contains("safe from it"));
    assert!(is_said, "{:?}", manifest.notes);
    assert!(manifest.traps.unwrap().given_up > 0);
}

/// A move and system calls wait for the pages while they are brought back. The known hole is not asked for: a child that the
/// handler was filling when it was killed has zeroes (`SECURITY.md`).
#[test]
fn a_handler_that_is_killed_while_its_program_uses_the_memory_loses_nothing() {
    for _ in 0..5 {
        let stage = Stage::new();
        if !can_trap() {
            return;
        }
        let (running, _, handler) = moved(&stage);
        fs::write(stage.path("go"), "").unwrap();
        std::thread::sleep(Duration::from_millis(7));
        kill(handler);
        let said = looked(&stage);
        assert!(said.starts_with("kept"), "{said}");
        running.end().require(0);
    }
}

/// The program has moved its memory, or is about to, whenever pages are brought back.
#[test]
fn a_program_that_moves_its_memory_while_pages_are_brought_back_goes_on() {
    for moves in ["2", "40", "2000"] {
        let stage = Stage::new();
        if !can_trap() {
            return;
        }
        let (running, _, handler) = moved_holder(&stage, moves);
        kill(handler);
        require_kept(&stage);
        running.end().require(0);
    }
}

#[test]
fn a_recorder_and_a_handler_that_are_killed_at_once_lose_nothing() {
    for with_watchdog in [false, true] {
        let stage = Stage::new();
        if !can_trap() {
            return;
        }
        let (running, _, handler) = moved(&stage);
        let pid = running.pid();
        let [first, _] = watchdogs(pid)[..] else {
            panic!("watchdogs: {:?}", watchdogs(pid));
        };
        running.signal(Signal::KILL);
        if with_watchdog {
            kill(first);
        }
        kill(handler);
        require_kept(&stage);
        stage.require_clean(pid);
    }
}

#[test]
fn a_target_goes_on_when_its_recorder_and_the_watchdog_are_killed_at_once() {
    for round in 0..20 {
        let stage = Stage::new();
        let started = stage.path("started");
        let arguments = ["serve", started.to_str().unwrap()];
        let recorder = stage.start(stage.record_actor(&["--interval", "10ms"], &arguments));
        assert!(patiently(|| started.exists()), "{}", recorder.messages());
        let pid = recorder.pid();
        let group = recorder_cgroups(pid).pop().unwrap();
        let first = watchdogs(pid)[0];
        if round % 2 == 0 {
            // In a hold, if it is met.
            let began = Instant::now();
            while !is_frozen(&group) && began.elapsed() < Duration::from_secs(5) {}
        } else {
            std::thread::sleep(Duration::from_micros(1700 * round));
        }
        recorder.signal(Signal::KILL);
        kill(first);
        // As if the hold had begun at that moment: a control of the premise where it was not met.
        let beats = stage.path("started.beats");
        let before = fs::read(&beats).unwrap();
        assert!(
            patiently(|| fs::read(&beats).unwrap() != before),
            "round {round}: it stands still"
        );
        assert!(patiently(|| recorder_cgroups(pid).is_empty()));
        assert!(patiently(|| ring_folders(pid).is_empty()));
        assert!(patiently(|| watchdogs(pid).is_empty()));
    }
}

#[test]
fn a_watchdog_that_somebody_ends_is_started_again() {
    let stage = Stage::new();
    let started = stage.path("started");
    let arguments = ["serve", started.to_str().unwrap()];
    let recorder = stage.start(stage.record_actor(&["--interval", "10ms"], &arguments));
    assert!(patiently(|| started.exists()), "{}", recorder.messages());
    let pid = recorder.pid();
    for which in 0..2 {
        let before = watchdogs(pid);
        assert_eq!(before.len(), 2);
        kill(before[which]);
        let is_new = || {
            let now = watchdogs(pid);
            now.len() == 2 && !now.contains(&before[which])
        };
        assert!(patiently(is_new), "{}", recorder.messages());
    }
    // The new ones know what to do.
    recorder.signal(Signal::KILL);
    assert!(patiently(|| recorder_cgroups(pid).is_empty()));
    assert!(patiently(|| ring_folders(pid).is_empty()));

    let stage = Stage::new();
    let started = stage.path("started");
    let arguments = ["serve", started.to_str().unwrap()];
    let recorder = stage.start(stage.record_actor(&["--interval", "10ms"], &arguments));
    assert!(patiently(|| started.exists()), "{}", recorder.messages());
    let pid = recorder.pid();
    let first = watchdogs(pid)[0];
    kill(first);
    // One look: the first may end between two.
    let is_new = || {
        let now = watchdogs(pid);
        now.len() == 2 && !now.contains(&first)
    };
    assert!(patiently(is_new), "{}", recorder.messages());
    recorder.signal(Signal::TERM);
    recorder.end().require(11);
    let manifest = Trace::open(&stage.path("trace.varve")).unwrap().manifest;
    let is_said = manifest.notes.iter().any(|n| n.contains("watchdog"));
    assert!(is_said, "{:?}", manifest.notes);
    stage.require_clean(pid);
}

/// A target may send its recorder any signal, as it has the same user.
#[test]
fn signals_that_mean_nothing_to_a_recorder_do_not_end_it() {
    let stage = Stage::new();
    let script = "for s in ALRM VTALRM PROF USR2 IO PWR STKFLT WINCH CHLD URG CONT PIPE RTMIN RTMAX; do kill -$s $PPID; done; \
                  sleep 0.3; kill -ALRM $PPID; exit 7";
    let once = || {
        let ended = stage.run(stage.record(&[], &["bash", "-c", script]));
        let trace = Trace::open(&stage.path("trace.varve")).unwrap();
        (ended.require(7).stderr, trace)
    };
    let (said, _) = unless_reclaimed(once, |(_, trace)| Some(trace));
    assert!(said.contains("varve: complete: "), "{said}");
    // What the target is begun with is as ever.
    let blocked = "grep SigBlk /proc/self/status";
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", blocked]);
    let plain = stage.run(shell).require(0).text();
    let recorded = stage.run(stage.record(&[], &["sh", "-c", blocked]));
    assert_eq!(plain, recorded.require(0).text());
}
