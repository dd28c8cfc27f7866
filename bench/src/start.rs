//! What a recording costs beside the intervals: the time until the target begins, the time after its end, and what each
//! process of a shell script costs.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use serde_json::json;
use varve_trace::Trace;
use varve_trace::tables::ProcessRow;

use crate::Common;
use crate::error::{Error, Result};
use crate::launch::{Outcome, Peak, Program, plain, recorded};
use crate::run::{Run, verdict};
use crate::statistics::{greatest, median};

/// The targets, milliseconds: until the target begins, after its end, in all, and for each process; and the share of the
/// time of a script of 500 commands.
const BEFORE_MS: f64 = 250.0;
const AFTER_MS: f64 = 300.0;
const ALL_MS: f64 = 500.0;
const PROCESS_MS: f64 = 0.3;
const SCRIPT: f64 = 1.3;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Rounds: in each, every program plain and recorded
    #[arg(long, default_value_t = 9)]
    repeats: u32,
    /// Commands of the script
    #[arg(long, default_value_t = 500)]
    commands: u32,
    /// Options of `varve record`
    #[arg(
        long = "record",
        value_name = "OPTIONS",
        default_value = "",
        allow_hyphen_values = true
    )]
    variant: String,
}

/// One recording, milliseconds.
struct Parts {
    before: f64,
    life: f64,
    after: f64,
    all: f64,
}

impl Parts {
    fn of(began_ns: u64, outcome: &Outcome, trace: &Trace) -> Result<Parts> {
        let root = trace.manifest.target.pid;
        let lives = trace.rows::<ProcessRow>()?;
        let born = lives.iter().filter(|p| p.pid.0 == root);
        let born = born.map(|p| p.born_ns.0).min().unwrap_or(began_ns);
        let before = born.saturating_sub(began_ns) as f64 / 1e6;
        let (life, all) = (outcome.life_s * 1e3, outcome.command_s * 1e3);
        Ok(Parts {
            before,
            life,
            after: (all - life - before).max(0.0),
            all,
        })
    }
}

fn shell(name: &str, script: &str) -> Program {
    Program {
        name: name.to_owned(),
        path: PathBuf::from("/bin/sh"),
        arguments: vec![OsString::from("-c"), script.into()],
        threads: 1,
    }
}

pub(crate) fn measure(common: &Common, options: &Options) -> Result<Run> {
    let scratch = tempfile::tempdir_in(&common.scratch)
        .map_err(Error::io("make a folder in", &common.scratch))?;
    let folder = scratch.path().join("start.varve");
    let (repeats, commands) = match common.smoke {
        true => (1, 20),
        false => (options.repeats.max(1), options.commands.max(1)),
    };
    let script = format!("i=0; while [ $i -lt {commands} ]; do /bin/true; i=$((i+1)); done");
    let (short, script) = (shell("true", "exec true"), shell("script", &script));
    let words: Vec<&str> = options.variant.split_whitespace().collect();
    let (mut shorts, mut scripts, mut plains) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..repeats {
        plains.push(plain(common, &script)?.command_s * 1e3);
        for (program, parts) in [(&short, &mut shorts), (&script, &mut scripts)] {
            let began = varve_sys::monotonic_now().0;
            let (outcome, trace) = recorded(common, program, &words, &folder, Peak::Ignored)?;
            parts.push(Parts::of(began, &outcome, &trace)?);
        }
    }
    let of = |parts: &[Parts], figure: fn(&Parts) -> f64| {
        median(&parts.iter().map(figure).collect::<Vec<_>>())
    };
    let plain_ms = median(&plains);
    let process_ms = (of(&scripts, |p| p.life) - plain_ms) / f64::from(commands);
    let ratio = of(&scripts, |p| p.all) / plain_ms;
    let row = |name: &str, parts: &[Parts]| {
        let figures: [fn(&Parts) -> f64; 4] = [|p| p.before, |p| p.life, |p| p.after, |p| p.all];
        let figures = figures.map(|figure| format!("{:.0}", of(parts, figure)));
        let mut cells = vec![name.to_owned()];
        cells.extend(figures);
        cells
    };
    let mut plain_row = vec![format!("{commands} commands, plain"), "0".into()];
    plain_row.extend([
        format!("{plain_ms:.0}"),
        "0".into(),
        format!("{plain_ms:.0}"),
    ]);
    let raw = |parts: &[Parts]| {
        let each = |p: &Parts| json!({"before_ms": p.before, "life_ms": p.life, "after_ms": p.after, "all_ms": p.all});
        parts.iter().map(each).collect::<Vec<_>>()
    };
    Ok(Run {
        name: "start",
        options: json!({"repeats": repeats, "commands": commands, "record": options.variant}),
        columns: vec!["medians, ms", "before", "target", "after", "all"],
        rows: vec![
            row("true", &shorts),
            plain_row,
            row(&format!("{commands} commands, recorded"), &scripts),
        ],
        verdicts: vec![
            verdict(
                "before the target begins",
                of(&shorts, |p| p.before),
                BEFORE_MS,
                " ms",
            ),
            verdict("after its end", of(&shorts, |p| p.after), AFTER_MS, " ms"),
            verdict("`true`, in all", of(&shorts, |p| p.all), ALL_MS, " ms"),
            verdict("each process of the script", process_ms, PROCESS_MS, " ms"),
            verdict("the script, in all", ratio, SCRIPT, " times plain"),
        ],
        summary: json!({
            "before_ms": of(&shorts, |p| p.before), "after_ms": of(&shorts, |p| p.after),
            "all_ms": of(&shorts, |p| p.all), "process_ms": process_ms, "script_ratio": ratio,
            "slowest_start_ms": greatest(&shorts.iter().map(|p| p.before).collect::<Vec<_>>()),
        }),
        raw: json!({"plain_ms": plains, "true": raw(&shorts), "script": raw(&scripts)}),
    })
}
