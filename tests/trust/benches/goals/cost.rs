//! Shares of the time: what a program with much memory is held, and what samples stand for.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use varve_faults::{Stage, patiently};
use varve_goals::Goals;
use varve_trace::Trace;
use varve_trace::tables::{CounterRow, IntervalRow, SampleRow};
use varve_trust::program;

/// A hold takes tens of milliseconds with so much memory.
const MIB: &str = "1500";
/// All memory is cleared in one hold, whatever of it was accessed.
const WHOLE: [&str; 2] = ["--max-hold", "10s"];

struct Recorded {
    /// Where the trace lies.
    _stage: Stage,
    trace: Trace,
    intervals: Vec<IntervalRow>,
}

/// Records a program that touches a thousandth of its memory over and over, for so long.
fn record(options: &[&str], seconds: u64) -> Recorded {
    let stage = Stage::new();
    let program = program("resident");
    let options = [&["--thp", "never"], options].concat();
    let recorder = stage.start(stage.record(&options, &[program.to_str().unwrap(), MIB]));
    let begun = stage.path("begun");
    assert!(patiently(|| begun.exists()), "{}", recorder.messages());
    sleep(Duration::from_secs(seconds));
    fs::write(stage.path("over"), "").unwrap();
    recorder.end().require(0);
    let trace = Trace::open(&stage.path("trace.varve")).unwrap();
    Recorded {
        intervals: trace.rows().unwrap(),
        trace,
        _stage: stage,
    }
}

impl Recorded {
    /// Percent of the recording in which the program was held by choice: the first hold and the last are there whatever the
    /// interval is, and a machine that stands still in the middle of a hold makes that one longer. So each of the others counts
    /// as their median.
    fn held(&self) -> f64 {
        let last = self.intervals.len().saturating_sub(1);
        let chosen = self.intervals.get(1..last).unwrap_or_default();
        let holds: Vec<f64> = chosen.iter().map(|i| i.held_ns.0 as f64).collect();
        let clock = self.trace.manifest.clock;
        let all = (clock.end_ns - clock.start_ns).0 as f64;
        match holds.is_empty() {
            true => 0.0,
            false => 100.0 * varve_goals::median(&holds) * holds.len() as f64 / all,
        }
    }

    /// Milliseconds of a hold on average, over intervals at whose end the target lived.
    fn mean_hold(&self) -> f64 {
        let whole = self.intervals.iter().filter(|i| i.resident_pages > 0);
        let (held, holds) = whole.fold((0, 0), |(held, holds), i| {
            (held + i.held_ns.0, holds + u64::from(i.holds))
        });
        held as f64 / holds as f64 / 1e6
    }

    /// By how many percent the time that samples stand for differs from the CPU time that the program had used when that was last
    /// read: before the last interval, at whose end it is gone.
    fn samples_off(&self) -> f64 {
        let rows: Vec<CounterRow> = self.trace.rows().unwrap();
        let last = |name: &str| rows.iter().rev().filter(|r| r.name == name).nth(1).unwrap();
        let (user, system) = (last("user_ns"), last("system_ns"));
        let used = (user.value + system.value) as f64;
        let samples: Vec<SampleRow> = self.trace.rows().unwrap();
        let until = samples.iter().filter(|row| row.time_ns <= user.time_ns);
        let weight: u64 = until.filter_map(|r| r.weight_ns).map(|w| w.0).sum();
        100.0 * (weight as f64 / used - 1.0).abs()
    }
}

/// Measures them.
pub(crate) fn measure(goals: &mut Goals) {
    let long = goals.rounds(12) as u64;
    // The control of the two that follow: there is something to be kept to.
    let name = "cost: time held where each interval has 50 ms";
    goals.at_least(name, "%", 10.0, || {
        let fixed = ["--interval", "50ms", "--samples", "off"];
        record(&[&WHOLE[..], &fixed].concat(), 3).held()
    });
    // First accesses and samples have their part of the five percent too.
    let name = "cost: time held where 5 % are permitted";
    goals.at_most(name, "%", 6.0, || record(&WHOLE, long).held());
    let name = "cost: time held in parts where 5 % are permitted";
    goals.at_most(name, "%", 6.0, || record(&[], long / 2).held());

    let fixed = ["--hold", "cgroup", "--interval", "500ms"];
    let limited = |limit: &str| {
        let options = [&fixed[..], &["--max-hold", limit]].concat();
        record(&options, 4).mean_hold()
    };
    let name = "holds: mean where 5 ms are permitted";
    goals.at_most(name, "ms", 5.0, || limited("5ms"));
    let name = "holds: mean where all is done in one";
    goals.at_least(name, "ms", 10.0, || limited("10s"));

    for (rate, options) in [
        ("1000/s", &["--samples", "1000/s"][..]),
        ("as many as 0.1 % permit", &["--overhead", "0.1%"]),
    ] {
        let name = format!("samples: error of the time they stand for, {rate}");
        goals.at_most(&name, "%", 30.0, || {
            record(&[&["--interval", "500ms"], options].concat(), 3).samples_off()
        });
    }
}
