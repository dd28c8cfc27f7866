//! Varve shows what a Linux program does with its memory, page by page, and acts on it.

mod arguments;
mod commands;
mod libraries;
mod rights;

use std::process::ExitCode;

use clap::Parser;

use arguments::{Arguments, Command};

fn main() -> ExitCode {
    varve_sys::live_with_limits();
    let arguments = Arguments::parse();
    let done = rights::begin(&arguments.command).and_then(|()| match arguments.command {
        Command::Record(record) => commands::record::run(&record),
        Command::Report(report) => commands::report::run(&report),
        Command::Export(export) => commands::export::run(&export),
        Command::Import(import) => commands::import::run(&import),
        Command::Recover(recover) => commands::recover::run(&recover),
        Command::Doctor(doctor) => commands::doctor::run(&doctor),
        Command::Watchdog { second_of } => commands::watchdog::run(second_of.is_some()),
    });
    match done {
        Ok(code) => code,
        Err(failure) => {
            varve_ui::error(&failure.what);
            if let Some(hint) = failure.hint {
                varve_ui::hint(hint);
            }
            ExitCode::from(failure.code)
        }
    }
}
