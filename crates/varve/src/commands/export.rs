//! `varve export`.

use std::io::{BufWriter, ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;

use varve_report::export::{ExportError, export};

use super::Failure;
use crate::arguments::Export;

pub(crate) fn run(arguments: &Export) -> Result<ExitCode, Failure> {
    let trace = super::open::open(&arguments.trace)?;
    // What is written may come from one table only. Who hands it on must hear that the trace is damaged.
    trace.check()?;
    let trace = super::filter::choose(trace, &arguments.filter)?;
    let format = arguments.format.resolved();
    if arguments.output == Path::new("-") {
        let mut out = BufWriter::new(std::io::stdout().lock());
        let done = export(&trace, format, &mut out).and_then(|()| Ok(out.flush()?));
        return match done {
            // Nobody reads any more, such as `head`; that is no failure.
            Err(ExportError::Io(e)) if e.kind() == ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
            other => other.map(|()| ExitCode::SUCCESS).map_err(failure),
        };
    }
    super::new_file::write_file(&trace, &arguments.output, |out| {
        export(&trace, format, out).map_err(failure)
    })?;
    Ok(ExitCode::SUCCESS)
}

fn failure(error: ExportError) -> Failure {
    match error {
        ExportError::Trace(error) => error.into(),
        error => Failure::new(error, None::<String>),
    }
}
