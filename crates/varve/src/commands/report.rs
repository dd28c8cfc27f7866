//! `varve report`.

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;

use varve_analyse::{AnalyseOptions, Analysis, Section};
use varve_model::Bytes;
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
    if let Some(path) = &arguments.html {
        write_html(&trace, &analysis, path)?;
    }
    if let Some(path) = &arguments.png {
        write_png(&trace, &analysis, path)?;
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

fn write_html(trace: &Trace, analysis: &Analysis, path: &Path) -> Result<(), Failure> {
    let progress = Progress::new("Drawing the page");
    let report = varve_report::html::from_trace(trace, analysis, |share| progress.set(share))
        .map_err(|e| Failure::new(e, None::<String>))?;
    drop(progress);
    write_file(trace, path, |out| {
        varve_report::html::write_html(report, out)
            .map(drop)
            .map_err(|e| Failure::new(e, None::<String>))
    })
}

fn write_png(trace: &Trace, analysis: &Analysis, path: &Path) -> Result<(), Failure> {
    write_file(trace, path, |out| {
        let progress = Progress::new("Drawing the picture");
        let options = varve_report::png::PngOptions::default();
        varve_report::png::render(trace, analysis, out, &options, &mut |share| {
            progress.set(share);
        })
        .map_err(|e| Failure::new(e, None::<String>))
    })
}
