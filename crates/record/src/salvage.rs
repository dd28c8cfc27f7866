//! The counts of an exact recording whose recorder was killed.
//!
//! They lie in shared files, in which the target counts on whatever happens to the recorder. Beside them stands a
//! link to the trace, for as long as they are not in it; whoever finds it first reads them: the guardian, the next
//! recorder, or whoever opens the trace.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

use varve_model::Time;
use varve_sys::monotonic_now;
use varve_trace::tables::{CountRow, IntervalRow, LossRow, Row, TouchRow};
use varve_trace::{EXACT, Manifest, State, Trace, TraceWriter, remove_parts};

use crate::RecordError;
use crate::exact_rows::{self, Run};
use crate::stale::{BASES, folders, recorder_of};

/// The link to the trace in the folder of counts.
const LINK: &str = "trace";

/// Notes that the counts of this folder are still to be written into that trace.
pub(crate) fn owe(folder: &Path, trace: &Path) -> io::Result<()> {
    symlink(trace.canonicalize()?, folder.join(LINK))
}

/// The counts are in the trace.
pub(crate) fn settled(folder: &Path) {
    let _ = fs::remove_file(folder.join(LINK));
}

/// Writes the counts that a killed recorder of this trace left, if they are there still, as of now. Nobody else does
/// so, nor changes the trace by [`recover`], while the result lives.
///
/// # Errors
/// Counts that are there and cannot be read or written.
pub fn recover(trace: &Path) -> Result<Option<File>, RecordError> {
    let lock = varve_sys::lock_patiently(trace).ok();
    let Ok(manifest) = Manifest::read(trace) else {
        return Ok(lock);
    };
    let Some(recorder) = manifest.recorder_pid.filter(|_| is_owed(&manifest)) else {
        return Ok(lock);
    };
    let Ok(trace) = trace.canonicalize() else {
        return Ok(lock);
    };
    for folder in BASES.iter().flat_map(|base| folders(Path::new(base))) {
        let name = folder.file_name().and_then(|n| n.to_str()).unwrap_or("");
        let is_its = recorder_of(name).is_some_and(|pid| pid.0 == recorder);
        if is_its && creditor(&folder).is_some_and(|owed| owed == trace) {
            write(&folder, &trace, manifest)?;
            settled(&folder);
            break;
        }
    }
    Ok(lock)
}

/// Writes the counts of this folder of a recorder that is gone into their trace, unless they are there.
pub(crate) fn salvage(folder: &Path) {
    if let Some(trace) = creditor(folder) {
        // Where it fails there is nobody to be told; the trace shows that they are missing.
        let _ = recover(&trace);
    }
}

/// The trace that lacks the counts of this folder. Others may make links there: only one's own is believed.
fn creditor(folder: &Path) -> Option<PathBuf> {
    let link = folder.join(LINK);
    let own = rustix::process::geteuid().as_raw();
    let is_own = |path: &Path| fs::symlink_metadata(path).is_ok_and(|m| m.uid() == own);
    if !is_own(folder) || !is_own(&link) {
        return None;
    }
    fs::read_link(&link).ok()
}

/// Whether a trace is one to which counts may be missing.
fn is_owed(manifest: &Manifest) -> bool {
    manifest.state == State::Recording && manifest.backend == EXACT
}

fn write(folder: &Path, trace: &Path, mut manifest: Manifest) -> Result<(), RecordError> {
    // What the recorder wrote of them, if it was killed at that, is not all of them.
    for table in [CountRow::TABLE, TouchRow::TABLE, IntervalRow::TABLE] {
        remove_parts(trace, table.name)?;
    }
    let told: Vec<LossRow> = Trace::open(trace)?.rows()?;
    let mut writer = TraceWriter::resume(trace)?;
    let end = monotonic_now();
    if manifest.clock.start_ns == Time(0) {
        manifest.clock.start_ns = exact_rows::began(folder)?.unwrap_or(end);
    }
    let run = Run {
        began: manifest.clock.start_ns,
        end,
        only: (!manifest.options.follow).then_some(manifest.target.pid),
    };
    let mut intervals = Vec::new();
    let losses = exact_rows::write(folder, &run, &mut writer, &mut intervals)?;
    let mut rows = Vec::new();
    for (kind, count) in losses {
        if count > 0 && told.iter().all(|row| row.kind != kind) {
            rows.push(LossRow {
                time_ns: end,
                kind: kind.to_owned(),
                count,
            });
            manifest.losses.insert(kind.to_owned(), count);
        }
    }
    writer.append(&rows)?;
    writer.append(&intervals)?;
    manifest.clock.end_ns = end;
    manifest.write(trace)?;
    Ok(())
}
