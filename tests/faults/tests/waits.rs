//! Waits that the kernel ends with EINTR when the program is held: a program that handles no signal does not notice. And
//! waits for children, which do not find the fault handler.

use std::ffi::OsStr;
use std::fs;

use varve_faults::{Ended, Stage, TRAPPED, build, can_trap};

fn waits(hold: &str, arguments: &[&str]) -> Ended {
    let stage = Stage::new();
    let options = ["--interval", "20ms", "--samples", "off", "--hold", hold];
    let ended = stage.start(stage.record_actor(&options, arguments)).end();
    stage.require_clean(ended.pid);
    ended
}

#[test]
fn a_program_without_handlers_waits_to_the_end() {
    for hold in ["auto", "ptrace"] {
        let text = waits(hold, &["waits"]).require(0).text();
        assert_eq!(
            text.matches("0 of 4 interrupted, 0 early").count(),
            4,
            "{text}"
        );
    }
}

/// What the kernel does by itself, and what a program with a handler must see: it cannot be distinguished from its own signals.
#[test]
fn a_program_with_a_handler_sees_what_the_kernel_says() {
    let ended = waits("auto", &["waits", "handler"]);
    assert_eq!(ended.code, 7, "{}", ended.text());
}

/// What the program says alone, and under the fault backend; none where this machine cannot trap. It has found its handler.
fn said_of_children(mode: &[&str]) -> Option<(String, String)> {
    if !can_trap() {
        return None;
    }
    let stage = Stage::new();
    let program = build("children", &["-O2"]);
    let handlers = stage.path("handlers");
    let mut words = vec![program.as_os_str(), handlers.as_os_str()];
    words.extend(mode.iter().map(OsStr::new));
    let mut alone = stage.command(&program);
    alone.args(&words[1..]);
    let alone = stage.run(alone).require(0);
    assert_eq!(fs::read_to_string(&handlers).expect("a count"), "0\n");
    let recorded = stage.run(stage.record(&TRAPPED, &words)).require(0);
    assert_eq!(fs::read_to_string(&handlers).expect("a count"), "1\n");
    stage.require_clean(recorded.pid);
    Some((alone.text(), recorded.text()))
}

/// Without the library's `waitpid` and its kin, waits with `__WALL` or `__WCLONE` find the handler, or wait for it for ever.
#[test]
fn a_program_waits_for_its_own_children_of_every_kind() {
    if let Some((alone, recorded)) = said_of_children(&[]) {
        assert!(alone.contains("a clone: the child"), "{alone}");
        assert_eq!(recorded, alone);
    }
}

/// Without `CLONE_UNTRACED` the tracer is shown one process more, which it holds. It does not end where its question whether the
/// kernel has filters (`prctl`) counts as a filter, below which nothing can be looked up.
#[test]
fn a_tracer_is_not_shown_the_handler_of_what_it_traces() {
    if let Some((alone, recorded)) = said_of_children(&["trace"]) {
        assert!(alone.contains("0 were made, and then ECHILD"), "{alone}");
        assert_eq!(recorded, alone);
    }
}

/// A call that the filter leaves to the tracer fails in a process that nobody traces: its handler could not end. It has none.
#[test]
fn a_program_that_is_traced_below_a_filter_has_no_handler() {
    if !can_trap() {
        return;
    }
    let stage = Stage::new();
    let (program, handlers) = (build("children", &["-O2"]), stage.path("handlers"));
    let words = [
        program.as_os_str(),
        handlers.as_os_str(),
        OsStr::new("trace"),
        OsStr::new("filter"),
    ];
    let recorded = stage.run(stage.record(&TRAPPED, &words)).require(0);
    assert!(
        recorded.text().contains("ended, 400\n"),
        "{}",
        recorded.text()
    );
    assert_eq!(fs::read_to_string(&handlers).expect("a count"), "0\n");
    stage.require_clean(recorded.pid);
}

/// As `ps` does. Without the exemption of these pages they are moved, and the kernel finds nothing there.
#[test]
fn arguments_and_environment_can_be_read_while_memory_is_moved() {
    if !can_trap() {
        return;
    }
    let stage = Stage::new();
    let words = [build("arguments", &["-O2"]), stage.path("said")];
    let ended = stage.run(stage.record(&TRAPPED, &words)).require(0);
    let said = fs::read_to_string(stage.path("said")).expect("what it said");
    assert_eq!(said, "all, all\n");
    stage.require_clean(ended.pid);
}
