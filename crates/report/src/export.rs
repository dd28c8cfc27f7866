//! `varve export`: what a trace holds, for other tools.
//!
//! Samples are exported where the trace has any, else page faults, else touches; of the backend `fault` page faults first. A
//! touch is no access: its weight is pages, and it has no code, so that only the text formats and folded stacks by object
//! make sense of it.

mod events;
mod firefox;
mod folded;
mod speedscope;
mod text;

use std::io::{self, Write};

use varve_trace::{Trace, TraceError};

/// The formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportFormat {
    /// Lines like those of `perf script` of a recording of `perf mem`.
    PerfScript,
    /// JSON of the Firefox Profiler.
    Firefox,
    /// JSON of speedscope.
    Speedscope,
    /// Folded stacks: `process;thread;outer;inner;[object] weight`.
    Folded,
    /// Comma-separated values.
    Csv,
}

/// Why a trace could not be exported.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// A table that cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// Writing failed.
    #[error("cannot write the export: {0}")]
    Io(#[from] io::Error),
    /// The data do not become JSON.
    #[error("cannot encode the export: {0}")]
    Json(#[from] serde_json::Error),
    /// There is nothing to export.
    #[error("the trace has neither samples nor page faults nor touches")]
    Empty,
}

/// Writes a trace in a format. Text formats and folded stacks are streams; the JSON formats hold all events in memory.
///
/// # Errors
/// A damaged table, a full disk, or a trace without events.
pub fn export(trace: &Trace, format: ExportFormat, out: &mut dyn Write) -> Result<(), ExportError> {
    let events = events::Events::open(trace)?;
    match format {
        ExportFormat::PerfScript => text::perf_script(events, out),
        ExportFormat::Csv => text::csv(events, out),
        ExportFormat::Folded => folded::write(events, out),
        ExportFormat::Speedscope => speedscope::write(events, out),
        ExportFormat::Firefox => firefox::write(events, trace, out),
    }
}
