//! One clock: whatever time programs and the recorder see, what is recorded lies within the recording.

use std::ffi::OsStr;
use std::process::Command;

use varve_faults::{Stage, check_trace, varve_binary};
use varve_model::{Bytes, ObjectKind};
use varve_trace::Trace;
use varve_trace::tables::{IntervalRow, ObjectRow};

const BLOCKS: usize = 10;

/// It makes blocks, one after the other.
const SOURCE: &str = r#"
#include <stdlib.h>
#include <string.h>
int main(void) {
    for (int i = 0; i < 10; i++) memset(malloc(3 << 20), 1, 3 << 20);
    return 0;
}
"#;

/// A clock that is two days late, or early.
const SHIFTED: &str = r#"
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec *time) {
    int result = syscall(SYS_clock_gettime, clock, time);
    if (!result) time->tv_sec += SECONDS;
    return result;
}
"#;

/// Records the program, and requires all births to lie within the recording, in the order of their making.
fn require_births(stage: &Stage, recorder: &[&str], variable: Option<&OsStr>, target: &[&str]) {
    let varve = varve_binary();
    let mut words: Vec<&OsStr> = recorder.iter().map(OsStr::new).collect();
    words.push(varve.as_os_str());
    let mut command = stage.command(words[0]);
    command.args(&words[1..]);
    command.args(["record", "--force", "-o", "trace.varve", "--"]);
    command.args(target).arg(stage.path("program"));
    if let Some(library) = variable {
        command.env("LD_PRELOAD", library);
    }
    stage.run(command).require(0);
    check_trace(&stage.path("trace.varve")).expect("a trace");
    let trace = Trace::open(&stage.path("trace.varve")).unwrap();
    let objects: Vec<ObjectRow> = trace.rows().unwrap();
    let intervals: Vec<IntervalRow> = trace.rows().unwrap();
    let is_block = |o: &&ObjectRow| o.kind == ObjectKind::Heap && o.bytes == Bytes(3 << 20);
    let mut births: Vec<u64> = objects
        .iter()
        .filter(is_block)
        .map(|o| o.born_ns.0)
        .collect();
    births.sort_unstable();
    let during = trace.manifest.clock.start_ns.0..=intervals.last().unwrap().end_ns.0;
    assert_eq!(births.len(), BLOCKS, "{recorder:?} {variable:?} {target:?}");
    assert!(
        births.iter().all(|birth| during.contains(birth)),
        "{recorder:?} {variable:?} {target:?}: {births:?} in {during:?}"
    );
}

fn build(stage: &Stage, name: &str, source: &str, options: &[&str]) {
    let file = stage.path("source.c");
    std::fs::write(&file, source).unwrap();
    let done = Command::new("gcc")
        .args(["-O1", "-fno-builtin", "-o"])
        .args([&stage.path(name), &file])
        .args(options)
        .status()
        .unwrap();
    assert!(done.success());
}

#[test]
fn births_in_time_namespaces_lie_within_the_recording() {
    let stage = Stage::new();
    build(&stage, "program", SOURCE, &[]);
    require_births(&stage, &["env"], None, &[]);
    for offset in ["100000", "-60"] {
        let namespace = ["unshare", "--time", "--fork", "--monotonic", offset];
        let mut probe = stage.command(namespace[0]);
        probe.args(&namespace[1..]).arg("true");
        if stage.run(probe).code != 0 {
            println!("skipped: this kernel has no time namespaces");
            return;
        }
        require_births(&stage, &["env"], None, &namespace);
        require_births(&stage, &namespace, None, &[]);
    }
}

#[test]
fn births_beside_a_shifted_clock_lie_within_the_recording() {
    let stage = Stage::new();
    build(&stage, "program", SOURCE, &[]);
    for seconds in ["172800", "-172800"] {
        let option = format!("-DSECONDS=({seconds})");
        build(
            &stage,
            "shifted.so",
            SHIFTED,
            &["-shared", "-fPIC", &option],
        );
        let library = stage.path("shifted.so");
        // In front of the C library of the recorder too, or of the program alone.
        require_births(&stage, &["env"], Some(library.as_os_str()), &[]);
        let alone = format!("LD_PRELOAD={}", library.display());
        let both = format!("export {alone}:$LD_PRELOAD; exec \"$0\"");
        require_births(&stage, &["env"], None, &["sh", "-c", &both]);
    }
}
