//! Opening a trace for reading, which changes nothing in it.

use std::path::Path;
use std::time::{Duration, Instant};

use varve_attribute::OpenFiles;
use varve_trace::{Destination, Scratch, State, Trace, TraceError};

use super::Failure;

/// How long a reader waits for a watchdog that is at work at the trace of a recorder that was killed just now.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often it looks.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Opens a trace. What a killed recorder left is put in order in temporary files; what is being recorded is refused.
pub(crate) fn open(path: &Path) -> Result<Trace, Failure> {
    let mut trace = Trace::open(path)?;
    if trace.manifest.state != State::Recording {
        return Ok(trace);
    }
    lock(&mut trace)?;
    if trace.manifest.state != State::Recording {
        trace.unlock();
        return Ok(trace);
    }
    varve_ui::warning(format!(
        "{} was not put in order when its recording ended, as the recorder was killed or the disk was full: reading what was written",
        path.display()
    ));
    let scratch = Scratch::new(&std::env::temp_dir());
    varve_record::read_counts(&mut trace, &scratch).map_err(super::record::failure)?;
    let progress = varve_ui::Progress::new("Reading what was written");
    let to = Destination::from(&scratch);
    Ok(varve_attribute::finish_trace(
        trace,
        &to,
        State::Recovered,
        OpenFiles::default(),
        &mut |share| progress.set(share),
    )?)
}

/// Keeps others from writing to a trace whose recorder is gone, and reads its manifest as it is then.
fn lock(trace: &mut Trace) -> Result<(), Failure> {
    let began = Instant::now();
    loop {
        match trace.lock() {
            Ok(()) => break,
            Err(TraceError::Busy { recorder, .. }) => {
                let lives = recorder.filter(|pid| is_recorder(*pid));
                if lives.is_some() || began.elapsed() > PATIENCE {
                    return Err(still_recorded(trace.folder(), lives));
                }
                std::thread::sleep(LOOK_EVERY);
                trace.reread()?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(trace.reread()?)
}

/// Why a trace that somebody is still at work at cannot be read or put in order.
pub(super) fn still_recorded(path: &Path, recorder: Option<u32>) -> Failure {
    match recorder {
        Some(pid) => Failure::new(
            format!(
                "{} is still being recorded, by process {pid}",
                path.display()
            ),
            Some(format!(
                "end the recording with `kill -INT {pid}`, or wait for it"
            )),
        ),
        None => Failure::new(
            format!("{} is still being recorded", path.display()),
            Some("wait for its end; `lslocks` lists who writes to it"),
        ),
    }
}

/// Whether a process is a recorder that lives.
pub(super) fn is_recorder(pid: u32) -> bool {
    let name = varve_sys::status(varve_model::Pid(pid)).map(|s| (s.name, s.state));
    name.is_ok_and(|(name, state)| name == "varve" && state != 'Z')
}
