//! Answers the preload library: who begins is given the memory through which objects are placed, and who asks is told which place a call
//! stack belongs to.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use varve_model::Pid;
use varve_preload_abi::MAX_FRAMES;
use varve_preload_abi::channel::Kind;
use varve_preload_abi::placing::{MEMORY_BYTES, Placements, SLOTS, slot, slot_at};
use varve_preload_abi::server::{Hello, Listener, Peer};
use varve_sys::maps;

use crate::error::PlaceError;
use crate::matcher::{Match, Matcher};

/// How long a process may take to say what it wants.
const PATIENCE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};
/// Processes that are given the memory at most.
const MAX_PROCESSES: usize = 100_000;

/// What the server found out.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    /// How places were matched.
    pub(crate) matched: BTreeMap<usize, Match>,
    /// Call stacks that belong to no place.
    pub(crate) unmatched: u64,
    /// Processes that were given the memory.
    pub(crate) processes: HashSet<u32>,
    /// A file is of another build than the plan's.
    pub(crate) other_build: bool,
}

/// The thread that answers; ends on drop.
pub(crate) struct Server {
    heard: Arc<Mutex<Heard>>,
    thread: Option<JoinHandle<()>>,
    stop: OwnedFd,
}

impl Server {
    /// Begins to answer at a socket in a folder.
    pub(crate) fn start(
        folder: &Path,
        placements: Arc<Placements>,
        matcher: Matcher,
    ) -> Result<Server, PlaceError> {
        let failed = PlaceError::system("make the preload library's socket");
        let listener = Listener::bind(folder).map_err(failed)?;
        let (stopped, stop) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
            .map_err(|e| PlaceError::system("make a pipe")(e.into()))?;
        let heard = Arc::new(Mutex::new(Heard::default()));
        let at_work = Answering {
            listener,
            placements,
            matcher,
            heard: heard.clone(),
        };
        let thread = std::thread::Builder::new()
            .name("varve-placing".into())
            .spawn(move || at_work.run(&stopped))
            .map_err(PlaceError::system("start a thread"))?;
        Ok(Server {
            heard,
            thread: Some(thread),
            stop,
        })
    }

    /// What was found out so far.
    pub(crate) fn with_heard<T>(&self, look: impl FnOnce(&Heard) -> T) -> T {
        look(&self.heard.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Not by closing it: a child that has not begun its program yet may hold a copy.
        let _ = rustix::io::write(&self.stop, &[0]);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Answering {
    listener: Listener,
    placements: Arc<Placements>,
    matcher: Matcher,
    heard: Arc<Mutex<Heard>>,
}

impl Answering {
    fn run(mut self, stopped: &OwnedFd) {
        // Programs wait for this thread.
        varve_sys::thread_priority(-20);
        loop {
            let mut all = [
                PollFd::new(stopped, PollFlags::IN),
                PollFd::from_borrowed_fd(self.listener.as_fd(), PollFlags::IN),
            ];
            let _ = poll(&mut all, None);
            if !all[0].revents().is_empty() {
                return;
            }
            while let Ok(Some(peer)) = self.listener.accept() {
                // Who is gone, or asks for something else, gets nothing.
                let _ = self.answer(&peer);
            }
        }
    }

    fn answer(&mut self, peer: &Peer) -> io::Result<()> {
        let Some(hello) = wait_for_hello(peer)? else {
            return Ok(());
        };
        match hello.kind {
            Kind::Placing => self.begin(peer, hello.number as u32),
            Kind::Site => {
                let number = self.place_of(peer, hello.number as usize);
                peer.give(Kind::Site, number, &[])
            }
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// A program begins, which calls its process `own`.
    fn begin(&mut self, peer: &Peer, own: u32) -> io::Result<()> {
        let pid = Pid(peer.pid());
        {
            let mut heard = self.lock();
            if heard.processes.len() >= MAX_PROCESSES {
                return Err(io::ErrorKind::OutOfMemory.into());
            }
            heard.processes.insert(pid.0);
        }
        self.placements.forget(own);
        let standing = match maps(pid) {
            Ok(maps) => self.matcher.standing(pid, &maps),
            Err(_) => Vec::new(),
        };
        for found in standing {
            self.placements
                .want(own, found.place, found.address.0, found.bytes.0);
            let mut heard = self.lock();
            heard.other_build |= found.other_build;
            heard.matched.insert(found.place, Match::Name);
        }
        let memory = self.placements.file().as_fd();
        peer.give(Kind::Placing, MEMORY_BYTES as u64, &[memory])
    }

    /// The number of the place that a question is about, plus one; or zero.
    fn place_of(&mut self, peer: &Peer, question: usize) -> u64 {
        if question >= SLOTS {
            return 0;
        }
        let word = |which| self.placements.get(slot_at(question, which));
        let count = (word(slot::FRAMES) as usize).min(MAX_FRAMES);
        let frames: Vec<u64> = (0..count)
            .map(|index| word(slot::FIRST_FRAME + index * 8))
            .collect();
        let (address, is_file) = (word(slot::ADDRESS), word(slot::IS_FILE) == 1);
        let pid = Pid(peer.pid());
        let Ok(maps) = maps(pid) else { return 0 };
        let by_file = is_file
            .then(|| {
                let entry = maps.iter().find(|e| e.address.0 == address)?;
                self.matcher.file(&entry.path)
            })
            .flatten()
            .map(|place| (place, Match::Name));
        let found = by_file.or_else(|| self.matcher.place_of(pid, &maps, &frames));
        let mut heard = self.lock();
        match found {
            None => {
                heard.unmatched += 1;
                0
            }
            Some((place, how)) => {
                heard.other_build |= matches!(how, Match::Lines | Match::Functions);
                let known = heard.matched.entry(place).or_insert(how);
                *known = (*known).max(how);
                place as u64 + 1
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a process says that has connected; it says it at once.
fn wait_for_hello(peer: &Peer) -> io::Result<Option<Hello>> {
    if let Some(hello) = peer.hello()? {
        return Ok(Some(hello));
    }
    let mut one = [PollFd::from_borrowed_fd(peer.as_fd(), PollFlags::IN)];
    let _ = poll(&mut one, Some(&PATIENCE));
    peer.hello()
}
