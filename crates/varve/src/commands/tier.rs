//! `varve tier`: where memory should lie on a machine that has fast and slow memory.

mod apply;
mod plan;
mod simulate;
mod verify;
mod watch;

use std::process::ExitCode;
use std::str::FromStr;

use clap::{Args, Subcommand};
use varve_model::Bytes;
use varve_tier::{Tier, TierError, Tiers};

use super::Failure;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  varve tier simulate solver.varve --tier fast=4GiB,80ns --tier slow=inf,250ns
  varve tier plan solver.varve --tier fast=4GiB,80ns --tier slow=inf,250ns -o plan.toml
  varve tier apply --backend swap --memory 4GiB plan.toml -- ./solver input.dat")]
pub(crate) struct TierCommands {
    #[command(subcommand)]
    pub(crate) command: TierCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TierCommand {
    /// Replay a recorded program on tiers of memory, under many policies, on paper
    Simulate(simulate::Simulate),
    /// Write which objects belong to which tier, and why, as a file that may be changed
    Plan(plan::PlanArguments),
    /// Run a command with its objects where a plan says, on nodes of memory or in memory and swap
    Apply(apply::ApplyArguments),
    /// Ask the kernel whether a plan holds, and what it is worth: with and without it, in turns
    Verify(verify::VerifyArguments),
    /// Show what moves between tiers while a program runs: the kernel's counters, and where the pages of its objects are
    Watch(watch::WatchArguments),
}

pub(crate) fn run(arguments: &TierCommands) -> Result<ExitCode, Failure> {
    match &arguments.command {
        TierCommand::Simulate(arguments) => simulate::run(arguments),
        TierCommand::Plan(arguments) => plan::run(arguments),
        TierCommand::Apply(arguments) => apply::run(arguments),
        TierCommand::Verify(arguments) => verify::run(arguments),
        TierCommand::Watch(arguments) => watch::run(arguments),
    }
}

/// The tiers of a machine.
#[derive(Debug, Args)]
pub(crate) struct TierArguments {
    /// A tier, the fastest first: NAME=CAPACITY,READ[,write=TIME][,bw=RATE][,move=TIME], such as `fast=4GiB,80ns` and
    /// `slow=inf,250ns,bw=20GB/s`; moving a page takes 2us where nothing else is said
    #[arg(long = "tier", value_name = "TIER", required = true, value_parser = tier)]
    pub(crate) tiers: Vec<Tier>,
}

fn tier(text: &str) -> Result<Tier, String> {
    Tier::from_str(text).map_err(|error| format!("{error}; {}", error.hint()))
}

impl TierArguments {
    /// The tiers, if they make sense together.
    pub(crate) fn resolve(&self) -> Result<Tiers, Failure> {
        Ok(Tiers::new(self.tiers.clone()).map_err(TierError::from)?)
    }
}

impl From<TierError> for Failure {
    fn from(error: TierError) -> Failure {
        Failure::new(&error, error.hint())
    }
}

/// Memory that a simulation may take here: what else runs needs some, too.
pub(super) fn room() -> Bytes {
    Bytes(varve_sys::available_memory().0 / 2)
}
