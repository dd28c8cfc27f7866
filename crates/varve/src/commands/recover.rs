//! Traces whose recorder did not end in order.

use std::path::Path;

use varve_trace::{Manifest, State, Trace};

use super::Failure;

/// The name of the loss of whatever a killed recorder had not written.
const LOSS: &str = "recorder_killed";

/// Opens a trace. One that a killed recorder left is put in order first; one that is being recorded is
/// left alone.
pub(crate) fn open(folder: &Path) -> Result<Trace, Failure> {
    let trace = Trace::open(folder)?;
    if trace.manifest.state != State::Recording {
        return Ok(trace);
    }
    if let Some(pid) = trace.manifest.recorder_pid.filter(|pid| is_recorder(*pid)) {
        return Err(Failure::new(
            format!(
                "{} is still being recorded, by process {pid}",
                folder.display()
            ),
            Some(format!(
                "end the recording with `kill -INT {pid}`, or wait for it"
            )),
        ));
    }
    varve_ui::warning(format!(
        "the recorder of {} was killed: putting in order what it had written",
        folder.display()
    ));
    // Until the end of this nobody else puts it in order.
    let _lock = varve_record::recover(folder).map_err(super::record::failure)?;
    let mut manifest = Trace::open(folder)?.manifest;
    if manifest.state != State::Recording {
        return Ok(Trace::open(folder)?);
    }
    manifest.losses.insert(LOSS.to_owned(), 1);
    manifest.notes.push(
        "The recorder was killed: what it had not written, at most the last half second or so, is missing."
            .to_owned(),
    );
    put_in_order(folder, State::Recovered, manifest)?;
    Ok(Trace::open(folder)?)
}

fn is_recorder(pid: u32) -> bool {
    let name = varve_sys::status(varve_model::Pid(pid)).map(|s| (s.name, s.state));
    name.is_ok_and(|(name, state)| name == "varve" && state != 'Z')
}

/// Merges what a recorder wrote, gives names to its objects and settles the manifest.
pub(crate) fn put_in_order(
    folder: &Path,
    state: State,
    mut manifest: Manifest,
) -> Result<(), Failure> {
    let progress = varve_ui::Progress::new("Writing the trace");
    varve_trace::finish_tables(folder, &mut |share| progress.set(share * 0.9))?;
    let attributed = varve_attribute::finish(folder, manifest.options.min_object_bytes)?;
    progress.set(1.0);
    manifest.modules.extend(attributed.modules);
    manifest.state = state;
    manifest.recorder_pid = None;
    manifest.settle();
    manifest.write(folder)?;
    Ok(())
}
