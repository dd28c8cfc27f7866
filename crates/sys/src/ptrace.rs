//! Holding processes still by ptrace, where there is no cgroup freezer.
//!
//! A hold seizes every thread (`PTRACE_SEIZE`), interrupts it (`PTRACE_INTERRUPT`) and waits until it
//! stands in a ptrace-stop; letting go detaches (ptrace(2)). Between holds nobody is traced. A thread of
//! its own does all that: the kernel lets go what a thread traces when that thread ends, so that
//! threads which have not stopped yet (in an uninterruptible wait) can be let go too, which a detach
//! cannot do, and so that nothing stays held when this process is killed.
//!
//! A seized thread that was about to take a signal stops for that instead. The stop is looked at but not
//! waited for, and so the signal stays with the thread, whoever lets it go. A thread in a group-stop
//! (SIGSTOP) stays in it.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use varve_model::{Pid, Tid};

use crate::cgroup::Frozen;
use crate::proc::{status, status_field};
use crate::stops::Holding;

/// Why a process cannot be held by ptrace.
#[derive(Debug, thiserror::Error)]
pub enum TraceeError {
    /// A debugger, or another recorder, traces it.
    #[error(
        "process {pid} is being traced by process {tracer}, a debugger, so it cannot be held by ptrace as well"
    )]
    Traced {
        /// The process.
        pid: Pid,
        /// Who traces it.
        tracer: Pid,
    },
    /// The kernel refuses.
    #[error("process {pid} cannot be held by ptrace: {source}")]
    Refused {
        /// The process.
        pid: Pid,
        /// What the kernel said.
        source: io::Error,
    },
    /// A thread could not be made.
    #[error("cannot start the thread that holds the target: {0}")]
    Thread(#[source] io::Error),
}

impl TraceeError {
    /// The same once more, if it is about this process.
    pub fn of(&self, process: Pid) -> Option<TraceeError> {
        match self {
            TraceeError::Traced { pid, tracer } if *pid == process => Some(TraceeError::Traced {
                pid: *pid,
                tracer: *tracer,
            }),
            TraceeError::Refused { pid, source } if *pid == process => Some(TraceeError::Refused {
                pid: *pid,
                source: match source.raw_os_error() {
                    Some(code) => io::Error::from_raw_os_error(code),
                    None => source.kind().into(),
                },
            }),
            _ => None,
        }
    }
}

/// While a hold comes about the caller is given the word this often.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// A thread that holds once, at its word or never; it ends with what speaks to it.
#[derive(Debug)]
struct Holder {
    orders: Option<Sender<Order>>,
    thread: Option<JoinHandle<()>>,
}

/// What to hold, and how long that may take to come about.
struct Order {
    processes: Box<dyn Fn() -> Vec<Pid> + Send>,
    limit: Duration,
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A thread that is ready to hold: on a busy machine a new thread takes a while to come to run, which
/// the target need not wait for.
#[derive(Debug)]
pub struct Standby {
    holder: Holder,
    said: Receiver<Option<Vec<TraceeError>>>,
}

/// Processes that stand still until this is dropped.
#[derive(Debug)]
pub struct Held {
    // Lets go before the hold is over.
    _holder: Holder,
    _holding: Holding,
    refused: Vec<TraceeError>,
}

impl Held {
    /// The processes that run on because they cannot be held, each once.
    pub fn refused(&self) -> &[TraceeError] {
        &self.refused
    }
}

impl Standby {
    /// Starts the thread.
    ///
    /// # Errors
    /// Where it cannot be made.
    pub fn start() -> Result<Standby, TraceeError> {
        let (say, said) = channel();
        let (orders, hear) = channel();
        let thread = std::thread::Builder::new()
            .name("varve-hold".into())
            .spawn(move || hold_once(&hear, &say))
            .map_err(TraceeError::Thread)?;
        let holder = Holder {
            orders: Some(orders),
            thread: Some(thread),
        };
        Ok(Standby { holder, said })
    }

    /// Holds all threads of the processes that `processes` lists, `limit` at most for that to come about;
    /// where it does not, everything runs on and there is nothing to let go. The list is asked for again
    /// until it has nobody new. Until the outcome is known `meanwhile` is called again and again. A process that cannot
    /// be traced runs on, and is named by [`Held::refused`].
    pub fn hold(
        self,
        processes: impl Fn() -> Vec<Pid> + Send + 'static,
        limit: Duration,
        mut meanwhile: impl FnMut(),
    ) -> Option<Held> {
        // Dropped last: declared before what lets go.
        let holding = Holding::begin();
        let Standby { holder, said } = self;
        let order = Order {
            processes: Box::new(processes),
            limit,
        };
        if let Some(orders) = &holder.orders {
            // A thread that ended without a word holds nothing.
            let _ = orders.send(order);
        }
        loop {
            match said.recv_timeout(LOOK_EVERY) {
                Err(RecvTimeoutError::Timeout) => meanwhile(),
                Err(RecvTimeoutError::Disconnected) | Ok(None) => return None,
                Ok(Some(refused)) => {
                    return Some(Held {
                        _holder: holder,
                        _holding: holding,
                        refused,
                    });
                }
            }
        }
    }
}

/// Who traces a process, if anybody does.
pub fn tracer_of(pid: Pid) -> Option<Pid> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let tracer = status_field(&text, "TracerPid")?.parse().ok();
    tracer.filter(|p| *p > 0).map(Pid)
}

/// What the thread does; it lets go by ending, and says before whether everything stands, and what cannot be made to.
fn hold_once(orders: &Receiver<Order>, say: &Sender<Option<Vec<TraceeError>>>) {
    crate::thread_priority(-20);
    let _urgent = crate::Urgent::begin();
    let Ok(order) = orders.recv() else {
        return;
    };
    let mut tracees = Tracees::default();
    let still = tracees.stop_all(&*order.processes, order.limit) == Frozen::Still;
    let refused = tracees.refused.drain().map(|(_, why)| why);
    let outcome = still.then(|| refused.collect());
    if say.send(outcome).is_ok() && still {
        // Ends with the other side.
        let _ = orders.recv();
    }
    tracees.detach();
}

/// The threads that this thread traces.
#[derive(Default)]
struct Tracees {
    /// Seized and asked to stop.
    stopping: HashSet<(Pid, Tid)>,
    /// Stopped, with the signal that each was about to take; 0 for none.
    stopped: HashMap<Tid, i32>,
    /// Ended, so that they are not seized.
    gone: HashSet<Tid>,
    /// Processes of which a thread cannot be seized, and why.
    refused: HashMap<Pid, TraceeError>,
    /// Whether a thread is to be tried again: the one that held it before this, whose end lets it go, has not ended
    /// wholly yet.
    again: bool,
}

impl Tracees {
    fn stop_all(&mut self, processes: &dyn Fn() -> Vec<Pid>, limit: Duration) -> Frozen {
        let began = Instant::now();
        let mut pause = Duration::from_micros(20);
        loop {
            self.again = false;
            let fresh = self.seize_all(&processes());
            self.look();
            // A thread that stands makes no other: once a round finds nobody new, nobody is.
            if !fresh
                && self
                    .stopping
                    .iter()
                    .all(|(pid, tid)| self.waits_for_vfork(*pid, *tid))
            {
                return Frozen::Still;
            }
            if began.elapsed() > limit {
                return Frozen::NotYet;
            }
            if !fresh || self.again {
                std::thread::sleep(pause);
            }
            if began.elapsed() > Duration::from_millis(2) {
                pause = Duration::from_micros(200);
            }
        }
    }

    /// Seizes every thread that is not yet; whether there was any.
    fn seize_all(&mut self, pids: &[Pid]) -> bool {
        let mut fresh = false;
        for pid in pids {
            for tid in thread_ids(*pid) {
                let known = self.stopped.contains_key(&tid)
                    || self.gone.contains(&tid)
                    || self.refused.contains_key(pid)
                    || self.stopping.contains(&(*pid, tid));
                if known {
                    continue;
                }
                fresh = true;
                match self.seize(*pid, tid) {
                    Err(TraceeError::Traced { tracer, .. }) if is_own_thread(tracer) => {
                        self.again = true;
                    }
                    Err(why) => {
                        self.refused.insert(*pid, why);
                    }
                    Ok(()) => {}
                }
            }
        }
        fresh
    }

    fn seize(&mut self, pid: Pid, tid: Tid) -> Result<(), TraceeError> {
        let seized = ptrace(libc::PTRACE_SEIZE, tid, 0)
            .and_then(|()| ptrace(libc::PTRACE_INTERRUPT, tid, 0));
        let Err(source) = seized else {
            self.stopping.insert((pid, tid));
            return Ok(());
        };
        // A thread that has ended is refused as one is that somebody traces.
        let ended = status(Pid(tid.0)).map_or(true, |s| matches!(s.state, 'Z' | 'X'));
        if ended || source.raw_os_error() == Some(libc::ESRCH) {
            self.gone.insert(tid);
            return Ok(());
        }
        Err(match tracer_of(Pid(tid.0)) {
            Some(tracer) => TraceeError::Traced { pid, tracer },
            None => TraceeError::Refused { pid, source },
        })
    }

    /// Finds out who has stopped or ended meanwhile.
    fn look(&mut self) {
        let (stopped, gone) = (&mut self.stopped, &mut self.gone);
        self.stopping.retain(|(_, tid)| match stop_of(*tid) {
            Stop::NotYet => true,
            Stop::Stopped { signal } => {
                stopped.insert(*tid, signal);
                false
            }
            Stop::Ended => {
                gone.insert(*tid);
                false
            }
        });
    }

    /// Whether a thread waits, uninterruptibly, for a child that has its memory and stands still: then it
    /// stands still as well.
    fn waits_for_vfork(&self, pid: Pid, tid: Tid) -> bool {
        let task = format!("/proc/{pid}/task/{tid}");
        let call = fs::read_to_string(format!("{task}/syscall")).unwrap_or_default();
        let number = call.split(' ').next().and_then(|n| n.parse::<i64>().ok());
        let makes_child = [libc::SYS_vfork, libc::SYS_clone, libc::SYS_clone3];
        if !number.is_some_and(|n| makes_child.contains(&n))
            || !status(Pid(tid.0)).is_ok_and(|s| s.state == 'D')
        {
            return false;
        }
        let children = fs::read_to_string(format!("{task}/children")).unwrap_or_default();
        children
            .split_whitespace()
            .filter_map(|c| c.parse().ok().map(Tid))
            .any(|child| self.stopped.contains_key(&child))
    }

    /// Lets go those that have stopped, with the signals that they were about to take. The others are let
    /// go when the calling thread ends.
    fn detach(&mut self) {
        self.look();
        for (tid, signal) in self.stopped.drain() {
            // Refused where it was killed meanwhile.
            let _ = ptrace(libc::PTRACE_DETACH, tid, signal as usize);
        }
    }
}

/// Whether this is a thread of this process, or was one a moment ago.
fn is_own_thread(tracer: Pid) -> bool {
    let is_there = |path: String| fs::metadata(path).is_ok();
    is_there(format!("/proc/self/task/{tracer}")) || !is_there(format!("/proc/{tracer}"))
}

enum Stop {
    NotYet,
    Stopped { signal: i32 },
    Ended,
}

/// The state of a tracee, left as it is: neither a signal nor an exit status is taken from it.
fn stop_of(tid: Tid) -> Stop {
    // SAFETY: zeroes are a valid siginfo_t.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let flags = libc::WEXITED | libc::WSTOPPED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL;
    // SAFETY: `info` lives for the call, which fills it.
    let result = unsafe { libc::waitid(libc::P_PID, tid.0, &raw mut info, flags) };
    if result != 0 {
        return Stop::Ended;
    }
    // SAFETY: waitid filled the fields of SIGCHLD, or left the zeroes.
    let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
    match info.si_code {
        _ if pid == 0 => Stop::NotYet,
        libc::CLD_TRAPPED | libc::CLD_STOPPED => Stop::Stopped {
            // An event, such as the interruption, is no signal.
            signal: if status >> 8 == 0 { status & 0x7f } else { 0 },
        },
        _ => Stop::Ended,
    }
}

fn thread_ids(pid: Pid) -> Vec<Tid> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return Vec::new();
    };
    let names = tasks.flatten().map(|t| t.file_name());
    names
        .filter_map(|n| n.to_str()?.parse().ok().map(Tid))
        .collect()
}

fn ptrace(request: libc::c_uint, tid: Tid, data: usize) -> io::Result<()> {
    // SAFETY: none of the requests made here reads or writes memory of this process.
    let result = unsafe {
        libc::ptrace(
            request as _,
            tid.0 as libc::pid_t,
            std::ptr::null_mut::<libc::c_void>(),
            data as *mut libc::c_void,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// A guard against hanging: the machine may be busy.
    const LONG: Duration = Duration::from_secs(300);

    /// Ends when the test does.
    struct Sleeper(Child);

    impl Sleeper {
        fn new() -> Sleeper {
            let mut command = Command::new("sleep");
            Sleeper(command.arg("1000").stdin(Stdio::null()).spawn().unwrap())
        }

        fn pid(&self) -> Pid {
            Pid(self.0.id())
        }

        fn signal(&self, number: i32) {
            // SAFETY: kill takes integers; the pid is ours until it is waited for.
            assert_eq!(unsafe { libc::kill(self.0.id() as i32, number) }, 0);
        }

        fn comes_to(&self, wanted: char) -> bool {
            let began = Instant::now();
            while began.elapsed() < LONG {
                if status(self.pid()).unwrap().state == wanted {
                    return true;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            false
        }
    }

    impl Drop for Sleeper {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn held(sleeper: &Sleeper) -> Held {
        let pid = sleeper.pid();
        let standby = Standby::start().unwrap();
        standby.hold(move || vec![pid], LONG, || ()).unwrap()
    }

    #[test]
    fn what_is_held_stands_and_goes_on() {
        let sleeper = Sleeper::new();
        for _ in 0..20 {
            let held = held(&sleeper);
            assert!(tracer_of(sleeper.pid()).is_some());
            assert_eq!(status(sleeper.pid()).unwrap().state, 't');
            drop(held);
            assert_eq!(tracer_of(sleeper.pid()), None);
        }
        assert!(sleeper.comes_to('S'));
    }

    #[test]
    fn a_stopped_process_stays_stopped() {
        let sleeper = Sleeper::new();
        sleeper.signal(libc::SIGSTOP);
        assert!(sleeper.comes_to('T'));
        drop(held(&sleeper));
        assert!(sleeper.comes_to('T'));
        sleeper.signal(libc::SIGCONT);
        assert!(sleeper.comes_to('S'));
    }

    #[test]
    fn a_signal_that_comes_meanwhile_is_not_swallowed() {
        use std::os::unix::process::ExitStatusExt;
        for _ in 0..20 {
            let mut sleeper = Sleeper::new();
            let held = held(&sleeper);
            sleeper.signal(libc::SIGTERM);
            drop(held);
            assert_eq!(sleeper.0.wait().unwrap().signal(), Some(libc::SIGTERM));
        }
    }

    #[test]
    fn what_an_earlier_holder_holds_is_waited_for() {
        let sleeper = Sleeper::new();
        let first = held(&sleeper);
        let pid = sleeper.pid();
        let standby = Standby::start().unwrap();
        // A holder of this process is waited for, as it may be about to let go.
        let second = standby.hold(move || vec![pid], Duration::from_millis(50), || ());
        assert!(second.is_none(), "{second:?}");
        drop(first);
        drop(held(&sleeper));
    }

    #[test]
    fn who_has_ended_needs_no_hold() {
        let mut sleeper = Sleeper::new();
        sleeper.0.kill().unwrap();
        assert!(sleeper.comes_to('Z'));
        drop(held(&sleeper));
        sleeper.0.wait().unwrap();
    }
}
