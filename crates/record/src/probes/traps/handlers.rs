//! The fault backend: the first access to each page in an interval traps.
//!
//! Each process with the preload library has a fault handler (`preload/src/handler.rs`). While the target is held, and
//! after the accessed bits were read, each handler moves the pages of its process away; when the target runs on, the
//! first access to a page faults, and the kernel's tracepoints report it like every fault: address, thread, CPU, time,
//! instruction, read or write. The scan goes on as ever and is the safety net: what cannot be moved is still found
//! there.
//!
//! Whoever speaks to the recorder gets nothing for what it says. A handler is a process that shares the memory of a
//! process that is recorded, by the kernel's word, and that has given up all rights; it gets the device from which it makes
//! userfaultfds of that memory, and is taken out of the cgroup that is held to the one that it came from, whose
//! limits are those that it had.

mod handler;

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration as Wait;

use varve_bpf::{Event, ExemptProcesses, ForkKind, Leaf, Region};
use varve_model::{Address, Bytes, Duration, Pid, Tid, Time, TouchSource};
use varve_preload_abi::{MAX_WORDS, Protect, Protected, WHO};
use varve_sys::{HandlerSocket, MovedPages, monotonic_now};
use varve_trace::TrapsNote;
use varve_trace::tables::TouchRow;

use self::handler::{Handler, State};
use super::budget::{Budget, Spent};
use crate::state::found::Found;
use crate::state::ranges::Ranges;

/// How often handlers are asked whether somebody has stopped them.
const STEP: Wait = Wait::from_millis(50);

/// How long a handler may take until it is met: whoever waits for it in the program gives up earlier.
const MAX_MEETING: Duration = Duration(10_000_000_000);

/// How long a handler is heard more often than anything else: one that says nothing is to cost little.
const SOON: Duration = Duration(1_000_000_000);

/// How long a process may take to show that it ends, or runs another program.
const MAX_DOUBT: Duration = Duration(1_000_000_000);

/// What is protected without a budget.
const EVERY_PAGE: Protect = Protect {
    seed: 0,
    threshold: u64::MAX,
    afresh: false,
    is_limited: false,
};

/// What the events report that handlers must know.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TrapNews {
    /// A thread began, whose control block lies there.
    Thread(Pid, Tid, Address),
    /// A thread ended.
    ThreadEnded(Pid, Tid),
    /// The memory that the process had until then is gone; whether a signal ended the process.
    Gone(Pid, Time, bool),
}

impl TrapNews {
    /// What an event reports of a thread.
    pub(crate) fn of_thread(event: &Event<'_>) -> Option<TrapNews> {
        match event {
            Event::Fork(fork) if fork.kind == ForkKind::Thread => {
                Some(TrapNews::Thread(fork.pid, fork.tid, fork.tls?))
            }
            Event::Exit(exit) => Some(TrapNews::ThreadEnded(exit.pid, exit.tid)),
            _ => None,
        }
    }
}

/// The fault handlers of all processes.
#[derive(Debug)]
pub(crate) struct Handlers {
    /// The cgroup that is held. Handlers are to be in its parent, which has the same limits.
    held: Option<PathBuf>,
    handlers: HashMap<Pid, Handler>,
    threads: HashMap<Pid, HashMap<Tid, Address>>,
    /// Where not all pages are to be protected.
    budget: Option<Budget>,
    /// What the interval that runs has cost so far.
    spent: Spent,
    /// What was protected last.
    protected: Protect,
    /// What was done, for the manifest.
    pub(crate) note: TrapsNote,
    /// Processes without a handler, of which nobody knows yet whether they are about to end.
    doubts: Vec<Doubt>,
    /// Handlers that were refused because they have the user of their program.
    pub(crate) shared_users: u64,
    /// Handlers that somebody ended while they had moved pages. The watchdog brings those back.
    pub(crate) killed: u64,
    /// Processes whose handler was found ended, with moved pages, when they were about to end themselves; since when they ran
    /// their program.
    ending: Vec<(Pid, Time)>,
    /// What brings the pages of newly met handlers back without them, for the watchdog.
    pages: Vec<MovedPages>,
    /// Memory to which handlers had moved pages that are gone now, and since when the process runs its program.
    left: HashMap<Pid, (Time, Ranges)>,
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
            protected: EVERY_PAGE,
            doubts: Vec::new(),
            shared_users: 0,
            killed: 0,
            ending: Vec::new(),
            pages: Vec::new(),
            left: HashMap::new(),
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
        let Ok(socket) = HandlerSocket::adopt(socket) else {
            self.doubt(pid, image);
            return;
        };
        // From here on the kernel says who sent a message. One that is gone may have left one.
        let _ = socket.send(&[WHO], Wait::ZERO);
        let handler = Handler {
            socket,
            since: image,
            connected: monotonic_now(),
            state: State::Connected,
            moved: false,
            shadow: Ranges::default(),
            places: 0,
            is_ending: false,
            left: None,
        };
        if let Some(old) = self.handlers.insert(pid, handler) {
            old.quit();
        }
    }

    /// Whether some process has connected a short while ago whose handler is not ready yet.
    pub(crate) fn is_meeting(&self) -> bool {
        let now = monotonic_now();
        let mut handlers = self.handlers.values();
        handlers.any(|h| !h.is_ready() && now.0.saturating_sub(h.connected.0) < SOON.0)
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
                _ => handler.handshake(*pid, held, &self.exempt).map(|shaken| {
                    self.met.extend(shaken.met);
                    self.pages.extend(shaken.pages);
                }),
            };
            if let Err(why) = met {
                failed.push((*pid, why.kind() == io::ErrorKind::Unsupported));
            } else if asks {
                handler.resume();
            }
        }
        for (pid, is_refused) in failed {
            if is_refused {
                self.handlers.remove(&pid);
                self.shared_users += 1;
                self.note.given_up += 1;
            } else {
                self.fail(pid);
            }
        }
        self.end_doubts(|doubt| now - doubt.failed >= MAX_DOUBT);
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
        let Some(mut handler) = self.handlers.remove(&pid) else {
            return;
        };
        // Its program may have asked it to end, at whatever moment that was found out.
        handler.hear_end();
        let shadow = std::mem::take(&mut handler.shadow);
        self.left.insert(pid, (handler.since, shadow));
        if let Some((resolved, empty)) = handler.left {
            self.note.resolved += resolved;
            self.note.resolved_empty += empty;
        }
        match (handler.is_lost(), varve_sys::is_running(pid)) {
            (true, true) => {
                self.killed += 1;
                self.note.given_up += 1;
            }
            (true, false) => self.ending.push((pid, handler.since)),
            (false, _) => self.doubt(pid, handler.since),
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
    fn end_doubts(&mut self, is_due: impl Fn(&Doubt) -> bool) {
        let given_up = &mut self.note.given_up;
        self.doubts.retain(|doubt| {
            let is_due = is_due(doubt);
            *given_up += u64::from(is_due && varve_sys::is_running(doubt.pid));
            !is_due
        });
    }

    /// Ends all doubts: the recording is over, and all events are known.
    pub(crate) fn finish(&mut self) {
        self.killed += self.ending.drain(..).len() as u64;
        self.end_doubts(|_| true);
    }

    /// Follows what the events reported.
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
                TrapNews::Gone(pid, time, by_signal) => {
                    // The kernel ends all who share a memory with one that a signal ends for lack of memory, or with a core.
                    let known = self.ending.len();
                    self.ending.retain(|(p, since)| *p != pid || *since >= time);
                    if !by_signal {
                        self.killed += (known - self.ending.len()) as u64;
                    }
                    self.doubts.retain(|d| d.pid != pid || d.since >= time);
                    self.left
                        .retain(|p, (since, _)| *p != pid || *since >= time);
                    // A new program's handler may have been announced before this was heard.
                    if self.handlers.get(&pid).is_some_and(|s| s.since < time)
                        && let Some(mut handler) = self.handlers.remove(&pid)
                    {
                        handler.hear_end();
                        // None ends before it is asked to.
                        self.killed += u64::from(handler.is_lost() && !by_signal);
                        let (resolved, empty) = handler.quit();
                        self.note.resolved += resolved;
                        self.note.resolved_empty += empty;
                    }
                    self.threads.remove(&pid);
                }
            }
        }
    }

    /// Waits for those that their programs have asked to put the pages back; how many those are. What is put back is made
    /// to look untouched, but for what a scan sees meanwhile.
    pub(crate) fn await_ends(&mut self) -> u32 {
        let ended = self.handlers.values_mut().map(Handler::await_end);
        ended.map(u32::from).sum()
    }

    /// Has the pages of these processes, which are held, moved away. `waited` is how long they waited for trapped
    /// accesses since the last time. Where not all threads are known nothing is moved: the block of one that has begun must stay,
    /// and that of one that has ended may be memory of the program's by now, which is to stay in one piece.
    pub(crate) fn protect(&mut self, pids: &[Pid], waited: Duration, knows_threads: bool) {
        self.note.waited_ns = self.note.waited_ns + waited;
        self.spent.waited = waited;
        let protect = match &mut self.budget {
            Some(budget) => budget.next(monotonic_now(), std::mem::take(&mut self.spent)),
            None => EVERY_PAGE,
        };
        self.protected = protect;
        let ready =
            |(pid, handler): &(&Pid, &mut Handler)| handler.is_ready() && pids.contains(pid);
        let mut gone = Vec::new();
        // All at once, then all answers.
        for (pid, handler) in self.handlers.iter_mut().filter(ready) {
            let protect = Protect {
                is_limited: !knows_threads || varve_sys::has_limited_memory(*pid),
                ..protect
            };
            let threads = self.threads.get(pid).into_iter().flat_map(|t| t.values());
            if handler
                .protect(&protect, threads.map(|a| a.0).collect())
                .is_err()
            {
                gone.push(*pid);
            }
        }
        let mut words = vec![0; MAX_WORDS];
        for (pid, handler) in self.handlers.iter_mut().filter(ready) {
            if gone.contains(pid) {
                continue;
            }
            match handler.answer(&mut words) {
                Some(protected) => {
                    handler.moved |= protected.moved > 0;
                    add(&mut self.note, &protected);
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

    /// What was protected last.
    pub(crate) fn protected(&self) -> Protect {
        self.protected
    }

    /// Takes the shadows out of what was found: they are not the target's memory.
    pub(crate) fn hide(&self, found: &mut Found) {
        let own = self.handlers.get(&found.pid).map(|h| &h.shadow);
        let left = self.left.get(&found.pid).map(|(_, shadow)| shadow);
        for shadow in own.into_iter().chain(left) {
            hide(shadow, found);
        }
    }

    /// What brings the pages of newly met handlers back without them.
    pub(crate) fn take_pages(&mut self) -> Vec<MovedPages> {
        std::mem::take(&mut self.pages)
    }

    /// The shadow of each process.
    pub(crate) fn shadows(&self) -> impl Iterator<Item = (Pid, &Ranges)> {
        self.handlers.iter().map(|(pid, h)| (*pid, &h.shadow))
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

fn add(note: &mut TrapsNote, protected: &Protected) {
    note.moved_pages += protected.moved;
    note.immovable_pages += protected.stuck;
    note.max_refused_bytes = note.max_refused_bytes.max(Bytes(protected.refused_bytes));
    note.resolved += protected.resolved;
    note.resolved_empty += protected.empty;
    note.moving_ns = note.moving_ns + Duration(protected.took_ns);
}

#[cfg(test)]
mod tests {
    use varve_model::PAGE_BYTES;

    use super::*;

    #[test]
    fn what_lies_in_the_shadow_is_not_the_targets() {
        let mut shadow = Ranges::default();
        shadow.insert(Address(4 << 21), Bytes(3 * PAGE_BYTES));
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
        assert!(!hide_in_region(&shadow, &mut region(4 << 21, Leaf::Small)));
        assert!(!hide_in_region(&shadow, &mut region(4 << 21, Leaf::Huge2M)));
        let mut beyond = region(4 << 21, Leaf::Small);
        beyond.accessed[1] = 1;
        assert!(hide_in_region(&shadow, &mut beyond));
        assert_eq!(beyond.touched(), [0, 1, 0, 0, 0, 0, 0, 0]);
        let mut other = region(6 << 21, Leaf::Small);
        assert!(hide_in_region(&shadow, &mut other));
        assert_eq!(other.touched()[0], 0b111);
    }
}
