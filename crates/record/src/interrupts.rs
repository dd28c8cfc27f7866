//! What ends a recorder that does not end: the last resort for interrupts.
//!
//! The loop takes signals and ends in order. Where it is busy with something else for longer than a person waits, whatever
//! that is, a thread beside it ends the recorder: the watchdog lets the target go, and what was written can be read.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::Duration;

use varve_sys::{Signals, is_readable};

use crate::{RecordError, RecordOptions};

/// How long a signal may wait for the loop.
const PATIENCE: Duration = Duration::from_millis(900);
const STEP: Duration = Duration::from_millis(20);

/// Says a sentence to a person.
pub type Tell = fn(&str);

/// The last resort of a recording.
pub(crate) fn guard(options: &RecordOptions, signals: &Signals) -> Result<LastResort, RecordError> {
    let sentence = format!(
        "interrupted, and the recorder is busy with something that does not end: it leaves. What it wrote is in {}, as of a \
         recorder that was killed",
        options.output.path.display()
    );
    LastResort::start(signals, PATIENCE, sentence, options.tell)
        .map_err(RecordError::system("make a thread"))
}

/// The thread; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct LastResort {
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl LastResort {
    /// Ends this process, after a sentence, when a signal has waited for `patience`.
    pub(crate) fn start(
        signals: &Signals,
        patience: Duration,
        sentence: String,
        tell: Tell,
    ) -> io::Result<LastResort> {
        let waiting = signals.as_fd().try_clone_to_owned()?;
        let (stop, stopped) = UnixStream::pair()?;
        let thread = std::thread::Builder::new()
            .name("interrupts".into())
            .stack_size(128 << 10)
            .spawn(move || watch(&waiting, &stopped, patience, &sentence, tell))?;
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

fn watch(waiting: &OwnedFd, stopped: &UnixStream, patience: Duration, sentence: &str, tell: Tell) {
    let both = [waiting.as_fd(), stopped.as_fd()];
    loop {
        let [signal, stop] = is_readable(both, None);
        if stop {
            return;
        }
        if !signal {
            continue;
        }
        // Steps are counted, not time: where the whole machine stood still, the loop could not take the signal either.
        let mut waited = Duration::ZERO;
        while is_readable([waiting.as_fd()], Some(Duration::ZERO)) == [true] {
            if waited >= patience {
                tell(sentence);
                std::process::exit(128 + varve_sys::take_signal(waiting).unwrap_or(libc::SIGINT));
            }
            if is_readable([stopped.as_fd()], Some(STEP)) == [true] {
                return;
            }
            waited += STEP;
        }
    }
}

/// While this lives an interrupt ends this process at once, after a sentence.
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
    Ok(Interruptible {
        _last_resort: LastResort::start(&signals, Duration::ZERO, sentence, tell)?,
        _signals: signals,
    })
}
