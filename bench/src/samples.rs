//! How much slower programs run while samples are taken, against the same recording without.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use crate::Common;
use crate::error::{Error, Result};
use crate::launch::{Outcome, Peak, Program, recorded};
use crate::run::{Run, verdict};
use crate::statistics::{geometric_mean, greatest, median, quantile};

/// Rates, per second of each CPU, and how much slower a program may run with them.
const TARGETS: [(&str, f64); 2] = [("1000/s", 1.03), ("4000/s", 1.10)];

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Folder of the programs
    #[arg(long, value_name = "FOLDER", default_value = "workloads/bin")]
    suite: PathBuf,
    /// The programs
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_values = ["cg", "ft", "is", "mg", "ep"])]
    only: Vec<String>,
    /// Rounds of runs for each program
    #[arg(long, default_value_t = 5)]
    repeats: u32,
    /// OMP_NUM_THREADS
    #[arg(long, default_value_t = 2)]
    threads: u32,
    /// Arguments of every program
    #[arg(
        long,
        value_name = "WORDS",
        default_value = "",
        allow_hyphen_values = true
    )]
    arguments: String,
}

/// One program's rounds: without samples, and at each rate.
struct Measured {
    name: String,
    rounds: Vec<[Outcome; 3]>,
    dropped: u64,
}

pub(crate) fn measure(common: &Common, options: &Options) -> Result<Run> {
    let mut measured = Vec::new();
    for name in &options.only {
        eprintln!("{name} ...");
        let arguments = match common.smoke {
            true => "--size S --seconds 0.2",
            false => options.arguments.as_str(),
        };
        let program = Program {
            path: options.suite.join(name),
            name: name.clone(),
            arguments: arguments.split_whitespace().map(Into::into).collect(),
            threads: options.threads,
        };
        measured.push(rounds(common, options, &program)?);
    }
    Ok(report(options, &measured))
}

fn rounds(common: &Common, options: &Options, program: &Program) -> Result<Measured> {
    let scratch = tempfile::tempdir_in(&common.scratch)
        .map_err(Error::io("make a folder in", &common.scratch))?;
    let folder = scratch.path().join("samples.varve");
    let mut measured = Measured {
        name: program.name.clone(),
        rounds: Vec::new(),
        dropped: 0,
    };
    let repeats = if common.smoke {
        1
    } else {
        options.repeats.max(1)
    };
    for turn in 0..repeats as usize {
        let mut round: [Option<Outcome>; 3] = [None, None, None];
        // Each is first by turns: what drifts on the machine meets all alike.
        for step in 0..3 {
            let which = (turn + step) % 3;
            let rate = which.checked_sub(1).map_or("off", |i| TARGETS[i].0);
            let (outcome, trace) = recorded(
                common,
                program,
                &["--samples", rate],
                &folder,
                Peak::Ignored,
            )?;
            measured.dropped += trace.manifest.samples.map_or(0, |s| s.dropped);
            eprintln!("  {:.2} s with samples {rate}", outcome.life_s);
            round[which] = Some(outcome);
        }
        if let [Some(off), Some(low), Some(high)] = round {
            measured.rounds.push([off, low, high]);
        }
    }
    Ok(measured)
}

fn ratios(measured: &Measured, which: usize) -> Vec<f64> {
    let ratio = |round: &[Outcome; 3]| round[which].life_s / round[0].life_s;
    measured.rounds.iter().map(ratio).collect()
}

fn report(options: &Options, measured: &[Measured]) -> Run {
    let mut rows = Vec::new();
    let mut slow = [Vec::new(), Vec::new()];
    for m in measured {
        let off: Vec<f64> = m.rounds.iter().map(|r| r[0].life_s).collect();
        let mut row = vec![m.name.clone(), format!("{:.2}", median(&off))];
        for (i, slow) in slow.iter_mut().enumerate() {
            let all = ratios(m, i + 1);
            slow.push(median(&all));
            row.push(format!("{:.3}", median(&all)));
            row.push(format!("{:.3}-{:.3}", quantile(&all, 0.0), greatest(&all)));
        }
        row.push(m.dropped.to_string());
        rows.push(row);
    }
    let means = slow.each_ref().map(|s| geometric_mean(s));
    let verdicts = TARGETS.iter().zip(means).map(|((rate, most), mean)| {
        verdict(
            &format!("geometric mean slowdown at {rate}"),
            mean,
            *most,
            "",
        )
    });
    Run {
        name: "samples",
        options: json!({
            "repeats": options.repeats, "threads": options.threads, "programs": options.only,
            "arguments": options.arguments,
        }),
        columns: vec![
            "program", "off s", "1000/s", "range", "4000/s", "range", "dropped",
        ],
        rows,
        verdicts: verdicts.collect(),
        summary: json!({"geometric_mean_1000": means[0], "geometric_mean_4000": means[1]}),
        raw: measured
            .iter()
            .map(|m| {
                let round = |r: &[Outcome; 3]| json!({"off": r[0].json(), "1000/s": r[1].json(), "4000/s": r[2].json()});
                json!({"program": m.name, "rounds": m.rounds.iter().map(round).collect::<Vec<_>>()})
            })
            .collect(),
    }
}
