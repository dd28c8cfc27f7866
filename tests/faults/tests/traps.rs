//! `--backend fault`: whatever happens to the recorder while pages are moved, the program finds its memory, and
//! nothing is left behind.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use rustix::process::Signal;
use varve_faults::{Stage, can_trap, patiently, varve_binary};

fn checker() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let varve = varve_binary();
        let folder = varve.parent().unwrap();
        let program = folder.join(format!("varve-checker-{}", std::process::id()));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/checker.c");
        let compiled = Command::new("cc")
            .args(["-O2", "-pthread", "-o"])
            .arg(&program)
            .arg(source)
            .status();
        assert!(compiled.unwrap().success());
        program
    })
}

fn recording(stage: &Stage, options: &[&str], life_ms: &str) -> (Command, PathBuf) {
    let out = stage.path("kept");
    let mut all = vec![
        "--backend",
        "fault",
        "--interval",
        "10ms",
        "--samples",
        "off",
    ];
    all.extend(options);
    let program = checker().to_str().unwrap();
    let command = stage.record(&all, &[program, out.to_str().unwrap(), life_ms]);
    (command, out)
}

#[test]
fn memory_is_kept_while_pages_are_moved() {
    for options in [&[][..], &["--hold", "ptrace"], &["--fault-budget", "5%"]] {
        let stage = Stage::new();
        if !can_trap(&stage) {
            return;
        }
        let (command, out) = recording(&stage, options, "1500");
        let running = stage.start(command);
        let pid = running.pid();
        running.end().require(0);
        assert_eq!(fs::read_to_string(out).unwrap(), "kept\n");
        stage.require_clean(pid);
    }
}

#[test]
fn memory_is_kept_when_the_recorder_is_killed() {
    for after in [13, 120, 333, 571] {
        let stage = Stage::new();
        if !can_trap(&stage) {
            return;
        }
        let (command, out) = recording(&stage, &[], "2000");
        let running = stage.start(command);
        let pid = running.pid();
        assert!(patiently(
            || fs::read_to_string(&out).is_ok_and(|t| t == "begun\n")
        ));
        std::thread::sleep(Duration::from_millis(after));
        running.signal(Signal::KILL);
        // As long as the checker lives, with some patience.
        std::thread::sleep(Duration::from_millis(1500));
        let kept = || fs::read_to_string(&out).is_ok_and(|t| t == "kept\n");
        assert!(patiently(kept), "killed after {after} ms");
        drop(running);
        stage.require_clean(pid);
    }
}
