//! Peak memory of the recorder, against 64 MiB + 0.5 % of the target's resident memory.

use clap::Args;
use serde_json::json;
use varve_model::PAGE_BYTES;
use varve_trace::tables::{IntervalRow, ObjectRow};

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
    #[arg(long, value_delimiter = ',', default_values_t = [64, 1024, 4096])]
    mib: Vec<u64>,
    /// Threads of a target of 64 MiB
    #[arg(long, default_value_t = 1000)]
    threads: u64,
    /// Live heap objects
    #[arg(long, default_value_t = 1_000_000)]
    objects: u64,
    /// Births and deaths of heap objects
    #[arg(long, default_value_t = 10_000_000)]
    births: u64,
    /// How long each runs, seconds
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
}

pub(crate) fn measure(common: &Common, options: &Options) -> Result<Run> {
    let targets = Targets::build(common)?;
    let (sizes, many, objects, births, seconds) = match common.smoke {
        true => (vec![16], 50, 10_000, 100_000, 0.3),
        false => (
            options.mib.clone(),
            options.threads,
            options.objects,
            options.births,
            options.seconds,
        ),
    };
    let mut programs = Vec::new();
    let few = sizes.iter().map(|mib| (*mib, 2, "busy"));
    for (mib, threads, mode) in few.chain([(64, many, "idle")]) {
        let arguments = [
            mib.to_string(),
            threads.to_string(),
            mode.into(),
            seconds.to_string(),
        ];
        programs.push((
            format!("{mib} MiB, {threads} {mode} threads"),
            targets.program("resident", &arguments),
        ));
    }
    let arguments = [births.to_string(), "10000".into(), "4096".into()];
    programs.push((
        format!("{births} births and deaths, 10000 alive"),
        targets.program("churn", &arguments),
    ));
    for bytes in [4096, 64] {
        let arguments = [objects.to_string(), bytes.to_string(), seconds.to_string()];
        let what = format!("{objects} live heap objects of {bytes} bytes");
        programs.push((what, targets.program("objects", &arguments)));
    }
    let (mut rows, mut raw) = (Vec::new(), Vec::new());
    let (mut recordings, mut wholes) = (Vec::new(), Vec::new());
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
        recordings.push(recording as f64 / budget);
        wholes.push(outcome.peak_bytes as f64 / budget);
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
            "recorder_cpu_ns": trace.manifest.overhead.recorder_cpu_ns.0,
            "objects": trace.count::<ObjectRow>()?,
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
        verdicts: vec![
            verdict(
                "worst peak memory while recording / budget",
                greatest(&recordings),
                1.0,
                "",
            ),
            verdict(
                "worst peak memory with naming / budget",
                greatest(&wholes),
                1.0,
                "",
            ),
        ],
        summary: json!({
            "worst_ratio": greatest(&recordings),
            "worst_ratio_with_naming": greatest(&wholes),
        }),
        raw: raw.into(),
    })
}
