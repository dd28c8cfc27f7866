//! `varve recover`: the trace of a killed recorder is put in order where it is.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use varve_attribute::OpenFiles;
use varve_trace::{State, Trace, TraceError, TraceFolder};

use super::Failure;
use super::open::{is_recorder, still_recorded};

#[derive(Debug, Args)]
#[command(after_help = "\
A trace can be read without this too. It is quicker afterwards, and counts of `--backend exact` that the recorder \
had not written stay in it for good.")]
pub(crate) struct Recover {
    /// Trace folder
    #[arg(value_name = "TRACE")]
    pub(crate) trace: PathBuf,
}

pub(crate) fn run(arguments: &Recover) -> Result<ExitCode, Failure> {
    let path = &arguments.trace;
    let trace = Trace::open(path)?;
    if is_in_order(&trace) {
        return nothing_to_do(arguments, &trace);
    }
    let folder = match TraceFolder::open(path) {
        Ok(folder) => folder,
        Err(TraceError::Busy { recorder, .. }) => {
            let lives = recorder.filter(|pid| is_recorder(*pid));
            return Err(still_recorded(path, lives));
        }
        Err(error) => return Err(error.into()),
    };
    // Another one may have been quicker.
    let trace = folder.trace()?;
    if is_in_order(&trace) {
        return nothing_to_do(arguments, &trace);
    }
    varve_record::recover_counts(&folder).map_err(super::record::failure)?;
    super::record::put_in_order(
        &folder,
        folder.trace()?,
        State::Recovered,
        OpenFiles::default(),
    )?;
    varve_ui::note(format!(
        "put {} in order; read it with `varve report {}`",
        path.display(),
        varve_report::quoted_path(path)
    ));
    Ok(ExitCode::SUCCESS)
}

fn is_in_order(trace: &Trace) -> bool {
    trace.manifest.state != State::Recording
}

/// Says that a finished trace can be read, where it can.
fn nothing_to_do(arguments: &Recover, trace: &Trace) -> Result<ExitCode, Failure> {
    trace.check()?;
    varve_ui::note(format!("{} is in order", arguments.trace.display()));
    Ok(ExitCode::SUCCESS)
}
