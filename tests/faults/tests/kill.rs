//! `kill -9` of the recorder at 200 random moments, and of its watchdog too.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use varve_faults::{
    Contents, Running, Stage, Witness, actor, check_trace, is_frozen, monotonic_ns, patiently,
    recorder_cgroups, watchdogs,
};

/// How many recorders are killed.
const KILLS: usize = 200;
/// How many at a time: the machine is to be busy, not swamped.
const AT_ONCE: usize = 4;
/// What is promised to survive.
const FLUSH_NS: u64 = 600_000_000;

/// A recorder cleans up after dead ones as it starts: a test that leaves something for one to find must not
/// meet the recorders of another.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

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
    /// Whether the state that the kill aims at was seen when it was sent.
    hit: bool,
    started: bool,
    state: Option<varve_trace::State>,
}

fn wait_until(recorder: &mut Running, mut come: impl FnMut() -> bool) -> bool {
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(20) && !recorder.has_ended() {
        if come() {
            return true;
        }
        std::thread::sleep(Duration::from_micros(100));
    }
    false
}

fn is_being_written(folder: &Path) -> bool {
    fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .any(|e| e.path().extension().is_some_and(|x| x == "new"))
}

fn cgroup_of_recorder(recorder: &mut Running) -> Option<PathBuf> {
    let pid = recorder.pid();
    let mut found = None;
    wait_until(recorder, || {
        found = recorder_cgroups(pid).pop();
        found.is_some()
    });
    found
}

/// Waits for the moment; tells whether it was met.
fn await_moment(stage: &Stage, recorder: &mut Running, moment: Moment, dice: &mut Dice) -> bool {
    let started = stage.path("started");
    let trace = stage.path("trace.varve");
    let after_start = |recorder: &mut Running| wait_until(recorder, || started.exists());
    match moment {
        Moment::StartUp => {
            std::thread::sleep(dice.up_to(Duration::from_millis(500)));
            true
        }
        Moment::FirstInterval => {
            let hit = after_start(recorder);
            std::thread::sleep(dice.up_to(Duration::from_millis(50)));
            hit
        }
        Moment::Running => {
            let hit = after_start(recorder);
            std::thread::sleep(dice.up_to(Duration::from_millis(900)));
            hit && !recorder.has_ended()
        }
        Moment::Held => {
            let hit = after_start(recorder);
            let cgroup = cgroup_of_recorder(recorder);
            std::thread::sleep(dice.up_to(Duration::from_millis(300)));
            hit && cgroup.is_some_and(|c| wait_until(recorder, || is_frozen(&c)))
        }
        Moment::BetweenHolds => {
            let hit = after_start(recorder);
            let cgroup = cgroup_of_recorder(recorder);
            std::thread::sleep(dice.up_to(Duration::from_millis(300)));
            hit && cgroup.is_some_and(|c| {
                wait_until(recorder, || is_frozen(&c)) && wait_until(recorder, || !is_frozen(&c))
            })
        }
        Moment::Flush => {
            after_start(recorder);
            let parts = trace.join("parts");
            std::thread::sleep(dice.up_to(Duration::from_millis(100)));
            let hit = wait_until(recorder, || is_being_written(&parts));
            std::thread::sleep(dice.up_to(Duration::from_millis(3)));
            hit
        }
        Moment::Merge => {
            let hit = wait_until(recorder, || {
                is_being_written(&trace) && stage.path("result").exists()
            });
            std::thread::sleep(dice.up_to(Duration::from_millis(30)));
            hit
        }
    }
}

fn kill_once(moment: Moment, dice: &mut Dice, expected: &dyn Fn(&str) -> String) -> Outcome {
    let stage = Stage::new();
    let (mib, interval, max_hold) = match moment {
        Moment::Held => ("96", "10ms", "10s"),
        Moment::BetweenHolds => ("96", "10ms", "200us"),
        _ => ("8", "20ms", "10ms"),
    };
    let started = stage.path("started");
    let result = stage.path("result");
    let arguments = [
        "checksum",
        mib,
        "40",
        started.to_str().expect("a plain path"),
        result.to_str().expect("a plain path"),
    ];
    let witness = Witness::start(stage.folder().to_owned());
    let mut recorder = stage.start(stage.record_actor(
        &["--interval", interval, "--max-hold", max_hold],
        &arguments,
    ));
    let pid = recorder.pid();
    let hit = await_moment(&stage, &mut recorder, moment, dice);
    recorder.signal(Signal::KILL);
    let killed = monotonic_ns();
    // A target that has ended has no further intervals: its recorder may be long at its tables.
    let ended_ago = fs::metadata(&result).and_then(|m| m.modified()).ok();
    let ended_ago = ended_ago.and_then(|at| at.elapsed().ok());
    let worked = killed.saturating_sub(ended_ago.map_or(0, |ago| ago.as_nanos() as u64));
    let late = witness.latest_ns();
    drop(witness);
    let ended = recorder.end();

    // Only what was never started may be missing; nothing may be left of either.
    stage.require_clean(pid);
    let has_started = started.exists();
    if has_started {
        let sum = fs::read_to_string(&result)
            .unwrap_or_else(|e| panic!("the target did not end: {e}; {}", ended.stderr));
        assert_eq!(sum, expected(mib), "the target went wrong");
        let printed = fs::read_to_string(ended.output()).expect("its output");
        assert_eq!(printed, sum);
    }
    let trace = stage.path("trace.varve");
    let contents = trace
        .join("manifest.json")
        .exists()
        .then(|| check_trace(&trace).unwrap_or_else(|e| panic!("the trace cannot be read: {e}")));
    assert!(
        contents.is_some() || !has_started,
        "the target ran and there is no trace"
    );
    if let Some(contents) = &contents {
        require_flushed(contents, moment, worked, late);
    }
    Outcome {
        moment,
        hit,
        started: has_started,
        state: contents.map(|c| c.state),
    }
}

/// What the target did longer than a flush before the kill, or before its end, is there. How late the recorder itself was scheduled by a
/// busy machine shows in its intervals, and in what befell a witness.
fn require_flushed(contents: &Contents, moment: Moment, worked: u64, late: u64) {
    let (Some(first), Some(last)) = (contents.intervals.first(), contents.intervals.last()) else {
        return;
    };
    assert!(contents.touches > 0, "intervals without touches");
    if moment == Moment::Merge {
        return;
    }
    let slowest = contents.intervals.iter();
    let slowest = slowest
        .map(|i| i.end_ns.0 - i.start_ns.0)
        .max()
        .unwrap_or(0);
    let promised = worked.saturating_sub(FLUSH_NS + 2 * slowest + late);
    assert!(
        last.end_ns.0 >= promised || first.start_ns.0 >= promised,
        "{moment:?}: recorded until {} ms before the kill or the target's end; the slowest interval took {} ms, a witness was {} ms late",
        worked.saturating_sub(last.end_ns.0) / 1_000_000,
        slowest / 1_000_000,
        late / 1_000_000,
    );
}

/// What the target prints when nobody records it.
fn unrecorded(mib: &str) -> String {
    let stage = Stage::new();
    let started = stage.path("started");
    let result = stage.path("result");
    let arguments = [
        "checksum",
        mib,
        "40",
        started.to_str().expect("a plain path"),
        result.to_str().expect("a plain path"),
    ];
    stage.run(stage.actor(&arguments)).require(0).text()
}

#[test]
fn the_target_and_the_trace_survive_the_recorder() {
    let _alone = alone();
    let seed = seed();
    println!("FAULTS_SEED={seed}");
    actor();
    let (small, large) = (unrecorded("8"), unrecorded("96"));
    let expected = |mib: &str| if mib == "8" { &small } else { &large }.clone();
    let next = AtomicUsize::new(0);
    let outcomes = Mutex::new(Vec::new());
    let failures = Mutex::new(Vec::new());
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    if i >= KILLS {
                        return;
                    }
                    let mut dice = Dice(seed.wrapping_add(i as u64 * 0x9E37_79B9_7F4A_7C15) | 1);
                    let moment = MOMENTS[i % MOMENTS.len()];
                    let kill = || kill_once(moment, &mut dice, &expected);
                    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(kill)) {
                        Ok(outcome) => outcomes.lock().expect("outcomes").push(outcome),
                        Err(_) => failures.lock().expect("failures").push((i, moment)),
                    }
                }
            });
        }
    });
    let outcomes = outcomes.into_inner().expect("outcomes");
    println!("{} kills in {:.0?}", outcomes.len(), began.elapsed());
    for moment in MOMENTS {
        let of = || outcomes.iter().filter(|o| o.moment == moment);
        println!(
            "{moment:?}: {} kills, {} at the very moment, {} targets had started, {} traces were whole",
            of().count(),
            of().filter(|o| o.hit).count(),
            of().filter(|o| o.started).count(),
            of().filter(|o| o.state == Some(varve_trace::State::Finished))
                .count(),
        );
        // A suite that never meets the moment that it aims at shows nothing.
        let hits = of().filter(|o| o.hit).count();
        assert!(hits * 2 >= of().count(), "{moment:?} was met {hits} times");
    }
    let failures = failures.into_inner().expect("failures");
    assert!(failures.is_empty(), "seed {seed}: {failures:?}");
}

#[test]
fn a_leftover_frozen_cgroup_is_found_by_the_next_recorder() {
    a_leftover_frozen_cgroup(|next| {
        next.run(next.record(&[], &["true"])).require(0);
    });
}

#[test]
fn a_leftover_frozen_cgroup_is_found_by_the_doctor() {
    a_leftover_frozen_cgroup(|next| {
        let mut doctor = next.command(varve_faults::varve_binary());
        doctor.args(["doctor", "--clean"]);
        let said = next.run(doctor).require(0).text();
        let line = said.lines().find(|l| l.contains("leftovers"));
        assert!(line.is_some_and(|l| l.contains("varve-")), "{said}");
    });
}

/// Leaves a frozen target whose recorder and watchdog are dead, has `clean` clean up, and looks.
fn a_leftover_frozen_cgroup(clean: impl FnOnce(&Stage)) {
    let _alone = alone();
    let stage = Stage::new();
    let started = stage.path("started");
    let arguments = ["serve", started.to_str().expect("a plain path")];
    let mut recorder = stage.start(stage.record_actor(&["--interval", "10ms"], &arguments));
    assert!(wait_until(&mut recorder, || started.exists()));
    let cgroup = cgroup_of_recorder(&mut recorder).expect("a cgroup");
    recorder.signal(Signal::STOP);
    for watchdog in watchdogs(recorder.pid()) {
        let id = rustix::process::Pid::from_raw(watchdog as i32).expect("a watchdog");
        let _ = rustix::process::kill_process(id, Signal::KILL);
    }
    recorder.signal(Signal::KILL);
    let pid = recorder.end().pid;
    fs::write(cgroup.join("cgroup.freeze"), "1").expect("frozen");
    assert!(is_frozen(&cgroup), "the test's own premise");
    let beats = stage.path("started.beats");
    std::thread::sleep(Duration::from_millis(50));
    let before = fs::read(&beats).expect("beats");
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(before, fs::read(&beats).expect("beats"), "it is frozen");

    let next = Stage::new();
    clean(&next);
    assert!(
        recorder_cgroups(pid).is_empty(),
        "the cgroup is still there"
    );
    assert!(
        varve_faults::ring_folders(pid).is_empty(),
        "the rings are still there"
    );
    assert!(patiently(|| fs::read(&beats).expect("beats") != before));
}
