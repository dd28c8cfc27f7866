//! Runs programs of Debian alone and under each kind of recording, and compares what can be seen of them from outside: a recording
//! must not change what it records.

mod compare;
mod install;
mod page;
mod run;
mod table;

use std::io::Write;
use std::path::{Path, PathBuf};

use crate::Places;
use crate::error::{Error, Result, make_dir, write};
use compare::first_difference;
use page::{Judgement, Row};
use run::{Ended, Stage, Way};
use table::Program;

/// What is run, and what is kept of it.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Install the packages of the programs that are missing, by apt-get, which may start services of theirs
    #[arg(long)]
    install: bool,
    /// Keep the first screen of each recording here, a table as `programs.md`, and all that is of a program that differs
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Which programs [default: all]
    names: Vec<String>,
}

/// Runs the programs one after the other and prints a line for each; true if each that is there does the same under every recording.
pub(crate) fn programs(places: &Places, options: &Options) -> Result<bool> {
    let varve = varve(places)?;
    let wanted = selected(&options.names)?;
    if options.install {
        install::install(&wanted)?;
    }
    if let Some(out) = &options.out {
        make_dir(out)?;
    }
    let mut rows = Vec::new();
    for program in wanted {
        let judgement = if install::is_there(&program)? {
            judged(&program, &varve, options.out.as_deref())?
        } else {
            Judgement::Skipped
        };
        let row = Row {
            program,
            version: install::version(&program)?,
            judgement,
        };
        say(&row.line());
        rows.push(row);
        // Each time, so that what was found out is there however the rest ends.
        if let Some(out) = &options.out {
            write(&out.join("programs.md"), page::page(&rows))?;
        }
    }
    say(&page::sums(&rows));
    Ok(!rows.iter().any(Row::failed))
}

/// Prints a line. Nothing is lost if this fails: whoever read it has gone.
fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// The binary to test: `$VARVE`, or the release build.
fn varve(places: &Places) -> Result<PathBuf> {
    let built = places.target.join("release/varve");
    let path = std::env::var_os("VARVE").map_or(built, PathBuf::from);
    std::path::absolute(&path)
        .ok()
        .filter(|path| path.is_file())
        .ok_or_else(|| {
            Error::hinted(
                format!("there is no {}", path.display()),
                "build it by `make build`, or name it in VARVE",
            )
        })
}

/// The programs of these names, in the order of the table; all where none is named.
fn selected(names: &[String]) -> Result<Vec<Program>> {
    let all = table::all();
    if let Some(unknown) = names
        .iter()
        .find(|name| all.iter().all(|p| p.name != **name))
    {
        let known: Vec<&str> = all.iter().map(|p| p.name).collect();
        return Err(Error::hinted(
            format!("the table has no program `{unknown}`"),
            format!("it has {}", known.join(", ")),
        ));
    }
    Ok(all
        .into_iter()
        .filter(|p| names.is_empty() || names.iter().any(|name| name == p.name))
        .collect())
}

/// Runs one program in all ways. What ends first, in the order of the runs, is the judgement.
fn judged(program: &Program, varve: &Path, out: Option<&Path>) -> Result<Judgement> {
    let stage = Stage::new(program, varve)?;
    let first = stage.run(Way::Alone)?;
    if first.code != program.code {
        return Ok(Judgement::Wrong(format!(
            "alone it ended with exit code {} instead of {}: {}",
            first.code,
            program.code,
            first.said()?
        )));
    }
    let second = stage.run(Way::Alone)?;
    if let Some(difference) = first_difference(&first, &second)? {
        let why = format!("two runs alone differ: {difference}");
        return Ok(Judgement::Wrong(why));
    }
    let mut recorded = Vec::new();
    let mut differences = Vec::new();
    for way in Way::RECORDED {
        let ended = stage.run(way)?;
        if let Some(difference) = first_difference(&first, &ended)? {
            differences.push(format!("{}: {difference}", way.name()));
        }
        if let (Some(out), Some(screen)) = (out, stage.screen(&ended)?) {
            write(
                &out.join(format!("{}-{}.txt", program.name, way.name())),
                screen,
            )?;
        }
        recorded.push(ended);
    }
    if let (Some(out), false) = (out, differences.is_empty()) {
        stage.keep(&out.join(format!("{}-differs", program.name)))?;
    }
    Ok(Judgement::Compared {
        code: first.code,
        alone: first.ran.min(second.ran),
        recorded: recorded.into_iter().map(Ended::into_facts).collect(),
        differences,
    })
}
