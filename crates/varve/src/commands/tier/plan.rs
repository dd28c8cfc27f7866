//! `varve tier plan`.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use varve_analyse::format;
use varve_report::quoted_path;
use varve_tier::{Plan, PlanOptions, plan};
use varve_ui::Progress;

use super::TierArguments;
use crate::commands::new_file::write_file;
use crate::commands::open::open;
use crate::commands::{Failure, report};

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  varve tier plan solver.varve --tier fast=4GiB,80ns --tier slow=inf,250ns -o plan.toml

The plan is a text that a person may read and change: docs/tier.md describes it.")]
pub(crate) struct PlanArguments {
    /// Trace folder, as `varve record` wrote it
    #[arg(value_name = "TRACE")]
    pub(crate) trace: PathBuf,

    #[command(flatten)]
    pub(crate) tiers: TierArguments,

    /// File to write [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

pub(super) fn run(arguments: &PlanArguments) -> Result<ExitCode, Failure> {
    let tiers = arguments.tiers.resolve()?;
    let trace = open(&arguments.trace)?;
    let progress = Progress::new("Planning");
    let options = PlanOptions::default();
    let made = plan(&trace, &tiers, &options, super::room(), &mut |share| {
        progress.set(share);
    })?;
    drop(progress);
    let text = made.to_toml();
    varve_ui::note(summary(&made));
    let Some(path) = &arguments.output else {
        report::print(&text)?;
        return Ok(ExitCode::SUCCESS);
    };
    write_file(&trace, path, |out| {
        out.write_all(text.as_bytes()).map_err(|e| {
            Failure::new(
                format!("cannot write {}: {e}", quoted_path(path)),
                None::<String>,
            )
        })
    })?;
    Ok(ExitCode::SUCCESS)
}

/// What the plan is worth.
fn summary(of: &Plan) -> String {
    let fast = of.places.iter().filter(|p| p.tier != of.default).count() as u64;
    format!(
        "{} placed, chosen as {}: {} of touches would be slow, {} with first touch; modelled run time {:.2} times that with all memory fast, {:.2} with first touch",
        format::counted(fast, "object"),
        of.expected.policy,
        format::share(of.expected.slow_share),
        format::share(of.expected.slow_share_of_first_touch),
        of.expected.modelled_slowdown,
        of.expected.modelled_slowdown_of_first_touch,
    )
}
