//! Time and memory of `varve tier simulate`, for eight policies with their default settings.

use std::fs;

use clap::Args;
use serde_json::{Value, json};

use crate::Common;
use crate::error::{Error, Result};
use crate::launch::{Outcome, Program, sampled};
use crate::run::{Run, verdict};
use crate::statistics::median;
use crate::synthesis;

const MIB: f64 = 1_048_576.0;
/// The policies that are replayed.
const POLICIES: &str = "optimum,first_touch,autonuma,lru,clock,mglru,damos,objects";
/// Millions of touches for which the targets hold.
const TARGET_TOUCHES: f64 = 100e6;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Rows of touches of the trace that is made, in millions; a row is a run of about 16 pages
    #[arg(long, default_value_t = 6)]
    million_rows: u64,
    /// Intervals of 50 ms
    #[arg(long, default_value_t = 6_000)]
    intervals: u64,
    /// How often it is simulated
    #[arg(long, default_value_t = 3)]
    repeats: u32,
}

pub(crate) fn measure(common: &Common, options: &Options) -> Result<Run> {
    let scratch = tempfile::tempdir_in(&common.scratch)
        .map_err(Error::io("make a folder in", &common.scratch))?;
    let (rows, intervals, repeats) = match common.smoke {
        true => (50_000, 100, 1),
        false => (
            options.million_rows.saturating_mul(1_000_000),
            options.intervals,
            options.repeats.max(1),
        ),
    };
    let folder = scratch.path().join("synthetic.varve");
    synthesis::write(&folder, rows, intervals, 0)?;
    let simulate = |policies: &str| {
        let mut arguments = vec![
            "tier".into(),
            "simulate".into(),
            folder.clone().into_os_string(),
        ];
        let tiers = [
            "--tier",
            "fast=2GiB,80ns",
            "--tier",
            "slow=inf,250ns",
            "--no-tune",
            "--policy",
            policies,
        ];
        arguments.extend(tiers.map(Into::into));
        arguments.push("--json".into());
        Program {
            name: "varve tier simulate".to_owned(),
            path: common.varve.clone(),
            arguments,
            threads: 2,
        }
    };
    let mut outcomes: Vec<Outcome> = Vec::new();
    for _ in 0..repeats {
        outcomes.push(sampled(common, &simulate(POLICIES))?);
    }
    let touches = touches(common, &simulate("first_touch"))?;
    fs::remove_dir_all(&folder).map_err(Error::io("remove", &folder))?;
    let of = |of: fn(&Outcome) -> f64| median(&outcomes.iter().map(of).collect::<Vec<_>>());
    let (seconds, peak) = (of(|o| o.command_s), of(|o| o.peak_bytes as f64 / MIB));
    let whole = seconds * TARGET_TOUCHES / touches.max(1.0);
    Ok(Run {
        name: "tier",
        options: json!({"rows": rows, "intervals": intervals, "repeats": repeats, "policies": POLICIES}),
        columns: vec!["touches", "seconds", "peak MiB", "ns per touch"],
        rows: vec![vec![
            format!("{touches:.0}"),
            format!("{seconds:.2}"),
            format!("{peak:.0}"),
            format!("{:.1}", seconds * 1e9 / touches.max(1.0)),
        ]],
        verdicts: vec![
            verdict(
                "time for 100 million touches, in proportion",
                whole,
                60.0,
                " s",
            ),
            verdict("peak memory", peak, 2048.0, " MiB"),
        ],
        summary: json!({"touches": touches, "seconds": seconds, "peak_mib": peak}),
        raw: outcomes.iter().map(Outcome::of_reader).collect(),
    })
}

/// The touches of the trace, as the command says itself.
fn touches(common: &Common, program: &Program) -> Result<f64> {
    let output = std::process::Command::new(&common.varve)
        .args(&program.arguments)
        .output()
        .map_err(Error::io("run", &common.varve))?;
    let found: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    Ok(found["trace"]["touches"].as_f64().unwrap_or(0.0))
}
