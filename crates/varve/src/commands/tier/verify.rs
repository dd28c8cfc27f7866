//! `varve tier verify`.

use std::process::ExitCode;

use clap::Args;
use varve_place::{attached, verify};
use varve_tier::Verified;
use varve_ui::Progress;

use super::apply::Placing;
use crate::commands::{Failure, catch_signals, report};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  varve tier verify --backend swap --memory 2GiB plan.toml -- ./solver input.dat
  varve tier verify --backend swap --memory 2GiB plan.toml -p 1234

With a command it is run as planned and without the plan, under the same limit, in turns; what it writes to its standard output goes
nowhere. With -p, the process is one that `varve tier apply` runs with the same plan.")]
pub(crate) struct VerifyArguments {
    #[command(flatten)]
    pub(crate) placing: Placing,

    /// How often it is run as planned, and as often without
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,

    /// Look at a process that `varve tier apply` runs
    #[arg(short, long, value_name = "PID", conflicts_with_all = ["command", "rounds"], value_parser = crate::values::process)]
    pub(crate) pid: Option<u32>,

    /// Write JSON to standard output
    #[arg(long)]
    pub(crate) json: bool,
}

pub(super) fn run(arguments: &VerifyArguments) -> Result<ExitCode, Failure> {
    let options = arguments.placing.resolve()?;
    let found: Verified = match arguments.pid {
        Some(pid) => attached(&options, varve_model::Pid(pid))?,
        None if options.command.is_empty() => {
            return Err(Failure {
                what: "there is nothing to verify".to_owned(),
                hint: Some("give a command after `--`, or a process: -p PID".to_owned()),
                code: 2,
            });
        }
        None => {
            let mut signals = catch_signals()?;
            let progress = Progress::new("Verifying");
            let rounds = arguments.rounds as usize;
            verify(&options, rounds, &mut signals, &mut |share| {
                progress.set(share);
            })?
        }
    };
    report::show(&found, arguments.json, |width, color| {
        varve_report::terminal::tier_verify::render(&found, width, color)
    })?;
    Ok(ExitCode::SUCCESS)
}
