//! How much slower programs run while the first access to each page in an interval traps.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;
use varve_trace::tables::FaultRow;

use crate::Common;
use crate::error::{Error, Result};
use crate::launch::{Outcome, Peak, Program, plain, recorded};
use crate::run::{Run, verdict};
use crate::statistics::{geometric_mean, greatest, median};

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Folder of programs
    #[arg(default_value = "workloads/bin", value_name = "FOLDER")]
    suite: PathBuf,
    /// The programs
    #[arg(
        long,
        value_name = "NAME",
        value_delimiter = ',',
        default_value = "cg,ft,is,mg"
    )]
    only: Vec<String>,
    /// Interval, as for `varve record`
    #[arg(long, default_value = "50ms")]
    interval: String,
    /// The budget of the runs that have one
    #[arg(long, default_value = "5%", value_name = "SHARE")]
    budget: String,
    /// Rounds of three runs for each program: plain, every page, and with the budget
    #[arg(long, default_value_t = 1)]
    repeats: u32,
    /// OMP_NUM_THREADS
    #[arg(long, default_value_t = 2)]
    threads: u32,
}

/// One recorded run.
struct Trapped {
    outcome: Outcome,
    resolved: u64,
    faults: u64,
    rate: f64,
    incomplete: Option<String>,
}

pub(crate) fn measure(common: &Common, options: &Options) -> Result<Run> {
    let mut rows = Vec::new();
    let mut raw = Vec::new();
    let (mut every, mut budgeted, mut traps) = (Vec::new(), Vec::new(), Vec::new());
    for name in &options.only {
        eprintln!("{name} ...");
        let program = Program {
            name: name.clone(),
            path: options.suite.join(name),
            arguments: match common.smoke {
                true => ["--size", "S", "--seconds", "0.2"].map(Into::into).to_vec(),
                false => Vec::new(),
            },
            threads: options.threads,
        };
        let repeats = if common.smoke {
            1
        } else {
            options.repeats.max(1)
        };
        let (mut slow, mut less, mut cost, mut rate, mut share) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut complete = true;
        for _ in 0..repeats {
            let without = plain(common, &program)?;
            let all = one(common, options, &program, None)?;
            let some = one(common, options, &program, Some(&options.budget))?;
            slow.push(all.outcome.life_s / without.life_s);
            less.push(some.outcome.life_s / without.life_s);
            // All that a recorded run took more, over the trapped accesses: holding and scanning included.
            let more = (all.outcome.life_s - without.life_s).max(0.0);
            cost.push(more * f64::from(options.threads) * 1e6 / all.resolved.max(1) as f64);
            rate.push(all.faults as f64 / all.outcome.life_s);
            share.push(some.rate);
            complete &= all.incomplete.is_none() && some.incomplete.is_none();
            raw.push(json!({
                "program": name,
                "plain": without.json(),
                "every_page": run_json(&all),
                "budget": run_json(&some),
            }));
        }
        every.push(median(&slow));
        budgeted.push(median(&less));
        traps.push(median(&cost));
        rows.push(vec![
            name.clone(),
            format!("{:.2}", median(&slow)),
            format!("{:.2}", median(&cost)),
            format!("{:.0}", median(&rate)),
            format!("{:.3}", median(&less)),
            format!("{:.3} %", 100.0 * median(&share)),
            if complete { "yes" } else { "no" }.into(),
        ]);
    }
    Ok(Run {
        name: "fault",
        options: json!({
            "interval": options.interval, "budget": options.budget, "repeats": options.repeats,
            "threads": options.threads, "programs": options.only,
        }),
        columns: vec![
            "program",
            "slowdown",
            "µs/trap",
            "faults/s",
            "with budget",
            "sampled",
            "complete",
        ],
        rows,
        verdicts: vec![
            verdict("geometric mean slowdown", geometric_mean(&every), 5.0, ""),
            verdict("worst slowdown", greatest(&every), 40.0, ""),
            verdict(
                "worst thread time per trapped access",
                greatest(&traps),
                7.0,
                " µs",
            ),
            verdict(
                "geometric mean slowdown with the budget",
                geometric_mean(&budgeted),
                1.08,
                "",
            ),
        ],
        summary: json!({
            "geometric_mean": geometric_mean(&every), "worst": greatest(&every),
            "us_per_trap": traps, "with_budget": geometric_mean(&budgeted),
        }),
        raw: raw.into(),
    })
}

fn one(
    common: &Common,
    options: &Options,
    program: &Program,
    budget: Option<&str>,
) -> Result<Trapped> {
    let scratch = tempfile::tempdir_in(&common.scratch)
        .map_err(Error::io("make a folder in", &common.scratch))?;
    let folder = scratch.path().join("fault.varve");
    let interval = options.interval.as_str();
    let mut arguments = vec![
        "--backend",
        "fault",
        "--interval",
        interval,
        "--samples",
        "off",
    ];
    if let Some(budget) = budget {
        arguments.extend(["--fault-budget", budget]);
    }
    let (outcome, trace) = recorded(common, program, &arguments, &folder, Peak::Ignored)?;
    let note = trace.manifest.traps.unwrap_or_default();
    let complete = &trace.manifest.completeness;
    Ok(Trapped {
        outcome,
        resolved: note.resolved,
        faults: trace.count::<FaultRow>()?,
        rate: note.sampling_rate,
        incomplete: (!complete.complete).then(|| complete.statement.clone()),
    })
}

fn run_json(run: &Trapped) -> serde_json::Value {
    json!({
        "outcome": run.outcome.json(), "resolved": run.resolved, "faults": run.faults,
        "sampling_rate": run.rate, "incomplete": run.incomplete,
    })
}
