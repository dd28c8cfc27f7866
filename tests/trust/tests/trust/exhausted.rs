//! Programs that use up what memory they may have: what this library needs then must not end them.

use varve_faults::{Ended, Stage, can_trap, varve_binary};
use varve_trace::Trace;
use varve_trust::program;

/// Limits of private memory and of address space, KiB: less than the tables of one gigabyte of addresses, and more.
const LIMITS: [[&str; 2]; 6] = [
    ["data", "6000"],
    ["data", "60000"],
    ["data", "300000"],
    ["space", "30000"],
    ["space", "200000"],
    ["space", "1000000"],
];

fn recorded(stage: &Stage, command: &[&str], limit: [&str; 2]) -> Ended {
    let mut varve = stage.command(varve_binary());
    varve
        .args(command)
        .args(["--force", "-o", "trace.varve", "--"])
        .arg(program("exhausted"))
        .args(limit);
    let ended = stage.run(varve).require(7);
    assert_eq!(
        ended.text(),
        "used up, and goes on\n",
        "{command:?} {limit:?}"
    );
    ended
}

fn each_limit(command: &[&str], limits: &[[&str; 2]]) {
    for &limit in limits {
        let stage = Stage::new();
        let ended = recorded(&stage, command, limit);
        stage.require_clean(ended.pid);
    }
}

#[test]
fn a_recorded_program_goes_on() {
    each_limit(&["record"], &LIMITS);
}

#[test]
fn one_of_which_each_object_is_recorded_goes_on() {
    each_limit(&["record", "--min-object", "1"], &LIMITS);
}

#[test]
fn one_whose_operations_are_counted_goes_on() {
    each_limit(&["alloc", "record"], &LIMITS);
    each_limit(&["alloc", "record", "--pages", "off"], &LIMITS);
}

/// The handler has 4.5 MiB for itself: with less the program gets nothing.
#[test]
fn one_whose_accesses_trap_goes_on() {
    if can_trap() {
        let trapping = ["record", "--backend", "fault", "--interval", "20ms"];
        each_limit(&trapping, &LIMITS[1..]);
    }
}

/// Objects for which there is no memory are counted as such: the recording is not complete.
#[test]
fn what_could_not_be_noted_is_said() {
    let stage = Stage::new();
    recorded(&stage, &["record", "--min-object", "1"], ["data", "6000"]);
    let trace = Trace::open(&stage.path("trace.varve")).expect("a trace");
    let losses = &trace.manifest.losses;
    assert!(losses.get("preload_memory") > Some(&0), "{losses:?}");
}

/// Pages of 4 KiB of the address space of a program below a limit, which has objects in its heap and in a mapping.
fn address_space(stage: &Stage, record: Option<&str>) -> u64 {
    let script = format!("ulimit -v 262144; exec {}", program("room").display());
    let words = ["sh", "-c", &script];
    let command = match record {
        Some(backend) => stage.record(&["--backend", backend], &words),
        None => {
            let mut command = stage.command(words[0]);
            command.args(&words[1..]);
            command
        }
    };
    stage.run(command).require(0).text().trim().parse().unwrap()
}

/// The library's code, ring, heap and tables as README has them; mappings count in full, whatever is touched of them.
#[test]
fn a_program_with_a_limit_lacks_no_more_than_is_said() {
    let stage = Stage::new();
    let alone = address_space(&stage, None);
    let mut most = vec![("scan", 14)];
    if can_trap() {
        most.push(("fault", 19));
    }
    for (backend, most) in most {
        let recorded = address_space(&stage, Some(backend));
        let lacks = recorded.saturating_sub(alone) / 256;
        assert!(lacks <= most, "{backend}: {lacks} MiB");
    }
}

/// What a parent's handler has a forked child takes over for its own. No interval ends: shadows would count too.
#[test]
fn a_handler_takes_no_more_in_each_generation_of_children() {
    if !can_trap() {
        return;
    }
    let stage = Stage::new();
    let program = program("generations");
    let words = [program.to_str().unwrap(), "6"];
    let options = ["--backend", "fault", "--interval", "60s"];
    let said = stage.run(stage.record(&options, &words)).require(0).text();
    let pages: Vec<u64> = said.lines().map(|line| line.parse().unwrap()).collect();
    let most = pages[0] + 2 * 256;
    assert!(
        pages.len() == 6 && pages.iter().all(|pages| *pages < most),
        "{pages:?}"
    );
}
