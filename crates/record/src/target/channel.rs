//! Where processes of the target meet the recorder (`varve-preload-abi`, `channel`).
//!
//! A thread of its own answers, so that a program that starts waits for nobody's loop. It believes the kernel alone: who
//! has connected is what the socket's credentials say, and whether that process is recorded is what the kernel's table
//! of tracked processes says. Each image of a process, from an exec or a fork to the next exec, gets one ring, one
//! connection for a fault handler and one file of counts. Everything else is closed at once, and counted.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration as Wait, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use varve_bpf::{RunningPlaces, TrackedProcesses};
use varve_model::{Pid, Time};
use varve_preload_abi::channel::{Kind, SOCKET};
use varve_preload_abi::operations::OperationsReader;
use varve_preload_abi::server::{Hello, Listener, Peer};
use varve_preload_abi::{DIRECTORY_VARIABLE, IDENTITY_VARIABLE, RingReader};

use crate::RecordError;
use crate::target::run_folder::RunFolder;

/// Size of the ring of each process.
const RING_BYTES: usize = 4 << 20;
/// Connections that are taken before anything else is looked at.
const BATCH: usize = 64;
/// A rest after as many connections of strangers: who floods the socket gets little of the machine.
const REST: Wait = Wait::from_millis(2);
/// Tracked processes that have connected and not said what they want; the oldest has to go.
const MAX_PENDING: usize = 64;
/// How long they have time for it: what they wait themselves.
const PATIENCE: Wait = Wait::from_secs(2);
/// Descriptors that are left to the rest of the recorder, which in the middle of a hold needs some. Processes wait meanwhile: those that
/// have not been taken in the kernel's queue.
const RESERVED_DESCRIPTORS: u64 = 12;
/// Descriptors that a process takes while it is given something.
const GIVEN_DESCRIPTORS: u64 = 4;

/// What a process handed over or was given. `image` is when what it runs began ([`TrackedProcesses::image`]).
#[derive(Debug)]
pub(crate) enum Arrival {
    /// It was given this ring.
    Ring {
        pid: Pid,
        image: Time,
        reader: Box<RingReader>,
    },
    /// It handed over a userfaultfd.
    UserFault { pid: Pid, fault: OwnedFd },
    /// It was given memory for its tables of allocator operations.
    Operations {
        pid: Pid,
        image: Time,
        reader: OperationsReader,
    },
    /// Its fault handler is at the other end.
    Handler {
        pid: Pid,
        image: Time,
        socket: OwnedFd,
    },
}

/// What is to be had beside rings.
#[derive(Debug, Default)]
pub(crate) struct Offers {
    /// Userfaultfds are taken.
    pub(crate) writes: bool,
    /// Fault handlers are.
    pub(crate) handlers: bool,
    /// Files of counts are given.
    pub(crate) counts: Option<CountFiles>,
    /// Memory for tables of allocator operations is given.
    pub(crate) operations: Option<OperationsOffer>,
}

/// What processes need that count their allocator operations.
#[derive(Debug)]
pub(crate) struct OperationsOffer {
    /// How many operations there are to each that is timed.
    pub(crate) every: u32,
    /// Where the kernel's part is informed of where to look; none where it does not look.
    pub(crate) places: Option<RunningPlaces>,
}

/// Where files of counts are made.
#[derive(Debug)]
pub(crate) struct CountFiles {
    pub(crate) folder: PathBuf,
    /// The file that all processes share.
    pub(crate) control: File,
}

impl CountFiles {
    /// Makes the file of one image. As long as the plugin may ever want; only what is written takes room.
    fn make(&self, pid: Pid, image: Time) -> io::Result<File> {
        let name = varve_qemu_counter_abi::file_name(pid.0, image.0);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(self.folder.join(name))?;
        file.set_len(varve_qemu_counter_abi::MAX_BYTES)?;
        Ok(file)
    }
}

/// What was refused.
#[derive(Debug, Default)]
pub(crate) struct Refused {
    /// Connections of processes that are not tracked.
    pub(crate) foreign: AtomicU64,
    /// Wishes of tracked processes: for a second ring, for what is not to be had, or said wrongly or too late.
    pub(crate) tracked: AtomicU64,
}

/// The folder, the socket in it and the thread that answers.
#[derive(Debug)]
pub(crate) struct Channel {
    arrivals: Receiver<Arrival>,
    refused: Arc<Refused>,
    identity: String,
    thread: Option<JoinHandle<()>>,
    /// A byte here ends the thread.
    stop: OwnedFd,
    folder: RunFolder,
}

impl Channel {
    /// Begins to answer.
    ///
    /// # Errors
    /// Where there can be no socket in the folder.
    pub(crate) fn open(
        folder: RunFolder,
        tracked: TrackedProcesses,
        offers: Offers,
    ) -> Result<Channel, RecordError> {
        let problem = RecordError::system("make the preload library's socket");
        let made = || -> io::Result<(Listener, String, OwnedFd, OwnedFd)> {
            // `/proc/net/unix` shows everybody where a socket was bound, and not where it is by now.
            let listener = Listener::bind(folder.path())?;
            let [bound, hidden] = [folder.path(), folder.secret()].map(|f| f.join(SOCKET));
            std::fs::rename(bound, hidden)?;
            let identity = varve_preload_abi::server::identity(folder.secret())?.to_string();
            let (stopped, stop) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
            Ok((listener, identity, stopped, stop))
        };
        let (listener, identity, stopped, stop) = made().map_err(problem)?;
        let (say, arrivals) = channel();
        let refused = Arc::new(Refused::default());
        let server = Server {
            listener,
            tracked,
            offers,
            refused: refused.clone(),
            say,
            pending: Vec::new(),
            lacks_room: false,
            answered: HashMap::new(),
            max_descriptors: rustix::process::getrlimit(rustix::process::Resource::Nofile)
                .current
                .unwrap_or(u64::MAX),
        };
        let thread = std::thread::Builder::new()
            .name("varve-channel".into())
            .spawn(move || server.run(&stopped))
            .map_err(RecordError::system("start a thread"))?;
        Ok(Channel {
            arrivals,
            refused,
            identity,
            thread: Some(thread),
            stop,
            folder,
        })
    }

    /// What a process needs to know to find the recorder, as environment variables.
    pub(crate) fn environment(&self) -> [(&'static str, std::ffi::OsString); 2] {
        [
            (
                DIRECTORY_VARIABLE,
                self.folder.secret().as_os_str().to_owned(),
            ),
            (IDENTITY_VARIABLE, self.identity.clone().into()),
        ]
    }

    /// The next that came, if there is one.
    pub(crate) fn next(&self) -> Option<Arrival> {
        self.arrivals.try_recv().ok()
    }

    /// Connections that were refused: those of strangers, and those of tracked processes.
    pub(crate) fn refused(&self) -> (u64, u64) {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (count(&self.refused.foreign), count(&self.refused.tracked))
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // Not by closing it: a child that has not begun its program yet may hold a copy.
        let _ = rustix::io::write(&self.stop, &[0]);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A process that was not given what it wants.
struct Pending {
    peer: Peer,
    /// When what it runs began; None where it could not be found out yet whether it is tracked.
    image: Option<Time>,
    /// What it said that it wants.
    hello: Option<Hello>,
    until: Instant,
}

/// What an image was given.
struct Answered {
    image: Time,
    kinds: Vec<Kind>,
}

struct Server {
    listener: Listener,
    tracked: TrackedProcesses,
    offers: Offers,
    refused: Arc<Refused>,
    say: Sender<Arrival>,
    pending: Vec<Pending>,
    /// Some of them wait for descriptors or memory.
    lacks_room: bool,
    answered: HashMap<Pid, Answered>,
    /// How many descriptors the recorder may have.
    max_descriptors: u64,
}

impl Server {
    /// Answers until something comes through the pipe.
    fn run(mut self, stopped: &OwnedFd) {
        // Where that fails it has what the recorder began with, as before.
        let _ = crate::rights::keep_for_recording(false);
        // A program that starts waits for this thread.
        varve_sys::thread_priority(-20);
        // It connects, says what it wants, and only then waits: one change of threads there and one back.
        varve_sys::let_wakers_go_on();
        loop {
            let (stop, new) = self.wait(stopped);
            if stop {
                return;
            }
            let rests = new && self.take_new();
            let pending = std::mem::take(&mut self.pending);
            let now = Instant::now();
            self.lacks_room = false;
            for one in pending {
                self.look(one, now);
            }
            if rests || self.lacks_room {
                std::thread::sleep(REST);
            }
        }
    }

    /// Sleeps until there is something to do: whether to stop, and whether somebody has connected.
    fn wait(&self, stopped: &OwnedFd) -> (bool, bool) {
        let mut all = vec![
            PollFd::new(stopped, PollFlags::IN),
            PollFd::from_borrowed_fd(self.listener.as_fd(), PollFlags::IN),
        ];
        let pending = self.pending.iter().map(|p| p.peer.as_fd());
        all.extend(pending.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        let until = match self.lacks_room {
            true => Some(Instant::now()),
            false => self.pending.iter().map(|p| p.until).min(),
        };
        let limit = until.map(|until| {
            let left = until.saturating_duration_since(Instant::now()) + Wait::from_millis(1);
            rustix::time::Timespec {
                tv_sec: left.as_secs().cast_signed(),
                tv_nsec: left.subsec_nanos().into(),
            }
        });
        // Whatever it says, the next look shows.
        let _ = poll(&mut all, limit.as_ref());
        let is_ready = |i: usize| all.get(i).is_some_and(|fd| !fd.revents().is_empty());
        (is_ready(0), is_ready(1))
    }

    /// Takes some of those who have connected; whether a rest is due, as only strangers have, or as descriptors are short.
    fn take_new(&mut self) -> bool {
        let mut strangers = 0;
        for _ in 0..BATCH {
            if !self.has_room(1 + GIVEN_DESCRIPTORS) {
                return true;
            }
            let peer = match self.listener.accept() {
                Ok(Some(peer)) => peer,
                Ok(None) => break,
                // No descriptors left, say: it goes on when there are some.
                Err(_) => {
                    std::thread::sleep(REST);
                    break;
                }
            };
            let image = match self.image_of(&peer) {
                Ok(None) => {
                    strangers += 1;
                    self.refused.foreign.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                found => found.ok().flatten(),
            };
            if self.pending.len() >= MAX_PENDING {
                self.pending.remove(0);
                self.refuse();
            }
            self.pending.push(Pending {
                peer,
                image,
                hello: None,
                until: Instant::now() + PATIENCE,
            });
        }
        strangers == BATCH
    }

    /// Whether so many descriptors can be taken, and what is reserved is left.
    fn has_room(&self, descriptors: u64) -> bool {
        let taken = descriptors + RESERVED_DESCRIPTORS;
        let most = self.max_descriptors.checked_sub(taken);
        most.is_some_and(|most| varve_sys::has_at_most_open(most).unwrap_or(false))
    }

    /// When what a tracked process runs began; None for others.
    fn image_of(&self, peer: &Peer) -> io::Result<Option<Time>> {
        let image = self.tracked.image(Pid(peer.pid()));
        // The number of a process that has ended may be another's by now.
        Ok(match image {
            Some(image) if peer.is_there()? => Some(image),
            _ => None,
        })
    }

    fn refuse(&self) {
        self.refused.tracked.fetch_add(1, Ordering::Relaxed);
    }

    /// Gives a process that has said what it wants that, and waits for one that has not.
    fn look(&mut self, mut one: Pending, now: Instant) {
        match self.try_give(&mut one) {
            Ok(true) => {}
            Ok(false) if now < one.until => self.pending.push(one),
            Err(error) if lacks_room(&error) && now < one.until => {
                self.lacks_room = true;
                self.pending.push(one);
            }
            _ => self.refuse(),
        }
    }

    /// Whether a process was given what it wants; not where it has not said it.
    fn try_give(&mut self, one: &mut Pending) -> io::Result<bool> {
        if !self.has_room(GIVEN_DESCRIPTORS) {
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
        if one.image.is_none() {
            one.image = self.image_of(&one.peer)?;
        }
        let image = one.image.ok_or(io::ErrorKind::PermissionDenied)?;
        if one.hello.is_none() {
            one.hello = one.peer.hello()?;
        }
        match &mut one.hello {
            Some(hello) => self.give(image, &one.peer, hello).map(|()| true),
            None => Ok(false),
        }
    }

    /// Gives it; an error for which [`lacks_room`] is one before anything was given.
    fn give(&mut self, image: Time, peer: &Peer, hello: &mut Hello) -> io::Result<()> {
        let pid = Pid(peer.pid());
        let fresh = || Answered {
            image,
            kinds: Vec::new(),
        };
        let answered = self.answered.entry(pid).or_insert_with(fresh);
        if answered.image != image {
            *answered = fresh();
        }
        if answered.kinds.contains(&hello.kind) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        // It is announced before it is given: the process may have ended before this thread goes on.
        let given = match hello.kind {
            Kind::Ring => {
                let (reader, memory) = RingReader::create(RING_BYTES)?;
                let bytes = reader.bytes() as u64;
                let fault = hello.descriptor.take().filter(|_| self.offers.writes);
                if let Some(fault) = fault {
                    let _ = self.say.send(Arrival::UserFault { pid, fault });
                }
                let reader = Box::new(reader);
                let _ = self.say.send(Arrival::Ring { pid, image, reader });
                peer.give(Kind::Ring, bytes, &[memory.as_fd()])
            }
            Kind::Handler if self.offers.handlers => {
                let socket = peer.as_fd().try_clone_to_owned()?;
                let _ = self.say.send(Arrival::Handler { pid, image, socket });
                Ok(())
            }
            Kind::Counts => {
                let files = self.offers.counts.as_ref();
                let files = files.ok_or(io::ErrorKind::Unsupported)?;
                let own = files.make(pid, image)?;
                peer.give(Kind::Counts, image.0, &[files.control.as_fd(), own.as_fd()])
            }
            Kind::Operations => {
                let offer = self.offers.operations.as_ref();
                let offer = offer.ok_or(io::ErrorKind::Unsupported)?;
                let (reader, memory) = OperationsReader::create(offer.every)?;
                // Before the process has its memory, so that its first operation is seen.
                if let Some(places) = &offer.places {
                    places.set(pid, hello.number.cast_signed());
                }
                let bytes = varve_preload_abi::operations::MEMORY_BYTES as u64;
                let _ = self.say.send(Arrival::Operations { pid, image, reader });
                peer.give(Kind::Operations, bytes, &[memory.as_fd()])
            }
            Kind::Handler | Kind::Placing | Kind::Site => {
                return Err(io::ErrorKind::Unsupported.into());
            }
        };
        answered.kinds.push(hello.kind);
        given.map_err(io::Error::other)
    }
}

/// Whether the recorder has no descriptor or memory left for now.
fn lacks_room(error: &io::Error) -> bool {
    let lacking = [libc::EMFILE, libc::ENFILE, libc::ENOMEM];
    error
        .raw_os_error()
        .is_some_and(|code| lacking.contains(&code))
}
