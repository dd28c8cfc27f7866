//! Time and memory of `varve report` on a long trace.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;
use varve_trace::Trace;
use varve_trace::tables::{IntervalRow, TouchRow};

use crate::Common;
use crate::error::Result;
use crate::launch::{Program, sampled};
use crate::run::{Run, verdict};
use crate::statistics::median;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The trace to read
    #[arg(long, value_name = "FOLDER")]
    trace: PathBuf,
    /// How often
    #[arg(long, default_value_t = 3)]
    repeats: u32,
}

pub(crate) fn measure(common: &Common, options: &Options) -> Result<Run> {
    let trace = Trace::open(&options.trace)?;
    let touches = trace.count::<TouchRow>()?;
    let intervals = trace.count::<IntervalRow>()?;
    let repeats = if common.smoke {
        1
    } else {
        options.repeats.max(1)
    };
    let (mut rows, mut raw, mut verdicts) = (Vec::new(), Vec::new(), Vec::new());
    let html = tempfile::tempdir_in(&common.scratch)
        .map_err(crate::error::Error::io("make a folder in", &common.scratch))?;
    let html_file = html.path().join("report.html").into_os_string();
    for (what, extra) in [
        ("terminal", vec![]),
        ("--json", vec!["--json".into()]),
        ("--html", vec!["--html".into(), html_file]),
    ] {
        let mut arguments = vec!["report".into(), options.trace.clone().into_os_string()];
        arguments.extend(extra);
        let program = Program {
            name: format!("varve report, {what}"),
            path: common.varve.clone(),
            arguments,
            threads: 2,
        };
        let (mut times, mut peaks) = (Vec::new(), Vec::new());
        for _ in 0..repeats {
            let outcome = sampled(common, &program)?;
            times.push(outcome.command_s);
            peaks.push(outcome.peak_bytes as f64 / 1048576.0);
        }
        rows.push(vec![
            what.to_owned(),
            format!("{:.2}", median(&times)),
            format!("{:.0}", median(&peaks)),
            format!("{:.1}", median(&times) * 1e9 / touches.max(1) as f64),
        ]);
        if what != "--html" {
            verdicts.push(verdict(
                &format!("time, {what}"),
                median(&times),
                10.0,
                " s",
            ));
            verdicts.push(verdict(
                &format!("peak memory, {what}"),
                median(&peaks),
                1024.0,
                " MiB",
            ));
        }
        raw.push(json!({"output": what, "seconds": times, "peak_mib": peaks}));
    }
    Ok(Run {
        name: "report",
        options: json!({"intervals": intervals, "touch_rows": touches, "repeats": repeats}),
        columns: vec!["output", "seconds", "peak MiB", "ns per row"],
        rows,
        verdicts,
        summary: json!({"touch_rows": touches, "intervals": intervals}),
        raw: raw.into(),
    })
}
