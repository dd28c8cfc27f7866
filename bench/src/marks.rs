//! What the name of a phase costs: where nobody records, and where somebody does.

use clap::Args;
use serde_json::json;
use varve_trace::tables::MarkRow;

use crate::Common;
use crate::error::{Error, Result};
use crate::launch::{Outcome, Peak, plain, recorded};
use crate::run::{Run, verdict};
use crate::statistics::median;
use crate::targets::Targets;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Phases where nobody records
    #[arg(long, default_value_t = 200_000_000)]
    phases: u64,
    /// Phases where somebody records
    #[arg(long, default_value_t = 200_000)]
    recorded: u64,
    /// Steps of work in each, a nanosecond or so
    #[arg(long, default_value_t = 10)]
    work: u64,
    /// Rounds, each of all four runs
    #[arg(long, default_value_t = 5)]
    repeats: u32,
}

/// A load and a branch that processors foresee.
const UNHEARD_NS: f64 = 1.0;

pub(crate) fn measure(common: &Common, options: &Options) -> Result<Run> {
    let targets = Targets::build(common)?;
    let (unheard, heard, repeats) = match common.smoke {
        true => (100_000, 2000, 1),
        false => (options.phases, options.recorded, options.repeats),
    };
    let program = |mode: &str, phases: u64| {
        let arguments = [
            mode.to_owned(),
            phases.to_string(),
            options.work.to_string(),
        ];
        targets.program("marks", &arguments)
    };
    let folder = targets.trace_folder();
    let (mut alone, mut recording) = (Vec::new(), Vec::new());
    let (mut missing, mut raw) = (0, Vec::new());
    for round in 0..repeats {
        eprintln!("round {} ...", round + 1);
        let quiet = [
            plain(common, &program("plain", unheard))?,
            plain(common, &program("named", unheard))?,
        ];
        alone.push(each_ns(&quiet, unheard)?);
        let mut loud = Vec::new();
        for mode in ["plain", "named"] {
            let (outcome, trace) =
                recorded(common, &program(mode, heard), &[], &folder, Peak::Ignored)?;
            let named = if mode == "named" { heard } else { 0 };
            missing += named.abs_diff(trace.count::<MarkRow>()?);
            loud.push(outcome);
        }
        recording.push(each_ns(&loud, heard)?);
        raw.push(json!({
            "alone": quiet.iter().map(Outcome::json).collect::<Vec<_>>(),
            "recorded": loud.iter().map(Outcome::json).collect::<Vec<_>>(),
        }));
    }
    let (unheard_ns, heard_ns) = (median(&alone), median(&recording));
    let row = |what: &str, phases: u64, ns: f64| {
        vec![what.to_owned(), phases.to_string(), format!("{ns:.2}")]
    };
    Ok(Run {
        name: "marks",
        options: json!({"phases": unheard, "recorded": heard, "work": options.work, "repeats": repeats}),
        columns: vec!["where", "phases", "ns a mark"],
        rows: vec![
            row("nobody records", unheard, unheard_ns),
            row("recorded", heard, heard_ns),
        ],
        verdicts: vec![
            verdict("a mark where nobody records", unheard_ns, UNHEARD_NS, "ns"),
            format!("phases that the traces lack or have too many of: {missing}"),
        ],
        summary: json!({"unheard_ns": unheard_ns, "heard_ns": heard_ns, "missing": missing}),
        raw: raw.into(),
    })
}

/// How much longer a named phase takes, nanoseconds for each of its two marks.
fn each_ns(runs: &[Outcome], phases: u64) -> Result<f64> {
    match runs {
        [
            Outcome {
                own_s: Some(plain), ..
            },
            Outcome {
                own_s: Some(named), ..
            },
        ] => Ok((named - plain) * 1e9 / (2 * phases) as f64),
        _ => Err(Error::Failed("a run did not say how long it took".into())),
    }
}
