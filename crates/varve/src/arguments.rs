//! The command line as a whole. A command's flags stand with the command, in `commands/`.

use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue};
use clap::{Args, Parser, Subcommand};
use varve_trace::{Access, Existing, Output};

use crate::commands::alloc::Alloc;
use crate::commands::check::Check;
use crate::commands::diff::Diff;
use crate::commands::doctor::Doctor;
use crate::commands::export::Export;
use crate::commands::fit::{FitArguments, FitProbe};
use crate::commands::fleet::Fleet;
use crate::commands::import::Import;
use crate::commands::push::Push;
use crate::commands::record::Record;
use crate::commands::recover::Recover;
use crate::commands::report::Report;
use crate::commands::tier::TierCommands;

/// See what a Linux program does with its memory: every page, over time, down to the object, thread
/// and line of code.
#[derive(Debug, Parser)]
#[command(
    name = "varve",
    version,
    arg_required_else_help = true,
    infer_subcommands = true,
    after_help = "\
To begin:
  varve doctor                 see what this machine can record
  varve record -- ./program    record a program, to program.varve
  varve report program.varve   read what it did with its memory"
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Record every page that a program touches
    Record(Record),
    /// Show what a recording holds
    Report(Report),
    /// Show what differs between two traces, or between several runs of two builds
    Diff(Diff),
    /// Judge traces, or a command, by memory budgets
    Check(Box<Check>),
    /// Judge a program's allocator: what it costs, why, and which would not
    Alloc(Alloc),
    /// Find how little memory a program needs, and what that costs
    Fit(Box<FitArguments>),
    /// Plan where a program's memory should lie on a machine with fast and slow memory
    Tier(TierCommands),
    /// Write a trace's accesses for another tool
    Export(Export),
    /// Make a trace of what another tool recorded
    Import(Import),
    /// Put traces into a store of many
    Push(Push),
    /// Ask a store of many traces
    Fleet(Fleet),
    /// Put the trace of a killed recorder in order
    Recover(Recover),
    /// Show what this machine can record, and how to enable the rest
    Doctor(Doctor),
    #[command(hide = true)]
    FitProbe(FitProbe),
    #[command(hide = true)]
    Watchdog {
        /// The recorder, for the watchdog that waits for the first to fail
        #[arg(long)]
        second_of: Option<u32>,

        /// There may be a swap device to remove
        #[arg(long)]
        swaps: bool,
    },
}

/// Whether there is a command of this name below others.
pub(crate) fn has_command(path: &[&str]) -> bool {
    use clap::CommandFactory;
    let mut at = Arguments::command();
    path.iter().all(|name| {
        let found = at.find_subcommand(name).cloned();
        found.map(|next| at = next).is_some()
    })
}

/// The command line that was meant where the command to record stands without `--` before it.
pub(crate) fn without_dashes(error: &clap::Error, arguments: &[String]) -> Option<String> {
    use clap::error::{ContextKind, ContextValue, ErrorKind};
    let is_record = |name: &String| name.len() >= 3 && "record".starts_with(name.as_str());
    let Some(ContextValue::String(wrong)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let is_meant = error.kind() == ErrorKind::UnknownArgument
        && arguments.get(1).is_some_and(is_record)
        && !wrong.starts_with('-');
    let at = arguments.iter().position(|a| a == wrong)?;
    is_meant.then(|| {
        let (options, command) = arguments.split_at(at);
        format!("varve {} -- {}", options[1..].join(" "), command.join(" "))
    })
}

/// Whether `varve record` was typed without anything to record.
pub(crate) fn lacks_target(error: &clap::Error, arguments: &[String]) -> bool {
    let is_record = |name: &String| !name.is_empty() && "record".starts_with(name.as_str());
    let is_missing = |value: &ContextValue| match value {
        ContextValue::Strings(names) => names.iter().any(|name| name.contains("COMMAND")),
        _ => false,
    };
    error.kind() == clap::error::ErrorKind::MissingRequiredArgument
        && error.get(ContextKind::InvalidArg).is_some_and(is_missing)
        && arguments.get(1).is_some_and(is_record)
}

/// Whether `--section help` was typed, which no section is called.
pub(crate) fn asks_for_sections(error: &clap::Error, arguments: &[String]) -> bool {
    let is_asked = |pair: &[String]| pair[0] == "--section" && pair[1] == "help";
    error.kind() == clap::error::ErrorKind::ValueValidation
        && (arguments.windows(2).any(is_asked) || arguments.iter().any(|a| a == "--section=help"))
}

/// How a new trace is written.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Writing {
    /// Replace an earlier trace of that name
    #[arg(short, long)]
    pub(crate) force: bool,

    /// Let everybody on this machine read the trace, which holds command lines and addresses
    #[arg(long)]
    pub(crate) share: bool,
}

impl Writing {
    /// The folder to write, where `existing` says what is done about one that is there.
    pub(crate) fn output(self, path: PathBuf, existing: Existing) -> Output {
        Output {
            path,
            existing: match self.force {
                true => Existing::Replace,
                false => existing,
            },
            access: match self.share {
                true => Access::Shared,
                false => Access::Private,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn a_recording_of_nothing_is_noticed() {
        let lacks = |line: &str| {
            let arguments: Vec<String> = line.split(' ').map(str::to_owned).collect();
            let error = Arguments::try_parse_from(&arguments).err();
            error.is_some_and(|e| lacks_target(&e, &arguments))
        };
        assert!(lacks("varve record") && lacks("varve recor -o t.varve --"));
        assert!(
            !lacks("varve record --for 1s -- ls") && !lacks("varve record --every 1m --name x")
        );
        assert!(!lacks("varve record -- ls") && !lacks("varve record -p 1x"));
        assert!(!lacks("varve recover") && !lacks("varve report"));
    }

    #[test]
    fn a_command_without_dashes_is_understood() {
        let meant = |line: &str| {
            let arguments: Vec<String> = line.split(' ').map(str::to_owned).collect();
            let error = Arguments::try_parse_from(&arguments).err();
            error.and_then(|e| without_dashes(&e, &arguments))
        };
        let with = |text: &str| Some(text.to_owned());
        assert_eq!(meant("varve record ls"), with("varve record -- ls"));
        assert_eq!(
            meant("varve record -o t.varve ls -l"),
            with("varve record -o t.varve -- ls -l")
        );
        assert_eq!(meant("varve record --nonsense"), None);
        assert_eq!(meant("varve report t.varve u"), None);
    }
}
