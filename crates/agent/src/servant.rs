//! The servant: a process that shares this one's memory, to trap the first access to each page in an interval.
//!
//! Only somebody whose memory it is may move pages of it (`UFFDIO_MOVE`), and whoever does so must not be among the
//! threads that the recorder holds still. So the library makes, where the recorder asks for it, a process by
//! `clone(CLONE_VM)`. Nobody waits for it (its exit signal is none, and it is orphaned at once), no signal reaches it
//! (its own session, all blocked), and it holds none of the program's descriptors.
//!
//! While the recorder holds the program, the servant moves every resident page of private anonymous memory to a place
//! aside: another address, always the same distance away, so that the page tables are all the state there is. When
//! the program runs on, the first access to a page traps; the servant moves the page back and wakes the thread. When
//! the recorder is gone, everything is put back and the servant ends.
//!
//! It runs with the thread pointer of the thread that made it, so nothing here may use thread-local storage, nor touch
//! memory that may be aside: it would wait for itself. Its own memory is left alone ([`keep::Keep`]). Left alone are
//! also the pages of thread control blocks: at a thread's end the kernel clears the id there without waiting for
//! anybody, and a join would wait forever.

mod keep;
mod launch;
mod maps;
mod mover;
mod place;
mod ranges;
mod serve;
mod settled;
mod talk;

use std::sync::atomic::{AtomicBool, Ordering};

use varve_agent_ring::{Arm, Armed, MOST_WORDS, READY, SERVED};

use crate::sys;
use mover::Watch;
use ranges::Range;
use serve::Keeper;
use talk::{Message, Socket};

static WANTED: AtomicBool = AtomicBool::new(false);

/// The recorder asks for servants.
pub(crate) fn want() {
    WANTED.store(true, Ordering::Relaxed);
}

/// Makes the process's servant and announces it at the socket in the folder. Where that fails, nothing of this process
/// is trapped, and the recorder says so.
pub(crate) fn start(folder: &[u8]) {
    if WANTED.load(Ordering::Relaxed) {
        launch::launch(folder);
    }
}

/// What the servant does until its end. `process` is whom it serves, `stack` where it runs.
fn live(socket: Socket, process: u32, stack: Range) {
    let mut words = [0u64; MOST_WORDS];
    let Some(mut keeper) = begin(socket, stack, &mut words) else {
        return;
    };
    loop {
        let ready = talk::wait(keeper.front.descriptor, socket);
        if ready.pages {
            keeper.serve_all();
        }
        if !ready.words {
            continue;
        }
        match socket.receive(&mut words) {
            Message::Words(count) => {
                let message = words.get(..count).unwrap_or_default();
                let Some((arm, threads)) = Arm::decode(message) else {
                    let (served, empty) = keeper.served();
                    socket.send(&[SERVED, served, empty], None);
                    return;
                };
                let armed = keeper.arm(process, &arm, threads);
                answer(&mut keeper, socket, &armed, &mut words);
            }
            Message::Device(descriptor) => talk::close(descriptor),
            Message::Nothing => {}
            Message::End => break,
        }
    }
    // The recorder is gone: the program shall find all that it has.
    keeper.release();
}

/// Waits for the device and makes what is needed.
fn begin(socket: Socket, stack: Range, words: &mut [u64]) -> Option<Keeper> {
    loop {
        talk::wait(-1, socket);
        match socket.receive(words) {
            Message::Device(device) => {
                let watches = Watch::from_device(device).zip(Watch::from_device(device));
                talk::close(device);
                let (front, back) = watches?;
                let keeper = Keeper::new(front, back, stack).filter(|_| back.begin_as_back())?;
                // What the front needs, only a privileged process may ask for: the recorder does.
                socket.send(&[READY], Some(front.descriptor));
                return Some(keeper);
            }
            Message::Words(_) | Message::End => return None,
            Message::Nothing => {}
        }
    }
}

/// Says what was done, and which memory it was that pages are newly moved to.
fn answer(keeper: &mut Keeper, socket: Socket, armed: &Armed, words: &mut [u64; MOST_WORDS]) {
    let fixed = armed.encode();
    let (head, rest) = words.split_at_mut(Armed::WORDS);
    head.copy_from_slice(&fixed);
    let mut count = Armed::WORDS;
    for (pair, range) in rest.chunks_exact_mut(2).zip(keeper.fresh.as_slice()) {
        if let [start, bytes] = pair {
            (*start, *bytes) = (range.start, range.bytes());
            count += 2;
        }
    }
    socket.send(words.get(..count).unwrap_or_default(), None);
    keeper.fresh.clear();
}

/// Ends the servant.
fn end() -> ! {
    loop {
        // SAFETY: takes an integer, does not return.
        unsafe { sys::call(libc::SYS_exit_group, [0; 6]) };
    }
}
