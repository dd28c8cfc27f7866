//! The figures of the Moca study (RR-8931) in one command: percent of pages, percent of events and slowdown of every
//! program by every method, and how slowdown, events and pages follow the interval; as tables and as plots.

mod plots;
mod tables;

use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};

use crate::Common;
use crate::capture::{self, Method, Round};
use crate::error::{Error, Result};
use crate::launch::Program;
use crate::run::{Run, date};

/// The methods whose intervals are asked for.
const SWEPT: [Method; 2] = [Method::Scan, Method::Fault];

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Folder of programs, all of which are run [default: cg and is of workloads/bin]
    #[arg(long, value_name = "FOLDER")]
    suite: Option<PathBuf>,
    /// Only these programs of the suite
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// Only these methods
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = Method::ALL)]
    methods: Vec<Method>,
    /// Interval of the comparison, milliseconds
    #[arg(long, value_name = "MS", default_value_t = 50)]
    interval: u32,
    /// Intervals of the sweep, milliseconds
    #[arg(long, value_name = "MS", value_delimiter = ',', default_values_t = [10, 20, 50, 100, 200])]
    intervals: Vec<u32>,
    /// Rounds of runs for each program
    #[arg(long, default_value_t = 3)]
    repeats: u32,
    /// `OMP_NUM_THREADS`
    #[arg(long, default_value_t = 2)]
    threads: u32,
    /// Folder for tables and plots [default: study-DATE among the results]
    #[arg(long, value_name = "FOLDER")]
    output: Option<PathBuf>,
}

/// What was measured of one program.
struct Studied {
    name: String,
    /// Each with all methods.
    rounds: Vec<Round>,
    /// The same by interval, milliseconds, with the methods of the sweep.
    sweep: Vec<(u32, Vec<Round>)>,
}

pub(crate) fn measure(common: &Common, options: &Options) -> Result<Run> {
    let programs = capture::programs(options.suite.as_deref(), &options.only, options.threads)?;
    let swept: Vec<Method> = (SWEPT.into_iter())
        .filter(|m| options.methods.contains(m))
        .collect();
    let (programs, intervals) = match common.smoke {
        true => (
            &programs[..1],
            options.intervals.get(..1).unwrap_or_default(),
        ),
        false => (&programs[..], &options.intervals[..]),
    };
    let mut all = Vec::new();
    for program in programs {
        eprintln!("{} ...", program.name);
        all.push(study(common, options, program, &swept, intervals)?);
    }
    let folder = common.runs.join(match &common.label {
        Some(label) => format!("study-{}-{label}", date()),
        None => format!("study-{}", date()),
    });
    let folder = options.output.clone().unwrap_or(folder);
    let scratch = tempfile::tempdir_in(&common.scratch)
        .map_err(Error::io("make a folder in", &common.scratch))?;
    let folder = match common.smoke {
        true => scratch.path().to_owned(),
        false => folder,
    };
    std::fs::create_dir_all(&folder).map_err(Error::io("create", &folder))?;
    plots::prepare()?;
    let figures = tables::figures(&all, &options.methods);
    for figure in &figures {
        figure.write(&folder)?;
        plots::bars(figure, &options.methods, &folder)?;
    }
    let sweep = tables::sweep(&all, &swept);
    sweep.write(&folder)?;
    plots::sweep(&sweep, &folder)?;
    if !common.smoke {
        println!("tables and plots are in {}", folder.display());
    }
    Ok(run(options, &all, &figures, &swept))
}

fn study(
    common: &Common,
    options: &Options,
    program: &Program,
    swept: &[Method],
    intervals: &[u32],
) -> Result<Studied> {
    let at = |interval: u32, methods: &[Method]| {
        let interval = format!("{interval}ms");
        capture::rounds(common, program, methods, &interval, options.repeats)
    };
    let rounds = at(options.interval, &options.methods)?;
    let mut sweep = Vec::new();
    for interval in intervals.iter().filter(|_| !swept.is_empty()) {
        eprintln!("  intervals of {interval} ms");
        sweep.push((*interval, at(*interval, swept)?));
    }
    Ok(Studied {
        name: program.name.clone(),
        rounds,
        sweep,
    })
}

fn run(options: &Options, all: &[Studied], figures: &[tables::Figure], swept: &[Method]) -> Run {
    let mut rows = Vec::new();
    for studied in all {
        for method in &options.methods {
            let of = |figure: &tables::Figure| {
                let found = figure.of(&studied.name, *method);
                found.map_or_else(|| "-".into(), |f| format!("{:.2}", f.median))
            };
            let mut row = vec![studied.name.clone(), method.name().into()];
            row.extend(figures.iter().map(of));
            rows.push(row);
        }
    }
    let raw = |studied: &Studied| {
        let by_interval = studied.sweep.iter().map(|(interval, rounds)| {
            json!({"interval_ms": interval, "rounds": capture::raw(swept, &studied.name, rounds)})
        });
        json!({
            "comparison": capture::raw(&options.methods, &studied.name, &studied.rounds),
            "sweep": by_interval.collect::<Vec<_>>(),
        })
    };
    Run {
        name: "study",
        options: json!({
            "interval_ms": options.interval, "intervals_ms": options.intervals, "repeats": options.repeats,
            "threads": options.threads, "thp": "never",
            "methods": options.methods.iter().map(|m| m.name()).collect::<Vec<_>>(),
            "suite": if options.suite.is_some() { "given" } else { "workloads/bin" },
        }),
        columns: vec!["program", "method", "% of pages", "% of events", "slowdown"],
        rows,
        verdicts: vec![
            "% of pages: of those of writable memory that exact counts in the whole run; % of events: of the accesses that fault traps; \
             slowdown: against plain runs of the same rounds; medians"
                .into(),
        ],
        summary: Value::Null,
        raw: all.iter().map(raw).collect(),
    }
}
