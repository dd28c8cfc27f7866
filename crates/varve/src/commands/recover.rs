//! `varve recover`: the trace of a killed recorder is put in order where it is.

use std::process::ExitCode;

use varve_trace::{State, Trace, TraceError, TraceFolder};

use super::Failure;
use super::open::{is_recorder, still_recorded};
use crate::arguments::Recover;

pub(crate) fn run(arguments: &Recover) -> Result<ExitCode, Failure> {
    let path = &arguments.trace;
    if is_in_order(&Trace::open(path)?) {
        return Ok(nothing_to_do(arguments));
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
    if is_in_order(&folder.trace()?) {
        return Ok(nothing_to_do(arguments));
    }
    varve_record::recover_counts(&folder).map_err(super::record::failure)?;
    super::record::put_in_order(&folder, folder.trace()?, State::Recovered)?;
    varve_ui::note(format!(
        "put {0} in order; read it with `varve report {0}`",
        path.display()
    ));
    Ok(ExitCode::SUCCESS)
}

fn is_in_order(trace: &Trace) -> bool {
    trace.manifest.state != State::Recording
}

fn nothing_to_do(arguments: &Recover) -> ExitCode {
    varve_ui::note(format!("{} is in order", arguments.trace.display()));
    ExitCode::SUCCESS
}
