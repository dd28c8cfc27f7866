//! `varve alloc report`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::Failure;
use crate::commands::{open, report};

#[derive(Debug, Args)]
pub(crate) struct AllocReport {
    /// Trace folder, as `varve alloc record` wrote it
    #[arg(value_name = "TRACE")]
    pub(crate) trace: PathBuf,

    /// Show all rows of all tables
    #[arg(long)]
    pub(crate) all: bool,

    /// Write JSON to standard output
    #[arg(long)]
    pub(crate) json: bool,
}

pub(super) fn run(arguments: &AllocReport) -> Result<ExitCode, Failure> {
    let trace = open::open(&arguments.trace)?;
    let Some(judgement) = varve_alloc::judge(&trace)? else {
        return Err(Failure::new(
            format!("{} has no allocator operations", arguments.trace.display()),
            Some("record them: `varve alloc record -- COMMAND`"),
        ));
    };
    report::show(&judgement, arguments.json, |width, color| {
        varve_report::terminal::alloc::render(&judgement, width, color, arguments.all)
    })?;
    Ok(ExitCode::SUCCESS)
}
