//! The fault handler gains nobody anything, and never stops.
//!
//! `record --backend fault` has a process in each target that shares its memory. Whatever that process may do, the
//! target may do, whatever rights it has given up; and what it does not do, the target waits for.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use varve_faults::{Running, Stage, TRAPPED, can_trap, patiently, socket_folder, stat};
use varve_trace::tables::{ProcessRow, TouchRow};
use varve_trace::{IntervalChoice, Trace};
use varve_trust::{STRANGER, program, see_an_interval};

/// User ids of handlers begin here (`preload/src/handler/rights.rs`).
const HANDLERS: u32 = 0x7f00_0000;

/// Starts a recording of a program of `programs/`, with a file that it writes to.
pub(crate) fn record(stage: &Stage, name: &str, arguments: &[&str]) -> (Running, PathBuf) {
    let out = stage.path("said");
    let program = program(name);
    let mut words = vec![program.to_str().unwrap()];
    words.extend(arguments);
    let words: Vec<&str> = words
        .into_iter()
        .map(|w| {
            if w == "FILE" {
                out.to_str().unwrap()
            } else {
                w
            }
        })
        .collect();
    (stage.start(stage.record(&TRAPPED, &words)), out)
}

/// Other processes that share a process's memory.
fn sharing(pid: u32) -> Vec<u32> {
    const KCMP_VM: i32 = 1;
    let pids = fs::read_dir("/proc").unwrap().flatten();
    pids.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok())
        .filter(|other| {
            // SAFETY: takes integers, changes nothing.
            let order = unsafe { libc::syscall(libc::SYS_kcmp, pid, *other, KCMP_VM, 0, 0) };
            *other != pid && order == 0
        })
        .collect()
}

/// The one handler of a process, once it is ready for work.
pub(crate) fn handler_of(pid: u32) -> u32 {
    let mut found = 0;
    let is_there = patiently(|| {
        let all = sharing(pid);
        found = all.first().copied().unwrap_or(0);
        all.len() == 1 && status(found, "Seccomp") == "2"
    });
    assert!(
        is_there,
        "of {pid}: {:?}, {}",
        sharing(pid),
        status(found, "Seccomp")
    );
    found
}

/// The children of a process that are handlers, dead or alive.
fn handlers_among_children(pid: u32) -> Vec<u32> {
    let list = format!("/proc/{pid}/task/{pid}/children");
    let children = fs::read_to_string(list).unwrap_or_default();
    let children = children.split_whitespace().map(|c| c.parse().unwrap());
    children
        .filter(|c| status(*c, "Name") == "varve-handler")
        .collect()
}

/// A line of `/proc/PID/status`.
pub(crate) fn status(pid: u32, name: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mut lines = text.lines();
    lines
        .find_map(|l| l.strip_prefix(name)?.strip_prefix(':'))
        .unwrap_or_default()
        .trim()
        .to_owned()
}

/// What a `dropper` said: its part, its process and the dumpable flag before and after.
type Said = (String, u32, [i32; 2]);

/// What `dropper` said: who, process id, and whether it was dumpable before and after it changed its user.
fn droppers(text: &str) -> Vec<Said> {
    let number = |w: &str| w.parse::<i32>().ok();
    text.lines()
        .filter_map(|line| match *line.split(' ').collect::<Vec<_>>() {
            [who, pid, before, after] => Some((
                who.to_owned(),
                pid.parse().ok()?,
                [number(before)?, number(after)?],
            )),
            _ => None,
        })
        .collect()
}

/// Starts `dropper` and waits until parent and child have said who they are. They live until [`require_kept`].
fn record_dropper(stage: &Stage, user: u32) -> (Running, PathBuf, Vec<Said>) {
    fs::write(stage.path("said.over"), "").unwrap();
    let (running, out) = record(stage, "dropper", &[&user.to_string(), "FILE"]);
    let mut said = Vec::new();
    let both = patiently(|| {
        said = droppers(&fs::read_to_string(&out).unwrap_or_default());
        said.len() == 2
    });
    assert!(both, "{said:?}: {}", running.messages());
    (running, out, said)
}

/// Has the program end that goes on until then, and requires that it has kept all.
fn require_kept(stage: &Stage, running: Running, out: &Path) {
    let pid = running.pid();
    fs::write(out.with_extension("over"), "over").unwrap();
    running.end().require(0);
    let said = fs::read_to_string(out).unwrap();
    assert_eq!(said.lines().last(), Some("kept"), "{said}");
    stage.require_clean(pid);
}

#[test]
fn a_handler_has_no_rights_whatever_its_target_had() {
    let stage = Stage::new();
    if !can_trap() {
        return;
    }
    let (running, out, said) = record_dropper(&stage, STRANGER);
    for (who, pid, dumpable) in said {
        if who == "child" {
            // It cannot have a handler with a user of its own, so it has none, and nobody to wait for.
            assert!(handlers_among_children(pid).is_empty());
            assert!(sharing(pid).is_empty());
            continue;
        }
        let handler = handler_of(pid);
        let user = HANDLERS + handler;
        let ids = format!("{user}\t{user}\t{user}\t{user}");
        for (name, wanted) in [
            ("Uid", ids.as_str()),
            ("Gid", ids.as_str()),
            ("Groups", ""),
            ("CapInh", "0000000000000000"),
            ("CapPrm", "0000000000000000"),
            ("CapEff", "0000000000000000"),
            ("CapAmb", "0000000000000000"),
            ("NoNewPrivs", "1"),
            ("Seccomp", "2"),
        ] {
            assert_eq!(status(handler, name), wanted, "{who}: {name}");
        }
        assert_eq!(status(handler, "CapBnd"), "0000000000000000");
        // The handler's change of user is not the target's, and the target's own counts.
        assert_eq!(dumpable, [1, 0]);
        for file in fs::read_dir(format!("/proc/{handler}/fd"))
            .unwrap()
            .flatten()
        {
            let link = fs::read_link(file.path()).unwrap_or_default();
            let link = link.to_string_lossy();
            let is_needed = link.starts_with("socket:")
                || link.ends_with("/pagemap")
                || link.ends_with("/maps")
                || link == "anon_inode:[userfaultfd]"
                // It shows whoever reads it that one's own signals.
                || link == "anon_inode:[signalfd]";
            assert!(is_needed, "{who}'s has {link}");
        }
        // The recorder's is higher than that of this test, which is the target's.
        assert_eq!(
            stat(handler).unwrap().niceness,
            stat("self").unwrap().niceness,
            "the niceness of the {who}'s handler"
        );
    }
    require_kept(&stage, running, &out);
}

#[test]
fn a_user_cannot_trace_the_handler_of_a_program_that_has_become_that_user() {
    let stage = Stage::new();
    if !can_trap() {
        return;
    }
    let (running, out, said) = record_dropper(&stage, STRANGER);
    let parent = said.iter().find(|s| s.0 == "parent").unwrap().1;
    let intrude = |pid: u32| {
        let mut intruder = stage.command(program("intruder"));
        intruder.arg(pid.to_string()).uid(STRANGER).gid(STRANGER);
        stage.run(intruder).text()
    };
    let refused = "not traced\nnot opened\nnot reached\n";
    assert_eq!(intrude(handler_of(parent)), refused);
    // The program itself is this user's now and lets itself be traced.
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    if matches!(scope.trim(), "" | "0") {
        assert_eq!(intrude(parent), "traced\nopened\nreached\n");
    }
    require_kept(&stage, running, &out);
}

#[test]
fn who_only_says_that_it_is_a_handler_gets_nothing() {
    let stage = Stage::new();
    if !can_trap() {
        return;
    }
    // In a place that every user can reach.
    let claimant = stage.path("claimant");
    fs::copy(program("claimant"), &claimant).unwrap();
    fs::set_permissions(stage.folder(), fs::Permissions::from_mode(0o755)).unwrap();
    let (running, out, _) = record_dropper(&stage, STRANGER);
    let folder = socket_folder(running.pid()).unwrap();
    // Whatever the recorder does for a handler, it does in the interval after it has met it.
    let after_an_interval = |claiming: Running, over: &Path, word: &str| {
        let said = format!("{word}\n");
        assert!(patiently(|| claiming.said() == said), "{}", claiming.said());
        assert!(see_an_interval(&stage.path("trace.varve")));
        fs::write(over, "").unwrap();
        let said = format!("{word}\nas nice, in its cgroup\n");
        assert_eq!(claiming.end().require(0).text(), said);
    };
    for user in [STRANGER, 0] {
        let over = stage.path(&format!("over-{user}"));
        let mut claim = stage.command(&claimant);
        claim.arg(&over).arg(&folder).uid(user).gid(user);
        after_an_interval(stage.start(claim), &over, "closed");
    }
    require_kept(&stage, running, &out);

    // A process that is recorded, but shares its memory with nobody and has its rights.
    let over = stage.path("over-recorded");
    let words = ["env", "-u", "LD_PRELOAD"];
    let command = [
        &words[..],
        &[claimant.to_str().unwrap(), over.to_str().unwrap()],
    ]
    .concat();
    let claiming = stage.start(stage.record(&TRAPPED, &command));
    after_an_interval(claiming, &over, "asked and closed");
}

#[test]
fn a_thousand_threads_that_wait_at_once_go_on() {
    let stage = Stage::new();
    if !can_trap() {
        return;
    }
    let (running, out) = record(&stage, "crowd", &["1000", "10", "FILE"]);
    require_kept(&stage, running, &out);
}

/// A child runs while the handler brings it what its parent has in the shadow.
#[test]
fn a_child_that_gives_back_much_memory_at_once_has_the_rest() {
    for pieces in ["10", "3000"] {
        let stage = Stage::new();
        if !can_trap() {
            return;
        }
        let (running, out) = record(&stage, "giver", &[pieces, "FILE"]);
        require_kept(&stage, running, &out);
    }
}

/// A program that waits for any child, or takes in the orphans of others, finds its own and no handler.
#[test]
fn a_program_finds_its_own_children_and_no_other() {
    for mode in ["own", "orphans"] {
        let stage = Stage::new();
        if !can_trap() {
            return;
        }
        let (running, out) = record(&stage, "reaper", &[mode, "FILE"]);
        require_kept(&stage, running, &out);
        let manifest = Trace::open(&stage.path("trace.varve")).unwrap().manifest;
        let traps = manifest.traps.unwrap();
        assert_eq!(traps.given_up, 0, "{traps:?}");
        // Each child used 256 pages in each of several intervals.
        assert!(traps.moved_pages > 4 * 256, "{traps:?}");
    }
}

/// As the first process of a PID namespace does, which gets all orphans there.
#[test]
fn the_first_process_of_a_namespace_finds_its_own_children_and_no_other() {
    let stage = Stage::new();
    if !can_trap() {
        return;
    }
    let out = stage.path("said");
    let program = program("reaper");
    let words = [
        "unshare",
        "-pf",
        "--mount-proc",
        program.to_str().unwrap(),
        "own",
        out.to_str().unwrap(),
    ];
    let options = ["--backend", "fault", "--interval", "10ms"];
    let running = stage.start(stage.record(&options, &words));
    require_kept(&stage, running, &out);
}

/// The kernel tells of the changes of different threads in an order of its own. Several at once, so that threads are
/// stopped anywhere.
#[test]
fn what_one_thread_moves_to_where_another_has_just_unmapped_is_all_there() {
    let remaps = program("remaps");
    for _ in 0..3 {
        let stages: [Stage; 3] = std::array::from_fn(|_| Stage::new());
        if !can_trap() {
            return;
        }
        let options = ["--backend", "fault", "--interval", "10ms"];
        let all = stages
            .each_ref()
            .map(|s| s.start(s.record(&options, &[&remaps])));
        for one in all {
            assert_eq!(one.end().require(0).text(), "all there\n");
        }
    }
}

/// Threads begin and end until the moment at which all stand still. Where the block of one that has ended were taken for
/// one, the mapping in its place would be cut in pieces, and could not be moved any more.
#[test]
fn what_takes_the_place_of_a_threads_stack_stays_in_one_piece() {
    let stage = Stage::new();
    if !can_trap() {
        return;
    }
    let options = ["--backend", "fault", "--interval", "10ms"];
    let ran = stage.run(stage.record(&options, &[&program("succession")]));
    assert_eq!(ran.require(0).text(), "all there\n");
    let manifest = Trace::open(&stage.path("trace.varve")).unwrap().manifest;
    assert!(manifest.traps.unwrap().moved_pages > 0);
}

#[test]
fn five_thousand_threads_go_on_and_end() {
    let stage = Stage::new();
    if !can_trap() {
        return;
    }
    let (running, out) = record(&stage, "crowd", &["5000", "3", "FILE"]);
    require_kept(&stage, running, &out);
    // Each page that was moved is asked for once: whoever waits is heard. Being held ends a wait, and who waited asks again.
    let manifest = Trace::open(&stage.path("trace.varve")).unwrap().manifest;
    let traps = manifest.traps.unwrap();
    assert!(traps.moved_pages > 5000, "{traps:?}");
    let asked = traps.moved_pages + traps.resolved_empty;
    assert!(
        traps.resolved <= asked + 5000 * traps.boundaries,
        "{traps:?}"
    );
    assert_eq!(traps.given_up, 0, "{traps:?}");
}

/// How many rounds `crowd` has done.
fn rounds(out: &Path) -> u64 {
    fs::metadata(out.with_extension("rounds")).map_or(0, |m| m.len())
}

fn wait_for_word(out: &Path, word: &str) -> bool {
    patiently(|| fs::read_to_string(out).is_ok_and(|t| t.trim() == word))
}

/// In each round all threads wait, so that whenever it is killed some do.
#[test]
fn threads_go_on_when_the_recorder_is_killed_among_their_waits() {
    for (threads, after) in [("1000", 0), ("1000", 5), ("5000", 1)] {
        let stage = Stage::new();
        if !can_trap() {
            return;
        }
        let (running, out) = record(&stage, "crowd", &[threads, "until", "FILE"]);
        let pid = running.pid();
        assert!(wait_for_word(&out, "begun"), "{}", running.messages());
        assert!(
            patiently(|| rounds(&out) >= after),
            "{}",
            running.messages()
        );
        running.signal(Signal::KILL);
        let done = rounds(&out);
        assert!(
            patiently(|| rounds(&out) > done + 2),
            "{threads} threads stand still, killed after {done} rounds"
        );
        fs::write(out.with_extension("over"), "over").unwrap();
        assert!(
            wait_for_word(&out, "kept"),
            "{threads} threads, killed after {done} rounds"
        );
        drop(running);
        stage.require_clean(pid);
    }
}

/// A process in place of a handler, which the kernel's part leaves out: what it runs and makes is recorded all the same.
#[test]
fn whoever_takes_a_handlers_place_does_not_run_programs_unseen() {
    let stage = Stage::new();
    if !can_trap() {
        return;
    }
    let (escapee, pages) = (program("escapee"), program("pages"));
    for how in ["exec", "deep", "fork"] {
        // Without the library nobody else takes that place; what is run has it in no case.
        let words = ["env", "-u", "LD_PRELOAD", escapee.to_str().unwrap(), how];
        let words = [&words[..], &[pages.to_str().unwrap(), "500", "200"]].concat();
        let options = ["--backend", "fault", "--interval", "10ms"];
        let said = stage.run(stage.record(&options, &words)).require(0).text();
        let [pid, first] = said.split_whitespace().collect::<Vec<_>>()[..] else {
            panic!("{how}: {said}");
        };
        let pid: u32 = pid.parse().unwrap();
        let first = u64::from_str_radix(first, 16).unwrap();
        let trace = Trace::open(&stage.path("trace.varve")).unwrap();
        let processes: Vec<ProcessRow> = trace.rows().unwrap();
        assert!(
            processes.iter().any(|p| p.pid.0 == pid),
            "{how}: {processes:#?}"
        );
        let touches: Vec<TouchRow> = trace.rows().unwrap();
        let mut seen = vec![false; 500];
        for touch in touches.iter().filter(|t| t.pid.0 == pid) {
            for page in touch.page.0..touch.page.0 + u64::from(touch.pages) {
                let at = page.checked_sub(first).unwrap_or(u64::MAX);
                if let Some(seen) = usize::try_from(at).ok().and_then(|at| seen.get_mut(at)) {
                    *seen = true;
                }
            }
        }
        let count = seen.iter().filter(|s| **s).count();
        assert_eq!(count, 500, "{how}: pages that were seen");
    }
}

#[test]
fn a_handler_that_somebody_stops_goes_on() {
    let stage = Stage::new();
    if !can_trap() {
        return;
    }
    let (running, out) = record(&stage, "crowd", &["50", "until", "FILE"]);
    assert!(wait_for_word(&out, "begun"), "{}", running.messages());
    let target = target_of(&running);
    let handler = handler_of(target);
    let id = rustix::process::Pid::from_raw(handler as i32).unwrap();
    // The recorder has met it: until then it moves nothing, and no thread waits for it.
    assert!(patiently(|| has_userfaultfd(handler)));
    for _ in 0..10 {
        rustix::process::kill_process(id, Signal::STOP).unwrap();
        let goes_on = || !status(handler, "State").starts_with('T');
        assert!(patiently(goes_on), "{}", running.messages());
        // And its program, which waits for it.
        let done = rounds(&out);
        assert!(patiently(|| rounds(&out) > done + 1), "it stands still");
    }
    require_kept(&stage, running, &out);
    let manifest = Trace::open(&stage.path("trace.varve")).unwrap().manifest;
    // Reclaim is the machine's.
    let is_reclaim = |kind: &str| kind == "reclaim_scanned_pages";
    let mut lost = manifest.losses.iter().filter(|(kind, _)| !is_reclaim(kind));
    assert!(lost.all(|(_, n)| *n == 0), "{manifest:?}");
}

/// The program that a recorder has started.
pub(crate) fn target_of(recorder: &Running) -> u32 {
    let children = format!("/proc/{0}/task/{0}/children", recorder.pid());
    let mut found = None;
    let is_there = patiently(|| {
        let text = fs::read_to_string(&children).unwrap_or_default();
        let mut pids = text
            .split_whitespace()
            .filter_map(|p| p.parse::<u32>().ok());
        found = pids.find(|pid| {
            let exe = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
            !exe.ends_with("varve") && !exe.as_os_str().is_empty()
        });
        found.is_some()
    });
    assert!(is_there, "{}", recorder.messages());
    found.unwrap()
}

/// Whether a handler has got what it moves pages with.
pub(crate) fn has_userfaultfd(handler: u32) -> bool {
    let files = fs::read_dir(format!("/proc/{handler}/fd"));
    files.into_iter().flatten().flatten().any(|file| {
        let link = fs::read_link(file.path()).unwrap_or_default();
        link.as_os_str() == "anon_inode:[userfaultfd]"
    })
}

/// What the program maps right behind a library is the program's, whatever lies beside it when the first interval ends.
#[test]
fn memory_behind_a_library_moves_as_a_whole() {
    if !can_trap() {
        return;
    }
    let behind = program("behind");
    // Those whose variables are exempt: behind one of them there is room.
    let libraries = ["/libc.so", "/libvarve_preload.so"];
    let command = [&[behind.to_str().unwrap()], &libraries[..]].concat();
    let options = ["--backend", "fault", "--interval", "10ms"];
    // Where libraries lie is another place each time, and the program says where there is no room behind them: at 27 of 2,000 places,
    // as measured. Even where it were each second one it would be all of 20 once in 10^6 times.
    const TRIES: usize = 20;
    const NO_ROOM: i32 = 2;
    for _ in 0..TRIES {
        let stage = Stage::new();
        let mut running = stage.start(stage.record(&options, &command));
        for step in ["few", "many"] {
            let is_mapped = || stage.path(step).exists();
            assert!(patiently(|| is_mapped() || running.has_ended()));
            if is_mapped() {
                assert!(see_an_interval(&stage.path("trace.varve")));
                fs::write(stage.path(step).with_extension("over"), "").unwrap();
            }
        }
        let ended = running.end();
        if ended.code != NO_ROOM {
            assert_eq!(ended.require(0).text(), "moved\n");
            return;
        }
    }
    panic!("no room behind a library at {TRIES} places");
}

/// The length of the intervals is the backend's own, or was asked for, and stays then: what a recording says at its end advises no other.
#[test]
fn intervals_are_as_long_as_asked_for_and_advised_no_shorter() {
    if !can_trap() {
        return;
    }
    let recorded = |options: &[&str]| {
        let stage = Stage::new();
        let ran = stage.run(stage.record(options, &[&program("succession")]));
        let said = ran.require(0).stderr;
        let manifest = Trace::open(&stage.path("trace.varve")).unwrap().manifest;
        (manifest.options.interval, said)
    };
    let (interval, said) = recorded(&["--backend", "fault", "--interval", "100ms"]);
    let asked = varve_model::Duration(100_000_000);
    assert_eq!(interval, IntervalChoice::Fixed(asked));
    assert!(!said.contains("with --interval"), "{said}");
    let (interval, _) = recorded(&["--backend", "fault"]);
    let own = varve_model::Duration(50_000_000);
    assert_eq!(interval, IntervalChoice::Default(own));
}
