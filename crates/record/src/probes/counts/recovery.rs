//! The counts of an exact recording whose recorder was killed.
//!
//! They lie in shared files, in which the target counts on whatever happens to the recorder. Beside them stands a
//! note of the trace that they belong to, for as long as they are not in it: the watchdog writes them into it, or the next
//! recorder, or `varve recover`; whoever reads the trace before reads them beside it.

use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use varve_model::{Capability, Time};
use varve_sys::{Identity, effective_user, monotonic_now};
use varve_trace::tables::{CountRow, IntervalRow, LossRow, Row, TouchRow};
use varve_trace::{
    Append, Destination, Manifest, Scratch, ScratchWriter, State, Trace, TraceError, TraceFolder,
    TraceWriter,
};

use super::rows::{self, Run};
use crate::RecordError;
use crate::leftovers::{candidates, recorder_of};

/// The note in the folder of counts: a symbolic link, which is there whole or not at all, and which nobody follows. Its
/// text is the device and the number of the trace folder, and where it was.
pub(crate) const NOTE: &str = "trace";
/// How long the watchdog waits for those who read the trace.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// How often it tries.
const CHECK_EVERY: Duration = Duration::from_millis(50);

/// The trace that lacks some counts.
#[derive(Debug, PartialEq, Eq)]
struct PendingTrace {
    identity: Identity,
    path: PathBuf,
}

impl PendingTrace {
    fn text(&self) -> std::ffi::OsString {
        let mut text = format!("{}:{}:", self.identity.device, self.identity.inode).into_bytes();
        text.extend_from_slice(self.path.as_os_str().as_bytes());
        std::ffi::OsString::from_vec(text)
    }

    fn parse(text: &[u8]) -> Option<PendingTrace> {
        let mut fields = text.splitn(3, |b| *b == b':');
        let mut number = || std::str::from_utf8(fields.next()?).ok()?.parse().ok();
        let (device, inode) = (number()?, number()?);
        let path = PathBuf::from(std::ffi::OsStr::from_bytes(fields.next()?));
        Some(PendingTrace {
            identity: Identity { device, inode },
            path,
        })
    }

    /// Of a folder of counts. Others may make such folders: only one's own is believed.
    fn of(folder: &Path) -> Option<PendingTrace> {
        let note = folder.join(NOTE);
        let is_own =
            |path: &Path| fs::symlink_metadata(path).is_ok_and(|m| m.uid() == effective_user());
        if !is_own(folder) || !is_own(&note) {
            return None;
        }
        PendingTrace::parse(fs::read_link(&note).ok()?.as_os_str().as_bytes())
    }
}

/// Notes that the counts of this folder are still to be written into that trace.
pub(crate) fn note_pending(folder: &Path, trace: &TraceFolder) -> io::Result<()> {
    let pending = PendingTrace {
        identity: trace.identity(),
        path: trace.path().canonicalize()?,
    };
    symlink(pending.text(), folder.join(NOTE))
}

/// The counts are in the trace.
pub(crate) fn note_done(folder: &Path) {
    let _ = fs::remove_file(folder.join(NOTE));
}

/// Writes the counts of this folder of a recorder that is gone into their trace, unless they are there. Says whether
/// the folder is of no use any more: not where somebody is at work at the trace for longer than `patience`.
pub(crate) fn recover_into_trace(folder: &Path, patience: Duration) -> bool {
    let Some(pending) = PendingTrace::of(folder) else {
        return true;
    };
    let began = Instant::now();
    loop {
        match TraceFolder::open(&pending.path) {
            Ok(trace) if trace.identity() == pending.identity => {
                // Where it fails there is nobody to report it to; the trace shows that they are missing.
                let _ = recover_counts(&trace);
                return true;
            }
            Err(TraceError::Busy { .. } | TraceError::IsRead { .. }) => {
                if began.elapsed() >= patience {
                    return false;
                }
                std::thread::sleep(CHECK_EVERY);
            }
            // It was removed or replaced.
            _ => return true,
        }
    }
}

/// Writes the counts that a killed recorder of this trace left into it, if they are there still, as of now.
///
/// # Errors
/// Counts that are there and cannot be read or written.
pub fn recover_counts(trace: &TraceFolder) -> Result<(), RecordError> {
    let read = trace.trace()?;
    let Some(folder) = pending_counts(&read)? else {
        return Ok(());
    };
    // What the recorder wrote of them, if it was killed at that, is not all of them.
    let to = Destination::from(trace);
    for table in [CountRow::TABLE, TouchRow::TABLE, IntervalRow::TABLE] {
        to.remove_parts(table.name)?;
    }
    let mut writer = TraceWriter::resume(trace.clone())?;
    let manifest = write(&folder, &read, &mut writer)?;
    trace.write_manifest(&manifest)?;
    note_done(&folder);
    Ok(())
}

/// Reads the counts that a killed recorder of this trace left, if they are there still, as of now. They go to `scratch`,
/// and nothing else is changed but the trace's manifest in memory.
///
/// # Errors
/// Counts that are there and cannot be read.
pub fn read_counts(trace: &mut Trace, scratch: &Scratch) -> Result<(), RecordError> {
    let Some(folder) = pending_counts(trace)? else {
        return Ok(());
    };
    let mut writer = ScratchWriter::new(scratch);
    writer.begin::<CountRow>()?;
    writer.begin::<TouchRow>()?;
    writer.begin::<IntervalRow>()?;
    writer.append(&trace.rows::<LossRow>()?)?;
    trace.manifest = write(&folder, trace, &mut writer)?;
    writer.close()?;
    Ok(())
}

/// The folder of the counts that this trace lacks.
fn pending_counts(trace: &Trace) -> Result<Option<PathBuf>, RecordError> {
    let manifest = &trace.manifest;
    if manifest.state != State::Recording || !manifest.has(Capability::ExactCounts) {
        return Ok(None);
    }
    let Some(recorder) = manifest.recorder_pid else {
        return Ok(None);
    };
    let identity = trace.identity()?;
    Ok(candidates().find(|folder| {
        let named = folder.file_name().and_then(recorder_of);
        let is_its = named.is_some_and(|pid| pid.0 == recorder);
        is_its && PendingTrace::of(folder).is_some_and(|c| c.identity == identity)
    }))
}

/// Writes the rows and gives the manifest that goes with them.
fn write(folder: &Path, trace: &Trace, writer: &mut impl Append) -> Result<Manifest, RecordError> {
    let mut manifest = trace.manifest.clone();
    let written: Vec<LossRow> = trace.rows()?;
    let end = monotonic_now();
    if manifest.clock.start_ns == Time(0) {
        manifest.clock.start_ns = rows::began(folder)?.unwrap_or(end);
    }
    let run = Run {
        began: manifest.clock.start_ns,
        end,
        only: (!manifest.options.follow).then_some(manifest.target.pid),
    };
    let mut intervals = Vec::new();
    let losses = rows::write(folder, &run, writer, &mut intervals)?;
    let mut rows = Vec::new();
    for (kind, count) in losses {
        if count > 0 && written.iter().all(|row| row.kind != kind.as_str()) {
            rows.push(LossRow {
                time_ns: end,
                kind: kind.as_str().to_owned(),
                count,
            });
            manifest.losses.insert(kind.as_str().to_owned(), count);
        }
    }
    writer.append(&rows)?;
    writer.append(&intervals)?;
    manifest.clock.end_ns = end;
    Ok(manifest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_read_as_it_was_written() {
        let pending = PendingTrace {
            identity: Identity {
                device: 2049,
                inode: 77,
            },
            path: "/a:b/c d.varve".into(),
        };
        assert_eq!(
            PendingTrace::parse(pending.text().as_bytes()),
            Some(pending)
        );
        for other in ["", "/a/b.varve", "1:2", "x:2:/a", "1:-2:/a"] {
            assert_eq!(PendingTrace::parse(other.as_bytes()), None, "{other}");
        }
    }
}
