//! What recording costs: it is measured, stated, and kept to what was asked. How long holds are is the machine's; that an interval is
//! as long as it takes to pay for the holds before it is not. How the choice is made of made-up prices is tested with the chooser,
//! in `varve-record`; what comes of it in shares of the time is a benchmark, `goals`.

use std::fs;

use varve_faults::{Stage, patiently};
use varve_model::{Bytes, Duration};
use varve_trace::tables::{IntervalRow, ProcessRow, SampleRow};
use varve_trace::{Overhead, Trace};
use varve_trust::{program, wait_for_flushes};

/// A hold takes at least half a millisecond with so much memory: 131,072 entries of page tables, at four nanoseconds each.
const MIB: &str = "512";
/// The permitted overhead where none is given.
const PERMITTED: f64 = 0.05;

struct Recorded {
    /// Where the trace lies.
    _stage: Stage,
    trace: Trace,
    said: String,
    intervals: Vec<IntervalRow>,
}

/// Records a program of so many MiB until these tables were flushed so many times.
fn record(options: &[&str], mib: &str, tables: &[&str], flushes: usize) -> Recorded {
    let stage = Stage::new();
    let program = program("resident");
    let options = [&["--thp", "never"], options].concat();
    let recorder = stage.start(stage.record(&options, &[program.to_str().unwrap(), mib]));
    let begun = stage.path("begun");
    assert!(patiently(|| begun.exists()), "{}", recorder.messages());
    for table in tables {
        wait_for_flushes(&stage, &recorder, table, flushes);
    }
    fs::write(stage.path("over"), "").unwrap();
    let ended = recorder.end().require(0);
    let trace = Trace::open(&stage.path("trace.varve")).unwrap();
    Recorded {
        intervals: trace.rows().unwrap(),
        said: ended.stderr,
        trace,
        _stage: stage,
    }
}

/// The intervals that ended before the holds before them were paid for, by their numbers: what was held up to the beginning of an
/// interval is to be no more than its permitted share of the time up to its end. All else that recording costs makes
/// intervals longer still. The last one ends with the program.
fn unpaid(intervals: &[IntervalRow], overhead: f64) -> Vec<u32> {
    let share = overhead / (1.0 + overhead);
    let (mut held, mut lead) = (0, 0);
    let mut found = Vec::new();
    let Some((_, chosen)) = intervals.split_last() else {
        return found;
    };
    for interval in chosen {
        // An end of several holds begins earlier, by what the one before it took; and half of each nanosecond is rounded.
        let time = (interval.end_ns - intervals[0].start_ns).0 + lead + 1000;
        if held as f64 > share * time as f64 {
            found.push(interval.interval.0);
        }
        held += interval.held_ns.0;
        lead = interval.overlap_ns.0;
    }
    found
}

fn require_paid(recorded: &Recorded) {
    let intervals = &recorded.intervals;
    assert!(intervals.len() > 2, "{intervals:#?}");
    // Longer than a minute no interval is made, whatever it owes.
    let longest = intervals.iter().map(|i| i.end_ns - i.start_ns).max();
    assert!(longest < Some(Duration(60_000_000_000)), "{intervals:#?}");
    let unpaid = unpaid(intervals, PERMITTED);
    assert!(unpaid.is_empty(), "{unpaid:?} of {intervals:#?}");
}

/// All memory is cleared in one hold, whatever of it was accessed.
const WHOLE: [&str; 2] = ["--max-hold", "60s"];

/// The negative control of the two tests below.
#[test]
fn at_a_fixed_interval_holds_are_not_paid_for() {
    let fixed = ["--interval", "10ms", "--samples", "off"];
    let fixed = record(&[&WHOLE[..], &fixed].concat(), MIB, &["intervals"], 3);
    let unpaid = unpaid(&fixed.intervals, PERMITTED);
    assert!(!unpaid.is_empty(), "{:#?}", fixed.intervals);
    assert!(fixed.said.contains("cost: measured "), "{}", fixed.said);
}

#[test]
fn an_interval_ends_when_the_holds_before_it_are_paid_for() {
    let kept = record(&WHOLE, MIB, &["intervals"], 5);
    assert!(kept.intervals.iter().all(|i| i.holds <= 1));
    require_paid(&kept);
}

#[test]
fn holds_in_parts_are_paid_for_too() {
    let in_parts = record(&["--max-hold", "2ms"], MIB, &["intervals"], 5);
    assert!(in_parts.intervals.iter().any(|i| i.holds > 1));
    require_paid(&in_parts);
}

#[test]
fn what_recording_costs_is_said_by_its_parts() {
    let kept = record(&[], MIB, &["intervals", "samples"], 2);
    let said = &kept.said;
    assert!(said.contains("cost: asked 5.0 %, measured "), "{said}");
    let cost: Overhead = kept.trace.manifest.overhead;
    let held: u64 = kept.intervals.iter().map(|i| i.held_ns.0).sum();
    assert_eq!(cost.held_ns.0, held);
    assert!(cost.first_accesses_ns > Duration(0), "{cost:?}");
    assert!(cost.samples_ns > Duration(0), "{cost:?}");
    assert!(cost.recorder_peak_bytes > Bytes(0), "{cost:?}");
}

/// Samples may take a third of what is permitted: of a tenth of a percent that is next to nothing. A thousand of them a second would
/// have to take a third of a microsecond each.
#[test]
fn fewer_samples_are_taken_where_they_would_cost_too_much() {
    let fixed = ["--interval", "100ms"];
    let little = ["--overhead", "0.1%"];
    let forced = [&little[..], &["--samples", "1000/s"]].concat();
    for (options, chosen) in [(&little[..], true), (&forced, false)] {
        let options = [&fixed[..], options].concat();
        let recorded = record(&options, "64", &["intervals", "samples"], 3);
        let note = recorded.trace.manifest.samples.unwrap();
        assert_eq!(note.by_overhead, chosen);
        assert_eq!(note.rate, 1000, "{note:?}");
        assert_eq!(note.least_rate < 1000, chosen, "{note:?}");
        // A mean lies between the least and the most.
        let rates = note.least_rate..=note.rate;
        assert!(rates.contains(&note.mean_rate), "{note:?}");
        // A sample stands for the time since the one before it, whatever the rate.
        let rows: Vec<SampleRow> = recorded.trace.rows().unwrap();
        let period = |rate: u32| Duration(1_000_000_000 / u64::from(rate));
        let periods = period(note.rate)..=period(note.least_rate);
        for row in &rows {
            let weight = row.weight_ns.unwrap();
            assert!(periods.contains(&weight), "{row:?} of {note:?}");
        }
        let sum: u64 = rows.iter().filter_map(|r| r.weight_ns).map(|w| w.0).sum();
        assert_eq!((note.taken, note.time_ns.0), (rows.len() as u64, sum));
    }
}

/// What nobody measured is named, where it matters: where at 0.6 ms for each program it would be a hundredth of the time.
#[test]
fn the_beginnings_of_many_processes_are_said_to_be_left_out() {
    let said = |script: &str| {
        let stage = Stage::new();
        let ended = stage.run(stage.record(&[], &["sh", "-c", script]));
        let trace = Trace::open(&stage.path("trace.varve")).unwrap();
        let clock = trace.manifest.clock;
        let processes: Vec<ProcessRow> = trace.rows().unwrap();
        let matters = processes.len() as u64 * 60_000_000 > (clock.end_ns - clock.start_ns).0;
        (ended.require(0).stderr, processes.len(), matters)
    };
    let (many, programs, matters) = said("for i in $(seq 60); do /bin/true; done");
    assert!(programs > 60, "{programs}");
    let sentence = format!("not in it: most of the beginnings and ends of {programs} programs");
    assert_eq!(many.contains(&sentence), matters, "{many}");
    let (few, ..) = said("/bin/true; sleep 1");
    assert!(!few.contains("not in it"), "{few}");
}
