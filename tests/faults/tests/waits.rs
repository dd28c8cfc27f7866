//! Waits that the kernel ends with EINTR when the program is held: a program that handles no signal does not notice.

use varve_faults::{Ended, Stage};

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
