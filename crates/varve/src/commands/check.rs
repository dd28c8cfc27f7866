//! `varve check`.

mod budgets;
mod runs;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use varve_compare::{Check as Checked, Outcome, check};

use super::Failure;
use super::new_file::write_file;
use super::report;
use crate::values::{MostGrowth, MostShare, Size};

#[derive(Debug, Args)]
#[command(
    override_usage = "varve check [OPTIONS] <TRACE>...\n       varve check [OPTIONS] [-n N] -- <COMMAND>..."
)]
#[command(after_help = "\
Exit code: 0 all budgets hold, 1 one is broken, 2 one could not be judged, or nothing could, 3 the program failed by itself.
A budget over something that the trace does not know is never passed: it could not be judged, and the reason is printed.

Examples:
  varve check run.varve --max-touched 80MiB --no-finding never-touched
  varve check --budget memory.toml --junit memory.xml -n 3 -- ./tests
  varve check --baseline kept.varve --max-growth 5% -- ./solver
  varve check run.varve --max-object 'plate*=10MiB'")]
pub(crate) struct Check {
    /// Traces of one program: a budget holds where it does in each of them
    #[arg(value_name = "TRACE", required_unless_present = "command")]
    pub(crate) traces: Vec<PathBuf>,

    #[command(flatten)]
    pub(crate) limits: Limits,

    /// Only the intervals that overlap with a phase of this name, as the program calls it (docs/marks.md)
    #[arg(long, value_name = "NAME")]
    pub(crate) phase: Option<String>,

    /// How often the command runs [default: 1]
    #[arg(short = 'n', long = "runs", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) runs: Option<u32>,

    /// Interval of recordings of the command; working sets and page touches depend on it [default: 50ms]
    #[arg(long, value_name = "TIME", value_parser = interval)]
    pub(crate) interval: Option<String>,

    /// Keep the traces of the command in this folder
    #[arg(long, value_name = "FOLDER")]
    pub(crate) keep: Option<PathBuf>,

    /// Exit code with which the program ends when it does not fail
    #[arg(long, value_name = "CODE", default_value_t = 0)]
    pub(crate) expect_exit: i32,

    /// Write the result as JUnit XML
    #[arg(long, value_name = "FILE")]
    pub(crate) junit: Option<PathBuf>,

    /// Write JSON to standard output
    #[arg(long)]
    pub(crate) json: bool,

    /// The command to record, and its arguments
    #[arg(last = true, value_name = "COMMAND", conflicts_with = "traces")]
    pub(crate) command: Vec<OsString>,
}

/// Budgets, as they are typed.
#[derive(Debug, Default, Args)]
pub(crate) struct Limits {
    /// Read budgets from this TOML file; those that are typed are judged too
    #[arg(long, value_name = "FILE")]
    pub(crate) budget: Option<PathBuf>,

    /// The most memory touched at all
    #[arg(long, value_name = "SIZE")]
    pub(crate) max_touched: Option<Size>,

    /// The most memory touched in one interval
    #[arg(long, value_name = "SIZE")]
    pub(crate) max_working_set: Option<Size>,

    /// The most memory touched in the median interval
    #[arg(long, value_name = "SIZE")]
    pub(crate) max_median_working_set: Option<Size>,

    /// The most resident memory; it depends on what else the machine does, which touched memory does not
    #[arg(long, value_name = "SIZE")]
    pub(crate) max_resident: Option<Size>,

    /// The largest sum over intervals of the pages touched
    #[arg(long, value_name = "N")]
    pub(crate) max_page_touches: Option<u64>,

    /// The most memory touched of objects of a name, all together; `*` and `?` stand for letters
    #[arg(long, value_name = "NAME=SIZE", value_parser = budgets::object)]
    pub(crate) max_object: Vec<(String, Size)>,

    /// The largest share of the time in which the recorder held the program
    #[arg(long, value_name = "SHARE")]
    pub(crate) max_held: Option<MostShare>,

    /// No run may have this finding; with `:NAME`, none about objects of this name
    #[arg(long, value_name = "FINDING[:NAME]", value_parser = budgets::finding)]
    pub(crate) no_finding: Vec<(String, Option<String>)>,

    /// A kept trace that growth is relative to; several for the median of several runs
    #[arg(long, value_name = "TRACE")]
    pub(crate) baseline: Vec<PathBuf>,

    /// How much more memory than in the baseline may be touched, at all and in the median interval
    #[arg(long, value_name = "SHARE")]
    pub(crate) max_growth: Option<MostGrowth>,
}

/// All budgets hold.
const HOLDS: u8 = 0;
/// A budget is broken.
const BROKEN: u8 = 1;
/// A budget could not be judged, or nothing could.
const NOT_JUDGED: u8 = 2;
/// The program failed by itself.
const FAILED: u8 = 3;

pub(crate) fn run(arguments: &Check) -> Result<ExitCode, Failure> {
    judge(arguments).map_err(|failure| Failure {
        code: NOT_JUDGED,
        ..failure
    })
}

/// A length that `varve record` takes.
fn interval(text: &str) -> Result<String, String> {
    text.parse::<super::record::values::IntervalArgument>()
        .map(|_| text.to_owned())
}

fn judge(arguments: &Check) -> Result<ExitCode, Failure> {
    let wanted = budgets::Wanted::of(&arguments.limits)?;
    let phase = arguments.phase.as_deref();
    let baseline = super::diff::read(&wanted.baseline, phase)?;
    let recorded = runs::Recorded::of(arguments)?;
    let mut runs = super::diff::read(&recorded.traces, phase)?;
    for (run, path) in runs.iter_mut().zip(&recorded.traces) {
        for name in wanted.objects() {
            if run.has_several(name) {
                run.set_distinct(name, super::diff::touched(path, phase, name)?);
            }
        }
    }
    for (run, name) in runs.iter_mut().zip(recorded.names.iter().flatten()) {
        run.recording.trace.clone_from(name);
    }
    let found = check(&wanted.budgets, &runs, &baseline, arguments.expect_exit);
    if let Some(file) = &arguments.junit {
        let first = recorded.traces.first().map(|path| super::open::open(path));
        if let Some(trace) = first.transpose()? {
            write_file(&trace, file, |out| {
                varve_report::junit::write(&found, out).map_err(|e| {
                    Failure::new(
                        format!("cannot write {}: {e}", file.display()),
                        None::<String>,
                    )
                })
            })?;
        }
    }
    report::show(&found, arguments.json, |_, color| {
        varve_report::terminal::check::render(&found, color)
    })?;
    recorded.show_failures(&found);
    Ok(ExitCode::from(code(&found)))
}

fn code(found: &Checked) -> u8 {
    // Of a program that failed no figure is what it would have been.
    match (found.failed.is_empty(), found.outcome) {
        (false, _) => FAILED,
        (true, Outcome::Broken) => BROKEN,
        (true, Outcome::NotJudged) => NOT_JUDGED,
        (true, Outcome::Holds) => HOLDS,
    }
}
