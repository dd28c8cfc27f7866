//! Programs that lock their memory: they lock as much as alone, and are refused no more.

use varve_faults::{Stage, can_trap, varve_binary};
use varve_trust::{STRANGER, program};

/// `MCL_CURRENT`, `MCL_FUTURE`, both, and with `MCL_ONFAULT`.
const FLAGS: [&str; 5] = ["1", "2", "3", "5", "7"];

fn as_alone(command: &[&str], words: &[&str]) {
    let stage = Stage::new();
    let locker = program("locker");
    let mut alone = stage.command(&locker);
    alone.args(words);
    let alone = stage.run(alone);
    let mut varve = stage.command(varve_binary());
    varve
        .args(command)
        .args(["--force", "-o", "trace.varve", "--"])
        .arg(&locker)
        .args(words);
    let recorded = stage.run(varve).require(alone.code);
    assert_eq!(recorded.text(), alone.text(), "{command:?} {words:?}");
    stage.require_clean(recorded.pid);
}

/// With blocks before it locks its memory and without: what counts them is there, or comes later.
fn each_command([user, limit, flags]: [&str; 3]) {
    each_way([user, limit, flags], "itself");
}

fn each_way([user, limit, flags]: [&str; 3], how: &str) {
    for blocks in ["0", "1000"] {
        let words = [user, limit, flags, blocks, how];
        as_alone(&["record"], &words);
        as_alone(&["alloc", "record"], &words);
        if can_trap() {
            let trapping = ["record", "--backend", "fault", "--interval", "20ms"];
            as_alone(&trapping, &words);
        }
    }
}

/// The usual limit of a user: less than the library's ring and heap.
#[test]
fn within_a_users_limit() {
    let user = STRANGER.to_string();
    for flags in FLAGS {
        each_command([&user, "8192", flags]);
    }
}

#[test]
fn beyond_a_users_limit_it_is_refused_as_alone() {
    let user = STRANGER.to_string();
    each_command([&user, "1024", "1"]);
}

/// Nothing refuses root: what counts operations would be locked with the rest.
#[test]
fn without_a_limit_it_stays_small() {
    for flags in FLAGS {
        each_command(["0", "0", flags]);
    }
}

/// A daemon locks its memory in a forked child, which has reported nothing yet; others do so by number.
#[test]
fn in_a_child_and_by_its_number() {
    let user = STRANGER.to_string();
    for how in ["forked", "vforked", "called"] {
        for flags in ["1", "3", "5"] {
            each_way([&user, "8192", flags], how);
        }
        each_way(["0", "0", "3"], how);
    }
}

/// The report says that nothing was counted from then on, whether anything was before or not.
#[test]
fn the_report_says_that_counting_ended() {
    for (blocks, flags) in [("1000", "1"), ("1000", "3"), ("0", "2"), ("0", "3")] {
        let stage = Stage::new();
        let mut varve = stage.command(varve_binary());
        varve
            .args(["alloc", "record", "-o", "trace.varve", "--"])
            .arg(program("locker"))
            .args(["0", "0", flags, blocks, "itself"]);
        stage.run(varve).require(7);
        let mut report = stage.command(varve_binary());
        report.args(["alloc", "report", "trace.varve"]);
        let report = stage.run(report).require(0).text();
        let first = report.lines().next().unwrap_or_default();
        assert!(
            first.contains("1 process locked its memory"),
            "{blocks} {flags}: {report}"
        );
    }
}
