//! `varve alloc range`.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use varve_alloc::compare::COMPARISON_SCHEMA;
use varve_alloc::range::{Input, range};

use super::Failure;
use crate::commands::report;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  varve alloc compare -n 10 --json -- ./solver > solver.json
  varve alloc compare -n 10 --json -- ./parser > parser.json
  varve alloc range solver.json parser.json
  varve alloc range *.json --grade mimalloc")]
pub(crate) struct AllocRange {
    /// What `varve alloc compare --json` wrote, one file for each program
    #[arg(value_name = "FILE", required = true)]
    pub(crate) comparisons: Vec<PathBuf>,

    /// Leave this allocator out of the ranges, and say where it lies in them
    #[arg(long, value_name = "NAME")]
    pub(crate) grade: Option<String>,

    /// Write JSON to standard output
    #[arg(long)]
    pub(crate) json: bool,
}

/// A comparison is smaller.
const MAX_BYTES: u64 = 256 << 20;

pub(super) fn run(arguments: &AllocRange) -> Result<ExitCode, Failure> {
    let read = arguments.comparisons.iter().map(|path| read(path));
    let comparisons: Vec<Input> = read.collect::<Result<_, _>>()?;
    let graded = arguments.grade.as_deref();
    if let Some(name) = graded {
        let mut names: Vec<&str> = comparisons
            .iter()
            .flat_map(|c| c.allocators.iter().map(|a| a.name.as_str()))
            .collect();
        names.sort_unstable();
        names.dedup();
        if !names.contains(&name) {
            return Err(Failure::new(
                format!("none of these comparisons has an allocator called {name}"),
                Some(format!("they have {}", names.join(", "))),
            ));
        }
    }
    let found = range(&comparisons, graded);
    report::show(&found, arguments.json, |width, color| {
        varve_report::terminal::alloc_range::render(&found, width, color)
    })?;
    Ok(ExitCode::SUCCESS)
}

fn read(path: &Path) -> Result<Input, Failure> {
    const HINT: &str = "give what `varve alloc compare --json -- COMMAND` writes";
    let shown = path.display();
    let mut text = Vec::new();
    let file = File::open(path).and_then(|f| f.take(MAX_BYTES).read_to_end(&mut text));
    file.map_err(|e| Failure::new(format!("cannot read {shown}: {e}"), Some(HINT)))?;
    let input: Input = serde_json::from_slice(&text)
        .map_err(|e| Failure::new(format!("{shown} is no comparison: {e}"), Some(HINT)))?;
    if input.schema != COMPARISON_SCHEMA {
        return Err(Failure::new(
            format!(
                "{shown} has the schema {}, not {COMPARISON_SCHEMA}",
                input.schema
            ),
            Some(HINT),
        ));
    }
    Ok(input)
}
