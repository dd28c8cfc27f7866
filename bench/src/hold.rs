//! How long the target is held at the end of an interval, against the budget
//! 0.3 ms + 4 µs per thread + 40 ns per resident 4 KiB page.

use clap::Args;
use serde_json::json;
use varve_trace::tables::IntervalRow;

use crate::Common;
use crate::error::{Error, Result};
use crate::launch::{Peak, recorded};
use crate::run::{Run, verdict};
use crate::statistics::{greatest, median, quantile};
use crate::targets::Targets;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Numbers of threads
    #[arg(long, value_delimiter = ',', default_values_t = [1, 16, 256])]
    threads: Vec<u64>,
    /// Resident memory, MiB
    #[arg(long, value_delimiter = ',', default_values_t = [1, 64, 1024, 4096])]
    mib: Vec<u64>,
    /// How long each combination runs, seconds
    #[arg(long, default_value_t = 4.0)]
    seconds: f64,
}

pub(crate) fn budget_ns(threads: f64, pages: f64) -> f64 {
    300_000.0 + 4_000.0 * threads + 40.0 * pages
}

pub(crate) fn measure(common: &Common, options: &Options) -> Result<Run> {
    let targets = Targets::build(common)?;
    let (sizes, seconds) = match common.smoke {
        true => (vec![1, 16], 1.0),
        false => (options.mib.clone(), options.seconds),
    };
    let threads = if common.smoke {
        vec![1, 16]
    } else {
        options.threads.clone()
    };
    let (mut rows, mut raw, mut medians) = (Vec::new(), Vec::new(), Vec::new());
    for &mib in &sizes {
        for &threads in &threads {
            for mode in ["idle", "busy"] {
                let arguments = [
                    mib.to_string(),
                    threads.to_string(),
                    mode.into(),
                    seconds.to_string(),
                ];
                let program = targets.program("resident", &arguments);
                eprintln!("{} ...", program.name);
                let folder = targets.trace_folder();
                let (outcome, trace) = recorded(
                    common,
                    &program,
                    &["--interval", "50ms", "--max-hold", "60s"],
                    &folder,
                    Peak::Ignored,
                )?;
                let intervals = steady(trace.rows::<IntervalRow>()?, threads);
                if intervals.is_empty() {
                    let name = &program.name;
                    return Err(Error::Failed(format!(
                        "{name}: no interval had all {threads} threads"
                    )));
                }
                let pick =
                    |f: &dyn Fn(&IntervalRow) -> f64| intervals.iter().map(f).collect::<Vec<_>>();
                let held = pick(&|i| i.held_ns.0 as f64);
                let pages = pick(&|i| i.resident_pages as f64);
                let ratio = pick(&|i| {
                    i.held_ns.0 as f64 / budget_ns(f64::from(i.threads), i.resident_pages as f64)
                });
                medians.push(median(&ratio));
                rows.push(vec![
                    format!("{mib} MiB"),
                    threads.to_string(),
                    mode.into(),
                    intervals.len().to_string(),
                    format!("{:.0}", median(&held) / 1e3),
                    format!("{:.0}", budget_ns(threads as f64, median(&pages)) / 1e3),
                    format!("{:.2}", median(&ratio)),
                    format!("{:.2}", quantile(&ratio, 0.99)),
                    format!("{:.2}", outcome.foreign_cpus + outcome.stolen_cpus),
                ]);
                raw.push(json!({
                    "mib": mib, "threads": threads, "mode": mode, "held_ns": held, "resident_pages": pages,
                    "notes": trace.manifest.notes, "foreign_cpus": outcome.foreign_cpus,
                    "stolen_cpus": outcome.stolen_cpus,
                }));
            }
        }
    }
    Ok(Run {
        name: "hold",
        options: json!({"seconds": seconds, "interval": "50ms"}),
        columns: vec![
            "resident",
            "threads",
            "they are",
            "intervals",
            "held µs",
            "budget µs",
            "median",
            "p99",
            "other CPUs",
        ],
        rows,
        verdicts: vec![verdict(
            "worst median of held time / budget",
            greatest(&medians),
            1.0,
            "",
        )],
        summary: json!({"worst_median_ratio": greatest(&medians)}),
        raw: raw.into(),
    })
}

/// The intervals in which the target has all its threads and memory; the last one ends with it.
fn steady(mut intervals: Vec<IntervalRow>, threads: u64) -> Vec<IntervalRow> {
    intervals.pop();
    // Threads first: while they end, their exits fault in some more memory than they ever had.
    intervals.retain(|i| u64::from(i.threads) >= threads);
    let most = intervals.iter().map(|i| i.resident_pages).max();
    intervals.retain(|i| i.resident_pages as f64 >= 0.98 * most.unwrap_or(0) as f64);
    intervals
}

#[cfg(test)]
mod tests {
    use varve_model::{Duration, Interval, Time};

    use super::*;

    fn intervals(seen: &[(u32, u64)]) -> Vec<IntervalRow> {
        let row = |&(threads, resident_pages)| IntervalRow {
            interval: Interval(0),
            start_ns: Time(0),
            end_ns: Time(0),
            held_ns: Duration(0),
            longest_hold_ns: Duration(0),
            longest_stop_ns: Duration(0),
            holds: 0,
            overlap_ns: Duration(0),
            resident_pages,
            mappings: 0,
            processes: 1,
            threads,
            recorder_cpu_ns: Duration(0),
        };
        seen.iter().map(row).collect()
    }

    #[test]
    fn memory_that_comes_as_threads_end_does_not_count() {
        // As seen on a busy machine: the threads' exits made 796 pages 828.
        let seen = [(6, 740), (16, 789), (16, 796), (16, 796), (12, 828), (0, 0)];
        assert_eq!(steady(intervals(&seen), 16).len(), 3);
    }

    #[test]
    fn memory_that_still_grows_and_the_end_do_not_count() {
        let seen = [(1, 100), (1, 500), (1, 990), (1, 1000), (1, 1000)];
        assert_eq!(steady(intervals(&seen), 1).len(), 2);
        assert!(steady(intervals(&seen), 2).is_empty());
    }
}
