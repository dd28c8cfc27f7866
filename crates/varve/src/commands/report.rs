//! `varve report`.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use varve_analyse::{AnalyseOptions, Analysis, Section};
use varve_model::Bytes;
use varve_report::map::Map;
use varve_report::terminal::TerminalOptions;
use varve_trace::Trace;
use varve_ui::Progress;

use super::Failure;
use super::new_file::write_file;
use crate::arguments::Report;

/// Columns of the page where standard output is no terminal.
const DEFAULT_WIDTH: usize = 100;

pub(crate) fn run(arguments: &Report) -> Result<ExitCode, Failure> {
    let trace = super::open::open(&arguments.trace)?;
    let trace = super::filter::choose(trace, &arguments.filter)?;
    let options = AnalyseOptions {
        for_numa: arguments.advice.is_some(),
        // What else runs needs some, too.
        room: Bytes(varve_sys::available_memory().0 / 2),
        ..AnalyseOptions::default()
    };
    let analysis = {
        let progress = Progress::new("Reading the trace");
        varve_analyse::analyse(&trace, &options, &mut |share| progress.set(share))?
    };
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

fn page(analysis: &Analysis, arguments: &Report) -> String {
    let out = std::io::stdout();
    let width = if out.is_terminal() {
        varve_ui::terminal_width().unwrap_or(DEFAULT_WIDTH)
    } else {
        DEFAULT_WIDTH
    };
    let color = anstream::AutoStream::choice(&out) != anstream::ColorChoice::Never;
    let options = TerminalOptions {
        // The first screen is made of the others.
        sections: match arguments.all {
            true => Section::ALL[1..].to_vec(),
            false => arguments.section.clone(),
        },
        width,
        color,
    };
    varve_report::terminal::render(analysis, &arguments.trace, &options)
}

fn print(text: &str) -> Result<(), Failure> {
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
    let map = {
        let progress = Progress::new("Drawing the map");
        Map::of(trace, analysis, |share| progress.set(share))?
    };
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
    let report = varve_report::html::from_trace(trace, analysis, map)
        .map_err(|e| Failure::new(e, None::<String>))?;
    write_file(trace, path, |out| {
        varve_report::html::write_html(report, out)
            .map(drop)
            .map_err(|e| Failure::new(e, None::<String>))
    })
}
