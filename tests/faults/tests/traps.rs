//! `--backend fault`: whatever happens to the recorder while pages are moved, the program finds its memory, and
//! nothing is left behind.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::process::Signal;
use varve_faults::{Running, Stage, TRAPPED, can_trap, patiently, watchdogs};

/// The program, built once.
fn checker() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| varve_faults::build("checker", &["-O2"]))
}

/// A recording of the checker, which goes on until it is to end.
struct Checked {
    stage: Stage,
    running: Running,
}

impl Checked {
    fn start(options: &[&str]) -> Option<Checked> {
        Checked::start_of(checker(), options)
    }

    fn start_of(program: &Path, options: &[&str]) -> Option<Checked> {
        let stage = Stage::new();
        if !can_trap() {
            return None;
        }
        let mut all = TRAPPED.to_vec();
        all.extend(options);
        let words = [program.to_owned(), stage.path("said"), stage.path("over")];
        let running = stage.start(stage.record(&all, &words));
        let checked = Checked { stage, running };
        assert!(patiently(|| checked.said() == "begun\n"));
        Some(checked)
    }

    fn said(&self) -> String {
        fs::read_to_string(self.stage.path("said")).unwrap_or_default()
    }

    /// Waits until the recorder has written what it has so often.
    fn flushed(&self, times: u32) {
        let part = format!("trace.varve/parts/intervals-{:06}.parquet", times - 1);
        let part = self.stage.path(&part);
        assert!(patiently(|| part.exists()), "{}", self.running.messages());
    }

    fn end_checker(&self) {
        fs::write(self.stage.path("over"), "").unwrap();
    }
}

#[test]
fn memory_is_kept_while_pages_are_moved() {
    for options in [&[][..], &["--hold", "ptrace"], &["--fault-budget", "5%"]] {
        let Some(checked) = Checked::start(options) else {
            return;
        };
        checked.flushed(2);
        checked.end_checker();
        let Checked { stage, running } = checked;
        let ended = running.end().require(0);
        assert_eq!(fs::read_to_string(stage.path("said")).unwrap(), "kept\n");
        stage.require_clean(ended.pid);
    }
}

#[test]
fn memory_is_kept_when_the_recorder_is_killed() {
    for after in [13, 120, 333, 571] {
        let Some(checked) = Checked::start(&[]) else {
            return;
        };
        std::thread::sleep(Duration::from_millis(after));
        checked.running.signal(Signal::KILL);
        assert!(patiently(|| watchdogs(checked.running.pid()).is_empty()));
        checked.end_checker();
        let is_over = || checked.said() != "begun\n";
        assert!(patiently(is_over), "killed after {after} ms");
        assert_eq!(checked.said(), "kept\n", "killed after {after} ms");
        let Checked { stage, running } = checked;
        stage.require_clean(running.end().pid);
    }
}

/// Wherever it lies: a program may map memory at any address.
#[test]
fn memory_anywhere_is_kept_when_the_recorder_is_killed() {
    let program = varve_faults::build("far", &["-O2"]);
    // When that has begun, all of it is where it was moved to.
    let Some(checked) = Checked::start_of(&program, &[]) else {
        return;
    };
    checked.running.signal(Signal::KILL);
    assert!(patiently(|| watchdogs(checked.running.pid()).is_empty()));
    checked.end_checker();
    assert!(patiently(|| checked.said() == "kept\n"));
    let Checked { stage, running } = checked;
    running.end();
    drop(stage);
}

/// What a program says at its end, which is to be 0; none where this machine cannot trap.
fn said_by(program: &str, interval: &str) -> Option<String> {
    if !can_trap() {
        return None;
    }
    let stage = Stage::new();
    let program = varve_faults::build(program, &["-O2"]);
    let options = [
        "--backend",
        "fault",
        "--interval",
        interval,
        "--samples",
        "off",
    ];
    let words = [program, stage.path("said")];
    let ended = stage.start(stage.record(&options, &words)).end().require(0);
    let said = fs::read_to_string(stage.path("said")).unwrap();
    stage.require_clean(ended.pid);
    Some(said)
}

/// Pages that are on their processor's own list still, too.
#[test]
fn pages_that_are_put_back_at_the_end_look_untouched() {
    // Long enough that hardly ever another boundary clears what is looked at.
    if let Some(said) = said_by("cooled", "300ms") {
        assert_eq!(said, "56 kB, 0 of them touched\n");
    }
}

#[test]
fn a_child_finds_memory_that_is_still_coming_home() {
    if let Some(said) = said_by("moved_fork", "10ms") {
        assert_eq!(said, "kept\n");
    }
}
