//! Time and memory of `varve report` and `varve diff`, and how they grow with the trace.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};
use varve_trace::Trace;
use varve_trace::tables::{IntervalRow, TouchRow};

use crate::Common;
use crate::error::{Error, Result};
use crate::launch::{Outcome, Program, sampled};
use crate::run::{Run, verdict};
use crate::statistics::median;
use crate::synthesis;

const MIB: f64 = 1_048_576.0;
/// Parts of the size, of which the last is all of it.
const PARTS: [u64; 3] = [4, 2, 1];
const OUTPUTS: [&str; 6] = ["terminal", "json", "html", "png", "diff", "diff-html"];
/// Differences read two traces: made-up ones of one size that differ, or the one that is given, twice.
const DIFFERENCES: [&str; 2] = ["diff", "diff-html"];
/// What tells two made-up traces from one another.
const SEEDS: [u64; 2] = [0, 1];
/// The time per row may grow by this factor from the smallest part to all.
const MAX_GROWTH: f64 = 1.1;

/// How large a trace is to be made.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Size {
    /// Rows of touches, in millions
    #[arg(long, default_value_t = 80)]
    million_rows: u64,
    /// Intervals of 50 ms
    #[arg(long, default_value_t = 72_000)]
    pub(crate) intervals: u64,
}

impl Size {
    pub(crate) fn rows(self) -> u64 {
        self.million_rows.saturating_mul(1_000_000)
    }
}

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Read this trace instead of made-up ones
    #[arg(long, value_name = "FOLDER")]
    trace: Option<PathBuf>,
    #[command(flatten)]
    size: Size,
    /// How often each is read
    #[arg(long, default_value_t = 3)]
    repeats: u32,
    /// What is made of traces
    #[arg(long, value_delimiter = ',', value_parser = OUTPUTS, default_values = OUTPUTS)]
    outputs: Vec<String>,
}

pub(crate) fn measure(common: &Common, options: &Options) -> Result<Run> {
    let scratch = tempfile::tempdir_in(&common.scratch)
        .map_err(Error::io("make a folder in", &common.scratch))?;
    let (rows, intervals, repeats) = match common.smoke {
        true => (200_000, 400, 1),
        false => (
            options.size.rows(),
            options.size.intervals,
            options.repeats.max(1),
        ),
    };
    let outputs: Vec<&'static str> = OUTPUTS
        .into_iter()
        .filter(|output| options.outputs.iter().any(|o| o == output))
        .collect();
    let differs = outputs.iter().any(|output| DIFFERENCES.contains(output));
    let mut run = Run {
        name: "report",
        options: json!({"repeats": repeats, "outputs": outputs}),
        columns: vec![
            "trace",
            "output",
            "rows",
            "seconds",
            "peak MiB",
            "ns per row",
            "other CPUs",
        ],
        rows: Vec::new(),
        verdicts: Vec::new(),
        summary: Value::Null,
        raw: Value::Null,
    };
    let mut readings = Vec::new();
    match &options.trace {
        Some(folder) => {
            let traces = Traces {
                name: "given".to_owned(),
                first: folder.clone(),
                second: folder.clone(),
            };
            readings.extend(read(common, &traces, &outputs, repeats, scratch.path())?);
        }
        None => {
            for part in PARTS {
                let name = match part {
                    1 => "whole".to_owned(),
                    _ => format!("1/{part}"),
                };
                let [first, second] = ["a.varve", "b.varve"].map(|name| scratch.path().join(name));
                let traces = Traces {
                    name,
                    first,
                    second,
                };
                let made = [&traces.first, &traces.second].into_iter().zip(SEEDS);
                let made: Vec<_> = made.take(if differs { 2 } else { 1 }).collect();
                for (folder, seed) in &made {
                    synthesis::write(folder, rows / part, intervals / part, *seed)?;
                }
                readings.extend(read(common, &traces, &outputs, repeats, scratch.path())?);
                for (folder, _) in made {
                    fs::remove_dir_all(folder).map_err(Error::io("remove", folder))?;
                }
            }
        }
    }
    let last = readings.len().saturating_sub(outputs.len());
    for reading in &readings[last..] {
        reading.judge(&mut run.verdicts);
    }
    if options.trace.is_none() {
        for (small, whole) in readings.iter().zip(&readings[last..]) {
            let growth = whole.ns_per_row() / small.ns_per_row();
            let what = format!("growth of the time per row, {}", whole.output);
            run.verdicts.push(verdict(&what, growth, MAX_GROWTH, ""));
        }
    }
    run.rows = readings.iter().map(Reading::row).collect();
    run.summary = readings[last..].iter().map(Reading::json).collect();
    run.raw = readings.iter().map(Reading::json).collect();
    Ok(run)
}

/// What is read: the first, or both for a difference.
struct Traces {
    name: String,
    first: PathBuf,
    second: PathBuf,
}

/// One size, read for one output, some times.
struct Reading {
    trace: String,
    output: &'static str,
    rows: u64,
    intervals: u64,
    file_bytes: Option<u64>,
    outcomes: Vec<Outcome>,
}

/// Reads traces for each output; the outputs take turns.
fn read(
    common: &Common,
    traces: &Traces,
    outputs: &[&'static str],
    repeats: u32,
    scratch: &Path,
) -> Result<Vec<Reading>> {
    let trace = Trace::open(&traces.first)?;
    let (rows, intervals) = (trace.count::<TouchRow>()?, trace.count::<IntervalRow>()?);
    let mut readings: Vec<Reading> = outputs
        .iter()
        .map(|&output| Reading {
            trace: traces.name.clone(),
            output,
            rows,
            intervals,
            file_bytes: None,
            outcomes: Vec::new(),
        })
        .collect();
    for _ in 0..repeats {
        for reading in &mut readings {
            let file = scratch.join("report.out");
            let command = reading.command();
            let mut arguments = vec![command.into(), traces.first.as_os_str().to_owned()];
            match reading.output {
                "terminal" => (),
                "diff" => arguments.push(traces.second.as_os_str().to_owned()),
                "diff-html" => {
                    let html = ["--html".into(), file.clone().into_os_string()];
                    arguments.push(traces.second.as_os_str().to_owned());
                    arguments.extend(html);
                }
                "json" => arguments.push("--json".into()),
                other => {
                    arguments.push(format!("--{other}").into());
                    arguments.push(file.clone().into_os_string());
                }
            }
            let program = Program {
                name: format!("varve {command}, {}", reading.output),
                path: common.varve.clone(),
                arguments,
                threads: 2,
            };
            reading.outcomes.push(sampled(common, &program)?);
            reading.file_bytes = fs::metadata(&file).ok().map(|m| m.len());
            let _ = fs::remove_file(&file);
        }
    }
    Ok(readings)
}

impl Reading {
    fn median(&self, of: impl Fn(&Outcome) -> f64) -> f64 {
        median(&self.outcomes.iter().map(of).collect::<Vec<_>>())
    }

    fn seconds(&self) -> f64 {
        self.median(|o| o.command_s)
    }

    fn peak_mib(&self) -> f64 {
        self.median(|o| o.peak_bytes as f64 / MIB)
    }

    fn command(&self) -> &'static str {
        match DIFFERENCES.contains(&self.output) {
            true => "diff",
            false => "report",
        }
    }

    /// Of each row of each trace that is read.
    fn ns_per_row(&self) -> f64 {
        let traces = if self.command() == "diff" { 2 } else { 1 };
        self.seconds() * 1e9 / (traces * self.rows).max(1) as f64
    }

    fn row(&self) -> Vec<String> {
        vec![
            self.trace.clone(),
            self.output.to_owned(),
            self.rows.to_string(),
            format!("{:.2}", self.seconds()),
            format!("{:.0}", self.peak_mib()),
            format!("{:.1}", self.ns_per_row()),
            format!("{:.2}", self.median(|o| o.foreign_cpus + o.stolen_cpus)),
        ]
    }

    fn judge(&self, verdicts: &mut Vec<String>) {
        let (output, seconds) = (self.output, self.seconds());
        let limit = if self.command() == "diff" { 20.0 } else { 10.0 };
        verdicts.push(verdict(&format!("time, {output}"), seconds, limit, " s"));
        let what = format!("peak memory, {output}");
        verdicts.push(verdict(&what, self.peak_mib(), 1024.0, " MiB"));
        if let ("html", Some(bytes)) = (output, self.file_bytes) {
            verdicts.push(verdict("size of the page", bytes as f64 / 1e6, 5.0, " MB"));
        }
    }

    fn json(&self) -> Value {
        json!({
            "trace": self.trace,
            "output": self.output,
            "touch_rows": self.rows,
            "intervals": self.intervals,
            "file_bytes": self.file_bytes,
            "seconds": self.seconds(),
            "peak_mib": self.peak_mib(),
            "ns_per_row": self.ns_per_row(),
            "runs": self.outcomes.iter().map(Outcome::of_reader).collect::<Vec<_>>(),
        })
    }
}
