//! `varve diff`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use varve_analyse::Analysis;
use varve_compare::{Run, diff};
use varve_model::Pages;
use varve_report::map::Map;
use varve_trace::{Manifest, Trace};

use super::filter::Filter;
use super::{Failure, new_file, report};

#[derive(Debug, Args)]
#[command(
    override_usage = "varve diff [OPTIONS] <A> <B>\n       varve diff [OPTIONS] <A>... -- <B>..."
)]
#[command(after_help = "\
Objects and code are matched over builds by function, file, the distance from the function's beginning, and column; how a \
match was made is said where it is not by name and line, and what has none is listed as only in A or only in B. With several \
runs a side a permutation test says what is more than noise: that takes 4 a side at least, and 6 where many objects are compared.

Examples:
  varve diff before.varve after.varve             what differs
  varve diff before-*.varve -- after-*.varve      and what of it is more than noise, of several runs a side
  varve diff before.varve after.varve --all       every row, and lines of code
  varve diff before.varve after.varve --html page.html   the maps of both over one another
  varve diff before.varve after.varve --json | jq .program")]
pub(crate) struct Diff {
    /// Traces: one of each side, or those of the first side before `--`
    #[arg(value_name = "TRACE", required = true)]
    pub(crate) first: Vec<PathBuf>,

    /// Traces of the second side
    #[arg(value_name = "B", last = true)]
    pub(crate) second: Vec<PathBuf>,

    /// Only the intervals that overlap with a phase of this name, as the program calls it (docs/marks.md)
    #[arg(long, value_name = "NAME")]
    pub(crate) phase: Option<String>,

    /// Show every row, and lines of code
    #[arg(long)]
    pub(crate) all: bool,

    /// Write JSON to standard output
    #[arg(long)]
    pub(crate) json: bool,

    /// Write one offline page, with the maps of both sides over one another (of several runs, of the first)
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Diff) -> Result<ExitCode, Failure> {
    let (a, b) = sides(arguments)?;
    let phase = arguments.phase.as_deref();
    let with_map = arguments.html.is_some();
    let (a, b) = (side(a, phase, with_map)?, side(b, phase, with_map)?);
    let found = diff(&a.runs, &b.runs);
    if let (Some(page), Some(of_a), Some(of_b)) = (&arguments.html, &a.map, &b.map) {
        // Who may not read one of the traces shall not read what is made of it.
        new_file::write_with_mode(a.mode & b.mode, page, |out| {
            varve_report::html::write_diff(&found, [of_a, of_b], out)
                .map_err(|e| Failure::new(e, None::<String>))
        })?;
        if !arguments.json {
            return Ok(ExitCode::SUCCESS);
        }
    }
    report::show(&found, arguments.json, |width, color| {
        varve_report::terminal::diff::render(&found, width, color, arguments.all)
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Wrong arguments.
const WRONG: u8 = 2;

/// The traces of both sides.
fn sides(arguments: &Diff) -> Result<(&[PathBuf], &[PathBuf]), Failure> {
    match (&arguments.first[..], &arguments.second[..]) {
        ([_, _], []) => Ok(arguments.first.split_at(1)),
        (first, []) => Err(Failure {
            code: WRONG,
            ..Failure::new(
                format!(
                    "two sides are compared, and {} given",
                    match first.len() {
                        1 => "one trace was".to_owned(),
                        n => format!("{n} traces without sides were"),
                    }
                ),
                Some(
                    "give two traces, or those of each side with `--` between them, as in `varve diff a-*.varve -- b-*.varve`",
                ),
            )
        }),
        (first, second) => match second
            .iter()
            .find(|t| t.as_os_str().as_encoded_bytes().starts_with(b"--"))
        {
            Some(option) => Err(Failure {
                code: WRONG,
                ..Failure::new(
                    format!("{} stands behind `--`, where traces are", option.display()),
                    Some("put options before the traces"),
                )
            }),
            None => Ok((first, second)),
        },
    }
}

/// One side, read.
struct Read {
    runs: Vec<Run>,
    /// Of the first run, where it was asked for.
    map: Option<Map>,
    /// Who may read all of the traces.
    mode: u32,
}

fn side(traces: &[PathBuf], phase: Option<&str>, with_map: bool) -> Result<Read, Failure> {
    let mut side = Read {
        runs: Vec::new(),
        map: None,
        mode: 0o777,
    };
    let mut known: Vec<(&Path, Manifest)> = Vec::new();
    for path in traces {
        let (trace, analysis) = analysed(path, phase)?;
        // A run that counts twice would make noise seem small.
        if let Some((first, _)) = known.iter().find(|(_, m)| *m == trace.manifest) {
            return Err(Failure {
                code: WRONG,
                ..Failure::new(
                    format!(
                        "{} and {} are the same recording, which counts once",
                        first.display(),
                        path.display()
                    ),
                    Some("give each trace of a side once"),
                )
            });
        }
        known.push((path, trace.manifest.clone()));
        side.mode &= trace.access()?.of_files();
        if with_map && side.map.is_none() {
            side.map = Some(report::map(&trace, &analysis)?);
        }
        side.runs.push(Run::new(path, &trace, &analysis)?);
    }
    Ok(side)
}

/// Reads traces one after the other: each is in memory alone while it is analysed.
/// With a phase, what ran while it did.
pub(super) fn read(traces: &[PathBuf], phase: Option<&str>) -> Result<Vec<Run>, Failure> {
    Ok(side(traces, phase, false)?.runs)
}

/// The distinct touched pages of all objects of a name; those of the intervals of a phase, with one.
pub(super) fn touched(path: &Path, phase: Option<&str>, name: &str) -> Result<Pages, Failure> {
    let filter = Filter {
        object: Some(name.to_owned()),
        phase: phase.map(str::to_owned),
        ..Filter::default()
    };
    let trace = super::filter::choose(super::open::open(path)?, &filter)?;
    let analysis = report::analyse(&trace, false)?;
    Ok(analysis
        .footprint
        .touched_pages
        .value()
        .copied()
        .unwrap_or_default())
}

fn analysed(path: &Path, phase: Option<&str>) -> Result<(Trace, Analysis), Failure> {
    let mut trace = super::open::open(path)?;
    if let Some(name) = phase {
        trace = super::filter::choose_phase(trace, name)?;
    }
    let analysis = report::analyse(&trace, false)?;
    Ok((trace, analysis))
}
