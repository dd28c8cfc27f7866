//! One fault handler, as the recorder knows it.

use std::io;
use std::path::Path;
use std::time::{Duration as Wait, Instant};

use varve_bpf::ExemptProcesses;
use varve_model::{Address, Bytes, Pid, Time};
use varve_preload_abi::{
    DEVICE, ENDING, HELLO, MAX_WORDS, PLACES, Protect, Protected, QUIT, READY, RESOLVED,
    SHARED_USER, THREADS,
};
use varve_sys::{HandlerSocket, MovedPages, PidFd};

use super::STEP;
use crate::state::ranges::Ranges;

/// A handler that takes longer is given up: the target stands still meanwhile.
const MAX_ANSWER: Wait = Wait::from_secs(2);

/// The same of one that is to end: nothing but two counts is lost.
const LAST_ANSWER: Wait = Wait::from_millis(20);

/// Places to which a handler says that it moves pages, at most: more than it keeps.
const MAX_PLACES: usize = 32 << 10;

/// What a handshake brought.
#[derive(Debug, Default)]
pub(super) struct Handshake {
    /// The handler, once it is certain that it is one, and when it was made.
    pub(super) met: Option<(Pid, Time)>,
    /// What brings its pages back without it, once it has its userfaultfd.
    pub(super) pages: Option<MovedPages>,
}

#[derive(Debug)]
pub(super) struct Handler {
    pub(super) socket: HandlerSocket,
    pub(super) since: Time,
    /// When the recorder took the connection.
    pub(super) connected: Time,
    pub(super) state: State,
    /// Whether it has moved pages.
    pub(super) moved: bool,
    /// The memory to which it moves pages.
    pub(super) shadow: Ranges,
    /// How many pieces that is.
    pub(super) places: usize,
    /// Whether it has said that its program asked it to end.
    pub(super) is_ending: bool,
    /// What it had resolved, and of that accesses to pages without content, when it ended because its program asked it to.
    pub(super) left: Option<(u64, u64)>,
}

/// How far a handler has come.
#[derive(Debug)]
pub(super) enum State {
    /// Somebody of the process has connected.
    Connected,
    /// It is the handler, and has the device.
    Verified(Pid, PidFd),
    /// It has its userfaultfd.
    Ready(Pid, PidFd),
}

impl Handler {
    pub(super) fn is_ready(&self) -> bool {
        matches!(self.state, State::Ready(..))
    }

    /// The handler's process, where it is known.
    pub(super) fn handler(&self) -> Option<(Pid, &PidFd)> {
        match &self.state {
            State::Connected => None,
            State::Verified(pid, alive) | State::Ready(pid, alive) => Some((*pid, alive)),
        }
    }

    /// Whether the handler has ended, or is about to.
    pub(super) fn has_ended(&self) -> bool {
        let is_over =
            |(pid, alive): (Pid, &PidFd)| alive.has_ended() || !varve_sys::is_running(pid);
        self.handler().is_some_and(is_over)
    }

    /// Whether it has ended with pages that it had moved, and its program did not ask it to.
    pub(super) fn is_lost(&self) -> bool {
        self.moved && self.left.is_none() && self.has_ended()
    }

    /// Hears whether it ends because its program asked it to.
    pub(super) fn hear_end(&mut self) {
        self.hear_last(Wait::ZERO);
    }

    /// Hears what a handler says that nobody has asked, and waits so long for each.
    fn hear_last(&mut self, wait: Wait) {
        let mut words = [0; 3];
        while self.left.is_none()
            && self.is_ready()
            && let Ok(Some(said)) = self.socket.receive(&mut words, wait)
        {
            self.left = resolved(&words, said.words);
            if words[0] != ENDING || std::mem::replace(&mut self.is_ending, true) {
                break;
            }
        }
    }

    /// Waits until it has put its pages back, where it says for the first time that its program has asked it to; whether it did.
    pub(super) fn await_end(&mut self) -> bool {
        if self.left.is_some() || self.is_ending {
            return false;
        }
        self.hear_last(Wait::ZERO);
        if self.is_ending && self.left.is_none() {
            self.answer(&mut [0; 3]);
        }
        self.is_ending
    }

    /// Lets the handler go on where somebody has stopped it: its process would wait at every page that it has moved.
    pub(super) fn resume(&self) {
        if let Some((pid, alive)) = self.handler()
            && varve_sys::status(pid).is_ok_and(|s| s.state == 'T')
        {
            let _ = alive.signal(libc::SIGCONT);
        }
    }

    /// Hears what it says until it is ready: that it has given up its rights, and that it has its userfaultfd.
    pub(super) fn handshake(
        &mut self,
        process: Pid,
        held: Option<&Path>,
        exempt: &ExemptProcesses,
    ) -> io::Result<Handshake> {
        let mut words = [0; MAX_WORDS];
        let Some(said) = self.socket.receive(&mut words, Wait::ZERO)? else {
            return Ok(Handshake::default());
        };
        if words[0] == SHARED_USER && matches!(self.state, State::Connected) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let pid = said.pid.ok_or(io::ErrorKind::InvalidData)?;
        let mut shaken = Handshake::default();
        let state = std::mem::replace(&mut self.state, State::Connected);
        self.state = match (state, words[0], said.descriptor) {
            (State::Connected, HELLO, None) => {
                let alive = varve_sys::verify_handler(pid, process)?;
                // One that is tracked as well would be held with the program that waits for it.
                let made = exempt.since(pid).ok_or(io::ErrorKind::PermissionDenied)?;
                self.socket.send_device(&[DEVICE])?;
                shaken.met = Some((pid, made));
                State::Verified(pid, alive)
            }
            (State::Verified(handler, alive), READY, Some(descriptor)) if handler == pid => {
                let front = varve_sys::begin_traps(descriptor)?;
                // Before it moves anything, others can bring it back.
                shaken.pages = Some(MovedPages::open(pid, process, front, words[1])?);
                if let Some(held) = held {
                    exempt_from_hold(pid, &alive, held)?;
                }
                State::Ready(pid, alive)
            }
            _ => return Err(io::ErrorKind::InvalidData.into()),
        };
        Ok(shaken)
    }

    /// Asks it to protect, all pages but those of these threads' control blocks.
    pub(super) fn protect(&self, protect: &Protect, mut threads: Vec<u64>) -> io::Result<()> {
        // In order, which spares the handler work.
        threads.sort_unstable();
        for some in threads.chunks(MAX_WORDS - 1) {
            let words: Vec<u64> = [THREADS].into_iter().chain(some.iter().copied()).collect();
            self.socket.send(&words, MAX_ANSWER)?;
        }
        self.socket.send(&protect.encode(), MAX_ANSWER)
    }

    /// What it did; nothing where it ended or takes too long.
    pub(super) fn answer(&mut self, words: &mut [u64]) -> Option<Protected> {
        let until = Instant::now() + MAX_ANSWER;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let Some(said) = self.socket.receive(words, left.min(STEP)).ok()? else {
                self.resume();
                if left.is_zero() {
                    return None;
                }
                continue;
            };
            let words = words.get(..said.words)?;
            let places = match words {
                [PLACES, places @ ..] => places,
                [ENDING] if !self.is_ending => {
                    self.is_ending = true;
                    continue;
                }
                _ => {
                    self.left = resolved(words, said.words);
                    return Protected::decode(words);
                }
            };
            self.places += places.len() / 2;
            if self.places > MAX_PLACES {
                return None;
            }
            for range in places.chunks_exact(2) {
                self.shadow.insert(Address(range[0]), Bytes(range[1]));
            }
        }
    }

    /// Ends it at once: the memory is of no use any more. What it has resolved since the last boundary, and of that
    /// accesses to pages without content.
    pub(super) fn quit(mut self) -> (u64, u64) {
        self.resume();
        // If it does not hear it, it hears the end of the connection.
        if self.left.is_none() && self.socket.send(&[QUIT], Wait::ZERO).is_ok() {
            self.hear_last(LAST_ANSWER);
        }
        self.left.unwrap_or_default()
    }
}

/// The counts of a last message.
fn resolved(words: &[u64], said: usize) -> Option<(u64, u64)> {
    match words {
        [RESOLVED, resolved, empty, ..] if said == 3 => Some((*resolved, *empty)),
        _ => None,
    }
}

impl Drop for Handler {
    fn drop(&mut self) {
        // Where somebody has stopped it, it would neither put back what it has nor end.
        self.resume();
    }
}

/// Takes a handler out of the cgroup that is held, if that is where it is, to the parent, whose limits apply to both.
fn exempt_from_hold(handler: Pid, alive: &PidFd, held: &Path) -> io::Result<()> {
    let groups = std::fs::read_to_string(format!("/proc/{handler}/cgroup"))?;
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"));
    let (Some(own), Some(parent)) = (own, held.parent()) else {
        return Ok(());
    };
    // The number is still the handler's: it would report its end.
    if held.ends_with(own) && !alive.has_ended() {
        std::fs::write(parent.join("cgroup.procs"), handler.to_string())?;
    }
    Ok(())
}
