//! Bits of trace per resident page and interval.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;
use varve_trace::tables::{IntervalRow, TouchRow};

use crate::Common;
use crate::error::{Error, Result};
use crate::launch::{Peak, Program, recorded};
use crate::run::{Run, verdict};
use crate::statistics::greatest;
use crate::targets::Targets;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Where stream, random and zipf are
    #[arg(long, value_name = "FOLDER", default_value = "workloads/bin")]
    workloads: PathBuf,
    /// Interval, as for `varve record`
    #[arg(long, default_value = "50ms")]
    interval: String,
}

pub(crate) fn measure(common: &Common, options: &Options) -> Result<Run> {
    let targets = Targets::build(common)?;
    let work = if common.smoke { "1" } else { "40" };
    let mut programs: Vec<(&str, Program)> = [
        ("sequential (stream)", "stream"),
        ("uniformly random (random)", "random"),
        ("Zipf-distributed (zipf)", "zipf"),
    ]
    .into_iter()
    .map(|(what, name)| {
        let program = Program {
            name: name.into(),
            path: options.workloads.join(name),
            arguments: vec!["256".into(), work.into()],
            threads: 2,
        };
        (what, program)
    })
    .collect();
    let seconds = if common.smoke { "0.3" } else { "5" };
    let arguments = ["256", "1", "idle", seconds].map(str::to_owned);
    programs.push(("idle", targets.program("resident", &arguments)));
    let (mut rows, mut raw, mut bits) = (Vec::new(), Vec::new(), Vec::new());
    for (what, program) in programs {
        eprintln!("{what} ...");
        let folder = targets.trace_folder();
        let arguments = ["--interval", options.interval.as_str()];
        let (_, trace) = recorded(common, &program, &arguments, &folder, Peak::Ignored)?;
        let intervals = trace.rows::<IntervalRow>()?;
        let cells: u64 = intervals.iter().map(|i| i.resident_pages).sum();
        let mut touched = 0;
        let mut runs = 0;
        for batch in trace.batches::<TouchRow>()? {
            let batch = batch?;
            runs += batch.len();
            touched += batch.iter().map(|t| u64::from(t.pages)).sum::<u64>();
        }
        let table: u64 = trace
            .files::<TouchRow>()?
            .iter()
            .map(|f| size(f.path()))
            .sum();
        let whole = folder_size(&folder)?;
        let per_cell = |bytes: u64| bytes as f64 * 8.0 / cells.max(1) as f64;
        bits.push(per_cell(table));
        rows.push(vec![
            what.into(),
            intervals.len().to_string(),
            format!("{:.1} %", 100.0 * touched as f64 / cells.max(1) as f64),
            format!("{:.2}", touched as f64 / runs.max(1) as f64),
            format!("{:.3}", per_cell(table)),
            format!("{:.3}", per_cell(whole)),
        ]);
        raw.push(json!({
            "workload": what, "intervals": intervals.len(), "resident_page_intervals": cells,
            "touched_page_intervals": touched, "rows": runs, "touches_bytes": table, "trace_bytes": whole,
        }));
    }
    Ok(Run {
        name: "trace-size",
        options: json!({"interval": options.interval, "mib": 256, "work": work}),
        columns: vec![
            "accesses",
            "intervals",
            "touched",
            "pages per row",
            "bits, touches",
            "bits, whole trace",
        ],
        rows,
        verdicts: vec![verdict(
            "most bits per resident page and interval",
            greatest(&bits),
            1.1,
            " bits",
        )],
        summary: json!({"most_bits": greatest(&bits)}),
        raw: raw.into(),
    })
}

fn size(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |m| m.len())
}

fn folder_size(folder: &Path) -> Result<u64> {
    let entries = fs::read_dir(folder).map_err(Error::io("list", folder))?;
    Ok(entries.flatten().map(|e| size(&e.path())).sum())
}
