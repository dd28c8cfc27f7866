//! `varve tier simulate`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;

use clap::Args;
use varve_tier::{PolicyName, SimulateOptions, simulate};
use varve_ui::Progress;

use super::TierArguments;
use crate::commands::open::open;
use crate::commands::{Failure, report};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  varve tier simulate solver.varve --tier fast=4GiB,80ns --tier slow=inf,250ns
  varve tier simulate small.varve --on large.varve --tier fast=4GiB,80ns --tier slow=inf,250ns
  varve tier simulate solver.varve --tier fast=1GiB,80ns --tier cxl=8GiB,250ns,bw=20GB/s --tier swap=inf,5us,move=9us
  varve tier simulate solver.varve --tier fast=4GiB,80ns --tier slow=inf,250ns --policy objects,lru,optimum --json

Times are modelled: docs/tier.md says how, and what each policy does.")]
pub(crate) struct Simulate {
    /// Trace folder, as `varve record` wrote it
    #[arg(value_name = "TRACE")]
    pub(crate) trace: PathBuf,

    #[command(flatten)]
    pub(crate) tiers: TierArguments,

    /// Plan objects on TRACE, and replay this one: what a plan is worth with another input
    #[arg(long, value_name = "TRACE")]
    pub(crate) on: Option<PathBuf>,

    /// Simulate these policies alone
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) policy: Vec<PolicyName>,

    /// Try the default setting of each policy alone
    #[arg(long)]
    pub(crate) no_tune: bool,

    /// Show every row
    #[arg(long)]
    pub(crate) all: bool,

    /// Write JSON to standard output
    #[arg(long)]
    pub(crate) json: bool,
}

/// Objects that are listed for each policy.
const MAX_OBJECTS: usize = 200;

pub(super) fn run(arguments: &Simulate) -> Result<ExitCode, Failure> {
    let tiers = arguments.tiers.resolve()?;
    let trace = open(&arguments.trace)?;
    let on = arguments.on.as_deref().map(open).transpose()?;
    let options = SimulateOptions {
        policies: match arguments.policy.is_empty() {
            true => PolicyName::ALL.to_vec(),
            false => arguments.policy.clone(),
        },
        tune: !arguments.no_tune,
        threads: thread::available_parallelism().map_or(1, usize::from),
        max_objects: MAX_OBJECTS,
    };
    let progress = Progress::new("Simulating");
    let found = simulate(
        &trace,
        on.as_ref(),
        &tiers,
        &options,
        super::room(),
        &|share| {
            progress.set(share);
        },
    )?;
    drop(progress);
    report::show(&found, arguments.json, |width, color| {
        varve_report::terminal::tier::render(&found, arguments.all, width, color)
    })?;
    Ok(ExitCode::SUCCESS)
}
