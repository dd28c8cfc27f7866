//! `varve alloc compare`.

mod input;
mod runs;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use regex::Regex;
use varve_alloc::compare::{Compared, compare};
use varve_record::WhyFixed;
use varve_ui::Progress;

use self::input::Input;
use self::runs::{Ended, Runner};
use super::Failure;
use super::allocators::{KNOWN, resolve};
use crate::commands::scratch::Scratch;
use crate::commands::{catch_signals, report};
use crate::values::ExitCodes;

#[derive(Debug, Args)]
#[command(override_usage = "varve alloc compare [OPTIONS] -- <COMMAND>...")]
#[command(after_help = "\
The program runs as it is, under one allocator after the other in each round. One more run of each is recorded, to say why \
some are slower. What the program prints to standard output is read for --metric, and dropped else.

Each run reads the same standard input: a file from the place where it stands, or all that comes from a pipe, which is read to its end before. Where that \
is a terminal the runs get an empty one.

Each run has to end with the exit code of the first, or with one of --allow-exit. An allocator with which the program ends otherwise, one that is not on this \
machine, and one that turns out to have had no effect are left out, and the last line says why. A program that has its allocator in itself, as \
static and Go programs have, is refused.")]
pub(crate) struct Compare {
    /// How often the program runs under each allocator
    #[arg(short = 'n', long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,

    /// Compare these alone, by name or path [default: all that are present]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) allocators: Vec<String>,

    /// A figure that the program prints: the last match counts, its first group where it has one
    #[arg(long, value_name = "REGEX", value_parser = Regex::new)]
    pub(crate) metric: Option<Regex>,

    /// Exit codes with which a run may end, such as `0,1,3-5`; 128 and a signal's number for that signal [default: that of the first run, below 126]
    #[arg(long, value_name = "LIST")]
    pub(crate) allow_exit: Option<ExitCodes>,

    /// Do not record a run of each
    #[arg(long)]
    pub(crate) no_record: bool,

    /// Write JSON to standard output
    #[arg(long)]
    pub(crate) json: bool,

    /// The command and its arguments
    #[arg(last = true, value_name = "COMMAND", required = true)]
    pub(crate) command: Vec<OsString>,
}

/// The place of the program's own allocator among all.
const OWN: usize = 0;

pub(super) fn run(arguments: &Compare) -> Result<ExitCode, Failure> {
    check_exchange(&arguments.command)?;
    let mut all = candidates(arguments)?;
    let input = Input::new()?;
    let input_bytes = input.bytes();
    let mut runner = Runner {
        arguments,
        signals: catch_signals()?,
        input,
        expected: None,
    };
    if varve_record::can_ask_loader(&arguments.command) {
        runner.check_loaded(&mut all)?;
    }
    check_rest(&all)?;
    rounds(&mut runner, &mut all)?;
    if !arguments.no_record {
        let scratch = Scratch::new("compare", "set TMPDIR to a folder with room")?;
        runner.record(scratch.path(), &mut all)?;
    }
    let command = arguments
        .command
        .iter()
        .map(|w| w.to_string_lossy().into_owned());
    let found = compare(command.collect(), arguments.rounds, input_bytes, all);
    report::show(&found, arguments.json, |width, color| {
        varve_report::terminal::alloc_compare::render(&found, width, color)
    })?;
    Ok(ExitCode::SUCCESS)
}

/// All rounds, each with all allocators that have not failed.
fn rounds(runner: &mut Runner<'_>, all: &mut [Compared]) -> Result<(), Failure> {
    let rounds = runner.arguments.rounds as usize;
    let present = all.iter().filter(|one| one.failed.is_none()).count();
    let progress = Progress::new("Comparing");
    let mut done = 0;
    for round in 0..rounds {
        for turn in 0..all.len() {
            // Each allocator comes at each place, so that what changes while time passes meets all.
            let at = (turn + round) % all.len();
            if all[at].failed.is_none() {
                match runner.once(&mut all[at]) {
                    Ok(run) => all[at].runs.push(run),
                    Err(Ended::Badly(failure)) if at != OWN => all[at].failed = Some(failure.what),
                    Err(Ended::Badly(failure) | Ended::Interrupted(failure)) => {
                        return Err(failure);
                    }
                }
                done += 1;
                progress.set(done as f64 / (rounds * present).max(1) as f64);
            }
        }
    }
    Ok(())
}

/// The allocators to compare, the program's own first.
fn candidates(arguments: &Compare) -> Result<Vec<Compared>, Failure> {
    let of = |name: &str, library: Option<PathBuf>| {
        Compared::new(
            name,
            library.map(|path| path.to_string_lossy().into_owned()),
        )
    };
    let mut all = vec![of("own", None)];
    if arguments.allocators.is_empty() {
        for known in &KNOWN {
            all.push(match known.find()? {
                Some(path) => of(known.name, Some(path)),
                None => Compared {
                    failed: Some(format!("not on this machine: {}", known.source)),
                    ..of(known.name, None)
                },
            });
        }
    }
    for text in &arguments.allocators {
        if let Some(path) = resolve(text)? {
            let path_name = path.to_string_lossy().into_owned();
            let name = match text.contains('/') {
                true => varve_alloc::allocator_name(&path_name),
                false => text,
            };
            all.push(of(name, Some(path)));
        }
    }
    if all.iter().filter(|one| one.failed.is_none()).count() == 1 {
        return Err(Failure::new(
            "there is no allocator on this machine to compare with",
            Some(
                "install some: apt-get install libjemalloc2 libtcmalloc-minimal4 libmimalloc2.0 libtbbmalloc2",
            ),
        ));
    }
    Ok(all)
}

/// Ends where nothing is left to compare.
fn check_rest(all: &[Compared]) -> Result<(), Failure> {
    let others = all.iter().filter(|one| one.library.is_some());
    let failed = others.map(|one| Some(format!("{} ({})", one.name, one.failed.as_ref()?)));
    match failed.collect::<Option<Vec<String>>>() {
        None => Ok(()),
        Some(why) => Err(Failure::new(
            format!("no allocator is left to compare with: {}", why.join(", ")),
            None::<String>,
        )),
    }
}

/// Refuses a program whose allocator stays the same whatever is preloaded.
fn check_exchange(command: &[OsString]) -> Result<(), Failure> {
    let Some(fixed) = varve_record::fixed_allocator(command) else {
        return Ok(());
    };
    let program = fixed.program.display();
    let program = match &fixed.script {
        Some(script) => format!("{program}, which runs {},", script.display()),
        None => program.to_string(),
    };
    let hint = match fixed.why {
        WhyFixed::Static => {
            "link it dynamically, with the C library's allocator; where it only starts another program, give that one"
        }
        WhyFixed::Short | WhyFixed::Musl => "build it for 64 bits and the GNU C library",
        WhyFixed::Rights => "compare a copy without these bits and capabilities",
        WhyFixed::Sanitizer => "build it without the sanitizer",
        WhyFixed::Go | WhyFixed::Own(_) => {
            "`varve record` shows its memory; where it only starts another program, give that one"
        }
    };
    Err(Failure::new(
        format!(
            "{program} {}: no other allocator can be put in its place, and each run would measure the same one",
            fixed.why.in_words()
        ),
        Some(hint),
    ))
}
