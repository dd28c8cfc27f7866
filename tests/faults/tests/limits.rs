//! Programs that may have hardly any files open.

use std::process::Command;

use varve_faults::{Stage, can_trap, varve_binary};

/// Scripts, how each ends, and whether the loader has no number for a descriptor: it complains of the C library then.
const SCRIPTS: [(&str, i32, bool); 7] = [
    ("ulimit -n 3; exec /bin/echo begun", 127, true),
    ("ulimit -n 3; /bin/echo begun; exit 6", 6, true),
    ("exec prlimit --nofile=3 /bin/echo begun", 127, true),
    (
        "exec 0<&-; ulimit -n 3; exec sh -c 'echo begun; exit 5'",
        5,
        false,
    ),
    ("ulimit -n 4; exec sh -c 'echo begun; exit 5'", 5, false),
    ("ulimit -n 5; sh -c 'echo begun; exit 5'", 5, false),
    ("exec prlimit --nofile=4 /bin/echo begun", 0, false),
];

/// Without the library's `execve`, `setrlimit` and `prlimit` the loader complains of the preload library first.
#[test]
fn a_program_without_descriptors_to_spare_runs_as_alone() {
    let stage = Stage::new();
    let mut ways = vec![vec!["record"], vec!["alloc", "record", "--pages", "off"]];
    if can_trap() {
        ways.push(vec!["record", "--backend", "fault", "--interval", "10ms"]);
    }
    for (script, code, is_short) in SCRIPTS {
        // What it says on either stream is compared, and the recorder speaks on one of them.
        let script = format!("exec 2>&1; {script}");
        let shell = |mut command: Command| {
            command.args(["sh", "-c", &script]);
            stage.run(command).require(code)
        };
        let alone = shell(stage.command("env")).text();
        let complaint = "libc.so.6: cannot open shared object file";
        assert_eq!(alone.contains(complaint), is_short, "{script}: {alone}");
        assert_eq!(alone.contains("begun\n"), !is_short, "{script}: {alone}");
        for (number, way) in ways.iter().enumerate() {
            let trace = format!("trace-{number}.varve");
            let mut command = stage.command(varve_binary());
            command.args(way).args(["--force", "-o", &trace, "--"]);
            let recorded = shell(command);
            assert_eq!(recorded.text(), alone, "{script}, {way:?}");
            stage.require_clean(recorded.pid);
        }
    }
}
