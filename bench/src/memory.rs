//! Peak memory of the recorder, against 64 MiB + 0.5 % of the target's resident memory.

use clap::Args;
use serde_json::json;
use varve_model::PAGE_BYTES;
use varve_trace::tables::IntervalRow;

use crate::Common;
use crate::error::Result;
use crate::launch::{Peak, recorded};
use crate::run::{Run, verdict};
use crate::statistics::greatest;
use crate::targets::Targets;

const MIB: f64 = 1048576.0;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Resident memory of the targets, MiB
    #[arg(long, value_delimiter = ',', default_values_t = [64, 1024, 8192])]
    mib: Vec<u64>,
    /// Live heap objects
    #[arg(long, default_value_t = 1_000_000)]
    objects: u64,
    /// How long each runs, seconds
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
}

pub(crate) fn measure(common: &Common, options: &Options) -> Result<Run> {
    let targets = Targets::build(common)?;
    let (sizes, objects, seconds) = match common.smoke {
        true => (vec![16], 10_000, 0.3),
        false => (options.mib.clone(), options.objects, options.seconds),
    };
    let mut programs = Vec::new();
    for mib in sizes {
        let arguments = [
            mib.to_string(),
            "2".into(),
            "busy".into(),
            seconds.to_string(),
        ];
        programs.push((
            format!("{mib} MiB, 2 busy threads"),
            targets.program("resident", &arguments),
        ));
    }
    for bytes in [4096, 64] {
        let arguments = [objects.to_string(), bytes.to_string(), seconds.to_string()];
        let what = format!("{objects} live heap objects of {bytes} bytes");
        programs.push((what, targets.program("objects", &arguments)));
    }
    let (mut rows, mut raw, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for (what, program) in programs {
        eprintln!("{what} ...");
        let folder = targets.trace_folder();
        let (outcome, trace) = recorded(
            common,
            &program,
            &["--interval", "50ms"],
            &folder,
            Peak::Sampled,
        )?;
        let intervals = trace.rows::<IntervalRow>()?;
        let resident = intervals
            .iter()
            .map(|i| i.resident_pages)
            .max()
            .unwrap_or(0)
            * PAGE_BYTES;
        let recording = trace.manifest.overhead.recorder_peak_bytes.0;
        let budget = 64.0 * MIB + 0.005 * resident as f64;
        ratios.push(recording as f64 / budget);
        rows.push(vec![
            what.clone(),
            format!("{:.0}", resident as f64 / MIB),
            format!("{:.1}", recording as f64 / MIB),
            format!("{:.1}", outcome.peak_bytes as f64 / MIB),
            format!("{:.1}", budget / MIB),
            format!("{:.2}", recording as f64 / budget),
            format!("{:.2}", outcome.peak_bytes as f64 / budget),
        ]);
        raw.push(json!({
            "target": what, "resident_bytes": resident, "recording_peak_bytes": recording,
            "command_peak_bytes": outcome.peak_bytes, "budget_bytes": budget,
            "statement": trace.manifest.completeness.statement,
        }));
    }
    Ok(Run {
        name: "memory",
        options: json!({"seconds": seconds, "interval": "50ms"}),
        columns: vec![
            "target",
            "resident MiB",
            "recording MiB",
            "with naming MiB",
            "budget MiB",
            "recording",
            "with naming",
        ],
        rows,
        verdicts: vec![verdict(
            "worst peak memory while recording / budget",
            greatest(&ratios),
            1.0,
            "",
        )],
        summary: json!({"worst_ratio": greatest(&ratios)}),
        raw: raw.into(),
    })
}
