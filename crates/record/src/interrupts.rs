//! What ends a recorder that does not end: the last resort for interrupts.
//!
//! The loop takes signals and ends in order. Where it is busy with something else for longer than a person waits, whatever
//! that is, a thread beside it ends the recorder: the watchdog lets the target go, and what was written can be read.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use varve_sys::{Signals, is_readable};

use crate::{RecordError, RecordOptions};

/// How long a signal may wait for the loop.
const PATIENCE: Duration = Duration::from_millis(900);
/// And while the loop writes the trace: a disk that others keep busy takes seconds, and ends.
const DISK_PATIENCE: Duration = Duration::from_secs(10);
const STEP: Duration = Duration::from_millis(20);

/// Says a sentence to a person.
pub type Tell = fn(&str);

/// Whether the loop writes the trace at the moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Writing(Arc<AtomicBool>);

impl Writing {
    /// Runs what writes.
    pub(crate) fn during<T>(&self, write: impl FnOnce() -> T) -> T {
        self.0.store(true, Ordering::Relaxed);
        let result = write();
        self.0.store(false, Ordering::Relaxed);
        result
    }

    fn is_on(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// When to give up, and what is said then.
struct Limit {
    patience: Duration,
    sentence: String,
    writing: Writing,
    tell: Tell,
}

/// The last resort of a recording.
pub(crate) fn guard(
    options: &RecordOptions,
    signals: &Signals,
    writing: &Writing,
) -> Result<LastResort, RecordError> {
    let sentence = format!(
        "interrupted, and the recorder is busy with something that does not end: it leaves. What it wrote is in {}, as of a \
         recorder that was killed",
        options.output.path.display()
    );
    let limit = Limit {
        patience: PATIENCE,
        sentence,
        writing: writing.clone(),
        tell: options.tell,
    };
    LastResort::start(signals, limit).map_err(RecordError::system("make a thread"))
}

/// The thread; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct LastResort {
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl LastResort {
    /// Ends this process, after a sentence, when a signal has waited for too long.
    fn start(signals: &Signals, limit: Limit) -> io::Result<LastResort> {
        let waiting = signals.as_fd().try_clone_to_owned()?;
        let (stop, stopped) = UnixStream::pair()?;
        let thread = std::thread::Builder::new()
            .name("interrupts".into())
            .stack_size(128 << 10)
            .spawn(move || watch(&waiting, &stopped, &limit))?;
        Ok(LastResort {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for LastResort {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn watch(waiting: &OwnedFd, stopped: &UnixStream, limit: &Limit) {
    let both = [waiting.as_fd(), stopped.as_fd()];
    loop {
        let [signal, stop] = is_readable(both, None);
        if stop {
            return;
        }
        if !signal {
            continue;
        }
        if limit.patience.is_zero() && varve_sys::was_just_taken() {
            // The signal that ended the recording, once more.
            varve_sys::take_signal(waiting);
            continue;
        }
        // Steps are counted, not time: where the whole machine stood still, the loop could not take the signal either.
        let mut waited = Duration::ZERO;
        let mut said = false;
        while is_readable([waiting.as_fd()], Some(Duration::ZERO)) == [true] {
            if waited >= limit.patience {
                if !limit.writing.is_on() || waited >= DISK_PATIENCE {
                    (limit.tell)(&limit.sentence);
                    let signal = varve_sys::take_signal(waiting).unwrap_or(libc::SIGINT);
                    std::process::exit(128 + signal);
                }
                if !std::mem::replace(&mut said, true) {
                    (limit.tell)(
                        "interrupted: the recorder waits for the disk to take the trace, for 10 s at most",
                    );
                }
            }
            if is_readable([stopped.as_fd()], Some(STEP)) == [true] {
                return;
            }
            waited += STEP;
        }
    }
}

/// While this lives an interrupt ends this process at once, after a sentence, unless it follows within a second the one that ended
/// the recording.
#[derive(Debug)]
pub struct Interruptible {
    // Before the signals, which have their old effect again when they are dropped.
    _last_resort: LastResort,
    _signals: Signals,
}

/// Has interrupts end this process at once, after a sentence: for what can be done again.
///
/// # Errors
/// Where signals cannot be caught, or no thread be made.
pub fn interruptible(sentence: String, tell: Tell) -> io::Result<Interruptible> {
    let signals = Signals::catch()?;
    let limit = Limit {
        patience: Duration::ZERO,
        sentence,
        writing: Writing::default(),
        tell,
    };
    Ok(Interruptible {
        _last_resort: LastResort::start(&signals, limit)?,
        _signals: signals,
    })
}
