//! Putting a trace in order: its tables are merged, its objects named, and its manifest says what came of it.

use varve_model::Loss;
use varve_symbols::OpenFiles;
use varve_trace::{
    Destination, Manifest, State, Trace, TraceError, finish_tables, finish_tables_to,
};

use crate::finish::finish;

/// The share of the time that merging takes.
const MERGING: f64 = 0.9;

/// Puts a trace in order, as its manifest in memory has it, and gives it back as it is then. Where the destination is
/// not the trace itself, nothing of the trace is changed; only what cannot be read as it is goes to the destination.
/// `state` says whether its recorder ended in order, and `open_files` are the files that it has open still. What was cut short can be taken up again.
///
/// # Errors
/// Tables that are damaged, and files that cannot be written.
pub fn finish_trace(
    source: Trace,
    destination: &Destination,
    state: State,
    open_files: OpenFiles,
    progress: &mut dyn FnMut(f64),
) -> Result<Trace, TraceError> {
    let mut manifest = source.manifest.clone();
    let mut trace = match destination {
        Destination::Trace(folder) => {
            finish_tables(folder, &mut |share| progress(share * MERGING))?;
            folder.trace()?
        }
        Destination::Scratch(scratch) => {
            let trace = source.with(scratch);
            finish_tables_to(&trace, scratch)?;
            trace
        }
    };
    let named = finish(
        &trace,
        destination,
        manifest.options.min_object_bytes,
        open_files,
    )?;
    progress(1.0);
    manifest.modules.extend(named.modules);
    manifest.notes.extend(named.notes);
    conclude(&mut manifest, state);
    if let Destination::Trace(folder) = destination {
        manifest.checksums = folder.checksums()?;
        folder.write_last_manifest(&manifest)?;
        folder.release_reserve();
    }
    trace.manifest = manifest;
    Ok(trace)
}

fn conclude(manifest: &mut Manifest, state: State) {
    let is_explained = manifest.losses.contains_key(Loss::EndedEarly.as_str());
    // A recorder that ended by itself has taken its number away, and had written everything.
    let state = match manifest.recorder_pid {
        None => State::Finished,
        Some(_) => state,
    };
    if state == State::Recovered && !is_explained {
        manifest
            .losses
            .insert(Loss::RecorderKilled.as_str().to_owned(), 1);
        manifest.notes.push(
            "The recorder was killed: what it had not written, at most the last half second or so, is missing."
                .to_owned(),
        );
    }
    manifest.state = state;
    manifest.recorder_pid = None;
    manifest.derive_completeness();
}
