//! What a program transfers while it is held: as much as without a recorder.

use std::path::PathBuf;

use varve_faults::Stage;
use varve_trust::{build, program};

/// Built as Debian builds its programs: they call functions that check the size of the buffer.
fn sockets() -> PathBuf {
    build("sockets", &["-O1", "-g", "-pthread", "-D_FORTIFY_SOURCE=2"])
}

fn plain(stage: &Stage, program: &PathBuf) -> String {
    stage.run(stage.command(program)).require(0).text()
}

fn recorded(stage: &Stage, options: &[&str], program: &PathBuf) -> String {
    stage
        .run(stage.record(options, &[program]))
        .require(0)
        .text()
}

/// The lines that differ.
fn differences(plain: &str, recorded: &str) -> usize {
    plain
        .lines()
        .zip(recorded.lines())
        .filter(|(a, b)| a != b)
        .count()
}

/// Holds that come more often than any wait ends by itself: one that began anew after each would never end. How much later
/// than asked for a wait ends is the machine's too, and a benchmark, `goals`.
const OFTEN: [&str; 2] = ["--interval", "20ms"];

#[test]
fn transfers_are_whole_and_waits_as_long_as_asked_for() {
    let (stage, program) = (Stage::new(), program("transfers"));
    let plain = plain(&stage, &program);
    assert_eq!(
        plain.matches(": 2097152, other end 0").count(),
        8,
        "{plain}"
    );
    assert_eq!(plain.matches(", not early").count(), 7, "{plain}");
    for hold in ["cgroup", "ptrace"] {
        let options = [&OFTEN[..], &["--hold", hold]].concat();
        let recorded = recorded(&stage, &options, &program);
        assert_eq!(recorded, plain, "{hold}");
    }
}

#[test]
fn what_ends_before_all_is_done_ends_so_and_errors_are_the_programs() {
    let (stage, program) = (Stage::new(), sockets());
    let plain = plain(&stage, &program);
    assert_eq!(plain.lines().count(), 19, "{plain}");
    assert_eq!(plain.matches("gave less: 0").count(), 3, "{plain}");
    assert!(!plain.contains("early"), "{plain}");
    for hold in ["cgroup", "ptrace"] {
        let options = [&OFTEN[..], &["--hold", hold]].concat();
        let recorded = recorded(&stage, &options, &program);
        assert_eq!(recorded, plain, "{hold}");
    }
}

#[test]
fn threads_are_cancelled_where_they_wait() {
    let (stage, program) = (Stage::new(), program("cancels"));
    let plain = plain(&stage, &program);
    assert_eq!(
        plain.matches(": cancelled, cleaned up 1").count(),
        8,
        "{plain}"
    );
    for hold in ["cgroup", "ptrace"] {
        let options = ["--hold", hold, "--interval", "10ms"];
        assert_eq!(recorded(&stage, &options, &program), plain, "{hold}");
    }
}

/// The negative control of all of the above.
#[test]
fn without_the_library_a_hold_cuts_transfers_short() {
    let stage = Stage::new();
    let options = [&OFTEN[..], &["--no-preload"]].concat();
    let said = recorded(&stage, &options, &program("transfers"));
    assert!(said.contains(", early"), "{said}");
    assert_ne!(said.matches(": 2097152, other end 0").count(), 8, "{said}");
    let program = sockets();
    let said = recorded(&stage, &options, &program);
    let found = differences(&plain(&stage, &program), &said);
    assert!(found > 6, "{said}");
}
