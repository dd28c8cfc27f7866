//! `varve alloc report`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use varve_alloc::Blocks;

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

    /// Write call stacks with bytes to standard output, for flame graphs: of all that was allocated, of what lived when most did, or of
    /// what was never freed
    #[arg(long, value_name = "OF", conflicts_with_all = ["json", "all"])]
    pub(crate) folded: Option<Folded>,
}

/// Which bytes folded stacks have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Folded {
    Allocated,
    Peak,
    NeverFreed,
}

/// A line for each call stack, the outermost function first.
fn folded(blocks: &Blocks, of: Folded) -> String {
    let mut text = String::new();
    for site in &blocks.sites {
        let bytes = match of {
            Folded::Allocated => site.allocated.bytes,
            Folded::Peak => site.at_peak.bytes,
            Folded::NeverFreed => site.never_freed.bytes,
        };
        if bytes.0 == 0 {
            continue;
        }
        let names = site
            .stack
            .iter()
            .rev()
            .map(|name| varve_model::visible(name).replace(';', ":"));
        let stack: Vec<String> = match site.stack.is_empty() {
            true => vec!["unknown caller".to_owned()],
            false => names.collect(),
        };
        text.push_str(&format!("{} {}\n", stack.join(";"), bytes.0));
    }
    text
}

pub(super) fn run(arguments: &AllocReport) -> Result<ExitCode, Failure> {
    let trace = open::open(&arguments.trace)?;
    let Some(judgement) = varve_alloc::judge(&trace)? else {
        return Err(Failure::new(
            format!("{} has no allocator operations", arguments.trace.display()),
            Some("record them: `varve alloc record -- COMMAND`"),
        ));
    };
    if let Some(of) = arguments.folded {
        report::print(&folded(&judgement.blocks, of))?;
        return Ok(ExitCode::SUCCESS);
    }
    report::show(&judgement, arguments.json, |width, color| {
        varve_report::terminal::alloc::render(&judgement, width, color, arguments.all)
    })?;
    Ok(ExitCode::SUCCESS)
}
