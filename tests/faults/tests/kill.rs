//! `kill -9` of the recorder at 200 random moments, and of its watchdog too.
//!
//! The target runs until the recorder is dead, however long that takes. A state that passes quickly is met by stopping
//! the recorder, which dies where it is in that state and goes on where it is not.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use varve_faults::{
    Contents, Running, Stage, actor, check_trace, intervals_by_part, is_frozen, monotonic_ns,
    patiently, recorder_cgroups, ring_folders, watchdogs,
};

/// How many recorders are killed.
const KILLS: usize = 200;
/// How many at a time: the machine is to be busy, not swamped.
const AT_ONCE: usize = 4;
/// How often a recorder writes what it has.
const FLUSH_NS: u64 = 500_000_000;
/// A merge is the one state that a recorder comes to once. Where it was over before it was seen, nothing was killed, and
/// another recorder is started: this many at most for one kill.
const MAX_MISSED: usize = 50;

/// When a recorder is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    /// Before or about when the target starts.
    StartUp,
    /// In the first interval.
    FirstInterval,
    /// Any time.
    Running,
    /// Between freeze and thaw.
    Held,
    /// Between two holds of one boundary.
    BetweenHolds,
    /// While a table is written.
    Flush,
    /// While the tables are merged.
    Merge,
}

const MOMENTS: [Moment; 7] = [
    Moment::StartUp,
    Moment::FirstInterval,
    Moment::Running,
    Moment::Held,
    Moment::BetweenHolds,
    Moment::Flush,
    Moment::Merge,
];

/// A small generator with a printed seed: xorshift64*.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn up_to(&mut self, limit: Duration) -> Duration {
        Duration::from_nanos(self.roll() % (limit.as_nanos() as u64).max(1))
    }
}

fn seed() -> u64 {
    let given = std::env::var("FAULTS_SEED")
        .ok()
        .and_then(|s| s.parse().ok());
    given.unwrap_or_else(|| monotonic_ns() | 1)
}

/// What happened when a recorder was killed.
#[derive(Debug)]
struct Outcome {
    moment: Moment,
    started: bool,
    state: Option<varve_trace::State>,
}

fn is_being_written(folder: &Path) -> bool {
    fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .any(|e| e.path().extension().is_some_and(|x| x == "new"))
}

/// Waits for something while the recorder lives; tells whether it came.
fn wait_until(recorder: &mut Running, mut come: impl FnMut() -> bool) -> bool {
    let mut has_come = false;
    let decided = patiently(|| {
        has_come = come();
        has_come || recorder.has_ended()
    });
    assert!(decided, "waited in vain: {}", recorder.messages());
    has_come
}

/// Waits for what must come.
fn require(recorder: &mut Running, what: &str, come: impl FnMut() -> bool) {
    assert!(
        wait_until(recorder, come),
        "it ended before {what}: {}",
        recorder.messages()
    );
}

/// Stops the recorder in a state; false where it ended first.
fn stop_in(recorder: &mut Running, mut state: impl FnMut() -> bool) -> bool {
    while wait_until(recorder, &mut state) {
        if recorder.stop() && state() {
            return true;
        }
        recorder.signal(Signal::CONT);
    }
    false
}

fn cgroup_of_recorder(recorder: &mut Running) -> PathBuf {
    let pid = recorder.pid();
    let mut found = None;
    require(recorder, "its cgroup", || {
        found = recorder_cgroups(pid).pop();
        found.is_some()
    });
    found.expect("a cgroup")
}

/// The files of a stage that a target and a test tell each other by.
struct Signs {
    started: PathBuf,
    result: PathBuf,
    go: PathBuf,
}

impl Signs {
    fn of(stage: &Stage) -> Signs {
        let [started, result, go] = ["started", "result", "go"].map(|name| stage.path(name));
        Signs {
            started,
            result,
            go,
        }
    }

    fn arguments<'a>(&'a self, mib: &'a str) -> [&'a str; 6] {
        let path = |path: &'a PathBuf| path.to_str().expect("a plain path");
        let (started, result, go) = (path(&self.started), path(&self.result), path(&self.go));
        ["checksum", mib, "20", started, result, go]
    }

    /// Lets the target do the rest.
    fn go(&self) {
        fs::write(&self.go, "").expect("a file");
    }
}

/// Waits for the moment, after which the recorder may be stopped; tells whether it was met.
fn await_moment(
    stage: &Stage,
    signs: &Signs,
    recorder: &mut Running,
    moment: Moment,
    dice: &mut Dice,
) -> bool {
    if moment == Moment::StartUp {
        let (pid, which) = (recorder.pid(), dice.roll() % 3);
        match which {
            0 => {}
            1 => require(recorder, "its rings", || !ring_folders(pid).is_empty()),
            _ => drop(cgroup_of_recorder(recorder)),
        }
        let longest = if which == 0 { 500 } else { 30 };
        std::thread::sleep(dice.up_to(Duration::from_millis(longest)));
        return true;
    }
    let mut after = |ms| std::thread::sleep(dice.up_to(Duration::from_millis(ms)));
    require(recorder, "its target began", || signs.started.exists());
    let trace = stage.path("trace.varve");
    let parts = trace.join("parts");
    let flushed = |count| parts.join(format!("intervals-{:06}.parquet", count - 1));
    match moment {
        Moment::StartUp => {}
        Moment::FirstInterval => after(50),
        Moment::Running => {
            require(recorder, "the second flush", || flushed(2).exists());
            after(500);
        }
        Moment::Held => {
            let cgroup = cgroup_of_recorder(recorder);
            after(300);
            assert!(stop_in(recorder, || is_frozen(&cgroup)));
        }
        Moment::BetweenHolds => {
            let cgroup = cgroup_of_recorder(recorder);
            after(300);
            require(recorder, "a hold", || is_frozen(&cgroup));
            require(recorder, "its end", || !is_frozen(&cgroup));
        }
        Moment::Flush => {
            after(100);
            assert!(stop_in(recorder, || is_being_written(&parts)));
            // Somewhere later in it, perhaps.
            if dice.roll().is_multiple_of(2) {
                recorder.signal(Signal::CONT);
                std::thread::sleep(dice.up_to(Duration::from_millis(3)));
            }
        }
        Moment::Merge => {
            require(recorder, "the first flush", || flushed(1).exists());
            signs.go();
            let merges = || signs.result.exists() && is_being_written(&trace);
            return stop_in(recorder, merges);
        }
    }
    true
}

/// Kills one; none where the moment was missed.
fn kill_once(
    moment: Moment,
    dice: &mut Dice,
    expected: &dyn Fn(&str) -> String,
) -> Option<Outcome> {
    let stage = Stage::new();
    let (mib, interval, max_hold) = match moment {
        Moment::Held => ("96", "10ms", "10s"),
        Moment::BetweenHolds => ("96", "10ms", "200us"),
        _ => ("8", "20ms", "10ms"),
    };
    let signs = Signs::of(&stage);
    let options = ["--interval", interval, "--max-hold", max_hold];
    let mut recorder = stage.start(stage.record_actor(&options, &signs.arguments(mib)));
    let pid = recorder.pid();
    let hit = await_moment(&stage, &signs, &mut recorder, moment, dice);
    let trace = stage.path("trace.varve");
    let flushed = whole_parts(&trace);
    recorder.signal(Signal::KILL);
    // The recorder is dead, and the target is to run on, whatever held it.
    let ended = recorder.end();
    signs.go();

    // Only what was never started may be missing; nothing may be left of either.
    stage.require_clean(pid);
    let has_started = signs.started.exists();
    if has_started {
        let sum = fs::read_to_string(&signs.result)
            .unwrap_or_else(|e| panic!("the target did not end: {e}; {}", ended.stderr));
        assert_eq!(sum, expected(mib), "the target went wrong");
        let printed = fs::read_to_string(ended.output()).expect("its output");
        assert_eq!(printed, sum);
    }
    let contents = trace
        .join("manifest.json")
        .exists()
        .then(|| check_trace(&trace).unwrap_or_else(|e| panic!("the trace cannot be read: {e}")));
    assert!(
        contents.is_some() || !has_started,
        "the target ran and there is no trace"
    );
    if let Some(contents) = &contents {
        require_flushed(&trace, contents, moment, &flushed);
    }
    hit.then(|| Outcome {
        moment,
        started: has_started,
        state: contents.map(|c| c.state),
    })
}

/// The names of what was written as a whole.
fn whole_parts(trace: &Path) -> Vec<String> {
    let entries = fs::read_dir(trace.join("parts")).into_iter().flatten();
    let names = entries
        .flatten()
        .map(|e| e.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.ends_with(".parquet")).collect()
}

/// What was flushed is there, and what was not is less than a flush: the recorder writes at the first turn at which that
/// time is over, of the turn before it may still close an interval, and so may the one that flushes.
fn require_flushed(trace: &Path, contents: &Contents, moment: Moment, flushed: &[String]) {
    assert!(
        contents.touches > 0 || contents.intervals.is_empty(),
        "intervals without touches"
    );
    // From there on parts are taken away, as they are merged.
    if moment == Moment::Merge {
        assert!(!contents.intervals.is_empty());
        return;
    }
    let after = whole_parts(trace);
    for part in flushed {
        assert!(after.contains(part), "{part} is gone: {after:?}");
    }
    let parts = intervals_by_part(trace).expect("the parts can be read");
    assert_eq!(parts.concat(), contents.intervals);
    if moment == Moment::Running {
        assert!(parts.len() >= 2, "{} flushes", parts.len());
    }
    for part in parts.iter().skip(1) {
        let [first, .., last, _, _] = part.as_slice() else {
            continue;
        };
        let held_back = last.end_ns.0.saturating_sub(first.end_ns.0);
        assert!(held_back < FLUSH_NS, "{moment:?}: {held_back} ns in a part");
    }
}

/// What the target prints without a recorder.
fn unrecorded(mib: &str) -> String {
    let stage = Stage::new();
    let signs = Signs::of(&stage);
    signs.go();
    let alone = stage.actor(&signs.arguments(mib));
    stage.run(alone).require(0).text()
}

#[test]
fn the_target_and_the_trace_survive_the_recorder() {
    let seed = seed();
    println!("FAULTS_SEED={seed}");
    actor();
    let (small, large) = (unrecorded("8"), unrecorded("96"));
    let expected = |mib: &str| if mib == "8" { &small } else { &large }.clone();
    let next = AtomicUsize::new(0);
    let missed = AtomicUsize::new(0);
    let outcomes = Mutex::new(Vec::new());
    let failures = Mutex::new(Vec::new());
    let kill = |i: usize| {
        let mut dice = Dice(seed.wrapping_add(i as u64 * 0x9E37_79B9_7F4A_7C15) | 1);
        let moment = MOMENTS[i % MOMENTS.len()];
        for _ in 0..MAX_MISSED {
            if let Some(outcome) = kill_once(moment, &mut dice, &expected) {
                return outcome;
            }
            missed.fetch_add(1, Ordering::Relaxed);
        }
        panic!("{moment:?} was never met");
    };
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    if i >= KILLS {
                        return;
                    }
                    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| kill(i))) {
                        Ok(outcome) => outcomes.lock().expect("outcomes").push(outcome),
                        Err(_) => failures.lock().expect("failures").push(i),
                    }
                }
            });
        }
    });
    let outcomes = outcomes.into_inner().expect("outcomes");
    println!("{} merges were missed", missed.into_inner());
    for moment in MOMENTS {
        let of = || outcomes.iter().filter(|o| o.moment == moment);
        println!(
            "{moment:?}: {} kills, {} targets had started, {} traces were whole",
            of().count(),
            of().filter(|o| o.started).count(),
            of().filter(|o| o.state == Some(varve_trace::State::Finished))
                .count(),
        );
    }
    let failures = failures.into_inner().expect("failures");
    assert!(failures.is_empty(), "seed {seed}: {failures:?}");
}

/// How often other recorders of this machine may have been quicker.
const MAX_OVERTAKEN: usize = 20;

#[test]
fn a_leftover_frozen_cgroup_is_found_by_the_next_recorder() {
    a_leftover_frozen_cgroup(|next| {
        next.run(next.record(&[], &["true"])).require(0);
    });
}

#[test]
fn a_leftover_frozen_cgroup_is_found_by_the_doctor() {
    let found = (0..MAX_OVERTAKEN).any(|_| {
        let mut found = false;
        a_leftover_frozen_cgroup(|next| {
            let mut doctor = next.command(varve_faults::varve_binary());
            doctor.args(["doctor", "--clean"]);
            let said = next.run(doctor).require(0).text();
            let line = said.lines().find(|l| l.contains("leftovers"));
            found = line.is_some_and(|l| l.contains("varve-"));
        });
        found
    });
    assert!(found, "it says nothing of what it cleans up");
}

/// Leaves a frozen target whose recorder and watchdog are dead, has `clean` clean up, and looks. Every recorder that
/// starts on this machine cleans up, one of another test's too.
fn a_leftover_frozen_cgroup(clean: impl FnOnce(&Stage)) {
    let stage = Stage::new();
    let started = stage.path("started");
    let arguments = ["serve", started.to_str().expect("a plain path")];
    let mut recorder = stage.start(stage.record_actor(&["--interval", "10ms"], &arguments));
    require(&mut recorder, "its target began", || started.exists());
    let cgroup = cgroup_of_recorder(&mut recorder);
    // As if it had been killed between freeze and thaw.
    assert!(recorder.stop());
    for watchdog in watchdogs(recorder.pid()) {
        let id = rustix::process::Pid::from_raw(watchdog as i32).expect("a watchdog");
        let _ = rustix::process::kill_process(id, Signal::KILL);
    }
    fs::write(cgroup.join("cgroup.freeze"), "1").expect("frozen");
    let stands =
        || fs::read_to_string(cgroup.join("cgroup.events")).is_ok_and(|t| t.contains("frozen 1"));
    assert!(patiently(stands), "the test's own premise");
    let beats = stage.path("started.beats");
    let before = fs::read(&beats).expect("beats");
    recorder.signal(Signal::KILL);
    let pid = recorder.end().pid;

    let next = Stage::new();
    clean(&next);
    let is_gone = patiently(|| recorder_cgroups(pid).is_empty());
    assert!(is_gone, "the cgroup is still there");
    let are_gone = patiently(|| ring_folders(pid).is_empty());
    assert!(are_gone, "the rings are still there");
    assert!(patiently(|| fs::read(&beats).expect("beats") != before));
}
