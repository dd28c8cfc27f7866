//! `varve report`.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;
use varve_analyse::{AnalyseOptions, Analysis, Section};
use varve_model::Bytes;
use varve_report::html::View;
use varve_report::map::Map;
use varve_report::terminal::TerminalOptions;
use varve_trace::Trace;
use varve_ui::Progress;

use super::Failure;
use super::filter::Filter;
use super::new_file::write_file;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  varve report solver.varve                              what it used, what is hot, what to do
  varve report solver.varve --section objects,sharing    more of these
  varve report solver.varve --section help               what there is
  varve report solver.varve --html page.html             the map of time and addresses
  varve report solver.varve --json | jq .findings")]
pub(crate) struct Report {
    /// Trace folder, as `varve record` wrote it
    #[arg(value_name = "TRACE")]
    pub(crate) trace: PathBuf,

    /// Show these sections, the first rows of each table; `help` lists their names
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) section: Vec<Section>,

    #[command(flatten)]
    pub(crate) filter: Filter,

    /// Give advice for this kind of machine too, where the trace is of another
    #[arg(long = "for", value_name = "MACHINE")]
    pub(crate) advice: Option<MachineArgument>,

    /// Show every row of every section, or of those that --section names
    #[arg(long)]
    pub(crate) all: bool,

    /// Write JSON to standard output
    #[arg(long)]
    pub(crate) json: bool,

    /// Write one offline page
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,

    /// Write a picture of time x address, for papers
    #[arg(long, value_name = "FILE")]
    pub(crate) png: Option<PathBuf>,
}

/// `--for`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum MachineArgument {
    /// Several memory nodes
    Numa,
}

/// Columns of the page where standard output is no terminal.
const DEFAULT_WIDTH: usize = 100;

pub(crate) fn run(arguments: &Report) -> Result<ExitCode, Failure> {
    let trace = super::open::open(&arguments.trace)?;
    let trace = super::filter::choose(trace, &arguments.filter)?;
    let analysis = analyse(&trace, arguments.advice.is_some())?;
    if arguments.html.is_some() || arguments.png.is_some() {
        draw(&trace, &analysis, arguments)?;
    }
    if arguments.json {
        let text = varve_report::json::render(&analysis, &arguments.section)
            .map_err(|e| Failure::new(e, None::<String>))?;
        print(&text)?;
    } else if arguments.html.is_none() && arguments.png.is_none() {
        print(&page(&analysis, arguments))?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn analyse(trace: &Trace, for_numa: bool) -> Result<Analysis, Failure> {
    let options = AnalyseOptions {
        for_numa,
        // What else runs needs some, too.
        room: Bytes(varve_sys::available_memory().0 / 2),
        ..AnalyseOptions::default()
    };
    let progress = Progress::new("Reading the trace");
    Ok(varve_analyse::analyse(trace, &options, &mut |share| {
        progress.set(share);
    })?)
}

fn page(analysis: &Analysis, arguments: &Report) -> String {
    let (width, color) = width_and_color();
    let options = TerminalOptions {
        // The first screen is made of the others.
        sections: match arguments.all && arguments.section.is_empty() {
            true => Section::ALL[1..].to_vec(),
            false => arguments.section.clone(),
        },
        whole: arguments.all,
        width,
        color,
    };
    varve_report::terminal::render(analysis, &arguments.trace, &options)
}

/// Columns of standard output, and whether it shows colours.
fn width_and_color() -> (usize, bool) {
    let out = std::io::stdout();
    let width = if out.is_terminal() {
        varve_ui::terminal_width().unwrap_or(DEFAULT_WIDTH)
    } else {
        DEFAULT_WIDTH
    };
    let color = anstream::AutoStream::choice(&out) != anstream::ColorChoice::Never;
    (width, color)
}

/// Prints what was found, as JSON or as it is rendered for so many columns and with or without colours.
pub(super) fn show(
    found: &impl Serialize,
    as_json: bool,
    render: impl FnOnce(usize, bool) -> String,
) -> Result<(), Failure> {
    if !as_json {
        let (width, color) = width_and_color();
        return print(&render(width, color));
    }
    let mut text =
        serde_json::to_string_pretty(found).map_err(|e| Failure::new(e, None::<String>))?;
    text.push('\n');
    print(&varve_model::visible_json(&text))
}

pub(super) fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // Nobody reads any more, such as `head`; that is no failure.
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => {
            other.map_err(|e| Failure::new(format!("cannot write the report: {e}"), None::<String>))
        }
    }
}

/// Writes the page and the picture, of one map.
fn draw(trace: &Trace, analysis: &Analysis, arguments: &Report) -> Result<(), Failure> {
    let map = map(trace, analysis)?;
    if let Some(path) = &arguments.png {
        let options = varve_report::png::PngOptions::default();
        write_file(trace, path, |out| {
            varve_report::png::render(analysis, &map, out, &options)
                .map_err(|e| Failure::new(e, None::<String>))
        })?;
    }
    let Some(path) = &arguments.html else {
        return Ok(());
    };
    write_html(trace, analysis, map, path, View::Pages)
}

pub(super) fn map(trace: &Trace, analysis: &Analysis) -> Result<Map, Failure> {
    let progress = Progress::new("Drawing the map");
    Ok(Map::of(trace, analysis, |share| progress.set(share))?)
}

/// Writes the page of a whole trace, which shows what is said of its allocator first.
pub(super) fn write_allocators_page(
    trace: &Trace,
    analysis: &Analysis,
    path: &Path,
) -> Result<(), Failure> {
    let map = map(trace, analysis)?;
    write_html(trace, analysis, map, path, View::Allocator)
}

fn write_html(
    trace: &Trace,
    analysis: &Analysis,
    map: Map,
    path: &Path,
    opens: View,
) -> Result<(), Failure> {
    let mut report = varve_report::html::from_trace(trace, analysis, map)
        .map_err(|e| Failure::new(e, None::<String>))?;
    report.opens = opens;
    write_file(trace, path, |out| {
        varve_report::html::write_html(report, out)
            .map(drop)
            .map_err(|e| Failure::new(e, None::<String>))
    })
}
