//! What recording costs: it is measured, stated, and kept to what was asked.

use varve_faults::Stage;
use varve_model::{Duration, Time};
use varve_trace::tables::{CounterRow, IntervalRow, SampleRow};
use varve_trace::{Overhead, Trace};
use varve_trust::program;

/// A hold takes tens of milliseconds with so much memory.
const MIB: &str = "1500";

struct Recorded {
    /// Where the trace lies.
    _stage: Stage,
    trace: Trace,
    said: String,
    intervals: Vec<IntervalRow>,
}

fn record(options: &[&str], milliseconds: &str) -> Recorded {
    let stage = Stage::new();
    let program = program("resident");
    let command = [program.to_str().unwrap(), MIB, milliseconds];
    let options = [&["--thp", "never"], options].concat();
    let ended = stage.run(stage.record(&options, &command)).require(0);
    let trace = Trace::open(&stage.path("trace.varve")).unwrap();
    Recorded {
        intervals: trace.rows().unwrap(),
        said: ended.stderr,
        trace,
        _stage: stage,
    }
}

impl Recorded {
    fn overhead(&self) -> Overhead {
        self.trace.manifest.overhead
    }

    /// The share of the recording in which the program was held by choice: the first hold and the last are there whatever the
    /// interval is, and a machine that stands still in the middle of a hold makes that one longer. So each of the others counts
    /// as their median.
    fn held(&self) -> f64 {
        let chosen = &self.intervals[1..self.intervals.len() - 1];
        let mut holds: Vec<u64> = chosen.iter().map(|i| i.held_ns.0).collect();
        holds.sort_unstable();
        let median = holds.get(holds.len() / 2).copied().unwrap_or(0);
        let clock = self.trace.manifest.clock;
        (median * holds.len() as u64) as f64 / (clock.end_ns - clock.start_ns).0 as f64
    }

    /// How long each interval was and was held, in milliseconds.
    fn lengths(&self) -> Vec<(u64, u64)> {
        let of = |i: &IntervalRow| {
            (
                (i.end_ns - i.start_ns).0 / 1_000_000,
                i.held_ns.0 / 1_000_000,
            )
        };
        self.intervals.iter().map(of).collect()
    }

    /// CPU time that the program had used when that was last read, and when that was: before the last interval, at whose end
    /// it is gone.
    fn cpu_time(&self) -> (Duration, Time) {
        let rows: Vec<CounterRow> = self.trace.rows().unwrap();
        let last = |name: &str| rows.iter().rev().filter(|r| r.name == name).nth(1).unwrap();
        let (user, system) = (last("user_ns"), last("system_ns"));
        (Duration((user.value + system.value) as u64), user.time_ns)
    }

    fn longest(&self) -> Duration {
        let length = |i: &IntervalRow| i.end_ns - i.start_ns;
        self.intervals.iter().map(length).max().unwrap()
    }
}

/// At most so much of the recording may be held where 5 % of cost are asked for: first accesses and samples have their part too.
const MAX_HELD: f64 = 0.06;
/// All memory is cleared in one hold, whatever of it was accessed.
const WHOLE: [&str; 2] = ["--max-hold", "10s"];

/// What the program costs where no budget chooses the interval.
fn at_a_fixed_interval() -> Recorded {
    let fixed = ["--interval", "50ms", "--samples", "off"];
    record(&[&WHOLE[..], &fixed].concat(), "3000")
}

/// The negative control of the two tests below.
#[test]
fn a_fixed_interval_is_held_more_than_is_asked() {
    let fixed = at_a_fixed_interval();
    assert!(fixed.held() > 0.10, "{:?}", fixed.lengths());
    assert!(fixed.said.contains("cost: measured "), "{}", fixed.said);
}

/// The program runs long enough for several intervals on a machine where a hold takes long too.
#[test]
fn intervals_grow_where_holds_would_cost_too_much() {
    let fixed = at_a_fixed_interval().lengths();
    let hold = fixed.iter().map(|(_, held)| held).max().unwrap();
    let kept = record(&WHOLE, &(150 * hold).clamp(6_000, 40_000).to_string());
    assert!(kept.held() < MAX_HELD, "{:?}", kept.lengths());
    let longest = kept.longest();
    assert!(longest > Duration(200_000_000), "{:?}", kept.lengths());
}

#[test]
fn holds_in_parts_cost_what_is_asked_too() {
    let in_parts = record(&[], "6000");
    assert!(in_parts.held() < MAX_HELD, "{:?}", in_parts.lengths());
}

#[test]
fn what_recording_costs_is_said_by_its_parts() {
    let kept = record(&[], "3000");
    let said = &kept.said;
    assert!(said.contains("cost: asked 5.0 %, measured "), "{said}");
    let cost = kept.overhead();
    assert!(cost.first_accesses_ns > Duration(0), "{cost:?}");
    assert!(cost.samples_ns > Duration(0), "{cost:?}");
}

/// Samples may take two fifths of what is permitted: of a tenth of a percent that is next to nothing.
#[test]
fn fewer_samples_are_taken_where_they_would_cost_too_much() {
    let options = ["--interval", "500ms"];
    let many = record(&options, "3000");
    let few = record(&[&options[..], &["--overhead", "0.1%"]].concat(), "3000");
    let forced = ["--overhead", "0.1%", "--samples", "1000/s"];
    let forced = record(&[&options[..], &forced].concat(), "3000");
    let rate = |recorded: &Recorded| recorded.trace.manifest.samples.unwrap().least_rate;
    assert_eq!(rate(&forced), 1000);
    assert!(rate(&few) < 200, "{}", rate(&few));
    assert!(rate(&few) <= rate(&many));
    for (recorded, chosen) in [(&many, true), (&few, true), (&forced, false)] {
        let note = recorded.trace.manifest.samples.unwrap();
        assert_eq!(note.by_overhead, chosen);
        // A mean lies between the least and the most, but for the rounding of the timer.
        let (least, most) = (f64::from(note.least_rate), f64::from(note.rate));
        let mean = f64::from(note.mean_rate);
        assert!(mean > 0.9 * least && mean < 1.1 * most, "{note:?}");
    }
    // A sample stands for the time since the one before it, whatever the rate.
    for recorded in [&many, &few, &forced] {
        let (used, until) = recorded.cpu_time();
        let mut rows: Vec<SampleRow> = recorded.trace.rows().unwrap();
        rows.retain(|row| row.time_ns <= until);
        let weight: u64 = rows.iter().filter_map(|r| r.weight_ns).map(|w| w.0).sum();
        let share = weight as f64 / used.0 as f64;
        // The timer goes on while the hypervisor runs somebody else, and CPU time does not. Where others want the CPU too, which of
        // few moments are the program's is chance: four standard deviations. A rate that is not followed is off by its factor.
        let chance = 4.0 / (rows.len() as f64).sqrt();
        let off = (share - 1.0).abs();
        assert!(off < 0.3 + chance, "{share} of {}", rows.len());
    }
}

/// What nobody measured is named, where it matters.
#[test]
fn the_beginnings_of_many_processes_are_said_to_be_left_out() {
    let said = |script: &str| {
        let stage = Stage::new();
        let ended = stage.run(stage.record(&[], &["sh", "-c", script]));
        ended.require(0).stderr
    };
    let many = said("for i in $(seq 60); do /bin/true; done; sleep 0.2");
    assert!(
        many.contains("not in it: most of the beginnings and ends of 6"),
        "{many}"
    );
    let few = said("/bin/true; sleep 1");
    assert!(!few.contains("not in it"), "{few}");
}
