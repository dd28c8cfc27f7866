//! What a program transfers while it is held: as much as without a recorder.

use varve_faults::Stage;
use varve_trust::program;

fn plain(stage: &Stage) -> String {
    let plain = stage.command(program("transfers"));
    stage.run(plain).require(0).text()
}

fn recorded(stage: &Stage, options: &[&str]) -> String {
    let program = program("transfers");
    let command = [program.to_str().unwrap()];
    stage.run(stage.record(options, &command)).require(0).text()
}

#[test]
fn transfers_are_whole_and_waits_as_long_as_asked_for() {
    let stage = Stage::new();
    let plain = plain(&stage);
    assert_eq!(
        plain.matches(": 2097152, other end 0").count(),
        8,
        "{plain}"
    );
    assert_eq!(plain.matches("in time").count(), 7, "{plain}");
    for hold in ["cgroup", "ptrace"] {
        assert_eq!(recorded(&stage, &["--hold", hold]), plain, "{hold}");
    }
}

#[test]
fn without_the_library_a_hold_cuts_transfers_short() {
    let stage = Stage::new();
    let said = recorded(&stage, &["--no-preload"]);
    assert!(said.contains("early"), "{said}");
    assert_ne!(said.matches(": 2097152, other end 0").count(), 8, "{said}");
}
