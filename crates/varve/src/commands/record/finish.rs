//! What is done when the recording has ended: the trace is put in order.

use std::process::ExitCode;

use varve_attribute::OpenFiles;
use varve_record::Summary;
use varve_report::quoted_path;
use varve_trace::{Destination, Moved, State, Trace, TraceError, TraceFolder};

use super::super::Failure;
use super::{Closing, failure};

/// Puts the trace in order, and waits for a target that goes on.
pub(super) fn finish(mut summary: Summary, closing: Closing) -> Result<ExitCode, Failure> {
    // What was attached to may be there still, with the files that it has mapped.
    varve_record::keep_for_finish(summary.exit_code.is_none());
    let ended = summary.exit_code;
    // Who is recorded no more shall not wait for its trace either. Without breaks it may, a little.
    let _breaks = ended.is_none().then(varve_sys::Breaks::begin);
    let waiting = summary.waiting.take();
    write(summary, closing);
    let code = match waiting {
        Some(target) => target.wait().map_err(failure)?,
        None => ended.unwrap_or(0),
    };
    Ok(ExitCode::from(code as u8))
}

/// Puts the trace in order and says where it is, or why it is not.
fn write(summary: Summary, closing: Closing) {
    if let Some(trouble) = &summary.trouble {
        let (what, hint) = trouble.message();
        varve_ui::error(format!("the recording ended early: {what}"));
        if let Some(hint) = hint {
            varve_ui::hint(hint);
        }
    }
    if !summary.held_by.is_empty() {
        varve_ui::note(&summary.held_by);
    }
    let folder = summary.folder;
    let interruptible = varve_record::interruptible(
        format!(
            "interrupted: {0} is not in order yet, as of a recorder that was killed; `varve recover {1}` puts it in order",
            folder.path().display(),
            quoted_path(folder.path())
        ),
        |sentence| varve_ui::note(sentence),
    );
    let mut manifest = summary.manifest;
    let files = summary.files;
    let ordered = folder.trace().map_err(Failure::from).and_then(|mut trace| {
        trace.manifest = manifest.clone();
        put_in_order(&folder, trace, State::Finished, files)
    });
    if ordered.is_err() {
        // Whoever puts it in order later knows that nothing is missing. Where not even that can be written it is as if killed.
        manifest.recorder_pid = None;
        let _ = folder.write_last_manifest(&manifest);
    }
    drop(interruptible);
    // Somebody may have moved it while it was written.
    let moved = folder.moved();
    if moved == Some(Moved::Removed) {
        // Nothing of it is anywhere. Where the recording ended early, the reason has been given.
        if summary.trouble.is_none() {
            let path = folder.path().to_owned();
            let failure = Failure::from(TraceError::Gone { path });
            varve_ui::error(format!("there is no trace: {}", failure.what));
            failure.hint.iter().for_each(varve_ui::hint);
        }
        return;
    }
    let path = match moved {
        Some(Moved::To(now)) => {
            varve_ui::warning(format!(
                "{} was moved while it was written, and is {} now",
                folder.path().display(),
                now.display()
            ));
            now
        }
        None | Some(Moved::Removed) => folder.path().to_owned(),
    };
    let trace = match ordered {
        Ok(trace) => trace,
        Err(failure) => {
            // The target has run and its code counts; what was written can be put in order later.
            let again = format!("`varve recover {}` tries again", quoted_path(&path));
            if summary.trouble.is_some() {
                varve_ui::note(format!(
                    "what was written is in {}, not in order yet: {again}, and `varve report` reads it as it is",
                    path.display()
                ));
            } else {
                varve_ui::error(format!("the trace is not in order yet: {}", failure.what));
                varve_ui::hint(match failure.hint {
                    // Another folder does not help any more.
                    Some(hint) if !hint.contains("-o") => format!("{hint}; {again}"),
                    _ => format!("once there is room, {again}"),
                });
            }
            return;
        }
    };
    let wrote = format!("wrote {}; {}", path.display(), (closing.next)(&path));
    // It is looked at once more for what is said of it.
    let _interruptible = varve_record::interruptible(format!("interrupted: {wrote}"), |sentence| {
        varve_ui::note(sentence);
    });
    (closing.lines)(&trace).iter().for_each(varve_ui::note);
    varve_ui::note(wrote);
}

/// Merges what a recorder wrote, gives names to its objects and completes the manifest.
pub(in crate::commands) fn put_in_order(
    folder: &TraceFolder,
    trace: Trace,
    state: State,
    open_files: OpenFiles,
) -> Result<Trace, Failure> {
    let progress = varve_ui::Progress::new("Writing the trace");
    let to = Destination::from(folder);
    Ok(varve_attribute::finish_trace(
        trace,
        &to,
        state,
        open_files,
        &mut |share| progress.set(share),
    )?)
}
