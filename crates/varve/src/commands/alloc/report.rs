//! `varve alloc report`.

use std::io::IsTerminal;
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
    let text = match arguments.json {
        true => {
            let text = serde_json::to_string_pretty(&judgement);
            let mut text = text.map_err(|e| Failure::new(e, None::<String>))?;
            text.push('\n');
            varve_model::visible_json(&text).into_owned()
        }
        false => {
            let out = std::io::stdout();
            let width = match out.is_terminal() {
                true => varve_ui::terminal_width().unwrap_or(report::DEFAULT_WIDTH),
                false => report::DEFAULT_WIDTH,
            };
            let color = anstream::AutoStream::choice(&out) != anstream::ColorChoice::Never;
            varve_report::terminal::alloc::render(&judgement, width, color, arguments.all)
        }
    };
    report::print(&text)?;
    Ok(ExitCode::SUCCESS)
}
