//! A target that puts its own code in the place of the code that its fault handler runs.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use varve_faults::{Stage, can_trap, patiently};
use varve_trust::{STRANGER, see_an_interval};

use crate::handler::{handler_of, has_userfaultfd, record, target_of};

/// Records a program that puts its own code into its handler, which ends.
fn take_over(options: &[&str]) {
    let stage = Stage::new();
    if !can_trap() {
        return;
    }
    // Only root can write to the folder, and the program has become somebody else.
    let made = stage.path("made by root");
    fs::set_permissions(stage.folder(), fs::Permissions::from_mode(0o711)).unwrap();
    let stranger = STRANGER.to_string();
    let mut words = vec![stranger.as_str(), made.to_str().unwrap()];
    words.extend(options);
    let (running, _) = record(&stage, "takeover", &words);
    let pid = running.pid();
    let handler = handler_of(target_of(&running));
    // It is at work, and pages of its target are protected.
    assert!(patiently(|| has_userfaultfd(handler)));
    let is_seen = see_an_interval(&stage.path("trace.varve"));
    assert!(is_seen, "{}", running.messages());
    fs::write(stage.path("go"), "").unwrap();
    // It runs the target's code now, which ends it: a process that has ended has no files.
    assert!(patiently(|| !has_userfaultfd(handler)));
    fs::write(stage.path("over"), "").unwrap();
    let ended = running.end().require(0);
    assert_eq!(ended.text(), "taken over\n", "{}", ended.stderr);
    assert!(!made.exists(), "the target's code ran as root");
    stage.require_clean(pid);
}

#[test]
fn code_of_the_target_gains_nothing() {
    take_over(&[]);
}

/// At a page that it has moved: nothing but the watchdog ends that.
#[test]
fn a_handler_that_waits_for_itself_is_ended_and_the_pages_are_kept() {
    take_over(&["waits"]);
}
