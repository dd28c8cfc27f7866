//! `varve export`.

use std::io::{BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use varve_report::export::{ExportError, export};

use super::Failure;
use super::filter::Filter;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  varve export solver.varve --format csv -o -            every access, to standard output
  varve export solver.varve --format firefox -o p.json   for https://profiler.firefox.com
  varve export solver.varve --format folded -o - | flamegraph.pl > flames.svg

Samples are written where the trace has any, else page faults, else touched pages; of \
`--backend fault` the accesses that faulted or were trapped.

The exit code is 0 where all was written; 1 where the trace cannot be read, any table of it is damaged, or the \
file cannot be written; 2 where the arguments are wrong.")]
pub(crate) struct Export {
    /// Trace folder
    #[arg(value_name = "TRACE")]
    pub(crate) trace: PathBuf,

    #[command(flatten)]
    pub(crate) filter: Filter,

    /// What to write
    #[arg(long, value_name = "FORMAT")]
    pub(crate) format: ExportArgument,

    /// File to write; `-` for standard output
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
}

/// `varve export --format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ExportArgument {
    /// Lines like those of `perf script` of a recording of `perf mem`
    PerfScript,
    /// JSON of the Firefox Profiler
    Firefox,
    /// JSON of speedscope
    Speedscope,
    /// Folded stacks, for flame graphs
    Folded,
    /// Comma-separated values
    Csv,
}

impl ExportArgument {
    pub(crate) const fn resolved(self) -> varve_report::export::ExportFormat {
        use varve_report::export::ExportFormat;
        match self {
            ExportArgument::PerfScript => ExportFormat::PerfScript,
            ExportArgument::Firefox => ExportFormat::Firefox,
            ExportArgument::Speedscope => ExportFormat::Speedscope,
            ExportArgument::Folded => ExportFormat::Folded,
            ExportArgument::Csv => ExportFormat::Csv,
        }
    }
}

pub(crate) fn run(arguments: &Export) -> Result<ExitCode, Failure> {
    let trace = super::open::open(&arguments.trace)?;
    // What is written may come from one table only. Who hands it on must hear that the trace is damaged.
    trace.check()?;
    let trace = super::filter::choose(trace, &arguments.filter)?;
    let format = arguments.format.resolved();
    if arguments.output == Path::new("-") {
        let mut out = BufWriter::new(std::io::stdout().lock());
        let done = export(&trace, format, &mut out).and_then(|()| Ok(out.flush()?));
        return match done {
            // Nobody reads any more, such as `head`; that is no failure.
            Err(ExportError::Io(e)) if e.kind() == ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
            other => other.map(|()| ExitCode::SUCCESS).map_err(failure),
        };
    }
    super::new_file::write_file(&trace, &arguments.output, |out| {
        export(&trace, format, out).map_err(failure)
    })?;
    Ok(ExitCode::SUCCESS)
}

fn failure(error: ExportError) -> Failure {
    match error {
        ExportError::Trace(error) => error.into(),
        error => Failure::new(error, None::<String>),
    }
}
