//! How much slower programs run while they are recorded.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde_json::json;

use crate::Common;
use crate::error::{Error, Result};
use crate::launch::{Outcome, Peak, Program, cleared, plain, recorded};
use crate::run::{Run, verdict};
use crate::statistics::{geometric_mean, greatest, median, quantile};

/// The committed set, built by `make -C workloads`.
const OWN_SUITE: [&str; 5] = ["cg", "ft", "is", "mg", "ep"];

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Folder of programs, all of which are run [default: cg, ft, is, mg and ep of workloads/bin]
    #[arg(long, value_name = "FOLDER")]
    suite: Option<PathBuf>,
    /// Only these programs of the suite
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// Interval, as for `varve record` [default: as its default overhead allows]
    #[arg(long, value_name = "TIME")]
    interval: Option<String>,
    /// Whether writes are distinguished from reads, as for `varve record`
    #[arg(long, default_value = "auto", value_parser = ["auto", "on", "off"])]
    writes: String,
    /// Samples, as for `varve record`; what they cost by themselves is the benchmark `samples` [default: as its default
    /// overhead allows; with `--interval`: off]
    #[arg(long, value_name = "RATE")]
    samples: Option<String>,
    /// Also run beside the bare minimum, at the same interval: stop, clear, flush, let go, and read nothing
    #[arg(long, requires = "interval")]
    minimum: bool,
    /// Pairs of runs for each program
    #[arg(long, default_value_t = 5)]
    repeats: u32,
    /// OMP_NUM_THREADS
    #[arg(long, default_value_t = 2)]
    threads: u32,
}

/// One program's pairs.
struct Measured {
    name: String,
    pairs: Vec<(Outcome, Outcome)>,
    /// Of the bare minimum, where that is wanted, beside each pair.
    minima: Vec<Outcome>,
    held: Vec<f64>,
    cpu: Vec<f64>,
    /// What the recorder said of the slowdown.
    said: Vec<f64>,
    incomplete: Vec<String>,
}

impl Options {
    /// The interval of the bare minimum; none where it is not wanted.
    fn minimum_interval(&self) -> Result<Option<Duration>> {
        let Some(text) = self.interval.as_ref().filter(|_| self.minimum) else {
            return Ok(None);
        };
        let number = text.strip_suffix("ms").and_then(|n| n.parse().ok());
        let interval = number.map(Duration::from_millis).ok_or_else(|| {
            Error::Failed("the bare minimum takes an interval such as 50ms".into())
        })?;
        Ok(Some(interval))
    }

    /// The options of `varve record`.
    fn recorder(&self) -> Vec<&str> {
        let mut arguments = vec!["--writes", self.writes.as_str()];
        let samples = match (&self.samples, &self.interval) {
            (Some(rate), _) => Some(rate.as_str()),
            (None, Some(_)) => Some("off"),
            (None, None) => None,
        };
        let interval = self.interval.as_deref();
        for (name, value) in [("--interval", interval), ("--samples", samples)] {
            arguments.extend(value.into_iter().flat_map(|value| [name, value]));
        }
        arguments
    }
}

pub(crate) fn measure(common: &Common, options: &Options) -> Result<Run> {
    let mut measured = Vec::new();
    for program in programs(common, options)? {
        eprintln!("{} ...", program.name);
        measured.push(pairs(common, options, &program)?);
    }
    Ok(report(options, &measured))
}

fn programs(common: &Common, options: &Options) -> Result<Vec<Program>> {
    let own = options.suite.is_none();
    let folder = options
        .suite
        .clone()
        .unwrap_or_else(|| "workloads/bin".into());
    let mut names: Vec<String> = if own {
        OWN_SUITE.map(str::to_owned).to_vec()
    } else {
        executables(&folder)?
    };
    if !options.only.is_empty() {
        names.retain(|n| options.only.contains(n));
    }
    if names.is_empty() {
        return Err(Error::Failed(format!(
            "there is no program to run in {}",
            folder.display()
        )));
    }
    let small = ["--size", "S", "--seconds", "0.2"];
    Ok(names
        .into_iter()
        .map(|name| Program {
            path: folder.join(&name),
            name,
            arguments: match own && common.smoke {
                true => small.map(Into::into).to_vec(),
                false => Vec::new(),
            },
            threads: options.threads,
        })
        .collect())
}

pub(crate) fn executables(folder: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(folder).map_err(Error::io("list", folder))?;
    let mut names: Vec<String> = entries
        .flatten()
        .filter(|e| {
            e.metadata()
                .is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
        })
        .map(|e| e.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    Ok(names)
}

fn pairs(common: &Common, options: &Options, program: &Program) -> Result<Measured> {
    let scratch = tempfile::tempdir_in(&common.scratch)
        .map_err(Error::io("make a folder in", &common.scratch))?;
    let folder = scratch.path().join("overhead.varve");
    let mut measured = Measured {
        name: program.name.clone(),
        pairs: Vec::new(),
        minima: Vec::new(),
        held: Vec::new(),
        cpu: Vec::new(),
        said: Vec::new(),
        incomplete: Vec::new(),
    };
    let repeats = if common.smoke {
        1
    } else {
        options.repeats.max(1)
    };
    for turn in 0..repeats {
        // By turns, and each first by turns: what drifts on the machine meets both alike.
        let before = if turn % 2 == 0 {
            Some(plain(common, program)?)
        } else {
            None
        };
        let arguments = options.recorder();
        let (with, trace) = recorded(common, program, &arguments, &folder, Peak::Ignored)?;
        let without = match before {
            Some(outcome) => outcome,
            None => plain(common, program)?,
        };
        if let Some(interval) = options.minimum_interval()? {
            let minimum = cleared(common, program, interval)?;
            eprintln!("  {:.2} s with the bare minimum", minimum.life_s);
            measured.minima.push(minimum);
        }
        let overhead = trace.manifest.overhead;
        measured
            .held
            .push(overhead.held_ns.0 as f64 / 1e9 / with.life_s);
        measured
            .cpu
            .push(overhead.recorder_cpu_ns.0 as f64 / 1e9 / with.life_s);
        let length = trace.manifest.clock.end_ns - trace.manifest.clock.start_ns;
        let said = varve_analyse::Slowdown::of(&trace.manifest, length, 1);
        measured
            .said
            .push(said.map_or(f64::NAN, |s| 1.0 + s.measured));
        if !trace.manifest.completeness.complete {
            measured
                .incomplete
                .push(trace.manifest.completeness.statement.clone());
        }
        eprintln!(
            "  {:.2} s plain, {:.2} s recorded",
            without.life_s, with.life_s
        );
        measured.pairs.push((without, with));
    }
    Ok(measured)
}

fn ratios(measured: &Measured, of: impl Fn(&Outcome) -> Option<f64>) -> Vec<f64> {
    let both = |(without, with): &(Outcome, Outcome)| Some(of(with)? / of(without)?);
    measured.pairs.iter().filter_map(both).collect()
}

fn report(options: &Options, measured: &[Measured]) -> Run {
    let mut rows = Vec::new();
    let (mut slow, mut whole, mut limits) = (Vec::new(), Vec::new(), Vec::new());
    for m in measured {
        let life = ratios(m, |o| Some(o.life_s));
        let command = ratios(m, |o| Some(o.command_s));
        let own = ratios(m, |o| o.own_s.filter(|s| *s > 0.0));
        let plains: Vec<f64> = m.pairs.iter().map(|p| p.0.life_s).collect();
        let foreign: Vec<f64> = m
            .pairs
            .iter()
            .flat_map(|p| [&p.0, &p.1])
            .map(|o| o.foreign_cpus + o.stolen_cpus)
            .collect();
        let minima = m.pairs.iter().zip(&m.minima);
        let beside: Vec<f64> = minima
            .clone()
            .map(|(p, min)| p.1.life_s / min.life_s)
            .collect();
        let minimum: Vec<f64> = minima.map(|(p, min)| min.life_s / p.0.life_s).collect();
        if !beside.is_empty() {
            limits.push(median(&beside));
        }
        let of_minimum = |ratios: &[f64]| match ratios {
            [] => "-".to_owned(),
            some => format!("{:.3}", median(some)),
        };
        slow.push(median(&life));
        whole.push(median(&command));
        rows.push(vec![
            m.name.clone(),
            format!("{:.2}", median(&plains)),
            format!("{:.3}", median(&life)),
            format!("{:.3}-{:.3}", quantile(&life, 0.0), greatest(&life)),
            format!("{:.3}", median(&m.said)),
            if own.is_empty() {
                "-".into()
            } else {
                format!("{:.3}", median(&own))
            },
            format!("{:.3}", median(&command)),
            format!("{:.1} %", 100.0 * median(&m.held)),
            format!("{:.1} %", 100.0 * median(&m.cpu)),
            of_minimum(&minimum),
            of_minimum(&beside),
            format!("{:.2}", greatest(&foreign)),
            if m.incomplete.is_empty() {
                "yes".into()
            } else {
                "no".into()
            },
        ]);
    }
    let mean = geometric_mean(&slow);
    let mut verdicts = Vec::new();
    if options.writes == "on" {
        // A fault for each first write of a page is a price that only who asks for it pays.
        verdicts.push(format!(
            "slowdown with every write known: geometric mean {mean:.3}, worst {:.3}; no target",
            greatest(&slow)
        ));
    } else {
        // By default the promise, else what a recording every 50 ms was to cost.
        let (of_all, of_each) = match options.interval {
            None => (1.05, 1.05),
            Some(_) => (1.10, 1.30),
        };
        verdicts.push(verdict("geometric mean slowdown", mean, of_all, ""));
        verdicts.push(verdict("worst slowdown", greatest(&slow), of_each, ""));
    }
    if !limits.is_empty() {
        // All that can be done about the rest is to do less.
        verdicts.push(verdict(
            "worst beside the bare minimum",
            greatest(&limits),
            1.05,
            "",
        ));
    }
    verdicts.push(format!(
        "geometric mean of the whole command, set-up and naming of objects included: {:.3}",
        geometric_mean(&whole)
    ));
    Run {
        name: "overhead",
        options: json!({
            "interval": options.interval, "writes": options.writes, "samples": options.samples, "minimum": options.minimum, "repeats": options.repeats, "threads": options.threads,
            "suite": if options.suite.is_some() { "given" } else { "workloads/bin" },
        }),
        columns: vec![
            "program", "plain s", "slowdown", "range", "measured", "own time", "command", "held", "recorder CPU",
            "minimum", "beside it", "other CPUs", "complete",
        ],
        rows,
        verdicts,
        summary: json!({
            "geometric_mean": mean, "worst": greatest(&slow), "command_geometric_mean": geometric_mean(&whole),
        }),
        raw: measured
            .iter()
            .map(|m| {
                json!({
                    "program": m.name,
                    "pairs": m.pairs.iter().map(|(without, with)| json!({"plain": without.json(), "recorded": with.json()})).collect::<Vec<_>>(),
                    "minimum": m.minima.iter().map(Outcome::json).collect::<Vec<_>>(),
                    "held_share": m.held, "measured_slowdown": m.said, "recorder_cpu_share": m.cpu, "incomplete": m.incomplete,
                })
            })
            .collect(),
    }
}
