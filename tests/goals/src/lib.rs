//! Figures of time, each with its goal: what `make bench-check` prints.
//!
//! Times depend on the machine and on its load, so no test judges one. A suite that has some keeps them in a
//! bench target without a harness:
//!
//! ```no_run
//! use varve_goals::Goals;
//!
//! let mut goals = Goals::from_arguments("trust");
//! let rounds = goals.rounds(5);
//! goals.at_most("hold: share of time held at 50 ms", "%", 6.0, || {
//!     let shares: Vec<f64> = (0..rounds).map(|_| 1.0).collect();
//!     varve_goals::median(&shares)
//! });
//! std::process::exit(goals.finish());
//! ```
//!
//! Arguments: `--smoke` runs everything once and judges nothing; any other word keeps the goals whose name
//! contains it.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The figures of one suite.
#[derive(Debug)]
pub struct Goals {
    suite: &'static str,
    smoke: bool,
    filter: Vec<String>,
    missed: usize,
    failed: usize,
}

impl Goals {
    /// Reads the arguments of the process and prints the machine.
    pub fn from_arguments(suite: &'static str) -> Self {
        let mut smoke = false;
        let mut filter = Vec::new();
        for argument in std::env::args().skip(1) {
            match argument.as_str() {
                "--smoke" => smoke = true,
                // Cargo adds it.
                "--bench" => {}
                _ => filter.push(argument),
            }
        }
        println!("{suite}: {}", machine());
        Goals {
            suite,
            smoke,
            filter,
            missed: 0,
            failed: 0,
        }
    }

    /// The number of rounds to measure: `wanted`, or 1 in smoke mode.
    pub fn rounds(&self, wanted: usize) -> usize {
        if self.smoke { 1 } else { wanted }
    }

    /// Measures a figure that is to be at most `goal`, in `unit`. A panic counts as a failed measurement.
    pub fn at_most(&mut self, name: &str, unit: &str, goal: f64, measure: impl FnOnce() -> f64) {
        self.measure(name, unit, "<=", goal, |figure| figure <= goal, measure);
    }

    /// Measures a figure that is to be at least `goal`, in `unit`. A panic counts as a failed measurement.
    pub fn at_least(&mut self, name: &str, unit: &str, goal: f64, measure: impl FnOnce() -> f64) {
        self.measure(name, unit, ">=", goal, |figure| figure >= goal, measure);
    }

    fn measure(
        &mut self,
        name: &str,
        unit: &str,
        sign: &str,
        goal: f64,
        holds: impl FnOnce(f64) -> bool,
        measure: impl FnOnce() -> f64,
    ) {
        if !self.filter.is_empty() && !self.filter.iter().any(|f| name.contains(f.as_str())) {
            return;
        }
        match catch_unwind(AssertUnwindSafe(measure)) {
            Ok(figure) => {
                let verdict = match holds(figure) {
                    _ if self.smoke => "not judged",
                    true => "holds",
                    false => {
                        self.missed += 1;
                        "MISSED"
                    }
                };
                println!("{name:<60} {figure:>10.3} {unit:<4} {sign} {goal} {unit}: {verdict}");
            }
            Err(_) => {
                self.failed += 1;
                println!("{name:<60} FAILED to measure");
            }
        }
    }

    /// Prints the sums. The exit code: 0 where all goals hold, 1 where one is missed, 2 where one could not be measured.
    pub fn finish(self) -> i32 {
        println!(
            "{}: {} missed, {} not measured",
            self.suite, self.missed, self.failed
        );
        match (self.failed, self.missed) {
            (0, 0) => 0,
            (0, _) => 1,
            _ => 2,
        }
    }
}

/// The middle value; NaN where there are none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

/// Kernel, processors and load, in one line.
fn machine() -> String {
    let kernel = rustix::system::uname();
    let kernel = kernel.release().to_string_lossy().into_owned();
    let processors = std::thread::available_parallelism().map_or(0, usize::from);
    let model = fs::read_to_string("/proc/cpuinfo")
        .ok()
        .and_then(|text| {
            let line = text.lines().find(|line| line.starts_with("model name"))?;
            Some(line.split_once(": ")?.1.to_owned())
        })
        .unwrap_or_else(|| "unknown processor".to_owned());
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or("?").to_owned();
    format!("{processors} x {model}, Linux {kernel}, load {load}")
}

#[cfg(test)]
mod tests {
    use super::median;

    #[test]
    fn the_middle_value() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0]), 2.5);
        assert!(median(&[]).is_nan());
    }
}
