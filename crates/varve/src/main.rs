//! Varve shows what a Linux program does with its memory, page by page, and acts on it.

mod arguments;
mod commands;
mod libraries;
mod rights;
mod values;

use std::process::ExitCode;

use clap::Parser;

use arguments::{Arguments, Command};

/// Ends the program for a command line that is none, or one that asks for help.
fn refuse(error: &clap::Error) -> ! {
    let typed: Vec<String> = std::env::args().collect();
    if arguments::asks_for_sections(error, &typed) {
        print!("{}", varve_analyse::Section::help());
        std::process::exit(0)
    }
    if arguments::lacks_target(error, &typed) {
        varve_ui::error("there is nothing to record");
        varve_ui::hint(
            "give a command after `--`, as in `varve record -- ./program`, or the number of a process that runs, as in \
             `varve record -p 1234`; `varve record --help` says more",
        );
        std::process::exit(error.exit_code())
    }
    match arguments::without_dashes(error, &typed) {
        Some(meant) => {
            varve_ui::error("the command to record comes after `--`");
            varve_ui::hint(format!("did you mean `{meant}`?"));
            std::process::exit(error.exit_code())
        }
        None => error.exit(),
    }
}

fn main() -> ExitCode {
    varve_sys::live_with_limits();
    let arguments = Arguments::try_parse().unwrap_or_else(|error| refuse(&error));
    let done = rights::begin(&arguments.command).and_then(|()| match arguments.command {
        Command::Record(record) => commands::record::run(&record),
        Command::Alloc(alloc) => commands::alloc::run(&alloc),
        Command::Fit(fit) => commands::fit::run(&fit),
        Command::FitProbe(probe) => commands::fit::run_probe(&probe),
        Command::Tier(tier) => commands::tier::run(&tier),
        Command::Report(report) => commands::report::run(&report),
        Command::Check(check) => commands::check::run(&check),
        Command::Diff(diff) => commands::diff::run(&diff),
        Command::Export(export) => commands::export::run(&export),
        Command::Import(import) => commands::import::run(&import),
        Command::Push(push) => commands::push::run(&push),
        Command::Fleet(fleet) => commands::fleet::run(&fleet),
        Command::Recover(recover) => commands::recover::run(&recover),
        Command::Doctor(doctor) => commands::doctor::run(&doctor),
        Command::Watchdog { second_of, swaps } => {
            commands::watchdog::run(second_of.is_some(), swaps)
        }
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
