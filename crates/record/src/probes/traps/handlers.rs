//! The fault backend: the first access to each page in an interval traps.
//!
//! Each process with the preload library has a fault handler (`agent/src/handler.rs`). While the target is held, and
//! after the accessed bits were read, each handler moves the pages of its process aside; when the target runs on, the
//! first access to a page faults, and the kernel's tracepoints tell of it as of every fault: address, thread, CPU, time,
//! instruction, read or write. The scan goes on as ever and is the safety net: what cannot be moved is still found
//! there.
//!
//! Whoever speaks to the recorder gets nothing for what it says. A handler is a process that shares the memory of a
//! process that is recorded, by the kernel's word, and that has given up all rights; it gets the device from which it makes
//! userfaultfds of that memory, and is taken out of the cgroup that is held to the one that it came from, whose
//! limits are those that it had.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration as Wait, Instant};

use varve_agent_ring::{
    Arm, Armed, DEVICE, HELLO, MOST_WORDS, PLACES, QUIT, READY, SERVED, THREADS, WHO,
};
use varve_bpf::{ExemptProcesses, Leaf, Region};
use varve_model::{Address, Bytes, Duration, Pid, Tid, Time, TouchSource};
use varve_sys::{HandlerSocket, PidFd, monotonic_now};
use varve_trace::TrapsNote;
use varve_trace::tables::TouchRow;

use super::budget::{Budget, Spent};
use crate::state::found::Found;
use crate::state::ranges::Ranges;

/// A handler that takes longer is given up: the target stands still meanwhile.
const MAX_ANSWER: Wait = Wait::from_secs(2);

/// The same of one that is to end: nothing but two counts is lost.
const LAST_ANSWER: Wait = Wait::from_millis(20);

/// How often handlers are asked whether somebody has stopped them.
const STEP: Wait = Wait::from_millis(50);

/// How long a handler may take until it is met: whoever waits for it in the program gives up earlier.
const MAX_MEETING: Duration = Duration(10_000_000_000);

/// How long a process may take to show that it ends, or runs another program.
const MAX_DOUBT: Duration = Duration(200_000_000);

/// What is armed without a budget.
const EVERY_PAGE: Arm = Arm {
    seed: 0,
    threshold: u64::MAX,
    afresh: false,
    is_limited: false,
};

/// Places to which a handler says that it moves pages, at most: more than it keeps.
const MAX_PLACES: usize = 32 << 10;

/// What the events tell that handlers must know.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TrapNews {
    /// A thread began, whose control block lies there.
    Thread(Pid, Tid, Address),
    /// A thread ended.
    ThreadEnded(Pid, Tid),
    /// The memory that the process had until then is gone.
    Gone(Pid, Time),
}

/// The fault handlers of all processes.
#[derive(Debug)]
pub(crate) struct Handlers {
    /// The cgroup that is held. Handlers are to be in its parent, which has the same limits.
    held: Option<PathBuf>,
    handlers: HashMap<Pid, Handler>,
    threads: HashMap<Pid, HashMap<Tid, Address>>,
    /// Where not all pages are to be armed.
    budget: Option<Budget>,
    /// What the interval that runs has cost so far.
    spent: Spent,
    /// What was armed last.
    armed: Arm,
    /// What was done, for the manifest.
    pub(crate) note: TrapsNote,
    /// Processes without a handler, of which nobody knows yet whether they are about to end.
    doubts: Vec<Doubt>,
    /// Handlers that somebody ended while they had moved pages, which are lost.
    pub(crate) killed: u64,
    /// Processes that are not tracked because they may be handlers.
    exempt: ExemptProcesses,
    /// Those of them that are, by when they were made.
    met: HashSet<(Pid, Time)>,
    /// Those that did not turn out to be: they ran unobserved.
    pub(crate) unobserved: HashSet<(Pid, Time)>,
    /// When handlers were last asked whether they are stopped.
    asked: Time,
}

/// A process whose handler failed.
#[derive(Clone, Copy, Debug)]
struct Doubt {
    pid: Pid,
    /// When what it ran began.
    since: Time,
    /// When it failed.
    failed: Time,
}

#[derive(Debug)]
struct Handler {
    socket: HandlerSocket,
    since: Time,
    state: State,
    /// Whether it has moved pages.
    moved: bool,
    /// The memory to which it moves pages.
    aside: Ranges,
    /// How many pieces that is.
    places: usize,
}

/// How far a handler has come.
#[derive(Debug)]
enum State {
    /// Somebody of the process has connected.
    Connected,
    /// It is the handler, and has the device.
    Verified(Pid, PidFd),
    /// It has its userfaultfd.
    Ready(Pid, PidFd),
}

impl Handlers {
    /// None yet.
    pub(crate) fn new(budget: Option<Budget>, exempt: ExemptProcesses) -> Handlers {
        Handlers {
            held: None,
            handlers: HashMap::new(),
            threads: HashMap::new(),
            note: TrapsNote {
                budget: budget.as_ref().map(|b| b.limit),
                ..TrapsNote::default()
            },
            budget,
            spent: Spent::default(),
            armed: EVERY_PAGE,
            doubts: Vec::new(),
            killed: 0,
            exempt,
            met: HashSet::new(),
            unobserved: HashSet::new(),
            asked: Time(0),
        }
    }

    /// Tells which cgroup the target is held in.
    pub(crate) fn held_in(&mut self, cgroup: Option<&Path>) {
        self.held = cgroup.map(Path::to_owned);
    }

    /// Asks who is at the other end of a connection that the process made, which runs something since `image`.
    pub(crate) fn take(&mut self, pid: Pid, image: Time, socket: OwnedFd) {
        let asked = HandlerSocket::adopt(socket).and_then(|socket| {
            // From here on the kernel says who sent a message.
            socket.send(&[WHO], Wait::ZERO)?;
            Ok(socket)
        });
        let Ok(socket) = asked else {
            self.doubt(pid, image);
            return;
        };
        let handler = Handler {
            socket,
            since: image,
            state: State::Connected,
            moved: false,
            aside: Ranges::default(),
            places: 0,
        };
        if let Some(old) = self.handlers.insert(pid, handler) {
            old.quit();
        }
    }

    /// Takes up handlers that have said who they are, and those that are ready, and misses those that have ended.
    pub(crate) fn refresh(&mut self) {
        let held = self.held.as_deref();
        let now = monotonic_now();
        let asks = now - self.asked >= Duration(STEP.as_nanos() as u64);
        if asks {
            self.asked = now;
        }
        let mut failed = Vec::new();
        for (pid, handler) in &mut self.handlers {
            let met = match &handler.state {
                State::Ready(..) if handler.has_ended() => Err(io::ErrorKind::UnexpectedEof.into()),
                State::Ready(..) => Ok(()),
                _ => handler
                    .handshake(*pid, held, &self.exempt)
                    .map(|met| self.met.extend(met)),
            };
            if met.is_err() {
                failed.push(*pid);
            } else if asks {
                handler.resume();
            }
        }
        for pid in failed {
            self.fail(pid);
        }
        self.settle_doubts(|doubt| now - doubt.failed >= MAX_DOUBT);
    }

    /// Misses those who are not tracked because they may be handlers, and are none.
    pub(crate) fn check_exempt(&mut self) {
        let now = monotonic_now();
        let all = self.exempt.list();
        self.met.retain(|one| all.contains(one));
        let late = |(_, made): &(Pid, Time)| now.0.saturating_sub(made.0) >= MAX_MEETING.0;
        let met = &self.met;
        let strangers = all
            .into_iter()
            .filter(late)
            .filter(|one| !met.contains(one));
        self.unobserved.extend(strangers);
    }

    /// Lets go a handler that does not do its work. Errors do not say why: the end of a process shows in many ways, and
    /// so it is asked afterwards whether it has ended.
    fn fail(&mut self, pid: Pid) {
        // Its socket is closed: where it is there still, it puts everything back and ends.
        let Some(handler) = self.handlers.remove(&pid) else {
            return;
        };
        let is_lost = handler.moved && handler.has_ended();
        if is_lost && varve_sys::is_running(pid) {
            self.killed += 1;
            self.note.given_up += 1;
        } else {
            self.doubt(pid, handler.since);
        }
    }

    /// Notes that a process has no handler, unless it has ended.
    fn doubt(&mut self, pid: Pid, since: Time) {
        if varve_sys::is_running(pid) {
            self.doubts.push(Doubt {
                pid,
                since,
                failed: monotonic_now(),
            });
        }
    }

    /// Counts those processes that run on without a handler.
    fn settle_doubts(&mut self, is_due: impl Fn(&Doubt) -> bool) {
        let given_up = &mut self.note.given_up;
        self.doubts.retain(|doubt| {
            let is_due = is_due(doubt);
            *given_up += u64::from(is_due && varve_sys::is_running(doubt.pid));
            !is_due
        });
    }

    /// Settles what is in doubt: the recording is over, and all events are known.
    pub(crate) fn settle(&mut self) {
        self.settle_doubts(|_| true);
    }

    /// Follows what the events told.
    pub(crate) fn learn(&mut self, news: impl IntoIterator<Item = TrapNews>) {
        for one in news {
            match one {
                TrapNews::Thread(pid, tid, address) => {
                    self.threads.entry(pid).or_default().insert(tid, address);
                }
                TrapNews::ThreadEnded(pid, tid) => {
                    if let Some(threads) = self.threads.get_mut(&pid) {
                        threads.remove(&tid);
                    }
                }
                TrapNews::Gone(pid, time) => {
                    self.doubts.retain(|d| d.pid != pid || d.since >= time);
                    // A new program's handler may have been announced before this was heard.
                    if self.handlers.get(&pid).is_some_and(|s| s.since < time)
                        && let Some(handler) = self.handlers.remove(&pid)
                    {
                        let (served, empty) = handler.quit();
                        self.note.served += served;
                        self.note.served_empty += empty;
                    }
                    self.threads.remove(&pid);
                }
            }
        }
    }

    /// Has the pages of these processes, which are held, moved aside. `waited` is how long they waited for trapped
    /// accesses since the last time.
    pub(crate) fn arm(&mut self, pids: &[Pid], waited: Duration) {
        self.note.waited_ns = self.note.waited_ns + waited;
        self.spent.waited = waited;
        let arm = match &mut self.budget {
            Some(budget) => budget.next(monotonic_now(), std::mem::take(&mut self.spent)),
            None => EVERY_PAGE,
        };
        self.armed = arm;
        let ready =
            |(pid, handler): &(&Pid, &mut Handler)| handler.is_ready() && pids.contains(pid);
        let mut gone = Vec::new();
        // All at once, then all answers.
        for (pid, handler) in self.handlers.iter_mut().filter(ready) {
            let arm = Arm {
                is_limited: varve_sys::has_limited_memory(*pid),
                ..arm
            };
            let threads = self.threads.get(pid).into_iter().flat_map(|t| t.values());
            if handler.arm(&arm, threads.map(|a| a.0).collect()).is_err() {
                gone.push(*pid);
            }
        }
        let mut words = vec![0; MOST_WORDS];
        for (pid, handler) in self.handlers.iter_mut().filter(ready) {
            if gone.contains(pid) {
                continue;
            }
            match handler.answer(&mut words) {
                Some(armed) => {
                    handler.moved |= armed.moved > 0;
                    add(&mut self.note, &armed);
                }
                None => gone.push(*pid),
            }
        }
        for pid in gone {
            self.fail(pid);
        }
        let share = self.budget.as_ref().map_or(1.0, Budget::share);
        let boundaries = self.note.boundaries as f64;
        self.note.sampling_rate =
            (self.note.sampling_rate * boundaries + share) / (boundaries + 1.0);
        self.note.boundaries += 1;
    }

    /// How long the target was held at the last boundary.
    pub(crate) fn held(&mut self, held: Duration) {
        self.spent.held = held;
    }

    /// What was armed last.
    pub(crate) fn armed(&self) -> Arm {
        self.armed
    }

    /// Takes the shadows out of what was found: they are not the target's memory.
    pub(crate) fn hide(&self, found: &mut Found) {
        if let Some(handler) = self.handlers.get(&found.pid) {
            hide(&handler.aside, found);
        }
    }

    /// The shadow of each process.
    pub(crate) fn shadows(&self) -> impl Iterator<Item = (Pid, &Ranges)> {
        self.handlers.iter().map(|(pid, s)| (*pid, &s.aside))
    }
}

/// Takes a shadow out of what was found; regions that have nothing else go.
pub(crate) fn hide(shadow: &Ranges, found: &mut Found) {
    found
        .regions
        .retain_mut(|region| hide_in_region(shadow, region));
}

/// The same of one region; whether it has anything else.
fn hide_in_region(shadow: &Ranges, region: &mut Region) -> bool {
    let shadow = shadow.pages_of(region.base);
    if region.leaf != Leaf::Small {
        return shadow == [0; 8];
    }
    let bits = [
        &mut region.accessed,
        &mut region.young,
        &mut region.referenced,
        &mut region.pinned,
        &mut region.sticky,
        &mut region.others,
    ];
    let mut any = 0;
    for bits in bits {
        for (word, shadow) in bits.iter_mut().zip(&shadow) {
            *word &= !shadow;
            any |= *word;
        }
    }
    any != 0
}

/// Adds rows of touched pages to the counts.
pub(crate) fn count(note: &mut TrapsNote, rows: &[TouchRow]) {
    for row in rows {
        let pages = u64::from(row.pages);
        match row.source {
            TouchSource::Fault => note.trapped_touches += pages,
            TouchSource::PossiblyOthers => (),
            _ => note.scanned_touches += pages,
        }
    }
}

fn add(note: &mut TrapsNote, armed: &Armed) {
    note.moved_pages += armed.moved;
    note.immovable_pages += armed.stuck;
    note.most_refused_bytes = note.most_refused_bytes.max(Bytes(armed.refused_bytes));
    note.served += armed.served;
    note.served_empty += armed.empty;
    note.moving_ns = note.moving_ns + Duration(armed.took_ns);
}

impl Handler {
    fn is_ready(&self) -> bool {
        matches!(self.state, State::Ready(..))
    }

    /// The handler's process, where it is known.
    fn handler(&self) -> Option<(Pid, &PidFd)> {
        match &self.state {
            State::Connected => None,
            State::Verified(pid, alive) | State::Ready(pid, alive) => Some((*pid, alive)),
        }
    }

    /// Whether the handler has ended, or is about to.
    fn has_ended(&self) -> bool {
        let is_over =
            |(pid, alive): (Pid, &PidFd)| alive.has_ended() || !varve_sys::is_running(pid);
        self.handler().is_some_and(is_over)
    }

    /// Lets the handler go on where somebody has stopped it: its process would wait at every page that it has moved.
    fn resume(&self) {
        if let Some((pid, alive)) = self.handler()
            && varve_sys::status(pid).is_ok_and(|s| s.state == 'T')
        {
            let _ = alive.signal(libc::SIGCONT);
        }
    }

    /// Hears what it says until it is ready: that it has given up its rights, and that it has its userfaultfd. The
    /// handler, once it is certain that it is one, and when it was made.
    fn handshake(
        &mut self,
        process: Pid,
        held: Option<&Path>,
        exempt: &ExemptProcesses,
    ) -> io::Result<Option<(Pid, Time)>> {
        let mut words = [0; MOST_WORDS];
        let Some(said) = self.socket.receive(&mut words, Wait::ZERO)? else {
            return Ok(None);
        };
        let pid = said.pid.ok_or(io::ErrorKind::InvalidData)?;
        let mut met = None;
        let state = std::mem::replace(&mut self.state, State::Connected);
        self.state = match (state, words[0], said.descriptor) {
            (State::Connected, HELLO, None) => {
                let alive = varve_sys::verify_handler(pid, process)?;
                // One that is tracked as well would be held with the program that waits for it.
                let made = exempt.since(pid).ok_or(io::ErrorKind::PermissionDenied)?;
                self.socket.send_device(&[DEVICE])?;
                met = Some((pid, made));
                State::Verified(pid, alive)
            }
            (State::Verified(handler, alive), READY, Some(descriptor)) if handler == pid => {
                varve_sys::begin_traps(descriptor)?;
                if let Some(held) = held {
                    exempt_from_hold(pid, &alive, held)?;
                }
                State::Ready(pid, alive)
            }
            _ => return Err(io::ErrorKind::InvalidData.into()),
        };
        Ok(met)
    }

    /// Asks it to arm, all pages but those of these threads' control blocks.
    fn arm(&self, arm: &Arm, mut threads: Vec<u64>) -> io::Result<()> {
        // In order, which spares the handler work.
        threads.sort_unstable();
        for some in threads.chunks(MOST_WORDS - 1) {
            let words: Vec<u64> = [THREADS].into_iter().chain(some.iter().copied()).collect();
            self.socket.send(&words, MAX_ANSWER)?;
        }
        self.socket.send(&arm.encode(), MAX_ANSWER)
    }

    /// What it did; nothing where it ended or takes too long.
    fn answer(&mut self, words: &mut [u64]) -> Option<Armed> {
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
            let [PLACES, places @ ..] = words else {
                return Armed::decode(words);
            };
            self.places += places.len() / 2;
            if self.places > MAX_PLACES {
                return None;
            }
            for range in places.chunks_exact(2) {
                self.aside.insert(Address(range[0]), Bytes(range[1]));
            }
        }
    }

    /// Ends it at once: the memory is of no use any more. What it has served since the last boundary, and of that
    /// accesses to pages without content.
    fn quit(self) -> (u64, u64) {
        let mut words = [0; 3];
        self.resume();
        // If it does not hear it, it hears the end of the connection.
        if self.socket.send(&[QUIT], Wait::ZERO).is_err() || !self.is_ready() {
            return (0, 0);
        }
        match self.socket.receive(&mut words, LAST_ANSWER) {
            Ok(Some(said)) if said.words == 3 && words[0] == SERVED => (words[1], words[2]),
            _ => (0, 0),
        }
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
    // The number is still the handler's: it would tell of its end.
    if held.ends_with(own) && !alive.has_ended() {
        std::fs::write(parent.join("cgroup.procs"), handler.to_string())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use varve_model::PAGE_BYTES;

    use super::*;

    #[test]
    fn what_lies_aside_is_not_the_targets() {
        let mut aside = Ranges::default();
        aside.insert(Address(4 << 21), Bytes(3 * PAGE_BYTES));
        let region = |base: u64, leaf| Region {
            base: Address(base),
            leaf,
            hugetlb: false,
            accessed: [0b11, 0, 0, 0, 0, 0, 0, 0],
            young: [0; 8],
            referenced: [0; 8],
            pinned: [0; 8],
            sticky: [0b100, 0, 0, 0, 0, 0, 0, 0],
            written: [0; 8],
            intact: [0; 8],
            others: [0; 8],
            present: 3,
        };
        assert!(!hide_in_region(&aside, &mut region(4 << 21, Leaf::Small)));
        assert!(!hide_in_region(&aside, &mut region(4 << 21, Leaf::Huge2M)));
        let mut beyond = region(4 << 21, Leaf::Small);
        beyond.accessed[1] = 1;
        assert!(hide_in_region(&aside, &mut beyond));
        assert_eq!(beyond.touched(), [0, 1, 0, 0, 0, 0, 0, 0]);
        let mut other = region(6 << 21, Leaf::Small);
        assert!(hide_in_region(&aside, &mut other));
        assert_eq!(other.touched()[0], 0b111);
    }
}
