//! `varve alloc`: whether the allocator makes a program slow or large.

mod allocators;
mod compare;
mod range;
mod record;
mod report;

use std::process::ExitCode;

use clap::{Args, Subcommand};
use varve_alloc::Judged;
use varve_analyse::Analysis;
use varve_trace::Trace;

use super::Failure;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  varve alloc record -- ./server            count its allocator operations, beside all else
  varve alloc report server.varve           whether it is the allocator, and why
  varve alloc compare -n 10 -- ./solver     every allocator that is present: time, memory, and why")]
pub(crate) struct Alloc {
    #[command(subcommand)]
    pub(crate) command: AllocCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum AllocCommand {
    /// Record a program with its allocator operations
    Record(record::AllocRecord),
    /// Run a program under every allocator that is present, and compare
    Compare(compare::Compare),
    /// Say what is normal for allocators, of many comparisons, and where one lies in that
    Range(range::AllocRange),
    /// Judge the allocator of a recorded program
    Report(report::AllocReport),
}

/// What a trace says of its program's allocator; none where operations were not recorded.
fn judge(trace: &Trace, analysis: Option<&Analysis>) -> Result<Option<Judged>, Failure> {
    if analysis.is_some() || !varve_alloc::needs_analysis(trace)? {
        return Ok(varve_alloc::judge(trace, analysis)?);
    }
    let made = super::report::analyse(trace, false)?;
    Ok(varve_alloc::judge(trace, Some(&made))?)
}

pub(crate) fn run(arguments: &Alloc) -> Result<ExitCode, Failure> {
    match &arguments.command {
        AllocCommand::Record(arguments) => record::run(arguments),
        AllocCommand::Compare(arguments) => compare::run(arguments),
        AllocCommand::Range(arguments) => range::run(arguments),
        AllocCommand::Report(arguments) => report::run(arguments),
    }
}
