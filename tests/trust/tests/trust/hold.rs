//! Following and holding processes whatever their cgroup, and leaving the cgroups of others as they are.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use varve_faults::{
    Running, Stage, cgroup_of, cgroup_root, check_trace, is_frozen, patiently, recorder_cgroups,
    varve_binary, watchdogs,
};
use varve_trace::Trace;
use varve_trace::tables::{ObjectRow, TouchRow};
use varve_trust::{program, see_an_interval};

use crate::rounds::{
    Freezer, Group, attach, compare, go_on, rounds, rounds_done, start_rounds, stop,
};

#[test]
fn a_target_that_moves_to_another_cgroup_is_still_seen() {
    let group = Group::new("other");
    let stage = Stage::new();
    let mut arguments = rounds(&stage, 2);
    arguments.push(group.0.clone().into());
    let recorder = stage.start(stage.record(&["--interval", "10ms"], &arguments));
    assert!(
        patiently(|| rounds_done(&stage) > 200),
        "{}",
        recorder.messages()
    );
    recorder.signal(Signal::TERM);
    let ended = recorder.end().require(7);
    assert!(ended.stderr.contains("and by ptrace"), "{}", ended.stderr);
    compare(&stage, &stage).require_all("cgroup, ptrace");
    stage.require_clean(ended.pid);
}

#[test]
fn a_target_that_moves_to_a_cgroup_below_is_still_seen() {
    let stage = Stage::new();
    let arguments = rounds(&stage, 2);
    let script = format!(
        "group={}$(sed -n 's/^0:://p' /proc/self/cgroup)/sub; mkdir \"$group\"; exec \"$@\" \"$group\"",
        cgroup_root().display()
    );
    let mut all: Vec<OsString> = vec!["sh".into(), "-c".into(), script.into(), "sh".into()];
    all.extend(arguments);
    let recorder = stage.start(stage.record(&["--interval", "10ms"], &all));
    assert!(
        patiently(|| rounds_done(&stage) > 200),
        "{}",
        recorder.messages()
    );
    recorder.signal(Signal::TERM);
    let ended = recorder.end().require(7);
    compare(&stage, &stage).require_all("cgroup");
    // The group that the target made is empty now, and goes with the recorder's.
    stage.require_clean(ended.pid);
}

#[test]
fn a_process_that_runs_stays_in_its_cgroup_with_its_limits() {
    let group = Group::new("own");
    let (targets, recorders) = (Stage::new(), Stage::new());
    let target = start_rounds(&targets, 2);
    group.take(target.pid());
    let limits = group.limits();
    let recorder = attach(&recorders, target.pid(), &[]);
    let freezer = Freezer::of(&group);
    let began = rounds_done(&targets);
    let goes_on = patiently(|| {
        assert_eq!(cgroup_of(target.pid()).as_ref(), Some(&group.0));
        rounds_done(&targets) > began + 100
    });
    assert!(goes_on, "it stands still");
    assert!(see_an_interval(&recorders.path("trace.varve")));
    // The control of the cases that hear nothing.
    assert!(freezer.was_written());
    assert!(recorder_cgroups(recorder.pid()).is_empty());
    let pid = recorder.pid();
    let said = stop(recorder, target);
    assert!(
        said.contains("held by the freezer of its own cgroup"),
        "{said}"
    );
    assert_eq!(group.limits(), limits);
    compare(&recorders, &targets).require_all("own cgroup");
    recorders.require_clean(pid);
}

#[test]
fn others_in_the_cgroup_are_not_frozen_for_the_target() {
    let group = Group::new("shared");
    let (targets, others, recorders) = (Stage::new(), Stage::new(), Stage::new());
    let (target, other) = (start_rounds(&targets, 2), start_rounds(&others, 1));
    group.take(target.pid());
    group.take(other.pid());
    let freezer = Freezer::of(&group);
    let recorder = attach(&recorders, target.pid(), &[]);
    assert!(see_an_interval(&recorders.path("trace.varve")));
    assert!(!freezer.was_written(), "the cgroup of others is frozen");
    let said = stop(recorder, target);
    assert!(said.contains("other processes are in its cgroup"), "{said}");
    compare(&recorders, &targets).require_all("ptrace");
    other.signal(Signal::TERM);
    other.end().require(7);
}

#[test]
fn who_joins_the_cgroup_is_neither_held_nor_scanned() {
    let group = Group::new("joined");
    let (targets, others, recorders) = (Stage::new(), Stage::new(), Stage::new());
    let (target, other) = (start_rounds(&targets, 2), start_rounds(&others, 1));
    group.take(target.pid());
    let recorder = attach(&recorders, target.pid(), &[]);
    go_on(&targets, 60);
    let stranger = other.pid();
    group.take(stranger);
    // The recorder looks at the end of an interval.
    let trace = recorders.path("trace.varve");
    assert!(see_an_interval(&trace));
    let freezer = Freezer::of(&group);
    assert!(see_an_interval(&trace));
    assert!(!freezer.was_written(), "it is still held with the target");
    stop(recorder, target);
    let seen = compare(&recorders, &targets);
    seen.require_all("own cgroup, ptrace");
    let touches = seen.trace.rows::<TouchRow>().expect("touches");
    assert!(touches.iter().all(|t| t.pid.0 != stranger));
    other.signal(Signal::TERM);
    other.end().require(7);
}

#[test]
fn who_is_put_into_the_recorders_cgroup_is_not_scanned() {
    let (others, stage) = (Stage::new(), Stage::new());
    let other = start_rounds(&others, 1);
    let recorder = stage.start(stage.record(&["--interval", "10ms"], &rounds(&stage, 2)));
    assert!(patiently(|| rounds_done(&stage) > 40));
    let group = recorder_cgroups(recorder.pid()).pop().expect("a cgroup");
    fs::write(group.join("cgroup.procs"), other.pid().to_string()).expect("moved");
    go_on(&stage, 100);
    recorder.signal(Signal::TERM);
    let ended = recorder.end().require(7);
    let seen = compare(&stage, &stage);
    seen.require_all("cgroup");
    let touches = seen.trace.rows::<TouchRow>().expect("touches");
    assert!(touches.iter().all(|t| t.pid.0 != other.pid()));
    stage.require_clean(ended.pid);
    // What was in the recorder's cgroup is in the one above now, and runs.
    assert!(patiently(
        || cgroup_of(other.pid()).as_deref() == group.parent()
    ));
    go_on(&others, 5);
    other.signal(Signal::TERM);
    other.end().require(7);
}

#[test]
fn what_somebody_else_froze_stays_frozen() {
    let group = Group::new("frozen");
    let (targets, recorders) = (Stage::new(), Stage::new());
    let target = start_rounds(&targets, 2);
    group.take(target.pid());
    group.set("cgroup.freeze", "1");
    let recorder = attach(&recorders, target.pid(), &[]);
    recorder.signal(Signal::INT);
    let ended = recorder.end().require(0);
    assert!(
        ended.stderr.contains("somebody else has frozen"),
        "{}",
        ended.stderr
    );
    recorders.require_clean(ended.pid);
    assert!(is_frozen(&group.0));
    // And the kernel says that all of it stands.
    let events = fs::read_to_string(group.0.join("cgroup.events")).expect("its events");
    assert!(events.contains("frozen 1"), "{events}");
    group.set("cgroup.freeze", "0");
    target.signal(Signal::TERM);
    target.end().require(7);
}

#[test]
fn a_target_in_a_threaded_cgroup_is_held_by_ptrace() {
    let domain = Group::new("domain");
    let threads = Group::below(&domain.0, OsStr::new("threads"));
    threads.set("cgroup.type", "threaded");
    let (targets, recorders) = (Stage::new(), Stage::new());
    let target = start_rounds(&targets, 2);
    domain.take(target.pid());
    let tasks = fs::read_dir(format!("/proc/{}/task", target.pid())).expect("threads");
    for task in tasks.flatten() {
        threads.set("cgroup.threads", &task.file_name().to_string_lossy());
    }
    let recorder = attach(&recorders, target.pid(), &[]);
    go_on(&targets, 60);
    let said = stop(recorder, target);
    assert!(said.contains("of the type `threaded`"), "{said}");
    compare(&recorders, &targets).require_all("ptrace");
}

/// A recorder in a cgroup of threads can make no cgroup for its target.
#[test]
fn a_recorder_in_a_threaded_cgroup_holds_by_ptrace() {
    let domain = Group::new("domain-of-recorder");
    let threads = Group::below(&domain.0, OsStr::new("threads"));
    threads.set("cgroup.type", "threaded");
    let stage = Stage::new();
    let script = "echo $$ > $0/cgroup.procs; echo $$ > $1/cgroup.threads; shift; exec \"$@\"";
    let mut command = stage.command("sh");
    command.args(["-c", script]).arg(&domain.0).arg(&threads.0);
    command.arg(varve_binary());
    command.args(["record", "-o", "trace.varve", "--interval", "10ms", "--"]);
    command.args(rounds(&stage, 2));
    let recorder = stage.start(command);
    assert!(
        patiently(|| rounds_done(&stage) > 100),
        "{}",
        recorder.messages()
    );
    recorder.signal(Signal::TERM);
    let ended = recorder.end().require(7);
    assert!(ended.stderr.contains("held by ptrace"), "{}", ended.stderr);
    compare(&stage, &stage).require_all("ptrace");
    stage.require_clean(ended.pid);
}

/// Stops a recorder while it holds this group; whether that came about.
fn stop_in_a_hold(recorder: &mut Running, group: &Path) -> bool {
    patiently(|| {
        if !is_frozen(group) {
            return false;
        }
        assert!(recorder.stop(), "it has ended: {}", recorder.messages());
        // Stopped a little too late it has let go.
        let held = is_frozen(group);
        if !held {
            recorder.signal(Signal::CONT);
        }
        held
    })
}

#[test]
fn a_cgroup_of_any_name_is_let_go_when_the_recorder_is_killed() {
    let odd = Group::below(&cgroup_root(), OsStr::from_bytes(b"a\tb c\xff"));
    let (targets, recorders) = (Stage::new(), Stage::new());
    let target = start_rounds(&targets, 2);
    odd.take(target.pid());
    let mut recorder = attach(&recorders, target.pid(), &["--hold", "cgroup"]);
    assert!(stop_in_a_hold(&mut recorder, &odd.0));
    recorder.signal(Signal::KILL);
    let pid = recorder.end().pid;
    recorders.require_clean(pid);
    assert!(patiently(|| !is_frozen(&odd.0)));
    go_on(&targets, 5);
    assert_eq!(cgroup_of_bytes(target.pid()), odd.0);
    target.signal(Signal::TERM);
    target.end().require(7);
}

#[test]
fn a_cgroup_made_below_one_of_any_name_is_let_go_when_the_recorder_is_killed() {
    let odd = Group::below(&cgroup_root(), OsStr::from_bytes(b"x\ty z\xfe"));
    let stage = Stage::new();
    let mut command = stage.command("sh");
    command
        .args(["-c", "echo $$ > $0/cgroup.procs; exec \"$@\""])
        .arg(&odd.0)
        .arg(varve_binary())
        .args([
            "record",
            "-o",
            "trace.varve",
            "--interval",
            "10ms",
            "--hold",
            "cgroup",
            "--",
        ])
        .args(rounds(&stage, 2));
    let mut recorder = stage.start(command);
    assert!(
        patiently(|| rounds_done(&stage) > 40),
        "{}",
        recorder.messages()
    );
    let made = odd.0.join(format!("varve-{}", recorder.pid()));
    assert!(stop_in_a_hold(&mut recorder, &made));
    recorder.signal(Signal::KILL);
    let pid = recorder.end().pid;
    assert!(patiently(|| !made.exists()));
    go_on(&stage, 5);
    // The watchdog, which was in there too, ends after it has cleaned up.
    let mut target = None;
    let is_alone = patiently(|| {
        let processes = fs::read_to_string(odd.0.join("cgroup.procs")).expect("the target");
        target = processes.trim().parse().ok();
        target.is_some()
    });
    assert!(is_alone, "one process");
    let target = target.and_then(rustix::process::Pid::from_raw);
    let _ = rustix::process::kill_process(target.expect("a process"), Signal::TERM);
    stage.require_clean(pid);
}

fn cgroup_of_bytes(pid: u32) -> PathBuf {
    let text = fs::read(format!("/proc/{pid}/cgroup")).expect("its cgroup");
    let mut lines = text.split(|b| *b == b'\n');
    let line = lines
        .find_map(|l| l.strip_prefix(b"0::/"))
        .expect("a cgroup");
    cgroup_root().join(OsStr::from_bytes(line))
}

/// Somebody lets the held target run, and freezes it again before the recorder looks.
#[test]
fn a_hold_that_was_interrupted_is_a_loss() {
    let group = Group::new("toggled");
    let (targets, recorders) = (Stage::new(), Stage::new());
    let target = start_rounds(&targets, 1);
    group.take(target.pid());
    let mut recorder = attach(&recorders, target.pid(), &["--hold", "cgroup"]);
    // A recorder that was stopped when it had read everything, just before it lets go, has lost nothing: until it says that it has.
    let trace = recorders.path("trace.varve");
    let has_lost = || {
        let contents = check_trace(&trace);
        contents.is_ok_and(|c| c.losses.iter().any(|l| l.kind == "holds_cut_short"))
    };
    for _ in 0..1000 {
        if has_lost() {
            break;
        }
        assert!(stop_in_a_hold(&mut recorder, &group.0));
        group.set("cgroup.freeze", "0");
        go_on(&targets, 0);
        // The watchdog lets the target of a stopped recorder run, too.
        assert!(patiently(|| {
            group.set("cgroup.freeze", "1");
            is_frozen(&group.0)
        }));
        recorder.signal(Signal::CONT);
        go_on(&targets, 1);
    }
    stop(recorder, target);
    require_loss(&recorders, "holds_cut_short");
}

fn require_loss(recorded: &Stage, kind: &str) {
    let trace = Trace::open(&recorded.path("trace.varve")).expect("a trace");
    let manifest = &trace.manifest;
    let lost = manifest.losses.get(kind).copied().unwrap_or(0);
    assert!(lost > 0, "{:?}", manifest.losses);
    assert!(!manifest.completeness.complete);
}

#[test]
fn what_a_debugger_takes_in_the_middle_is_a_loss() {
    let (targets, recorders) = (Stage::new(), Stage::new());
    let target = start_rounds(&targets, 1);
    let recorder = attach(&recorders, target.pid(), &["--hold", "ptrace"]);
    let ready = targets.path("ready");
    let mut debugger = targets.command(program("seize"));
    debugger.arg(target.pid().to_string()).arg(&ready);
    let debugger = targets.start(debugger);
    assert!(patiently(|| ready.exists()), "{}", debugger.messages());
    assert!(see_an_interval(&recorders.path("trace.varve")));
    fs::write(targets.path("ready.over"), "").expect("a file");
    debugger.end().require(0);
    go_on(&targets, 20);
    stop(recorder, target);
    require_loss(&recorders, "unheld_processes");
    let trace = Trace::open(&recorders.path("trace.varve")).expect("a trace");
    let manifest = &trace.manifest;
    let note = |n: &String| n.contains("could not be held still at");
    assert!(manifest.notes.iter().any(note), "{:?}", manifest.notes);
}

#[test]
fn a_child_of_what_is_recorded_is_refused() {
    let (targets, first, second) = (Stage::new(), Stage::new(), Stage::new());
    let mut shell = targets.command("sh");
    shell.args(["-c", "sleep 1000 & echo $! > child; mv child number; wait"]);
    let target = targets.start(shell);
    assert!(patiently(|| targets.path("number").exists()));
    let child = fs::read_to_string(targets.path("number")).expect("a number");
    let recorder = attach(&first, target.pid(), &[]);
    let refused = second.run(second.record::<&str>(&["-p", child.trim()], &[]));
    let refused = refused.require(125);
    refused.require_complaint(&["being recorded already", &recorder.pid().to_string()]);
    recorder.signal(Signal::INT);
    recorder.end().require(0);
    target.signal_group(Signal::KILL);
    target.end();
}

/// A command's child is known as recorded even where it left the recorder's cgroup.
#[test]
fn a_target_that_moved_away_is_refused_to_a_second_recorder() {
    let group = Group::new("away");
    let (stage, second) = (Stage::new(), Stage::new());
    let mut arguments = rounds(&stage, 1);
    arguments.push(group.0.clone().into());
    let recorder = stage.start(stage.record(&["--interval", "10ms"], &arguments));
    assert!(
        patiently(|| rounds_done(&stage) > 80),
        "{}",
        recorder.messages()
    );
    let target = fs::read_to_string(group.0.join("cgroup.procs")).expect("the target");
    let refused = second.run(second.record::<&str>(&["-p", target.trim()], &[]));
    refused
        .require(125)
        .require_complaint(&["being recorded already"]);
    recorder.signal(Signal::TERM);
    recorder.end().require(7);
}

#[test]
fn a_program_that_handles_the_signal_has_its_own_exit_code() {
    for signal in [Signal::INT, Signal::TERM] {
        let stage = Stage::new();
        let ready = stage.path("ready");
        let arguments = [program("answers").into_os_string(), ready.clone().into()];
        let recorder = stage.start(stage.record(&[], &arguments));
        assert!(patiently(|| ready.exists()), "{}", recorder.messages());
        recorder.signal(signal);
        recorder.end().require(42);
        let trace = Trace::open(&stage.path("trace.varve")).expect("a trace");
        let manifest = &trace.manifest;
        match manifest.target.exit_code {
            Some(code) => assert_eq!(code, 42),
            // On a machine with much else to do it ends so late that the trace does not wait for it, and says so.
            None => assert!(
                manifest
                    .notes
                    .iter()
                    .any(|n| n.contains("ran on unrecorded")),
                "{:?}",
                manifest.notes
            ),
        }
    }
}

#[test]
fn a_forked_child_has_no_stack_of_a_thread_that_it_has_not() {
    let stage = Stage::new();
    let forked = stage.path("forked");
    let arguments = [program("heirs").into_os_string(), forked.clone().into()];
    let recorder = stage.start(stage.record(&["--interval", "10ms"], &arguments));
    assert!(patiently(|| forked.exists()), "{}", recorder.messages());
    assert!(see_an_interval(&stage.path("trace.varve")));
    fs::write(stage.path("forked.over"), "").expect("a file");
    recorder.end().require(0);
    let trace = Trace::open(&stage.path("trace.varve")).expect("a trace");
    let root = trace.manifest.target.pid;
    let objects = trace.rows::<ObjectRow>().expect("objects");
    let stacks: Vec<&ObjectRow> = objects
        .iter()
        .filter(|o| o.name.contains("stack of thread"))
        .collect();
    let (own, childs): (Vec<&ObjectRow>, Vec<&ObjectRow>) =
        stacks.into_iter().partition(|o| o.pid.0 == root);
    assert!(
        own.iter().any(|o| o.name.starts_with("stack of thread")),
        "{own:?}"
    );
    assert!(!childs.is_empty());
    for object in childs {
        let of = format!("of process {root}");
        assert!(
            object.name.starts_with("copy of the stack of thread") && object.name.ends_with(&of),
            "{}",
            object.name
        );
        assert_eq!(object.tid.map(|t| t.0), Some(object.pid.0));
    }
}

/// A target of the same user can stop the watchdogs: the recorder ends all the same, and they do.
#[test]
fn watchdogs_that_somebody_stops_keep_nobody_and_do_not_stay() {
    let stage = Stage::new();
    let started = stage.path("started");
    let arguments = ["serve", started.to_str().expect("a path")];
    let recorder = stage.start(stage.record_actor(&["--interval", "10ms"], &arguments));
    assert!(patiently(|| started.exists()), "{}", recorder.messages());
    let both = watchdogs(recorder.pid());
    assert_eq!(both.len(), 2, "{both:?}");
    for watchdog in &both {
        let id = rustix::process::Pid::from_raw(*watchdog as i32).expect("its number");
        rustix::process::kill_process(id, Signal::STOP).expect("stopped");
    }
    recorder.signal(Signal::TERM);
    let ended = recorder.end().require(11);
    for watchdog in both {
        let is_gone = || !Path::new(&format!("/proc/{watchdog}")).exists();
        assert!(patiently(is_gone), "{watchdog}");
    }
    stage.require_clean(ended.pid);
}
