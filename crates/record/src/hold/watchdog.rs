//! The watchdogs: two tiny processes that outlive a killed recorder.
//!
//! A frozen cgroup stays frozen when whoever froze it dies. A watchdog waits for the end of the recorder on a socket whose other
//! end the recorder alone holds. If that ends without the order to end, the watchdog lets the target go, empties and
//! removes the cgroup that the recorder made, writes counts that are not in the trace yet and removes the run
//! folder. A recorder that is stopped (SIGSTOP, a debugger, Ctrl-Z) cannot let go either: the watchdog thaws then.
//! Where a fault handler is killed, the watchdog brings the pages back that it had moved ([`MovedPages`]).
//!
//! There are two, so that no single kill leaves the target frozen: the second is nobody's child and in a session of its own, so
//! that whoever ends the recorder with its children, its session or its process group does not meet it. It cleans up only
//! where the first has ended without doing so. A recorder whose watchdog has ended starts another.

mod duties;
mod order;

use std::io::{self, Read};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::net::RecvFlags;
use varve_model::{Bytes, Pid};
use varve_sys::rights::without_gain;
use varve_sys::{MovedPages, PidFd, ZramDevice, ZramError, ZramSwap};

pub use self::duties::watch;
pub use self::order::Order;
use crate::RecordError;

/// How long the recorder waits for the watchdog's end.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long one may take to answer: a guard against one that somebody has stopped. One that ends is not waited for, as its end of
/// the socket is closed then; one that lives may have to wait for its own code from a disk that others keep busy.
const INTRODUCTION: Duration = Duration::from_secs(60);
/// How often the recorder looks whether its watchdogs are there.
const CHECK_EVERY: Duration = Duration::from_millis(20);
/// The same where one could not be started.
const RETRY_EVERY: Duration = Duration::from_secs(1);

/// The recorder's end of one watchdog.
struct Line {
    /// The process that was started; of the second, the one that started it in turn and has ended.
    child: Child,
    /// The watchdog.
    pid: Pid,
    process: PidFd,
    socket: UnixStream,
}

impl Line {
    /// Whether somebody has stopped it.
    fn is_stopped(&self) -> bool {
        varve_sys::status(self.pid).is_ok_and(|status| status.state == 'T')
            && !self.process.has_ended()
    }

    /// Lets it go on where somebody has stopped it.
    fn resume(&self) {
        if self.is_stopped() {
            let _ = self.process.signal(libc::SIGCONT);
        }
    }

    fn start(is_second: bool, swaps: bool) -> Result<Line, RecordError> {
        let failed = || RecordError::system("start the watchdog process");
        let (ours, theirs) = UnixStream::pair().map_err(failed())?;
        let mut command = Command::new("/proc/self/exe");
        command.arg("watchdog");
        if is_second {
            command.args(["--second-of", &std::process::id().to_string()]);
        }
        if swaps {
            command.arg("--swaps");
        }
        command
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .current_dir("/")
            // Ctrl-C in the terminal must not reach it.
            .process_group(0);
        // By that it knows that a recorder started it, not a person whom the program's file gave rights.
        let mut child = without_gain(&mut command).spawn().map_err(failed())?;
        // With it goes this process's copy of the other end.
        drop(command);
        let mut pid = Pid(child.id());
        if is_second {
            // It goes on in a process that is not this one's child, and says which.
            child.wait().map_err(failed())?;
            let mut said = [0; 4];
            ours.set_read_timeout(Some(INTRODUCTION))
                .map_err(failed())?;
            (&ours)
                .read_exact(&mut said)
                .map_err(late)
                .map_err(failed())?;
            pid = Pid(u32::from_ne_bytes(said));
        }
        let held = RecordError::system("keep hold of the watchdog process");
        Ok(Line {
            process: PidFd::open(pid).map_err(held)?,
            child,
            pid,
            socket: ours,
        })
    }

    /// Whether nobody is at the other end any more.
    fn has_ended(&self) -> bool {
        let mut byte = [0u8; 1];
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        match rustix::net::recv(&self.socket, &mut byte[..], flags) {
            Ok((_, count)) => count == 0,
            Err(e) => !matches!(e, rustix::io::Errno::AGAIN | rustix::io::Errno::INTR),
        }
    }
}

/// A time limit is an error of its own: the kernel calls it by the name of a lack of resources.
fn late(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => io::Error::new(
            io::ErrorKind::TimedOut,
            format!("it did not answer within {INTRODUCTION:?}"),
        ),
        _ => error,
    }
}

/// The recorder's end of both watchdogs. They end when it is dropped, and leave alone what they cared for.
#[expect(
    missing_debug_implementations,
    reason = "it has processes and sockets alone"
)]
pub struct Watchdog {
    first: Line,
    second: Line,
    /// What they care for.
    orders: Vec<Order>,
    /// What this process says to them about its stops.
    stops: BorrowedFd<'static>,
    moved: Vec<MovedPages>,
    checked: Instant,
    /// How often one was missed.
    missed: u64,
    /// Whether one is missing still.
    fails: bool,
    /// Whether they may have a swap device to remove.
    swaps: bool,
}

impl Watchdog {
    pub(crate) fn start() -> Result<Watchdog, RecordError> {
        Watchdog::start_for(false)
    }

    /// Starts both. `swaps`: they may have a swap device to remove, which takes a right that they give up otherwise.
    ///
    /// # Errors
    /// Where they cannot be started.
    pub fn start_for(swaps: bool) -> Result<Watchdog, RecordError> {
        let shared = RecordError::system("share memory with the watchdog process");
        let mut watchdog = Watchdog {
            stops: varve_sys::share_stops().map_err(shared)?,
            first: Line::start(false, swaps)?,
            second: Line::start(true, swaps)?,
            swaps,
            orders: Vec::new(),
            moved: Vec::new(),
            checked: Instant::now(),
            missed: 0,
            fails: false,
        };
        watchdog.order(&Order::Recorder(Pid(std::process::id())))?;
        watchdog.introduce()?;
        Ok(watchdog)
    }

    fn both(&self) -> [&Line; 2] {
        [&self.first, &self.second]
    }

    /// Tells the second who is the first.
    fn introduce(&self) -> Result<(), RecordError> {
        let first = Order::First(Pid(self.first.child.id()));
        order::send(&self.second.socket, &first, &[]).map_err(unheard())
    }

    /// Tells one of them, with the descriptors that belong to it.
    fn say(&self, line: &Line, order: &Order) -> io::Result<()> {
        match order {
            Order::Recorder(_) => order::send(&line.socket, order, &[self.stops]),
            _ => order::send(&line.socket, order, &[]),
        }
    }

    /// Gives them something to care for, before it exists.
    ///
    /// # Errors
    /// Where none of them hears it.
    pub fn order(&mut self, order: &Order) -> Result<(), RecordError> {
        self.orders.push(order.clone());
        // One that has just ended is missed before long, and the next is given the order then.
        let said = self.both().map(|line| self.say(line, order));
        match said {
            [Err(error), Err(_)] => Err(unheard()(error)),
            _ => Ok(()),
        }
    }

    /// Makes a swap device in compressed memory, which they remove where this process is killed. The first watchdog makes it: what this
    /// process made itself, nobody would know of if it were killed right then. Both must have been started for that.
    ///
    /// # Errors
    /// Where the kernel has none, this process may not, or the watchdog does not answer.
    pub fn make_swap<E>(&mut self, bytes: Bytes) -> Result<ZramSwap, E>
    where
        E: From<RecordError> + From<ZramError>,
    {
        ZramDevice::check()?;
        let asked = RecordError::system("have the watchdog process make a zram device");
        let mut answer = [0; order::MADE_BYTES];
        let mut socket = &self.first.socket;
        order::send(socket, &Order::MakeZram, &[])
            .and_then(|()| socket.set_read_timeout(Some(INTRODUCTION)))
            .and_then(|()| socket.read_exact(&mut answer))
            .map_err(late)
            .map_err(asked)?;
        let device = order::made_of(answer).map_err(|source| ZramError::Io {
            action: "make a zram device",
            source,
        })?;
        if let Err(unheard) = self.order(&Order::Zram(device)) {
            device.remove();
            return Err(unheard.into());
        }
        Ok(ZramSwap::begin(device, bytes)?)
    }

    /// Gives them the pages of a process to bring back, before any is moved. Where one has just ended, the next hears it.
    pub(crate) fn care_for_pages(&mut self, pages: MovedPages) {
        for line in self.both() {
            let _ = order::send(
                &line.socket,
                &Order::Moved(pages.journal()),
                &pages.descriptors(),
            );
        }
        self.moved.push(pages);
    }

    /// Starts a watchdog again that somebody has ended.
    pub(crate) fn refresh(&mut self) {
        let every = match self.fails {
            true => RETRY_EVERY,
            false => CHECK_EVERY,
        };
        if self.checked.elapsed() < every {
            return;
        }
        self.checked = Instant::now();
        self.moved.retain(|pages| !pages.is_over());
        self.fails = self.start_missing().is_err();
    }

    fn start_missing(&mut self) -> Result<(), RecordError> {
        // One that somebody has stopped would bring back no pages.
        self.both().iter().for_each(|line| line.resume());
        let missing = [self.first.has_ended(), self.second.has_ended()];
        if missing[0] {
            // It may not be dead: whoever closes its end is of no use either.
            let _ = self.first.child.kill();
            let _ = self.first.child.wait();
            self.first = Line::start(false, self.swaps)?;
            self.brief(&self.first)?;
            self.missed += 1;
        }
        if missing[1] {
            self.second = Line::start(true, self.swaps)?;
            self.brief(&self.second)?;
            self.missed += 1;
        }
        match missing {
            [false, false] => Ok(()),
            _ => self.introduce(),
        }
    }

    /// Tells a new one all that the others know.
    fn brief(&self, line: &Line) -> Result<(), RecordError> {
        let say = || -> io::Result<()> {
            for order in &self.orders {
                self.say(line, order)?;
            }
            for pages in &self.moved {
                order::send(
                    &line.socket,
                    &Order::Moved(pages.journal()),
                    &pages.descriptors(),
                )?;
            }
            Ok(())
        };
        say().map_err(unheard())
    }

    /// A note for the trace, where one was missed.
    pub(crate) fn note(&self) -> Option<String> {
        match (self.fails, self.missed) {
            (true, _) => Some(
                "Somebody ended the recorder's watchdog, and no other could be started: had the recorder been killed then, the target might have stayed stopped.".to_owned(),
            ),
            (false, 0) => None,
            (false, missed) => Some(format!(
                "Somebody ended the recorder's watchdog; another was started ({missed} times)."
            )),
        }
    }
}

fn unheard() -> impl FnOnce(io::Error) -> RecordError {
    RecordError::system("speak to the watchdog process")
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        for line in self.both() {
            let _ = order::send(&line.socket, &Order::End, &[]);
            let _ = line.socket.shutdown(std::net::Shutdown::Write);
            line.resume();
        }
        // They end at once, unless fault handlers still bring pages back, or somebody has stopped them: a target of the same
        // user can.
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until && self.both().iter().any(|line| !line.process.has_ended()) {
            std::thread::sleep(Duration::from_millis(1));
        }
        for line in self.both() {
            if line.is_stopped() {
                let _ = line.process.signal(libc::SIGKILL);
            }
        }
        if self.first.process.has_ended() {
            let _ = self.first.child.wait();
        }
    }
}
