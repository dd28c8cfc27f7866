//! `varve doctor`.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anstyle::{AnsiColor, Style};
use clap::Args;
use serde::Serialize;
use varve_model::{visible, visible_json};
use varve_record::{Check, Leftovers, Standing, can_record, examine, examine_exact};

use super::Failure;
use crate::libraries::{plugin, preload};

#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// Write JSON to standard output
    #[arg(long)]
    pub(crate) json: bool,

    /// Remove what recorders that were killed left, and let go what they held
    #[arg(long)]
    pub(crate) clean: bool,
}

/// The JSON form.
#[derive(Serialize)]
struct Findings<'a> {
    schema: &'static str,
    can_record: bool,
    checks: &'a [Check],
}

pub(crate) fn run(arguments: &Doctor) -> Result<ExitCode, Failure> {
    let choice = if arguments.clean {
        Leftovers::Clean
    } else {
        Leftovers::List
    };
    let found = |library: Result<Option<PathBuf>, Failure>| library.map_err(|failure| failure.what);
    let mut checks = examine(found(preload()), choice);
    checks.push(examine_exact(found(plugin())));
    let can_record = can_record(&checks);
    let written = if arguments.json {
        let findings = Findings {
            schema: "varve-doctor/1",
            can_record,
            checks: &checks,
        };
        let mut text =
            serde_json::to_string_pretty(&findings).map_err(|e| Failure::new(e, None::<String>))?;
        text.push('\n');
        std::io::stdout().write_all(visible_json(&text).as_bytes())
    } else {
        print(&checks, can_record)
    };
    // Nobody reads any more, such as `head`; that is no failure.
    let _ = written;
    Ok(if can_record {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn print(checks: &[Check], can_record: bool) -> std::io::Result<()> {
    let mut out = anstream::stdout().lock();
    let width = checks.iter().map(|c| c.name.len()).max().unwrap_or(0);
    for check in checks {
        let (word, style) = match check.standing {
            Standing::Available => ("yes ", AnsiColor::Green.on_default()),
            Standing::Required | Standing::Promised => ("NO  ", AnsiColor::Red.on_default().bold()),
            Standing::Missing => ("no  ", AnsiColor::Yellow.on_default()),
            Standing::Note => ("note", Style::new().dimmed()),
        };
        writeln!(
            out,
            "{style}{word}{style:#} {:width$}  {}: {}",
            check.name,
            check.purpose,
            visible(&check.detail)
        )?;
        if let Some(hint) = &check.hint {
            writeln!(out, "     {:width$}  hint: {}", "", visible(hint))?;
        }
    }
    writeln!(
        out,
        "\n{}",
        if !can_record {
            "This machine cannot record: see the lines marked NO."
        } else if checks.iter().any(|c| c.standing == Standing::Promised) {
            "This machine can record, but no trace will be complete: see the lines marked NO."
        } else {
            "This machine can record complete page-level traces: varve record -- COMMAND"
        }
    )
}
