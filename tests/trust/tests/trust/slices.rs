//! `--max-hold`: memory is read and cleared in as many holds as it takes, and nothing is lost or invented for it. How long a hold is
//! in the end is the machine's too, and a benchmark, `goals`.

use std::collections::BTreeMap;
use std::fs;

use varve_faults::{Stage, monotonic_ns, patiently};
use varve_model::{Duration, TouchSource};
use varve_trace::Trace;
use varve_trace::tables::{IntervalRow, TouchRow};
use varve_trust::{program, unless_reclaimed, wait_for_flushes};

/// What was recorded, and from when to when it was certain to be recorded: nanoseconds.
struct Recorded {
    /// Where the trace lies.
    _stage: Stage,
    trace: Trace,
    from: u64,
    to: u64,
}

/// Records a program until it is `ready` and whole intervals have passed; `goes_on` waits until it has done what there is to be seen.
fn record(
    name: &str,
    options: &[&str],
    arguments: &[&str],
    ready: impl Fn(&Stage) -> bool,
    goes_on: impl Fn(&Stage),
) -> Recorded {
    let once = || {
        let stage = Stage::new();
        let program = program(name);
        let command = [&[program.to_str().unwrap()], arguments].concat();
        let fixed = ["--thp", "never", "--hold", "cgroup", "--interval", "500ms"];
        let options = [&fixed, options].concat();
        let recorder = stage.start(stage.record(&options, &command));
        assert!(patiently(|| ready(&stage)), "{}", recorder.messages());
        let from = monotonic_ns();
        // One more, whose beginning was between two that were whole.
        wait_for_flushes(&stage, &recorder, "intervals", 4);
        goes_on(&stage);
        wait_for_flushes(&stage, &recorder, "intervals", 3);
        let to = monotonic_ns();
        fs::write(stage.path("over"), "").unwrap();
        recorder.end().require(0);
        let trace = Trace::open(&stage.path("trace.varve")).unwrap();
        Recorded {
            _stage: stage,
            trace,
            from,
            to,
        }
    };
    let recorded = unless_reclaimed(once, |recorded| Some(&recorded.trace));
    let manifest = &recorded.trace.manifest;
    assert!(manifest.completeness.complete, "{:?}", manifest.losses);
    recorded
}

impl Recorded {
    /// Intervals at whose end the target lived.
    fn whole(&self) -> Vec<IntervalRow> {
        let rows: Vec<IntervalRow> = self.trace.rows().unwrap();
        rows.into_iter().filter(|i| i.resident_pages > 0).collect()
    }

    /// Those in which all was certain to go on. What is accessed while the memory is cleared in parts counts for the interval before and
    /// for the one after, so that of the latter that time is looked at too.
    fn middle(&self) -> Vec<IntervalRow> {
        let rows = self.whole();
        let is_middle = |pair: &&[IntervalRow]| {
            let begins = pair[1].start_ns.0 - pair[0].overlap_ns.0;
            begins >= self.from && pair[1].end_ns.0 <= self.to
        };
        let found: Vec<_> = rows.windows(2).filter(is_middle).collect();
        assert!(!found.is_empty(), "{rows:#?}");
        found.into_iter().map(|pair| pair[1].clone()).collect()
    }
}

/// The negative control is the longer limit: then one hold is as long as it takes. No machine reads and clears this memory within the
/// shorter one: it would be seven nanoseconds a page.
#[test]
fn holds_are_as_many_as_the_limit_takes() {
    const ASKED: Duration = Duration(1_000_000);
    const MIB: &str = "512";
    let limited = |limit: &str| {
        let options = ["--max-hold", limit];
        let begun = |stage: &Stage| stage.path("begun").exists();
        record("resident", &options, &[MIB], begun, |_| ())
    };
    let recorded = limited("1ms");
    let short = recorded.middle();
    assert!(short.iter().all(|i| i.holds > 1), "{short:#?}");
    for i in &recorded.whole() {
        assert!(i.held_ns >= i.longest_hold_ns, "{i:?}");
        assert!(i.holds < 2 || i.overlap_ns > i.held_ns, "{i:?}");
    }
    // Whatever the machine made of it is said.
    let is_long = |i: &IntervalRow| i.longest_hold_ns > ASKED;
    let too_long = recorded.whole().iter().any(is_long);
    let notes = &recorded.trace.manifest.notes;
    let is_said = notes.iter().any(|note| note.contains("--max-hold"));
    assert!(is_said || !too_long, "{notes:?}");
    let long = limited("60s").whole();
    assert!(long.iter().all(|i| i.holds == 1), "{long:#?}");
}

const PROCESSES: usize = 4;

/// How often each of the processes that share memory has touched its part.
fn rounds(stage: &Stage) -> Vec<u64> {
    let bytes = fs::read(stage.path("rounds")).unwrap_or_default();
    let words = bytes.chunks_exact(8);
    words
        .map(|w| u64::from_ne_bytes(w.try_into().unwrap()))
        .collect()
}

/// The kernel clears no part of shared memory: each process is cleared by itself.
#[test]
fn shared_memory_is_cleared_by_process() {
    const PAGES: u64 = 256 << 8;
    let all_have = |stage: &Stage, least: &[u64]| {
        let now = rounds(stage);
        now.len() == PROCESSES && now.iter().zip(least).all(|(now, least)| now >= least)
    };
    let recorded = record(
        "sharing",
        &["--max-hold", "2ms"],
        &["256", "4"],
        |stage| all_have(stage, &[1; PROCESSES]),
        |stage| {
            // The second end is that of a round that began after now.
            let next: Vec<u64> = rounds(stage).iter().map(|n| n + 2).collect();
            assert!(patiently(|| all_have(stage, &next)));
        },
    );
    let intervals = recorded.middle();
    let most = intervals.iter().map(|i| i.holds).max().unwrap();
    assert!(most as usize > PROCESSES, "{intervals:#?}");
    let rows: Vec<TouchRow> = recorded.trace.rows().unwrap();
    let mut users = BTreeMap::new();
    for interval in &intervals {
        let mut touched: BTreeMap<_, (u64, u64)> = BTreeMap::new();
        for row in rows.iter().filter(|row| row.interval == interval.interval) {
            let of = touched.entry(row.pid).or_default();
            of.0 += u64::from(row.pages);
            if row.source == TouchSource::Sticky {
                of.1 += u64::from(row.pages);
            }
        }
        for (pid, (all, sticky)) in touched {
            assert!(all < PAGES / 8, "{pid} {all} in {interval:?}");
            assert!(sticky < 512, "libraries at most: {pid} {sticky}");
            *users.entry(pid).or_insert(0) += all;
        }
    }
    // A whole round of each lies in these intervals.
    users.retain(|_, pages| *pages >= PAGES / 16);
    assert_eq!(users.len(), PROCESSES, "{users:?}");
}
